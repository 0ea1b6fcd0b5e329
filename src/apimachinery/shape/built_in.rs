//! Shapes of generated schemas.

use std::borrow::Cow;

use super::{Form, Kind, MapType, Shape, Values};
use crate::schema::{
    DefId, Definition, Field, ListType, Patch, Presence, Schemas, Type, Unknown, go,
};
use crate::value::Value;

static ATOMIC: ListType = ListType::Atomic;
static PLAIN: Patch = Patch::PLAIN;

/// A position in [`Schemas`].
#[derive(Clone, Copy)]
pub struct BuiltIn<'s> {
    schemas: &'s Schemas,
    node: Node<'s>,
    nullable: bool,
    /// The field whose whole value this is; `None` for items and values of maps.
    field: Option<&'s Field>,
}

#[derive(Clone, Copy)]
enum Node<'s> {
    /// An object of a definition.
    Definition(&'s Definition),
    /// Any other type; never a reference and never nullable.
    Type(&'s Type),
    /// An item of [`Type::Bytes`].
    Byte,
}

impl<'s> BuiltIn<'s> {
    /// Returns a number, not zero, that identifies the shape of objects of a definition within this
    /// process: see [`Schemas::number`].
    pub fn number(schemas: &Schemas, id: DefId) -> u64 {
        schemas.number() << 32 | u64::from(id.0)
    }

    /// Returns the shape of objects of a definition.
    pub fn root(schemas: &'s Schemas, id: DefId) -> Self {
        Self {
            schemas,
            node: Node::Definition(schemas.get(id)),
            nullable: false,
            field: None,
        }
    }

    fn of(schemas: &'s Schemas, ty: &'s Type, field: Option<&'s Field>) -> Self {
        let (mut ty, mut nullable) = (ty, false);
        while let Type::Nullable(inner) = ty {
            (ty, nullable) = (inner, true);
        }
        let node = match ty {
            Type::Ref(id) => Node::Definition(schemas.get(*id)),
            ty => Node::Type(ty),
        };
        Self {
            schemas,
            node,
            nullable,
            field,
        }
    }

    fn definition(self) -> Option<&'s Definition> {
        match self.node {
            Node::Definition(definition) => Some(definition),
            Node::Type(
                Type::SchemaOrBool(id) | Type::SchemaOrArray(id) | Type::SchemaOrStrings(id),
            ) => Some(self.schemas.get(*id)),
            Node::Type(_) | Node::Byte => None,
        }
    }
}

