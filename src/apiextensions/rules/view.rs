//! Values of objects as expressions see them: typed by the schema, borrowed from the tree.

use super::declaration::{Declaration, Form};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::time::parse_duration;
use polyplane_cel::{Elements, Fields, Node, Timestamp};

/// A value.
#[derive(Debug)]
pub(crate) enum View<'v> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'v str),
    Bytes(Vec<u8>),
    Duration(i64),
    Timestamp(Timestamp),
    List(Items<'v>),
    Object(Members<'v>),
}

/// The items of a list.
#[derive(Debug)]
pub(crate) struct Items<'v>(Vec<View<'v>>);

/// The members of an object that expressions can see, sorted by their names in expressions.
#[derive(Debug)]
pub(crate) struct Members<'v> {
    visible: Vec<(&'v str, View<'v>)>,
    /// The number of members, the others included.
    len: usize,
}

impl<'v> View<'v> {
    /// Returns a value as expressions see it. A value that does not fit the declaration, which
    /// only a number can, is seen as what it is.
    pub fn of(value: &'v Value, declaration: &'v Declaration) -> Self {
        match (&declaration.form, value) {
            (_, Value::Null) => Self::Null,
            (_, Value::Bool(truth)) => Self::Bool(*truth),
            (Form::Double, Value::Int(number)) => Self::Double(*number as f64),
            (_, Value::Int(number)) => Self::Int(*number),
            (_, Value::Float(number)) => Self::Double(*number),
            (form, Value::String(text)) => Self::of_text(form, text),
            (Form::List(item), Value::Array(items)) => Self::List(Items(
                items.iter().map(|value| Self::of(value, item)).collect(),
            )),
            (_, Value::Array(_)) => Self::List(Items(Vec::new())),
            (Form::Object(fields), Value::Object(members)) => {
                let visible = fields.iter().filter_map(|(name, field)| {
                    let member = members.get(&field.name);
                    // A null is as good as nothing in an object with fields.
                    let value = member.filter(|value| !value.is_null())?;
                    Some((name.as_str(), Self::of(value, &field.declaration)))
                });
                Self::Object(Members {
                    visible: visible.collect(),
                    len: members.len(),
                })
            }
            (Form::Map(below), Value::Object(members)) => {
                let visible = members
                    .iter()
                    .map(|(name, value)| (name, Self::of(value, below)));
                Self::Object(Members {
                    visible: visible.collect(),
                    len: members.len(),
                })
            }
            (_, Value::Object(members)) => Self::Object(Members {
                visible: Vec::new(),
                len: members.len(),
            }),
        }
    }

    fn of_text(form: &Form, text: &'v str) -> Self {
        let read = match form {
            Form::Bytes => STANDARD.decode(text).ok().map(Self::Bytes),
            Form::Duration => parse_duration(text).ok().map(Self::Duration),
            Form::Date => timestamp(&format!("{text}T00:00:00Z")),
            Form::DateTime => timestamp(text),
            _ => None,
        };
        read.unwrap_or(Self::Text(text))
    }

    /// Returns the member of an object, by its name in expressions.
    pub fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.find(name),
            _ => None,
        }
    }

    /// Returns an item of a list.
    pub fn item(&self, at: usize) -> Option<&Self> {
        match self {
            Self::List(items) => items.0.get(at),
            _ => None,
        }
    }

    /// Returns the value for the evaluation.
    pub fn node(&self) -> Node<'_> {
        match self {
            Self::Null => Node::Null,
            Self::Bool(truth) => Node::Bool(*truth),
            Self::Int(number) => Node::Int(*number),
            Self::Double(number) => Node::Double(*number),
            Self::Text(text) => Node::String(text),
            Self::Bytes(bytes) => Node::Bytes(bytes),
            Self::Duration(nanoseconds) => Node::Duration(*nanoseconds),
            Self::Timestamp(time) => Node::Timestamp(*time),
            Self::List(items) => Node::List(items),
            Self::Object(members) => Node::Map(members),
        }
    }
}

fn timestamp<'v>(text: &str) -> Option<View<'v>> {
    Timestamp::parse(text)?.ok().map(View::Timestamp)
}

impl<'v> Members<'v> {
    fn find(&self, name: &str) -> Option<&View<'v>> {
        let found = self
            .visible
            .binary_search_by(|(known, _)| (*known).cmp(name));
        found.ok().map(|at| &self.visible[at].1)
    }
}

impl Fields for Members<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, name: &str) -> Option<Node<'_>> {
        self.find(name).map(View::node)
    }

    fn at(&self, index: usize) -> Option<(&str, Node<'_>)> {
        let (name, view) = self.visible.get(index)?;
        Some((name, view.node()))
    }
}

impl Elements for Items<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn at(&self, index: usize) -> Option<Node<'_>> {
        self.0.get(index).map(View::node)
    }
}
