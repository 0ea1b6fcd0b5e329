//! Named formats of texts. A format finds what is wrong with a text, in the words of upstream.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use regex::Regex;

use crate::library::Context;
use crate::library::{Library, urls};
use crate::time::Timestamp;
use crate::value::{Fault, Opaque, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        format-named: format.named(string) -> optional_type(kubernetes.NamedFormat)
        format-validate: validate:(kubernetes.NamedFormat, string) -> optional_type(list(string))
        format.dns1123Label: format.dns1123Label() -> kubernetes.NamedFormat
        format.dns1123Subdomain: format.dns1123Subdomain() -> kubernetes.NamedFormat
        format.dns1035Label: format.dns1035Label() -> kubernetes.NamedFormat
        format.qualifiedName: format.qualifiedName() -> kubernetes.NamedFormat
        format.dns1123LabelPrefix: format.dns1123LabelPrefix() -> kubernetes.NamedFormat
        format.dns1123SubdomainPrefix: format.dns1123SubdomainPrefix() -> kubernetes.NamedFormat
        format.dns1035LabelPrefix: format.dns1035LabelPrefix() -> kubernetes.NamedFormat
        format.labelValue: format.labelValue() -> kubernetes.NamedFormat
        format.uri: format.uri() -> kubernetes.NamedFormat
        format.uuid: format.uuid() -> kubernetes.NamedFormat
        format.byte: format.byte() -> kubernetes.NamedFormat
        format.date: format.date() -> kubernetes.NamedFormat
        format.datetime: format.datetime() -> kubernetes.NamedFormat",
    runs: &[
        ("format.named", |_, args| match args {
            [Value::String(name)] => Ok(Value::Optional(named(name).map(Arc::new))),
            _ => Err(Fault::no_overload()),
        }),
        ("validate", validate),
        ("format.dns1123Label", |_, _| constant("dns1123Label")),
        ("format.dns1123Subdomain", |_, _| {
            constant("dns1123Subdomain")
        }),
        ("format.dns1035Label", |_, _| constant("dns1035Label")),
        ("format.qualifiedName", |_, _| constant("qualifiedName")),
        ("format.dns1123LabelPrefix", |_, _| {
            constant("dns1123LabelPrefix")
        }),
        ("format.dns1123SubdomainPrefix", |_, _| {
            constant("dns1123SubdomainPrefix")
        }),
        ("format.dns1035LabelPrefix", |_, _| {
            constant("dns1035LabelPrefix")
        }),
        ("format.labelValue", |_, _| constant("labelValue")),
        ("format.uri", |_, _| constant("uri")),
        ("format.uuid", |_, _| constant("uuid")),
        ("format.byte", |_, _| constant("byte")),
        ("format.date", |_, _| constant("date")),
        ("format.datetime", |_, _| constant("datetime")),
    ],
    types: &[],
};

/// A format: its name, the size of the pattern its cost is counted by, and its check.
#[derive(Debug)]
struct Format {
    name: &'static str,
    pattern_size: u64,
    check: fn(&str) -> Vec<String>,
}

const FORMATS: [Format; 13] = [
    format("dns1123Label", 30, |text| label(text, LABEL)),
    format("dns1123Subdomain", 60, subdomain),
    format("dns1035Label", 30, |text| label(text, LABEL_1035)),
    format("qualifiedName", 60, qualified_name),
    format("dns1123LabelPrefix", 30, |text| label(&masked(text), LABEL)),
    format("dns1123SubdomainPrefix", 60, |text| {
        subdomain(&masked(text))
    }),
    format("dns1035LabelPrefix", 30, |text| {
        label(&masked(text), LABEL_1035)
    }),
    format("labelValue", 40, label_value),
    format("uri", 1_103, |text| {
        urls::complaint(text).into_iter().collect()
    }),
    format("uuid", 70, |text| {
        unless(is_uuid(text), "does not match the UUID format")
    }),
    format("byte", 84, |text| unless(is_base64(text), "invalid base64")),
    format("date", 71, |text| {
        unless(Timestamp::is_date(text), "invalid date")
    }),
    format("datetime", 71, |text| {
        unless(Timestamp::is_date_time(text), "invalid datetime")
    }),
];

/// A time of day with an offset from UTC, in lower case.
static TIME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(TIME_PATTERN).expect("a constant pattern compiles"));
const TIME_PATTERN: &str =
    r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$";

/// The formats `date` and `date-time`, to which other rules apply than to what is converted to a timestamp.
impl Timestamp {
    /// Returns whether a text fits the format `date`: the date of a day, from the year 0.
    #[must_use]
    pub fn is_date(text: &str) -> bool {
        text.len() == 10 && Self::parse(&format!("{text}T00:00:00Z")).is_some()
    }

