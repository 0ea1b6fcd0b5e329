//! Reads sets from `fieldsV1`, which clients may have written.

use polyplane_apimachinery::json::{self, JsonError, Limits};
use polyplane_apimachinery::strconv::{NumberError, atoi};
use polyplane_apimachinery::value::{Map, Value};

use super::{FieldSet, Node};
use crate::element::PathElement;

/// Depth of a set. Deeper ones come from no schema that is accepted here, and each level is a stack
/// frame of every walk.
const DEPTH_MAX: usize = 512;

/// The reason why a text is not a set.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The text is not JSON.
    #[error("not JSON")]
    Json(#[source] JsonError),
    /// Something is not an object.
    #[error("{name:?} is not followed by an object")]
    NoObject {
        /// The name of the element; empty for the whole set.
        name: String,
    },
    /// The name of an element has no colon at the second place.
    #[error("{name:?} does not begin with a type and a colon")]
    NoType {
        /// The name.
        name: String,
    },
    /// The content of a key or value is not JSON.
    #[error("{name:?} has no JSON")]
    Content {
        /// The name of the element.
        name: String,
        /// What is wrong with it.
        #[source]
        source: JsonError,
    },
    /// The content of an index is not a number.
    #[error("{name:?} has no index")]
    Index {
        /// The name of the element.
        name: String,
        /// What is wrong with it.
        #[source]
        source: NumberError,
    },
    /// Elements are nested too deeply.
    #[error("has more than {DEPTH_MAX} levels")]
    TooDeep,
}

impl FieldSet {
    /// Reads a set. Elements of unknown types are dropped, as upstream does.
    ///
    /// # Errors
    /// Returns an error if the text is not a set, or is too deep or too large.
    pub fn from_json(text: &[u8]) -> Result<Self, ReadError> {
        let limits = Limits {
            depth_max: DEPTH_MAX,
            ..Limits::default()
        };
        let parsed = json::parse(text, &limits).map_err(ReadError::Json)?;
        Self::from_value(&parsed.value)
    }

    /// Reads a set from the tree of its JSON. See [`FieldSet::from_json`].
    ///
    /// # Errors
    /// Returns an error if the tree is not that of a set, or is too deep.
    pub fn from_value(tree: &Value) -> Result<Self, ReadError> {
        Ok(read("", tree, 0)?.0)
    }
}

/// Returns the nodes below an element, and whether the element itself is a member: it is if it says
/// so, or if nothing is below it.
fn read(name: &str, tree: &Value, depth: usize) -> Result<(FieldSet, bool), ReadError> {
    static NONE: Map = Map::new();
    let members = match tree {
        Value::Object(members) => members,
        Value::Null => &NONE,
        _ => return Err(ReadError::NoObject { name: name.into() }),
    };
    if depth > DEPTH_MAX {
        return Err(ReadError::TooDeep);
    }
    let mut is_member = false;
    let mut nodes = Vec::with_capacity(members.len());
    for (name, below) in members.iter() {
        if name == "." {
            is_member = true;
            continue;
        }
        let Some(element) = PathElement::read(name)? else {
            continue;
        };
        let (children, member) = read(name, below, depth + 1)?;
        nodes.push(Node {
            element,
            member,
            children,
        });
    }
    let is_member = is_member || nodes.is_empty();
    Ok((FieldSet::of(in_order(nodes)), is_member))
}

/// Sorts nodes and joins those that are spelled differently but are equal, such as the numbers 1
/// and 1.0.
fn in_order(mut nodes: Vec<Node>) -> Vec<Node> {
    if nodes.is_sorted_by(|a, b| a.element < b.element) {
        return nodes;
    }
    nodes.sort_by(|a, b| a.element.cmp(&b.element));
    let mut joined = Vec::with_capacity(nodes.len());
    let mut nodes = nodes.into_iter().peekable();
    while let Some(mut node) = nodes.next() {
        // Joined at once: a client may spell one number in a hundred thousand ways, and one after the other would
        // copy what the first ones contain each time. The first spelling is kept.
        let mut below = vec![node.children.clone()];
        while let Some(equal) = nodes.next_if(|next| next.element == node.element) {
            node.member |= equal.member;
            below.push(equal.children);
        }
        if below.len() > 1 {
            below.reverse();
            node.children = FieldSet::union_of(below);
        }
        joined.push(node);
    }
    joined
}

impl PathElement {
    /// Reads an element from its name in a set; `None` if its type is unknown.
    ///
    /// # Errors
    /// Returns an error if the type is known and the content does not fit it.
    pub fn read(name: &str) -> Result<Option<Self>, ReadError> {
        let bytes = name.as_bytes();
        if bytes.get(1) != Some(&b':') {
            return Err(ReadError::NoType { name: name.into() });
        }
        let content = &name[2..];
        Ok(match bytes[0] {
            b'f' => Some(Self::field(content)),
            b'v' => Some(Self::value(read_content(name, content)?)),
            b'k' => match read_content(name, content)? {
                Value::Object(members) => Some(Self::Key(members.into_iter().collect())),
                Value::Null => Some(Self::key([])),
                _ => return Err(ReadError::NoObject { name: name.into() }),
            },
            b'i' => {
                let number = atoi(content).map_err(|source| ReadError::Index {
                    name: name.into(),
                    source,
                })?;
                Some(Self::Index(number))
            }
            _ => None,
        })
    }
}

fn read_content(name: &str, content: &str) -> Result<Value, ReadError> {
    let parsed = json::parse(content.as_bytes(), &Limits::default());
    let parsed = parsed.map_err(|source| ReadError::Content {
        name: name.into(),
        source,
    })?;
    let mut value = parsed.value;
    make_floats(&mut value);
    Ok(value)
}

/// Makes numbers floats, as upstream's reader does. A whole number that no float equals stays as it is: elements are
/// ordered by what they are exactly, so its float would not be found among the items of the list that it comes from.
fn make_floats(value: &mut Value) {
    match value {
        Value::Int(number) if (*number as f64) as i128 == i128::from(*number) => {
            *value = Value::Float(*number as f64);
        }
        Value::Array(items) => items.iter_mut().for_each(make_floats),
        Value::Object(members) => members.iter_mut().for_each(|(_, value)| make_floats(value)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_read_equals_the_one_that_was_written() {
        let large = 9_007_199_254_740_993_i64;
        for number in [3, large, -large, large + 1, i64::MAX, i64::MIN] {
            let read = PathElement::read(&format!("v:{number}"));
            let read = read.expect("it is a number");
            assert_eq!(read, Some(PathElement::value(number)));
        }
    }

    #[test]
    fn one_element_in_many_spellings_has_what_each_of_them_contains() {
        let spellings = (0..1000).map(|at| {
            let zeros = "0".repeat(at);
            format!(r#""v:1.0{zeros}":{{"f:a{at}":{{}},"v:2.0{zeros}":{{}}}}"#)
        });
        let spellings: Vec<String> = spellings.collect();
        let text = format!(r#"{{"v:3":{{}},{}}}"#, spellings.join(","));
        let set = FieldSet::from_json(text.as_bytes()).expect("it is a set");
        // The 1000 fields and the value 2 below 1, and 3.
        assert_eq!(set.len(), 1002);
        assert_eq!(set.nodes().len(), 2);
    }
}
