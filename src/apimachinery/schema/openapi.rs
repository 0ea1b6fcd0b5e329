//! Definitions in the form of the OpenAPI documents, without descriptions.
//!
//! Owns the forms of both versions of the documents: how types, references, defaults and extensions
//! are written. Which definitions are in which document, and the paths, are decided by the server.

use super::{DefId, Definition, Field, Gvk, Schemas, Type};
use crate::json;
use crate::value::{Map, Value};

/// The document for which a schema is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document<'d> {
    /// `/openapi/v2`, which covers all groups and versions.
    V2,
    /// `/openapi/v3`, which has one document for each group and version.
    V3 {
        /// The group; empty for core.
        group: &'d str,
        /// The version.
        version: &'d str,
    },
}

impl Document<'_> {
    fn prefix(self) -> &'static str {
        match self {
            Self::V2 => "#/definitions/",
            Self::V3 { .. } => "#/components/schemas/",
        }
    }

    /// Returns true if this document says that a definition, one of `all` kinds, is this kind.
    fn names(self, kind: &Gvk, all: usize) -> bool {
        match self {
            Self::V2 => true,
            Self::V3 { group, version } => {
                let core = kind.group.is_empty() && &*kind.version == "v1";
                all == 1 || core || (&*kind.group, &*kind.version) == (group, version)
            }
        }
    }
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";

/// Returns the published name of a type that is not a definition of the data.
fn leaf_name(ty: &Type) -> Option<String> {
    Some(match ty {
        Type::Time => format!("{META}Time"),
        Type::MicroTime => format!("{META}MicroTime"),
        Type::Duration => format!("{META}Duration"),
        Type::FieldsV1 => format!("{META}FieldsV1"),
        Type::Quantity => "io.k8s.apimachinery.pkg.api.resource.Quantity".to_owned(),
        Type::IntOrString => "io.k8s.apimachinery.pkg.util.intstr.IntOrString".to_owned(),
        Type::Raw => "io.k8s.apimachinery.pkg.runtime.RawExtension".to_owned(),
        Type::Json => format!("{EXTENSIONS}JSON"),
        Type::SchemaOrBool(_) => format!("{EXTENSIONS}JSONSchemaPropsOrBool"),
        Type::SchemaOrArray(_) => format!("{EXTENSIONS}JSONSchemaPropsOrArray"),
        Type::SchemaOrStrings(_) => format!("{EXTENSIONS}JSONSchemaPropsOrStringArray"),
        _ => return None,
    })
}

/// Returns the schema of a type that is not a definition of the data.
fn leaf_schema(ty: &Type, document: Document<'_>) -> Value {
    match (ty, document) {
        (Type::Time | Type::MicroTime, _) => json!({"type": "string", "format": "date-time"}),
        (Type::Duration, _) | (Type::Quantity, Document::V2) => json!({"type": "string"}),
        (Type::Quantity, Document::V3 { .. }) => {
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
        }
        (Type::IntOrString, Document::V2) => json!({"type": "string", "format": "int-or-string"}),
        (Type::IntOrString, Document::V3 { .. }) => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        (Type::Raw | Type::FieldsV1, _) => json!({"type": "object"}),
        _ => json!({}),
    }
}

impl Schemas {
    /// Returns the schema of a definition.
    pub fn openapi(&self, id: DefId, document: Document<'_>) -> Value {
        let definition = self.get(id);
        let mut properties = Map::new();
        if definition.type_meta {
            properties.insert("kind", json!({"type": "string"}));
            properties.insert("apiVersion", json!({"type": "string"}));
        }
        for field in &definition.fields {
            properties.insert(field.name.clone(), self.property(field, document));
        }
        let mut schema = json!({"type": "object"});
        if !properties.is_empty() {
            schema["properties"] = properties.into();
        }
        if !definition.required.is_empty() {
            schema["required"] = definition
                .required
                .iter()
                .map(|name| Value::from(&**name))
                .collect::<Vec<_>>()
                .into();
        }
        self.extensions(definition, document, &mut schema);
        schema
    }