impl<'s> Shape<'s> for BuiltIn<'s> {
    fn kind(self) -> Kind {
        let ty = match self.node {
            Node::Definition(_) => return Kind::Object,
            Node::Byte => return Kind::Byte,
            Node::Type(ty) => ty,
        };
        match ty {
            Type::String => Kind::String,
            Type::Bool => Kind::Bool,
            Type::Int32 => Kind::Int32,
            Type::Int64 => Kind::Int64,
            Type::Float64 => Kind::Float64,
            Type::Bytes => Kind::Bytes,
            Type::Time | Type::MicroTime | Type::Duration | Type::Quantity => Kind::Scalar,
            Type::IntOrString => Kind::IntOrString,
            Type::Raw | Type::Json | Type::FieldsV1 => Kind::Any,
            Type::List(_) => Kind::List,
            Type::Map(_) => Kind::Map,
            Type::Ref(_)
            | Type::Nullable(_)
            | Type::SchemaOrBool(_)
            | Type::SchemaOrArray(_)
            | Type::SchemaOrStrings(_) => Kind::Object,
        }
    }

    fn name(self) -> Cow<'s, str> {
        match self.definition() {
            Some(definition) => go::struct_name(definition).into(),
            None => Cow::Borrowed(match self.node {
                Node::Type(Type::Raw) => "RawExtension",
                Node::Type(Type::Json) => "JSON",
                Node::Type(Type::FieldsV1) => "FieldsV1",
                Node::Type(Type::Time) => "Time",
                Node::Type(Type::MicroTime) => "MicroTime",
                Node::Type(Type::Duration) => "Duration",
                Node::Type(Type::Quantity) => "Quantity",
                Node::Type(Type::IntOrString) => "IntOrString",
                Node::Definition(_) | Node::Type(_) | Node::Byte => "",
            }),
        }
    }

    fn child(self, name: &str) -> Option<Self> {
        let field = self.definition()?.field(name)?;
        Some(Self::of(self.schemas, &field.ty, Some(field)))
    }

    fn children(self) -> impl Iterator<Item = (&'s str, Self)> {
        let fields = self.definition().map_or(&[][..], |known| &known.fields);
        fields.iter().map(move |field| {
            let shape = Self::of(self.schemas, &field.ty, Some(field));
            (field.name.as_str(), shape)
        })
    }

    fn width(self) -> usize {
        self.definition().map_or(0, |known| known.fields.len())
    }

    fn item(self) -> Option<Self> {
        match self.node {
            Node::Type(Type::List(item)) => Some(Self::of(self.schemas, item, None)),
            Node::Type(Type::SchemaOrArray(id)) => Some(Self::root(self.schemas, *id)),
            Node::Type(Type::SchemaOrStrings(_)) => {
                Some(Self::of(self.schemas, &Type::String, None))
            }
            Node::Type(Type::Bytes) => Some(Self {
                node: Node::Byte,
                nullable: false,
                field: None,
                ..self
            }),
            Node::Definition(_) | Node::Type(_) | Node::Byte => None,
        }
    }

    fn values(self) -> Option<Values<Self>> {
        match self.node {
            Node::Type(Type::Map(item)) => Some(Values::Of(Self::of(self.schemas, item, None))),
            Node::Definition(_) | Node::Type(_) | Node::Byte => None,
        }
    }

    fn list(self) -> &'s ListType {
        self.field.map_or(&ATOMIC, |field| &field.list)
    }

    /// Returns what the field declares, else what its type declares.
    fn map(self) -> MapType {
        match self.field.and_then(|field| field.notes.map_type.as_deref()) {
            Some("atomic") => MapType::Atomic,
            Some("granular") => MapType::Granular,
            _ => match self.node {
                Node::Definition(definition) => definition.map,
                Node::Type(_) | Node::Byte => MapType::Granular,
            },
        }
    }

    fn form(self) -> Form {
        match self.node {
            Node::Type(Type::Raw) => Form::Opaque,
            // Published as an object without fields.
            Node::Type(Type::FieldsV1) => Form::Object,
            // Published without a type.
            Node::Type(
                Type::Json
                | Type::SchemaOrBool(_)
                | Type::SchemaOrArray(_)
                | Type::SchemaOrStrings(_),
            ) => Form::Untyped,
            Node::Type(Type::Duration) => Form::Text,
            Node::Definition(_) | Node::Type(_) | Node::Byte => Form::of(self.kind()),
        }
    }

    fn has_kind(self) -> bool {
        matches!(self.node, Node::Definition(definition) if definition.type_meta)
    }

    fn key_default(self) -> Option<&'s Value> {
        self.field?.notes.key_default.as_ref()
    }

    fn patch(self) -> &'s Patch {
        self.field.map_or(&PLAIN, |field| &field.patch)
    }

    fn default(self) -> Option<&'s Value> {
        self.field?.default.as_ref()
    }

    fn has_defaults(self) -> bool {
        match self.node {
            Node::Definition(definition) => definition.defaulted,
            Node::Type(ty) => {
                let inner = ty.definition();
                inner.is_some_and(|id| self.schemas.get(id).defaulted)
            }
            Node::Byte => false,
        }
    }

    /// Returns true if the member is absent. A member whose field does not distinguish absent from
    /// zero counts as absent if it is zero.
    fn is_absent(self, member: Option<&Value>) -> bool {
        match (member, self.field) {
            (None | Some(Value::Null), _) => true,
            (Some(value), Some(field)) if field.presence == Presence::Plain => {
                self.schemas.is_zero(&field.ty, value)
            }
            (Some(_), _) => false,
        }
    }

    fn nullable(self) -> bool {
        let pointer = |field: &Field| field.presence == Presence::Pointer;
        self.nullable || self.field.is_some_and(pointer)
    }

    fn preserves_unknown(self) -> bool {
        match self.node {
            Node::Definition(definition) => definition.unknown == Unknown::Keep,
            Node::Type(ty) => matches!(ty, Type::Raw | Type::Json | Type::FieldsV1),
            Node::Byte => false,
        }
    }

    fn is_embedded(self) -> bool {
        false
    }
}
