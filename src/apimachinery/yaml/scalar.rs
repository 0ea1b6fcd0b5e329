//! Writes a text in YAML: plain, quoted or as a literal block, folded at 80 columns.

use super::resolve::{Resolved, is_base60_float, resolve};

/// Column beyond which lines are folded at the first space.
const WIDTH: usize = 80;
const INDENT: isize = 2;
const WIDE_INDENT: isize = 4;
/// Blanks of indentation for each byte of text, beyond which values are not indented any more. Real objects have
/// one or two; with hundreds of nested lists a small object would become gigabytes.
const BLANKS_PER_BYTE: usize = 16;
/// Blanks of indentation that a short document may have in any case.
const BLANKS_FREE: usize = 1 << 16;

/// How a document is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As `sigs.k8s.io/yaml` does: two columns a level, lists below their key, keys in natural order,
    /// long lines folded.
    Narrow,
    /// As the third version of Go's library does: four columns a level, keys in the order of the
    /// tree, lines of any length.
    Wide,
}

/// The role of a scalar.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A key before a colon, which must be on one line.
    SimpleKey,
    /// Any other scalar.
    Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

/// The position in the output, and the text that was written last.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// The length of `out` before the document.
    start: usize,
    /// Blanks of indentation that were written, and that lines to come may have.
    indented: usize,
    reserved: usize,
    column: usize,
    pub layout: Layout,
    /// The column of block content; -1 before there is any.
    pub indent: isize,
    /// True if only the dash of an item was written since the indentation changed.
    behind_dash: bool,
    whitespace: bool,
    /// True if the line has only indentation and indicators.
    pub indention: bool,
}

