//! Writes operations and schemas as OpenAPI version 2 or 3.

use std::collections::BTreeSet;

use polyplane_apimachinery::schema::openapi::Document;
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::{Map, Str, Value, json};
use polyplane_descriptions::Descriptions;
use polyplane_registry::answer::negotiate::{CUSTOM_PATCH_TYPES, PATCH_TYPES};

use super::custom;
use super::describe::describe;
use super::model::{Body, Encodings, Operation, Parameter, PathItem, Streams};
use super::node::{Members, Node, with_others};
use super::operations::META;
use super::prose;
use crate::documents::version::VERSION;

const JSON: &str = "application/json";
const JSON_STREAM: &str = "application/json;stream=watch";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const YAML: &str = "application/yaml";
const PLAIN: &str = "text/plain";
const KEY_SET: &str = "application/jwk-set+json";

fn words(status: u16) -> &'static str {
    match status {
        201 => "Created",
        202 => "Accepted",
        401 => "Unauthorized",
        _ => "OK",
    }
}

fn patch_types(is_custom: bool) -> &'static [&'static str] {
    match is_custom {
        true => &CUSTOM_PATCH_TYPES,
        false => &PATCH_TYPES,
    }
}

fn types_of(operation: &Operation) -> &'static [&'static str] {
    match (operation.encodings, operation.streams) {
        (Encodings::Json, _) => &[JSON],
        (Encodings::KeySet, _) => &[KEY_SET],
        (Encodings::Log, _) => &[PLAIN, JSON, PROTOBUF, YAML],
        _ if operation.answer.is_empty() => &["*/*"],
        (Encodings::Text, Streams::No) => &[JSON, YAML],
        (Encodings::Text, Streams::Yes) => &[JSON, JSON_STREAM, YAML],
        (Encodings::All, Streams::No) => &[JSON, PROTOBUF, YAML],
        (Encodings::All, Streams::Yes) => &[JSON, JSON_STREAM, PROTOBUF, PROTOBUF_STREAM, YAML],
    }
}

/// Returns the media types of an operation's body.
fn body_types(operation: &Operation) -> &'static [&'static str] {
    match operation.is_custom {
        true => &[JSON, YAML],
        false => &["*/*"],
    }
}

/// Returns the document of version 3 for one group and version.
pub(super) fn version3<'n>(
    schemas: &Schemas,
    (group, version): (&str, &str),
    items: Vec<PathItem>,
    custom: Members<'n>,
) -> Node<'n> {
    let document = Document::V3 { group, version };
    let mut definitions = components(schemas, &items, document, &custom);
    let mut operations = items.iter().flat_map(|item| &item.operations);
    let is_custom = operations.all(|operation| operation.is_custom);
    if is_custom {
        custom::name_clients_kinds(schemas, &mut definitions);
    }
    let (mut components, mut root) = (Members::new(), Members::new());
    let definitions = with_others(definitions, custom);
    if !definitions.is_empty() {
        components.insert("schemas".into(), Node::Members(definitions));
    }
    let info = if is_custom {
        json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
    } else {
        let schemes = json!({"BearerToken": (bearer_token())});
        components.insert("securitySchemes".into(), Node::Value(schemes));
        info()
    };
    if !components.is_empty() {
        root.insert("components".into(), Node::Members(components));
    }
    root.insert("info".into(), Node::Value(info));
    root.insert("openapi".into(), Node::Value(Value::string("3.0.0")));
    root.insert("paths".into(), paths(items, path3));
    Node::Members(root)
}

/// Returns all paths; `write` writes one of them.
fn paths<'n>(items: Vec<PathItem>, write: fn(&PathItem) -> Value) -> Node<'n> {
    let all = items.into_iter().map(|item| {
        let path = Str::from(item.path.as_str());
        (path, Node::made(move || write(&item)))
    });
    Node::Members(all.collect())
}

fn path3(item: &PathItem) -> Value {
    let mut members = Map::new();
    for operation in &item.operations {
        members.insert(operation.method, operation3(operation));
    }
    if !item.parameters.is_empty() {
        members.insert("parameters", parameters3(&item.parameters));
    }
    Value::Object(members)
}

fn bearer_token() -> Value {
    json!({
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey"
    })
}

