//! The checks that upstream applies to names, labels, ports, keys and addresses.
//!
//! Every check returns the complaints with upstream's texts; no complaint means that the value is
//! valid. Which rule applies to which field is decided by the schema and the strategies.

mod address;

pub use address::{
    Strictness, cidr_complaints, cidr_sloppy, ip_complaints, ip_sloppy, ip_text,
    legacy_cidr_complaints, legacy_ip_complaints,
};

/// Most bytes of a DNS label, as RFC 1123 limits it.
pub const DNS_LABEL_BYTES_MAX: usize = 63;
/// Most bytes of a DNS subdomain, as RFC 1123 limits it.
pub const DNS_SUBDOMAIN_BYTES_MAX: usize = 253;
/// Most bytes of a label value, and of the name part of a label key.
pub const LABEL_BYTES_MAX: usize = 63;
/// Number of letters in the random suffix that `generateName` appends.
pub const GENERATED_SUFFIX_LENGTH: usize = 5;

const DNS1123_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_LABEL_WORDS: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const DNS1123_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1123_SUBDOMAIN_WORDS: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1123_UNDERSCORE: &str =
    r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const DNS1123_UNDERSCORE_WORDS: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character";
const DNS1123_CASELESS_WORDS: &str = "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS1035_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const DNS1035_LABEL_WORDS: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const WILDCARD: &str = r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const WILDCARD_WORDS: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const LABEL_NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_NAME_WORDS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const LABEL_VALUE_WORDS: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const C_IDENTIFIER_WORDS: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'";
const PERCENT_WORDS: &str =
    "a valid percent string must be a numeric string followed by an ending '%'";
const HTTP_HEADER_WORDS: &str =
    "a valid HTTP header must consist of alphanumeric characters or '-'";
const ENV_VAR_WORDS: &str = "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not start with a digit";
const RELAXED_ENV_VAR_WORDS: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";
const CONFIG_KEY_WORDS: &str =
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
const CONDITION_REASON_WORDS: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";

/// Returns the complaint about a value longer than `bytes_max`, in the words of name checks.
pub fn max_len(bytes_max: usize) -> String {
    format!("must be no more than {bytes_max} bytes")
}

/// Returns the complaint about a value longer than `characters_max`, in the words of older checks.
pub fn max_len_characters(characters_max: usize) -> String {
    format!("must be no more than {characters_max} characters")
}

/// Returns the complaint about a number outside `lo..=hi`.
pub fn inclusive_range(lo: i64, hi: i64) -> String {
    format!("must be between {lo} and {hi}, inclusive")
}

/// Returns the complaint about a value that does not match `pattern`, with examples that do.
pub fn regex_complaint(words: &str, pattern: &str, examples: &[&str]) -> String {
    let mut text = format!("{words} (");
    for (index, example) in examples.iter().enumerate() {
        text.push_str(if index == 0 { "e.g. '" } else { " or '" });
        text.push_str(example);
        text.push_str("', ");
    }
    text.push_str("regex used for validation is '");
    text.push_str(pattern);
    text.push_str("')");
    text
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Returns true if `text` starts with a byte of `first`, ends with one of `last` and has only bytes
/// of `middle` in between. A single byte need only be one of `first`.
fn shaped(text: &str, first: fn(u8) -> bool, middle: fn(u8) -> bool, last: fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => first(*only),
        [head, inner @ .., tail] => {
            first(*head) && inner.iter().all(|byte| middle(*byte)) && last(*tail)
        }
    }
}

fn dash_or_lower(byte: u8) -> bool {
    byte == b'-' || lower_alphanumeric(byte)
}

fn label_byte(byte: u8) -> bool {
    matches!(byte, b'-' | b'_' | b'.') || alphanumeric(byte)
}

fn is_dns1123_label(text: &str) -> bool {
    shaped(text, lower_alphanumeric, dash_or_lower, lower_alphanumeric)
}

fn is_dns1123_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns1123_label)
}

fn is_label_name(text: &str) -> bool {
    shaped(text, alphanumeric, label_byte, alphanumeric)
}

/// Checks that a value is a DNS label, as most object names are that become host names.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_LABEL_BYTES_MAX {
        complaints.push(max_len_characters(DNS_LABEL_BYTES_MAX));
    }
    if !is_dns1123_label(value) {
        complaints.push(if is_dns1123_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            regex_complaint(DNS1123_LABEL_WORDS, DNS1123_LABEL, &["my-name", "123-abc"])
        });
    }
    complaints
}

