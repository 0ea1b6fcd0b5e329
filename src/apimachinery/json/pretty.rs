//! Indents compact JSON bytes with line breaks and two spaces, as `?pretty=true` answers.

/// Appends `compact`, which must be valid JSON, indented as Go's `MarshalIndent` does with two
/// spaces. Whitespace outside strings is dropped first, so input that is already indented gives the
/// same output.
pub fn pretty(compact: &[u8], out: &mut Vec<u8>) {
    out.reserve(compact.len() + compact.len() / 2);
    let mut depth = 0usize;
    let mut at = 0;
    let mut opened = false;
    while let Some(&byte) = compact.get(at) {
        let start = at;
        at += 1;
        if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            continue;
        }
        let closes = matches!(byte, b'}' | b']');
        if closes {
            depth = depth.saturating_sub(1);
        }
        // A line break is needed before the first value inside brackets, and before a closing
        // bracket unless the brackets are empty.
        if opened != closes {
            line(depth, out);
        }
        opened = false;
        match byte {
            b'{' | b'[' => {
                out.push(byte);
                depth += 1;
                opened = true;
            }
            b',' => {
                out.push(byte);
                line(depth, out);
            }
            b':' => out.extend_from_slice(b": "),
            b'"' => {
                at = super::scan::string_end(compact, start).unwrap_or(compact.len());
                out.extend_from_slice(&compact[start..at]);
            }
            _ => out.push(byte),
        }
    }
}

fn line(depth: usize, out: &mut Vec<u8>) {
    out.push(b'\n');
    for _ in 0..depth {
        out.extend_from_slice(b"  ");
    }
}