fn info() -> Value {
    let version = format!("{}.{}", VERSION.major, VERSION.minor);
    json!({"title": "Kubernetes", "version": (version)})
}

fn parameters3(all: &[Parameter]) -> Value {
    Value::Array(all.iter().map(parameter3).collect())
}

fn parameter3(parameter: &Parameter) -> Value {
    let name = parameter.name();
    let schema = json!({"type": (parameter.ty), "uniqueItems": true});
    let written = if parameter.is_in_path() {
        json!({"in": "path", "name": (name), "required": true, "schema": (schema)})
    } else {
        json!({"in": "query", "name": (name), "schema": (schema)})
    };
    described(written, parameter)
}

fn described(mut written: Value, parameter: &Parameter) -> Value {
    if let Some(text) = prose::of_parameter(parameter) {
        written["description"] = Value::string(text);
    }
    written
}

fn operation3(operation: &Operation) -> Value {
    let reference = |name: &str| json!({"$ref": (format!("#/components/schemas/{name}"))});
    let mut responses = Map::new();
    for status in operation.statuses {
        let schema = match operation.answer.as_str() {
            "" => json!({"type": "string"}),
            name => reference(name),
        };
        let content = content(types_of(operation), &schema);
        let response = json!({"content": (content), "description": (words(*status))});
        responses.insert(status.to_string(), response);
    }
    responses.insert("401", json!({"description": (words(401))}));
    let mut members = common(operation);
    members.insert("responses", Value::Object(responses));
    if !operation.parameters.is_empty() {
        members.insert("parameters", parameters3(&operation.parameters));
    }
    let body = match &operation.body {
        Body::Nothing => None,
        Body::Object(name) => {
            let content = content(body_types(operation), &reference(name));
            Some(json!({"content": (content), "required": true}))
        }
        Body::DeleteOptions => {
            let options = reference(&format!("{META}DeleteOptions"));
            let content = content(body_types(operation), &options);
            Some(json!({"content": (content)}))
        }
        Body::Patch { is_custom } => {
            let content = content(patch_types(*is_custom), &reference(&format!("{META}Patch")));
            Some(json!({"content": (content), "required": true}))
        }
    };
    if let Some(body) = body {
        members.insert("requestBody", body);
    }
    Value::Object(members)
}

fn content(types: &[&str], schema: &Value) -> Value {
    let mut content = Map::new();
    for name in types {
        content.insert(*name, json!({"schema": (schema.clone())}));
    }
    Value::Object(content)
}

/// Returns the members that both versions of OpenAPI have in common.
fn common(operation: &Operation) -> Map {
    let mut members = Map::new();
    members.insert("description", Value::string(prose::of_operation(operation)));
    members.insert("operationId", Value::string(operation.id.as_str()));
    members.insert(
        "tags",
        Value::Array(vec![Value::string(operation.tag.as_str())]),
    );
    if let Some(action) = operation.action {
        members.insert("x-kubernetes-action", Value::string(action));
    }
    if let Some([group, kind, version]) = &operation.kind {
        let kind = json!({
            "group": (group.as_str()), "kind": (kind.as_str()), "version": (version.as_str())
        });
        members.insert("x-kubernetes-group-version-kind", kind);
    }
    members
}

/// Returns the document of version 2, which contains all groups.
pub(super) fn version2<'n>(
    schemas: &Schemas,
    items: Vec<PathItem>,
    custom: Members<'n>,
) -> Node<'n> {
    let definitions = components(schemas, &items, Document::V2, &custom);
    let definitions = with_others(definitions, custom);
    let shared = shared2(&items);
    Node::Members(Members::from([
        ("definitions".into(), Node::Members(definitions)),
        ("info".into(), Node::Value(info())),
        ("parameters".into(), Node::Value(Value::Object(shared))),
        ("paths".into(), paths(items, path2)),
        ("security".into(), Node::Value(json!([{"BearerToken": []}]))),
        (
            "securityDefinitions".into(),
            Node::Value(json!({"BearerToken": (bearer_token())})),
        ),
        ("swagger".into(), Node::Value(Value::string("2.0"))),
    ]))
}

fn path2(item: &PathItem) -> Value {
    let mut members = Map::new();
    for operation in &item.operations {
        members.insert(operation.method, operation2(operation));
    }
    if !item.parameters.is_empty() {
        let listed = item.parameters.iter().map(listed2);
        members.insert("parameters", Value::Array(listed.collect()));
    }
    Value::Object(members)
}

