//! Positions in a schema, as far as they decide ownership.
//!
//! A position allows an object, a scalar, a list, or several of them. The value there, if it has an
//! allowed form, decides how it is walked; otherwise the first of object, scalar and list that is
//! allowed does.

use polyplane_apimachinery::complaints::{BoundedText, STEP_BYTES_MAX, shortened};
use polyplane_apimachinery::schema::ListType;
use polyplane_apimachinery::shape::{Form, MapType, Shape, Values};
use polyplane_apimachinery::value::Value;

use crate::element::Borrowed;
use crate::fault::Faults;
use crate::scalar;

static ATOMIC: ListType = ListType::Atomic;

/// A position in a schema.
#[derive(Clone, Copy, Debug)]
pub struct Position<S>(Place<S>);

#[derive(Clone, Copy, Debug)]
enum Place<S> {
    /// A position in a schema that is known.
    Typed {
        shape: S,
        /// Whether members without a declaration are allowed, because the schema around says so.
        preserves: bool,
        /// Whether this is the whole object, which has kind and apiVersion.
        is_root: bool,
    },
    /// Any JSON. Each member of an object has owners of its own; a list is owned as a whole.
    Untyped,
    /// Any JSON, owned as a whole.
    Opaque,
    /// A text.
    Text,
    /// A member that the schema does not have.
    Undeclared,
}

impl<S> Position<S> {
    /// Any JSON: the position of objects of which no schema is known.
    pub const UNTYPED: Self = Self(Place::Untyped);
    pub(crate) const UNDECLARED: Self = Self(Place::Undeclared);

    /// Returns the position of whole objects.
    pub fn root(shape: S) -> Self {
        Self(Place::Typed {
            shape,
            preserves: false,
            is_root: true,
        })
    }

    /// Returns true if the schema does not have this position.
    pub(crate) fn is_undeclared(&self) -> bool {
        matches!(self.0, Place::Undeclared)
    }
}

/// The way in which a value is walked.
pub(crate) enum Atom<'s, S> {
    Object(Members<S>),
    Scalar(Scalar),
    List(Items<'s, S>),
    /// No value is allowed.
    Invalid,
}

impl<S> Atom<'_, S> {
    /// Returns true if both are walked in the same way.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl<'s, S: Shape<'s>> Position<S> {
    /// Returns how the value here is walked.
    pub(crate) fn atom(self, value: Option<&Value>) -> Atom<'s, S> {
        let own = match value {
            Some(Value::Object(_)) => self.members().map(Atom::Object),
            Some(Value::Array(_)) => self.items().map(Atom::List),
            Some(Value::Null) | None => None,
            Some(_) => self.scalar().map(Atom::Scalar),
        };
        own.or_else(|| self.members().map(Atom::Object))
            .or_else(|| self.scalar().map(Atom::Scalar))
            .or_else(|| self.items().map(Atom::List))
            .unwrap_or(Atom::Invalid)
    }

    /// Returns the members of objects here, if objects are allowed.
    pub(crate) fn members(self) -> Option<Members<S>> {
        let is_atomic = match self.0 {
            Place::Typed { shape, .. } => match shape.form() {
                Form::Object | Form::Any => shape.map() == MapType::Atomic,
                Form::Untyped => return Self::UNTYPED.members(),
                Form::Opaque => return Self(Place::Opaque).members(),
                _ => return None,
            },
            Place::Untyped => false,
            Place::Opaque => true,
            Place::Text | Place::Undeclared => return None,
        };
        Some(Members {
            of: self,
            is_atomic,
        })
    }

    /// Returns the items of lists here, if lists are allowed.
    pub(crate) fn items(self) -> Option<Items<'s, S>> {
        let opaque = Self(Place::Opaque);
        match self.0 {
            Place::Typed {
                shape, preserves, ..
            } => match shape.form() {
                Form::List | Form::Any => Some(Items {
                    list: shape.list(),
                    item: shape.item().map_or(opaque, |item| {
                        below(item, preserves || shape.preserves_unknown())
                    }),
                }),
                Form::Untyped => Self::UNTYPED.items(),
                Form::Opaque => opaque.items(),
                _ => None,
            },
            Place::Untyped | Place::Opaque => Some(Items {
                list: &ATOMIC,
                item: opaque,
            }),
            Place::Text | Place::Undeclared => None,
        }
    }

    /// Returns the scalars here, if scalars are allowed.
    fn scalar(self) -> Option<Scalar> {
        match self.0 {
            Place::Typed { shape, .. } => match shape.form() {
                Form::Number => Some(Scalar::Number),
                Form::Text => Some(Scalar::Text),
                Form::Truth => Some(Scalar::Truth),
                Form::Scalar | Form::Any | Form::Untyped | Form::Opaque => Some(Scalar::Any),
                Form::Object | Form::List => None,
            },
            Place::Untyped | Place::Opaque => Some(Scalar::Any),
            Place::Text => Some(Scalar::Text),
            Place::Undeclared => None,
        }
    }
}