/// The styles that a text allows, found in one pass.
struct Analysis {
    plain: bool,
    single: bool,
    block: bool,
    multiline: bool,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>, layout: Layout) -> Self {
        Self {
            start: out.len(),
            out,
            indented: 0,
            reserved: 0,
            column: 0,
            layout,
            indent: -1,
            behind_dash: false,
            whitespace: true,
            indention: true,
        }
    }

    /// Increases the indentation by one level. Returns the previous level.
    pub fn increase_indent(&mut self, indentless: bool) -> isize {
        let before = self.indent;
        self.indent = self.level(indentless);
        self.behind_dash = false;
        before
    }

    /// Returns the column to which [`Self::increase_indent`] would move.
    pub fn level(&self, indentless: bool) -> isize {
        match self.indent {
            ..0 => 0,
            indent if indentless => indent,
            _ => self.deeper(),
        }
    }

    /// Reserves the indentation of so many lines. Returns false, and reserves nothing, if that is too much beside
    /// the text.
    pub fn affords(&mut self, lines: usize, indent: isize) -> bool {
        let blanks = lines.saturating_mul(indent.max(0).unsigned_abs());
        let reserved = self.reserved.saturating_add(blanks);
        // Each line has a byte of text at least.
        let text = self.out.len() - self.start - self.indented + lines;
        let is_affordable = reserved <= BLANKS_FREE + BLANKS_PER_BYTE * text;
        if is_affordable {
            self.reserved = reserved;
        }
        is_affordable
    }

    /// Returns how many lines a text may have behind its first one.
    fn further_lines(&self, text: &str, role: Role) -> usize {
        let indent = self.indent.max(0).unsigned_abs();
        if role == Role::SimpleKey || indent <= BLANKS_PER_BYTE {
            // Keys have one line, and so little indentation needs no bound.
            return 0;
        }
        let breaks = text.chars().filter(|character| is_break(*character));
        let folds = match self.folds(role) {
            true => {
                let filled = WIDTH.saturating_sub(indent).max(1);
                text.matches(' ').count().min(text.len() / filled)
            }
            false => 0,
        };
        breaks.count() + folds
    }

    /// Returns the column of the next level. In the wide layout, levels are at multiples of its
    /// indentation, but what follows a dash begins right behind it.
    fn deeper(&self) -> isize {
        let indent = self.indent.max(0);
        match self.layout {
            Layout::Narrow => indent + INDENT,
            Layout::Wide if self.behind_dash => indent + INDENT,
            Layout::Wide => (indent + WIDE_INDENT) / WIDE_INDENT * WIDE_INDENT,
        }
    }

    fn folds(&self, role: Role) -> bool {
        role == Role::Value && self.layout == Layout::Narrow
    }

    pub fn end(&mut self) {
        if self.column > 0 || self.out.is_empty() {
            self.break_line();
        }
    }

    /// Moves to the indentation, on a new line if this one has content.
    pub fn new_line(&mut self) {
        let indent = self.indent.max(0).unsigned_abs();
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.break_line();
        }
        self.indented += indent.saturating_sub(self.column);
        while self.column < indent {
            self.put(' ');
        }
        self.whitespace = true;
        self.indention = true;
    }

    /// Opens a value in flow style.
    pub fn open(&mut self, bracket: char) {
        self.space();
        self.put(bracket);
        self.behind_dash = false;
        self.whitespace = true;
        self.indention = false;
    }

    /// Ends a value in flow style.
    pub fn close(&mut self, bracket: char) {
        self.put(bracket);
        self.whitespace = false;
        self.indention = false;
    }

    /// Separates items in flow style.
    pub fn comma(&mut self) {
        self.put(',');
        self.whitespace = false;
    }

    /// Writes `-`, `?` or `:`, behind which block content may start on the same line.
    pub fn item_indicator(&mut self, indicator: &str) {
        self.space();
        self.put_all(indicator);
        self.whitespace = false;
        self.behind_dash = indicator == "-";
    }

    /// Writes brackets or opens a scalar.
    pub fn indicator(&mut self, indicator: &str) {
        self.space();
        self.put_all(indicator);
        self.whitespace = false;
        self.indention = false;
    }

    /// Writes the colon behind a simple key.
    pub fn colon(&mut self) {
        self.put(':');
        self.behind_dash = false;
        self.whitespace = false;
        self.indention = false;
    }

    /// Writes a number, a boolean or null.
    pub fn plain(&mut self, text: &str) {
        self.space();
        self.put_all(text);
        self.whitespace = false;
        self.indention = false;
    }

    /// Writes a text so that it is read as the same text.
    pub fn text(&mut self, text: &str, role: Role) {
        let analysis = analyze(text);
        // Further lines of a scalar are indented by one level.
        let before = self.indent;
        self.indent = self.deeper();
        match self.affords(self.further_lines(text, role), self.indent) {
            true => self.styled(text, style(text, &analysis, role), role),
            false => self.quoted(text),
        }
        self.indent = before;
    }

    /// Writes a text on one line, whatever is in it.
    pub fn quoted(&mut self, text: &str) {
        self.double_quoted(text, Role::SimpleKey);
        self.whitespace = false;
        self.indention = false;
    }

    fn styled(&mut self, text: &str, style: Style, role: Role) {
        match style {
            Style::Plain => self.flowing(text, role, Style::Plain),
            Style::Single => {
                self.indicator("'");
                self.flowing(text, role, Style::Single);
                self.put('\'');
            }
            Style::Double => self.double_quoted(text, role),
            Style::Literal => {
                self.literal(text);
                return;
            }
        }
        self.whitespace = false;
        self.indention = false;
    }

    fn space(&mut self) {
        if !self.whitespace {
            self.put(' ');
        }
    }

    fn put(&mut self, character: char) {
        self.out
            .extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        self.column += 1;
    }

    fn put_all(&mut self, text: &str) {
        text.chars().for_each(|character| self.put(character));
    }

    fn break_line(&mut self) {
        self.out.push(b'\n');
        self.column = 0;
    }

    /// Writes a line break that is part of a text.
    fn put_break(&mut self, character: char) {
        if character == '\n' {
            self.break_line();
        } else {
            self.out
                .extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            self.column = 0;
        }
    }

    /// Writes plain or single-quoted text: folded at single spaces, with line breaks doubled.
    fn flowing(&mut self, text: &str, role: Role, style: Style) {
        if style == Style::Plain && !self.whitespace {
            self.put(' ');
        }
        let fold = self.folds(role);
        let (mut spaces, mut breaks) = (false, false);
        let last = text.len().saturating_sub(1);
        let mut characters = text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            let next = characters.peek().map(|(_, next)| *next);
            if character == ' ' {
                let inner = style == Style::Plain || (at > 0 && at < last);
                if fold && !spaces && self.column > WIDTH && inner && next != Some(' ') {
                    self.new_line();
                } else {
                    self.put(' ');
                }
                spaces = true;
            } else if is_break(character) {
                if !breaks && character == '\n' {
                    self.break_line();
                }
                self.put_break(character);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.new_line();
                }
                if style == Style::Single && character == '\'' {
                    self.put('\'');
                }
                self.put(character);
                self.indention = false;
                spaces = false;
                breaks = false;
            }
        }
    }

    fn double_quoted(&mut self, text: &str, role: Role) {
        self.indicator("\"");
        let fold = self.folds(role);
        let mut spaces = false;
        let last = text.len().saturating_sub(1);
        let mut characters = text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            if needs_escape(character) {
                self.put_all(&escape(character));
                spaces = false;
            } else if character == ' ' {
                if fold && !spaces && self.column > WIDTH && at > 0 && at < last {
                    self.new_line();
                    if characters.peek().is_some_and(|(_, next)| *next == ' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(' ');
                }
                spaces = true;
            } else {
                self.put(character);
                spaces = false;
            }
        }
        self.put('"');
    }

    fn literal(&mut self, text: &str) {
        self.indicator("|");
        if text.starts_with(|first| first == ' ' || is_break(first)) {
            self.put_all(match self.layout {
                Layout::Narrow => "2",
                Layout::Wide => "4",
            });
        }
        let mut backwards = text.chars().rev();
        let ends = (backwards.next(), backwards.next());
        match ends {
            (Some(last), _) if !is_break(last) => self.put('-'),
            (Some(_), None) => self.put('+'),
            (Some(_), Some(before)) if is_break(before) => self.put('+'),
            _ => {}
        }
        self.break_line();
        self.indention = true;
        self.whitespace = true;
        let mut breaks = true;
        for character in text.chars() {
            if is_break(character) {
                self.put_break(character);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.new_line();
                }
                self.put(character);
                self.indention = false;
                breaks = false;
            }
        }
    }
}

