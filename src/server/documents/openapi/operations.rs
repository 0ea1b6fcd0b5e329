//! The operations of a group and version, derived from the rows of its kinds.

use polyplane_registry::kinds::table::{Resource, Subresource, api_version};
use polyplane_registry::request::parameters::OptionSet;
use polyplane_registry::{Scope, ServedGroups, ServedVersion};

use super::model::{Body, Encodings, Operation, Parameter, PathItem, Streams};
use super::{custom, custom_operations};
use crate::documents::openid::OpenIdDocument;

/// The prefix of definitions to which operations refer beside those of kinds.
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Returns all paths of a group and version.
pub(super) fn of_version(
    table: &ServedGroups,
    group: &str,
    version: &ServedVersion,
) -> Vec<PathItem> {
    let root = root_of(group, &version.version);
    let mut items = Vec::new();
    if !custom::is_only(version) {
        items.push(plain(
            format!("{root}/"),
            format!(
                "get{}{}APIResources",
                title_of(group),
                capital(&version.version)
            ),
            tag_of(group, &version.version),
            format!("{META}APIResourceList"),
        ));
    }
    for row in &version.resources {
        if row.custom.is_some() {
            items.extend(custom_operations::of_row(row, &root));
            continue;
        }
        let writer = Writer::new(table, row, &root);
        writer.collection(&mut items);
        writer.single(&mut items);
        for sub in &row.subresources {
            writer.subresource(sub, &mut items);
        }
        writer.watches(&mut items);
    }
    items
}

/// Returns the path of a group, which lists its versions.
pub(super) fn of_group(group: &str) -> PathItem {
    let id = format!("get{}APIGroup", title_of(group));
    plain(
        format!("/apis/{group}/"),
        id,
        lower(&title_of(group)),
        format!("{META}APIGroup"),
    )
}

/// Returns the paths that belong to no group.
pub(super) fn of_root(name: &str) -> PathItem {
    match name {
        "api" => plain(
            "/api/".to_owned(),
            "getCoreAPIVersions".to_owned(),
            "core".to_owned(),
            format!("{META}APIVersions"),
        ),
        "apis" => plain(
            "/apis/".to_owned(),
            "getAPIVersions".to_owned(),
            "apis".to_owned(),
            format!("{META}APIGroupList"),
        ),
        _ => plain(
            "/version/".to_owned(),
            "getCodeVersion".to_owned(),
            "version".to_owned(),
            super::VERSION_INFO.to_owned(),
        ),
    }
}

/// Returns the path of a document by which others verify tokens.
pub(super) fn of_open_id(document: OpenIdDocument) -> PathItem {
    let (id, tag, encodings) = match document {
        OpenIdDocument::Configuration => (
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
            Encodings::Json,
        ),
        OpenIdDocument::KeySet => (
            "getServiceAccountIssuerOpenIDKeyset",
            "openid",
            Encodings::KeySet,
        ),
    };
    let path = format!("{}/", document.path());
    read_only(
        path,
        id.to_owned(),
        tag.to_owned(),
        String::new(),
        encodings,
    )
}

fn plain(path: String, id: String, tag: String, answer: String) -> PathItem {
    let encodings = match answer.as_str() {
        super::VERSION_INFO => Encodings::Json,
        _ => Encodings::All,
    };
    read_only(path, id, tag, answer, encodings)
}

fn read_only(
    path: String,
    id: String,
    tag: String,
    answer: String,
    encodings: Encodings,
) -> PathItem {
    PathItem::new(
        path,
        &[],
        vec![Operation {
            method: "get",
            id,
            tag,
            action: None,
            kind: None,
            parameters: Vec::new(),
            body: Body::Nothing,
            statuses: &[200],
            answer,
            streams: Streams::No,
            is_custom: false,
            encodings,
        }],
    )
}

