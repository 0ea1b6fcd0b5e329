//! Classes of characters: by their names, by properties and in brackets.

use std::sync::LazyLock;

use super::{Refused, Translator};

/// Most classes by a property of characters. Each takes some kilobytes when the pattern is compiled.
const PROPERTIES_MAX: usize = 1_000;
/// The characters that a class by a property stands for, as far as the work on it depends on them: those of `\pL`.
const PROPERTY_LETTERS: u64 = 150_000;

impl Translator<'_> {
    /// Reads an escape that stands for several characters, as the inside of a class.
    pub(super) fn class_escape(&mut self) -> Result<Option<String>, Refused> {
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
            self.name_letters('\0', char::MAX);
            return Ok(if negative {
                "^\\x00-\\x{10FFFF}"
            } else {
                "\\x00-\\x{10FFFF}"
            }
            .to_owned());
        }
        let kind = if bare.len() > 2 { "Script=" } else { "" };
        let good = bare.starts_with(|letter: char| letter.is_ascii_uppercase())
            && bare
                .bytes()
                .all(|it| it.is_ascii_alphabetic() || it == b'_')
            && match kind {
                "" => KNOWN_CATEGORIES.contains(&bare),
                kind => is_class(&format!("{kind}{bare}")),
            };
        if !good || self.at > self.letters.len() {
            return Err(Refused::Class(format!("\\{}", self.text(from))));
        }
        self.properties += 1;
        self.class_letters += PROPERTY_LETTERS;
        if self.properties > PROPERTIES_MAX {
            return Err(Refused::Size);
        }
        let letter = if negative { 'P' } else { 'p' };
        Ok(format!("\\{letter}{{{kind}{bare}}}"))
    }

    /// Translates a class in brackets.
    pub(super) fn class(&mut self) -> Result<(), Refused> {
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
            if self.starts("[:") && self.posix()? {
                continue;
            }
            if self.peek() == Some('\\') {
                self.at += 1;
                if let Some(set) = self.class_escape()? {
                    if set.starts_with("[^") || set.starts_with('^') || set.starts_with("\\P") {
                        // The library folds what the class names, and that is nearly all there is.
                        self.name_letters('\0', char::MAX);
                    }
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
        self.name_letters(low, high);
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

    /// Counts the characters of a range.
    fn name_letters(&mut self, low: char, high: char) {
        self.class_letters += u64::from(u32::from(high) - u32::from(low)) + 1;
    }

    /// Translates `[:alpha:]` and the like. Returns false if that is none.
    fn posix(&mut self) -> Result<bool, Refused> {
        let begin = self.at + 2;
        if self.posix_end.is_none_or(|end| end < begin) {
            return Ok(false);
        }
        let rest = self.letters.get(begin..).unwrap_or_default();
        let Some(length) = rest.windows(2).position(ends_posix) else {
            return Ok(false);
        };
        let name: String = rest[..length].iter().collect();
        let bare = name.strip_prefix('^').unwrap_or(&name);
        let written = format!("[:{name}:]");
        if !POSIX.contains(&bare) {
            return Err(Refused::Class(written));
        }
        if name.starts_with('^') {
            self.name_letters('\0', char::MAX);
        }
        self.at = begin + length + 2;
        self.out.push_str(&written);
        Ok(true)
    }
}

/// Returns whether two characters are those that end `[:alpha:]`.
pub(super) fn ends_posix(pair: &[char]) -> bool {
    pair == [':', ']']
}

/// Returns whether the library has a class of this name.
fn is_class(name: &str) -> bool {
    regex_syntax::parse(&format!("\\p{{{name}}}")).is_ok()
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

/// The categories that the library has. They are many characters each, so they are made once for all.
static KNOWN_CATEGORIES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| CATEGORIES.into_iter().filter(|it| is_class(it)).collect());
