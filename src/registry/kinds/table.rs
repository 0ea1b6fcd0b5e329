//! The table of kinds: one row per resource, looked up by group, version and resource.
//!
//! Owns the typed form of the generated rows and the [`Strategy`] each row points to. Knows no
//! single kind: the rows are data, and `batteries` passes in the strategies.
//!
//! Invariant: a table is immutable; a changed set of kinds is another table with a greater
//! [`KindTable::generation`].

mod indexed;
mod serving;

use crate::kinds::conversion::PreparedIn;
use crate::kinds::custom::CustomKind;
use crate::kinds::document_id::DocumentId;
use crate::kinds::feature_gates::{FeatureError, Features, GATES_IN_CODE, GatedFields};
use crate::kinds::generated_rows::{GroupRow, ResourceRow, Rows};
use crate::kinds::owned_fields::{OwnedFields, ResetFields};
use crate::kinds::served::ServedGroups;
use crate::strategy::Strategy;
use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_plane::{ContentId, Prefix};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The number that the next kind gets.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// The choice whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// They live in a namespace.
    Namespaced,
    /// They are cluster-scoped.
    Cluster,
}

/// A group with its versions, most preferred first.
#[derive(Debug)]
pub struct Group {
    /// The group's name; empty for the core group.
    pub name: Str,
    /// The position among the groups: greater ones come first.
    pub priority: i64,
    /// Its versions in discovery order.
    pub versions: Vec<GroupVersion>,
}

/// A version of a group and the resources it serves.
#[derive(Debug)]
pub struct GroupVersion {
    /// The version's name.
    pub version: Str,
    /// The position among the versions of the group: greater ones come first.
    pub priority: i64,
    /// Indexes into [`KindTable::resources`], in discovery order.
    pub resources: Vec<usize>,
    /// The identity of everything that documents say about the version.
    pub content: DocumentId,
}

/// A subresource of a resource.
#[derive(Debug, Clone, Default, Hash, Deserialize)]
pub struct Subresource {
    /// The last segment of the subresource's path.
    pub name: Str,
    /// The API group of the payload.
    #[serde(default)]
    pub group: Str,
    /// The version of the payload.
    #[serde(default)]
    pub version: Str,
    /// The kind of the payload.
    pub kind: Str,
    /// The verbs, sorted.
    #[serde(default)]
    pub verbs: Vec<Str>,
    /// Schema name of the payload; empty if upstream publishes none.
    #[serde(default)]
    pub definition: Str,
    /// The fields that a write through the subresource cannot change.
    #[serde(default, rename = "resetFields")]
    pub reset_fields: ResetFields,
}

/// A column of the kind's table.
#[derive(Debug, Clone, Hash, Deserialize)]
pub struct Column {
    /// The heading.
    pub name: Str,
    /// OpenAPI type of the cells.
    #[serde(rename = "type")]
    pub kind: Str,
    /// OpenAPI format; `name` marks the column that identifies a row.
    #[serde(default)]
    pub format: Str,
    /// What the column shows, for people. Empty for built-in kinds.
    #[serde(default)]
    pub description: Str,
    /// The priority: 0 is always shown, greater values only in wide output.
    #[serde(default)]
    pub priority: i64,
}

/// The group, resource and version under which objects of a kind are stored.
#[derive(Debug, Clone, Hash, Deserialize)]
pub struct StorageRow {
    /// The group part of the key.
    #[serde(default)]
    pub group: Str,
    /// The resource part of the key.
    pub resource: Str,
    /// The version in which the body is written.
    pub version: Str,
    /// The prefix that upstream uses for the resource in the keys of its store, which some texts
    /// show.
    #[serde(default, rename = "etcdPrefix")]
    pub upstream_prefix: Str,
}

/// The answers of upstream's strategy object for a kind.
#[derive(Debug, Clone, Default, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rules {
    /// True if a PUT to an absent name creates the object.
    pub create_on_update: bool,
    /// True if a PUT without resourceVersion overwrites.
    pub unconditional_update: bool,
    /// True if the kind has a status that only its subresource writes.
    pub has_status: bool,
    /// True if a create sets `metadata.generation` to 1.
    pub generation: bool,
    /// The default treatment of dependents if the client does not choose one: Background, Orphan,
    /// Unsupported…
    #[serde(rename = "defaultGCPolicy")]
    pub default_gc_policy: Str,
    /// True if deletion has a grace period.
    pub graceful_delete: bool,
    /// True if a deletion answers with the object instead of a Status.
    #[serde(rename = "returnDeletedObject")]
    pub returns_deleted: bool,
    /// True if upstream checks the kind by declarations too, because equal complaints are then
    /// merged.
    pub declarative_validation: bool,
    /// The fields that a write of the object itself cannot change.
    pub reset_fields: ResetFields,
}

