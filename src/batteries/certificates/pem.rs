//! The blocks of a PEM text, found as Go finds them: text outside of blocks is skipped.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";

/// One block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The label of the block, which says what it contains.
    pub label: String,
    /// True if there are header lines before the content.
    pub has_headers: bool,
    /// The decoded content.
    pub bytes: Vec<u8>,
}

/// Returns the blocks of a text, in order.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = begin(rest) {
        let after = &rest[start + BEGIN.len()..];
        match read(after) {
            Some((block, read)) => {
                found.push(block);
                rest = &after[read..];
            }
            None => rest = after,
        }
    }
    found
}

/// Returns the position of the next line that begins a block.
fn begin(text: &str) -> Option<usize> {
    if text.starts_with(BEGIN) {
        return Some(0);
    }
    text.find("\n-----BEGIN ").map(|at| at + 1)
}

/// Parses a block behind its first line. Returns it with its length in bytes.
fn read(text: &str) -> Option<(Block, usize)> {
    let (line, mut rest) = text.split_once('\n')?;
    let label = line.trim_end().strip_suffix(DASHES)?.to_owned();
    let mut has_headers = false;
    while let Some((line, after)) = rest.split_once('\n') {
        if !line.contains(':') {
            break;
        }
        has_headers = true;
        rest = after;
    }
    let end = format!("-----END {label}-----");
    let (content, after) = if let Some(after) = rest.strip_prefix(&end) {
        ("", after)
    } else {
        let at = rest.find(&format!("\n{end}"))?;
        (&rest[..at], &rest[at + 1 + end.len()..])
    };
    let tail = after.split('\n').next().unwrap_or("");
    if !tail.trim().is_empty() {
        return None;
    }
    let digits: String = content
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .collect();
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true);
    let bytes = GeneralPurpose::new(&STANDARD, config).decode(digits).ok()?;
    Some((
        Block {
            label,
            has_headers,
            bytes,
        },
        text.len() - after.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text() {
        let text = "hello\n-----BEGIN A-----\nAAEC\n-----END A-----\n-----BEGIN B-----\nK: v\n\nAA==\n-----END B-----\n";
        let found = blocks(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].label.as_str(), found[0].bytes.as_slice()),
            ("A", &[0u8, 1, 2][..])
        );
        assert!(found[1].has_headers && !found[0].has_headers);
    }

    #[test]
    fn broken_blocks_are_passed_over() {
        assert!(blocks("-----BEGIN A-----\n?\n-----END A-----").is_empty());
        assert!(blocks("-----BEGIN A-----\nAA==\n-----END B-----").is_empty());
        assert_eq!(
            blocks("-----BEGIN A-----\nx\n-----BEGIN A-----\nAA==\n-----END A-----").len(),
            1
        );
    }
}
