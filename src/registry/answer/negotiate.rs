//! The choice of the representation of an answer, and of the syntax of a request body.
//!
//! Owns media types and their parameters for resource requests. HTTP headers are passed in as text.
//! The choice follows upstream: of the ranges of an Accept header, in their order, the first that the
//! server can serve wins.

use crate::answer::media_range::{self, MediaRange};
use crate::request::call::Call;
use crate::request::options::APPLY;
use crate::request::{ResourceRequest, Verb};
use polyplane_apimachinery::schema::proto;
use polyplane_apimachinery::status::ApiError;

/// The media types of patches that built-in kinds accept.
pub const PATCH_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    APPLY,
];

/// The media types of patches that custom kinds accept: no schema of theirs has the merge keys of
/// strategic merge patches.
pub const CUSTOM_PATCH_TYPES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    APPLY,
];

/// The syntax in which values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON on one line; the code that writes the response indents it if a person reads it.
    Json,
    /// YAML text.
    Yaml,
    /// Kubernetes' protobuf form.
    Protobuf,
}

/// The part of an object that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// The whole object.
    Whole,
    /// A table, in this version of `meta.k8s.io`.
    Table(MetaVersion),
    /// Only the metadata.
    Metadata(MetaVersion, Number),
}

/// The choice whether a client has requested the metadata of one object or of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// One object: `PartialObjectMetadata`.
    One,
    /// A list: `PartialObjectMetadataList`.
    Many,
}

/// The versions of `meta.k8s.io` that tables and partial objects come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaVersion {
    /// The version `v1`.
    V1,
    /// The version `v1beta1`.
    V1Beta1,
}

impl MetaVersion {
    /// Returns the `apiVersion`: `meta.k8s.io/v1` or its predecessor.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The negotiated representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Representation {
    /// The syntax.
    pub encoding: Encoding,
    /// The part of an object that is shown.
    pub shape: Shape,
}

impl Representation {
    /// Returns the Content-Type of an answer.
    pub const fn content_type(self) -> &'static str {
        match self.encoding {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => proto::MEDIA_TYPE,
        }
    }

    /// Returns the Content-Type of a watch.
    pub const fn stream_content_type(self) -> &'static str {
        match self.encoding {
            Encoding::Protobuf => STREAMED_PROTOBUF,
            Encoding::Json | Encoding::Yaml => self.content_type(),
        }
    }
}

/// The conversions that an endpoint offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversions {
    /// Tables and partial objects.
    Offered,
    /// Partial objects alone, because the answer is not a stored object, which would have columns.
    Partial,
}

/// The kinds of which upstream offers a table of the object, but not of its status.
const STATUS_WITHOUT_TABLE: [&str; 7] = [
    "apiservices.apiregistration.k8s.io",
    "compositepodgroups.scheduling.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "devicetaintrules.resource.k8s.io",
    "podgroups.scheduling.k8s.io",
    "resourceclaims.resource.k8s.io",
    "resourcepoolstatusrequests.resource.k8s.io",
];

/// Returns whether the path of a call offers tables. As upstream, only a scale and most statuses do of the
/// subresources; of any other, `kubectl get --subresource` gets the object and makes columns of its own.
fn has_table(call: &Call<'_>) -> bool {
    match call.subresource() {
        "" | "scale" => true,
        "status" => {
            let kind = call.row.qualified.as_str();
            call.row.custom.is_some() || !STATUS_WITHOUT_TABLE.contains(&kind)
        }
        _ => false,
    }
}

/// Chooses the representation of the answer to a call.
///
/// # Errors
/// Returns 406, which names the media types that are served.
pub fn output(call: &Call<'_>, conversions: Conversions) -> Result<Representation, ApiError> {
    let conversions = match has_table(call) {
        true => conversions,
        false => Conversions::Partial,
    };
    chosen(call, conversions).ok_or_else(|| ApiError::not_acceptable(&PRODUCED))
}

fn chosen(call: &Call<'_>, conversions: Conversions) -> Option<Representation> {
    let request = call.request;
    if request.accept.is_empty() {
        return Some(Representation {
            encoding: Encoding::Json,
            shape: Shape::Whole,
        });
    }
    for range in media_range::ranges(&request.accept) {
        for (media_type, encoding) in ENCODINGS {
            if !range.takes(media_type) {
                continue;
            }
            let shape = shape(&range, encoding, conversions);
            if let Some(shape) = shape.filter(|shape| has_form(call, encoding, *shape)) {
                return Some(Representation { encoding, shape });
            }
        }
    }
    None
}

