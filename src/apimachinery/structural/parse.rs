//! Parses an `openAPIV3Schema` into a [`Structural`].

use super::{Flags, Node, NodeId, Notes, Structural};
use crate::schema::ListType;
use crate::shape::{Kind, MapType, Values};
use crate::value::{Map, Str, Value};

/// Depth of nested schemas. Known CustomResourceDefinitions need about 30; each level is a stack
/// frame of every recursive walk.
const DEPTH_MAX: usize = 128;
/// Number of schemas within a schema, which bounds the memory that a tenant can use. The largest
/// known CustomResourceDefinitions have some 30 000.
const NODES_MAX: usize = 1 << 17;

/// Members that a structural schema cannot have.
const UNSUPPORTED: [&str; 7] = [
    "id",
    "$schema",
    "$ref",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
];

/// The reason why a schema is not structural.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StructuralError {
    /// A member has a type or value that is not allowed.
    #[error("{path}: must be {wanted}")]
    Member {
        /// The path of the member, such as `properties[spec].type`.
        path: String,
        /// The allowed types or values.
        wanted: &'static str,
    },
    /// A member of JSON Schema that structural schemas do not have.
    #[error("{path}: is not supported")]
    Unsupported {
        /// The path of the member.
        path: String,
    },
    /// Schemas are nested too deeply.
    #[error("has more than {DEPTH_MAX} levels")]
    TooDeep,
    /// There are too many schemas.
    #[error("has more than {NODES_MAX} schemas")]
    TooLarge,
}

impl Structural {
    /// Parses an `openAPIV3Schema`. Members that do not concern structure are ignored.
    ///
    /// # Errors
    /// Returns an error if a member that concerns structure has a wrong type, or if the schema is
    /// too deep or too large.
    pub fn parse(schema: &Value) -> Result<Self, StructuralError> {
        let mut parser = Parser {
            nodes: Vec::new(),
            path: Vec::new(),
        };
        parser.node(schema)?;
        parser.nodes.shrink_to_fit();
        Ok(Self {
            nodes: parser.nodes,
        })
    }

    /// Parses the `openAPIV3Schema` of an object that has kind and metadata, as that of a whole definition
    /// describes, whether or not it says so.
    ///
    /// # Errors
    /// See [`Self::parse`].
    pub fn parse_object(schema: &Value) -> Result<Self, StructuralError> {
        let mut parsed = Self::parse(schema)?;
        if let Some(root) = parsed.nodes.last_mut() {
            root.flags.is_embedded = true;
        }
        Ok(parsed)
    }
}

struct Parser<'v> {
    nodes: Vec<Node>,
    path: Vec<PathSegment<'v>>,
}