/// Checks that a value is a DNS subdomain, as most object names are.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_SUBDOMAIN_BYTES_MAX {
        complaints.push(max_len_characters(DNS_SUBDOMAIN_BYTES_MAX));
    }
    if !is_dns1123_subdomain(value) {
        complaints.push(regex_complaint(
            DNS1123_SUBDOMAIN_WORDS,
            DNS1123_SUBDOMAIN,
            &["example.com"],
        ));
    }
    complaints
}

/// Checks that a value is a DNS subdomain, in letters of either case.
pub fn dns1123_subdomain_caseless(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_SUBDOMAIN_BYTES_MAX {
        complaints.push(max_len(DNS_SUBDOMAIN_BYTES_MAX));
    }
    if !is_dns1123_subdomain(&value.to_ascii_lowercase()) {
        complaints.push(regex_complaint(
            DNS1123_CASELESS_WORDS,
            DNS1123_SUBDOMAIN,
            &["Example.com"],
        ));
    }
    complaints
}

/// Checks that a value is a DNS subdomain, whose labels may also have underscores.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_SUBDOMAIN_BYTES_MAX {
        complaints.push(max_len_characters(DNS_SUBDOMAIN_BYTES_MAX));
    }
    let good = value.split('.').all(|label| {
        let label = label.strip_prefix('_').unwrap_or(label);
        shaped(
            label,
            lower_alphanumeric,
            |byte| byte == b'_' || dash_or_lower(byte),
            lower_alphanumeric,
        )
    });
    if !good {
        complaints.push(regex_complaint(
            DNS1123_UNDERSCORE_WORDS,
            DNS1123_UNDERSCORE,
            &["example.com"],
        ));
    }
    complaints
}

/// Checks that a value is a DNS label that starts with a letter, as names of services are.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_LABEL_BYTES_MAX {
        complaints.push(max_len_characters(DNS_LABEL_BYTES_MAX));
    }
    if !shaped(
        value,
        |byte| byte.is_ascii_lowercase(),
        dash_or_lower,
        lower_alphanumeric,
    ) {
        complaints.push(regex_complaint(
            DNS1035_LABEL_WORDS,
            DNS1035_LABEL,
            &["my-name", "abc-123"],
        ));
    }
    complaints
}

/// Checks that a value is `*.` and a DNS subdomain, as hosts of ingresses may be.
pub fn wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_SUBDOMAIN_BYTES_MAX {
        complaints.push(max_len_characters(DNS_SUBDOMAIN_BYTES_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(is_dns1123_subdomain) {
        complaints.push(regex_complaint(
            WILDCARD_WORDS,
            WILDCARD,
            &["*.example.com"],
        ));
    }
    complaints
}

/// Checks that a value is a key of a label or annotation: a name of up to 63 bytes with an optional
/// DNS prefix and slash.
pub fn qualified_name(value: &str) -> Vec<String> {
    const EXAMPLES: &[&str] = &["MyName", "my.name", "123-abc"];
    let mut complaints = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, name)) if name.contains('/') => {
            let rule = regex_complaint(LABEL_NAME_WORDS, LABEL_NAME, EXAMPLES);
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > DNS_SUBDOMAIN_BYTES_MAX {
                    complaints.push(format!("prefix part {}", max_len(DNS_SUBDOMAIN_BYTES_MAX)));
                }
                if !is_dns1123_subdomain(prefix) {
                    let rule = regex_complaint(
                        DNS1123_SUBDOMAIN_WORDS,
                        DNS1123_SUBDOMAIN,
                        &["example.com"],
                    );
                    complaints.push(format!("prefix part {rule}"));
                }
            }
            name
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_BYTES_MAX {
        complaints.push(format!("name part {}", max_len(LABEL_BYTES_MAX)));
    }
    if !is_label_name(name) {
        complaints.push(format!(
            "name part {}",
            regex_complaint(LABEL_NAME_WORDS, LABEL_NAME, EXAMPLES)
        ));
    }
    complaints
}