/// Returns whether objects of the call's kind, in a shape, can be written in an encoding. Tables and
/// objects of custom kinds have no messages in protobuf.
fn has_form(call: &Call<'_>, encoding: Encoding, shape: Shape) -> bool {
    match (encoding, shape) {
        (Encoding::Json | Encoding::Yaml, _) | (_, Shape::Metadata(..)) => true,
        (Encoding::Protobuf, Shape::Table(_)) => false,
        (Encoding::Protobuf, Shape::Whole) => {
            let row = call.row;
            row.custom.is_none() && row.schemas.has_proto(row.definition)
        }
    }
}

/// Checks that a watch can be written in a representation. No watch is in YAML.
///
/// # Errors
/// Returns 406, which names the media types that are served.
pub fn streamed(chosen: Representation) -> Result<(), ApiError> {
    match chosen.encoding {
        Encoding::Yaml => Err(ApiError::not_acceptable(&[
            STREAMED_JSON,
            STREAMED_PROTOBUF,
        ])),
        Encoding::Json | Encoding::Protobuf => Ok(()),
    }
}

fn shape(range: &MediaRange<'_>, encoding: Encoding, conversions: Conversions) -> Option<Shape> {
    let is_served = match range.param("stream") {
        "" => true,
        // Also outside watches. No watch is in YAML.
        "watch" => encoding != Encoding::Yaml,
        _ => false,
    };
    if !is_served || !range.param("sv").is_empty() {
        return None;
    }
    if !range.has_any(&["as"]) {
        return (!range.has_any(&["g", "v"])).then_some(Shape::Whole);
    }
    let (kind, version) = (range.param("as"), range.param("v"));
    if range.param("g") != "meta.k8s.io" {
        return None;
    }
    let version = match version {
        "v1" => MetaVersion::V1,
        "v1beta1" => MetaVersion::V1Beta1,
        _ => return None,
    };
    match kind {
        "Table" if conversions == Conversions::Partial => None,
        "Table" => Some(Shape::Table(version)),
        "PartialObjectMetadata" => Some(Shape::Metadata(version, Number::One)),
        "PartialObjectMetadataList" => Some(Shape::Metadata(version, Number::Many)),
        _ => None,
    }
}

/// The media types in which an object can be requested.
pub const PRODUCED: [&str; 3] = ["application/json", "application/yaml", proto::MEDIA_TYPE];
/// The media types that the path of a collection names. It serves watches too.
const PRODUCED_BY_LISTS: [&str; 5] = [
    "application/json",
    "application/yaml",
    proto::MEDIA_TYPE,
    STREAMED_JSON,
    STREAMED_PROTOBUF,
];
/// The media types that the path of a log names. A log is text, but its client has to accept a form of objects
/// too, in which upstream could answer with an error.
const PRODUCED_BY_LOGS: [&str; 4] = [
    "text/plain",
    "application/json",
    "application/yaml",
    proto::MEDIA_TYPE,
];
/// The media types of watches.
const STREAMED_JSON: &str = "application/json;stream=watch";
const STREAMED_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// The encodings in the order in which a range that fits several chooses one.
const ENCODINGS: [(&str, Encoding); 3] = [
    ("application/json", Encoding::Json),
    ("application/yaml", Encoding::Yaml),
    (proto::MEDIA_TYPE, Encoding::Protobuf),
];

/// Compares the media types of a request with those of its path as plain text, before anything is
/// negotiated. Upstream's router does so too, and therefore does not accept `application/*`.
///
/// # Errors
/// Returns 415 for a patch of an unknown type, 406 if nothing accepted is produced.
pub fn routed(request: &ResourceRequest) -> Result<(), ApiError> {
    if request.verb == Verb::Patch {
        let media = request.content_type.as_deref().unwrap_or("");
        let media = media.split(';').next().unwrap_or("").trim();
        if !PATCH_TYPES.contains(&media) {
            return Err(ApiError::not_consumed());
        }
    }
    if request.verb == Verb::Connect {
        return Ok(());
    }
    let produced = produced(request.verb, request.subresource.as_deref());
    if produced_among(&request.accept, produced) {
        Ok(())
    } else {
        Err(ApiError::not_produced(produced))
    }
}

/// Returns the media types that a path names for a verb.
fn produced(verb: Verb, subresource: Option<&str>) -> &'static [&'static str] {
    match (verb, subresource) {
        (Verb::List | Verb::Watch, _) => &PRODUCED_BY_LISTS,
        (Verb::Get, Some("log")) => &PRODUCED_BY_LOGS,
        _ => &PRODUCED,
    }
}

/// Returns whether an Accept header names a media type of `produced`, or `*/*`. True for an empty
/// header.
pub fn produced_among(accept: &str, produced: &[&str]) -> bool {
    let mut named = media_types(accept);
    accept.is_empty() || named.any(|media| media == "*/*" || produced.contains(&media))
}

/// Returns whether the Content-Type header of a request that has no body names a media type of `consumed`. True
/// for an empty header. Upstream's router reads a list in it, as in an Accept header, but no `*/*`.
pub fn consumed_among(content_type: &str, consumed: &[&str]) -> bool {
    content_type.is_empty() || media_types(content_type).any(|media| consumed.contains(&media))
}

