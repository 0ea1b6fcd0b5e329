//! The formats that a schema may name. Others are ignored, as are formats of other types.

mod email;

use polyplane_apimachinery::names::{cidr_sloppy, ip_sloppy};
use polyplane_apimachinery::time::parse_duration;
use polyplane_cel::{Timestamp, is_request_uri};
use regex::Regex;
use std::net::Ipv6Addr;
use std::sync::LazyLock;

/// A format that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Int32,
    Int64,
    Float,
    Double,
    /// A format of texts: the position of its row.
    Text(&'static TextFormat),
}

/// The reads of a text by a check that takes up to 20 nanoseconds for each byte, as of durations and addresses of
/// mail. With fewer, alternatives could check one long text for minutes.
const MANY: usize = 64;
/// The reads of a text by a check that compares each byte with a few. With more, a long text that is base64 would
/// be refused below some alternatives.
const FEW: usize = 4;

/// A format of texts.
#[derive(Debug)]
pub(super) struct TextFormat {
    name: &'static str,
    /// The work of a check, in reads of the text.
    reads: usize,
    /// The length beyond which a check ends without a look at the text.
    bytes_max: usize,
    fits: fn(&str) -> bool,
}

impl TextFormat {
    /// Returns the same format, whose check refuses longer texts at once.
    const fn up_to(self, bytes_max: usize) -> Self {
        Self {
            name: self.name,
            reads: self.reads,
            bytes_max,
            fits: self.fits,
        }
    }
}

impl PartialEq for TextFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for TextFormat {}

impl Format {
    pub fn is_of_text(self) -> bool {
        matches!(self, Self::Text(_))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float => "float",
            Self::Double => "double",
            Self::Text(format) => format.name,
        }
    }

    /// Returns how many bytes the check of a text reads, those counted again that it reads again.
    pub fn bytes_read(self, text: &str) -> usize {
        match self {
            Self::Text(format) if text.len() > format.bytes_max => 0,
            Self::Text(format) => text.len().saturating_mul(format.reads),
            Self::Int32 | Self::Int64 | Self::Float | Self::Double => 0,
        }
    }

    pub fn fits(self, text: &str) -> bool {
        match self {
            Self::Text(format) => (format.fits)(text),
            Self::Int32 | Self::Int64 | Self::Float | Self::Double => true,
        }
    }
}

/// Returns the format of a name, if values of these types are checked by it.
pub(super) fn of(name: &str, types: &str) -> Option<Format> {
    match (types, name) {
        (_, "") => None,
        // Two types are as none.
        ("" | "string" | "integer,string", name) => {
            let exact = TEXTS.iter().find(|row| row.name == name);
            // Upstream looks for the name without its dashes.
            let found = exact.or_else(|| {
                let plain = name.replace('-', "");
                TEXTS.iter().find(|row| row.name.replace('-', "") == plain)
            });
            found.map(Format::Text)
        }
        ("integer", "int32") => Some(Format::Int32),
        ("integer", "int64") => Some(Format::Int64),
        ("number", "float") => Some(Format::Float),
        ("number", "double") => Some(Format::Double),
        _ => None,
    }
}

const fn text(name: &'static str, reads: usize, fits: fn(&str) -> bool) -> TextFormat {
    TextFormat {
        name,
        reads,
        bytes_max: usize::MAX,
        fits,
    }
}

