//! The rows of a plane's definitions.

use crate::definition::{self, Definition, Version};
use crate::strategy::CustomObject;
use crate::table::Columns;
use crate::units::{Unit, Units, open_schema};
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_managedfields::{FieldSet, Filter, PathElement};
use polyplane_plane::{ByContent, ContentId, Derivation, Flags, Key, Overlay, Prefix, Row, Source};
use polyplane_registry::kinds::custom::{ConversionStrategy, CustomKind, CustomSchema};
use polyplane_registry::kinds::owned_fields::OwnedFields;
use polyplane_registry::kinds::served::version_order;
use polyplane_registry::kinds::table::{Rules, StorageRow, Subresource, api_version, next_number};
use polyplane_registry::{Defined, Features, Resource, Scope};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const VERBS: [&str; 8] = [
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
/// The verbs that discovery lists for a kind whose definition is being deleted.
const LAST_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// Derives the kinds that the definitions of planes define. One for all planes of a process.
#[derive(Debug)]
pub struct CustomKinds {
    schemas: Arc<Schemas>,
    /// The definition of objects with typed metadata, by which custom objects are written.
    object: DefId,
    metadata: DefId,
    features: Arc<Features>,
    overlays: ByContent<Overlay>,
    kinds: ByContent<Defined>,
    units: Units,
}

impl CustomKinds {
    /// Creates a derivation. `object` is the definition of objects whose metadata is typed and whose
    /// other members are kept, see [`Schemas::add_open`].
    ///
    /// # Panics
    /// Panics if the schemas have no metadata, which all built-in kinds have.
    pub fn new(schemas: Arc<Schemas>, object: DefId, features: Arc<Features>) -> Self {
        Self {
            metadata: metadata_of(&schemas),
            schemas,
            object,
            features,
            overlays: ByContent::default(),
            kinds: ByContent::default(),
            units: Units::default(),
        }
    }

    /// Returns how often a schema was compiled in this process. Planes with equal schemas share one
    /// compilation; one that was dropped is compiled again when it is needed.
    pub fn compilations(&self) -> u64 {
        self.units.compilations()
    }
}

impl Derivation for CustomKinds {
    fn covers(&self, key: &Key) -> bool {
        key.is_of(definition::GROUP, definition::RESOURCE)
    }

    fn row(&self, source: &Source<'_>) -> Option<Row> {
        let definition = Definition::read(&source.body.bytes())?;
        let units = definition.versions.iter();
        let units: Vec<Arc<Unit>> = units
            .map(|version| match version.schema.is_empty() {
                true => self.units.of(&open_schema()),
                false => self.units.of(&version.schema),
            })
            .collect();
        let view = view_id(&definition, &units);
        let terminating = source.flags.has(Flags::DELETING);
        let id = row_id(&definition, view, source.key, terminating);
        let kind = Kind {
            derivation: self,
            definition: &definition,
            units: &units,
            key: source.key,
            view,
            terminating,
        };
        Some(Row {
            resource: Prefix::resource(&definition.group, &definition.plural),
            view,
            id,
            content: self.kinds.share(id, || kind.defined()),
        })
    }

    fn overlays(&self) -> &ByContent<Overlay> {
        &self.overlays
    }
}

/// Returns the schema of metadata.
///
/// # Panics
/// Panics if there is none, which all built-in kinds have.
pub(crate) fn metadata_of(schemas: &Schemas) -> DefId {
    schemas.find(METADATA).expect("all kinds have metadata")
}

/// Returns the id of what readers of the kind see.
fn view_id(definition: &Definition, units: &[Arc<Unit>]) -> ContentId {
    let flag = |flag: bool| if flag { &b"1"[..] } else { &b"0"[..] };
    let names = &definition.names;
    let head = [
        flag(definition.established),
        flag(definition.scope == Scope::Namespaced),
        flag(definition.conversion == ConversionStrategy::Webhook),
        names.kind.as_bytes(),
        names.list_kind.as_bytes(),
    ];
    let versions = definition.versions.iter().zip(units);
    let versions = versions.flat_map(|(version, unit)| {
        [
            version.name.as_bytes(),
            flag(version.served),
            flag(version.storage),
            unit.id_bytes(),
            &version.rest,
        ]
    });
    ContentId::of(head.into_iter().chain(versions))
}

/// Returns the id of everything in the row.
fn row_id(definition: &Definition, view: ContentId, key: &Key, terminating: bool) -> ContentId {
    let names = &definition.names;
    let lists = [&names.short_names, &names.categories];
    let lists = lists.map(|list| list.join("\n"));
    let deprecations = definition.versions.iter();
    let deprecations = deprecations.map(|version| match &version.deprecation {
        None => "-",
        Some(text) => text.as_str(),
    });
    let deprecations = deprecations.collect::<Vec<_>>().join("\n");
    ContentId::of([
        view.as_bytes(),
        key.as_bytes(),
        names.singular.as_bytes(),
        lists[0].as_bytes(),
        lists[1].as_bytes(),
        deprecations.as_bytes(),
        if terminating { b"1" } else { b"0" },
    ])
}

/// What the rows of all versions have in common, made once for all.
struct Common<'a> {
    /// The schemas by version.
    schemas: Arc<[(Str, Arc<dyn CustomSchema>)]>,
    /// The places of the numbers of replicas by API version.
    replicas: Arc<[(Str, Option<Str>)]>,
    /// What writes of the status may own, by API version.
    of_status: Arc<BTreeMap<Str, Filter>>,
    /// The most preferred version that is served and not deprecated.
    best: Option<&'a Version>,
}

