//! OpenAPI documents, derived from rows and schemas at the first request for them.
//!
//! Version 3 has an index and one document per group and version, each named by the hash of its
//! content, so that clients can cache it; version 2 is one document for all groups. Documents are
//! cached compressed, because they are large and nearly every client accepts gzip. The key of a
//! cached document is the content from which it is derived, so that planes share it. Hashes are also
//! cached apart from their documents, so that an index is made without documents that were dropped.

mod conditions;
mod custom;
mod custom_operations;
mod describe;
mod model;
mod node;
mod operations;
pub(crate) mod packed;
mod prose;
mod proto;
mod ranges;
mod write;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, EXPIRES, LAST_MODIFIED, LOCATION, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use polyplane_apimachinery::{Map, Value, json, schema};
use polyplane_descriptions::Descriptions;
use polyplane_registry::answer::media_range;
use polyplane_registry::{DocumentId, ServedGroup, ServedGroups, ServedVersion};

use crate::answer::body::{Coding, ResponseBody, SliceStream};
use crate::answer::inflated::Inflated;
use crate::answer::negotiate::takes_gzip_of_documents;
use crate::answer::respond::{Refusal, Reply, bare, text};
use crate::documents::openid::OpenIdDocument;
use crate::documents::paths::PathRequest;
use crate::documents::{DocumentCache, HeapSize, OPEN_API_HASHES_BYTES_MAX};
use crate::request::charge::charged;
use conditions::Verdict;
use node::{Members, Node};
use packed::{Document, Packer};
use ranges::Requested;

/// The definition of the answer to `/version`.
const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
/// The time for which a client may cache a document that is named by its hash: practically forever,
/// because another content has another hash.
const IMMUTABLE: Duration = Duration::from_secs(365 * 86_400);
/// The names of the documents that describe paths of no group.
const ROOTS: [&str; 3] = ["api", "apis", "version"];
const JSON: &str = "application/json";
/// The type of the index, although it is JSON: upstream's aggregator gives it none, so that Go derives this one.
const INDEX: &str = "text/plain; charset=utf-8";
/// The media type of version 2 as protobuf, and the older one by which clients request it.
const PROTOBUF_2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_2_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The same two of version 3.
const PROTOBUF_3: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
const PROTOBUF_3_ASKED: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// Bytes that a hash needs in its cache beside its text, most of them in the maps of the cache.
const HASH_ENTRY_BYTES: usize = 256;

/// The hash of a document, in hexadecimal.
struct DocumentHash(String);

impl HeapSize for DocumentHash {
    fn bytes(&self) -> usize {
        self.0.len() + HASH_ENTRY_BYTES
    }
}

/// The OpenAPI documents of all kinds that any plane serves.
pub(crate) struct OpenApiDocuments {
    cache: DocumentCache<Document>,
    /// The hashes of documents of groups and versions, also of those that were dropped from `cache`. The
    /// index needs one of each.
    hashes: DocumentCache<DocumentHash>,
}

impl OpenApiDocuments {
    /// Creates empty caches. `bytes_max` limits the documents.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            cache: DocumentCache::new(bytes_max),
            hashes: DocumentCache::new(OPEN_API_HASHES_BYTES_MAX),
        }
    }

    /// Returns how many documents were made.
    pub(crate) fn made(&self) -> u64 {
        self.cache.made()
    }
}

/// What a plane serves, as far as documents show it.
#[derive(Clone, Copy)]
pub(crate) struct Served<'t> {
    pub(crate) table: &'t ServedGroups,
    /// True if the plane issues tokens, so that it serves the OpenID documents too.
    pub(crate) issues_tokens: bool,
}

impl Served<'_> {
    fn open_id(self) -> &'static [OpenIdDocument] {
        match self.issues_tokens {
            true => &OpenIdDocument::ALL,
            false => &[],
        }
    }
}

