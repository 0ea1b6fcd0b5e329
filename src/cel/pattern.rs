//! Regular expressions in RE2's syntax as Go reads it, for a library with another syntax.
//!
//! Everything that means the same on both sides is passed on, everything else is written so that it
//! does, and what is not known here is refused: a pattern that is accepted matches as in Go.
//! Refused though Go takes them: programs of more than 100 000 steps, texts of more than 64 KiB, and more than 1000
//! `\p` in one pattern. The classes are those of the library's version of Unicode, which is newer than Go's.

mod classes;
mod compiled;
mod engine;
mod program;
mod steps;

pub(crate) use compiled::{Compiled, with};
pub(crate) use engine::shared;
pub use engine::{Engine, Pattern, check, compile};

use classes::{NOTHING, ends_posix};

use crate::budget::TooMuchWork;

/// Most repetitions of one part, nested ones multiplied; the limit of Go.
const REPEATS_MAX: u32 = 1_000;
/// Most levels of groups; the limit of Go.
const DEPTH_MAX: usize = 250;
/// Most bytes of a pattern. A parsed one takes a hundred times as much for a moment.
const BYTES_MAX: usize = 64 << 10;

/// Why a pattern is refused, in the words of Go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// An escape that Go does not know.
    #[error("invalid escape sequence: `{0}`")]
    Escape(String),
    /// A class that is not closed or has a range backwards.
    #[error("invalid character class range: `{0}`")]
    Class(String),
    /// A class without an end.
    #[error("missing closing ]: `{0}`")]
    OpenClass(String),
    /// A group without an end.
    #[error("missing closing ): `{0}`")]
    OpenGroup(String),
    /// An end without a group.
    #[error("unexpected ): `{0}`")]
    CloseGroup(String),
    /// A group that Go does not know.
    #[error("invalid or unsupported Perl syntax: `{0}`")]
    Group(String),
    /// A repetition of nothing.
    #[error("missing argument to repetition operator: `{0}`")]
    Nothing(String),
    /// A repetition of a repetition.
    #[error("invalid nested repetition operator: `{0}`")]
    Nested(String),
    /// A repetition of more than a thousand times.
    #[error("invalid repeat count: `{0}`")]
    Count(String),
    /// A backslash at the end.
    #[error("trailing backslash at end of expression: ``")]
    Backslash,
    /// Groups in groups beyond the limit.
    #[error("expression nests too deeply")]
    Depth,
    /// More steps than a program may have, or a longer text.
    #[error("expression too large")]
    Size,
    /// What the library refuses.
    #[error("{0}")]
    Library(String),
}

/// Why a search has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// The pattern is refused.
    #[error("error parsing regexp: {0}")]
    Refused(#[from] Refused),
    /// The budget is spent.
    #[error(transparent)]
    TooMuchWork(#[from] TooMuchWork),
}

/// Writes a pattern in the library's syntax.
///
/// # Errors
/// Returns why the pattern is refused.
pub fn translate(pattern: &str) -> Result<String, Refused> {
    Translation::of(pattern).map(|translation| translation.text)
}

/// A pattern in the library's syntax.
struct Translation {
    text: String,
    /// The characters that the classes of the pattern name. One at a time is what the library takes to fold their
    /// case.
    class_letters: u64,
}

impl Translation {
    fn of(pattern: &str) -> Result<Self, Refused> {
        if pattern.len() > BYTES_MAX {
            return Err(Refused::Size);
        }
        let letters: Vec<char> = pattern.chars().collect();
        let mut translator = Translator {
            letters: &letters,
            at: 0,
            out: String::with_capacity(pattern.len() + 16),
            depth: 0,
            posix_end: letters.windows(2).rposition(ends_posix),
            properties: 0,
            class_letters: 0,
        };
        translator.alternatives()?;
        if translator.at < letters.len() {
            return Err(Refused::CloseGroup(pattern.to_owned()));
        }
        Ok(Self {
            text: translator.out,
            class_letters: translator.class_letters,
        })
    }
}

struct Translator<'a> {
    letters: &'a [char],
    at: usize,
    out: String,
    depth: usize,
    /// Where the last `:]` is. Without it each `[:` would be a search to the end of the pattern.
    posix_end: Option<usize>,
    /// How many classes by a property there were.
    properties: usize,
    /// See [`Translation`].
    class_letters: u64,
}