fn below<'s, S: Shape<'s>>(shape: S, preserves: bool) -> Position<S> {
    Position(Place::Typed {
        shape,
        preserves: preserves && !shape.stands_alone(),
        is_root: false,
    })
}

/// The members of objects at a position.
#[derive(Clone, Copy)]
pub(crate) struct Members<S> {
    of: Position<S>,
    /// Whether an object is owned as a whole.
    pub(crate) is_atomic: bool,
}

/// The facts about one member.
#[derive(Clone, Copy)]
pub(crate) struct Member<S> {
    pub(crate) position: Position<S>,
    /// Whether the schema declares it by name.
    pub(crate) is_field: bool,
}

impl<'s, S: Shape<'s>> Members<S> {
    /// Returns the facts about a member; its position allows no value if it is not declared.
    pub(crate) fn member(&self, name: &str) -> Member<S> {
        let Place::Typed {
            shape,
            preserves,
            is_root,
        } = self.of.0
        else {
            return Member {
                position: self.of,
                is_field: false,
            };
        };
        let preserves = preserves || shape.preserves_unknown();
        if let Some(child) = shape.child(name) {
            return Member {
                position: below(child, preserves),
                is_field: true,
            };
        }
        if (is_root || shape.has_kind()) && matches!(name, "apiVersion" | "kind") {
            return Member {
                position: Position(Place::Text),
                is_field: true,
            };
        }
        Member {
            position: self.undeclared(),
            is_field: false,
        }
    }

    /// Returns the position of members that the schema does not declare by name.
    pub(crate) fn undeclared(&self) -> Position<S> {
        let Place::Typed {
            shape, preserves, ..
        } = self.of.0
        else {
            return self.of;
        };
        let preserves = preserves || shape.preserves_unknown();
        match shape.values() {
            Some(Values::Of(values)) => below(values, preserves),
            Some(Values::Untyped) => Position::UNTYPED,
            None if preserves || shape.children().next().is_none() => Position::UNTYPED,
            None => Position::UNDECLARED,
        }
    }

    /// Returns true if no member is declared and all are allowed, so that there is no relation that
    /// could have changed.
    pub(crate) fn are_untyped(&self) -> bool {
        match self.of.0 {
            Place::Typed { shape, .. } => {
                let is_untyped = matches!(self.undeclared().0, Place::Untyped);
                is_untyped && shape.children().next().is_none()
            }
            Place::Untyped => true,
            Place::Opaque | Place::Text | Place::Undeclared => false,
        }
    }
}

/// The items of lists at a position.
#[derive(Clone, Copy)]
pub(crate) struct Items<'s, S> {
    list: &'s ListType,
    pub(crate) item: Position<S>,
}