/// Returns the path of a version: `/api/v1` or `/apis/apps/v1`.
fn root_of(group: &str, version: &str) -> String {
    let prefix = if group.is_empty() { "/api" } else { "/apis" };
    format!("{prefix}/{}", api_version(group, version))
}

/// Returns the group as operations spell it: `Core`, `Apps`, `RbacAuthorization`.
pub(super) fn title_of(group: &str) -> String {
    if group.is_empty() {
        return "Core".to_owned();
    }
    let short = group.strip_suffix(".k8s.io").unwrap_or(group);
    short.split(['.', '-']).map(capital).collect()
}

pub(super) fn tag_of(group: &str, version: &str) -> String {
    format!("{}_{version}", lower(&title_of(group)))
}

pub(super) fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_ascii_uppercase().to_string() + characters.as_str())
        .unwrap_or_default()
}

fn lower(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_ascii_lowercase().to_string() + characters.as_str())
        .unwrap_or_default()
}

/// Returns the names of the parameters that every operation accepts.
fn everywhere() -> Vec<&'static str> {
    OptionSet::Every.rows().map(|row| row.name).collect()
}

fn kind_of(sub: &Subresource) -> [String; 3] {
    [
        sub.group.to_string(),
        sub.kind.to_string(),
        sub.version.to_string(),
    ]
}

/// Writes the operations of one resource.
struct Writer<'a> {
    table: &'a ServedGroups,
    row: &'a Resource,
    /// The path of the version: `/apis/apps/v1`.
    root: &'a str,
    /// Group and version as operations spell them: `AppsV1`.
    title: String,
    tag: String,
    /// `Namespaced`, or empty for a cluster-wide resource.
    scoped: &'static str,
    definition: String,
    list: String,
}

impl<'a> Writer<'a> {
    fn new(table: &'a ServedGroups, row: &'a Resource, root: &'a str) -> Self {
        let definition = table.schemas.get(row.definition).name.to_string();
        let package = definition
            .rsplit_once('.')
            .map_or("", |(package, _)| package);
        Self {
            table,
            row,
            root,
            title: format!("{}{}", title_of(&row.group), capital(&row.version)),
            tag: tag_of(&row.group, &row.version),
            scoped: if row.scope == Scope::Namespaced {
                "Namespaced"
            } else {
                ""
            },
            list: format!("{package}.{}", row.list_kind),
            definition,
        }
    }

    fn path(&self, tail: &str) -> String {
        let (root, name) = (self.root, &self.row.name);
        match self.row.scope {
            Scope::Namespaced => format!("{root}/namespaces/{{namespace}}/{name}{tail}"),
            Scope::Cluster => format!("{root}/{name}{tail}"),
        }
    }

