//! Parses the generated definitions. Owns the making of fields, and the short keys of the data file.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

use super::tags::Tag;
use super::{
    Definition, Field, Gvk, InternalField, ListType, Omit, Patch, Presence, Schemas, Type,
};
use crate::shape::MapType;
use crate::value::{Map, Str, Value};

/// The reason why generated data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is not JSON of the expected form.
    #[error("schemas: {0}")]
    Json(#[from] serde_json::Error),
    /// A field has a type that does not exist.
    #[error("schemas: field {field} of {definition} has unknown type {ty}")]
    Type {
        /// The definition's full name.
        definition: String,
        /// The field's name.
        field: String,
        /// The type as written.
        ty: String,
    },
    /// The internal type has a field that the definition does not have.
    #[error("schemas: the internal type of {definition} has field {field}, which is not published")]
    Internal {
        /// The definition's full name.
        definition: String,
        /// The field's name.
        field: String,
    },
}

#[derive(Deserialize)]
struct RawFile<'a> {
    #[serde(borrow)]
    definitions: BTreeMap<Cow<'a, str>, RawDefinition<'a>>,
}

#[derive(Deserialize)]
struct RawDefinition<'a> {
    #[serde(borrow, default)]
    go: Cow<'a, str>,
    #[serde(default)]
    tm: u8,
    #[serde(borrow, default)]
    x: Option<&'a RawValue>,
    #[serde(borrow, default)]
    fields: Vec<RawField<'a>>,
    #[serde(borrow, default)]
    gvk: Vec<RawKind<'a>>,
    #[serde(borrow, default)]
    tags: Option<&'a RawValue>,
    #[serde(borrow, default)]
    required: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    unions: Option<&'a RawValue>,
    #[serde(default)]
    sh: u8,
    #[serde(borrow, default, rename = "in")]
    internal: Option<Vec<RawInternalField<'a>>>,
}

#[derive(Deserialize)]
struct RawInternalField<'a> {
    #[serde(borrow, default)]
    n: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    gn: Cow<'a, str>,
    #[serde(borrow, default)]
    z: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawKind<'a> {
    #[serde(borrow, default)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct RawField<'a> {
    #[serde(borrow)]
    n: Cow<'a, str>,
    #[serde(borrow)]
    t: Cow<'a, str>,
    #[serde(borrow, default)]
    o: Option<Cow<'a, str>>,
    #[serde(default)]
    p: u8,
    #[serde(borrow, default)]
    nm: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    gt: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    gn: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    em: Option<Cow<'a, str>>,
    #[serde(default)]
    pb: u32,
    #[serde(borrow, default)]
    pbt: Option<Cow<'a, str>>,
    #[serde(default)]
    pbin: Vec<u32>,
    #[serde(borrow, default)]
    lt: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    lk: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    mt: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    ps: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pk: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "enum")]
    values: Option<&'a RawValue>,
    #[serde(borrow, default)]
    fmt: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    def: Option<&'a RawValue>,
    #[serde(borrow, default)]
    zd: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cd: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tags: Option<&'a RawValue>,
}

/// The definition of JSON schemas for custom kinds, which the types that allow a JSON schema or
/// something else need.
const JSON_SCHEMA: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

pub(super) fn parse(json: &[u8]) -> Result<Schemas, LoadError> {
    let mut schemas = Schemas::default();
    extend(&mut schemas, json)?;
    Ok(schemas)
}

/// Adds the definitions of another file, which may refer to existing ones.
pub(super) fn extend(schemas: &mut Schemas, json: &[u8]) -> Result<(), LoadError> {
    // Checked as UTF-8 once, so that its strings need not be checked one by one.
    let text = std::str::from_utf8(json).map_err(serde_json::Error::custom)?;
    let file: RawFile<'_> = serde_json::from_str(text)?;
    let first = schemas.len();
    let more = file.definitions.len();
    schemas.definitions.reserve(more);
    schemas.by_name.reserve(more);
    schemas.by_kind.reserve(more);
    for name in file.definitions.keys() {
        schemas.reserve(name.as_ref());
    }
    for (name, raw) in file.definitions {
        let id = schemas.find(&name).expect("every name was reserved above");
        let mut fields = Vec::with_capacity(raw.fields.len());
        for field in raw.fields {
            fields.push(read_field(schemas, &name, field)?);
        }
        let internal = raw.internal.map(|raw| read_internal(&name, &fields, raw));
        let has_kinds = !raw.gvk.is_empty();
        let kinds = raw.gvk.into_iter().map(|kind| Gvk {
            group: kind.group.into(),
            version: kind.version.into(),
            kind: kind.kind.into(),
        });
        let definition = Definition {
            name: name.as_ref().into(),
            fields,
            kinds: kinds.collect(),
            tags: raw.tags.map(|raw| Tag::read(raw.get())).unwrap_or_default(),
            required: raw.required.into_iter().map(Into::into).collect(),
            unions: raw.unions.map(|raw| raw.get().into()),
            map: raw.x.map_or(Ok(MapType::Granular), read_map_type)?,
            extensions: raw.x.map(|raw| raw.get().into()),
            go: raw.go.into(),
            type_meta: raw.tm != 0 && has_kinds,
            shared: raw.sh != 0,
            internal: internal.transpose()?,
            ..Definition::default()
        };
        schemas.fill(id, definition);
    }
    schemas.seal_from(first);
    Ok(())
}

