//! `metadata.managedFields`: the managers of an object as it stores them, and what each kind of
//! write does to them.
//!
//! Owns the form of the entries, their order and their times. A clock is not known here: the time
//! of a write is an argument.

mod apply;
mod cap;
mod conflict;
mod identity;
mod last_applied;
mod scale;
mod update;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::value::{Map, Str, Value};

pub use apply::Apply;
pub use conflict::ConflictText;
pub use scale::{ReplicasPaths, SCALE_VERSION};
pub use values::{first_entry, update_values};

use crate::managers::{Managers, VersionedSet};
use crate::set::{FieldSet, ReadError};
use identity::{Identity, Operation};

const FIELDS_TYPE: &str = "FieldsV1";

/// The reason why a list is not a list of entries.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The operation is not one of those that are known.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry names no API version.
    #[error("apiVersion must not be empty")]
    Version,
    /// An entry does not say in which form its fields are.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// The form of an entry's fields is unknown.
    #[error("invalid fieldsType {0} in managed fields entry {1}")]
    FieldsType(String, usize),
    /// The fields of an entry are not a set.
    #[error("error decoding set")]
    Set(#[from] ReadError),
}

/// The one who writes, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The name of the manager; empty if it is not known.
    pub name: &'a str,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// The time of the write as the object stores it.
    pub now: &'a str,
}

/// The managers of an object with all that its entries say.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    managers: Managers,
    /// By identity. Also has managers that own nothing: an object is managed as long as it has
    /// entries at all.
    heads: BTreeMap<Str, Head>,
}

/// The parts of an entry that are not its fields.
#[derive(Clone, Debug, Default)]
struct Head {
    time: Option<Str>,
    /// The fields as a tree, with the set that was read from it. An entry whose set does not change
    /// is not written again.
    written: Option<(FieldSet, Arc<Value>)>,
}

impl Entries {
    /// Reads the value of `metadata.managedFields`. Of entries with one identity the last one
    /// counts.
    ///
    /// # Errors
    /// Returns an error if one of the entries is wrong.
    pub fn decode(list: &Value) -> Result<Self, EntryError> {
        Self::read(list.clone())
    }

    /// Does what [`Self::decode`] does, and keeps the trees of the fields instead of copies.
    ///
    /// # Errors
    /// See [`Self::decode`].
    pub fn read(list: Value) -> Result<Self, EntryError> {
        let mut entries = Self::default();
        let Value::Array(list) = list else {
            return Ok(entries);
        };
        for (at, mut entry) in list.into_iter().enumerate() {
            let tree = entry.remove(&["fieldsV1"]).unwrap_or_default();
            let operation = match entry.str_at(&["operation"]) {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(EntryError::Operation),
            };
            let version = entry.str_at(&["apiVersion"]);
            if version.is_empty() {
                return Err(EntryError::Version);
            }
            match entry.str_at(&["fieldsType"]) {
                FIELDS_TYPE => {}
                "" => return Err(EntryError::NoFieldsType(at)),
                other => {
                    let other = polyplane_apimachinery::quote::quote(other);
                    return Err(EntryError::FieldsType(other, at));
                }
            }
            let identity = Identity {
                manager: entry.str_at(&["manager"]),
                operation,
                version,
                subresource: entry.str_at(&["subresource"]),
            };
            let set = FieldSet::from_value(&tree)?;
            let time = entry.get("time").and_then(Value::as_str).map(Str::from);
            entries.put(&identity.to_text(), set, version, operation, time, tree);
        }
        Ok(entries)
    }

    fn put(
        &mut self,
        identity: &Str,
        set: FieldSet,
        version: &str,
        operation: Operation,
        time: Option<Str>,
        tree: Value,
    ) {
        let head = Head {
            time,
            written: Some((set.clone(), Arc::new(tree))),
        };
        self.heads.insert(identity.clone(), head);
        let owned = VersionedSet {
            set,
            version: version.into(),
            is_applied: operation == Operation::Apply,
        };
        self.managers.insert(identity.clone(), owned);
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Returns the managers.
    pub fn managers(&self) -> &Managers {
        &self.managers
    }

    /// Returns the API versions of the entries.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.managers
            .iter()
            .map(|(_, owned)| owned.version.as_str())
    }

