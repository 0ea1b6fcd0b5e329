//! Compression of values: the same for every engine.

use std::io;

/// Bytes from which on a value is compressed.
const COMPRESS_FROM_BYTES: usize = 4 * 1024;

/// The bytes with which a zstd frame begins. They are not UTF-8, so no text has them.
const FRAME_START: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// Bytes at the start of a value among which a frame may begin, behind a header of the writer.
const HEADER_BYTES_MAX: usize = 512;

/// Compresses a value; `None` if that does not make it smaller, or if its writer has compressed it.
pub(crate) fn compress(raw: &[u8], zstd: &mut zstd::bulk::Compressor<'_>) -> Option<Vec<u8>> {
    if raw.len() < COMPRESS_FROM_BYTES || has_frame(raw) {
        return None;
    }
    let smaller = zstd.compress(raw).ok()?;
    (smaller.len() < raw.len()).then_some(smaller)
}

/// Returns whether a value has a zstd frame behind a short header.
fn has_frame(raw: &[u8]) -> bool {
    let start = &raw[..raw.len().min(HEADER_BYTES_MAX)];
    start.windows(FRAME_START.len()).any(|at| at == FRAME_START)
}

/// Returns a value that was compressed and has at most `raw_bytes`.
pub(crate) fn decompress(compressed: &[u8], raw_bytes: usize) -> io::Result<Vec<u8>> {
    zstd::bulk::decompress(compressed, raw_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_compressed_once() {
        let mut zstd = zstd::bulk::Compressor::new(1).expect("zstd starts");
        let raw = "a line of text\n".repeat(1000);
        let once = compress(raw.as_bytes(), &mut zstd).expect("it shrinks");
        assert_eq!(
            decompress(&once, raw.len()).expect("a frame"),
            raw.as_bytes()
        );
        // A frame behind a header, with so much behind it that compressing would pay.
        for header in [0, 1, HEADER_BYTES_MAX - FRAME_START.len()] {
            let value = [&vec![b'h'; header], &*once, raw.as_bytes()].concat();
            assert_eq!(compress(&value, &mut zstd), None, "a header of {header}");
        }
        let far = [raw.as_bytes(), &*once].concat();
        assert!(compress(&far, &mut zstd).is_some());
    }
}
