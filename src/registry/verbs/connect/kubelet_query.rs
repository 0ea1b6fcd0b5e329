//! The options of logs and streams: what a client requests in a query, and the query that the kubelet
//! gets for it.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::strconv;
use polyplane_apimachinery::time::Timestamp;

use crate::kinds::feature_gates::{Features, LOG_OF_ONE_STREAM};
use crate::request::parameters::{
    COMMAND, FOLLOW, Flag, INSECURE_SKIP_TLS_VERIFY_BACKEND, Integer, LIMIT_BYTES, PORTS, PREVIOUS,
    Query, SINCE_SECONDS, SINCE_TIME, STDERR, STDIN, STDOUT, STREAM, TAIL_LINES, TIMESTAMPS, TTY,
};

/// The log of all streams of a container.
const ALL_STREAMS: &str = "All";
/// The streams that a log can be of. Upstream lists them in any order.
const LOG_STREAMS: [&str; 3] = [ALL_STREAMS, "Stderr", "Stdout"];

/// The checked options of a log.
pub(super) struct LogOptions {
    /// The query for the kubelet.
    pub query: String,
    /// False if the kubelet's certificate is not to be verified.
    pub is_verified: bool,
}

impl LogOptions {
    /// Reads the options of a pod's log.
    ///
    /// # Errors
    /// Returns 400 for a text that cannot be read, 422 for a value that is not allowed.
    pub fn read(query: &Query, pod: &str, features: &Features) -> Result<Self, ApiError> {
        let since = match SINCE_TIME.given(query) {
            None | Some("" | "null") => None,
            Some(text) => Some(
                Timestamp::parse(text).map_err(|error| ApiError::bad_request(error.to_string()))?,
            ),
        };
        let tail = TAIL_LINES.read(query)?;
        let limit = LIMIT_BYTES.read(query)?;
        let seconds = SINCE_SECONDS.read(query)?;
        let mut errors = Complaints::default();
        let mut refuse = |name: &str, value: Option<i64>, least: i64, why: &str| {
            if let Some(value) = value.filter(|value| *value < least) {
                errors.push(FieldError::invalid(&Path::new(name), value, why));
            }
        };
        let negative = "must be greater than or equal to 0";
        refuse("tailLines", tail, 0, negative);
        refuse("limitBytes", limit, 1, "must be greater than 0");
        if seconds.is_some() && since.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            errors.push(FieldError::forbidden(&Path::new(""), why));
        } else {
            refuse("sinceSeconds", seconds, 1, "must be greater than 0");
        }
        let stream = stream_of(query, tail, features, &mut errors);
        if !errors.is_empty() {
            return Err(ApiError::invalid(
                Qualified::new("", "PodLogOptions"),
                pod,
                &errors,
            ));
        }
        let mut out = Encoded::default();
        out.flag(&FOLLOW, query, "true");
        out.number(&LIMIT_BYTES, limit);
        out.flag(&PREVIOUS, query, "true");
        out.number(&SINCE_SECONDS, seconds);
        if let Some(since) = since {
            out.pair(SINCE_TIME.row().name, &since.to_rfc3339());
        }
        if let Some(stream) = stream {
            out.pair(STREAM.row().name, stream);
        }
        out.number(&TAIL_LINES, tail);
        out.flag(&TIMESTAMPS, query, "true");
        Ok(Self {
            query: out.0,
            is_verified: !INSECURE_SKIP_TLS_VERIFY_BACKEND
                .read(query)
                .unwrap_or(false),
        })
    }
}

/// Returns the stream that the kubelet is asked for: none unless the feature is on, which has `All` as the default.
fn stream_of<'q>(
    query: &'q Query,
    tail: Option<i64>,
    features: &Features,
    errors: &mut Complaints,
) -> Option<&'q str> {
    let (path, given) = (Path::new(STREAM.row().name), STREAM.given(query));
    if !features.enabled(LOG_OF_ONE_STREAM) {
        if given.is_some() {
            errors.push(FieldError::forbidden(&path, "may not be specified"));
        }
        return None;
    }
    let stream = given.unwrap_or(ALL_STREAMS);
    if !LOG_STREAMS.contains(&stream) {
        errors.push(FieldError::not_supported(&path, stream, &LOG_STREAMS));
    }
    if stream != ALL_STREAMS && tail.is_some() {
        let why = "`tailLines` and specific `stream` are mutually exclusive for now";
        errors.push(FieldError::forbidden(&Path::new(""), why));
    }
    Some(stream)
}