/// One served resource: a row of the generated data with its schema and behaviour.
#[derive(Clone, Debug)]
pub struct Resource {
    /// A number that no other kind in this process has had.
    pub number: u32,
    /// The API group; empty for core.
    pub group: Str,
    /// Version.
    pub version: Str,
    /// The plural name, which is the path segment.
    pub name: Str,
    /// Singular name.
    pub singular: Str,
    /// The kind.
    pub kind: Str,
    /// The kind of its lists.
    pub list_kind: Str,
    /// The scope of its objects.
    pub scope: Scope,
    /// kubectl's short names.
    pub short_names: Vec<Str>,
    /// Categories such as `all`.
    pub categories: Vec<Str>,
    /// The verbs as discovery names them.
    pub verbs: Vec<Str>,
    /// The hash that discovery publishes.
    pub storage_version_hash: Str,
    /// The schemas that `definition` and `stored_definition` belong to, so that a reference to a
    /// kind keeps all of it.
    pub schemas: Arc<Schemas>,
    /// Schema of an object.
    pub definition: DefId,
    /// The place and version in which its objects are stored.
    pub storage: StorageRow,
    /// True if its objects are not among those of the plane: an
    /// [`ExternalObjects`](crate::ExternalObjects) reads them.
    pub external: bool,
    /// The schema of the stored form; it differs from `definition` if the versions differ in shape.
    pub stored_definition: DefId,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// The fields that writes may own.
    pub owned_fields: Arc<OwnedFields>,
    /// Table columns.
    pub columns: Vec<Column>,
    /// The answers of upstream's strategy object.
    pub rules: Rules,
    /// The feature gates.
    pub features: Arc<Features>,
    /// The fields of the stored form that belong to features which are off.
    pub gated_fields: Option<Arc<GatedFields>>,
    /// Paths that field selectors may name.
    pub selectable_fields: Vec<Str>,
    /// The rule for names of new objects.
    pub name_rule: NameRule,
    /// The warning for every client of the kind; `None` if it is not deprecated.
    pub deprecation: Option<Str>,
    /// The feature gate without which the kind is not served.
    pub gate: Option<Str>,
    /// The id of the view that an object of the plane has defined; `None` for a kind of the base.
    pub view: Option<ContentId>,
    /// The schema of a kind that an object of the plane has defined.
    pub custom: Option<CustomKind>,
    /// The behaviour that data cannot express.
    pub strategy: Arc<dyn Strategy>,
    /// The text before a stored body in an answer: `{"kind":"Pod","apiVersion":"v1",`.
    pub prefix: Bytes,
    /// The API version: `group/version`, or the version alone for core.
    pub api_version: Str,
    /// The name of the resource in errors: `deployments.apps`.
    pub qualified: Str,
    /// The first bytes of every key of this resource, with the closing `/`.
    pub key_prefix: Bytes,
}

impl Resource {
    /// Returns true if discovery lists `verb`.
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Returns the verbs that discovery lists: fewer than there are if the definition of the kind is
    /// being deleted.
    pub fn discovered_verbs(&self) -> &[Str] {
        match &self.custom {
            Some(custom) => &custom.discovered_verbs,
            None => &self.verbs,
        }
    }

    /// Returns the error for a verb that a path of the kind does not have. Upstream's server of custom
    /// kinds names the verb: that of a subresource, or none for a method that it does not know. Where
    /// there is no subresource it carries out all others: a POST with a name creates, a HEAD reads.
    pub fn without_verb(&self, verb: &str) -> ApiError {
        match self.custom {
            Some(_) => {
                ApiError::method_not_supported(Qualified::new(&self.group, &self.name), verb)
            }
            None => ApiError::generic(405, "", Qualified::default(), "", ""),
        }
    }

    /// Returns the subresource `name`.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|row| row.name == name)
    }

    /// Returns true if objects of this row are stored in another shape than they are served.
    pub fn converts(&self) -> bool {
        self.definition != self.stored_definition
    }

    /// Returns the schema of the version that objects are prepared and validated in.
    pub fn prepared_definition(&self) -> DefId {
        match self.strategy.prepared_in() {
            PreparedIn::Storage => self.stored_definition,
            PreparedIn::Request => self.definition,
        }
    }

    /// Returns true if the items of a list carry kind and apiVersion, which is so for kinds that
    /// upstream would serve as custom resources.
    pub fn items_name_kind(&self) -> bool {
        self.custom.is_some() || self.group.ends_with("polyplane.dev")
    }

    /// Returns true if a deletion answers with the object instead of a Status.
    pub fn returns_deleted(&self) -> bool {
        self.rules.returns_deleted || self.strategy.returns_deleted()
    }

    /// Returns the prefix of the keys of all objects of the kind.
    pub fn stored_prefix(&self) -> Prefix {
        Prefix::resource(&self.storage.group, &self.storage.resource)
    }

    /// Returns true if the objects exist only during a request (reviews, bindings).
    pub fn is_virtual(&self) -> bool {
        !self.allows("get") && !self.allows("list")
    }
}

