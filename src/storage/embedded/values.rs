//! Compression of values: the same for every engine.

use std::io;

/// Bytes from which on a value is compressed.
const COMPRESS_FROM_BYTES: usize = 4 * 1024;

/// Compresses a value; `None` if that does not make it smaller.
pub(crate) fn compress(raw: &[u8], zstd: &mut zstd::bulk::Compressor<'_>) -> Option<Vec<u8>> {
    if raw.len() < COMPRESS_FROM_BYTES {
        return None;
    }
    let smaller = zstd.compress(raw).ok()?;
    (smaller.len() < raw.len()).then_some(smaller)
}

/// Returns a value that was compressed and has at most `raw_bytes`.
pub(crate) fn decompress(compressed: &[u8], raw_bytes: usize) -> io::Result<Vec<u8>> {
    zstd::bulk::decompress(compressed, raw_bytes)
}
