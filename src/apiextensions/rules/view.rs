//! Values of objects as expressions see them: typed by the schema, borrowed from the tree.

use super::declaration::{Declaration, Field, Form, escape};
use crate::validation::duration;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::{Map, Value, json};
use polyplane_cel::{Elements, Fields, Node, Relation, Timestamp, is_reserved};
use std::collections::BTreeMap;

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
    /// A value that does not fit the declaration.
    Invalid(&'static str),
}

const NO_OBJECT: &str = "invalid data, expected a map for the provided schema with type=object";
const NO_LIST: &str = "invalid data, expected an array for the provided schema with type=array";
/// Schemas take whole numbers that were written with a fraction or an exponent. Rules do not.
const NO_INT: &str = "invalid data, expected int, got float64";
const NEITHER: &str = "invalid data, expected XIntOrString value to be either a string or integer";

/// The items of a list.
#[derive(Debug)]
pub(crate) struct Items<'v>(Vec<View<'v>>, Relation);

/// The members of an object that expressions can see, sorted by their names in expressions.
#[derive(Debug)]
pub(crate) struct Members<'v> {
    visible: Vec<(&'v str, View<'v>)>,
    /// All members.
    all: &'v Map,
    /// Whether members that are not visible can be there.
    is_object: bool,
}

impl<'v> View<'v> {
    /// Returns a value as expressions see it.
    pub fn of(value: &'v Value, declaration: &'v Declaration) -> Self {
        match (&declaration.form, value) {
            (_, Value::Null) => Self::Null,
            (
                Form::IntOrString,
                Value::Bool(_) | Value::Float(_) | Value::Array(_) | Value::Object(_),
            ) => Self::Invalid(NEITHER),
            (
                Form::Object(_) | Form::Map(_),
                Value::Bool(_)
                | Value::Int(_)
                | Value::Float(_)
                | Value::String(_)
                | Value::Array(_),
            ) => Self::Invalid(NO_OBJECT),
            (
                Form::List(..),
                Value::Bool(_)
                | Value::Int(_)
                | Value::Float(_)
                | Value::String(_)
                | Value::Object(_),
            ) => Self::Invalid(NO_LIST),
            (_, Value::Bool(truth)) => Self::Bool(*truth),
            (Form::Double, Value::Int(number)) => Self::Double(*number as f64),
            (_, Value::Int(number)) => Self::Int(*number),
            (Form::Int, Value::Float(_)) => Self::Invalid(NO_INT),
            (_, Value::Float(number)) => Self::Double(*number),
            (form, Value::String(text)) => Self::of_text(form, text),
            (Form::List(item, relation), Value::Array(items)) => Self::List(Items(
                items.iter().map(|value| Self::of(value, item)).collect(),
                relation.clone(),
            )),
            (_, Value::Array(_)) => Self::List(Items(Vec::new(), Relation::Ordered)),
            (Form::Object(fields), Value::Object(members)) => Self::Object(Members {
                visible: visible(fields, members),
                all: members,
                is_object: true,
            }),
            (Form::Map(below), Value::Object(members)) => {
                let visible = members
                    .iter()
                    .map(|(name, value)| (name, Self::of(value, below)));
                Self::Object(Members {
                    visible: visible.collect(),
                    all: members,
                    is_object: false,
                })
            }
            (_, Value::Object(members)) => Self::Object(Members {
                visible: Vec::new(),
                all: members,
                is_object: true,
            }),
        }
    }

    fn of_text(form: &Form, text: &'v str) -> Self {
        let read = match form {
            Form::Bytes => STANDARD.decode(text).ok().map(Self::Bytes),
            Form::Duration => duration(text).map(Self::Duration),
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
            Self::Invalid(why) => Node::Invalid(why),
        }
    }
}

/// Returns the members of an object that are fields, sorted by their names in expressions. Goes through the smaller of
/// the two: a list may have a hundred thousand small objects, and their schema as many fields.
fn visible<'v>(fields: &'v BTreeMap<String, Field>, members: &'v Map) -> Vec<(&'v str, View<'v>)> {
    // A null is as good as nothing in an object with fields.
    let view = |name: &'v String, field: &'v Field, value: &'v Value| {
        (!value.is_null()).then(|| (name.as_str(), View::of(value, &field.declaration)))
    };
    if fields.len() <= members.len() {
        let found = fields.iter();
        let found = found.filter_map(|(name, field)| view(name, field, members.get(&field.name)?));
        return found.collect();
    }
    let found = members.iter().filter_map(|(own, value)| {
        let (name, field) = fields.get_key_value(&escape(own)?)?;
        view(name, field, value).filter(|_| field.name == own)
    });
    let mut found: Vec<(&str, View<'_>)> = found.collect();
    found.sort_unstable_by_key(|(name, _)| *name);
    found
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
        self.all.len()
    }

    fn get(&self, name: &str) -> Option<Node<'_>> {
        match self.is_object && is_reserved(name) {
            true => self.find(&format!("__{name}__")),
            false => self.find(name),
        }
        .map(View::node)
    }

    fn at(&self, index: usize) -> Option<(&str, Node<'_>)> {
        let (name, view) = self.visible.get(index)?;
        Some((name, view.node()))
    }

    fn is_typed(&self) -> bool {
        true
    }

    fn hidden(&self) -> Vec<(&str, String)> {
        if !self.is_object {
            return Vec::new();
        }
        let is_hidden = |name: &str| escape(name).is_none_or(|seen| self.find(&seen).is_none());
        let hidden = self
            .all
            .iter()
            .filter(|(name, value)| !value.is_null() && is_hidden(name));
        hidden
            .map(|(name, value)| (name, json::to_string(value)))
            .collect()
    }
}

impl Elements for Items<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn at(&self, index: usize) -> Option<Node<'_>> {
        self.0.get(index).map(View::node)
    }

    fn relation(&self) -> Relation {
        self.1.clone()
    }

    fn is_typed(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(view: &View<'_>) -> Vec<String> {
        let View::Object(members) = view else {
            return Vec::new();
        };
        let names = members.visible.iter().map(|(name, _)| *name);
        names.map(str::to_owned).collect()
    }

    /// The bound of a narrow schema and of a wide one differ in what is gone through, not in what is seen.
    #[test]
    fn objects_look_the_same_whether_they_or_their_schemas_are_wider() {
        let object = json!({"a.b": 1i64, "z": 1i64, "a__b": 1i64, "none": (Value::Null), "a b": 1i64, "other": 1i64});
        let mut schema = json!({"type": "object"});
        for name in ["z", "a.b", "a__b", "none", "absent"] {
            schema.set(&["properties", name], json!({"type": "integer"}));
        }
        let narrow = Declaration::of(&schema, false, "of").expect("it is an object");
        for at in 0..100 {
            let name = format!("p{at}");
            schema.set(&["properties", name.as_str()], json!({"type": "integer"}));
        }
        let wide = Declaration::of(&schema, false, "of").expect("it is an object");
        let seen = ["a__dot__b", "a__underscores__b", "z"];
        for declaration in [&narrow, &wide] {
            let view = View::of(&object, declaration);
            assert_eq!(names(&view), seen);
            assert!(view.member("a__dot__b").is_some() && view.member("none").is_none());
        }
    }
}
