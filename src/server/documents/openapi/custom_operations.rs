//! The operations of kinds that objects of a plane define. Upstream documents fewer of them than of
//! built-in kinds, and with other parameters and media types.

use polyplane_registry::request::parameters::OptionSet;
use polyplane_registry::{Resource, Scope};

use super::custom;
use super::model::{Body, Encodings, Operation, Parameter, PathItem, Streams};
use super::operations::{META, capital, tag_of, title_of};

/// The definition of a scale.
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Returns the paths of a kind below `root`, the path of its version.
pub(super) fn of_row(row: &Resource, root: &str) -> Vec<PathItem> {
    let writer = Writer::new(row);
    let (scoped, kind) = (writer.scoped, &row.kind);
    let mut items = Vec::new();
    let collection = match row.scope {
        Scope::Cluster => format!("{root}/{}", row.name),
        Scope::Namespaced => {
            let path = format!("{root}/{}", row.name);
            let list = writer.list(format!("list{}{kind}ForAllNamespaces", writer.title));
            items.push(PathItem::new(path, &["pretty"], vec![list]));
            format!("{root}/namespaces/{{namespace}}/{}", row.name)
        }
    };
    let own: &[&str] = match row.scope {
        Scope::Cluster => &["pretty"],
        Scope::Namespaced => &["pretty", "namespace"],
    };
    let (single, of_single) = (format!("{collection}/{{name}}"), [own, &["name"]].concat());
    let delete_all = Operation {
        parameters: Parameter::listed(OptionSet::List),
        answer: format!("{META}Status"),
        ..writer.operation(
            ("delete", "deletecollection"),
            format!("delete{}Collection{scoped}{kind}", writer.title),
        )
    };
    let create = Operation {
        parameters: Parameter::listed(OptionSet::Write),
        body: Body::Object(writer.definition.clone()),
        statuses: &[200, 201, 202],
        ..writer.operation(("post", "post"), writer.id("create", ""))
    };
    let operations = vec![delete_all, writer.list(writer.id("list", "")), create];
    items.push(PathItem::new(collection, own, operations));
    let delete = Operation {
        parameters: Parameter::listed(OptionSet::Delete),
        body: Body::DeleteOptions,
        statuses: &[200, 202],
        answer: format!("{META}Status"),
        ..writer.operation(("delete", "delete"), writer.id("delete", ""))
    };
    let mut operations = writer.single("", &writer.definition);
    operations.push(delete);
    items.push(PathItem::new(single.clone(), &of_single, operations));
    for sub in &row.subresources {
        let definition = match sub.name.as_str() {
            "scale" => SCALE,
            _ => writer.definition.as_str(),
        };
        let path = format!("{single}/{}", sub.name);
        let operations = writer.single(&sub.name, definition);
        items.push(PathItem::new(path, &of_single, operations));
    }
    items
}

/// Writes the operations of one kind.
struct Writer<'a> {
    row: &'a Resource,
    /// Group and version as operations spell them.
    title: String,
    /// `Namespaced`, or empty for a cluster-wide kind.
    scoped: &'static str,
    definition: String,
}

impl<'a> Writer<'a> {
    fn new(row: &'a Resource) -> Self {
        Self {
            row,
            title: format!("{}{}", title_of(&row.group), capital(&row.version)),
            scoped: match row.scope {
                Scope::Namespaced => "Namespaced",
                Scope::Cluster => "",
            },
            definition: custom::name_of(row),
        }
    }

    fn id(&self, verb: &str, sub: &str) -> String {
        let (title, scoped, kind) = (&self.title, self.scoped, &self.row.kind);
        format!("{verb}{title}{scoped}{kind}{}", capital(sub))
    }

    fn operation(&self, (method, action): (&'static str, &'static str), id: String) -> Operation {
        let row = self.row;
        Operation {
            method,
            id,
            tag: tag_of(&row.group, &row.version),
            action: Some(action),
            kind: Some([&row.group, &row.kind, &row.version].map(ToString::to_string)),
            parameters: Vec::new(),
            body: Body::Nothing,
            statuses: &[200],
            answer: self.definition.clone(),
            streams: Streams::No,
            is_custom: true,
            encodings: Encodings::Text,
        }
    }

    fn list(&self, id: String) -> Operation {
        Operation {
            parameters: Parameter::listed(OptionSet::List),
            answer: custom::list_name_of(self.row),
            ..self.operation(("get", "list"), id)
        }
    }

    /// Returns the operations that an object has in common with its subresources.
    fn single(&self, sub: &str, definition: &str) -> Vec<Operation> {
        let answers = |method, verb| Operation {
            answer: definition.to_owned(),
            ..self.operation((method, method), self.id(verb, sub))
        };
        vec![
            Operation {
                parameters: Parameter::all(&["resourceVersion"]),
                ..answers("get", "read")
            },
            Operation {
                parameters: Parameter::listed(OptionSet::Patch),
                body: Body::Patch { is_custom: true },
                ..answers("patch", "patch")
            },
            Operation {
                parameters: Parameter::listed(OptionSet::Write),
                body: Body::Object(definition.to_owned()),
                statuses: &[200, 201],
                ..answers("put", "replace")
            },
        ]
    }
}