/// Returns the query for a stream to a container, by `exec` or `attach`. Only `exec` has a command.
pub(super) fn of_container(query: &Query, has_command: bool) -> String {
    let mut out = Encoded::default();
    if has_command {
        for word in COMMAND.read(query) {
            out.pair(COMMAND.row().name, word);
        }
    }
    for (flag, name) in [
        (&STDERR, "error"),
        (&STDIN, "input"),
        (&STDOUT, "output"),
        (&TTY, "tty"),
    ] {
        if flag.read(query) == Some(true) {
            out.pair(name, "1");
        }
    }
    out.0
}

/// Returns the query for ports of a pod.
///
/// # Errors
/// Returns 400 if a text is not the number of a port.
pub(super) fn of_ports(query: &Query) -> Result<String, ApiError> {
    let mut ports: Vec<u16> = Vec::new();
    for text in PORTS.read(query).flat_map(|texts| texts.split(',')) {
        let port = strconv::parse_uint16(text).map_err(|error| {
            ApiError::bad_request(format!("cannot convert to []int32: {error}"))
        })?;
        ports.push(port);
    }
    let mut out = Encoded::default();
    if !ports.is_empty() {
        let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
        out.pair("port", &ports.join(","));
    }
    Ok(out.0)
}

/// A query in the making. Its pairs are added in the order of their names, as Go writes them.
#[derive(Default)]
struct Encoded(String);

impl Encoded {
    fn pair(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b' ' => self.0.push('+'),
                b'-' | b'_' | b'.' | b'~' => self.0.push(char::from(byte)),
                _ if byte.is_ascii_alphanumeric() => self.0.push(char::from(byte)),
                _ => self.0.push_str(&format!("%{byte:02X}")),
            }
        }
    }

    fn flag(&mut self, flag: &Flag, query: &Query, text: &str) {
        if flag.read(query) == Some(true) {
            self.pair(flag.row().name, text);
        }
    }

    fn number(&mut self, row: &Integer, value: Option<i64>) {
        if let Some(value) = value {
            self.pair(row.row().name, &value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_kubelet_gets_the_options_in_its_own_words() {
        let asked = query(&[
            ("stdout", "true"),
            ("tty", "1"),
            ("stdin", "false"),
            ("command", "sh"),
            ("command", "-c"),
            ("command", "echo a&b=c ü"),
            ("container", "c"),
        ]);
        let expected = "command=sh&command=-c&command=echo+a%26b%3Dc+%C3%BC&output=1&tty=1";
        assert_eq!(of_container(&asked, true), expected);
        assert_eq!(of_container(&asked, false), "output=1&tty=1");
        assert_eq!(
            of_ports(&query(&[("ports", "80"), ("ports", "443")])).as_deref(),
            Ok("port=80%2C443")
        );
        for (text, fault) in [("x", "invalid syntax"), ("65536", "value out of range")] {
            let refused = of_ports(&query(&[("ports", text)])).map_err(|error| error.message);
            let message =
                format!("cannot convert to []int32: strconv.ParseUint: parsing {text:?}: {fault}");
            assert_eq!(refused, Err(message));
        }
        let log = query(&[
            ("follow", "1"),
            ("tailLines", "5"),
            ("sinceTime", "2026-01-02T03:04:05Z"),
        ]);
        let log = LogOptions::read(&log, "p", &Features::default()).expect("allowed");
        assert_eq!(
            log.query,
            "follow=true&sinceTime=2026-01-02T03%3A04%3A05Z&tailLines=5"
        );
        assert!(log.is_verified);
    }

    #[test]
    fn one_stream_of_a_log_is_refused_unless_its_feature_is_on() {
        let read = |pairs: &[(&str, &str)], features: &Features| {
            LogOptions::read(&query(pairs), "p", features)
                .map(|log| log.query)
                .map_err(|error| error.message)
        };
        let refused = |why: &str| Err(format!("PodLogOptions \"p\" is invalid: {why}"));
        let off = Features::default();
        for stream in ["Stdout", "All", ""] {
            let why = "stream: Forbidden: may not be specified";
            assert_eq!(read(&[("stream", stream)], &off), refused(why));
        }
        let gate = br#"[{"name":"PodLogsQuerySplitStreams","default":true,"stage":"ALPHA"}]"#;
        let on = Features::parse(gate, b"[]").expect("one gate");
        assert_eq!(read(&[], &on), Ok("stream=All".to_owned()));
        let one = [("stream", "Stdout"), ("timestamps", "true")];
        assert_eq!(
            read(&one, &on),
            Ok("stream=Stdout&timestamps=true".to_owned())
        );
        let why =
            r#"stream: Unsupported value: "Out": supported values: "All", "Stderr", "Stdout""#;
        assert_eq!(read(&[("stream", "Out")], &on), refused(why));
        let why = "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now";
        let both = read(&[("stream", "Stderr"), ("tailLines", "1")], &on);
        assert!(both.is_err_and(|message| message.ends_with(why)));
    }
}
