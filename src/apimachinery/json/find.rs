//! Finds the next byte that the writer of a string cannot simply copy, eight bytes at a time.

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHS: u64 = ONES << 7;

/// Marks the bytes that are zero. Only the first mark is certain; marks above it may be wrong.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word
}

/// Marks the bytes below 0x20. Only the first mark is certain.
const fn controls(word: u64) -> u64 {
    word.wrapping_sub(ONES * 0x20) & !word
}

/// Returns the number of bytes before the first quote, backslash or control character.
#[inline]
pub(super) fn plain(bytes: &[u8]) -> usize {
    let marks = |word: u64| {
        zeros(word ^ (ONES * b'"' as u64)) | zeros(word ^ (ONES * b'\\' as u64)) | controls(word)
    };
    scan(bytes, marks, |byte| {
        byte < 0x20 || byte == b'"' || byte == b'\\'
    })
}

/// Returns the number of bytes before the first one that Go's encoder may have to escape: those
/// that end [`plain`], `<`, `>`, `&`, and the first byte of the line separators.
#[inline]
pub(super) fn unescaped(bytes: &[u8]) -> usize {
    // `"` and `&` differ in one bit, and so do `<` and `>`, so that one comparison covers both.
    let marks = |word: u64| {
        zeros((word | (ONES * 4)) ^ (ONES * b'&' as u64))
            | zeros((word | (ONES * 2)) ^ (ONES * b'>' as u64))
            | zeros(word ^ (ONES * b'\\' as u64))
            | zeros(word ^ (ONES * 0xE2))
            | controls(word)
    };
    scan(bytes, marks, |byte| {
        byte < 0x20 || matches!(byte, b'"' | b'&' | b'<' | b'>' | b'\\' | 0xE2)
    })
}

#[inline]
fn scan(bytes: &[u8], marks: impl Fn(u64) -> u64, is_special: impl Fn(u8) -> bool) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let marked = marks(u64::from_le_bytes(*word)) & HIGHS;
        if marked != 0 {
            return at * 8 + marked.trailing_zeros() as usize / 8;
        }
    }
    if rest.is_empty() {
        return bytes.len();
    }
    // The last word overlaps the one before, which has no marks.
    if let Some(word) = bytes.last_chunk::<8>() {
        let marked = marks(u64::from_le_bytes(*word)) & HIGHS;
        return match marked {
            0 => bytes.len(),
            _ => bytes.len() - 8 + marked.trailing_zeros() as usize / 8,
        };
    }
    let special = rest.iter().position(|byte| is_special(*byte));
    special.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_found_at_every_place() {
        for byte in 0..=255u8 {
            for at in 0..20 {
                let mut bytes = [b'a'; 20];
                bytes[at] = byte;
                if at < 19 {
                    bytes[at + 1] = b'"';
                }
                let stops = byte < 0x20 || byte == b'"' || byte == b'\\';
                assert_eq!(
                    plain(&bytes),
                    if stops { at } else { at + 1 },
                    "{byte} at {at}"
                );
                let stops = stops || matches!(byte, b'<' | b'>' | b'&' | 0xE2);
                assert_eq!(
                    unescaped(&bytes),
                    if stops { at } else { at + 1 },
                    "{byte} at {at}"
                );
            }
        }
    }
}
