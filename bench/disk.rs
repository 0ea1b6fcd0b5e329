//! Measures the disk itself: it writes 4 KiB, then calls fdatasync, repeatedly.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::report::Latencies;

const BLOCK_BYTES: usize = 4096;
/// Length of the file, which is overwritten in a circle: its size stays constant, as that of a
/// store's log usually does.
const FILE_BYTES: u64 = 4 << 20;

/// Times write and fdatasync in a new file of `folder` for `time`.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub fn sync_latency(folder: &Path, time: Duration) -> Result<Latencies> {
    let path = folder.join(format!(".bench-{}", std::process::id()));
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot write in {}", folder.display()))?;
    let block = vec![0x5a; BLOCK_BYTES];
    for _ in 0..FILE_BYTES / BLOCK_BYTES as u64 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let begin = Instant::now();
    let mut latencies = Latencies::default();
    while begin.elapsed() < time {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        latencies.add(start.elapsed());
        if file.stream_position()? >= FILE_BYTES {
            file.seek(SeekFrom::Start(0))?;
        }
    }
    drop(file);
    std::fs::remove_file(&path)?;
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_gone_afterwards() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let latencies = sync_latency(folder.path(), Duration::from_millis(5)).expect("writes");
        assert!(latencies.len() > 0);
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("readable").count(),
            0
        );
    }
}
