//! `/statusz` and `/flagz`: what this process is and how it was started. For people as text; for
//! programs as an object of `config.k8s.io`, if they ask for one by its kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{WARNING, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::json;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::value::Map;
use polyplane_registry::answer::media_range::ranges;

use crate::answer::negotiate::Form;
use crate::answer::respond::{Client, Refusal, Reply, text, typed_object};
use crate::documents::version::VERSION;

/// The group of the objects.
const GROUP: &str = "config.k8s.io";
/// The versions of the objects; the second one ends.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// The name that upstream gives to an API server here.
const COMPONENT: &str = "apiserver";
/// What a client may ask for, as the refusal of anything else lists it.
const MEDIA_TYPES: [&str; 3] = ["application/json", "application/yaml", "text/plain"];
/// The paths that are worth a look.
const PATHS: [&str; 7] = [
    "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version",
];
const NOTICE: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";

/// The flags of the process with their values, defaults included, by name. No value is a secret.
pub type FlagValues = Arc<BTreeMap<String, String>>;

/// One of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Statusz,
    Flagz,
}

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Text,
    /// An object in one of the [`VERSIONS`].
    Object(Form, &'static str),
}

/// What the pages show.
#[derive(Clone, Debug)]
pub(crate) struct ProcessStatus {
    /// When the server started.
    pub started: SystemTime,
    /// The flags.
    pub flags: FlagValues,
}

impl Page {
    /// Returns the page of a path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/statusz" => Some(Self::Statusz),
            "/flagz" => Some(Self::Flagz),
            _ => None,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Statusz => "Statusz",
            Self::Flagz => "Flagz",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Statusz => "statusz",
            Self::Flagz => "flagz",
        }
    }

    /// Answers a request for the page. As upstream, each method is answered.
    pub(crate) fn serve(
        self,
        client: &Client<'_>,
        status: &ProcessStatus,
    ) -> Result<Reply, Refusal> {
        let shape = self.shape(client.accept);
        let shape = shape.ok_or_else(|| ApiError::not_acceptable(&MEDIA_TYPES))?;
        let now = SystemTime::now();
        let (form, version) = match shape {
            Shape::Text => {
                let mut reply = text(StatusCode::OK, self.text(status, now));
                drop(reply.headers_mut().remove(X_CONTENT_TYPE_OPTIONS));
                return Ok(reply);
            }
            Shape::Object(form, version) => (form, version),
        };
        let object = json::to_vec(&self.object(status, version, now));
        let content_type = format!(
            "{};g={GROUP};v={version};as={}",
            form.content_type(),
            self.kind()
        );
        let content_type = HeaderValue::try_from(content_type).expect("made of ASCII");
        let mut reply = typed_object(client, StatusCode::OK, object.into(), form, content_type);
        if version != VERSIONS[0] {
            let warning = format!(
                "299 - \"This version of the {} endpoint is deprecated. Please use a newer version.\"",
                self.name()
            );
            let warning = HeaderValue::try_from(warning).expect("made of ASCII");
            drop(reply.headers_mut().insert(WARNING, warning));
        }
        Ok(reply)
    }

    /// Returns the first shape that a client accepts. Without a kind it accepts only text.
    fn shape(self, accept: &str) -> Option<Shape> {
        ranges(accept).iter().find_map(|range| {
            let (kind, group) = (range.param("as"), range.param("g"));
            if kind.is_empty() {
                return range.takes(MEDIA_TYPES[2]).then_some(Shape::Text);
            }
            let version = VERSIONS
                .into_iter()
                .find(|known| *known == range.param("v"))?;
            if kind != self.kind() || group != GROUP {
                return None;
            }
            let mut forms = [Form::Json, Form::Yaml].into_iter();
            let form = forms.find(|form| range.takes(form.content_type()))?;
            Some(Shape::Object(form, version))
        })
    }

    fn text(self, status: &ProcessStatus, now: SystemTime) -> String {
        let mut out = format!("\n{COMPONENT} {}\n{NOTICE}\n", self.name());
        let done = match self {
            Self::Statusz => {
                let up = status.up(now).as_secs();
                writeln!(
                    out,
                    "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\n\
                     Emulation version: {}\nPaths: {}",
                    unix_date(status.started),
                    up / 3600,
                    up / 60 % 60,
                    up % 60,
                    VERSION.go_version,
                    binary_version(),
                    emulation_version(),
                    PATHS.join(" "),
                )
            }
            Self::Flagz => status
                .flags
                .iter()
                .try_for_each(|(name, value)| writeln!(out, "{name}={value}")),
        };
        done.expect("a String takes all text");
        out
    }

    fn object(self, status: &ProcessStatus, version: &str, now: SystemTime) -> Value {
        let mut object = Value::object();
        object.set(&["kind"], self.kind());
        object.set(&["apiVersion"], format!("{GROUP}/{version}"));
        object.set(&["metadata", "name"], COMPONENT);
        match self {
            Self::Statusz => {
                let up = i64::try_from(status.up(now).as_secs()).unwrap_or(i64::MAX);
                object.set(&["startTime"], Timestamp::from(status.started).to_rfc3339());
                object.set(&["uptimeSeconds"], up);
                object.set(&["goVersion"], VERSION.go_version);
                object.set(&["binaryVersion"], binary_version());
                object.set(&["emulationVersion"], emulation_version());
                let paths = PATHS.into_iter().map(Value::string);
                object.set(&["paths"], paths.collect::<Vec<_>>());
            }
            Self::Flagz => {
                let mut flags = Map::new();
                for (name, value) in &*status.flags {
                    flags.insert(name.as_str(), Value::string(value.as_str()));
                }
                object.set(&["flags"], Value::Object(flags));
            }
        }
        object
    }
}

