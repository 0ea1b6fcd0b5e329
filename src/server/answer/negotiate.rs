//! Media types: those that a client accepts, and the one that its answer has.

use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, HeaderValue};
use polyplane_apimachinery::schema::proto;
use polyplane_registry::answer::media_range::{MediaRange, ranges};
use polyplane_registry::request::parameters::{PRETTY, Query};

/// The form of an answer that the server itself makes; the registry has its own forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Yaml,
    Protobuf,
}

impl Form {
    /// Returns the media type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => proto::MEDIA_TYPE,
        }
    }
}

/// The media types in which errors, discovery and the version can be requested.
pub(crate) const FORMS: &[&str] = &["application/json", "application/yaml", proto::MEDIA_TYPE];

/// Returns the form that a client prefers among the available ones. Ranges that request another kind of
/// object or the version of a server are skipped.
pub(crate) fn form(accept: &str) -> Option<Form> {
    ranges(accept)
        .iter()
        .filter(|range| !range.has_any(&["as", "g", "v"]))
        .find_map(form_of)
}

/// Returns the form that a range accepts, whatever kind of object it requests.
pub(crate) fn form_of(range: &MediaRange<'_>) -> Option<Form> {
    let stream = range.param("stream");
    if range.has_any(&["sv"]) || !matches!(stream, "" | "watch") {
        return None;
    }
    let mut forms = [Form::Json, Form::Yaml, Form::Protobuf].into_iter();
    forms.find(|form| {
        // Nothing is streamed in YAML.
        let is_streamed = stream.is_empty() || *form != Form::Yaml;
        is_streamed && range.takes(form.content_type())
    })
}

/// Takes protobuf out of the Accept header of a watch whose way to the client passes on lines only.
pub(crate) fn drop_protobuf(headers: &mut http::HeaderMap) {
    if let Some(accept) = headers.get_mut(ACCEPT)
        && let Ok(text) = accept.to_str()
        && let Ok(kept) = HeaderValue::try_from(without_protobuf(text))
    {
        *accept = kept;
    }
}

/// Returns an Accept header without protobuf. If nothing else is accepted, the answer names a type that no watch has.
pub(crate) fn without_protobuf(accept: &str) -> String {
    let kept = accept.split(',').filter(|range| {
        let essence = range.split(';').next().unwrap_or("").trim();
        !essence.eq_ignore_ascii_case(proto::MEDIA_TYPE)
    });
    let kept: Vec<&str> = kept.collect();
    match kept.is_empty() {
        true => "application/octet-stream".to_owned(),
        false => kept.join(","),
    }
}

/// Returns whether a client takes objects in gzip. As upstream, which reads no qualities: a coding with one is not
/// gzip, nor is `*`.
pub(crate) fn takes_gzip(accept_encoding: Option<&HeaderValue>) -> bool {
    accept_encoding.is_some_and(|header| {
        let mut codings = header.as_bytes().split(|byte| *byte == b',');
        codings.any(|coding| coding.trim_ascii() == b"gzip")
    })
}

/// Returns whether a client takes OpenAPI documents in gzip. Upstream has another reader of the header for these,
/// which knows qualities and ignores case. Of several mentions, and of several parameters, the last one counts.
pub(crate) fn takes_gzip_of_documents(accept_encoding: Option<&HeaderValue>) -> bool {
    let Some(Ok(text)) = accept_encoding.map(HeaderValue::to_str) else {
        return false;
    };
    let mut quality = 0.0;
    for coding in text.split(',') {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or("");
        if !name.eq_ignore_ascii_case("gzip") {
            continue;
        }
        let given = parts.next_back().and_then(|part| part.strip_prefix("q="));
        if let Ok(read) = given.map_or(Ok(1.0), str::parse::<f64>) {
            quality = read;
        }
    }
    quality > 0.0
}

/// Returns whether a client takes metrics in gzip. Upstream has a third reader of the header for these: gzip must be
/// wanted more than no coding at all, for which `*` stands too, and what cannot be read ends its line.
pub(crate) fn takes_gzip_of_metrics(headers: &HeaderMap) -> bool {
    let (mut gzip, mut identity) = (0.0_f64, 0.0_f64);
    for line in headers.get_all(ACCEPT_ENCODING) {
        for coding in line.to_str().unwrap_or("").split(',') {
            let (name, parameter) = match coding.split_once(';') {
                Some((name, parameter)) => (name.trim(), Some(parameter.trim())),
                None => (coding.trim(), None),
            };
            let quality = match parameter.map(|text| text.strip_prefix("q=").map(str::parse::<f64>))
            {
                None => 1.0,
                Some(Some(Ok(quality))) => quality,
                Some(_) => break,
            };
            if matches!(name, "*" | "gzip") {
                gzip = gzip.max(quality);
            }
            if matches!(name, "*" | "identity") {
                identity = identity.max(quality);
            }
        }
    }
    gzip > identity
}

