//! Discovery documents in the legacy and the aggregated form, derived from the rows of a kind
//! table.
//!
//! The part for a group and version is made once per content ([`VersionPart`]); the documents of a
//! whole table are assembled from these parts.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest;
use bytes::Bytes;
use http::HeaderValue;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::schema::Schemas;
use polyplane_registry::kinds::table::{Resource, Subresource, api_version};
use polyplane_registry::{Scope, ServedGroup, ServedGroups, ServedVersion};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::documents::HeapSize;

/// The kind of the aggregated document.
pub(crate) const AGGREGATED: &str = "APIGroupDiscoveryList";

/// The versions of the aggregated document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AggregatedVersion {
    V2,
    /// Aggregated discovery under its former version, for older clients.
    V2Beta1,
}

impl AggregatedVersion {
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "v2" => Some(Self::V2),
            "v2beta1" => Some(Self::V2Beta1),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V2Beta1 => "v2beta1",
        }
    }
}

/// The part of each document that describes one group and version.
pub(crate) struct VersionPart {
    resources: Bytes,
    aggregated: Box<RawValue>,
}

impl VersionPart {
    pub(crate) fn new(group: &ServedGroup, version: &ServedVersion) -> Self {
        let rows = || version.resources.iter().map(|row| &**row);
        Self {
            resources: resource_list(&group.name, &version.version, rows()),
            aggregated: aggregated_version(&version.version, rows()),
        }
    }

    /// Replaces the documents by what `count` returns for them.
    pub(crate) fn count(&mut self, count: impl Fn(Bytes) -> Bytes) {
        self.resources = count(std::mem::take(&mut self.resources));
    }

    /// Returns the answer to `/apis/<group>/<version>` or `/api/<version>`.
    pub(crate) fn resources(&self) -> Bytes {
        self.resources.clone()
    }
}

impl HeapSize for VersionPart {
    fn bytes(&self) -> usize {
        self.resources.len() + self.aggregated.get().len()
    }
}

/// The documents of one kind table.
pub(crate) struct Discovery {
    versions: Bytes,
    groups: Bytes,
    by_group: HashMap<Str, Bytes>,
    aggregated: [[Aggregated; 2]; 2],
}

/// The aggregated document of everything below one path, in both forms.
pub(crate) struct Aggregated {
    json: Bytes,
    /// Made at the first request for it. Few clients request it.
    protobuf: OnceLock<Option<Bytes>>,
    etag: HeaderValue,
}

impl Aggregated {
    fn new(json: Bytes) -> Self {
        Self {
            etag: etag(&json),
            protobuf: OnceLock::new(),
            json,
        }
    }

    pub(crate) fn json(&self) -> Bytes {
        self.json.clone()
    }

    /// Returns the document as protobuf; `None` if `schemas` do not have its types.
    pub(crate) fn protobuf(&self, schemas: &Schemas) -> Option<Bytes> {
        let make = || schemas.proto_of_json(&self.json).map(Bytes::from);
        self.protobuf.get_or_init(make).clone()
    }

    /// Returns the entity tag, which is that of the JSON: the two forms share it, as upstream's do.
    pub(crate) fn etag(&self) -> HeaderValue {
        self.etag.clone()
    }
}

impl HeapSize for Discovery {
    fn bytes(&self) -> usize {
        let groups = self.by_group.values().map(Bytes::len).sum::<usize>();
        let aggregated = self.aggregated.iter().flatten();
        // The protobuf may be made later and is shorter than the JSON.
        let aggregated = aggregated
            .map(|document| document.json.len() * 2)
            .sum::<usize>();
        self.versions.len() + self.groups.len() + groups + aggregated
    }
}

impl Discovery {
    /// Replaces the documents about all kinds by what `count` returns for them.
    pub(crate) fn count(&mut self, count: impl Fn(Bytes) -> Bytes) {
        let aggregated = self.aggregated.iter_mut().flatten();
        let all = aggregated.map(|document| &mut document.json);
        for document in all.chain([&mut self.groups]) {
            *document = count(std::mem::take(document));
        }
    }

    /// Derives the documents. `address` is the host and port of the server; `part` returns the part
    /// for a group and version.
    pub(crate) fn new(
        table: &ServedGroups,
        address: &str,
        part: impl Fn(&ServedGroup, &ServedVersion) -> Arc<VersionPart>,
    ) -> Self {
        let mut by_group = HashMap::new();
        let mut parts: Vec<(&ServedGroup, Vec<Arc<VersionPart>>)> = Vec::new();
        for group in &table.groups {
            if !group.name.is_empty() {
                let document = to_json(&ApiGroup::standing_alone(group));
                by_group.insert(group.name.clone(), document.into());
            }
            let versions = group.versions.iter().map(|version| part(group, version));
            parts.push((group, versions.collect()));
        }
        let listed = table.listed().into_iter();
        let of_apis = listed.filter(|group| !group.name.is_empty());
        let of_api = || table.groups.iter().filter(|group| group.name.is_empty());
        let aggregated = |version| {
            [true, false].map(|core| {
                let parts = parts
                    .iter()
                    .filter(|(group, _)| group.name.is_empty() == core);
                aggregated(parts, version)
            })
        };
        Self {
            versions: versions(of_api(), address),
            groups: to_json(&ApiGroupList {
                kind: "APIGroupList",
                api_version: "v1",
                groups: of_apis.map(ApiGroup::of).collect(),
            })
            .into(),
            by_group,
            aggregated: [
                aggregated(AggregatedVersion::V2),
                aggregated(AggregatedVersion::V2Beta1),
            ],
        }
    }