/// The subject of a document of version 3.
#[derive(Clone, Copy)]
pub(crate) enum Part<'t> {
    /// A path that belongs to no group.
    Root(&'static str),
    /// The path of an OpenID document.
    OpenId(OpenIdDocument),
    /// The path of a group.
    Group(&'t ServedGroup),
    /// All paths of a group and version.
    Version(&'t ServedGroup, &'t ServedVersion),
}

impl<'t> Part<'t> {
    /// Returns all documents of version 3 but the index.
    pub(crate) fn all(served: Served<'t>) -> impl Iterator<Item = Self> {
        let groups = served.table.groups.iter().flat_map(|group| {
            let own = has_document(group).then_some(Part::Group(group));
            let versions = group.versions.iter();
            own.into_iter()
                .chain(versions.map(move |version| Part::Version(group, version)))
        });
        let open_id = served.open_id().iter().copied().map(Part::OpenId);
        let roots = ROOTS.into_iter().map(Part::Root);
        roots.chain(open_id).chain(groups)
    }

    /// Returns the last part of the document's path.
    pub(crate) fn name(self) -> String {
        match self {
            Part::Root(name) => name.to_owned(),
            Part::OpenId(document) => document.path().trim_start_matches('/').to_owned(),
            Part::Group(group) => format!("apis/{}", group.name),
            Part::Version(group, version) if group.name.is_empty() => {
                format!("api/{}", version.version)
            }
            Part::Version(group, version) => format!("apis/{}/{}", group.name, version.version),
        }
    }

    /// Returns the id of the content from which the document is derived.
    fn content(self, table: &ServedGroups) -> DocumentId {
        match self {
            Part::Root(_) | Part::OpenId(_) | Part::Group(_) => {
                DocumentId::of(&(self.name(), table.schemas.number()))
            }
            Part::Version(_, version) => DocumentId::of(&("v3", version.content)),
        }
    }

    fn make(self, table: &'t ServedGroups, descriptions: &'t Descriptions) -> Node<'t> {
        let schemas = &table.schemas;
        let (of, items, custom) = match self {
            Part::Root(name) => {
                let items = vec![operations::of_root(name)];
                (("", ""), items, Members::new())
            }
            Part::OpenId(document) => {
                let items = vec![operations::of_open_id(document)];
                (("", ""), items, Members::new())
            }
            Part::Group(group) => {
                let items = vec![operations::of_group(&group.name)];
                ((group.name.as_str(), ""), items, Members::new())
            }
            Part::Version(group, version) => {
                let items = operations::of_version(table, &group.name, version);
                let (group, name) = (group.name.as_str(), version.version.as_str());
                let document = schema::openapi::Document::V3 {
                    group,
                    version: name,
                };
                let custom = custom::definitions(version, document, descriptions);
                ((group, name), items, custom)
            }
        };
        write::version3(schemas, of, items, custom)
    }

    /// Returns the document as JSON.
    pub(crate) fn document(
        self,
        table: &ServedGroups,
        documents: &OpenApiDocuments,
    ) -> Arc<Document> {
        let id = self.content(table);
        documents.cache.get(id, || {
            let descriptions = Descriptions::shared();
            let made = Packer::json(self.make(table, &descriptions)).finish(JSON);
            let known = documents.hashes.get(id, || DocumentHash(made.hash.clone()));
            debug_assert_eq!(known.0, made.hash, "one content has two documents");
            made
        })
    }

    /// Returns the document as protobuf. It has the hash of the JSON, because the index names documents
    /// without their form.
    pub(crate) fn binary(
        self,
        table: &ServedGroups,
        documents: &OpenApiDocuments,
    ) -> Arc<Document> {
        let id = DocumentId::of(&("v3 as protobuf", self.content(table)));
        documents.cache.get(id, || {
            // First, because it may have to make the JSON.
            let hash = self.hash(table, documents);
            let descriptions = Descriptions::shared();
            let encoded = proto::version3(self.make(table, &descriptions));
            Packer::pieces(encoded).finish_as(PROTOBUF_3, hash)
        })
    }

    /// Returns the hash of the document. If it is not known, the document is made.
    fn hash(self, table: &ServedGroups, documents: &OpenApiDocuments) -> String {
        match documents.hashes.find(self.content(table)) {
            Some(known) => known.0.clone(),
            None => self.document(table, documents).hash.clone(),
        }
    }
}

/// Returns whether the path of a group is documented. Upstream documents those of built-in groups.
fn has_document(group: &ServedGroup) -> bool {
    !group.name.is_empty() && !group.versions.iter().all(custom::is_only)
}

/// Returns the index of version 3, which names each document by its hash.
pub(crate) fn index(served: Served<'_>, documents: &OpenApiDocuments) -> Arc<Document> {
    let table = served.table;
    let id = DocumentId::of(&("index", served.issues_tokens, table.content));
    documents.cache.get(id, || {
        // Held, so that they are unpacked once for all documents that have to be made.
        let _descriptions = Descriptions::shared();
        let mut paths = Map::new();
        for part in Part::all(served) {
            let (name, hash) = (part.name(), part.hash(table, documents));
            let url = format!("/openapi/v3/{name}?hash={hash}");
            paths.insert(name, json!({"serverRelativeURL": (url)}));
        }
        let index = json!({"paths": (Value::Object(paths))});
        Packer::json(Node::Value(index)).finish(INDEX)
    })
}