    fn extensions(&self, definition: &Definition, document: Document<'_>, schema: &mut Value) {
        if let Some(Value::Object(extensions)) = definition.extensions.as_deref().and_then(read) {
            for (key, value) in extensions {
                schema[key.as_str()] = value;
            }
        }
        if let Some(unions) = definition.unions.as_deref().and_then(read) {
            schema["x-kubernetes-unions"] = unions;
        }
        if !definition.kinds.is_empty() {
            let all = definition.kinds.len();
            let kinds = definition.kinds.iter().filter(|kind| document.names(kind, all)).map(|kind| {
                json!({"group": (&*kind.group), "kind": (&*kind.kind), "version": (&*kind.version)})
            });
            schema["x-kubernetes-group-version-kind"] = kinds.collect::<Vec<_>>().into();
        }
    }

    fn property(&self, field: &Field, document: Document<'_>) -> Value {
        let notes = &field.notes;
        let mut schema = self.type_schema(&field.ty, document);
        if schema.get("$ref").is_some() && document != Document::V2 {
            schema = json!({"allOf": [(schema)]});
        }
        if let (Document::V3 { .. }, Some(default)) =
            (document, notes.published_default.as_deref().and_then(read))
        {
            schema["default"] = default;
        }
        if let Some(values) = notes.values.as_deref().and_then(read) {
            // Of a list or map the values are those of its items.
            let mut inner = ["items", "additionalProperties"].into_iter();
            match inner.find(|key| schema.get(key).is_some()) {
                Some(inner) => schema[inner]["enum"] = values,
                None => schema["enum"] = values,
            }
        }
        if let Some(list) = &notes.list_type {
            schema["x-kubernetes-list-type"] = (&**list).into();
        }
        if !notes.list_keys.is_empty() {
            schema["x-kubernetes-list-map-keys"] = notes
                .list_keys
                .iter()
                .map(|key| Value::from(key.as_str()))
                .collect::<Vec<_>>()
                .into();
        }
        if let Some(map) = &notes.map_type {
            schema["x-kubernetes-map-type"] = (&**map).into();
        }
        if !field.patch.strategies.is_empty() {
            schema["x-kubernetes-patch-strategy"] = field.patch.strategies.join(",").into();
        }
        if !field.patch.merge_key.is_empty() {
            schema["x-kubernetes-patch-merge-key"] = field.patch.merge_key.as_str().into();
        }
        schema
    }

    fn type_schema(&self, ty: &Type, document: Document<'_>) -> Value {
        if let Some(name) = leaf_name(ty) {
            return json!({"$ref": (format!("{}{name}", document.prefix()))});
        }
        match ty {
            Type::Bool => json!({"type": "boolean"}),
            Type::Int32 => json!({"type": "integer", "format": "int32"}),
            Type::Int64 => json!({"type": "integer", "format": "int64"}),
            Type::Float64 => json!({"type": "number", "format": "double"}),
            Type::Bytes => json!({"type": "string", "format": "byte"}),
            Type::Ref(id) => {
                json!({"$ref": (format!("{}{}", document.prefix(), self.get(*id).name))})
            }
            Type::List(item) => {
                json!({"type": "array", "items": (self.type_schema(item, document))})
            }
            Type::Map(item) => {
                json!({"type": "object", "additionalProperties": (self.type_schema(item, document))})
            }
            Type::Nullable(item) => self.type_schema(item, document),
            _ => json!({"type": "string"}),
        }
    }