/// Returns the parameters and bodies to which paths and operations refer; the document has each of them once.
fn shared2(items: &[PathItem]) -> Map {
    let operations = || items.iter().flat_map(|item| &item.operations);
    let of_paths = items.iter().flat_map(|item| &item.parameters);
    let of_operations = operations().flat_map(|operation| &operation.parameters);
    let distinct: BTreeSet<&Parameter> = of_paths.chain(of_operations).collect();
    let mut shared = Map::new();
    for parameter in distinct {
        if let Some(name) = shared_name(parameter) {
            shared.insert(name, parameter2(parameter));
        }
    }
    for operation in operations() {
        if let Some((name, is_required)) = shared_body(&operation.body)
            && !shared.contains_key(name)
        {
            let definition = name.trim_start_matches("body-");
            let written = body2(&format!("{META}{definition}"), is_required);
            shared.insert(name, written);
        }
    }
    shared
}

/// Returns the name under which a body is shared, and whether it is required; `None` if the operation itself has it.
fn shared_body(body: &Body) -> Option<(&'static str, bool)> {
    match body {
        Body::Nothing | Body::Object(_) => None,
        Body::DeleteOptions => Some(("body-DeleteOptions", false)),
        Body::Patch { .. } => Some(("body-Patch", true)),
    }
}

fn body2(definition: &str, is_required: bool) -> Value {
    let schema = json!({"$ref": (format!("#/definitions/{definition}"))});
    let mut written = json!({"in": "body", "name": "body", "schema": (schema)});
    if is_required {
        written["required"] = Value::Bool(true);
    }
    written
}

/// Returns a reference to a parameter or body that is shared.
fn refer(name: &str) -> Value {
    json!({"$ref": (format!("#/parameters/{name}"))})
}

/// Returns the name under which a parameter is shared; `None` if paths and operations have it themselves. Upstream
/// shares the same ones: kubectl before 1.28 looks for `dryRun` and `fieldValidation` in the operation itself.
fn shared_name(parameter: &Parameter) -> Option<String> {
    let name = parameter.name();
    if matches!(name, "name" | "dryRun" | "fieldValidation") {
        return None;
    }
    let place = match parameter.is_in_path() {
        true => "path",
        false => "query",
    };
    // Parameters of one name that differ are shared side by side.
    Some(format!("{name}-{place}-{}", parameter.ty))
}

/// Returns a parameter as paths and operations list it.
fn listed2(parameter: &Parameter) -> Value {
    match shared_name(parameter) {
        Some(name) => refer(&name),
        None => parameter2(parameter),
    }
}

fn parameter2(parameter: &Parameter) -> Value {
    let (name, ty) = (parameter.name(), parameter.ty);
    let written = if parameter.is_in_path() {
        json!({"in": "path", "name": (name), "required": true, "type": (ty), "uniqueItems": true})
    } else {
        json!({"in": "query", "name": (name), "type": (ty), "uniqueItems": true})
    };
    described(written, parameter)
}

fn operation2(operation: &Operation) -> Value {
    let reference = |name: &str| json!({"$ref": (format!("#/definitions/{name}"))});
    let texts =
        |texts: &[&str]| Value::Array(texts.iter().map(|text| Value::string(*text)).collect());
    let mut responses = Map::new();
    for status in operation.statuses {
        let schema = match operation.answer.as_str() {
            "" => json!({"type": "string"}),
            name => reference(name),
        };
        let response = json!({"description": (words(*status)), "schema": (schema)});
        responses.insert(status.to_string(), response);
    }
    responses.insert("401", json!({"description": (words(401))}));
    let mut all = Vec::new();
    if let Body::Object(name) = &operation.body {
        all.push(body2(name, true));
    } else if let Some((name, _)) = shared_body(&operation.body) {
        all.push(refer(name));
    }
    all.extend(operation.parameters.iter().map(listed2));
    let consumes: &[&str] = match operation.body {
        Body::Patch { is_custom } => patch_types(is_custom),
        // Upstream says nothing here about the OpenID documents.
        _ if operation.action.is_none() && operation.answer.is_empty() => &[],
        _ if operation.action.is_none() => types_of(operation),
        _ => body_types(operation),
    };
    let mut members = common(operation);
    if !consumes.is_empty() {
        members.insert("consumes", texts(consumes));
    }
    members.insert("produces", texts(types_of(operation)));
    members.insert("responses", Value::Object(responses));
    members.insert("schemes", texts(&["https"]));
    if !all.is_empty() {
        members.insert("parameters", Value::Array(all));
    }
    Value::Object(members)
}