/// Returns the document of version 2 in one form.
fn whole(served: Served<'_>, documents: &OpenApiDocuments, form: Form) -> Arc<Document> {
    let of = (served.issues_tokens, served.table.content);
    let id = DocumentId::of(&("v2", form.media_types(), of));
    documents.cache.get(id, || {
        let descriptions = Descriptions::shared();
        let everything = everything(served, &descriptions);
        match form {
            Form::Protobuf2 => Packer::pieces(proto::version2(everything)).finish(PROTOBUF_2),
            Form::Json | Form::Protobuf3 => Packer::json(everything).finish(JSON),
        }
    })
}

/// Returns the document of version 2.
fn everything<'t>(served: Served<'t>, descriptions: &'t Descriptions) -> Node<'t> {
    let (table, mut custom) = (served.table, Members::new());
    let mut items: Vec<_> = ROOTS.map(operations::of_root).into();
    let open_id = served.open_id().iter().copied();
    items.extend(open_id.map(operations::of_open_id));
    for group in &table.groups {
        if has_document(group) {
            items.push(operations::of_group(&group.name));
        }
        for version in &group.versions {
            items.extend(operations::of_version(table, &group.name, version));
            let document = schema::openapi::Document::V2;
            custom.extend(custom::definitions(version, document, descriptions));
        }
    }
    write::version2(&table.schemas, items, custom)
}

/// Returns whether a path is that of OpenAPI documents.
pub(crate) fn is_path(path: &str) -> bool {
    let below = path.strip_prefix("/openapi");
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request below `/openapi`, as upstream whatever its method is.
pub(crate) fn serve(request: &PathRequest<'_>, served: Served<'_>) -> Result<Reply, Refusal> {
    let (table, documents) = (served.table, request.state.documents.open_api());
    let path = request.path.strip_prefix("/openapi").unwrap_or("");
    match path {
        "/v2" => Ok(match negotiated(request, &[Form::Json, Form::Protobuf2]) {
            Some(form) => document(request, &whole(served, documents, form)),
            None => unacceptable(),
        }),
        "/v3" => {
            // Upstream does not look at what the client accepts here, so only the encoding varies.
            let mut reply = document(request, &index(served, documents));
            let encoding = HeaderValue::from_static("Accept-Encoding");
            reply.headers_mut().insert(VARY, encoding);
            Ok(reply)
        }
        _ => {
            let name = path
                .strip_prefix("/v3/")
                .ok_or_else(Refusal::no_such_path)?;
            let Some(found) = Part::all(served).find(|part| part.name() == name) else {
                return Ok(bare(StatusCode::NOT_FOUND, ResponseBody::empty()));
            };
            Ok(match negotiated(request, &[Form::Json, Form::Protobuf3]) {
                Some(Form::Protobuf3) => part(request, &found.binary(table, documents)),
                Some(Form::Json | Form::Protobuf2) => {
                    part(request, &found.document(table, documents))
                }
                None => unacceptable(),
            })
        }
    }
}

/// The encoding of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    /// The messages of version 2.
    Protobuf2,
    /// The messages of version 3.
    Protobuf3,
}

impl Form {
    /// Returns the media types by which clients request this form; the first is that of the answer.
    fn media_types(self) -> &'static [&'static str] {
        match self {
            Self::Json => &[JSON],
            Self::Protobuf2 => &[PROTOBUF_2, PROTOBUF_2_ASKED],
            Self::Protobuf3 => &[PROTOBUF_3, PROTOBUF_3_ASKED],
        }
    }
}

/// Returns the form that the client prefers; `None` if it accepts none of them.
fn negotiated(request: &PathRequest<'_>, forms: &[Form]) -> Option<Form> {
    let ranges = media_range::ranges(request.client.accept);
    let wanted = ranges.iter().find_map(|range| {
        let takes = |form: &&Form| form.media_types().iter().any(|name| range.takes(name));
        forms.iter().find(takes)
    });
    wanted.copied()
}

/// Returns the reply to a client that accepts no form of a document. As upstream's, it has no body.
fn unacceptable() -> Reply {
    let mut reply = bare(StatusCode::NOT_ACCEPTABLE, ResponseBody::empty());
    vary(reply.headers_mut());
    reply
}

/// Says which headers of a request decide on the form of a document.
fn vary(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.append(VARY, HeaderValue::from_static("Accept"));
}

