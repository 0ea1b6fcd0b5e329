//! CPU time and resident memory of a process, as the kernel counts them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// The unit of times in /proc, which is the same on every Linux (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

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
    pub fn cpu(&self) -> Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .with_context(|| format!("the process {} has ended", self.name))?;
        cpu_of_stat(&text).with_context(|| format!("cannot read the times of {}", self.name))
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn resident(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .with_context(|| format!("the process {} has ended", self.name))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = kib.context("no VmRSS")?.parse()?;
        Ok(kib * 1024)
    }
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
        assert!(own.resident().expect("runs") > 0);
        assert!(own.cpu().is_ok());
    }
}