impl<'s, S: Shape<'s>> Items<'s, S> {
    /// Returns true if a list is owned as a whole.
    pub(crate) fn are_atomic(&self) -> bool {
        *self.list == ListType::Atomic
    }

    /// Returns the element that identifies an item.
    ///
    /// # Errors
    /// Returns upstream's text if the item has no identity.
    pub(crate) fn element<'v>(&self, item: &'v Value) -> Result<Borrowed<'v>, String>
    where
        's: 'v,
    {
        match self.list {
            ListType::Map(keys) if !keys.is_empty() => self.key(keys, item),
            ListType::Map(_) | ListType::Set => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".into())
                }
                Value::Array(_) => {
                    Err("not supported: associative list with lists as elements".into())
                }
                Value::Null => Err(
                    "associative list without keys has an element that's an explicit null".into(),
                ),
                value => Ok(Borrowed::Value(value)),
            },
            ListType::Atomic => Err("invalid indexing of non-associative list".into()),
        }
    }

    fn key<'v>(
        &self,
        keys: &'s [polyplane_apimachinery::value::Str],
        item: &'v Value,
    ) -> Result<Borrowed<'v>, String>
    where
        's: 'v,
    {
        let members = match item {
            Value::Object(members) => members,
            Value::Null => {
                return Err("associative list with keys may not have a null element".into());
            }
            _ => return Err("associative list with keys may not have non-map elements".into()),
        };
        let part = |key: &'s str| match members.get(key) {
            Some(value) => Ok(Some(value)),
            None => self.key_default(key),
        };
        if let [key] = keys
            && let Some(value) = part(key)?
        {
            return Ok(Borrowed::One(key, value));
        }
        let mut parts: Vec<(&'v str, &'v Value)> = Vec::with_capacity(keys.len());
        for key in keys {
            parts.extend(part(key)?.map(|value| (key.as_str(), value)));
        }
        if parts.is_empty() {
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and \
                 doesn't have default values for any key fields)",
                quoted(keys)
            ));
        }
        parts.sort_by_key(|(name, _)| *name);
        Ok(Borrowed::Many(parts))
    }

    fn key_default(&self, key: &str) -> Result<Option<&'s Value>, String> {
        let fault = |detail| {
            let key = shortened(key, STEP_BYTES_MAX);
            format!("couldn't find default value for {key}: {detail}")
        };
        match self.item.0 {
            Place::Undeclared => Err(fault("invalid elementType for list")),
            Place::Text => Err(fault("associative list may not have non-map types")),
            Place::Untyped | Place::Opaque => Ok(None),
            Place::Typed { shape, .. } => match shape.form() {
                Form::Object | Form::Any => Ok(shape.child(key).and_then(Shape::key_default)),
                Form::Untyped | Form::Opaque => Ok(None),
                _ => Err(fault("associative list may not have non-map types")),
            },
        }
    }
}

/// Returns the names of keys, quoted. Each item of a list may lack them, so their text is bounded.
fn quoted(keys: &[polyplane_apimachinery::value::Str]) -> String {
    let mut names = BoundedText::new(STEP_BYTES_MAX);
    for (at, key) in keys.iter().enumerate() {
        if names.is_cut() {
            break;
        }
        if at > 0 {
            names.push(" ");
        }
        names.push(&polyplane_apimachinery::quote::quote(key));
    }
    names.into_string()
}

/// The scalars that a position allows. `null` is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Number,
    Text,
    Truth,
    Any,
}

impl Scalar {
    /// Adds a fault if the value is not such a scalar, and returns whether it is.
    pub(crate) fn check(self, value: &Value, side: &str, faults: &mut Faults) -> bool {
        let fits = match value {
            Value::Null => true,
            Value::Int(_) | Value::Float(_) => matches!(self, Self::Number | Self::Any),
            Value::String(_) => matches!(self, Self::Text | Self::Any),
            Value::Bool(_) => matches!(self, Self::Truth | Self::Any),
            Value::Array(_) | Value::Object(_) => false,
        };
        if !fits {
            faults.push(format!("{side}{}", self.complaint(value)));
        }
        fits
    }

    fn complaint(self, value: &Value) -> String {
        let mut text = String::new();
        match self {
            Self::Number => {
                return format!("expected numeric (int or float), got {}", value.go_type());
            }
            Self::Text => {
                text.push_str("expected string, got &value.valueUnstructured{Value:");
                scalar::print_syntax(value, &mut text);
            }
            Self::Truth => {
                text.push_str("expected boolean, got &{");
                scalar::print(value, &mut text);
            }
            Self::Any => {
                text.push_str("expected any scalar, got &{");
                scalar::print(value, &mut text);
            }
        }
        text.push('}');
        text
    }
}