/// Returns the reply with a document, whether the client requested it by name alone or by name and
/// hash.
fn part(request: &PathRequest<'_>, found: &Document) -> Reply {
    let asked = request.query.iter().find(|(key, _)| key == "hash");
    match asked
        .map(|(_, hash)| hash.as_str())
        .filter(|hash| !hash.is_empty())
    {
        None => document(request, found),
        Some(hash) if hash == found.hash => {
            let mut reply = document(request, found);
            if reply.status() == StatusCode::RANGE_NOT_SATISFIABLE {
                return reply;
            }
            let headers = reply.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
            headers.insert(EXPIRES, http_date(SystemTime::now() + IMMUTABLE));
            reply
        }
        Some(_) => {
            let mut reply = bare(StatusCode::MOVED_PERMANENTLY, ResponseBody::empty());
            let url = format!("{}?hash={}", request.path, found.hash);
            if let Ok(url) = HeaderValue::try_from(url) {
                reply.headers_mut().insert(LOCATION, url);
            }
            let headers = reply.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(found.media_type));
            headers.insert(ETAG, found.etag());
            vary(headers);
            reply
        }
    }
}

fn document(request: &PathRequest<'_>, document: &Document) -> Reply {
    let etag = document.etag();
    let tag = etag.to_str().unwrap_or("");
    let (method, headers, length) = (request.method, request.headers, document.length);
    let verdict = conditions::check(method, headers, tag, document.made);
    let range = || conditions::range(method, headers, tag, document.made);
    let mut reply = match verdict {
        Verdict::NotModified => bare(StatusCode::NOT_MODIFIED, ResponseBody::empty()),
        Verdict::Failed => bare(StatusCode::PRECONDITION_FAILED, ResponseBody::empty()),
        Verdict::Send => match range().map(|text| ranges::requested(text, length)) {
            None | Some(Requested::Whole) => whole_document(request, document),
            Some(Requested::Part(part)) => part_of_document(request, document, part),
            Some(Requested::Outside) => {
                let mut reply = unsatisfiable("invalid range: failed to overlap\n");
                let shown = format!("bytes */{length}");
                reply.headers_mut().insert(CONTENT_RANGE, ascii(&shown));
                return reply;
            }
            Some(Requested::Malformed) => return unsatisfiable("invalid range\n"),
        },
    };
    let headers = reply.headers_mut();
    let mut put = |name: HeaderName, value| headers.insert(name, value);
    if verdict != Verdict::NotModified {
        // The client has these with the document.
        put(CONTENT_TYPE, HeaderValue::from_static(document.media_type));
        put(LAST_MODIFIED, http_date(document.made));
    }
    put(ETAG, etag);
    vary(headers);
    reply
}

/// Returns the reply with all of a document, compressed if the client takes that. Parts are always plain, so only
/// the plain document says that it has them: with those, the client could not go on with what is compressed.
fn whole_document(request: &PathRequest<'_>, document: &Document) -> Reply {
    if takes_gzip_of_documents(request.headers.get(ACCEPT_ENCODING)) {
        let mut reply = bare(StatusCode::OK, ResponseBody::whole(document.gzip.clone()));
        let gzip = HeaderValue::from_static("gzip");
        reply.headers_mut().insert(CONTENT_ENCODING, gzip);
        return reply;
    }
    let body = unpacked(request, document, 0..document.length);
    let mut reply = bare(StatusCode::OK, body);
    let bytes = HeaderValue::from_static("bytes");
    reply.headers_mut().insert(ACCEPT_RANGES, bytes);
    reply
}

fn part_of_document(request: &PathRequest<'_>, document: &Document, part: Range<usize>) -> Reply {
    let (last, length) = (part.end.saturating_sub(1), document.length);
    let shown = format!("bytes {}-{last}/{length}", part.start);
    let body = unpacked(request, document, part);
    let mut reply = bare(StatusCode::PARTIAL_CONTENT, body);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_RANGE, ascii(&shown));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    reply
}

/// Returns the reply to a client that names no part of the document. As upstream's, it does not say which document
/// there is.
fn unsatisfiable(why: &'static str) -> Reply {
    let mut reply = text(StatusCode::RANGE_NOT_SATISFIABLE, why);
    vary(reply.headers_mut());
    reply
}

/// Returns the body with a part of a document for a client that takes it plain: unpacked as it is read, each piece in
/// a turn of the plane.
fn unpacked(request: &PathRequest<'_>, document: &Document, part: Range<usize>) -> ResponseBody {
    let (state, length) = (request.state, part.len());
    let mut stream: SliceStream = Box::pin(Inflated::new(document.gzip.clone(), part));
    if let Some(meter) = request.meter {
        let plain = (stream, Coding::Identity);
        stream = charged(plain, state, meter, request.seat.cloned());
    }
    let limits = state.answer_read_limits();
    ResponseBody::sized(stream, length as u64, limits, &state.abandoned_answers)
}

/// Returns a time as headers write it: `Fri, 20 Nov 2026 20:00:00 GMT`.
fn http_date(time: SystemTime) -> HeaderValue {
    ascii(&httpdate::fmt_http_date(time))
}

fn ascii(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).expect("dates and numbers are ASCII")
}

#[cfg(test)]
mod tests;
