//! Classes of characters: by their names, by properties and in brackets.

use std::ops::RangeInclusive;

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
        let found = property_named(bare).filter(|_| self.at <= self.letters.len());
        let Some(found) = found else {
            return Err(Refused::Class(format!("\\{}", self.text(from))));
        };
        self.properties += 1;
        if self.properties > PROPERTIES_MAX {
            return Err(Refused::Size);
        }
        let (kind, name) = match found {
            Property::Category(name) => ("", name),
            Property::Script(name) => ("Script=", name),
            Property::Assigned => {
                negative = !negative;
                ("", "Cn")
            }
            Property::Ascii => {
                self.name_letters('\0', '\x7F');
                return Ok(if negative {
                    "^\\x00-\\x7F"
                } else {
                    "\\x00-\\x7F"
                }
                .to_owned());
            }
            Property::Any => return Ok(self.all_or_nothing(!negative)),
            Property::Surrogates => return Ok(self.all_or_nothing(negative)),
        };
        self.class_letters += PROPERTY_LETTERS;
        let letter = if negative { 'P' } else { 'p' };
        Ok(format!("\\{letter}{{{kind}{name}}}"))
    }

    /// Returns the inside of the class of all characters, or of none.
    fn all_or_nothing(&mut self, all: bool) -> String {
        if !all {
            return NOTHING.to_owned();
        }
        self.name_letters('\0', char::MAX);
        "\\x00-\\x{10FFFF}".to_owned()
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
        // No text has surrogates.
        let low = if SURROGATES.contains(&low) {
            SURROGATES.end() + 1
        } else {
            low
        };
        let high = if SURROGATES.contains(&high) {
            SURROGATES.start() - 1
        } else {
            high
        };
        if low > high {
            self.out.push_str(NOTHING);
            return Ok(());
        }
        self.class_letters += u64::from(high - low) + 1;
        let written = if low == high {
            format!("\\x{{{low:X}}}")
        } else {
            format!("\\x{{{low:X}}}-\\x{{{high:X}}}")
        };
        self.out.push_str(&written);
        Ok(())
    }

    fn class_character(&mut self) -> Result<u32, Refused> {
        match self.next() {
            Some('\\') => self.character(),
            Some(letter) => Ok(u32::from(letter)),
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

/// A class that has no character, which is written without any whose case could be folded.
pub(super) const NOTHING: &str = "[0&&1]";

/// The code points that are no characters of a text.
const SURROGATES: RangeInclusive<u32> = 0xD800..=0xDFFF;

const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

/// What characters may be named by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Property {
    /// A category, by its short name.
    Category(&'static str),
    Script(&'static str),
    Any,
    Assigned,
    Ascii,
    Surrogates,
}

/// Returns the property of a name as Go 1.26 reads it: without regard to case, spaces, hyphens and underscores. Go
/// then looks for scripts by names that have neither, so it knows no script whose name has several words.
fn property_named(name: &str) -> Option<Property> {
    let mut letters = name
        .chars()
        .filter(|letter| !['_', '-', ' '].contains(letter));
    let first = letters.next()?.to_ascii_uppercase();
    let rest = letters.map(|letter| letter.to_ascii_lowercase());
    let name: String = std::iter::once(first).chain(rest).collect();
    let alias = || {
        let found = ALIASES.iter().find(|(alias, _)| *alias == name);
        found.map_or(&*name, |(_, category)| *category)
    };
    Some(match &*name {
        "Any" => Property::Any,
        "Assigned" => Property::Assigned,
        "Ascii" => Property::Ascii,
        "Lc" => Property::Category("LC"),
        _ => {
            let short = alias();
            let category = CATEGORIES.into_iter().find(|it| *it == short);
            match (short, category) {
                ("Cs", _) => Property::Surrogates,
                (_, Some(category)) => Property::Category(category),
                (_, None) => {
                    let mut scripts = SCRIPTS.split_whitespace();
                    Property::Script(scripts.find(|script| *script == name)?)
                }
            }
        }
    })
}

/// The categories but for that of surrogates.
const CATEGORIES: [&str; 37] = [
    "C", "Cc", "Cf", "Cn", "Co", "L", "LC", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn",
    "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm",
    "So", "Z", "Zl", "Zp", "Zs",
];

/// The long names of categories.
const ALIASES: [(&str, &str); 42] = [
    ("Casedletter", "LC"),
    ("Closepunctuation", "Pe"),
    ("Cntrl", "Cc"),
    ("Combiningmark", "M"),
    ("Connectorpunctuation", "Pc"),
    ("Control", "Cc"),
    ("Currencysymbol", "Sc"),
    ("Dashpunctuation", "Pd"),
    ("Decimalnumber", "Nd"),
    ("Digit", "Nd"),
    ("Enclosingmark", "Me"),
    ("Finalpunctuation", "Pf"),
    ("Format", "Cf"),
    ("Initialpunctuation", "Pi"),
    ("Letter", "L"),
    ("Letternumber", "Nl"),
    ("Lineseparator", "Zl"),
    ("Lowercaseletter", "Ll"),
    ("Mark", "M"),
    ("Mathsymbol", "Sm"),
    ("Modifierletter", "Lm"),
    ("Modifiersymbol", "Sk"),
    ("Nonspacingmark", "Mn"),
    ("Number", "N"),
    ("Openpunctuation", "Ps"),
    ("Other", "C"),
    ("Otherletter", "Lo"),
    ("Othernumber", "No"),
    ("Otherpunctuation", "Po"),
    ("Othersymbol", "So"),
    ("Paragraphseparator", "Zp"),
    ("Privateuse", "Co"),
    ("Punct", "P"),
    ("Punctuation", "P"),
    ("Separator", "Z"),
    ("Spaceseparator", "Zs"),
    ("Spacingmark", "Mc"),
    ("Surrogate", "Cs"),
    ("Symbol", "S"),
    ("Titlecaseletter", "Lt"),
    ("Unassigned", "Cn"),
    ("Uppercaseletter", "Lu"),
];

/// The scripts whose names are one word.
const SCRIPTS: &str = "
    Adlam Ahom Arabic Armenian Avestan Balinese Bamum Batak Bengali Bhaiksuki Bopomofo Brahmi
    Braille Buginese Buhid Carian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot
    Cyrillic Deseret Devanagari Dogra Duployan Elbasan Elymaic Ethiopic Georgian Glagolitic Gothic
    Grantha Greek Gujarati Gurmukhi Han Hangul Hanunoo Hatran Hebrew Hiragana Inherited Javanese
    Kaithi Kannada Katakana Kawi Kharoshthi Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Lisu
    Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Medefaidrin Miao Modi
    Mongolian Mro Multani Myanmar Nabataean Nandinagari Newa Nko Nushu Ogham Oriya Osage Osmanya
    Palmyrene Phoenician Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham Sinhala Sogdian
    Soyombo Sundanese Syriac Tagalog Tagbanwa Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan
    Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Yezidi Yi";
