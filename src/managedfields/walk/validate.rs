//! Checks that an object fits a schema as far as ownership needs it.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::Value;

use super::Sorted;
use crate::element::Borrowed;
use crate::fault::Faults;
use crate::position::{Atom, Items, Members, Position};
use crate::scalar;

/// The treatment of repeated items of sets and keyed lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// They are allowed: a stored object may have them.
    Allowed,
    /// They are faults: an applied object must not have them.
    Refused,
}

/// Checks that an object fits a schema.
///
/// # Errors
/// Returns the faults with upstream's texts.
pub fn validate<'s, S: Shape<'s>>(
    position: Position<S>,
    object: &Value,
    duplicates: Duplicates,
) -> Result<(), Faults> {
    let mut walk = Walk {
        duplicates,
        faults: Faults::default(),
    };
    walk.node(position, object);
    walk.faults.check()
}

struct Walk {
    duplicates: Duplicates,
    faults: Faults,
}

impl Walk {
    fn node<'s, S: Shape<'s>>(&mut self, at: Position<S>, value: &Value) {
        match at.atom(Some(value)) {
            Atom::Scalar(scalar) => {
                scalar.check(value, "", &mut self.faults);
            }
            Atom::Object(members) => self.object(&members, value),
            Atom::List(items) => self.list(&items, value),
            Atom::Invalid => self.faults.push("schema error: invalid atom: inlined"),
        }
    }

    fn wrong(&mut self, wanted: &str, value: &Value) {
        let mut text = format!("expected {wanted}, got &{{");
        scalar::print(value, &mut text);
        text.push('}');
        self.faults.push(text);
    }

    fn object<'s, S: Shape<'s>>(&mut self, members: &Members<S>, value: &Value) {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => return,
            _ => return self.wrong("map", value),
        };
        for (name, value) in map.iter() {
            let mark = self.faults.len();
            let member = members.member(name);
            if member.position.is_undeclared() {
                self.faults.push("field not declared in schema");
                self.faults.prefix(mark, &Borrowed::Field(name));
                return;
            }
            self.node(member.position, value);
            self.faults.prefix(mark, &Borrowed::Field(name));
        }
    }

    fn list<'s, S: Shape<'s>>(&mut self, items: &Items<'s, S>, value: &Value) {
        let list = match value {
            Value::Array(list) => list,
            Value::Null => return,
            _ => return self.wrong("list", value),
        };
        if items.are_atomic() {
            for (at, item) in list.iter().enumerate() {
                self.item(items, &Borrowed::Index(at as i64), item);
            }
            return;
        }
        let mut elements = Vec::with_capacity(list.len());
        let mut end = None;
        for (at, item) in list.iter().enumerate() {
            match items.element(item) {
                Ok(element) => elements.push((element, at)),
                Err(error) => {
                    end = Some(format!("element {at}: {error}"));
                    break;
                }
            }
        }
        let repeated = match self.duplicates {
            Duplicates::Allowed => Vec::new(),
            Duplicates::Refused => repeated(&elements),
        };
        for (element, at) in &elements {
            if repeated.binary_search(at).is_ok() {
                let mut text = String::from("duplicate entries for key ");
                element.show(&mut text);
                self.faults.push(text);
            }
            self.item(items, element, &list[*at]);
        }
        if let Some(end) = end {
            self.faults.push(end);
        }
    }

    fn item<'s, S: Shape<'s>>(
        &mut self,
        items: &Items<'s, S>,
        element: &Borrowed<'_>,
        item: &Value,
    ) {
        let mark = self.faults.len();
        self.node(items.item, item);
        self.faults.prefix(mark, element);
    }
}

/// Returns the places of items whose element an earlier item has.
fn repeated(elements: &[(Borrowed<'_>, usize)]) -> Vec<usize> {
    if elements.len() < 2 {
        return Vec::new();
    }
    let sorted = Sorted::new(elements.to_vec());
    let repeats = sorted.groups().flat_map(|group| &group[1..]);
    let mut places: Vec<usize> = repeats.map(|(_, at)| *at).collect();
    places.sort_unstable();
    places
}