    /// Returns the schemas of `roots` and of all definitions that they refer to, by name.
    pub fn openapi_closure(&self, roots: &[DefId], document: Document<'_>) -> Map {
        let mut out = Map::new();
        let mut seen = vec![false; self.len()];
        let mut queue: Vec<DefId> = roots.to_vec();
        while let Some(id) = queue.pop() {
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            let definition = self.get(id);
            out.insert(&*definition.name, self.openapi(id, document));
            for field in &definition.fields {
                let mut ty = &field.ty;
                while let Type::List(item) | Type::Map(item) | Type::Nullable(item) = ty {
                    ty = item;
                }
                match (leaf_name(ty), ty.definition()) {
                    (Some(name), _) => {
                        out.insert(name, leaf_schema(ty, document));
                    }
                    (None, Some(id)) => queue.push(id),
                    (None, None) => {}
                }
            }
        }
        out
    }
}

fn read(text: &str) -> Option<Value> {
    super::load::read_value(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::to_string;
    use crate::schema::fixture::{SCHEMAS, vectors};

    /// Returns the published schemas without the parts that depend on descriptions: a reference
    /// with a description is inside `allOf`. The files from which the vectors are made have no
    /// enumerations.
    fn comparable(value: &Value) -> Value {
        match value {
            Value::Object(members) => {
                if let (Some(Value::Array(all)), 1) = (members.get("allOf"), members.len())
                    && let [only] = all.as_slice()
                {
                    return comparable(only);
                }
                let kept = members
                    .iter()
                    .filter(|(key, value)| *key != "enum" || value.as_array().is_none());
                Value::Object(kept.map(|(key, value)| (key, comparable(value))).collect())
            }
            Value::Array(items) => Value::Array(items.iter().map(comparable).collect()),
            other => other.clone(),
        }
    }

    #[test]
    fn enumerations_are_of_the_items_of_lists_and_maps() {
        let properties = |name: &str| {
            let name = format!("io.k8s.api.core.v1.{name}");
            let id = SCHEMAS.find(&name).expect("it is there");
            SCHEMAS.openapi(id, Document::V2)
        };
        let claim = properties("PersistentVolumeClaimStatus");
        let volume = properties("PersistentVolumeSpec");
        for (schema, field, inner, one) in [
            (&claim, "phase", None, "Bound"),
            (&volume, "accessModes", Some("items"), "ReadOnlyMany"),
            (
                &claim,
                "allocatedResourceStatuses",
                Some("additionalProperties"),
                "NodeResizePending",
            ),
        ] {
            let mut path = vec!["properties", field];
            path.extend(inner);
            path.push("enum");
            let values = schema.items_at(&path);
            assert!(values.contains(&Value::string(one)), "{field}");
            if inner.is_some() {
                assert_eq!(schema.at(&["properties", field, "enum"]), None, "{field}");
            }
        }
    }

    #[test]
    fn schemas_are_published_as_upstream_does() {
        let (mut agreed, mut total) = (0, 0);
        let mut differences = Vec::new();
        let roots: Vec<DefId> = SCHEMAS.iter().map(|(id, _)| id).collect();
        let documents = [
            Document::V2,
            Document::V3 {
                group: "",
                version: "v1",
            },
        ];
        let published = documents.map(|document| SCHEMAS.openapi_closure(&roots, document));
        for row in vectors("openapi.jsonl.gz") {
            let name = row.str_at(&["name"]);
            let version = row.int_at(&["v"]).unwrap_or_default();
            total += 1;
            let schemas = &published[usize::from(version == 3)];
            let got = schemas
                .get(name)
                .map(|schema| to_string(&comparable(schema)))
                .unwrap_or_default();
            let wanted = to_string(&comparable(&row["schema"]));
            if got == wanted {
                agreed += 1;
            } else if differences.len() < 3 {
                differences.push(format!("v{version} {name}\n  got  {got}\n  want {wanted}"));
            }
        }
        println!("OpenAPI: {agreed} of {total} agree");
        assert!(
            total > 500 && agreed == total,
            "{agreed} of {total} agree\n{}",
            differences.join("\n")
        );
    }
}
