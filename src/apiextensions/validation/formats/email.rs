//! The format of mail addresses: what Go's `net/mail` reads as one address, with its name, its
//! comments, or as the only member of a group.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use std::net::IpAddr;

/// Base64 as Go reads it, which does not look at the bits behind the last byte.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

pub(super) fn is_email(text: &str) -> bool {
    let mut parser = Parser { rest: text };
    let count = parser.addresses(Groups::Allowed);
    count == Some(1) && parser.skip_comments().is_some() && parser.rest.is_empty()
}

/// The choice whether a group may stand where an address stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Groups {
    Allowed,
    Refused,
}

/// The choice whether the dots of an atom may stand anywhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dots {
    Anywhere,
    Between,
}

/// What a word of a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Plain,
    /// It is encoded, and the encoded text is empty.
    EncodedNothing,
    /// It is encoded.
    Encoded,
    /// It is encoded in letters that Go does not know, which is an error.
    Foreign,
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    /// Reads an address or a group, and returns the number of addresses.
    fn addresses(&mut self, groups: Groups) -> Option<usize> {
        self.skip_space();
        if self.rest.is_empty() {
            return None;
        }
        if self.bare().is_some() {
            self.skip_space();
            if self.takes('(') {
                let name = self.comment()?;
                let mut words = name.split([' ', '\t']);
                return (!words.any(|word| word_of(word) == Word::Foreign)).then_some(1);
            }
            return Some(1);
        }
        if !self.rest.starts_with('<') {
            self.name()?;
        }
        self.skip_space();
        if groups == Groups::Allowed && self.takes(':') {
            return self.group();
        }
        if !self.takes('<') {
            return None;
        }
        self.bare()?;
        self.takes('>').then_some(1)
    }

    /// Reads a group behind its colon.
    fn group(&mut self) -> Option<usize> {
        let mut count = 0;
        self.skip_space();
        if self.takes(';') {
            return self.skip_comments().map(|()| count);
        }
        loop {
            count += self.addresses(Groups::Refused)?;
            self.skip_comments()?;
            if self.takes(';') {
                return self.skip_comments().map(|()| count);
            }
            if !self.takes(',') {
                return None;
            }
        }
    }

    /// Reads an address without a name. Reads nothing if there is none.
    fn bare(&mut self) -> Option<()> {
        let before = self.rest;
        let found = self.local_and_domain();
        if found.is_none() {
            self.rest = before;
        }
        found
    }

    fn local_and_domain(&mut self) -> Option<()> {
        self.skip_space();
        match self.rest.starts_with('"') {
            true => self.quoted().filter(|has_letters| *has_letters).map(drop)?,
            false => self.atom(Dots::Between).map(drop)?,
        }
        if !self.takes('@') {
            return None;
        }
        self.skip_space();
        match self.rest.starts_with('[') {
            true => self.literal(),
            false => self.atom(Dots::Between).map(drop),
        }
    }

    /// Reads the words of a name. An error after the first word is none.
    fn name(&mut self) -> Option<()> {
        // Whether there is a word, and whether there are encoded letters behind the last one.
        let (mut has_word, mut has_encoded) = (false, false);
        loop {
            if has_word {
                self.skip_comments()?;
            }
            self.skip_space();
            if self.rest.is_empty() {
                return Some(());
            }
            let word = match self.rest.starts_with('"') {
                true => self.quoted().map(|_| Word::Plain),
                false => self.atom(Dots::Anywhere).map(word_of),
            };
            match word {
                Some(Word::Plain) => (has_word, has_encoded) = (true, false),
                Some(Word::Encoded) => has_encoded = true,
                Some(Word::EncodedNothing) => {}
                Some(Word::Foreign) | None => return (has_word || has_encoded).then_some(()),
            }
        }
    }

    /// Reads a quoted text, and returns whether it has letters.
    fn quoted(&mut self) -> Option<bool> {
        let text = self.rest;
        let (mut escaped, mut has_letters) = (false, false);
        for (at, letter) in text.char_indices().skip(1) {
            let fits = is_visible(letter) || matches!(letter, ' ' | '\t');
            match letter {
                _ if !fits => return None,
                '"' if !escaped => {
                    self.rest = &text[at + 1..];
                    return Some(has_letters);
                }
                '\\' if !escaped => escaped = true,
                _ => (escaped, has_letters) = (false, true),
            }
        }
        None
    }

    fn atom(&mut self, dots: Dots) -> Option<&'t str> {
        let special = |letter: char| !is_visible(letter) || "()<>[]:;@\\,\"".contains(letter);
        let end = self.rest.find(special).unwrap_or(self.rest.len());
        let (atom, rest) = self.rest.split_at(end);
        if atom.is_empty() {
            return None;
        }
        self.rest = rest;
        let stray = atom.starts_with('.') || atom.contains("..") || atom.ends_with('.');
        (dots == Dots::Anywhere || !stray).then_some(atom)
    }

    /// Reads an address of a network in brackets.
    fn literal(&mut self) -> Option<()> {
        let (inner, rest) = self.rest.strip_prefix('[')?.split_once(']')?;
        self.rest = rest;
        inner.parse::<IpAddr>().ok().map(drop)
    }

    /// Skips space and comments. Returns nothing if a comment has no end.
    fn skip_comments(&mut self) -> Option<()> {
        self.skip_space();
        while self.takes('(') {
            self.comment()?;
            self.skip_space();
        }
        Some(())
    }

    /// Reads the rest of a comment, which may have others in it, and returns its text.
    fn comment(&mut self) -> Option<String> {
        let text = self.rest;
        let (mut depth, mut found) = (1, String::new());
        let mut letters = text.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => {
                    found.push(letters.next()?.1);
                    continue;
                }
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.rest = &text[at + 1..];
                return Some(found);
            }
            found.push(letter);
        }
        None
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn takes(&mut self, letter: char) -> bool {
        let rest = self.rest.strip_prefix(letter);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

fn is_visible(letter: char) -> bool {
    letter.is_ascii_graphic() || !letter.is_ascii()
}

/// Tells the words that are encoded as RFC 2047 says from others.
fn word_of(word: &str) -> Word {
    let inner = word
        .strip_prefix("=?")
        .and_then(|word| word.strip_suffix("?="));
    let parts: Vec<&str> = inner.unwrap_or("").split('?').collect();
    let [letters, way, text] = parts[..] else {
        return Word::Plain;
    };
    let decoded = match way {
        "B" | "b" => LENIENT.decode(text).is_ok(),
        "Q" | "q" => is_quoted_printable(text),
        _ => false,
    };
    let known = ["utf-8", "iso-8859-1", "us-ascii"];
    match decoded && !letters.is_empty() {
        false => Word::Plain,
        true if !known.iter().any(|name| letters.eq_ignore_ascii_case(name)) => Word::Foreign,
        true if text.is_empty() => Word::EncodedNothing,
        true => Word::Encoded,
    }
}

fn is_quoted_printable(text: &str) -> bool {
    let mut parts = text.split('=');
    let plain = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let first = parts.next().is_none_or(plain);
    first
        && parts.all(|part| {
            let digits = part.as_bytes().get(..2);
            plain(part) && digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        })
}
