//! Operations and parameters, independent of the version of OpenAPI.

use polyplane_apimachinery::Str;
use polyplane_apimachinery::schema::Type;
use polyplane_registry::ServedGroups;
use polyplane_registry::request::parameters;
use polyplane_registry::request::parameters::OptionSet;

/// A path and its operations.
pub(super) struct PathItem {
    pub path: String,
    /// The parameters that all operations of the path share, by name.
    pub parameters: Vec<Parameter>,
    pub operations: Vec<Operation>,
}

/// One operation.
pub(super) struct Operation {
    pub method: &'static str,
    pub id: String,
    pub tag: String,
    /// The value of `x-kubernetes-action`.
    pub action: Option<&'static str>,
    /// Group, version and kind of the payload.
    pub kind: Option<[String; 3]>,
    pub parameters: Vec<Parameter>,
    pub body: Body,
    /// The status codes of success.
    pub statuses: &'static [u16],
    /// The definition of the answer; empty for text.
    pub answer: String,
    pub streams: Streams,
    /// True for an operation of a kind that an object defines.
    pub is_custom: bool,
    pub encodings: Encodings,
}

/// A parameter in path or query.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    pub name: Str,
    /// The type, which both versions of OpenAPI name alike.
    pub ty: &'static str,
}

impl Parameter {
    pub(super) fn known(name: &str) -> Self {
        // Parameters without a row are part of the path.
        let ty = parameters::named(name).map_or("string", |row| row.form.documented());
        Self {
            name: name.into(),
            ty,
        }
    }

    /// Returns the parameters that the documents of operations list.
    pub(super) fn listed(set: OptionSet) -> Vec<Self> {
        set.rows().map(|row| Self::known(row.name)).collect()
    }

    pub(super) fn all(names: &[&str]) -> Vec<Self> {
        names.iter().map(|name| Self::known(name)).collect()
    }

    /// Returns the fields of an options object, which such a request gives as parameters.
    pub(super) fn of_options(table: &ServedGroups, definition: &str) -> Vec<Self> {
        let schemas = &table.schemas;
        let Some(id) = schemas.find(definition) else {
            return Vec::new();
        };
        let fields = schemas.get(id).fields.iter();
        let mut all: Vec<_> = fields
            .filter(|field| !matches!(field.ty, Type::Time))
            .map(|field| Self {
                name: field.name.as_str().into(),
                ty: parameter_type(&field.ty),
            })
            .collect();
        all.sort();
        all
    }

    /// Returns the parameter for the rest of a path. Proxies have a query parameter of the same
    /// name.
    pub(super) fn rest_of_path() -> Self {
        Self {
            name: "{path}".into(),
            ty: "string",
        }
    }

    /// Returns true if the parameter is part of the path.
    pub(super) fn is_in_path(&self) -> bool {
        matches!(&*self.name, "name" | "namespace" | "{path}")
    }

    /// Returns the name as documents write it.
    pub(super) fn name(&self) -> &str {
        self.name.trim_start_matches('{').trim_end_matches('}')
    }
}

/// Returns the type of a parameter. A list is given as a parameter that occurs several times.
fn parameter_type(ty: &Type) -> &'static str {
    match ty {
        Type::Bool => "boolean",
        Type::Int32 | Type::Int64 => "integer",
        Type::List(item) => parameter_type(item),
        _ => "string",
    }
}

impl PathItem {
    /// Creates an item and moves to it the parameters that its operations share: those of `own`,
    /// and those that all operations have.
    pub(super) fn new(path: String, own: &[&str], mut operations: Vec<Operation>) -> Self {
        let mut parameters = Parameter::all(own);
        let common = operations
            .iter()
            .map(|operation| operation.parameters.clone());
        let common = common.reduce(|mut all, some| {
            all.retain(|parameter| some.contains(parameter));
            all
        });
        for parameter in common.unwrap_or_default() {
            for operation in &mut operations {
                operation.parameters.retain(|other| *other != parameter);
            }
            parameters.push(parameter);
        }
        parameters.sort();
        Self {
            path,
            parameters,
            operations,
        }
    }
}

/// The body of an operation's request.
pub(super) enum Body {
    Nothing,
    /// An object of the named definition.
    Object(String),
    /// Optional `DeleteOptions`.
    DeleteOptions,
    /// A patch.
    Patch {
        /// True for a kind that an object defines. It accepts no strategic merge patch, and kubectl
        /// reads here that it must send another one.
        is_custom: bool,
    },
}

/// The media types in which an operation answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Encodings {
    /// JSON only.
    Json,
    /// JSON and YAML: the kind has no form in protobuf.
    Text,
    /// JSON, YAML and protobuf.
    All,
    /// Plain text, which is the log of a container; an error has the encodings of an object.
    Log,
    /// A set of JSON Web Keys.
    KeySet,
}

/// The answers of an operation that may be a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    No,
    Yes,
}