/// Returns the schemas that the operations of `items` refer to, and those they refer to in turn.
/// They are without those of `custom`, the kinds that objects define.
fn components(
    schemas: &Schemas,
    items: &[PathItem],
    document: Document<'_>,
    custom: &Members<'_>,
) -> Map {
    let (mut named, mut lists) = (BTreeSet::new(), Vec::new());
    for operation in items.iter().flat_map(|item| &item.operations) {
        named.insert(operation.answer.clone());
        match &operation.body {
            Body::Nothing => {}
            Body::Object(name) => drop(named.insert(name.clone())),
            Body::DeleteOptions => drop(named.insert(format!("{META}DeleteOptions"))),
            Body::Patch { .. } => drop(named.insert(format!("{META}Patch"))),
        }
        if operation.action == Some("list") {
            lists.push(operation);
        }
    }
    let mut roots: Vec<DefId> = named.iter().filter_map(|name| schemas.find(name)).collect();
    // Lists of this server's own kinds have no definition in the schemas, so make one.
    let is_known = |list: &&Operation| {
        custom.contains_key(list.answer.as_str()) || schemas.find(&list.answer).is_some()
    };
    let invented: Vec<_> = lists.into_iter().filter(|list| !is_known(list)).collect();
    if !invented.is_empty() || !custom.is_empty() {
        roots.extend(schemas.find(&format!("{META}ListMeta")));
    }
    if !custom.is_empty() {
        roots.extend(schemas.find(&format!("{META}ObjectMeta")));
    }
    let mut out = schemas.openapi_closure(&roots, document);
    for list in invented {
        out.insert(list.answer.as_str(), list_schema(list, document));
    }
    if named.contains(&format!("{META}Patch")) {
        out.insert(format!("{META}Patch"), json!({"type": "object"}));
    }
    if named.contains(super::VERSION_INFO) {
        out.insert(super::VERSION_INFO, version_info(document));
    }
    // Those of `custom` have the descriptions that their authors wrote.
    describe(&mut out, &Descriptions::shared());
    out
}

fn list_schema(list: &Operation, document: Document<'_>) -> Value {
    let prefix = match document {
        Document::V2 => "#/definitions/",
        Document::V3 { .. } => "#/components/schemas/",
    };
    let item = list.answer.strip_suffix("List").unwrap_or(&list.answer);
    let kind = list.kind.clone().unwrap_or_default();
    let [group, kind, version] = kind;
    json!({
        "properties": {
            "apiVersion": {"type": "string"},
            "items": {"items": {"$ref": (format!("{prefix}{item}"))}, "type": "array"},
            "kind": {"type": "string"},
            "metadata": {"$ref": (format!("{prefix}{META}ListMeta"))}
        },
        "required": ["items"],
        "type": "object",
        "x-kubernetes-group-version-kind": [
            {"group": (group), "kind": (format!("{kind}List")), "version": (version)}
        ]
    })
}

fn version_info(document: Document<'_>) -> Value {
    let names = [
        "buildDate",
        "compiler",
        "emulationMajor",
        "emulationMinor",
        "gitCommit",
        "gitTreeState",
        "gitVersion",
        "goVersion",
        "major",
        "minCompatibilityMajor",
        "minCompatibilityMinor",
        "minor",
        "platform",
    ];
    let optional = |name: &&str| name.starts_with("emulation") || name.starts_with("minCompat");
    let mut properties = Map::new();
    for name in names {
        let mut schema = json!({"type": "string"});
        if !optional(&name) && document != Document::V2 {
            schema["default"] = Value::string("");
        }
        properties.insert(name, schema);
    }
    let required = names
        .iter()
        .filter(|name| !optional(name))
        .map(|name| Value::string(*name));
    json!({
        "properties": (Value::Object(properties)),
        "required": (Value::Array(required.collect())),
        "type": "object"
    })
}
