//! Which objects are related to a node: those that its pods refer to. An index leads from a node to
//! its pods and from a secret to the volumes that need it, so that a question reads few objects.

use super::references::{Referred, refers_to, volume_secrets};
use bytes::Bytes;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::json::scan::{Scanned, find};
use polyplane_apimachinery::json::{self, Limits};
use polyplane_plane::{Index, IndexId, IndexRow, Key, ObjectRef, Snapshot};

/// The position of [`NodeRelations`] among the indexes of a plane.
pub(super) const RELATIONS: IndexId = IndexId(1);
/// The first byte of the values that lead from a node to its pods.
const POD: u8 = b'p';
/// The first byte of the values that lead from a secret to volumes.
const SECRET: u8 = b's';

/// The index of the relations. A pod that is on no node has no row.
#[derive(Debug)]
pub struct NodeRelations;

impl Index for NodeRelations {
    fn covers(&self, key: &Key) -> bool {
        key.is_of("", "pods") || key.is_of("", "persistentvolumes")
    }

    fn rows(&self, key: &Key, body: &[u8]) -> Vec<IndexRow> {
        let body = Scanned(body);
        let row = |value| IndexRow { value, amount: 1 };
        if let Some(namespace) = key.namespace() {
            let node = body.str_at(&["spec", "nodeName"]);
            return match node.is_empty() {
                true => Vec::new(),
                false => vec![row(value(POD, &[&*node, namespace, key.name()]))],
            };
        }
        let Some(spec) =
            find(body.0, &["spec"]).filter(|_| body.at(&["spec", "claimRef"]).is_some())
        else {
            return Vec::new();
        };
        let spec = json::parse(&body.0[spec], &Limits::default());
        let spec = spec.map(|parsed| parsed.value).unwrap_or_default();
        let secrets = volume_secrets(&spec).into_iter();
        let mut values: Vec<Bytes> = secrets
            .map(|(namespace, secret)| value(SECRET, &[namespace, secret, key.name()]))
            .collect();
        values.sort();
        values.dedup();
        values.into_iter().map(row).collect()
    }
}

/// Returns a value of the index. Names have no zero byte, so no part runs into the next.
fn value(kind: u8, parts: &[&str]) -> Bytes {
    let mut value = vec![kind];
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            value.push(0);
        }
        value.extend_from_slice(part.as_bytes());
    }
    value.into()
}

/// Returns the last parts of all values with these first parts.
fn last_parts(cut: &Snapshot, kind: u8, parts: &[&str]) -> Vec<String> {
    let mut beginning = value(kind, parts).to_vec();
    beginning.push(0);
    let values = cut.index_values(RELATIONS, &beginning);
    values
        .map_while(|(value, _)| value.strip_prefix(&*beginning))
        .filter_map(|rest| String::from_utf8(rest.to_vec()).ok())
        .collect()
}

fn tree(object: &ObjectRef) -> Value {
    let parsed = json::parse(&object.body(), &Limits::default());
    parsed.map(|parsed| parsed.value).unwrap_or_default()
}

/// Returns the name of the node that an object of this kind names, which is at `path`.
fn names_node(cut: &Snapshot, key: &Key, path: &[&str], node: &str) -> bool {
    let found = cut.get(key);
    found.is_some_and(|object| Scanned(&object.body()).str_at(path) == node)
}

/// What a question is about: a node, and an object that may be related to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relation<'a> {
    pub(super) cut: &'a Snapshot,
    pub(super) node: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Relation<'_> {
    /// Returns whether a pod of the node refers to the object.
    pub(super) fn of_pods(&self, kind: Referred) -> bool {
        let quoted = format!("\"{}\"", self.name);
        let pods = last_parts(self.cut, POD, &[self.node, self.namespace]);
        pods.into_iter().any(|pod| {
            let key = Key::new("", "pods", Some(self.namespace), &pod);
            // The claims of a pod's ephemeral volumes have names that begin with the pod's.
            let may_be_own = kind == Referred::VolumeClaim && self.name.starts_with(&pod);
            self.cut.get(&key).is_some_and(|object| {
                let may_refer = may_be_own || contains(&object.body(), quoted.as_bytes());
                may_refer && refers_to(&tree(&object), kind, self.name)
            })
        })
    }

    /// Returns whether the object is a secret that a pod of the node or one of its volumes needs.
    pub(super) fn of_secret(&self) -> bool {
        let volumes = || last_parts(self.cut, SECRET, &[self.namespace, self.name]);
        let is_needed = |volume: String| {
            let volume = Relation {
                namespace: "",
                name: &volume,
                ..*self
            };
            volume.of_volume()
        };
        self.of_pods(Referred::Secret) || volumes().into_iter().any(is_needed)
    }

    /// Returns whether the object is a persistent volume whose claim a pod of the node uses.
    pub(super) fn of_volume(&self) -> bool {
        let key = Key::new("", "persistentvolumes", None, self.name);
        // A volume is in no namespace, so no question that names one is about it.
        let volume = self.cut.get(&key).filter(|_| self.namespace.is_empty());
        let Some(volume) = volume else {
            return false;
        };
        let body = volume.body();
        let body = Scanned(&body);
        let of_claim = |member| body.str_at(&["spec", "claimRef", member]);
        let (namespace, name) = (of_claim("namespace"), of_claim("name"));
        let claim = Relation {
            namespace: &namespace,
            name: &name,
            ..*self
        };
        !claim.name.is_empty() && claim.of_pods(Referred::VolumeClaim)
    }

    /// Returns whether the object names the node: `path` leads to the name of its node.
    pub(super) fn by_name(&self, (group, resource): (&str, &str), path: &[&str]) -> bool {
        let namespace = (!self.namespace.is_empty()).then_some(self.namespace);
        let key = Key::new(group, resource, namespace, self.name);
        names_node(self.cut, &key, path, self.node)
    }
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|window| window == text)
}
