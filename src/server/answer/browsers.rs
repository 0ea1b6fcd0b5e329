//! What browsers get: the order to come over TLS alone (HSTS), and the permission for pages of other
//! sites to read answers (CORS). The replica to which the browser is connected adds both, whichever
//! replica answers.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN, STRICT_TRANSPORT_SECURITY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use regex::RegexSet;

use crate::answer::body::ResponseBody;
use crate::answer::finish::finish;
use crate::answer::respond::{Reply, bare};
use crate::request::audit_id;

/// Longest origin that is compared with the expressions, in bytes. A longer one is no host's name, and
/// matching it would be work for a stranger.
const ORIGIN_BYTES_MAX: usize = 4096;
const ALLOWED_METHODS: HeaderValue =
    HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE, PATCH");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, \
     If-Modified-Since",
);
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("Date");
const WITH_CREDENTIALS: HeaderValue = HeaderValue::from_static("true");

/// What flags say about browsers, unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowserOptions {
    /// The directives of HSTS; empty for no such header.
    pub hsts_directives: Vec<String>,
    /// Regular expressions of the origins whose pages may read answers; empty for none.
    pub cors_allowed_origins: Vec<String>,
}

/// A problem with [`BrowserOptions`], in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrowserProblem {
    /// A directive without text.
    #[error("empty value in strict-transport-security-directives")]
    EmptyDirective,
    /// A directive that HSTS does not have.
    #[error(
        "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, \
         includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more \
         information"
    )]
    Directive,
    /// An expression without text.
    #[error("empty value in --cors-allowed-origins, help: {ORIGINS_HELP}")]
    EmptyOrigin,
    /// An expression that cannot be used, and why.
    #[error("--cors-allowed-origins has an invalid regular expression: {0}, help: {ORIGINS_HELP}")]
    Origin(String),
}

const ORIGINS_HELP: &str = "an expression has to be tied to both ends of the host, to the beginning by '^' or '//' \
    and to the end by '$' or ':', such as '//example\\.com(:|$)' or '^https://example\\.com(:|$)'";

impl BrowserOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// Returns all problems.
    pub fn complete(&self) -> Result<Browsers, Vec<BrowserProblem>> {
        let directives = self.hsts_directives.iter();
        let mut problems: Vec<_> = directives
            .filter_map(|text| check_directive(text).err())
            .collect();
        let origins = self.cors_allowed_origins.iter();
        problems.extend(origins.filter_map(|text| check_origin(text).err()));
        if !problems.is_empty() {
            return Err(problems);
        }
        // Together they may be too large, although each is not.
        let origins = RegexSet::new(&self.cors_allowed_origins);
        let origins = origins.map_err(|error| vec![BrowserProblem::Origin(error.to_string())])?;
        let hsts = HeaderValue::try_from(self.hsts_directives.join("; "));
        let hsts = hsts.map_err(|_| vec![BrowserProblem::Directive])?;
        Ok(Browsers {
            hsts: (!hsts.is_empty()).then_some(hsts),
            origins: (!origins.is_empty()).then_some(origins),
        })
    }
}

fn check_directive(text: &str) -> Result<(), BrowserProblem> {
    if text.trim().is_empty() {
        return Err(BrowserProblem::EmptyDirective);
    }
    let age = text.strip_prefix("max-age=");
    let is_known = text == "includeSubDomains"
        || text == "preload"
        || age.is_some_and(|age| !age.contains('='));
    match is_known && HeaderValue::from_str(text).is_ok() {
        true => Ok(()),
        false => Err(BrowserProblem::Directive),
    }
}

/// Checks one expression. It must be tied to both ends of the host, because otherwise a site whose name
/// only contains the allowed one could read answers.
fn check_origin(text: &str) -> Result<(), BrowserProblem> {
    if text.is_empty() {
        return Err(BrowserProblem::EmptyOrigin);
    }
    if let Err(error) = regex::Regex::new(text) {
        // The lines before the last one show the place.
        let shown = error.to_string();
        let why = shown.lines().last().unwrap_or_default();
        let why = why.trim_start_matches("error: ");
        let why = format!("error parsing regexp: {why}: `{text}`");
        return Err(BrowserProblem::Origin(why));
    }
    let has_start = text.contains('^') || text.contains("//");
    let has_end = text.contains('$') || text.contains(':');
    if has_start && has_end {
        return Ok(());
    }
    let why = "regular expression does not pin to start/end of host in the origin header";
    Err(BrowserProblem::Origin(why.to_owned()))
}