/// Returns true if a person reads the answer: the query requests it, or the client is one that
/// shows answers as they are, such as a browser.
pub(crate) fn wants_pretty(query: &Query, user_agent: &str) -> bool {
    PRETTY.read(query).unwrap_or_else(|| {
        let agents = ["curl", "Wget", "Mozilla/5.0"];
        agents.iter().any(|agent| user_agent.starts_with(agent))
    })
}

/// Returns true if the most preferred range has the parameter `pretty`.
pub(crate) fn accepts_pretty(accept: &str) -> bool {
    accept.contains("pretty=1")
        && ranges(accept)
            .first()
            .is_some_and(|range| range.param("pretty") == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_wanted_form_there_is_wins() {
        let cases = [
            ("", Some(Form::Json)),
            ("*/*", Some(Form::Json)),
            ("application/*", Some(Form::Json)),
            ("application/yaml", Some(Form::Yaml)),
            ("application/json;q=0.5, application/yaml", Some(Form::Yaml)),
            ("application/vnd.kubernetes.protobuf", Some(Form::Protobuf)),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some(Form::Protobuf),
            ),
            (
                "application/json,application/vnd.kubernetes.protobuf",
                Some(Form::Json),
            ),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Some(Form::Json),
            ),
            ("text/html", None),
            ("application/json;q=0", Some(Form::Json)),
            ("nonsense", None),
            ("*", Some(Form::Json)),
            ("*, application/yaml", Some(Form::Yaml)),
            ("APPLICATION/JSON", None),
            ("application/json/x", None),
            ("application/json;sv=v1", None),
            ("application/json;v=v1", None),
            ("application/json;as=", Some(Form::Json)),
            ("application/json;stream=watch", Some(Form::Json)),
            ("application/yaml;stream=watch", None),
            (
                "application/json;stream=all,application/yaml",
                Some(Form::Yaml),
            ),
        ];
        for (accept, expected) in cases {
            assert_eq!(form(accept), expected, "{accept}");
        }
    }

    #[test]
    fn a_watch_of_lines_is_never_protobuf() {
        let protobuf = "application/vnd.kubernetes.protobuf;stream=watch";
        for (accept, kept) in [
            ("application/json", "application/json"),
            ("", ""),
            (protobuf, "application/octet-stream"),
        ] {
            assert_eq!(without_protobuf(accept), kept);
        }
        let both = format!("{protobuf},application/json;q=0.5");
        assert_eq!(without_protobuf(&both), "application/json;q=0.5");
    }

    #[test]
    fn people_get_pretty_answers() {
        let query = |text| crate::request::route::parse_query(Some(text));
        assert!(wants_pretty(&query("pretty=true"), "kubectl"));
        assert!(wants_pretty(&query(""), "curl/8"));
        assert!(wants_pretty(&query("pretty"), "Mozilla/5.0 (X11)"));
        assert!(!wants_pretty(&query("pretty=0"), "curl/8"));
        assert!(!wants_pretty(&query("pretty=yes"), "curl/8"));
        assert!(!wants_pretty(&query(""), "Mozilla/4"));
    }

    #[test]
    fn metrics_are_in_gzip_for_whom_wants_it_most() {
        let cases: [(&[&'static str], bool); 12] = [
            (&["gzip"], true),
            (&["deflate, gzip;q=0.5"], true),
            (&["br", "gzip"], true),
            (&["*;q=0.1, gzip; q=0.5"], true),
            (&["gzip;q=0"], false),
            (&["gzip;q=x"], false),
            (&["br;level=1, gzip"], false),
            (&["GZIP"], false),
            (&["*"], false),
            (&["gzip, identity"], false),
            (&["deflate"], false),
            (&[], false),
        ];
        for (lines, expected) in cases {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
            }
            assert_eq!(takes_gzip_of_metrics(&headers), expected, "{lines:?}");
        }
    }

    #[test]
    fn gzip_is_read_as_upstream_reads_it() {
        for (text, of_objects, of_documents) in [
            ("gzip", true, true),
            ("gzip, deflate", true, true),
            ("br,  gzip ", true, true),
            (",,gzip", true, true),
            ("br, gzip;q=0.5", false, true),
            ("gzip;q=1", false, true),
            ("GZIP", false, true),
            ("gzip;q=0, br", false, false),
            ("gzip; q=0.000", false, false),
            ("gzip;q=-1", false, false),
            ("gzip;q=x", false, false),
            ("gzip, gzip;q=0", true, false),
            ("*", false, false),
            ("x-gzip", false, false),
            ("deflate", false, false),
            ("", false, false),
        ] {
            let value = HeaderValue::from_static(text);
            assert_eq!(takes_gzip(Some(&value)), of_objects, "{text}");
            let documents = takes_gzip_of_documents(Some(&value));
            assert_eq!(documents, of_documents, "{text}");
        }
        assert!(!takes_gzip(None) && !takes_gzip_of_documents(None));
    }
}
