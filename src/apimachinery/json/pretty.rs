//! Indents compact JSON bytes with line breaks and two spaces, as `?pretty=true` answers.

/// Appends `compact`, which must be valid JSON, indented as Go's `MarshalIndent` does with two
/// spaces. Whitespace outside strings is dropped first, so input that is already indented gives the
/// same output.
pub fn pretty(compact: &[u8], out: &mut Vec<u8>) {
    Indenter::default().write(compact, out);
}

/// Blanks for each byte of the compact JSON after which lines are not indented any more. Real objects have two
/// or three; with hundreds of nested lists a small object would become gigabytes.
const BLANKS_PER_BYTE: usize = 16;
/// Blanks that short JSON may have in any case.
const BLANKS_FREE: usize = 1 << 20;

/// Indents JSON that comes in pieces, which may be cut anywhere.
#[derive(Debug, Default)]
pub struct Indenter {
    depth: usize,
    /// Bytes of the compact JSON so far, and blanks that were added.
    read: usize,
    blanks: usize,
    /// Whether the last byte opened brackets.
    opened: bool,
    text: Text,
}

/// The position in relation to a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// Inside, behind a backslash.
    Escaped,
}

impl Indenter {
    /// Appends the next piece, indented as [`pretty`] does.
    pub fn write(&mut self, compact: &[u8], out: &mut Vec<u8>) {
        out.reserve(compact.len() + compact.len() / 2);
        self.read += compact.len();
        let mut rest = compact;
        while let Some((&byte, behind)) = rest.split_first() {
            match self.text {
                Text::Outside => {
                    self.outside(byte, out);
                    rest = behind;
                }
                Text::Inside => rest = self.inside(rest, out),
                Text::Escaped => {
                    out.push(byte);
                    self.text = Text::Inside;
                    rest = behind;
                }
            }
        }
    }

    fn outside(&mut self, byte: u8, out: &mut Vec<u8>) {
        if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            return;
        }
        let closes = matches!(byte, b'}' | b']');
        if closes {
            self.depth = self.depth.saturating_sub(1);
        }
        // A line break is needed before the first value inside brackets, and before a closing
        // bracket unless the brackets are empty.
        if self.opened != closes {
            self.line(out);
        }
        self.opened = false;
        out.push(byte);
        match byte {
            b'{' | b'[' => {
                self.depth += 1;
                self.opened = true;
            }
            b',' => self.line(out),
            b':' => out.push(b' '),
            b'"' => self.text = Text::Inside,
            _ => {}
        }
    }

    fn line(&mut self, out: &mut Vec<u8>) {
        out.push(b'\n');
        if self.blanks > BLANKS_FREE + BLANKS_PER_BYTE * self.read {
            return;
        }
        self.blanks += 2 * self.depth;
        for _ in 0..self.depth {
            out.extend_from_slice(b"  ");
        }
    }

    /// Appends the rest of a string, up to its end or a backslash. Returns what is behind.
    fn inside<'a>(&mut self, rest: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let special = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
        let (string, behind) = match special {
            None => (rest, &[][..]),
            Some(at) => {
                self.text = match rest[at] {
                    b'"' => Text::Outside,
                    _ => Text::Escaped,
                };
                rest.split_at(at + 1)
            }
        };
        out.extend_from_slice(string);
        behind
    }
}