/// What browsers get with each answer.
#[derive(Clone, Debug, Default)]
pub struct Browsers {
    hsts: Option<HeaderValue>,
    origins: Option<RegexSet>,
}

impl Browsers {
    /// Returns the site whose page sends the request, if it may read the answer.
    pub(crate) fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origins = self.origins.as_ref()?;
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        let may_match = !text.is_empty() && text.len() <= ORIGIN_BYTES_MAX;
        (may_match && origins.is_match(text)).then(|| origin.clone())
    }

    /// Adds the headers for browsers to a reply.
    pub(crate) fn add_headers(&self, origin: Option<HeaderValue>, reply: &mut Reply) {
        let headers = reply.headers_mut();
        if let Some(hsts) = &self.hsts {
            headers.insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        let Some(origin) = origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, WITH_CREDENTIALS);
    }
}

/// Returns the reply to a browser that asks whether a page may send a request.
pub(crate) fn preflight(headers: &HeaderMap) -> Reply {
    let reply = bare(StatusCode::NO_CONTENT, ResponseBody::empty());
    finish(&Method::OPTIONS, audit_id::of(headers), reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directives: &[&str], origins: &[&str]) -> BrowserOptions {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        BrowserOptions {
            hsts_directives: owned(directives),
            cors_allowed_origins: owned(origins),
        }
    }

    #[test]
    fn directives_are_those_of_the_standard() {
        for known in [
            "max-age=31536000",
            "max-age=",
            "includeSubDomains",
            "preload",
        ] {
            assert_eq!(check_directive(known), Ok(()), "{known}");
        }
        for unknown in [
            "max-age",
            "max-age=1=2",
            "Preload",
            " preload",
            "a=1",
            "max-age=1\n",
        ] {
            let problem = Err(BrowserProblem::Directive);
            assert_eq!(check_directive(unknown), problem, "{unknown:?}");
        }
        assert_eq!(check_directive(" "), Err(BrowserProblem::EmptyDirective));
    }

    #[test]
    fn expressions_are_tied_to_both_ends_of_the_host() {
        for tied in [
            r"//example\.com(:|$)",
            r"^https://example\.com(:|$)",
            r"^https?:\/\/[a-z\-]+\.example\.com$",
            "(?i)//localhost:",
        ] {
            assert_eq!(check_origin(tied), Ok(()), "{tied}");
        }
        for loose in ["example.com", "^https", "example.com$", ".*", "a//b"] {
            let problem = check_origin(loose).expect_err(loose).to_string();
            assert!(problem.contains("does not pin to start/end"), "{problem}");
        }
        assert_eq!(check_origin(""), Err(BrowserProblem::EmptyOrigin));
        let problem = check_origin("^(a$").expect_err("a group without an end");
        let problem = problem.to_string();
        assert!(problem.contains("error parsing regexp: unclosed group: `^(a$`, help: "));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let wrong = options(&["", "never"], &["", "a", "^b$"]);
        assert_eq!(wrong.complete().expect_err("much is wrong").len(), 4);
    }

    #[test]
    fn an_origin_of_reasonable_length_is_compared_as_a_whole() {
        let browsers = options(&[], &[r"//one\.test(:|$)", r"^https://two\.test$"]);
        let browsers = browsers.complete().expect("sound");
        let is_allowed = |origin: &str| {
            let value = HeaderValue::from_str(origin).expect("a header");
            let headers = HeaderMap::from_iter([(ORIGIN, value)]);
            browsers.allowed_origin(&headers).is_some()
        };
        assert!(is_allowed("http://one.test:8080") && is_allowed("https://two.test"));
        assert!(!is_allowed("https://two.test.evil") && !is_allowed("http://notone.test"));
        assert!(!is_allowed("") && !is_allowed(&format!("http://one.test:{}", "1".repeat(5000))));
        assert!(browsers.allowed_origin(&HeaderMap::new()).is_none());
    }
}
