//! Regular expressions in RE2's syntax as Go reads it, for a library with another syntax.
//!
//! Everything that means the same on both sides is passed on, everything else is written so that it
//! does, and what is not known here is refused: a pattern that is accepted matches as in Go.
//! Refused though Go takes them: code points of surrogates, `\C`, and programs of more than 100 000 steps.

mod compiled;
mod engine;
mod program;

pub(crate) use compiled::{Compiled, with};
pub(crate) use engine::shared;
pub use engine::{Engine, Pattern, check, compile};

use crate::budget::TooMuchWork;

/// Most repetitions of one part, nested ones multiplied; the limit of Go.
const REPEATS_MAX: u32 = 1_000;
/// Most levels of groups; the limit of Go.
const DEPTH_MAX: usize = 250;

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
    /// More steps than a program may have.
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
    let letters: Vec<char> = pattern.chars().collect();
    let mut translator = Translator {
        letters: &letters,
        at: 0,
        out: String::with_capacity(pattern.len() + 16),
        depth: 0,
    };
    translator.alternatives()?;
    if translator.at < letters.len() {
        return Err(Refused::CloseGroup(pattern.to_owned()));
    }
    Ok(translator.out)
}

struct Translator<'a> {
    letters: &'a [char],
    at: usize,
    out: String,
    depth: usize,
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
        self.out
            .push_str(&regex::escape(letter.encode_utf8(&mut [0; 4])));
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
        let end = rest.iter().position(|letter| *letter == '}')?;
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
                None => {
                    let letter = self.character()?;
                    self.literal(letter);
                }
            },
        }
        Ok(())
    }

    /// Reads an escape that stands for several characters, as the inside of a class.
    fn class_escape(&mut self) -> Result<Option<String>, Refused> {
        let from = self.at;
        let set = match self.next() {
            Some('d') => "0-9",
            Some('D') => "^0-9",
            Some('w') => "0-9A-Za-z_",
            Some('W') => "^0-9A-Za-z_",
            Some('s') => "\\t\\n\\x0C\\r ",
            Some('S') => "^\\t\\n\\x0C\\r ",
            Some(letter @ ('p' | 'P')) => return self.property(letter == 'P', from).map(Some),
            _ => {
                self.at = from;
                return Ok(None);
            }
        };
        Ok(Some(match set.strip_prefix('^') {
            Some(inner) => format!("[^{inner}]"),
            None => set.to_owned(),
        }))
    }

    fn property(&mut self, mut negative: bool, from: usize) -> Result<String, Refused> {
        let name = match self.next() {
            Some('{') => {
                let begin = self.at;
                while self.peek().is_some_and(|letter| letter != '}') {
                    self.at += 1;
                }
                let name = self.text(begin);
                self.at += 1;
                name
            }
            Some(letter) => letter.to_string(),
            None => String::new(),
        };
        let bare = name.strip_prefix('^').unwrap_or(&name);
        negative ^= bare.len() != name.len();
        if bare == "Any" {
            return Ok(if negative {
                "^\\x00-\\x{10FFFF}"
            } else {
                "\\x00-\\x{10FFFF}"
            }
            .to_owned());
        }
        let good = bare.starts_with(|letter: char| letter.is_ascii_uppercase())
            && bare
                .bytes()
                .all(|it| it.is_ascii_alphabetic() || it == b'_')
            && (bare.len() > 2 || CATEGORIES.contains(&bare));
        if !good || self.at > self.letters.len() {
            return Err(Refused::Class(format!("\\{}", self.text(from))));
        }
        let kind = if bare.len() > 2 { "Script=" } else { "" };
        let letter = if negative { 'P' } else { 'p' };
        Ok(format!("\\{letter}{{{kind}{bare}}}"))
    }

    /// Reads an escape that stands for one character.
    fn character(&mut self) -> Result<char, Refused> {
        let from = self.at;
        let letter = self.next().ok_or(Refused::Backslash)?;
        let octal = |it: Option<char>| it.and_then(|it| it.to_digit(8));
        let code = match letter {
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            '0'..='7' if letter == '0' || octal(self.peek()).is_some() => {
                let mut code = letter.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    if let Some(digit) = octal(self.peek()) {
                        code = code * 8 + digit;
                        self.at += 1;
                    }
                }
                code
            }
            'x' => self.hex().unwrap_or(u32::MAX),
            other if other.is_ascii() && !other.is_ascii_alphanumeric() => return Ok(other),
            _ => u32::MAX,
        };
        char::from_u32(code).ok_or_else(|| Refused::Escape(format!("\\{}", self.text(from))))
    }

    fn hex(&mut self) -> Option<u32> {
        let braces = self.peek() == Some('{');
        self.at += usize::from(braces);
        let (mut code, mut digits) = (0_u32, 0);
        while let Some(digit) = self.peek().and_then(|letter| letter.to_digit(16)) {
            code = code.checked_mul(16)?.checked_add(digit)?;
            digits += 1;
            self.at += 1;
            if !braces && digits == 2 {
                break;
            }
        }
        if braces {
            return (digits > 0 && self.next() == Some('}')).then_some(code);
        }
        (digits == 2).then_some(code)
    }

    fn class(&mut self) -> Result<(), Refused> {
        let from = self.at - 1;
        self.out.push('[');
        if self.peek() == Some('^') {
            self.at += 1;
            self.out.push('^');
        }
        let mut first = true;
        loop {
            match self.peek() {
                None => return Err(Refused::OpenClass(self.rest(from))),
                Some(']') if !first => break,
                _ => {}
            }
            first = false;
            if self.starts("[:") && self.posix(from)? {
                continue;
            }
            if self.peek() == Some('\\') {
                self.at += 1;
                if let Some(set) = self.class_escape()? {
                    let set = match set.strip_prefix('^') {
                        Some(inner) => format!("[^{inner}]"),
                        None => set,
                    };
                    self.out.push_str(&set);
                    continue;
                }
                self.at -= 1;
            }
            self.range()?;
        }
        self.at += 1;
        self.out.push(']');
        Ok(())
    }

    /// Translates one character of a class, or a range.
    fn range(&mut self) -> Result<(), Refused> {
        let from = self.at;
        let low = self.class_character()?;
        let mut high = low;
        let next = self.letters.get(self.at + 1);
        if self.peek() == Some('-') && next.is_some_and(|letter| *letter != ']') {
            self.at += 1;
            high = self.class_character()?;
            if high < low {
                return Err(Refused::Class(self.text(from)));
            }
        }
        let written = if low == high {
            format!("\\x{{{:X}}}", u32::from(low))
        } else {
            format!("\\x{{{:X}}}-\\x{{{:X}}}", u32::from(low), u32::from(high))
        };
        self.out.push_str(&written);
        Ok(())
    }

    fn class_character(&mut self) -> Result<char, Refused> {
        match self.next() {
            Some('\\') => self.character(),
            Some(letter) => Ok(letter),
            None => Err(Refused::OpenClass(self.rest(0))),
        }
    }

    /// Translates `[:alpha:]` and the like. Returns false if that is none.
    fn posix(&mut self, from: usize) -> Result<bool, Refused> {
        let begin = self.at;
        let text = self.rest(begin);
        let Some(end) = text.find(":]") else {
            return Ok(false);
        };
        let name = &text[2..end];
        let bare = name.strip_prefix('^').unwrap_or(name);
        if !POSIX.contains(&bare) {
            return Err(Refused::Class(format!("[:{name}:]")));
        }
        debug_assert!(from < begin);
        self.at += text[..end + 2].chars().count();
        self.out.push_str(&text[..end + 2]);
        Ok(true)
    }
}

const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

const CATEGORIES: [&str; 37] = [
    "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N",
    "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So",
    "Z", "Zl", "Zp", "Zs", "Cn",
];