    /// Returns the answer to `/api`.
    pub(crate) fn versions(&self) -> Bytes {
        self.versions.clone()
    }

    /// Returns the answer to `/apis`.
    pub(crate) fn groups(&self) -> Bytes {
        self.groups.clone()
    }

    /// Returns the answer to `/apis/<group>`.
    pub(crate) fn group(&self, name: &str) -> Option<Bytes> {
        self.by_group.get(name).cloned()
    }

    /// Returns the aggregated document of everything below `/api` or `/apis`.
    pub(crate) fn aggregated(&self, prefix: &str, version: AggregatedVersion) -> &Aggregated {
        let by_prefix = match version {
            AggregatedVersion::V2 => &self.aggregated[0],
            AggregatedVersion::V2Beta1 => &self.aggregated[1],
        };
        &by_prefix[usize::from(prefix != "api")]
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiVersions<'a> {
    kind: &'static str,
    versions: Vec<&'a str>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    server_addresses: [ServerAddress<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress<'a> {
    #[serde(rename = "clientCIDR")]
    client_cidr: &'static str,
    server_address: &'a str,
}

fn versions<'a>(core: impl Iterator<Item = &'a ServedGroup>, address: &str) -> Bytes {
    let names = core.flat_map(|group| group.versions.iter().map(|version| &*version.version));
    to_json(&ApiVersions {
        kind: "APIVersions",
        versions: names.collect(),
        server_addresses: [ServerAddress {
            client_cidr: "0.0.0.0/0",
            server_address: address,
        }],
    })
    .into()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroupList<'a> {
    kind: &'static str,
    api_version: &'static str,
    groups: Vec<ApiGroup<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroup<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    name: &'a str,
    versions: Vec<VersionName<'a>>,
    preferred_version: Option<VersionName<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionName<'a> {
    group_version: Str,
    version: &'a str,
}

impl<'a> ApiGroup<'a> {
    fn of(group: &'a ServedGroup) -> Self {
        let names = || {
            group.versions.iter().map(|version| VersionName {
                group_version: api_version(&group.name, &version.version),
                version: &version.version,
            })
        };
        Self {
            kind: None,
            api_version: None,
            name: &group.name,
            versions: names().collect(),
            preferred_version: names().next(),
        }
    }

    fn standing_alone(group: &'a ServedGroup) -> Self {
        Self {
            kind: Some("APIGroup"),
            api_version: Some("v1"),
            ..Self::of(group)
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResourceList<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    group_version: Str,
    resources: Vec<ApiResource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource<'a> {
    name: Str,
    singular_name: &'a str,
    namespaced: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    kind: &'a str,
    verbs: &'a [Str],
    #[serde(skip_serializing_if = "<[Str]>::is_empty")]
    short_names: &'a [Str],
    #[serde(skip_serializing_if = "<[Str]>::is_empty")]
    categories: &'a [Str],
    #[serde(skip_serializing_if = "str::is_empty")]
    storage_version_hash: &'a str,
}

fn resource_list<'a>(
    group: &str,
    version: &str,
    rows: impl Iterator<Item = &'a Resource>,
) -> Bytes {
    let mut resources = Vec::new();
    for row in rows {
        let mut own: Vec<_> = row
            .subresources
            .iter()
            .map(|sub| ApiResource::below(row, sub))
            .collect();
        if row.custom.is_none() {
            own.sort_by(|a, b| a.name.cmp(&b.name));
        }
        resources.push((&row.name, ApiResource::of(row), own));
    }
    resources.sort_by_key(|(name, ..)| *name);
    let resources = resources.into_iter();
    let resources = resources.flat_map(|(_, whole, own)| std::iter::once(whole).chain(own));
    let resources = resources.collect();
    to_json(&ApiResourceList {
        kind: "APIResourceList",
        api_version: (!group.is_empty()).then_some("v1"),
        group_version: api_version(group, version),
        resources,
    })
    .into()
}

impl<'a> ApiResource<'a> {
    fn of(row: &'a Resource) -> Self {
        Self {
            name: row.name.clone(),
            singular_name: &row.singular,
            namespaced: row.scope == Scope::Namespaced,
            group: "",
            version: "",
            kind: &row.kind,
            verbs: row.discovered_verbs(),
            short_names: &row.short_names,
            categories: &row.categories,
            storage_version_hash: &row.storage_version_hash,
        }
    }

