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
pub(crate) mod making;
mod model;
mod node;
mod operations;
pub(crate) mod packed;
mod prose;
mod proto;
mod ranges;
mod reply;
mod write;

use std::sync::Arc;

use http::header::VARY;
use http::{HeaderValue, StatusCode};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Map, Value, json, schema};
use polyplane_descriptions::Descriptions;
use polyplane_fairness::PlaneMeter;
use polyplane_plane::Share;
use polyplane_registry::answer::media_range;
use polyplane_registry::{DocumentId, ServedGroup, ServedGroups, ServedVersion};

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Refusal, Reply, bare};
use crate::backend::PlaneApi;
use crate::documents::openid::OpenIdDocument;
use crate::documents::paths::PathRequest;
use crate::documents::{DocumentCache, HeapSize, OPEN_API_HASHES_BYTES_MAX};
use making::{Held, Making, MakingTurns, Sources};
use node::{Members, Node};
use packed::{Document, Packer};
use reply::{document, part, unacceptable};

/// The definition of the answer to `/version`.
const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
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
    turns: MakingTurns,
}

impl OpenApiDocuments {
    /// Creates empty caches. `bytes_max` limits the documents.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            cache: DocumentCache::new(bytes_max),
            hashes: DocumentCache::new(OPEN_API_HASHES_BYTES_MAX),
            turns: MakingTurns::new(),
        }
    }

    /// Drops the documents of kinds that no plane has any more, because their definitions have changed or their planes
    /// sleep. That also happens when other documents are made.
    pub(super) fn drop_outdated(&self) {
        self.cache.drop_outdated();
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
    fn sources(self) -> Sources {
        Sources::of(self.table.groups.iter().flat_map(|group| &group.versions))
    }

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

    fn sources(self) -> Sources {
        match self {
            Part::Root(_) | Part::OpenId(_) | Part::Group(_) => Sources::default(),
            Part::Version(_, version) => Sources::of([version]),
        }
    }

    /// Returns the id of the document as protobuf.
    fn binary_content(self, table: &ServedGroups) -> DocumentId {
        DocumentId::of(&("v3 as protobuf", self.content(table)))
    }

    /// Returns the document as JSON.
    pub(crate) fn document(
        self,
        table: &ServedGroups,
        making: Making<'_>,
    ) -> Result<Arc<Document>, ApiError> {
        let (id, hashes) = (self.content(table), &making.documents.hashes);
        making.document(
            id,
            || self.sources(),
            |held| {
                let descriptions = Descriptions::shared();
                let made = Packer::json(self.make(table, &descriptions)).finish(JSON, held);
                let known = hashes.get(id, || DocumentHash(made.hash.clone()));
                debug_assert_eq!(known.0, made.hash, "one content has two documents");
                made
            },
        )
    }

    /// Returns the document as protobuf. It has the hash of the JSON, because the index names documents
    /// without their form.
    pub(crate) fn binary(
        self,
        table: &ServedGroups,
        making: Making<'_>,
    ) -> Result<Arc<Document>, ApiError> {
        let id = self.binary_content(table);
        if let Some(found) = making.documents.cache.find(id) {
            return Ok(found);
        }
        // First, because it may have to make the JSON.
        let hash = self.hash(table, making)?;
        making.document(
            id,
            || self.sources(),
            |mut held| {
                let descriptions = Descriptions::shared();
                let encoded = proto::version3(self.make(table, &descriptions));
                Packer::pieces(encoded, &mut held).finish_as(PROTOBUF_3, hash, held)
            },
        )
    }

    /// Returns the hash of the document. If it is not known, the document is made.
    fn hash(self, table: &ServedGroups, making: Making<'_>) -> Result<String, ApiError> {
        match making.documents.hashes.find(self.content(table)) {
            Some(known) => Ok(known.0.clone()),
            None => Ok(self.document(table, making)?.hash.clone()),
        }
    }
}

/// Returns whether the path of a group is documented. Upstream documents those of built-in groups.
fn has_document(group: &ServedGroup) -> bool {
    !group.name.is_empty() && !group.versions.iter().all(custom::is_only)
}

/// Returns the index of version 3, which names each document by its hash. One that is too long to be made has none.
pub(crate) fn index(served: Served<'_>, making: Making<'_>) -> Result<Arc<Document>, ApiError> {
    let (table, id) = (served.table, Wanted::Index.id(served));
    if let Some(found) = making.documents.cache.find(id) {
        return Ok(found);
    }
    // Held, so that they are unpacked once for all documents that have to be made.
    let _descriptions = Descriptions::shared();
    let mut paths = Map::new();
    for part in Part::all(served) {
        let name = part.name();
        let mut url = format!("/openapi/v3/{name}");
        if !making.is_too_long(&part.sources()) {
            url.push_str("?hash=");
            url.push_str(&part.hash(table, making)?);
        }
        paths.insert(name, json!({"serverRelativeURL": (url)}));
    }
    let index = json!({"paths": (Value::Object(paths))});
    let make = || Packer::json(Node::Value(index)).finish(INDEX, Held::default());
    Ok(making.documents.cache.get(id, make))
}