/// The reason why rows could not become a table. Rows are compiled in or checked when a kind is
/// added, so this is a defect of the data, not of a request.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The text does not have the form of the rows.
    #[error("the rows of kinds cannot be read")]
    Rows(#[source] serde_json::Error),
    /// A row names a schema that does not exist.
    #[error("{resource} names the unknown schema {definition}")]
    Definition {
        /// The resource.
        resource: String,
        /// The schema that it names.
        definition: String,
    },
    /// The data does not match the feature gates.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// No battery names a strategy for a generated row.
    #[error(
        "{resource} of {group:?}, {version} has no strategy; name the kind in the battery of its group"
    )]
    Strategy {
        /// The row's API group.
        group: String,
        /// The row's version.
        version: String,
        /// The row's resource.
        resource: String,
    },
}

/// Returns the behaviour of the resource of a group and version; `None` if no battery names one.
/// There is no default, because a kind that a new release of upstream adds would then be served
/// without its validation.
pub type StrategyOf = dyn Fn(&str, &str, &str) -> Option<Arc<dyn Strategy>>;

/// Every kind that a plane serves.
#[derive(Debug)]
pub struct KindTable {
    groups: Vec<Group>,
    resources: Vec<Arc<Resource>>,
    schemas: Arc<Schemas>,
    features: Arc<Features>,
    generation: u64,
    content: DocumentId,
    by_name: HashMap<(Str, Str, Str), usize>,
    by_storage: HashMap<(Str, Str), usize>,
    /// The kinds as documents show them, made when they are first needed.
    pub(super) served: OnceLock<ServedGroups>,
}

impl KindTable {
    /// Builds a table of `rows` (the generated `rows.json` and others of the same form, which may add
    /// versions to the groups of those before). `strategy_of` returns the behaviour of each row.
    ///
    /// # Errors
    /// Returns a [`TableError`] if the data is inconsistent.
    pub fn build(
        rows: &[&[u8]],
        schemas: Arc<Schemas>,
        features: Arc<Features>,
        strategy_of: &StrategyOf,
        generation: u64,
    ) -> Result<Self, TableError> {
        for gate in GATES_IN_CODE {
            features.known(gate, "a verb")?;
        }
        for (definition, gate) in schemas.gates() {
            features.known(&gate, definition)?;
        }
        let mut table = Self {
            groups: Vec::new(),
            resources: Vec::new(),
            schemas,
            features,
            generation,
            content: DocumentId::of(&()),
            by_name: HashMap::new(),
            by_storage: HashMap::new(),
            served: OnceLock::new(),
        };
        for text in rows {
            let rows: Rows = serde_json::from_slice(text).map_err(TableError::Rows)?;
            for group in rows.groups {
                table.add_group(group, strategy_of)?;
            }
        }
        table.order();
        table.index();
        table.content = content(&table.groups);
        Ok(table)
    }

    fn add_group(&mut self, group: GroupRow, strategy_of: &StrategyOf) -> Result<(), TableError> {
        let mut versions = Vec::new();
        for version in group.versions {
            let content = DocumentId::of(&(&group.name, &version, self.schemas.number()));
            let mut indexes = Vec::new();
            for row in version.resources {
                let strategy =
                    strategy_of(&group.name, &version.version, &row.name).ok_or_else(|| {
                        TableError::Strategy {
                            group: group.name.to_string(),
                            version: version.version.to_string(),
                            resource: row.name.to_string(),
                        }
                    })?;
                indexes.push(self.resources.len());
                let resource = self.resource(&group.name, &version.version, row, strategy)?;
                self.resources.push(Arc::new(resource));
            }
            versions.push(GroupVersion {
                version: version.version,
                priority: version.priority,
                resources: indexes,
                content,
            });
        }
        let mut known = self.groups.iter_mut();
        match known.find(|known| known.name == group.name) {
            Some(known) => known.versions.extend(versions),
            None => self.groups.push(Group {
                name: group.name,
                priority: group.priority,
                versions,
            }),
        }
        Ok(())
    }