impl Field {
    /// Creates a field with a name and a type, and default values for everything else.
    pub fn new(name: impl Into<Str>, ty: Type) -> Self {
        let name = name.into();
        let mut key = Vec::with_capacity(name.len() + 3);
        crate::json::write_string(&name, &mut key);
        key.push(b':');
        Self {
            name,
            ty,
            omit: Omit::Empty,
            presence: Presence::Plain,
            empty_is_said: false,
            empties_count: false,
            default: None,
            list: ListType::Atomic,
            patch: Patch::default(),
            tags: Vec::new(),
            notes: Box::default(),
            key: key.into_boxed_slice(),
        }
    }
}

/// Lists and maps for which upstream's defaults, strategies, validation or admission tell an empty one,
/// as its structs do, from none.
const EMPTY_IS_SAID: [(&str, &[&str]); 16] = [
    // None gets the default, an empty one is refused.
    ("io.k8s.api.autoscaling.v2.HPAScalingRules", &["policies"]),
    // Refused for an immutable object that has none.
    ("io.k8s.api.core.v1.ConfigMap", &["binaryData", "data"]),
    ("io.k8s.api.core.v1.Secret", &["data"]),
    // Refused for a pod of Windows.
    (
        "io.k8s.api.core.v1.PodSecurityContext",
        &["supplementalGroups"],
    ),
    // Refused without a runtime class.
    ("io.k8s.api.core.v1.PodSpec", &["overhead"]),
    // A write of the status keeps them if it sends none, and clears them if it sends an empty one.
    (
        "io.k8s.api.core.v1.PodStatus",
        &[
            "nodeAllocatableResourceClaimStatuses",
            "resourceClaimStatuses",
        ],
    ),
    // Refused for the resources of a whole pod.
    ("io.k8s.api.core.v1.ResourceRequirements", &["claims"]),
    // Complaints show an empty one, which is always refused.
    ("io.k8s.api.batch.v1.SuccessPolicy", &["rules"]),
    ("io.k8s.api.core.v1.NodeSelector", &["nodeSelectorTerms"]),
    ("io.k8s.api.networking.v1.IngressSpec", &["rules"]),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec",
        &["versions"],
    ),
    // The complaint that a driver may not change shows an empty one.
    ("io.k8s.api.storage.v1.CSINodeDriver", &["topologyKeys"]),
    // Only one of several may be there, and a list of values is not empty.
    ("io.k8s.api.resource.v1.DeviceAttribute", &VALUES),
    ("io.k8s.api.resource.v1beta2.DeviceAttribute", &VALUES),
    ("io.k8s.api.resource.v1.ResourceSliceSpec", &DEVICES),
    ("io.k8s.api.resource.v1beta2.ResourceSliceSpec", &DEVICES),
];

/// Fields whose structs upstream's strategies compare as Go does, for which an empty list or map is
/// not none: the generation counts the difference.
const EMPTIES_COUNT: [(&str, &str); 3] = [
    (
        "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration",
        "webhooks",
    ),
    (
        "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration",
        "webhooks",
    ),
    ("io.k8s.api.networking.v1.NetworkPolicy", "spec"),
];

/// Fields that complaints about changes show as upstream's structs are, which tell an empty list or map
/// from none. What the client says of these is kept until then, as below [`EMPTIES_COUNT`].
const EMPTIES_SHOWN: [(&str, &str); 2] = [
    ("io.k8s.api.core.v1.PersistentVolume", "spec"),
    ("io.k8s.api.core.v1.PersistentVolumeClaim", "spec"),
];
const VALUES: [&str; 4] = ["bools", "ints", "strings", "versions"];
const DEVICES: [&str; 2] = ["devices", "sharedCounters"];

