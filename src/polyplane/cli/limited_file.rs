//! Files that flags name, read up to a length.

use anyhow::bail;
use std::io::Read as _;
use std::path::Path;

/// Longest configuration file, in bytes, as upstream.
const CONFIG_BYTES_MAX: u64 = 10 << 20;

/// Reads a configuration file as a whole.
///
/// # Errors
/// Returns an error if the file cannot be read or is longer than 10 MiB.
pub fn read_config(file: &Path) -> anyhow::Result<Vec<u8>> {
    read(file, CONFIG_BYTES_MAX)
}

/// Reads a file as a whole. The limit keeps a wrong path, such as that of a device, from filling the
/// memory.
///
/// # Errors
/// Returns an error if the file cannot be read or is longer than `bytes_max`.
pub fn read(file: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file)?;
    opened.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        bail!("the file is longer than {bytes_max} bytes");
    }
    Ok(bytes)
}