static TEXTS: [TextFormat; 27] = [
    text("bsonobjectid", FEW, |text| {
        text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
    .up_to(24),
    text("uri", MANY, is_request_uri),
    text("email", MANY, email::is_email),
    text("hostname", MANY, is_hostname).up_to(HOSTNAME_BYTES_MAX),
    text("ipv4", FEW, |text| {
        text.contains('.') && ip_sloppy(text).is_some()
    }),
    text("ipv6", FEW, |text| {
        text.contains(':') && (text.parse::<Ipv6Addr>().is_ok())
    }),
    text("cidr", FEW, |text| cidr_sloppy(text).is_some()),
    text("mac", MANY, is_mac).up_to(MAC_BYTES_MAX),
    text("uuid", FEW, |text| is_uuid(text, None)).up_to(UUID_BYTES_MAX),
    text("uuid3", FEW, |text| is_uuid(text, Some('3'))).up_to(UUID_BYTES_MAX),
    text("uuid4", FEW, |text| is_uuid(text, Some('4'))).up_to(UUID_BYTES_MAX),
    text("uuid5", FEW, |text| is_uuid(text, Some('5'))).up_to(UUID_BYTES_MAX),
    text("isbn", MANY, |text| is_isbn10(text) || is_isbn13(text)),
    text("isbn10", MANY, is_isbn10),
    text("isbn13", MANY, is_isbn13),
    text("creditcard", MANY, is_credit_card),
    text("ssn", MANY, |text| text.len() == 11 && SSN.is_match(text)).up_to(11),
    text("hexcolor", MANY, |text| HEX_COLOR.is_match(text)),
    text("rgbcolor", MANY, |text| RGB_COLOR.is_match(text)),
    text("byte", FEW, is_base64),
    text("password", 0, |_| true),
    text("date", MANY, Timestamp::is_date).up_to(10),
    text("duration", MANY, |text| duration(text).is_some()),
    text("datetime", MANY, Timestamp::is_date_time),
    text("date-time", MANY, Timestamp::is_date_time),
    text("k8s-short-name", MANY, |text| {
        text.len() <= 63 && SHORT_NAME.is_match(text)
    })
    .up_to(63),
    text("k8s-long-name", MANY, |text| {
        text.len() <= 253 && text.split('.').all(|part| SHORT_NAME.is_match(part))
    })
    .up_to(253),
];

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("a constant pattern is sound"));
    };
}

pattern!(SHORT_NAME, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");
pattern!(SSN, r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$");
pattern!(HEX_COLOR, r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
pattern!(
    RGB_COLOR,
    r"^rgb\(\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*\)$"
);
pattern!(
    HOSTNAME,
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
);

/// Bytes of the longest name of a host.
const HOSTNAME_BYTES_MAX: usize = 255;
/// Bytes of the longest address of a network card, of twenty pairs.
const MAC_BYTES_MAX: usize = 59;
/// Bytes of a uuid with its dashes; a longer text is no uuid whatever stands behind them.
const UUID_BYTES_MAX: usize = 36;

fn is_hostname(text: &str) -> bool {
    // The length first: the pattern takes microseconds for some letters.
    let fits = text.len() <= HOSTNAME_BYTES_MAX && HOSTNAME.is_match(text);
    fits && text.split('.').all(|part| part.len() <= 63)
}

fn is_mac(text: &str) -> bool {
    if text.len() > MAC_BYTES_MAX {
        return false;
    }
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let separated = |separator: char, length: usize, counts: [usize; 3]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len()) && parts.iter().all(|part| hex(part, length))
    };
    separated(':', 2, [6, 8, 20])
        || separated('-', 2, [6, 8, 20])
        || separated('.', 4, [3, 4, 10])
        || [12, 16, 40].into_iter().any(|length| hex(text, length))
}

/// Returns whether a text has the letters and the length of base64; what its last bits are is not
/// looked at.
fn is_base64(text: &str) -> bool {
    let mut padding = ["==", "="].into_iter();
    let data = padding.find_map(|padding| text.strip_suffix(padding));
    let mut letters = data.unwrap_or(text).bytes();
    let fits = letters.all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte));
    fits && !text.is_empty() && text.len().is_multiple_of(4)
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut rest = text;
    for (at, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if at > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, after)) = rest.split_at_checked(length) else {
            return false;
        };
        if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        let first = part.chars().next().unwrap_or_default();
        let is_random = matches!(version, Some('4' | '5'));
        match at {
            2 if version.is_some_and(|version| version != first) => return false,
            3 if is_random && !"89abAB".contains(first) => return false,
            _ => {}
        }
        rest = after;
    }
    rest.is_empty()
}