impl<'a> Common<'a> {
    fn of(definition: &'a Definition, units: &[Arc<Unit>]) -> Self {
        let schemas = definition.versions.iter().zip(units);
        let schemas = schemas.map(|(version, unit)| {
            let schema: Arc<dyn CustomSchema> = Arc::clone(unit) as _;
            (version.name.clone(), schema)
        });
        let replicas = definition.versions.iter().map(|version| {
            let scale = version.scale.as_ref();
            let api_version = api_version(&definition.group, &version.name);
            (api_version, scale.map(|scale| scale.spec_replicas.clone()))
        });
        let with_status = definition.versions.iter();
        let with_status =
            with_status.filter(|version| version.has_status && (version.served || version.storage));
        let filter = Filter::Exclude(fields(&["metadata", "spec"]));
        let of_status = with_status.map(|version| {
            let name = api_version(&definition.group, &version.name);
            (name, filter.clone())
        });
        let versions = definition.versions.iter();
        let good = versions.filter(|version| version.served && version.deprecation.is_none());
        Self {
            schemas: schemas.collect(),
            replicas: replicas.collect(),
            of_status: Arc::new(of_status.collect()),
            best: good.min_by(|one, other| version_order(&one.name, &other.name)),
        }
    }
}

/// One definition on its way to rows.
struct Kind<'a> {
    derivation: &'a CustomKinds,
    definition: &'a Definition,
    units: &'a [Arc<Unit>],
    key: &'a Key,
    view: ContentId,
    terminating: bool,
}

impl Kind<'_> {
    fn defined(&self) -> Defined {
        let definition = self.definition;
        let Some(storage) = definition.storage().filter(|_| definition.established) else {
            return Defined::default();
        };
        let common = Common::of(definition, self.units);
        let all = || definition.versions.iter().zip(self.units);
        let row = |(version, unit): (&Version, &Arc<Unit>)| {
            Arc::new(self.resource(version, unit, storage, &common))
        };
        let served = all().filter(|(version, _)| version.served);
        let mut versions: Vec<Arc<Resource>> = served.map(row).collect();
        versions.sort_by(|a, b| version_order(&a.version, &b.version));
        let stored = all().find(|(version, _)| version.storage && versions.is_empty());
        let unserved = stored.map(row);
        Defined { versions, unserved }
    }

    fn resource(
        &self,
        version: &Version,
        unit: &Arc<Unit>,
        storage: &Version,
        common: &Common<'_>,
    ) -> Resource {
        let (definition, derivation) = (self.definition, self.derivation);
        let (group, names) = (&definition.group, &definition.names);
        let api_version = api_version(group, &version.name);
        let kind = &names.kind;
        let (columns, shown) = Columns::of(&version.columns);
        let fields = version.selectable.iter();
        let fields = fields.map(|path| Str::from(path.strip_prefix('.').unwrap_or(path)));
        let own: &[&str] = match definition.scope {
            Scope::Namespaced => &["metadata.name", "metadata.namespace"],
            Scope::Cluster => &["metadata.name"],
        };
        let own = own.iter().copied().map(Str::from);
        Resource {
            number: next_number(),
            group: group.clone(),
            version: version.name.clone(),
            name: definition.plural.clone(),
            singular: names.singular.clone(),
            kind: kind.clone(),
            list_kind: names.list_kind.clone(),
            scope: definition.scope,
            short_names: names.short_names.clone(),
            categories: names.categories.clone(),
            verbs: VERBS.map(Str::from).to_vec(),
            storage_version_hash: storage_version_hash(group, &storage.name, kind),
            schemas: Arc::clone(&derivation.schemas),
            definition: derivation.object,
            stored_definition: derivation.object,
            storage: StorageRow {
                group: group.clone(),
                resource: definition.plural.clone(),
                version: storage.name.clone(),
                upstream_prefix: format!("{group}/{}", definition.plural).into(),
            },
            external: false,
            subresources: subresources(version, group, kind),
            owned_fields: Arc::new(owned_fields(definition, version, common)),
            columns: shown,
            rules: Rules {
                has_status: version.has_status,
                generation: true,
                default_gc_policy: "DeleteDependents".into(),
                ..Rules::default()
            },
            features: Arc::clone(&derivation.features),
            gated_fields: None,
            selectable_fields: own.chain(fields).collect(),
            name_rule: NameRule::DnsSubdomain,
            deprecation: deprecation(definition, version, common.best),
            gate: None,
            view: Some(self.view),
            custom: Some(self.custom(version, unit, common)),
            strategy: Arc::new(CustomObject::new(
                version,
                Arc::clone(unit),
                columns,
                (&api_version, kind),
            )),
            prefix: format!("{{\"apiVersion\":\"{api_version}\",\"kind\":\"{kind}\",").into(),
            qualified: format!("{}.{group}", definition.plural).into(),
            key_prefix: format!("{group}/{}/", definition.plural).into(),
            api_version,
        }
    }

    fn custom(&self, version: &Version, unit: &Arc<Unit>, common: &Common<'_>) -> CustomKind {
        let verbs: &[&str] = match self.terminating {
            true => &LAST_VERBS,
            false => &VERBS,
        };
        CustomKind {
            definition: self.key.clone(),
            discovered_verbs: verbs.iter().copied().map(Str::from).collect(),
            metadata: self.derivation.metadata,
            schema: Arc::clone(unit) as _,
            versions: Arc::clone(&common.schemas),
            conversion: self.definition.conversion,
            scale: version.scale.clone(),
            replicas: Arc::clone(&common.replicas),
        }
    }
}