    /// Returns the value of `metadata.managedFields`; `None` if nobody owns anything.
    pub fn encode(mut self) -> Option<Value> {
        let mut sorted: Vec<(SortKey, Value)> = Vec::with_capacity(self.managers.len());
        for (text, owned) in self.managers.iter() {
            let head = self.heads.remove(text).unwrap_or_default();
            let identity = identity::parse(text);
            let operation = match owned.is_applied {
                true => Operation::Apply,
                false => identity.operation,
            };
            let fields = match head.written {
                Some((set, tree)) if set.is_same(&owned.set) => {
                    Arc::try_unwrap(tree).unwrap_or_else(|tree| (*tree).clone())
                }
                _ => owned.set.to_value(),
            };
            let key = SortKey {
                operation: operation.name(),
                seconds: seconds(head.time.as_deref()),
                manager: identity.manager,
                version: owned.version.clone(),
                subresource: identity.subresource,
            };
            sorted.push((key.clone(), key.into_entry(fields, head.time)));
        }
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        let list = sorted.into_iter().map(|(_, entry)| entry);
        Some(Value::Array(list.collect()))
    }

    fn time(&self, identity: &str) -> Option<&Str> {
        self.heads.get(identity)?.time.as_ref()
    }

    fn set_time(&mut self, identity: &str, time: Option<Str>) {
        match self.heads.get_mut(identity) {
            Some(head) => head.time = time,
            None => {
                let head = Head {
                    time,
                    written: None,
                };
                self.heads.insert(identity.into(), head);
            }
        }
    }
}

/// The order of entries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    operation: &'static str,
    seconds: i64,
    manager: Str,
    version: Str,
    subresource: Str,
}

impl SortKey {
    /// Returns the entry with this key.
    fn into_entry(self, fields: Value, time: Option<Str>) -> Value {
        let mut entry = Vec::with_capacity(7);
        entry.push(("apiVersion".into(), Value::String(self.version)));
        entry.push(("fieldsType".into(), Value::string(FIELDS_TYPE)));
        entry.push(("fieldsV1".into(), fields));
        if !self.manager.is_empty() {
            entry.push(("manager".into(), Value::String(self.manager)));
        }
        entry.push(("operation".into(), Value::string(self.operation)));
        if !self.subresource.is_empty() {
            entry.push(("subresource".into(), Value::String(self.subresource)));
        }
        entry.extend(time.map(|time| ("time".into(), Value::String(time))));
        Value::Object(Map::from_sorted(entry))
    }
}

/// Returns the seconds of a time; 0 if there is none.
fn seconds(time: Option<&str>) -> i64 {
    let parsed = time.and_then(|time| Timestamp::parse(time).ok());
    parsed.map_or(0, |time| time.seconds)
}

/// Returns true if two values of `metadata.managedFields` differ in nothing but times, and differ
/// in one.
pub fn differ_in_times_only(left: &Value, right: &Value) -> bool {
    let (Some(left), Some(right)) = (left.as_array(), right.as_array()) else {
        return false;
    };
    let same_but_times = |(left, right): (&Value, &Value)| {
        let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else {
            return false;
        };
        let rest = |entry: &'_ Map| entry.len() - usize::from(entry.contains_key("time"));
        rest(left) == rest(right)
            && left
                .iter()
                .filter(|(name, _)| *name != "time")
                .all(|(name, value)| right.get(name) == Some(value))
    };
    let pairs = || left.iter().zip(right);
    left.len() == right.len()
        && pairs().any(|(left, right)| left.get("time") != right.get("time"))
        && pairs().all(same_but_times)
}

/// Returns true if two entries of a value of `metadata.managedFields` have one identity. The next
/// write keeps the last of them.
pub fn repeats(list: &Value) -> bool {
    let entries = list.as_array().unwrap_or_default();
    let is_same = |one: &Value, other: &Value| {
        let is_equal = |name| one.str_at(&[name]) == other.str_at(&[name]);
        let applies = one.str_at(&["operation"]) == Operation::Apply.name();
        is_equal("manager")
            && is_equal("operation")
            && is_equal("subresource")
            && (applies || is_equal("apiVersion"))
    };
    let mut rest = entries;
    while let [first, others @ ..] = rest {
        if others.iter().any(|other| is_same(first, other)) {
            return true;
        }
        rest = others;
    }
    false
}

/// Returns true if a client asks with this value of `metadata.managedFields` to forget all managers.
pub fn resets(list: &Value) -> bool {
    match list {
        Value::Array(entries) => match entries.as_slice() {
            [] => true,
            [Value::Object(only)] => only.values().all(is_zero),
            _ => false,
        },
        _ => false,
    }
}

fn is_zero(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}
