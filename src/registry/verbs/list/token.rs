//! Page tokens: where the next page of a list begins, and which version it shows.
//!
//! Owns their form, which is upstream's, and the texts about tokens that cannot be read. Must not know what a page
//! contains.

use crate::request::options::ListOptions;
use crate::verbs::list::expired;
use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{ExpiredCause, Version};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Seconds for which a page token can be used. It is as long as the log keeps events; older
/// versions could not be shown.
const TOKEN_SECONDS_MAX: i64 = 300;
/// The form of tokens that is known.
const FORM: &str = "meta.k8s.io/v1";

/// A page token, in upstream's form with the time of the first page added.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Token {
    v: String,
    rv: i64,
    start: String,
    t: i64,
}

impl Token {
    /// Returns the version that all pages show; `None` if the client continues with the newest one.
    pub(crate) fn version(&self) -> Option<Version> {
        u64::try_from(self.rv).ok().map(Version::from_raw)
    }

    /// Returns whether the list is recent enough to continue.
    pub(crate) fn is_fresh(&self, now: i64) -> bool {
        self.t.saturating_add(TOKEN_SECONDS_MAX) >= now
    }

    /// Returns the time at which the first page was made.
    pub(crate) fn since(&self) -> i64 {
        self.t
    }

    /// Returns the key at which the page begins, without the prefix of the list.
    pub(crate) fn start(&self) -> &str {
        self.start.strip_prefix('/').unwrap_or(&self.start)
    }

    /// Returns the refusal of a list whose version is no longer kept, with a token that continues
    /// it in the newest state.
    pub(crate) fn expired(&self, now: i64, cause: ExpiredCause) -> ApiError {
        let again = write(-1, &self.start, now);
        let text = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        expired(text, cause).with_continue(&again)
    }

    /// Reads the text of a token as Go reads it into a struct: names may have any case, other members mean nothing,
    /// and one of the wrong type is an error.
    fn parse(text: &[u8]) -> Result<Self, String> {
        let parsed = json::parse(text, &json::Limits::default());
        let members = match parsed.map_err(|error| error.to_string())?.value {
            Value::Null => return Ok(Self::default()),
            Value::Object(members) => members,
            other => {
                let kind = other.go_kind();
                return Err(format!(
                    "json: cannot unmarshal {kind} into Go value of type storage.continueToken"
                ));
            }
        };
        let mut token = Self::default();
        for (name, value) in members.iter() {
            match name.to_ascii_lowercase().as_str() {
                "v" => token.v = string("v", value)?,
                "rv" => token.rv = number("rv", value, || written(text, name))?,
                "start" => token.start = string("start", value)?,
                "t" => token.t = value.as_int().unwrap_or(0),
                _ => {}
            }
        }
        Ok(token)
    }

    /// Returns why no page can begin here; `None` if one can.
    fn refusal(&self) -> Option<String> {
        if self.v != FORM {
            let form = &self.v;
            return Some(format!(
                "continue key is not valid: server does not recognize this encoded version {form}"
            ));
        }
        if self.rv == 0 {
            return Some(format!(
                "continue key is not valid: incorrect encoded start resourceVersion (version {FORM})"
            ));
        }
        if self.start.is_empty() {
            return Some(format!(
                "continue key is not valid: encoded start key empty (version {FORM})"
            ));
        }
        let is_clean = |part: &str| !matches!(part, "" | "." | "..");
        if !self.start().is_empty() && !self.start().split('/').all(is_clean) {
            return Some(format!("continue key is not valid: {}", self.start));
        }
        None
    }
}

/// Returns the text of a member; null leaves it empty.
fn string(name: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.to_string()),
        other => Err(mistyped(name, other.go_kind(), "string")),
    }
}

/// Returns the whole number of a member; null leaves it 0. `written` returns a number as it was sent.
fn number(name: &str, value: &Value, written: impl Fn() -> String) -> Result<i64, String> {
    match value {
        Value::Null => Ok(0),
        Value::Int(number) => Ok(*number),
        Value::Float(_) => Err(mistyped(name, &format!("number {}", written()), "int64")),
        other => Err(mistyped(name, other.go_kind(), "int64")),
    }
}

fn mistyped(name: &str, given: &str, wanted: &str) -> String {
    format!(
        "json: cannot unmarshal {given} into Go struct field continueToken.{name} of type {wanted}"
    )
}

/// Returns a member of a JSON object as it was sent.
fn written(text: &[u8], name: &str) -> String {
    let members: Option<BTreeMap<String, Box<RawValue>>> = serde_json::from_slice(text).ok();
    let member = members.as_ref().and_then(|members| members.get(name));
    member.map_or_else(String::new, |value| value.get().to_owned())
}