    fn resource(
        &self,
        group: &Str,
        version: &Str,
        row: ResourceRow,
        strategy: Arc<dyn Strategy>,
    ) -> Result<Resource, TableError> {
        let unknown = || TableError::Definition {
            resource: row.name.to_string(),
            definition: row.definition.to_string(),
        };
        let definition = self.schemas.find(&row.definition).ok_or_else(unknown)?;
        let scope = row.scope();
        let owned_fields = Arc::new(OwnedFields::of(&row));
        let storage = row.storage.unwrap_or_else(|| StorageRow {
            group: group.clone(),
            resource: row.name.clone(),
            version: version.clone(),
            upstream_prefix: row.name.clone(),
        });
        let features = &self.features;
        let gated_fields = features.gated(&storage.group, &storage.resource).cloned();
        let api_version = api_version(group, version);
        let prefix = object_prefix(&row.kind, &api_version);
        let key_prefix = format!("{}/{}/", storage.group, storage.resource);
        Ok(Resource {
            number: next_number(),
            qualified: if group.is_empty() {
                row.name.clone()
            } else {
                format!("{}.{group}", row.name).into()
            },
            group: group.clone(),
            version: version.clone(),
            list_kind: if row.list_kind.is_empty() {
                format!("{}List", row.kind).into()
            } else {
                row.list_kind
            },
            name: row.name,
            singular: row.singular,
            kind: row.kind,
            scope,
            short_names: row.short_names,
            categories: row.categories,
            verbs: row.verbs,
            storage_version_hash: row.storage_version_hash,
            schemas: Arc::clone(&self.schemas),
            definition,
            stored_definition: definition,
            storage,
            external: row.external,
            subresources: row.subresources,
            owned_fields,
            columns: row.columns,
            rules: row.strategy,
            features: Arc::clone(features),
            gated_fields,
            selectable_fields: row.selectable_fields,
            name_rule: row.name_rule.read(),
            deprecation: row.deprecation,
            gate: row.gate,
            view: None,
            custom: None,
            strategy,
            prefix: prefix.into(),
            api_version,
            key_prefix: key_prefix.into(),
        })
    }

    /// Returns the identity of everything that documents say about all kinds.
    pub fn content(&self) -> DocumentId {
        self.content
    }

    /// Returns the groups in discovery order; the core group is the one with an empty name.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns all rows.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// Returns the schemas that the rows refer to.
    pub fn schemas(&self) -> &Arc<Schemas> {
        &self.schemas
    }

    /// Returns the table's generation, which is greater for each changed set of kinds.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the row of a group, version and plural name.
    pub fn resolve(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        let key = (Str::from(group), Str::from(version), Str::from(resource));
        self.by_name.get(&key).map(|at| &self.resources[*at])
    }

    /// Returns the row whose served form is the stored one, of a storage group and resource.
    pub fn stored(&self, group: &str, resource: &str) -> Option<&Arc<Resource>> {
        let key = (Str::from(group), Str::from(resource));
        self.by_storage.get(&key).map(|at| &self.resources[*at])
    }

    /// Returns one row for each resource that the plane stores.
    pub fn stored_resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter().enumerate().filter_map(|(at, row)| {
            let key = (row.storage.group.clone(), row.storage.resource.clone());
            let stored = !row.is_virtual() && !row.external;
            (self.by_storage.get(&key) == Some(&at) && stored).then_some(row)
        })
    }

    /// Returns whether a group has a resource in any version.
    pub fn serves(&self, group: &str, resource: &str) -> bool {
        // Most custom kinds have a group of their own, so the group is searched first.
        self.group(group).is_some_and(|group| {
            let mut rows = group.versions.iter().flat_map(|version| &version.resources);
            rows.any(|at| self.resources[*at].name == resource)
        })
    }

    /// Returns whether there is a version of a group.
    pub fn has_version(&self, group: &str, version: &str) -> bool {
        let mut versions = self
            .group(group)
            .into_iter()
            .flat_map(|group| &group.versions);
        versions.any(|known| known.version == version)
    }

    /// Returns the versions of a group, most preferred first.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// Returns the identity of everything that documents say about groups.
fn content(groups: &[Group]) -> DocumentId {
    let groups = groups.iter().map(|group| {
        let versions = group.versions.iter();
        let versions = versions.map(|version| (&version.version, version.content));
        (&group.name, versions.collect::<Vec<_>>())
    });
    DocumentId::of(&groups.collect::<Vec<_>>())
}

/// Returns the text before the members of an object.
fn object_prefix(kind: &str, api_version: &str) -> String {
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",")
}

/// Returns a [`Resource::number`] for another kind.
pub fn next_number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Returns `group/version`, or the version alone for the core group.
pub fn api_version(group: &str, version: &str) -> Str {
    if group.is_empty() {
        version.into()
    } else {
        format!("{group}/{version}").into()
    }
}
