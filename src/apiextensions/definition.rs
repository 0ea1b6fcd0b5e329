//! What a row needs of a stored CustomResourceDefinition, read without a tree of its schemas.

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
    pub fn read(body: &Bytes) -> Option<Self> {
        let object = Scanned(body);
        let group = object.str_at(&["spec", "group"]);
        let plural = object.str_at(&["spec", "names", "plural"]);
        if group.is_empty() || plural.is_empty() {
            return None;
        }
        let established = items(object, &["status", "conditions"]).any(|condition| {
            condition.str_at(&["type"]) == "Established" && condition.str_at(&["status"]) == "True"
        });
        let scope = match &*object.str_at(&["spec", "scope"]) {
            "Namespaced" => Scope::Namespaced,
            _ => Scope::Cluster,
        };
        let conversion = match &*object.str_at(&["spec", "conversion", "strategy"]) {
            "Webhook" => ConversionStrategy::Webhook,
            _ => ConversionStrategy::None,
        };
        Some(Self {
            group: group.into(),
            plural: plural.into(),
            names: names(object),
            scope,
            established,
            conversion,
            versions: items(object, &["spec", "versions"])
                .map(|version| read_version(body, version))
                .collect(),
        })
    }

    /// Returns the version that objects are stored in.
    pub fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }
}

fn names(object: Scanned<'_>) -> Names {
    let text = |name: &str| Str::from(object.str_at(&["status", "acceptedNames", name]));
    let list = |name: &str| texts(object, &["status", "acceptedNames", name]);
    Names {
        kind: text("kind"),
        list_kind: text("listKind"),
        singular: text("singular"),
        short_names: list("shortNames"),
        categories: list("categories"),
    }
}

fn read_version(body: &Bytes, version: Scanned<'_>) -> Version {
    let part = |path: &[&str]| {
        let found = version.at(path);
        found.map_or_else(Bytes::new, |found| body.slice_ref(found.0))
    };
    let text = |path: &[&str]| Str::from(version.str_at(path));
    let scale = |name: &str| {
        let path = version.str_at(&["subresources", "scale", name]);
        Str::from(path.strip_prefix('.').unwrap_or(&path))
    };
    let has_scale = version.at(&["subresources", "scale"]).is_some();
    let rest = [
        "subresources",
        "additionalPrinterColumns",
        "selectableFields",
    ];
    let rest: Vec<u8> = rest
        .iter()
        .flat_map(|name| [part(&[name]), Bytes::from_static(b"\n")].concat())
        .collect();
    Version {
        name: text(&["name"]),
        served: version.bool_at(&["served"]),
        storage: version.bool_at(&["storage"]),
        deprecation: version
            .bool_at(&["deprecated"])
            .then(|| text(&["deprecationWarning"])),
        schema: part(&["schema", "openAPIV3Schema"]),
        rest: rest.into(),
        has_status: version.at(&["subresources", "status"]).is_some(),
        scale: has_scale.then(|| ScalePaths {
            spec_replicas: scale("specReplicasPath"),
            status_replicas: scale("statusReplicasPath"),
            selector: Some(scale("labelSelectorPath")).filter(|path| !path.is_empty()),
        }),
        columns: items(version, &["additionalPrinterColumns"])
            .map(read_column)
            .collect(),
        selectable: items(version, &["selectableFields"])
            .map(|field| field.str_at(&["jsonPath"]).into())
            .collect(),
    }
}

fn read_column(column: Scanned<'_>) -> Column {
    Column {
        name: column.str_at(&["name"]).into(),
        kind: column.str_at(&["type"]).into(),
        format: column.str_at(&["format"]).into(),
        description: column.str_at(&["description"]).into(),
        priority: column.int_at(&["priority"]).unwrap_or(0),
        path: column.str_at(&["jsonPath"]).into(),
    }
}

fn items<'a>(object: Scanned<'a>, path: &[&str]) -> impl Iterator<Item = Scanned<'a>> + use<'a> {
    let array = object.at(path).map_or(&[][..], |array| array.0);
    scan::items(array).map(move |range| Scanned(&array[range]))
}

fn texts(object: Scanned<'_>, path: &[&str]) -> Vec<Str> {
    let texts = items(object, path).filter_map(|item| scan::string(item.0));
    texts.map(Str::from).collect()
}