fn subresources(version: &Version, group: &Str, kind: &Str) -> Vec<Subresource> {
    let subresource = |name: &str, group: &str, version: &str, kind: &str| Subresource {
        name: name.into(),
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        verbs: ["get", "patch", "update"].map(Str::from).to_vec(),
        ..Subresource::default()
    };
    let status = version
        .has_status
        .then(|| subresource("status", group, &version.name, kind));
    let scale = version
        .scale
        .as_ref()
        .map(|_| subresource("scale", "autoscaling", "v1", "Scale"));
    status.into_iter().chain(scale).collect()
}

/// Returns the warning for clients of a version: that of the definition, or upstream's default, which
/// names `best`, the most preferred version of those that are not deprecated, if it is better.
fn deprecation(definition: &Definition, version: &Version, best: Option<&Version>) -> Option<Str> {
    let text = version.deprecation.as_ref()?;
    if !text.is_empty() {
        return Some(text.clone());
    }
    let (group, kind) = (&definition.group, &definition.names.kind);
    let best = best.filter(|best| version_order(&best.name, &version.name) == Ordering::Less);
    let advice = best.map(|best| format!("; use {group}/{} {kind}", best.name));
    let advice = advice.unwrap_or_default();
    Some(format!("{group}/{} {kind} is deprecated{advice}", version.name).into())
}

/// Returns what writes in a version may own: the object itself no status that has a subresource, and
/// the status nothing else. As upstream's, the filter of the status knows the other versions, too.
fn owned_fields(definition: &Definition, version: &Version, common: &Common<'_>) -> OwnedFields {
    if !version.has_status {
        return OwnedFields::default();
    }
    let own = api_version(&definition.group, &version.name);
    let whole = BTreeMap::from([(own, Filter::Exclude(fields(&["status"])))]);
    OwnedFields::of_filters([
        ("status".into(), Arc::clone(&common.of_status)),
        ("".into(), Arc::new(whole)),
    ])
}

/// Returns the set of some fields of whole objects.
fn fields(names: &[&str]) -> FieldSet {
    let mut set = FieldSet::EMPTY;
    for name in names {
        set.insert(&[PathElement::field(*name)]);
    }
    set
}

/// Returns the hash that discovery publishes: the first eight bytes of that of the stored kind.
fn storage_version_hash(group: &str, version: &str, kind: &str) -> Str {
    let text = format!("{group}/{version}/{kind}");
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    STANDARD.encode(&hash.as_ref()[..8]).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn deprecated_versions_name_a_better_one_if_there_is_one() {
        let body = br#"{"spec":{"group":"x.io","names":{"plural":"as"},"versions":[{"name":"v2","served":true,"deprecated":true},{"name":"v1beta1","served":true,"deprecated":true},{"name":"v1","served":true,"subresources":{"status":{}}},{"name":"v3","served":false}]},"status":{"acceptedNames":{"kind":"A"}}}"#;
        let definition = Definition::read(&Bytes::from_static(body)).expect("it has names");
        let units = Units::default();
        let units = definition.versions.iter().map(|_| units.of(&open_schema()));
        let units: Vec<Arc<Unit>> = units.collect();
        let common = Common::of(&definition, &units);
        let texts = definition.versions.iter();
        let texts = texts.map(|version| deprecation(&definition, version, common.best));
        let texts: Vec<String> = texts.map(|text| text.unwrap_or_default().into()).collect();
        let wanted = [
            "x.io/v2 A is deprecated",
            "x.io/v1beta1 A is deprecated; use x.io/v1 A",
            "",
            "",
        ];
        assert_eq!(texts, wanted);
        let of_status: Vec<&str> = common.of_status.keys().map(Str::as_str).collect();
        assert_eq!(of_status, ["x.io/v1"]);
        assert_eq!(common.schemas.len(), definition.versions.len());
    }
}