/// Returns the document of version 2 in one form.
fn whole(served: Served<'_>, making: Making<'_>, form: Form) -> Result<Arc<Document>, ApiError> {
    making.document(
        Wanted::Whole(form).id(served),
        || served.sources(),
        |mut held| {
            let descriptions = Descriptions::shared();
            let everything = everything(served, &descriptions);
            match form {
                Form::Protobuf2 => {
                    let encoded = proto::version2(everything);
                    Packer::pieces(encoded, &mut held).finish(PROTOBUF_2, held)
                }
                Form::Json | Form::Protobuf3 => Packer::json(everything).finish(JSON, held),
            }
        },
    )
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

/// A document that a client has requested.
#[derive(Clone, Copy)]
enum Wanted<'t> {
    Whole(Form),
    Index,
    Part(Part<'t>, Form),
}

impl Wanted<'_> {
    fn id(self, served: Served<'_>) -> DocumentId {
        let (table, issues_tokens) = (served.table, served.issues_tokens);
        match self {
            Self::Whole(form) => {
                DocumentId::of(&("v2", form.media_types(), (issues_tokens, table.content)))
            }
            Self::Index => DocumentId::of(&("index", issues_tokens, table.content)),
            Self::Part(part, Form::Protobuf3) => part.binary_content(table),
            Self::Part(part, Form::Json | Form::Protobuf2) => part.content(table),
        }
    }

    /// Returns what may have to be made for the document.
    fn sources(self, served: Served<'_>) -> Sources {
        match self {
            Self::Whole(_) | Self::Index => served.sources(),
            Self::Part(part, _) => part.sources(),
        }
    }

    fn make(self, served: Served<'_>, making: Making<'_>) -> Result<Arc<Document>, ApiError> {
        match self {
            Self::Whole(form) => whole(served, making, form),
            Self::Index => index(served, making),
            Self::Part(part, Form::Protobuf3) => part.binary(served.table, making),
            Self::Part(part, Form::Json | Form::Protobuf2) => part.document(served.table, making),
        }
    }
}

/// Answers a request below `/openapi`, as upstream whatever its method is. `plane` gives the memory for the document, and
/// `meter` is that of the plane.
pub(crate) async fn serve(
    request: &PathRequest<'_>,
    served: Served<'_>,
    plane: &dyn PlaneApi,
    meter: &Arc<PlaneMeter>,
) -> Result<Reply, Refusal> {
    let documents = request.state.documents.open_api();
    let path = request.path.strip_prefix("/openapi").unwrap_or("");
    let wanted = match path {
        "/v2" => negotiated(request, &[Form::Json, Form::Protobuf2]).map(Wanted::Whole),
        // Upstream does not look at what the client accepts here.
        "/v3" => Some(Wanted::Index),
        _ => {
            let name = path.strip_prefix("/v3/");
            let name = name.ok_or_else(Refusal::no_such_path)?;
            let Some(part) = Part::all(served).find(|part| part.name() == name) else {
                return Ok(bare(StatusCode::NOT_FOUND, ResponseBody::empty()));
            };
            let form = negotiated(request, &[Form::Json, Form::Protobuf3]);
            form.map(|form| Wanted::Part(part, form))
        }
    };
    let Some(wanted) = wanted else {
        return Ok(unacceptable());
    };
    let found = if let Some(found) = documents.cache.find(wanted.id(served)) {
        found
    } else {
        let sources = wanted.sources(served);
        let _turn = documents.turns.enter(meter, &sources).await;
        let making = Making {
            documents,
            take: &|bytes| plane.take_memory(Share::Answers, bytes),
            bytes_max: request.state.backend.memory().most_for_one(Share::Answers),
        };
        wanted.make(served, making)?
    };
    let found = &found;
    Ok(match wanted {
        Wanted::Whole(_) => document(request, found),
        Wanted::Part(..) => part(request, found),
        Wanted::Index => {
            // Its form is always the same, so only the encoding varies.
            let mut reply = document(request, found);
            let encoding = HeaderValue::from_static("Accept-Encoding");
            reply.headers_mut().insert(VARY, encoding);
            reply
        }
    })
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

#[cfg(test)]
mod tests;