fn is_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && character != '\u{feff}'
}

fn needs_escape(character: char) -> bool {
    !is_printable(character) || is_break(character) || matches!(character, '"' | '\\')
}

fn escape(character: char) -> String {
    let short = match character {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '"' | '\\' => character,
        '\u{85}' => 'N',
        '\u{a0}' => '_',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        _ => {
            let code = u32::from(character);
            return match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            };
        }
    };
    format!("\\{short}")
}

/// Returns the style that suits a text: plain if it is then parsed as the same text, blocks for
/// several lines.
fn style(text: &str, analysis: &Analysis, role: Role) -> Style {
    let wanted = if text.contains('\n') {
        Style::Literal
    } else if resolve(text) == Resolved::Text && !resolves_otherwise(text) {
        Style::Plain
    } else {
        Style::Double
    };
    let key = role == Role::SimpleKey;
    match wanted {
        _ if key && analysis.multiline => Style::Double,
        Style::Plain if analysis.plain && !(text.is_empty() && key) => Style::Plain,
        Style::Plain if analysis.single => Style::Single,
        Style::Literal if analysis.block && !key => Style::Literal,
        _ => Style::Double,
    }
}

/// Returns true for text that this parser takes for text but Go's does not: timestamps and numbers
/// of base 60.
fn resolves_otherwise(text: &str) -> bool {
    is_base60_float(text) || super::resolve::is_timestamp(text)
}

fn analyze(text: &str) -> Analysis {
    let (mut indicators, mut special, mut line_breaks) = (false, false, false);
    let (mut edge, mut trailing_space, mut break_space, mut space_break) =
        (false, false, false, false);
    let (mut previous_space, mut previous_break, mut after_white) = (false, false, true);
    if text.starts_with("---") || text.starts_with("...") {
        indicators = true;
    }
    let mut characters = text.chars().peekable();
    let mut first = true;
    while let Some(character) = characters.next() {
        let next = characters.peek().copied();
        let before_white = next.is_none_or(|next| matches!(next, ' ' | '\t'));
        indicators |= match character {
            '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%'
            | '@' | '`'
                if first =>
            {
                true
            }
            '?' | '-' if first => before_white,
            ':' => before_white,
            '#' => after_white,
            _ => false,
        };
        special |= !is_printable(character);
        let end = first || next.is_none();
        if character == ' ' {
            edge |= end;
            trailing_space |= next.is_none();
            break_space |= previous_break;
            (previous_space, previous_break) = (true, false);
        } else if is_break(character) {
            line_breaks = true;
            edge |= end;
            space_break |= previous_space;
            (previous_space, previous_break) = (false, true);
        } else {
            (previous_space, previous_break) = (false, false);
        }
        after_white = matches!(character, ' ' | '\t' | '\0') || is_break(character);
        first = false;
    }
    let broken = space_break || special;
    Analysis {
        plain: !(indicators || edge || break_space || broken || line_breaks),
        single: !(break_space || broken),
        block: !(text.is_empty() || trailing_space || broken),
        multiline: line_breaks,
    }
}
