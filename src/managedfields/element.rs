//! One step of a path, owned or borrowed from an object.
//!
//! Steps are ordered: fields, keys, values, indexes, and within each by content. This order is
//! that of stored sets.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use polyplane_apimachinery::complaints::{BoundedText, PATH_BYTES_MAX, STEP_BYTES_MAX};
use polyplane_apimachinery::value::{Str, Value};

use crate::scalar;

/// One step from an object or a list to what it contains.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// The member of an object.
    Field(Str),
    /// The item of a list with these members, sorted by name.
    Key(Arc<[(Str, Value)]>),
    /// The item of a set.
    Value(Arc<Value>),
    /// The item of a list at this place.
    Index(i64),
}

impl PathElement {
    /// Creates the step to a member.
    pub fn field(name: impl Into<Str>) -> Self {
        Self::Field(name.into())
    }

    /// Creates the step to the item with these members.
    pub fn key(fields: impl IntoIterator<Item = (Str, Value)>) -> Self {
        let mut fields: Vec<_> = fields.into_iter().collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self::Key(fields.into())
    }

    /// Creates the step to an item of a set.
    pub fn value(value: impl Into<Value>) -> Self {
        Self::Value(Arc::new(value.into()))
    }

    /// Returns the borrowed form.
    pub(crate) fn borrow(&self) -> Borrowed<'_> {
        match self {
            Self::Field(name) => Borrowed::Field(name),
            Self::Key(fields) => Borrowed::Owned(fields),
            Self::Value(value) => Borrowed::Value(value),
            Self::Index(at) => Borrowed::Index(*at),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        self.borrow().order(&other.borrow())
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

impl fmt::Display for PathElement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.borrow().show(&mut text);
        out.write_str(&text)
    }
}

/// A [`PathElement`] whose texts and values belong to an object, a schema or a set.
#[derive(Clone, Debug)]
pub(crate) enum Borrowed<'a> {
    Field(&'a str),
    /// A key of one member, which most lists have.
    One(&'a str, &'a Value),
    /// Members, sorted by name.
    Many(Vec<(&'a str, &'a Value)>),
    /// Members of a set's own element.
    Owned(&'a [(Str, Value)]),
    Value(&'a Value),
    Index(i64),
}

impl<'a> Borrowed<'a> {
    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::One(..) | Self::Many(_) | Self::Owned(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }

    /// Returns the member of a key at a position in the order of names.
    fn part(&self, at: usize) -> Option<(&'a str, &'a Value)> {
        match self {
            Self::One(name, value) => (at == 0).then_some((name, value)),
            Self::Many(fields) => fields.get(at).copied(),
            Self::Owned(fields) => fields.get(at).map(|(name, value)| (name.as_str(), value)),
            Self::Field(_) | Self::Value(_) | Self::Index(_) => None,
        }
    }

    /// Returns the members of a key in the order of names.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + '_ {
        (0..).map_while(|at| self.part(at))
    }

    pub(crate) fn order(&self, other: &Borrowed<'_>) -> Ordering {
        match (self, other) {
            (Self::Field(a), Borrowed::Field(b)) => (*a).cmp(b),
            (Self::Value(a), Borrowed::Value(b)) => scalar::order(a, b),
            (Self::Index(a), Borrowed::Index(b)) => a.cmp(b),
            _ => {
                let ranks = self.rank().cmp(&other.rank());
                ranks.then_with(|| self.order_keys(other))
            }
        }
    }

    fn order_keys(&self, other: &Borrowed<'_>) -> Ordering {
        let mut at = 0;
        loop {
            let (left, right) = match (self.part(at), other.part(at)) {
                (None, None) => return Ordering::Equal,
                (None, Some(_)) => return Ordering::Less,
                (Some(_), None) => return Ordering::Greater,
                (Some(left), Some(right)) => (left, right),
            };
            let names = left.0.cmp(right.0);
            let order = names.then_with(|| scalar::order(left.1, right.1));
            if order.is_ne() {
                return order;
            }
            at += 1;
        }
    }

    pub(crate) fn to_owned(&self) -> PathElement {
        match self {
            Self::Field(name) => PathElement::field(*name),
            Self::One(..) | Self::Many(_) | Self::Owned(_) => {
                let parts = self.parts();
                PathElement::Key(
                    parts
                        .map(|(name, value)| (name.into(), value.clone()))
                        .collect(),
                )
            }
            Self::Value(value) => PathElement::Value(Arc::new((*value).clone())),
            Self::Index(at) => PathElement::Index(*at),
        }
    }

    /// Appends the element as error texts show it, shortened if it is longer than 1 KiB: many texts may show it.
    pub(crate) fn show(&self, out: &mut String) {
        let mut text = BoundedText::new(STEP_BYTES_MAX);
        self.write(&mut text);
        out.push_str(&text.into_string());
    }

    fn write(&self, out: &mut BoundedText) {
        match self {
            Self::Field(name) => {
                out.push(".");
                out.push(name);
            }
            Self::One(..) | Self::Many(_) | Self::Owned(_) => {
                out.push("[");
                for (at, (name, value)) in self.parts().enumerate() {
                    if out.is_cut() {
                        return;
                    }
                    if at > 0 {
                        out.push(",");
                    }
                    out.push(name);
                    out.push("=");
                    scalar::show(value, out);
                }
                out.push("]");
            }
            Self::Value(value) => {
                out.push("[=");
                scalar::show(value, out);
                out.push("]");
            }
            Self::Index(at) => out.push(&format!("[{at}]")),
        }
    }
}

/// Returns the path of these elements as texts show it. One that is longer than 8 KiB is shortened.
pub(crate) fn shown<'e>(path: impl IntoIterator<Item = &'e PathElement>) -> String {
    let (mut out, mut step) = (BoundedText::new(PATH_BYTES_MAX), String::new());
    for element in path {
        if out.is_cut() {
            break;
        }
        step.clear();
        element.borrow().show(&mut step);
        out.push(&step);
    }
    out.into_string()
}

/// A chain of steps from the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathElement>);

impl fmt::Display for Path {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&shown(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set has one element for each owned field of an object, and a plane has many objects.
    #[test]
    fn an_element_is_as_small_as_its_text() {
        assert_eq!(size_of::<PathElement>(), size_of::<Str>());
    }
}