/// Returns the media types of a list, without their parameters.
fn media_types(list: &str) -> impl Iterator<Item = &str> {
    let entries = list.split(',');
    entries.map(|entry| entry.split(';').next().unwrap_or("").trim_matches(' '))
}

/// The syntax of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodySyntax {
    /// JSON text.
    Json,
    /// YAML text.
    Yaml,
    /// Kubernetes' protobuf format.
    Protobuf,
}

/// The media types of bodies that built-in kinds accept.
const BODY_TYPES: [&str; 3] = ["application/json", "application/yaml", proto::MEDIA_TYPE];

/// Returns the syntax of a body from its media type.
///
/// # Errors
/// Returns 415, which names the media types that are understood.
pub fn input(request: &ResourceRequest) -> Result<BodySyntax, ApiError> {
    let text = request.content_type.as_deref().unwrap_or("");
    let (media, parameters) = text.split_at(text.find(';').unwrap_or(text.len()));
    let media = media.trim();
    if !are_parameters(parameters) {
        Err(ApiError::unsupported_media_type(&BODY_TYPES))
    } else if text.is_empty() || media.eq_ignore_ascii_case("application/json") {
        Ok(BodySyntax::Json)
    } else if media.eq_ignore_ascii_case("application/yaml") {
        Ok(BodySyntax::Yaml)
    } else if media.eq_ignore_ascii_case(proto::MEDIA_TYPE) {
        Ok(BodySyntax::Protobuf)
    } else {
        Err(ApiError::unsupported_media_type(&BODY_TYPES))
    }
}

/// Returns whether a text is the parameters of a media type, as Go reads them: none twice with different
/// values, and perhaps a semicolon at the end.
fn are_parameters(text: &str) -> bool {
    let is_token =
        |letter: char| letter.is_ascii_graphic() && !r#"()<>@,;:\"/[]?="#.contains(letter);
    let mut known: Vec<(String, String)> = Vec::new();
    let mut rest = text.trim_start();
    while !matches!(rest.trim(), "" | ";") {
        let Some((name, value)) = rest.strip_prefix(';').and_then(|rest| rest.split_once('='))
        else {
            return false;
        };
        let name = name.trim_start().to_ascii_lowercase();
        let taken = match value.strip_prefix('"') {
            Some(quoted) => quoted_string(quoted),
            None => {
                let end = value
                    .find(|letter| !is_token(letter))
                    .unwrap_or(value.len());
                (end > 0).then(|| (value[..end].to_owned(), &value[end..]))
            }
        };
        let Some((value, after)) = taken else {
            return false;
        };
        let differs = |(other, has): &(String, String)| *other == name && *has != value;
        if name.is_empty() || !name.chars().all(is_token) || known.iter().any(differs) {
            return false;
        }
        known.push((name, value));
        rest = after.trim_start();
    }
    true
}

/// Reads a quoted string behind its first quote. Returns its value and what follows.
fn quoted_string(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            _ => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_media_type_are_read_as_go_reads_them() {
        for (parameters, good) in [
            ("", true),
            (";", true),
            ("; ;", false),
            ("; charset=utf-8", true),
            (";charset=\"a;b\\\"\" ; q=1;", true),
            (";a=1;A=1", true),
            (";a=1;a=2", false),
            (";x", false),
            (";=1", false),
            (";a=", false),
            (";a=\"", false),
            (";a=1 b=2", false),
        ] {
            assert_eq!(are_parameters(parameters), good, "{parameters}");
        }
    }

    #[test]
    fn a_path_compares_media_types_as_text() {
        for (accept, taken) in [
            ("", true),
            ("*/*", true),
            ("text/html, application/yaml;q=0.1", true),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                true,
            ),
            ("application/*", false),
            ("APPLICATION/JSON", false),
            ("text/html", false),
        ] {
            assert_eq!(produced_among(accept, &PRODUCED), taken, "{accept}");
        }
        for (verb, subresource, taken) in [
            (Verb::Get, Some("log"), true),
            (Verb::Get, Some("status"), false),
            (Verb::Get, None, false),
            (Verb::List, None, false),
        ] {
            let named = produced(verb, subresource);
            assert_eq!(produced_among("text/plain", named), taken, "{named:?}");
        }
        for (content_type, taken) in [
            ("", true),
            ("application/json", true),
            ("application/yaml; charset=utf-8", true),
            ("text/plain, application/json", true),
            ("application/x-www-form-urlencoded", false),
            ("APPLICATION/JSON", false),
            ("*/*", false),
            (";", false),
        ] {
            let found = consumed_among(content_type, &PRODUCED);
            assert_eq!(found, taken, "{content_type}");
        }
    }
}
