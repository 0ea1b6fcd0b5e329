//! The size of this process's memory budget: as given, or a part of the memory of the container or
//! machine. This module does not know what the shares are used for.

use crate::cli::MemoryOptions;
use crate::cli::limits::LimitOptions;
use polyplane_plane::{Memory, Share};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The default budget is the machine's or container's memory divided by this. The rest is for the
/// objects of the planes, the store and the connections.
const PART: usize = 2;
/// The smallest default budget, in bytes. With less, the first long lists would be refused.
const BUDGET_MIN: usize = 128 << 20;
/// Bytes of memory assumed for a machine without /proc/meminfo.
const MEMORY_UNKNOWN: usize = 1 << 30;

/// Returns the shares of a replica's budget. The replicas of one process divide the budget.
pub fn shares(options: &MemoryOptions, limits: &LimitOptions, replicas: u16) -> Arc<Memory> {
    let budget = budget(options.memory_budget) / usize::from(replicas.max(1));
    Memory::with_limits(|share| {
        let bytes = share.part_of(budget);
        match share == Share::Bodies {
            true => bytes.min(limits.bodies_bytes_max),
            false => bytes,
        }
    })
}

/// Returns the budget in bytes: as given, or else half of the available memory, at least 128 MiB.
fn budget(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| (available() / PART).max(BUDGET_MIN))
}

/// Parses a number of bytes: `536870912`, `512Mi`, `2Gi`.
///
/// # Errors
/// Returns a message for the user if the text is not a number of bytes, or is one too small or too
/// large.
pub fn parse(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(bytes(text)?).map_err(|_| TOO_MANY)?;
    match bytes {
        0..BUDGET_SMALLEST => Err("this is too little; give at least 32Mi".to_owned()),
        bytes => Ok(bytes),
    }
}

const TOO_MANY: &str = "this is more than any machine has";

/// Parses a number of bytes of any size.
///
/// # Errors
/// Returns a message for the user if the text is not a number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let (digits, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .unwrap_or((text, 0));
    let number: u64 = digits
        .parse()
        .map_err(|_| "this is not a number of bytes; use for example 512Mi or 2Gi".to_owned())?;
    Ok(number.checked_mul(1 << shift).ok_or(TOO_MANY)?)
}

/// The smallest budget that can be given, in bytes. With less, the share of bodies could not hold
/// the longest body.
const BUDGET_SMALLEST: usize = 32 << 20;

/// Returns the memory of the container, or of the machine if the container has no limit.
fn available() -> usize {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine
        .as_deref()
        .and_then(total_of)
        .unwrap_or(MEMORY_UNKNOWN);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter();
    let limits = limits.filter_map(|file| fs::read_to_string(Path::new(&file)).ok());
    limits
        .filter_map(|text| text.trim().parse().ok())
        .fold(machine, usize::min)
}

/// Returns `MemTotal` of `/proc/meminfo`, in bytes.
fn total_of(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// Returns the files that may contain a limit: those of the process's own group, of each group
/// around it, and of the root of the mount, which is a container's own group.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = vec![
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        for group in Path::new(path).ancestors() {
            let group = group.display().to_string();
            let group = group.trim_end_matches('/');
            if controllers.is_empty() {
                files.push(format!("/sys/fs/cgroup{group}/memory.max"));
            } else if controllers.split(',').any(|name| name == "memory") {
                files.push(format!(
                    "/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"
                ));
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_read_with_its_unit() {
        assert_eq!(parse("536870912"), Ok(512 << 20));
        assert_eq!(parse("512Mi"), Ok(512 << 20));
        assert_eq!(parse("2Gi"), Ok(2 << 30));
        for bad in ["", "Mi", "1", "-1Gi", "2GB", "99999999999999Gi"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(budget(Some(7)), 7);
        assert!(budget(None) >= BUDGET_MIN);
    }

    #[test]
    fn the_smallest_limit_around_the_process_counts() {
        assert_eq!(
            total_of("MemTotal:  2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        let files = limit_files("0::/kubepods/pod1\n");
        assert!(files.contains(&"/sys/fs/cgroup/kubepods/pod1/memory.max".to_owned()));
        assert!(files.contains(&"/sys/fs/cgroup/kubepods/memory.max".to_owned()));
        let files = limit_files("9:cpu,memory:/a\n");
        assert!(files.contains(&"/sys/fs/cgroup/memory/a/memory.limit_in_bytes".to_owned()));
    }
}
