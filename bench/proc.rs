//! CPU time and resident memory of a process, as the kernel counts them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// The unit of times in /proc, which is the same on every Linux (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// The most by which a difference of coarse times is wrong: user and kernel time are both cut to
/// whole ticks.
const COARSE_ERROR: Duration = Duration::from_millis(2 * 1000 / TICKS_PER_SECOND);

/// A process that is measured while load runs.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The name that the kernel shows.
    pub name: String,
}

impl Process {
    /// Looks up a running process.
    ///
    /// # Errors
    /// Returns an error if no process has this id.
    pub fn find(pid: u32) -> Result<Self> {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .with_context(|| format!("no process {pid}"))?;
        Ok(Self {
            pid,
            name: name.trim().to_owned(),
        })
    }

    /// Returns this process.
    pub fn own() -> Self {
        Self {
            pid: std::process::id(),
            name: "bench".to_owned(),
        }
    }

    /// Returns the CPU time used so far by all threads of the process, in user and kernel mode.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn cpu(&self) -> Result<CpuTime> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .with_context(|| format!("the process {} has ended", self.name))?;
        let whole = cpu_of_stat(&text);
        Ok(CpuTime {
            whole: whole.with_context(|| format!("cannot read the times of {}", self.name))?,
            threads: thread_times(self.pid),
        })
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn resident(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// Returns the resident memory in bytes without pages of files.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn anonymous(&self) -> Result<u64> {
        self.memory("RssAnon:")
    }

    fn memory(&self, field: &str) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .with_context(|| format!("the process {} has ended", self.name))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.split_whitespace().next());
        let kib = kib.with_context(|| format!("{} shows no {field}", self.name))?;
        Ok(kib.parse::<u64>()? * 1024)
    }
}

/// The CPU time that a process had used at one moment, counted in two ways.
#[derive(Clone, Debug, Default)]
pub struct CpuTime {
    /// All threads, also those that have ended, in steps of 10 ms.
    whole: Duration,
    /// The threads that run, by id, to the nanosecond; empty if the kernel does not count so.
    threads: BTreeMap<String, Duration>,
}

impl CpuTime {
    /// Returns the CPU time since the process began, in the way that [`Self::since`] does.
    pub fn total(&self) -> Duration {
        let exact = self.threads.values().sum::<Duration>();
        match self.whole > exact + COARSE_ERROR {
            true => self.whole,
            false => exact,
        }
    }

    /// Returns the CPU time used since an earlier moment: the exact one, or the coarse one if
    /// threads have ended in between and took what they had used with them.
    pub fn since(&self, before: &Self) -> Duration {
        let whole = self.whole.saturating_sub(before.whole);
        let has_all = |id: &String| self.threads.contains_key(id);
        if before.threads.is_empty() || !before.threads.keys().all(has_all) {
            return whole;
        }
        let sum = |threads: &BTreeMap<String, Duration>| threads.values().sum::<Duration>();
        let exact = sum(&self.threads).saturating_sub(sum(&before.threads));
        // A thread that both began and ended in between leaves a trace in the coarse one only.
        if whole > exact + COARSE_ERROR {
            whole
        } else {
            exact
        }
    }
}

/// Returns the CPU time of each thread of a process that still runs. A thread that ends while this
/// reads is left out.
fn thread_times(pid: u32) -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::new();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let nanos = text.split_whitespace().next();
        if let Some(nanos) = nanos.and_then(|nanos| nanos.parse().ok()) {
            let id = thread.file_name().to_string_lossy().into_owned();
            times.insert(id, Duration::from_nanos(nanos));
        }
    }
    times
}

/// Returns whether a process has ended, even if its parent has not collected it yet.
pub fn has_ended(pid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // The state follows the name in brackets; Z is a process that was not collected.
    let state = text.ok().and_then(|text| {
        let (_, fields) = text.rsplit_once(") ")?;
        fields.chars().next()
    });
    matches!(state, None | Some('Z' | 'X'))
}

/// Parses the CPU time from a line of `/proc/<pid>/stat`. The name is in brackets and may contain
/// blanks, so fields are counted after it.
fn cpu_of_stat(text: &str) -> Option<Duration> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Returns the processes behind a kubeconfig: those of a `pids` or `pid` file beside it.
///
/// # Errors
/// Returns an error if the file names a process that has ended.
pub fn beside(kubeconfig: &Path) -> Result<Vec<Process>> {
    let folder = kubeconfig.parent().unwrap_or(Path::new("."));
    for name in ["pids", "pid"] {
        if let Ok(text) = std::fs::read_to_string(folder.join(name)) {
            let pids = text.split_whitespace().map(str::parse);
            return pids.map(|pid| Process::find(pid?)).collect();
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_shift_the_times() {
        let text = "7 (a (b) c) S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 5 1 1";
        assert_eq!(cpu_of_stat(text), Some(Duration::from_secs(3)));
        assert_eq!(cpu_of_stat("nonsense"), None);
    }

    /// Returns a time of which threads 1 and following have used so many milliseconds each.
    fn time(whole: u64, threads: &[u64]) -> CpuTime {
        let times = threads.iter().enumerate();
        let times = times.map(|(id, millis)| (id.to_string(), Duration::from_millis(*millis)));
        CpuTime {
            whole: Duration::from_millis(whole),
            threads: times.collect(),
        }
    }

    #[test]
    fn time_is_exact_unless_a_thread_took_its_share_away() {
        let millis = |after: CpuTime, before: CpuTime| after.since(&before).as_millis();
        // The same threads, and a new one.
        assert_eq!(millis(time(50, &[33, 14]), time(20, &[20, 5])), 22);
        assert_eq!(millis(time(50, &[33, 14, 5]), time(20, &[20, 5])), 27);
        // The second thread has ended.
        assert_eq!(millis(time(50, &[33]), time(20, &[20, 5])), 30);
        // A thread began and ended in between, and used 100 ms.
        assert_eq!(millis(time(150, &[33, 14]), time(20, &[20, 5])), 130);
        // A kernel that counts ticks only.
        assert_eq!(millis(time(50, &[]), time(20, &[])), 30);
    }

    #[test]
    fn a_killed_process_has_ended_before_it_is_collected() {
        assert!(!has_ended(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        let pid = child.id();
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        child.wait().expect("collected");
        assert!(has_ended(pid));
    }

    #[test]
    fn this_process_has_used_time_and_memory() {
        let own = Process::find(std::process::id()).expect("this process runs");
        let resident = own.resident().expect("runs");
        let anonymous = own.anonymous().expect("runs");
        assert!(
            0 < anonymous && anonymous < resident,
            "{anonymous} of {resident}"
        );
        assert!(own.cpu().is_ok());
    }
}