enum PathSegment<'v> {
    Member(&'static str),
    Field(&'v str),
}

type Parsed<T> = Result<T, StructuralError>;

impl<'v> Parser<'v> {
    fn node(&mut self, schema: &'v Value) -> Parsed<NodeId> {
        if self.path.len() >= DEPTH_MAX {
            return Err(StructuralError::TooDeep);
        }
        let members = match schema {
            Value::Object(members) => members,
            _ => return Err(self.wrong("an object")),
        };
        self.check_supported(members)?;
        let fields = self.fields(members)?;
        let item = match known(members, "items") {
            None => None,
            Some(item) => {
                Some(self.within(PathSegment::Member("items"), |parser| parser.node(item))?)
            }
        };
        let values = match known(members, "additionalProperties") {
            None => None,
            Some(Value::Bool(_)) => Some(Values::Untyped),
            Some(values) => {
                let step = PathSegment::Member("additionalProperties");
                Some(Values::Of(self.within(step, |parser| parser.node(values))?))
            }
        };
        let notes = Notes {
            default: known(members, "default").cloned(),
            list: self.list(members)?,
            map: self.map(members)?,
            defaulted: self.defaulted(&fields),
        };
        let node = Node {
            kind: self.kind(members, !fields.is_empty(), values.is_some())?,
            flags: Flags {
                nullable: self.flag(members, "nullable")?,
                has_format: !matches!(self.text(members, "format")?, "" | "byte"),
                preserves_unknown: self.preserves(members)?,
                is_embedded: self.flag(members, "x-kubernetes-embedded-resource")?,
                has_defaults: self.any_defaults(&fields, item, values),
            },
            fields,
            item,
            values,
            notes: (notes != Notes::default()).then(|| Box::new(notes)),
        };
        if self.nodes.len() >= NODES_MAX {
            return Err(StructuralError::TooLarge);
        }
        let id = NodeId(u32::try_from(self.nodes.len()).map_err(|_| StructuralError::TooLarge)?);
        self.nodes.push(node);
        Ok(id)
    }

    fn fields(&mut self, members: &'v Map) -> Parsed<Box<[(Str, NodeId)]>> {
        let properties = match known(members, "properties") {
            None => return Ok(Box::default()),
            Some(Value::Object(properties)) => properties,
            Some(_) => return Err(self.wrong_at("properties", "an object")),
        };
        let mut fields = Vec::with_capacity(properties.len());
        for (name, schema) in properties.iter() {
            let step = PathSegment::Field(name);
            fields.push((
                name.into(),
                self.within(step, |parser| parser.node(schema))?,
            ));
        }
        Ok(fields.into())
    }

    /// Returns the positions of the fields that have a default themselves.
    fn defaulted(&self, fields: &[(Str, NodeId)]) -> Box<[u32]> {
        let places = fields.iter().zip(0..);
        let places = places.filter(|((_, id), _)| self.has_default(*id));
        places.map(|(_, at)| at).collect()
    }

    fn has_default(&self, id: NodeId) -> bool {
        let notes = self.nodes[id.0 as usize].notes.as_ref();
        notes.is_some_and(|notes| notes.default.is_some())
    }

    fn any_defaults(
        &self,
        fields: &[(Str, NodeId)],
        item: Option<NodeId>,
        values: Option<Values<NodeId>>,
    ) -> bool {
        let below = fields.iter().map(|(_, id)| *id).chain(item);
        let mut below = below.chain(values.and_then(Values::shape));
        below.any(|id| self.has_default(id) || self.nodes[id.0 as usize].flags.has_defaults)
    }

    fn kind(&self, members: &Map, has_fields: bool, has_values: bool) -> Parsed<Kind> {
        if self.flag(members, "x-kubernetes-int-or-string")? {
            return Ok(Kind::IntOrString);
        }
        Ok(match self.text(members, "type")? {
            "" => Kind::Any,
            "object" if has_values && !has_fields => Kind::Map,
            "object" => Kind::Object,
            "array" => Kind::List,
            "string" => Kind::String,
            "boolean" => Kind::Bool,
            "integer" => Kind::Int64,
            "number" => Kind::Float64,
            _ => {
                let wanted = "array, boolean, integer, number, object or string";
                return Err(self.wrong_at("type", wanted));
            }
        })
    }

    /// Returns whether unknown members are preserved. False means "as in the schema around it":
    /// upstream allows only true and absent.
    fn preserves(&self, members: &Map) -> Parsed<bool> {
        let name = "x-kubernetes-preserve-unknown-fields";
        match known(members, name) {
            None => Ok(false),
            Some(Value::Bool(true)) => Ok(true),
            Some(_) => Err(self.wrong_at(name, "true or absent")),
        }
    }

    fn list(&self, members: &Map) -> Parsed<ListType> {
        let (kind, keys) = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys");
        Ok(match self.text(members, kind)? {
            "" | "atomic" => ListType::Atomic,
            "set" => ListType::Set,
            "map" => {
                let names = match known(members, keys) {
                    None => &[][..],
                    Some(Value::Array(names)) => names,
                    Some(_) => return Err(self.wrong_at(keys, "a list of strings")),
                };
                let names = names.iter().map(|name| name.as_str().map(Str::from));
                let names: Option<Vec<Str>> = names.collect();
                ListType::Map(names.ok_or_else(|| self.wrong_at(keys, "a list of strings"))?)
            }
            _ => return Err(self.wrong_at(kind, "atomic, map or set")),
        })
    }

    fn map(&self, members: &Map) -> Parsed<MapType> {
        let name = "x-kubernetes-map-type";
        match self.text(members, name)? {
            "" | "granular" => Ok(MapType::Granular),
            "atomic" => Ok(MapType::Atomic),
            _ => Err(self.wrong_at(name, "atomic or granular")),
        }
    }

    fn flag(&self, members: &Map, name: &'static str) -> Parsed<bool> {
        match known(members, name) {
            None => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(_) => Err(self.wrong_at(name, "true or false")),
        }
    }

    fn text<'m>(&self, members: &'m Map, name: &'static str) -> Parsed<&'m str> {
        match known(members, name) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.wrong_at(name, "a string")),
        }
    }

    fn check_supported(&self, members: &Map) -> Parsed<()> {
        let is_set = |name: &&&str| match known(members, name) {
            None => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Object(inner)) => !inner.is_empty(),
            Some(_) => true,
        };
        match UNSUPPORTED.iter().find(is_set) {
            None => Ok(()),
            Some(name) => Err(StructuralError::Unsupported {
                path: self.path_to(name),
            }),
        }
    }

    fn within<T>(
        &mut self,
        step: PathSegment<'v>,
        visit: impl FnOnce(&mut Self) -> Parsed<T>,
    ) -> Parsed<T> {
        self.path.push(step);
        let outcome = visit(self)?;
        self.path.pop();
        Ok(outcome)
    }

    fn wrong(&self, wanted: &'static str) -> StructuralError {
        self.wrong_at("", wanted)
    }

    fn wrong_at(&self, member: &str, wanted: &'static str) -> StructuralError {
        StructuralError::Member {
            path: self.path_to(member),
            wanted,
        }
    }

    /// Returns the path of a member of the present schema, or of that schema itself.
    fn path_to(&self, member: &str) -> String {
        let mut path = String::from("openAPIV3Schema");
        for step in &self.path {
            match step {
                PathSegment::Member(name) => path.push_str(&format!(".{name}")),
                PathSegment::Field(name) => path.push_str(&format!(".properties[{name}]")),
            }
        }
        if !member.is_empty() {
            path.push_str(&format!(".{member}"));
        }
        path
    }
}

/// Returns a member that is present and not null.
fn known<'v>(members: &'v Map, name: &str) -> Option<&'v Value> {
    members.get(name).filter(|value| !value.is_null())
}