fn read_field(schemas: &Schemas, definition: &str, raw: RawField<'_>) -> Result<Field, LoadError> {
    let ty = read_type(schemas, &raw.t).ok_or_else(|| LoadError::Type {
        definition: definition.to_owned(),
        field: raw.n.clone().into_owned(),
        ty: raw.t.clone().into_owned(),
    })?;
    let mut field = Field::new(raw.n.as_ref(), ty);
    field.omit = match raw.o.as_deref() {
        Some("empty") => Omit::Empty,
        Some("zero" | "emptyzero") => Omit::Zero,
        _ => Omit::Never,
    };
    field.presence = if raw.p == 0 {
        Presence::Plain
    } else {
        Presence::Pointer
    };
    field.empty_is_said = EMPTY_IS_SAID
        .iter()
        .any(|(name, fields)| *name == definition && fields.contains(&&*field.name));
    let place = (definition, &*field.name);
    field.empties_count = EMPTIES_COUNT.contains(&place) || EMPTIES_SHOWN.contains(&place);
    field.default = raw.cd.map(|raw| read_value(raw.get())).transpose()?;
    field.list = match raw.lt.as_deref() {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(raw.lk.iter().map(|key| Str::from(key.as_ref())).collect()),
        _ => ListType::Atomic,
    };
    field.patch = Patch {
        strategies: raw
            .ps
            .iter()
            .flat_map(|text| text.split(','))
            .map(Str::from)
            .collect(),
        merge_key: raw.pk.as_deref().unwrap_or_default().into(),
    };
    field.tags = raw.tags.map(|raw| Tag::read(raw.get())).unwrap_or_default();
    let notes = field.notes.as_mut();
    notes.named = raw.nm.map(Into::into);
    notes.go_type = raw.gt.map(Into::into);
    notes.go_name = raw.gn.map(Into::into);
    notes.embedded = raw.em.map(Into::into);
    notes.format = raw.fmt.map(Into::into);
    let published = raw.def.or(raw.zd).map(RawValue::get);
    notes.key_default = published
        .filter(|text| !text.starts_with(['{', '[']))
        .map(read_value)
        .transpose()?;
    notes.published_default = published.map(Into::into);
    notes.values = raw.values.map(|raw| raw.get().into());
    notes.list_type = raw.lt.map(Into::into);
    notes.map_type = raw.mt.map(Into::into);
    notes.list_keys = raw.lk.iter().map(|key| Str::from(key.as_ref())).collect();
    notes.proto_path = raw.pbin;
    notes.proto = (raw.pb != 0).then(|| (raw.pb, raw.pbt.unwrap_or_default().into()));
    Ok(field)
}

/// Returns the relation that the published extensions of a definition declare.
fn read_map_type(extensions: &RawValue) -> Result<MapType, LoadError> {
    let extensions = read_value(extensions.get())?;
    Ok(match extensions.str_at(&["x-kubernetes-map-type"]) {
        "atomic" => MapType::Atomic,
        _ => MapType::Granular,
    })
}

fn read_internal(
    definition: &str,
    fields: &[Field],
    raw: Vec<RawInternalField<'_>>,
) -> Result<Box<[InternalField]>, LoadError> {
    let read = |raw: RawInternalField<'_>| {
        let zero = raw.z.map(|raw| read_value(raw.get())).transpose()?;
        let Some(name) = raw.n else {
            return Ok(InternalField::Added {
                go_name: raw.gn.into(),
                zero: zero.unwrap_or_default(),
            });
        };
        let place = fields.iter().position(|field| field.name == *name);
        let place = place.ok_or_else(|| LoadError::Internal {
            definition: definition.to_owned(),
            field: name.into_owned(),
        })?;
        Ok(InternalField::Published { place, zero })
    };
    raw.into_iter().map(read).collect()
}

fn read_type(schemas: &Schemas, text: &str) -> Option<Type> {
    if let Some(item) = text.strip_prefix("[]") {
        return Some(Type::List(Box::new(read_type(schemas, item)?)));
    }
    if let Some(item) = text.strip_prefix('*') {
        return Some(Type::Nullable(Box::new(read_type(schemas, item)?)));
    }
    if let Some(item) = text.strip_prefix("map:") {
        return Some(Type::Map(Box::new(read_type(schemas, item)?)));
    }
    if let Some(name) = text.strip_prefix("ref:") {
        return schemas.find(name).map(Type::Ref);
    }
    Some(match text {
        "string" => Type::String,
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "float64" => Type::Float64,
        "bytes" => Type::Bytes,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "duration" => Type::Duration,
        "quantity" => Type::Quantity,
        "intstr" => Type::IntOrString,
        "raw" => Type::Raw,
        "json" | "any" => Type::Json,
        "fieldsv1" => Type::FieldsV1,
        "jsonschemapropsorbool" => Type::SchemaOrBool(schemas.find(JSON_SCHEMA)?),
        "jsonschemapropsorarray" => Type::SchemaOrArray(schemas.find(JSON_SCHEMA)?),
        "jsonschemapropsorstringarray" => Type::SchemaOrStrings(schemas.find(JSON_SCHEMA)?),
        _ => return None,
    })
}

/// Returns a tree of a small JSON text.
pub(crate) fn read_value(text: &str) -> Result<Value, serde_json::Error> {
    Ok(convert(serde_json::from_str(text)?))
}

fn convert(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(truth) => Value::Bool(truth),
        serde_json::Value::Number(number) => number.as_i64().map_or_else(
            || Value::Float(number.as_f64().unwrap_or_default()),
            Value::Int,
        ),
        serde_json::Value::String(text) => Value::String(text.into()),
        serde_json::Value::Array(items) => Value::Array(items.into_iter().map(convert).collect()),
        serde_json::Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(key, value)| (key, convert(value)))
                .collect::<Map>(),
        ),
    }
}