    /// Returns the parameters of every path of this resource, followed by `more`.
    fn own<'n>(&self, more: &[&'n str]) -> Vec<&'n str> {
        let mut own = more.to_vec();
        if self.row.scope == Scope::Namespaced {
            own.push("namespace");
        }
        own.extend(everywhere());
        own
    }

    fn id(&self, verb: &str, tail: &str) -> String {
        format!("{verb}{}{}{}{tail}", self.title, self.scoped, self.row.kind)
    }

    fn operation(&self, method: &'static str, action: &'static str, id: String) -> Operation {
        Operation {
            method,
            id,
            tag: self.tag.clone(),
            action: Some(action),
            kind: Some([
                self.row.group.to_string(),
                self.row.kind.to_string(),
                self.row.version.to_string(),
            ]),
            parameters: Vec::new(),
            body: Body::Nothing,
            statuses: &[200],
            answer: self.definition.clone(),
            streams: Streams::No,
            is_custom: false,
            encodings: self.encodings(),
        }
    }

    fn encodings(&self) -> Encodings {
        let has_proto = || self.table.schemas.has_proto(self.row.definition);
        match self.row.custom.is_none() && has_proto() {
            true => Encodings::All,
            false => Encodings::Text,
        }
    }

    /// Returns the definition of the answer to the deletion of one object. For namespaces it is not
    /// what the server answers: upstream documents a Status, and clients are generated from that.
    fn deleted(&self) -> String {
        let is_namespace = self.row.group.is_empty() && self.row.name == "namespaces";
        if self.row.returns_deleted() && !is_namespace {
            self.definition.clone()
        } else {
            format!("{META}Status")
        }
    }

    fn collection(&self, items: &mut Vec<PathItem>) {
        let mut operations = Vec::new();
        if self.row.allows("deletecollection") {
            let id = format!(
                "delete{}Collection{}{}",
                self.title, self.scoped, self.row.kind
            );
            operations.push(Operation {
                parameters: Parameter::listed(OptionSet::DeleteCollection),
                body: Body::DeleteOptions,
                answer: format!("{META}Status"),
                ..self.operation("delete", "deletecollection", id)
            });
        }
        if self.row.allows("list") {
            operations.push(Operation {
                parameters: Parameter::listed(OptionSet::List),
                answer: self.list.clone(),
                streams: Streams::Yes,
                ..self.operation("get", "list", self.id("list", ""))
            });
        }
        if self.row.allows("create") {
            operations.push(Operation {
                parameters: Parameter::listed(OptionSet::Write),
                body: Body::Object(self.definition.clone()),
                statuses: &[200, 201, 202],
                ..self.operation("post", "post", self.id("create", ""))
            });
        }
        self.push(items, self.path(""), &self.own(&[]), operations);
        if self.row.scope == Scope::Namespaced && self.row.allows("list") {
            let id = format!("list{}{}ForAllNamespaces", self.title, self.row.kind);
            let operation = Operation {
                answer: self.list.clone(),
                streams: Streams::Yes,
                parameters: Parameter::listed(OptionSet::List),
                ..self.operation("get", "list", id)
            };
            let path = format!("{}/{}", self.root, self.row.name);
            self.push(items, path, &everywhere(), vec![operation]);
        }
    }

    fn push(
        &self,
        items: &mut Vec<PathItem>,
        path: String,
        own: &[&str],
        operations: Vec<Operation>,
    ) {
        if !operations.is_empty() {
            items.push(PathItem::new(path, own, operations));
        }
    }

    fn single(&self, items: &mut Vec<PathItem>) {
        let mut operations = Vec::new();
        if self.row.allows("delete") {
            operations.push(Operation {
                parameters: Parameter::listed(OptionSet::Delete),
                body: Body::DeleteOptions,
                statuses: &[200, 202],
                answer: self.deleted(),
                ..self.operation("delete", "delete", self.id("delete", ""))
            });
        }
        if self.row.allows("get") {
            operations.push(self.operation("get", "get", self.id("read", "")));
        }
        if self.row.allows("patch") {
            operations.push(Operation {
                parameters: Parameter::listed(OptionSet::Patch),
                body: Body::Patch { is_custom: false },
                statuses: &[200, 201],
                ..self.operation("patch", "patch", self.id("patch", ""))
            });
        }
        if self.row.allows("update") {
            operations.push(Operation {
                parameters: Parameter::listed(OptionSet::Write),
                body: Body::Object(self.definition.clone()),
                statuses: &[200, 201],
                ..self.operation("put", "put", self.id("replace", ""))
            });
        }
        self.push(
            items,
            self.path("/{name}"),
            &self.own(&["name"]),
            operations,
        );
    }

    fn subresource(&self, sub: &Subresource, items: &mut Vec<PathItem>) {
        if matches!(&*sub.name, "attach" | "exec" | "portforward" | "proxy") {
            return self.connection(sub, items);
        }
        let mut operations = Vec::new();
        for (verb, method, action, word) in [
            ("delete", "delete", "delete", "delete"),
            ("get", "get", "get", "read"),
            ("patch", "patch", "patch", "patch"),
            ("create", "post", "post", "create"),
            ("update", "put", "put", "replace"),
        ] {
            if !sub.verbs.iter().any(|known| known == verb) {
                continue;
            }
            let mut operation = Operation {
                kind: Some(kind_of(sub)),
                answer: sub.definition.to_string(),
                ..self.operation(method, action, self.id(word, &capital(&sub.name)))
            };
            match action {
                "get" if sub.name == "log" => {
                    operation.answer = String::new();
                    operation.encodings = Encodings::Log;
                    let options = "io.k8s.api.core.v1.PodLogOptions";
                    operation.parameters = Parameter::of_options(self.table, options);
                }
                "patch" => {
                    operation.parameters = Parameter::listed(OptionSet::Patch);
                    operation.body = Body::Patch { is_custom: false };
                    operation.statuses = &[200, 201];
                }
                "post" | "put" => {
                    operation.parameters = Parameter::listed(OptionSet::Write);
                    operation.body = Body::Object(sub.definition.to_string());
                    let created: &[u16] = &[200, 201, 202];
                    operation.statuses = if action == "post" {
                        created
                    } else {
                        &created[..2]
                    };
                }
                _ => {}
            }
            operations.push(operation);
        }
        let path = self.path(&format!("/{{name}}/{}", sub.name));
        self.push(items, path, &self.own(&["name"]), operations);
    }

    /// Adds the operations of a subresource that connects to another server. A proxy accepts every
    /// method and path.
    fn connection(&self, sub: &Subresource, items: &mut Vec<PathItem>) {
        let proxies = sub.name == "proxy";
        let methods: &[&'static str] = if proxies {
            &["delete", "get", "head", "options", "patch", "post", "put"]
        } else {
            &["get", "post"]
        };
        let tails: &[(&str, &str)] = if proxies {
            &[("", ""), ("/{path}", "WithPath")]
        } else {
            &[("", "")]
        };
        for (below, suffix) in tails {
            let operations = methods.iter().map(|&method| {
                let (title, scoped, kind) = (&self.title, self.scoped, &self.row.kind);
                let tail = capital(&sub.name);
                let id = format!(
                    "connect{title}{}{scoped}{kind}{tail}{suffix}",
                    capital(method)
                );
                Operation {
                    kind: Some(kind_of(sub)),
                    answer: String::new(),
                    parameters: Parameter::of_options(self.table, &sub.definition),
                    ..self.operation(method, "connect", id)
                }
            });
            let path = self.path(&format!("/{{name}}/{}{below}", sub.name));
            let mut own = vec!["name"];
            if self.row.scope == Scope::Namespaced {
                own.push("namespace");
            }
            let mut item = PathItem::new(path, &own, operations.collect());
            if !below.is_empty() {
                item.parameters.push(Parameter::rest_of_path());
            }
            items.push(item);
        }
    }

    fn watches(&self, items: &mut Vec<PathItem>) {
        if !self.row.allows("watch") {
            return;
        }
        let root = self.root;
        let below = |path: String| path.replacen(root, &format!("{root}/watch"), 1);
        let watch = |action, id| Operation {
            answer: format!("{META}WatchEvent"),
            streams: Streams::Yes,
            parameters: Parameter::listed(OptionSet::List),
            ..self.operation("get", action, id)
        };
        let list = watch("watchlist", self.id("watch", "List"));
        self.push(items, below(self.path("")), &self.own(&[]), vec![list]);
        let single = watch("watch", self.id("watch", ""));
        self.push(
            items,
            below(self.path("/{name}")),
            &self.own(&["name"]),
            vec![single],
        );
        if self.row.scope == Scope::Namespaced {
            let id = format!("watch{}{}ListForAllNamespaces", self.title, self.row.kind);
            let path = below(format!("{root}/{}", self.row.name));
            self.push(items, path, &everywhere(), vec![watch("watchlist", id)]);
        }
    }
}