/// Reads page tokens as Go does, which ignores bits behind the last whole byte.
const TOKEN_TEXT: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// Returns the parsed page token of a request.
///
/// # Errors
/// Returns 400 if it cannot be parsed, or may not be combined with the other options.
pub(crate) fn continuation(options: &ListOptions) -> Result<Token, ApiError> {
    let token = read(&options.continuation)?;
    if !options.resource_version.is_empty() && options.resource_version != "0" {
        return Err(ApiError::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    Ok(token)
}

fn read(text: &str) -> Result<Token, ApiError> {
    let bad = |why: String| ApiError::bad_request(format!("invalid continue token: {why}"));
    let invalid = |why: String| bad(format!("continue key is not valid: {why}"));
    // Go skips ends of lines.
    let letters: String = text
        .chars()
        .filter(|letter| !is_line_end(*letter))
        .collect();
    let decoded = TOKEN_TEXT.decode(&letters);
    let bytes = decoded.map_err(|_| invalid(base64_error(text)))?;
    let token = Token::parse(&bytes).map_err(invalid)?;
    match token.refusal() {
        None => Ok(token),
        Some(why) => Err(bad(why)),
    }
}

fn is_line_end(letter: char) -> bool {
    matches!(letter, '\r' | '\n')
}

/// Returns Go's error text about a token that is not base64: the place is that of the first wrong letter, or the last
/// one if there is one more than whole groups of four.
fn base64_error(text: &str) -> String {
    let is_wrong = |letter: char| {
        !(letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '\r' | '\n'))
    };
    let at = text.find(is_wrong);
    let at = at.unwrap_or_else(|| text.len().saturating_sub(1));
    format!("illegal base64 data at input byte {at}")
}

/// Returns the text of a token.
pub(super) fn write(version: i64, start: &str, since: i64) -> String {
    let token = Token {
        v: FORM.into(),
        rv: version,
        start: start.into(),
        t: since,
    };
    let text = serde_json::to_vec(&token).expect("a token is plain data");
    URL_SAFE_NO_PAD.encode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the refusal of a token whose text is `text` in base64.
    fn refused(text: &str) -> Option<String> {
        let refused = read(&URL_SAFE_NO_PAD.encode(text)).err()?;
        let why = refused.message.strip_prefix("invalid continue token: ");
        Some(why.expect("it begins like this").to_owned())
    }

    #[test]
    fn a_page_token_without_a_version_of_its_form_is_not_recognized() {
        let why = "continue key is not valid: server does not recognize this encoded version ";
        for text in ["{}", r#"{"rv":1}"#, "null", r#"{"v":null}"#, r#"{"a":1}"#] {
            assert_eq!(refused(text).as_deref(), Some(why), "{text}");
        }
    }

    /// What Go's `json.Unmarshal` says of them (go1.26).
    #[test]
    fn a_member_of_a_page_token_that_has_the_wrong_type_is_named() {
        let field = |name: &str, given: &str, wanted: &str| {
            format!(
                "cannot unmarshal {given} into Go struct field continueToken.{name} of type {wanted}"
            )
        };
        let whole = |given: &str| {
            format!("cannot unmarshal {given} into Go value of type storage.continueToken")
        };
        for (text, why) in [
            ("[]", whole("array")),
            (r#""x""#, whole("string")),
            ("1", whole("number")),
            ("true", whole("bool")),
            (r#"{"v":1}"#, field("v", "number", "string")),
            (r#"{"V":1}"#, field("v", "number", "string")),
            (r#"{"start":{}}"#, field("start", "object", "string")),
            (r#"{"rv":"1"}"#, field("rv", "string", "int64")),
            (r#"{"rv":[1]}"#, field("rv", "array", "int64")),
            (r#"{"rv": 1.5 }"#, field("rv", "number 1.5", "int64")),
            (r#"{"rv":1e3}"#, field("rv", "number 1e3", "int64")),
            (
                r#"{"rv":99999999999999999999}"#,
                field("rv", "number 99999999999999999999", "int64"),
            ),
        ] {
            let why = format!("continue key is not valid: json: {why}");
            assert_eq!(refused(text), Some(why), "{text}");
        }
    }

    /// What Go's `base64.RawURLEncoding` says of them (go1.26).
    #[test]
    fn the_place_at_which_a_page_token_is_no_base64_is_gos() {
        for (text, at) in [
            ("x", 0),
            ("x!", 1),
            ("abcde", 4),
            ("abcd=", 4),
            ("abc.def", 3),
            ("aaaaaaaaa", 8),
            ("é", 0),
            ("abcde\n", 5),
            ("AB+/", 2),
        ] {
            let why = format!(
                "invalid continue token: continue key is not valid: illegal base64 data at input byte {at}"
            );
            assert_eq!(
                read(text).map_err(|error| error.message),
                Err(why),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_page_token_begins_at_a_key_within_its_list() {
        let token = |start: &str| Token {
            v: FORM.into(),
            rv: 7,
            start: start.into(),
            t: 1,
        };
        for start in ["a", "/a", "a/b\0", "/"] {
            let text = write(7, start, 1);
            let (first, rest) = text.split_at(3);
            assert_eq!(read(&text).ok(), Some(token(start)), "{start}");
            assert_eq!(read(&format!("{first}\r\n{rest}")).ok(), Some(token(start)));
        }
        for start in ["//a", "a/", "../a", "/a/./b", "/.."] {
            let why = format!("invalid continue token: continue key is not valid: {start}");
            let refused = read(&write(7, start, 1)).map_err(|error| error.message);
            assert_eq!(refused, Err(why), "{start}");
        }
    }
}
