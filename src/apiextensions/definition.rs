//! What a row needs of a stored CustomResourceDefinition, read without a tree of its schemas.

use std::borrow::Cow;

use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::json::scan::{self, Scanned};
use polyplane_registry::Scope;
use polyplane_registry::kinds::custom::{ConversionStrategy, ScalePaths};

/// The API group of definitions.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Their resource.
pub const RESOURCE: &str = "customresourcedefinitions";

/// A definition.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The group of the kind.
    pub group: Str,
    /// The plural name of the resource.
    pub plural: Str,
    /// The accepted names of the kind.
    pub names: Names,
    /// Whether objects live in a namespace.
    pub scope: Scope,
    /// Whether the kind is served.
    pub established: bool,
    /// The way in which objects are converted.
    pub conversion: ConversionStrategy,
    /// The versions, in the order of the definition.
    pub versions: Vec<Version>,
}

/// The names of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    /// The kind.
    pub kind: Str,
    /// The kind of its lists.
    pub list_kind: Str,
    /// The singular name of the resource.
    pub singular: Str,
    /// Short names.
    pub short_names: Vec<Str>,
    /// Categories.
    pub categories: Vec<Str>,
}

/// A version of a kind.
#[derive(Clone, Debug)]
pub struct Version {
    /// The version's name.
    pub name: Str,
    /// Whether it is served.
    pub served: bool,
    /// Whether objects are stored in it.
    pub storage: bool,
    /// The warning for its clients; `None` if it is not deprecated, empty for upstream's default.
    pub deprecation: Option<Str>,
    /// The JSON of the schema.
    pub schema: Bytes,
    /// The JSON of everything else that a view of objects depends on.
    pub rest: Bytes,
    /// Whether status has a subresource.
    pub has_status: bool,
    /// The places of the scale.
    pub scale: Option<ScalePaths>,
    /// The columns that the definition adds.
    pub columns: Vec<Column>,
    /// The paths of fields that can be selected, with a leading period.
    pub selectable: Vec<Str>,
}

/// A column of a kind's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    /// The heading.
    pub name: Str,
    /// The type of the cells.
    pub kind: Str,
    /// Their format.
    pub format: Str,
    /// The description; empty for upstream's default.
    pub description: Str,
    /// The priority.
    pub priority: i64,
    /// The place of the value.
    pub path: Str,
}

impl Definition {
    /// Reads the bytes of a stored definition; `None` if they have no group and plural name.
    ///
    /// They may have megabytes and are read for each write of the definition, so each object is walked once.
    pub fn read(body: &Bytes) -> Option<Self> {
        let [spec, status] = Scanned(body).parts(["spec", "status"]);
        let [group, own, scope, conversion, versions] =
            spec?.parts(["group", "names", "scope", "conversion", "versions"]);
        let (group, plural) = (group?.text(), own?.str_at(&["plural"]));
        if group.is_empty() || plural.is_empty() {
            return None;
        }
        let [conditions, accepted] = parts(status, ["conditions", "acceptedNames"]);
        let established = items(conditions).any(|condition| {
            condition.str_at(&["type"]) == "Established" && condition.str_at(&["status"]) == "True"
        });
        let scope = match &*text(scope) {
            "Namespaced" => Scope::Namespaced,
            _ => Scope::Cluster,
        };
        let [strategy] = parts(conversion, ["strategy"]);
        let conversion = match &*text(strategy) {
            "Webhook" => ConversionStrategy::Webhook,
            _ => ConversionStrategy::None,
        };
        Some(Self {
            group: group.into(),
            plural: plural.into(),
            names: names(accepted),
            scope,
            established,
            conversion,
            versions: items(versions)
                .map(|version| read_version(body, version))
                .collect(),
        })
    }

    /// Returns the version that objects are stored in.
    pub fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }
}

fn names(accepted: Option<Scanned<'_>>) -> Names {
    let [kind, list_kind, singular, short_names, categories] = parts(
        accepted,
        ["kind", "listKind", "singular", "shortNames", "categories"],
    );
    let texts = |list| {
        items(list)
            .filter_map(|item| scan::string(item.0))
            .map(Str::from)
    };
    Names {
        kind: text(kind).into(),
        list_kind: text(list_kind).into(),
        singular: text(singular).into(),
        short_names: texts(short_names).collect(),
        categories: texts(categories).collect(),
    }
}

fn read_version(body: &Bytes, version: Scanned<'_>) -> Version {
    let [
        name,
        served,
        storage,
        deprecated,
        warning,
        schema,
        subresources,
        columns,
        selectable,
    ] = version.parts([
        "name",
        "served",
        "storage",
        "deprecated",
        "deprecationWarning",
        "schema",
        "subresources",
        "additionalPrinterColumns",
        "selectableFields",
    ]);
    let rest = [subresources, columns, selectable];
    let [status, scale] = parts(subresources, ["status", "scale"]);
    let [schema] = parts(schema, ["openAPIV3Schema"]);
    let is_true = |part: Option<Scanned<'_>>| part.is_some_and(|part| part.0 == b"true");
    let place = |scale: Scanned<'_>, name: &str| {
        let path = scale.str_at(&[name]);
        Str::from(path.strip_prefix('.').unwrap_or(&path))
    };
    Version {
        name: text(name).into(),
        served: is_true(served),
        storage: is_true(storage),
        deprecation: is_true(deprecated).then(|| text(warning).into()),
        schema: schema.map_or_else(Bytes::new, |schema| body.slice_ref(schema.0)),
        rest: lines(&rest).into(),
        has_status: status.is_some(),
        scale: scale.map(|scale| ScalePaths {
            spec_replicas: place(scale, "specReplicasPath"),
            status_replicas: place(scale, "statusReplicasPath"),
            selector: Some(place(scale, "labelSelectorPath")).filter(|path| !path.is_empty()),
        }),
        columns: items(columns).map(read_column).collect(),
        selectable: items(selectable)
            .map(|field| field.str_at(&["jsonPath"]).into())
            .collect(),
    }
}

/// Returns parts of a definition, each with a line break behind it.
fn lines(parts: &[Option<Scanned<'_>>]) -> Vec<u8> {
    let mut lines = Vec::new();
    for part in parts {
        lines.extend_from_slice(part.map_or(&[][..], |part| part.0));
        lines.push(b'\n');
    }
    lines
}

fn read_column(column: Scanned<'_>) -> Column {
    let [name, kind, format, description, priority, path] = column.parts([
        "name",
        "type",
        "format",
        "description",
        "priority",
        "jsonPath",
    ]);
    Column {
        name: text(name).into(),
        kind: text(kind).into(),
        format: text(format).into(),
        description: text(description).into(),
        priority: priority.and_then(|number| number.int_at(&[])).unwrap_or(0),
        path: text(path).into(),
    }
}

fn parts<'a, const N: usize>(
    object: Option<Scanned<'a>>,
    names: [&str; N],
) -> [Option<Scanned<'a>>; N] {
    object.map_or([None; N], |object| object.parts(names))
}

fn text(part: Option<Scanned<'_>>) -> Cow<'_, str> {
    part.map(Scanned::text).unwrap_or_default()
}

fn items(list: Option<Scanned<'_>>) -> impl Iterator<Item = Scanned<'_>> {
    list.into_iter().flat_map(Scanned::items)
}