impl Translator<'_> {
    fn peek(&self) -> Option<char> {
        self.letters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek()?;
        self.at += 1;
        Some(letter)
    }

    fn rest(&self, from: usize) -> String {
        self.letters
            .get(from..)
            .unwrap_or_default()
            .iter()
            .collect()
    }

    fn text(&self, from: usize) -> String {
        let end = self.at.min(self.letters.len());
        self.letters
            .get(from..end)
            .unwrap_or_default()
            .iter()
            .collect()
    }

    fn starts(&self, text: &str) -> bool {
        let rest = self.letters.get(self.at..).unwrap_or_default();
        text.chars().eq(rest.iter().take(text.len()).copied())
    }

    fn literal(&mut self, letter: char) {
        if regex_syntax::is_meta_character(letter) {
            self.out.push('\\');
        }
        self.out.push(letter);
    }

    /// Translates up to the end of the group. Returns how often nested counts multiply in it.
    fn alternatives(&mut self) -> Result<u32, Refused> {
        let mut most = 1;
        let mut repeatable = false;
        let mut factor = 1;
        while let Some(letter) = self.peek() {
            let from = self.at;
            match letter {
                ')' => break,
                '|' => {
                    self.at += 1;
                    self.out.push('|');
                    repeatable = false;
                    continue;
                }
                '*' | '+' | '?' => {
                    self.at += 1;
                    if !repeatable {
                        return Err(Refused::Nothing(letter.to_string()));
                    }
                    self.out.push(letter);
                    self.lazy_and_alone(from)?;
                    // Go reads `(?:a*)*` but not `a**`.
                    continue;
                }
                '{' if self.count().is_some() => {
                    if !repeatable {
                        let (end, _) = self.count().unwrap_or((self.at, 0));
                        self.at = end;
                        return Err(Refused::Nothing(self.text(from)));
                    }
                    factor = self.counted(from, factor)?;
                    most = most.max(factor);
                    self.lazy_and_alone(from)?;
                    continue;
                }
                _ => {}
            }
            factor = self.one(letter)?;
            most = most.max(factor);
            repeatable = true;
        }
        Ok(most)
    }

    /// Translates a repetition by a count.
    fn counted(&mut self, from: usize, factor: u32) -> Result<u32, Refused> {
        let (end, times) = self.count().unwrap_or((self.at, 0));
        self.at = end;
        let product = factor.saturating_mul(times.max(1));
        if times > REPEATS_MAX || product > REPEATS_MAX {
            return Err(Refused::Count(self.text(from)));
        }
        let text = self.text(from);
        self.out.push_str(&text);
        Ok(product)
    }

    /// Takes the question mark of a lazy repetition, and refuses a further one.
    fn lazy_and_alone(&mut self, from: usize) -> Result<(), Refused> {
        if self.peek() == Some('?') {
            self.at += 1;
            self.out.push('?');
        }
        let again = matches!(self.peek(), Some('*' | '+' | '?'))
            || (self.peek() == Some('{') && self.count().is_some());
        if again {
            self.at += 1;
            return Err(Refused::Nested(self.text(from)));
        }
        Ok(())
    }

    /// Returns the end of the count that begins here, and its larger number. Braces that hold no
    /// count are literals.
    fn count(&self) -> Option<(usize, u32)> {
        let rest = self.letters.get(self.at + 1..)?;
        let inside = |letter: &&char| letter.is_ascii_digit() || **letter == ',';
        // Looking further for the brace would take the square of the length of a pattern of braces.
        let end = rest.iter().take_while(inside).count();
        if rest.get(end) != Some(&'}') {
            return None;
        }
        let text: String = rest[..end].iter().collect();
        let number = |text: &str| -> Option<u32> {
            let good = !text.is_empty()
                && text.bytes().all(|digit| digit.is_ascii_digit())
                && (text.len() == 1 || !text.starts_with('0'));
            good.then(|| text.parse().unwrap_or(u32::MAX))
        };
        let times = match text.split_once(',') {
            None => number(&text)?,
            Some((low, "")) => number(low)?,
            Some((low, high)) => {
                let (low, high) = (number(low)?, number(high)?);
                if low > high { u32::MAX } else { high }
            }
        };
        Some((self.at + 1 + end + 1, times))
    }

    /// Translates what one repetition applies to. Returns how often counts in it multiply.
    fn one(&mut self, letter: char) -> Result<u32, Refused> {
        self.at += 1;
        match letter {
            '(' => return self.group(),
            '[' => self.class()?,
            '\\' => self.escape()?,
            '^' | '$' | '.' => self.out.push(letter),
            other => self.literal(other),
        }
        Ok(1)
    }

    fn group(&mut self) -> Result<u32, Refused> {
        let from = self.at - 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Refused::Depth);
        }
        self.out.push('(');
        if self.peek() == Some('?') {
            self.at += 1;
            if self.starts("P<") || self.starts("<") {
                self.group_name(from)?;
            } else if self.flags(from)? {
                self.depth -= 1;
                return Ok(1);
            }
        }
        let most = self.alternatives()?;
        if self.next() != Some(')') {
            return Err(Refused::OpenGroup(self.rest(0)));
        }
        self.out.push(')');
        self.depth -= 1;
        Ok(most)
    }

    fn group_name(&mut self, from: usize) -> Result<(), Refused> {
        while self.next().is_some_and(|letter| letter != '<') {}
        let begin = self.at;
        while self
            .peek()
            .is_some_and(|it| it.is_ascii_alphanumeric() || it == '_')
        {
            self.at += 1;
        }
        let name = self.text(begin);
        if name.is_empty() || self.next() != Some('>') {
            return Err(Refused::Group(self.rest(from)));
        }
        // Go lets a name begin with a digit.
        self.out.push_str("?P<_");
        self.out.push_str(&name);
        self.out.push('>');
        Ok(())
    }

    /// Translates flags. Returns true if they stand alone, without a group.
    fn flags(&mut self, from: usize) -> Result<bool, Refused> {
        self.out.push('?');
        let (mut negative, mut seen) = (false, false);
        loop {
            let letter = self.next();
            match letter {
                Some('i' | 'm' | 's' | 'U') => seen = true,
                Some('-') if !negative => (negative, seen) = (true, false),
                Some(':' | ')') if !negative || seen => {
                    let alone = letter == Some(')');
                    if alone && self.out.ends_with('?') {
                        // Go takes flags without any flag; they change nothing.
                        self.out.truncate(self.out.len() - 2);
                        self.out.push_str("(?:)");
                        return Ok(true);
                    }
                    self.out.extend(letter);
                    return Ok(alone);
                }
                _ => return Err(Refused::Group(self.text(from))),
            }
            self.out.extend(letter);
        }
    }

    fn escape(&mut self) -> Result<(), Refused> {
        match self.peek() {
            Some('b' | 'B') => {
                let out = format!("(?-u:\\{})", self.next().unwrap_or('b'));
                self.out.push_str(&out);
            }
            Some('A' | 'z') => {
                let letter = self.next().unwrap_or('A');
                self.out.push('\\');
                self.out.push(letter);
            }
            Some('Q') => {
                self.at += 1;
                while self.at < self.letters.len() && !self.starts("\\E") {
                    if let Some(letter) = self.next() {
                        self.literal(letter);
                    }
                }
                self.at = (self.at + 2).min(self.letters.len());
            }
            _ => match self.class_escape()? {
                Some(set) => {
                    self.out.push('[');
                    self.out.push_str(&set);
                    self.out.push(']');
                }
                None => match char::from_u32(self.character()?) {
                    Some(letter) => self.literal(letter),
                    None => self.out.push_str(NOTHING),
                },
            },
        }
        Ok(())
    }

    /// Reads an escape that stands for one code point. A surrogate is one, though no text has it.
    fn character(&mut self) -> Result<u32, Refused> {
        let from = self.at;
        let letter = self.next().ok_or(Refused::Backslash)?;
        let octal = |it: Option<char>| it.and_then(|it| it.to_digit(8));
        let code = match letter {
            'a' => Some(7),
            'f' => Some(12),
            'n' => Some(10),
            'r' => Some(13),
            't' => Some(9),
            'v' => Some(11),
            '0'..='7' if letter == '0' || octal(self.peek()).is_some() => {
                let mut code = letter.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    if let Some(digit) = octal(self.peek()) {
                        code = code * 8 + digit;
                        self.at += 1;
                    }
                }
                Some(code)
            }
            'x' => self.hex(),
            other if other.is_ascii() && !other.is_ascii_alphanumeric() => Some(u32::from(other)),
            _ => None,
        };
        code.ok_or_else(|| Refused::Escape(format!("\\{}", self.text(from))))
    }

    /// Reads two hexadecimal digits, or any number of them in braces. What is wrong with them is shown up to where it
    /// is found, and without braces both are read before they are looked at.
    fn hex(&mut self) -> Option<u32> {
        let first = self.next()?;
        if first != '{' {
            let second = self.next();
            return Some(first.to_digit(16)? * 16 + second?.to_digit(16)?);
        }
        let (mut code, mut digits) = (0, 0);
        loop {
            match self.next()? {
                '}' => return (digits > 0).then_some(code),
                digit => code = code * 16 + digit.to_digit(16)?,
            }
            if code > u32::from(char::MAX) {
                return None;
            }
            digits += 1;
        }
    }
}