impl ProcessStatus {
    fn up(&self, now: SystemTime) -> Duration {
        now.duration_since(self.started).unwrap_or_default()
    }
}

/// Returns the version that is shown here: three numbers, as upstream.
fn binary_version() -> &'static str {
    let version = VERSION.git_version;
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split(['+', '-']).next().unwrap_or(version)
}

fn emulation_version() -> String {
    format!("{}.{}", VERSION.emulation_major, VERSION.emulation_minor)
}

/// Returns a time as the command `date` prints it.
fn unix_date(time: SystemTime) -> String {
    let text = httpdate::fmt_http_date(time);
    let words: Vec<&str> = text
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    match words.as_slice() {
        [weekday, day, month, year, clock, _] => {
            let day = day.trim_start_matches('0');
            format!("{weekday} {month} {day:>2} {clock} UTC {year}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> ProcessStatus {
        let flags = [("secure-port", "6443"), ("client-ca-file", "ca.crt")];
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned()));
        ProcessStatus {
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_694_685),
            flags: Arc::new(flags.into()),
        }
    }

    #[test]
    fn people_get_text_and_programs_what_they_name() {
        let page = Page::Statusz;
        let beta = Shape::Object(Form::Json, "v1beta1");
        for (accept, shape) in [
            ("", Some(Shape::Text)),
            ("*/*", Some(Shape::Text)),
            ("text/plain", Some(Shape::Text)),
            ("application/json", None),
            ("text/html", None),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                Some(beta),
            ),
            (
                "application/json;v=v1;g=config.k8s.io;as=Statusz,text/plain",
                Some(Shape::Text),
            ),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v1beta1;g=apps;as=Statusz", None),
        ] {
            assert_eq!(page.shape(accept), shape, "{accept}");
        }
        let yaml = "application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz";
        assert_eq!(
            page.shape(yaml),
            Some(Shape::Object(Form::Yaml, "v1alpha1"))
        );
    }

    #[test]
    fn texts_read_as_upstream_writes_them() {
        let status = status();
        let now = status.started + Duration::from_secs(2 * 3600 + 3 * 60 + 9);
        let text = Page::Statusz.text(&status, now);
        let begin =
            format!("\napiserver statusz\n{NOTICE}\n\nStarted: Thu Nov 26 12:04:45 UTC 2026\n");
        assert!(text.starts_with(&begin), "{text}");
        assert!(text.contains("\nUp: 2 hr 03 min 09 sec\n"), "{text}");
        assert!(
            text.contains("\nBinary version: 1.37.0\nEmulation version: 1.37\n"),
            "{text}"
        );
        let text = Page::Flagz.text(&status, now);
        let flags = "client-ca-file=ca.crt\nsecure-port=6443\n";
        assert_eq!(text, format!("\napiserver flagz\n{NOTICE}\n{flags}"));
    }

    #[test]
    fn days_of_one_digit_are_padded() {
        let first = SystemTime::UNIX_EPOCH;
        assert_eq!(unix_date(first), "Thu Jan  1 00:00:00 UTC 1970");
    }
}