    fn below(row: &'a Resource, sub: &'a Subresource) -> Self {
        let (group, version) = payload_of(row, sub);
        Self {
            name: format!("{}/{}", row.name, sub.name).into(),
            singular_name: "",
            group,
            version,
            kind: &sub.kind,
            verbs: &sub.verbs,
            short_names: &[],
            categories: &[],
            storage_version_hash: "",
            ..Self::of(row)
        }
    }
}

/// Returns group and version of a subresource's payload if they differ from those of its resource.
fn payload_of<'a>(row: &Resource, sub: &'a Subresource) -> (&'a str, &'a str) {
    if sub.group == row.group && sub.version == row.version {
        ("", "")
    } else {
        (&sub.group, &sub.version)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupDiscoveryList<'a> {
    kind: &'static str,
    api_version: String,
    metadata: Empty,
    items: Vec<GroupDiscovery<'a>>,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct GroupDiscovery<'a> {
    metadata: GroupMetadata<'a>,
    versions: Vec<&'a RawValue>,
}

#[derive(Serialize)]
struct GroupMetadata<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

#[derive(Serialize)]
struct VersionDiscovery<'a> {
    version: &'a str,
    resources: Vec<ResourceDiscovery<'a>>,
    freshness: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery<'a> {
    resource: &'a str,
    response_kind: ResponseKind<'a>,
    scope: &'static str,
    singular_resource: &'a str,
    verbs: &'a [Str],
    #[serde(skip_serializing_if = "<[Str]>::is_empty")]
    short_names: &'a [Str],
    #[serde(skip_serializing_if = "<[Str]>::is_empty")]
    categories: &'a [Str],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<SubresourceDiscovery<'a>>,
}

#[derive(Serialize)]
struct ResponseKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SubresourceDiscovery<'a> {
    subresource: &'a str,
    response_kind: ResponseKind<'a>,
    verbs: &'a [Str],
}

impl<'a> ResourceDiscovery<'a> {
    fn of(row: &'a Resource) -> Self {
        // Of kinds that objects define, upstream names group and version too.
        let is_custom = row.custom.is_some();
        let subresources = row.subresources.iter().map(|sub| {
            let (group, version) = match is_custom {
                true => (sub.group.as_str(), sub.version.as_str()),
                false => payload_of(row, sub),
            };
            SubresourceDiscovery {
                subresource: &sub.name,
                response_kind: ResponseKind {
                    group,
                    version,
                    kind: &sub.kind,
                },
                verbs: &sub.verbs,
            }
        });
        let (group, version) = match is_custom {
            true => (row.group.as_str(), row.version.as_str()),
            false => ("", ""),
        };
        Self {
            resource: &row.name,
            response_kind: ResponseKind {
                group,
                version,
                kind: &row.kind,
            },
            scope: match row.scope {
                Scope::Namespaced => "Namespaced",
                Scope::Cluster => "Cluster",
            },
            singular_resource: &row.singular,
            verbs: row.discovered_verbs(),
            short_names: &row.short_names,
            categories: &row.categories,
            subresources: subresources.collect(),
        }
    }
}

/// Returns the part of the aggregated documents that describes one version.
fn aggregated_version<'a>(
    version: &'a str,
    rows: impl Iterator<Item = &'a Resource>,
) -> Box<RawValue> {
    let mut resources: Vec<_> = rows.map(ResourceDiscovery::of).collect();
    resources.sort_by(|a, b| a.resource.cmp(b.resource));
    let part = VersionDiscovery {
        version,
        resources,
        freshness: "Current",
    };
    to_raw_value(&part).expect("documents are made of text and numbers")
}

fn aggregated<'a>(
    groups: impl Iterator<Item = &'a (&'a ServedGroup, Vec<Arc<VersionPart>>)>,
    version: AggregatedVersion,
) -> Aggregated {
    let items = groups.map(|(group, parts)| GroupDiscovery {
        metadata: GroupMetadata { name: &group.name },
        versions: parts.iter().map(|part| &*part.aggregated).collect(),
    });
    let document = to_json(&GroupDiscoveryList {
        kind: AGGREGATED,
        api_version: format!("apidiscovery.k8s.io/{}", version.name()),
        metadata: Empty {},
        items: items.collect(),
    });
    Aggregated::new(document.into())
}

/// Returns the SHA-512 in upper-case hexadecimal, as upstream tags documents.
pub(crate) fn hash(document: &[u8]) -> String {
    hexadecimal(&digest::digest(&digest::SHA512, document))
}

/// Returns a digest in upper-case hexadecimal.
pub(crate) fn hexadecimal(digest: &digest::Digest) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(128);
    for byte in digest.as_ref() {
        write!(text, "{byte:02X}").expect("a String takes all text");
    }
    text
}

fn etag(document: &[u8]) -> HeaderValue {
    HeaderValue::try_from(format!("\"{}\"", hash(document))).expect("hexadecimal is ASCII")
}
/// Returns the JSON of a document that consists of text and numbers only.
pub(crate) fn to_json(document: &impl Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec(document).expect("documents are made of text and numbers");
    json.push(b'\n');
    json
}