fn digits(text: &str) -> String {
    text.chars()
        .filter(|letter| !matches!(letter, '-' | ' ' | '\t' | '\n' | '\r' | '\u{c}'))
        .collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = digits(text);
    let value = |letter: char| match letter {
        'X' => Some(10),
        letter => letter.to_digit(10),
    };
    let first = text.as_bytes().get(..9).filter(|_| text.len() == 10);
    let ends = first.is_some_and(|first| first.iter().all(u8::is_ascii_digit));
    let weighted = text.chars().enumerate().map(|(at, letter)| {
        let weight = u32::try_from(at + 1).unwrap_or(0);
        value(letter).map(|value| weight * value)
    });
    ends && weighted
        .sum::<Option<u32>>()
        .is_some_and(|sum| sum % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let text = digits(text);
    let weighted = text.chars().enumerate().map(|(at, letter)| {
        let weight = if at % 2 == 0 { 1 } else { 3 };
        letter.to_digit(10).map(|value| weight * value)
    });
    text.len() == 13
        && weighted
            .sum::<Option<u32>>()
            .is_some_and(|sum| sum % 10 == 0)
}

fn is_credit_card(text: &str) -> bool {
    let text: String = text.chars().filter(char::is_ascii_digit).collect();
    let doubled = text.chars().rev().enumerate().map(|(at, letter)| {
        let value = letter.to_digit(10).unwrap_or(0);
        match at % 2 {
            0 => value,
            _ if value > 4 => value * 2 - 9,
            _ => value * 2,
        }
    });
    let known = match text.len() {
        13 => text.starts_with('4'),
        14 => ["300", "301", "302", "303", "304", "305", "36", "38"]
            .iter()
            .any(|start| text.starts_with(start)),
        15 => ["34", "37", "2131", "1800"]
            .iter()
            .any(|start| text.starts_with(start)),
        16 => ["4", "51", "52", "53", "54", "55", "6011", "65", "35"]
            .iter()
            .any(|start| text.starts_with(start)),
        _ => false,
    };
    known && doubled.sum::<u32>() % 10 == 0
}

/// Reads a duration as Go writes it or in words, such as `1 day` and `2w 3h`. Returns nanoseconds.
pub(crate) fn duration(text: &str) -> Option<i64> {
    /// The names of each unit, the last of which may have an end, and its nanoseconds.
    const UNITS: [(&[&str], i64); 8] = [
        (&["ns", "nano"], 1),
        (&["us", "µs", "micro"], 1_000),
        (&["ms", "milli"], 1_000_000),
        (&["s", "sec"], SECOND),
        (&["m", "min"], 60 * SECOND),
        (&["h", "hr", "hour"], 3_600 * SECOND),
        (&["d", "day"], 86_400 * SECOND),
        (&["w", "wk", "week"], 604_800 * SECOND),
    ];
    const SECOND: i64 = 1_000_000_000;
    if let Ok(duration) = parse_duration(text) {
        return Some(duration);
    }
    let mut sum = None;
    let mut rest = text;
    while let Some((count, unit, after)) = counted(rest) {
        rest = after;
        let count: i64 = count.parse().ok()?;
        let unit = unit.to_lowercase();
        for (names, size) in UNITS {
            let last = names.last().copied().unwrap_or("");
            if unit.starts_with(last) || names.contains(&&*unit) {
                // As Go, whose sums wrap.
                let more = count.wrapping_mul(size);
                sum = Some(sum.unwrap_or(0i64).wrapping_add(more));
            }
        }
    }
    sum
}

/// Returns the first number of a text that has letters behind it, these letters, and what is behind them.
fn counted(text: &str) -> Option<(&str, &str, &str)> {
    let mut rest = text;
    loop {
        let from = &rest[rest.find(|letter: char| letter.is_ascii_digit())?..];
        let is_digit = |letter: char| letter.is_ascii_digit();
        let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == 'µ';
        let digits = from.len() - from.trim_start_matches(is_digit).len();
        let (count, after) = from.split_at(digits);
        let unit = after.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
        let end = unit.trim_start_matches(is_letter);
        if end.len() < unit.len() {
            return Some((count, &unit[..unit.len() - end.len()], end));
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::of;

    /// Texts that upstream accepts, and some that it refuses.
    type Case = (
        &'static str,
        &'static [&'static str],
        &'static [&'static str],
    );

    const CASES: [Case; 12] = [
        (
            "duration",
            &[
                "1h30m",
                "1 day",
                "2w 3h",
                "1\tsec",
                "x 1  d",
                "1 2 hours",
                "5µs",
            ],
            &[
                "",
                "1",
                "day",
                "1 2",
                "1 x",
                "1\u{a0}day",
                "99999999999999999999 s",
            ],
        ),
        (
            "date",
            &["2024-02-29", "0000-01-01", "9999-12-31"],
            &["", "2023-02-29", "2024-13-01", "2024-1-01", "2024-01-01Z"],
        ),
        (
            "date-time",
            &[
                "2024-02-29T23:59:59Z",
                "2024-02-29t00:00:00.5z",
                "2024-02-29T00:00:00+99:99",
                "2024-02-29T00:00:00ZT",
            ],
            &[
                "",
                "2024-02-29",
                "2023-02-29T00:00:00Z",
                "2024-02-29T24:00:00Z",
                "2024-02-29T00:60:00Z",
                "2024-02-29T00:00:60Z",
                "2024-02-29T0:00:00Z",
                "2024-02-29 00:00:00Z",
            ],
        ),
        (
            "byte",
            &["YQ==", "YR==", "YWI=", "YWJj"],
            &["", "YQ", "YQ=", "=", "====", "YQ==YQ==", "YW-j"],
        ),
        (
            "mac",
            &[
                "00:11:22:33:44:55",
                "00-11-22-33-44-55-66-77",
                "0011.2233.4455",
                "001122334455",
                "aabbccddeeff",
                "0011223344556677",
            ],
            &["", "00112233445", "0011223344556", "00:11-22:33:44:55"],
        ),
        (
            "uri",
            &[
                "*",
                "/a?%",
                "mailto:%",
                "http://[::1]:80/a",
                "http://[fe80::1%25en0]",
                "http://a@b:1/%20",
                "a://b:c:1",
            ],
            &[
                "",
                "a",
                ":a",
                "/%2",
                "*a",
                "http://[::1",
                "http://[1.2.3.4]",
                "http://[::1%25]",
                "http://a[::1]",
                "http://b:c:1",
                "http://a b",
                "http://a%20",
                "http://a:b",
                "http://a#b",
            ],
        ),
        (
            "email",
            &[
                "a@b.c",
                "a@b.c (x)",
                "a@b.c (x (y)) (z)",
                "A (c) B <a@b>",
                "\"\" <a@b>",
                "\"a b\"@[1.2.3.4]",
                "x: a@b;",
                "=?utf-8?q?x?= <a@b>",
                "=?koi8-r?q??? <a@b>",
            ],
            &[
                "",
                "a",
                "a@",
                "a@b.c (x",
                "a..b@c",
                "\"\"@b",
                "a@[x]",
                "x: a@b, c@d;",
                "x:;",
                "a@b, c@d",
                "=?koi8-r?q?x?= <a@b>",
                "a@b (=?koi8-r?q?x?=)",
            ],
        ),
        (
            "ssn",
            &["111-11-1111", "111 11 1111"],
            &["111111111", "111-111111"],
        ),
        (
            "isbn10",
            &["0321751043", "0\t321751043"],
            &["0321751044", "00000000\u{e9}"],
        ),
        ("creditcard", &["4111 1111 1111 1111"], &["350000000000006"]),
        ("ipv6", &["::1"], &["1.2.3.4"]),
        ("password", &["", "x"], &[]),
    ];

    #[test]
    fn texts_fit_formats_as_upstream_says() {
        for (name, good, bad) in CASES {
            let format = of(name, "string").expect("a known format");
            let fits = |text: &&&str| format.fits(text);
            let refused: Vec<_> = good.iter().filter(|text| !fits(text)).collect();
            assert!(refused.is_empty(), "{name} refuses {refused:?}");
            let accepted: Vec<_> = bad.iter().filter(fits).collect();
            assert!(accepted.is_empty(), "{name} accepts {accepted:?}");
        }
    }

    #[test]
    fn a_format_counts_the_reads_that_its_check_makes() {
        let reads = |name: &str, bytes: usize| {
            let format = of(name, "string").expect("a known format");
            format.bytes_read(&"a".repeat(bytes))
        };
        assert_eq!(reads("password", 1000), 0);
        assert_eq!(reads("byte", 1000), 4_000);
        assert_eq!(reads("duration", 1000), 64_000);
        assert_eq!(
            [255, 256].map(|bytes| reads("hostname", bytes)),
            [64 * 255, 0]
        );
    }

    #[test]
    fn formats_of_texts_are_for_those_that_may_be_numbers_too() {
        assert!(of("date", "integer,string").is_some());
        assert_eq!(of("hex-color", "string"), of("hexcolor", "string"));
        assert!(of("hex-color", "string").is_some());
        assert_eq!(of("hex-colour", "string"), None);
        assert_eq!(of("date", "integer"), None);
        assert_eq!(of("int32", "integer,string"), None);
    }
}