/// Checks that a value is one that a label may have.
pub fn label_value(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > LABEL_BYTES_MAX {
        complaints.push(max_len(LABEL_BYTES_MAX));
    }
    if !value.is_empty() && !is_label_name(value) {
        complaints.push(regex_complaint(
            LABEL_VALUE_WORDS,
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    complaints
}

/// Checks that a name may be a segment of a URL path.
pub fn path_segment_name(name: &str) -> Vec<String> {
    match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        _ => path_segment_prefix(name),
    }
}

/// Checks that a text may be the beginning of a segment of a URL path.
pub fn path_segment_prefix(name: &str) -> Vec<String> {
    let found = ["/", "%"].into_iter().filter(|text| name.contains(text));
    found
        .map(|text| format!("may not contain '{text}'"))
        .collect()
}

/// Checks the name of a port of a container or service.
pub fn port_name(port: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if port.len() > 15 {
        complaints.push(max_len_characters(15));
    }
    if port.is_empty() || !port.bytes().all(dash_or_lower) {
        complaints.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !port.bytes().any(|byte| byte.is_ascii_lowercase()) {
        complaints.push("must contain at least one letter (a-z)".to_owned());
    }
    if port.contains("--") {
        complaints.push("must not contain consecutive hyphens".to_owned());
    }
    if port.starts_with('-') || port.ends_with('-') {
        complaints.push("must not begin or end with a hyphen".to_owned());
    }
    complaints
}

/// Checks the number of a port.
pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

/// Checks that a number is in `lo..=hi`.
pub fn in_range(value: i64, lo: i64, hi: i64) -> Vec<String> {
    if (lo..=hi).contains(&value) {
        Vec::new()
    } else {
        vec![inclusive_range(lo, hi)]
    }
}

/// Checks the number of a user or group.
pub fn user_or_group_id(id: i64) -> Vec<String> {
    in_range(id, 0, i64::from(i32::MAX))
}

/// Returns one complaint unless `good` is true.
fn unless(good: bool, words: &str, pattern: &str, examples: &[&str]) -> Vec<String> {
    if good {
        Vec::new()
    } else {
        vec![regex_complaint(words, pattern, examples)]
    }
}

/// Checks that a value is an identifier of the language C.
pub fn c_identifier(value: &str) -> Vec<String> {
    let word = |byte: u8| byte == b'_' || alphanumeric(byte);
    let good = value.bytes().all(word)
        && value
            .bytes()
            .next()
            .is_some_and(|byte| !byte.is_ascii_digit());
    unless(
        good,
        C_IDENTIFIER_WORDS,
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )
}

/// Checks that a value is a percentage such as `25%`.
pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or("");
    let good = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    unless(good, PERCENT_WORDS, "[0-9]+%", &["1%", "93%"])
}

/// Checks that a value is the name of an HTTP header.
pub fn http_header_name(value: &str) -> Vec<String> {
    let good = !value.is_empty() && value.bytes().all(|byte| byte == b'-' || alphanumeric(byte));
    unless(good, HTTP_HEADER_WORDS, "[-A-Za-z0-9]+", &["X-Header-Name"])
}

/// Checks that a value is the name of an environment variable, in the strict form.
pub fn env_var_name(value: &str) -> Vec<String> {
    let good = value.bytes().all(label_byte)
        && value
            .bytes()
            .next()
            .is_some_and(|byte| !byte.is_ascii_digit());
    let pattern = "[-._a-zA-Z][-._a-zA-Z0-9]*";
    let mut complaints = unless(
        good,
        ENV_VAR_WORDS,
        pattern,
        &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
    );
    complaints.extend(dots(value));
    complaints
}

/// Checks that a value is the name of an environment variable, in the relaxed form that upstream
/// uses today.
pub fn relaxed_env_var_name(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.is_empty() {
        complaints.push("environment variable name must be non-empty".to_owned());
    }
    if !value
        .bytes()
        .all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
    {
        complaints.push(RELAXED_ENV_VAR_WORDS.to_owned());
    }
    complaints
}

/// Checks that a value is a key of a ConfigMap or Secret.
pub fn config_map_key(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > DNS_SUBDOMAIN_BYTES_MAX {
        complaints.push(max_len_characters(DNS_SUBDOMAIN_BYTES_MAX));
    }
    let good = !value.is_empty() && value.bytes().all(label_byte);
    complaints.extend(unless(
        good,
        CONFIG_KEY_WORDS,
        "[-._a-zA-Z0-9]+",
        &["key.name", "KEY_NAME", "key-name"],
    ));
    complaints.extend(dots(value));
    complaints
}

/// Checks that a value is the reason of a condition.
pub fn condition_reason(value: &str) -> Vec<String> {
    let good = shaped(
        value,
        |byte| byte.is_ascii_alphabetic(),
        |byte| matches!(byte, b'_' | b',' | b':') || alphanumeric(byte),
        |byte| byte == b'_' || alphanumeric(byte),
    );
    let examples = [
        "my_name",
        "MY_NAME",
        "MyName",
        "ReasonA,ReasonB",
        "ReasonA:ReasonB",
    ];
    unless(
        good,
        CONDITION_REASON_WORDS,
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &examples,
    )
}

/// Checks that a value is a whole number in decimal without needless signs and zeros.
pub fn decimal_integer(value: &str) -> Vec<String> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let good = value == "0"
        || (!digits.is_empty()
            && !digits.starts_with('0')
            && digits.bytes().all(|byte| byte.is_ascii_digit()));
    match value {
        "" => vec!["must be non-empty".to_owned()],
        _ if good => Vec::new(),
        _ => vec!["must be a valid decimal integer in canonical form".to_owned()],
    }
}

fn dots(value: &str) -> Option<String> {
    match value {
        "." => Some("must not be '.'".to_owned()),
        ".." => Some("must not be '..'".to_owned()),
        _ if value.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// The rule that the names of a kind follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameRule {
    /// A DNS subdomain; most kinds.
    DnsSubdomain,
    /// As [`Self::DnsSubdomain`], but the beginning of a generated name is not checked by itself.
    GeneratedSubdomain,
    /// A DNS label.
    DnsLabel,
    /// A DNS label that starts with a letter.
    Dns1035Label,
    /// Any text that may be a segment of a URL path.
    PathSegment,
    /// As [`Self::PathSegment`], but the beginning of a generated name is checked as if it were all
    /// of it.
    WholePathSegment,
    /// A rule of the kind's own, which its strategy checks.
    Own,
}

impl NameRule {
    /// Returns the complaints about a whole name.
    pub fn name(self, name: &str) -> Vec<String> {
        match self {
            Self::DnsSubdomain | Self::GeneratedSubdomain => dns1123_subdomain(name),
            Self::DnsLabel => dns1123_label(name),
            Self::Dns1035Label => dns1035_label(name),
            Self::PathSegment | Self::WholePathSegment => path_segment_name(name),
            Self::Own => Vec::new(),
        }
    }

    /// Returns the complaints about the beginning of a generated name, which may end in a dash.
    pub fn prefix(self, prefix: &str) -> Vec<String> {
        match self {
            Self::GeneratedSubdomain => Vec::new(),
            Self::PathSegment => path_segment_prefix(prefix),
            Self::WholePathSegment => self.name(prefix),
            // As upstream does: the dash and the byte before it are replaced by one valid byte.
            _ if prefix.len() > 1 && prefix.ends_with('-') => {
                let kept = String::from_utf8_lossy(&prefix.as_bytes()[..prefix.len() - 2]);
                self.name(&format!("{kept}a"))
            }
            _ => self.name(prefix),
        }
    }
}

/// The alphabet of generated names: no vowels, no look-alikes.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns the suffix of a generated name, made of random bytes. Bytes that would make some letters
/// more likely are skipped, so pass more than [`GENERATED_SUFFIX_LENGTH`]; returns `None` if they
/// are too few.
pub fn generated_suffix(random: &[u8]) -> Option<String> {
    // 243 is the largest multiple of 27 that a byte can hold.
    let letters = random.iter().filter(|byte| **byte < 243);
    let suffix: String = letters
        .take(GENERATED_SUFFIX_LENGTH)
        .map(|byte| char::from(SUFFIX_ALPHABET[usize::from(byte % 27)]))
        .collect();
    (suffix.len() == GENERATED_SUFFIX_LENGTH).then_some(suffix)
}

/// Returns the name made of the `generateName` prefix and a suffix. A long prefix is cut so that
/// the name is at most as long as a DNS label.
pub fn generated_name(base: &str, suffix: &str) -> String {
    let mut room = DNS_LABEL_BYTES_MAX - GENERATED_SUFFIX_LENGTH;
    if base.len() <= room {
        return format!("{base}{suffix}");
    }
    while !base.is_char_boundary(room) {
        room -= 1;
    }
    format!("{}{suffix}", &base[..room])
}

#[cfg(test)]
mod tests;
