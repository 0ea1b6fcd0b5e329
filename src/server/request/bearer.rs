//! The bearer token in the `Authorization` header of a request.

use http::header::{AUTHORIZATION, WARNING};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::answer::respond::Reply;
use crate::answer::warnings;
use crate::peer::forward::Forwarded;
use crate::pipeline::Pipeline;

/// Upstream's warning about a header whose token does not count.
const EXTRA_SPACE: &str = "the provided Authorization header contains extra space before the bearer token, and is ignored";

impl Pipeline<'_> {
    /// Adds the warning about a token that does not count to the reply to a caller who shows no other credential. That
    /// may be an answer, because such a caller is anonymous.
    pub(crate) fn warn_about_token(&self, reply: &mut Reply) {
        let Some(warning) = warning_of(&self.parts.headers) else {
            return;
        };
        let has_one = reply.status() == StatusCode::UNAUTHORIZED
            || reply.extensions().get::<Forwarded>().is_some();
        if has_one || !self.has_no_credential() {
            return;
        }
        for warning in warnings::headers(&[warning.to_owned()]) {
            reply.headers_mut().append(WARNING, warning);
        }
    }
}

/// Returns the token that a request carries.
pub(crate) fn token_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION).and_then(token_in)
}

/// Returns the token in the value of an `Authorization` header.
pub(crate) fn token_in(authorization: &HeaderValue) -> Option<&str> {
    let (token, _) = words_of(authorization)?;
    (!token.is_empty()).then_some(token)
}

/// Returns the warning about a token that does not count, because two spaces precede it.
pub(crate) fn warning_of(headers: &HeaderMap) -> Option<&'static str> {
    let (token, rest) = headers.get(AUTHORIZATION).and_then(words_of)?;
    (token.is_empty() && rest.is_some()).then_some(EXTRA_SPACE)
}

/// Returns the word after the scheme of bearers, which is empty if another space follows, and the rest.
fn words_of(authorization: &HeaderValue) -> Option<(&str, Option<&str>)> {
    let text = authorization.to_str().ok()?;
    let mut words = text.trim().splitn(3, ' ');
    let scheme = words.next()?;
    let token = words.next()?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| (token, words.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_behind_two_spaces_does_not_count_and_is_warned_about() {
        for (value, token, warns) in [
            ("Bearer abc", Some("abc"), false),
            ("bearer abc def", Some("abc"), false),
            ("Bearer  abc", None, true),
            ("Bearer   ", None, false),
            ("Basic  abc", None, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(token_of(&headers), token, "{value}");
            assert_eq!(warning_of(&headers).is_some(), warns, "{value}");
        }
    }
}
