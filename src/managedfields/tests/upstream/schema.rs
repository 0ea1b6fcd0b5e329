//! Schemas in the form of structured-merge-diff, which its tests use.

use std::borrow::Cow;
use std::collections::BTreeMap;

use polyplane_apimachinery::schema::{ListType, Patch};
use polyplane_apimachinery::shape::{Form, Kind, MapType, Shape, Values};
use polyplane_apimachinery::value::{Str, Value};

static ATOMIC: ListType = ListType::Atomic;
static PLAIN: Patch = Patch::PLAIN;
/// The names under which schemas have the types of untyped values.
const UNTYPED: &str = "__untyped_deduced_";
const OPAQUE: &str = "__untyped_atomic_";

/// All types of a schema that something refers to.
#[derive(Debug, Default)]
pub struct Schema {
    types: BTreeMap<Str, Value>,
    nodes: Vec<Node>,
    /// The nodes of references by name, with the relation that the reference overrides.
    known: BTreeMap<(Str, Str), usize>,
}

#[derive(Debug, Default)]
struct Node {
    name: Str,
    scalar: Option<Form>,
    list: Option<(ListType, usize)>,
    map: Option<Members>,
}

#[derive(Debug)]
struct Members {
    fields: Vec<(Str, usize, Option<Value>)>,
    values: Option<usize>,
    relation: MapType,
}

impl Schema {
    /// Reads the list of types.
    pub fn new(types: &Value) -> Self {
        let list = types.as_array().expect("a schema has a list of types");
        let named = list
            .iter()
            .map(|ty| (Str::from(ty.str_at(&["name"])), ty.clone()));
        Self {
            types: named.collect(),
            ..Self::default()
        }
    }

    /// Returns true if there is a type of this name.
    pub fn has(&self, name: &str) -> bool {
        self.types.contains_key(name)
    }

    /// Returns the node of a type.
    pub fn named(&mut self, name: &str) -> usize {
        self.resolve(&polyplane_apimachinery::json!({"namedType": name}))
    }

    /// Returns the node of a reference.
    pub fn resolve(&mut self, reference: &Value) -> usize {
        let name = reference.str_at(&["namedType"]);
        let relation = reference.str_at(&["elementRelationship"]);
        if name.is_empty() {
            let at = self.reserve("");
            self.fill(at, reference, relation);
            return at;
        }
        let key = (name.into(), relation.into());
        if let Some(at) = self.known.get(&key) {
            return *at;
        }
        let at = self.reserve(name);
        self.known.insert(key, at);
        if let Some(atom) = self.types.get(name).cloned() {
            self.fill(at, &atom, relation);
        }
        at
    }

    fn reserve(&mut self, name: &str) -> usize {
        self.nodes.push(Node {
            name: name.into(),
            ..Node::default()
        });
        self.nodes.len() - 1
    }

    fn fill(&mut self, at: usize, atom: &Value, overridden: &str) {
        let relation = |own: &Value| match overridden {
            "" => own.str_at(&["elementRelationship"]).to_owned(),
            relation => relation.to_owned(),
        };
        self.nodes[at].scalar = match atom.str_at(&["scalar"]) {
            "" => None,
            "numeric" => Some(Form::Number),
            "string" => Some(Form::Text),
            "boolean" => Some(Form::Truth),
            _ => Some(Form::Scalar),
        };
        if let Some(list) = atom.get("list") {
            let item = self.resolve(&list["elementType"]);
            let keys = list.items_at(&["keys"]).iter();
            let keys: Vec<Str> = keys.filter_map(Value::as_str).map(Str::from).collect();
            let kind = match relation(list).as_str() {
                "associative" if keys.is_empty() => ListType::Set,
                "associative" => ListType::Map(keys),
                _ => ListType::Atomic,
            };
            self.nodes[at].list = Some((kind, item));
        }
        if let Some(map) = atom.get("map") {
            let mut fields = Vec::new();
            for field in map.items_at(&["fields"]) {
                let position = self.resolve(&field["type"]);
                let default = field.get("default").filter(|value| !value.is_null());
                fields.push((field.str_at(&["name"]).into(), position, default.cloned()));
            }
            let values = map.get("elementType");
            let values = values.filter(|of| of.as_object().is_some_and(|of| !of.is_empty()));
            let values = values.map(|values| self.resolve(values));
            let relation = match relation(map).as_str() {
                "atomic" => MapType::Atomic,
                _ => MapType::Granular,
            };
            self.nodes[at].map = Some(Members {
                fields,
                values,
                relation,
            });
        }
    }

    /// Returns the position of a node.
    pub fn at(&self, node: usize) -> Position<'_> {
        Position {
            schema: self,
            node: &self.nodes[node],
            default: None,
        }
    }
}

/// A position in a [`Schema`].
#[derive(Clone, Copy, Debug)]
pub struct Position<'s> {
    schema: &'s Schema,
    node: &'s Node,
    default: Option<&'s Value>,
}

impl<'s> Shape<'s> for Position<'s> {
    fn kind(self) -> Kind {
        Kind::Any
    }

    fn form(self) -> Form {
        let node = self.node;
        match node.name.as_str() {
            UNTYPED => return Form::Untyped,
            OPAQUE => return Form::Opaque,
            _ => {}
        }
        match (&node.map, node.scalar, &node.list) {
            (Some(_), None, None) => Form::Object,
            (None, Some(scalar), None) => scalar,
            (None, None, Some(_)) => Form::List,
            (Some(_), Some(Form::Scalar), Some(_)) => Form::Any,
            (None, None, None) => panic!("{} is not in the schema", node.name),
            other => panic!("{} has a form that no kind has: {other:?}", node.name),
        }
    }

    fn name(self) -> Cow<'s, str> {
        Cow::Borrowed(&self.node.name)
    }

    fn child(self, name: &str) -> Option<Self> {
        let mut children = self.children();
        children.find_map(|(known, child)| (known == name).then_some(child))
    }

    fn children(self) -> impl Iterator<Item = (&'s str, Self)> {
        let fields = self.node.map.as_ref().map(|map| map.fields.as_slice());
        let fields = fields.unwrap_or_default().iter();
        fields.map(move |(name, node, default)| {
            let child = Self {
                default: default.as_ref(),
                ..self.schema.at(*node)
            };
            (name.as_str(), child)
        })
    }

    fn item(self) -> Option<Self> {
        let (_, item) = self.node.list.as_ref()?;
        Some(self.schema.at(*item))
    }

    fn values(self) -> Option<Values<Self>> {
        let values = self.schema.at(self.node.map.as_ref()?.values?);
        Some(match values.node.name.as_str() {
            UNTYPED => Values::Untyped,
            _ => Values::Of(values),
        })
    }

    fn list(self) -> &'s ListType {
        self.node.list.as_ref().map_or(&ATOMIC, |(list, _)| list)
    }

    fn map(self) -> MapType {
        let map = self.node.map.as_ref();
        map.map_or(MapType::Granular, |map| map.relation)
    }

    fn patch(self) -> &'s Patch {
        &PLAIN
    }

    fn default(self) -> Option<&'s Value> {
        self.default
    }

    fn has_defaults(self) -> bool {
        false
    }

    fn is_absent(self, member: Option<&Value>) -> bool {
        member.is_none()
    }

    fn nullable(self) -> bool {
        true
    }

    fn preserves_unknown(self) -> bool {
        false
    }

    fn is_embedded(self) -> bool {
        false
    }
}