    /// Returns whether a text fits the format `date-time`, in any case of letters.
    #[must_use]
    pub fn is_date_time(text: &str) -> bool {
        let text = text.to_lowercase();
        let mut parts = text.split('t');
        let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
            return false;
        };
        let Some(found) = TIME.captures(time).filter(|_| Self::is_date(date)) else {
            return false;
        };
        &found[1] <= "23" && &found[2] <= "59" && &found[3] <= "59"
    }
}

const fn format(name: &'static str, pattern_size: u64, check: fn(&str) -> Vec<String>) -> Format {
    Format {
        name,
        pattern_size,
        check,
    }
}

impl Opaque for &'static Format {
    fn type_name(&self) -> &'static str {
        "kubernetes.NamedFormat"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        let other: Option<&Self> = other.as_any().downcast_ref();
        other.is_some_and(|other| other.name == self.name)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the size of the pattern that the cost of a format is counted by; `None` for any other value.
pub(crate) fn pattern_size(value: &Value<'_>) -> Option<u64> {
    let Value::Opaque(value) = value else {
        return None;
    };
    let format: Option<&&'static Format> = value.as_any().downcast_ref();
    format.map(|format| format.pattern_size)
}

fn named<'a>(name: &str) -> Option<Value<'a>> {
    static ALL: [Format; 13] = FORMATS;
    let found: &'static Format = ALL.iter().find(|format| format.name == name)?;
    Some(Value::Opaque(Arc::new(found)))
}

fn constant<'a>(name: &str) -> Outcome<'a> {
    named(name).ok_or_else(Fault::no_overload)
}

fn validate<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(format), Value::String(text)] = args else {
        return Err(Fault::no_overload());
    };
    let format: &&'static Format = format
        .as_any()
        .downcast_ref()
        .ok_or_else(Fault::no_overload)?;
    let found = (format.check)(text);
    if found.is_empty() {
        return Ok(Value::Optional(None));
    }
    context.budget.make(found.iter().map(String::len).sum())?;
    let complaints = found.into_iter().map(Value::text).collect();
    Ok(Value::some(Value::list(complaints)))
}

fn unless(good: bool, text: &str) -> Vec<String> {
    if good {
        Vec::new()
    } else {
        vec![text.to_owned()]
    }
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Takes the dash at the end of a prefix away, as upstream does before it checks a name.
fn masked(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(before) if !before.is_empty() => {
            let mut kept = before.to_owned();
            kept.pop();
            kept.push('a');
            kept
        }
        _ => text.to_owned(),
    }
}

fn is_low(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends =
        bytes.first().copied().is_some_and(is_low) && bytes.last().copied().is_some_and(is_low);
    ends && bytes.iter().all(|byte| is_low(*byte) || *byte == b'-')
}

fn too_long(text: &str, most: usize, unit: &str) -> Option<String> {
    (text.len() > most).then(|| format!("must be no more than {most} {unit}"))
}

fn label(text: &str, complaint: &str) -> Vec<String> {
    let mut found: Vec<String> = too_long(text, 63, "characters").into_iter().collect();
    let digit_first = text.starts_with(|letter: char| letter.is_ascii_digit());
    if !is_label(text) || (complaint == LABEL_1035 && digit_first) {
        found.push(complaint.to_owned());
    }
    found
}

fn subdomain(text: &str) -> Vec<String> {
    let mut found: Vec<String> = too_long(text, 253, "characters").into_iter().collect();
    if !text.split('.').all(is_label) {
        found.push(SUBDOMAIN.to_owned());
    }
    found
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    ends && bytes.iter().all(inner)
}

fn qualified_name(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('/').collect();
    let mut found = Vec::new();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                found.push("prefix part must be non-empty".to_owned());
            } else {
                let bad = subdomain(prefix).into_iter();
                found.extend(bad.map(|text| format!("prefix part {text}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        found.push("name part must be non-empty".to_owned());
    } else if let Some(text) = too_long(name, 63, "bytes") {
        found.push(format!("name part {text}"));
    }
    if !is_name(name) {
        found.push(format!("name part {NAME}"));
    }
    found
}

fn label_value(text: &str) -> Vec<String> {
    let mut found: Vec<String> = too_long(text, 63, "bytes").into_iter().collect();
    if !text.is_empty() && !is_name(text) {
        found.push(VALUE.to_owned());
    }
    found
}

fn is_uuid(text: &str) -> bool {
    let hex = |part: &str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
    if text.len() == 32 {
        return hex(text);
    }
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.split('-').all(hex)
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    !text.is_empty() && text.len().is_multiple_of(4) && padding <= 2 && body.bytes().all(letter)
}
