//! Feature gates, and the fields of features that are disabled.
//!
//! Both are generated from upstream. The generator found the fields by running upstream's
//! strategies: a write drops these fields unless the object used one of them before.
//! [`GatedFields`] holds the fields of one stored kind as a tree, so that an object without them
//! costs only a few lookups.

use polyplane_apimachinery::{Map, Str, Value};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The gate with which a binding removes the nominated node of the pod.
pub const BINDING_CLEARS_NOMINATION: &str = "ClearingNominatedNodeNameAfterBinding";
/// The gate with which a binding copies its labels to the pod.
pub const BINDING_COPIES_LABELS: &str = "PodTopologyLabelsAdmission";
/// The gate with which the log of one stream of a container can be read.
pub const LOG_OF_ONE_STREAM: &str = "PodLogsQuerySplitStreams";

/// The gates that verbs test. A table of kinds is refused if upstream lacks one of them.
pub(crate) const GATES_IN_CODE: [&str; 3] = [
    BINDING_CLEARS_NOMINATION,
    BINDING_COPIES_LABELS,
    LOG_OF_ONE_STREAM,
];

/// The reason why the generated data could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FeatureError {
    /// The text does not have the form of the generated data.
    #[error("the data of feature gates cannot be read")]
    Json(#[source] serde_json::Error),
    /// The data names a gate that upstream does not know.
    #[error("{by} names the feature gate {gate:?}, which is unknown")]
    Unknown {
        /// The name of the gate.
        gate: String,
        /// The part of the data that names it.
        by: String,
    },
    /// A kind has more gated sets of fields than `Sets` has bits.
    #[error("{resource} has more than {SETS_MAX} gated sets of fields")]
    TooMany {
        /// The kind's storage group and resource.
        resource: String,
    },
}

/// The gates, and the fields behind those that are off.
#[derive(Debug, Default)]
pub struct Features {
    gates: BTreeMap<Str, bool>,
    /// The fields by storage group and resource, joined by a slash.
    fields: HashMap<Str, Arc<GatedFields>>,
}

/// What upstream says of a feature gate.
#[derive(Debug, Deserialize)]
pub struct GateRow {
    /// Its name.
    pub name: Str,
    /// Whether it is on by default.
    pub default: bool,
    /// The stage of the feature.
    pub stage: Stage,
    /// Whether nobody may set it otherwise.
    #[serde(default)]
    pub locked: bool,
}

/// The part of a [`GateRow`] that [`Features`] keeps.
#[derive(Deserialize)]
struct GateDefault {
    name: Str,
    default: bool,
}

/// The gates that must be on if one is.
#[derive(Debug, Deserialize)]
pub struct GateNeeds {
    /// The gate.
    pub gate: Str,
    /// What it needs.
    pub needs: Vec<Str>,
}

impl GateNeeds {
    /// Reads the generated file of the needs of gates.
    ///
    /// # Errors
    /// Returns [`FeatureError::Json`] if the text does not have its form.
    pub fn parse(needs: &[u8]) -> Result<Vec<Self>, FeatureError> {
        serde_json::from_slice(needs).map_err(FeatureError::Json)
    }
}

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Stage {
    /// It may go again.
    Alpha,
    /// It is complete, and may change.
    Beta,
    /// It stays.
    Ga,
    /// It goes.
    Deprecated,
}

impl GateRow {
    /// Reads the generated file of gates.
    ///
    /// # Errors
    /// Returns [`FeatureError::Json`] if the text does not have its form.
    pub fn parse(gates: &[u8]) -> Result<Vec<Self>, FeatureError> {
        serde_json::from_slice(gates).map_err(FeatureError::Json)
    }
}

#[derive(Deserialize)]
struct GatedRow {
    gate: Str,
    kinds: BTreeMap<Str, String>,
    #[serde(default)]
    counted: bool,
    fields: Vec<FieldRow>,
}

#[derive(Deserialize)]
struct FieldRow {
    path: String,
    #[serde(default)]
    uses: Option<String>,
    #[serde(default)]
    drops: Option<String>,
    #[serde(default)]
    emptied: Option<String>,
}

impl Features {
    /// Reads the generated files: the gates, and the fields behind them.
    ///
    /// # Errors
    /// Returns a [`FeatureError`] if the data is inconsistent.
    pub fn parse(gates: &[u8], fields: &[u8]) -> Result<Self, FeatureError> {
        Self::parse_with(gates, &[fields], &[])
    }

    /// Reads the generated files: the gates, of which those in `on` are on whatever their default, and
    /// several files of the fields behind them.
    ///
    /// # Errors
    /// Returns a [`FeatureError`] if the data is inconsistent.
    pub fn parse_with(gates: &[u8], fields: &[&[u8]], on: &[&str]) -> Result<Self, FeatureError> {
        let gates: Vec<GateDefault> = serde_json::from_slice(gates).map_err(FeatureError::Json)?;
        let mut rows: Vec<GatedRow> = Vec::new();
        for text in fields {
            let more: Vec<GatedRow> = serde_json::from_slice(text).map_err(FeatureError::Json)?;
            rows.extend(more);
        }
        let mut features = Self::default();
        for gate in gates {
            let is_on = gate.default || on.contains(&gate.name.as_str());
            features.gates.insert(gate.name, is_on);
        }
        for gate in on {
            features.known(gate, "a setting")?;
        }
        let mut kinds: HashMap<Str, GatedFields> = HashMap::new();
        for row in rows {
            if features.known(&row.gate, "a gated field")? {
                continue;
            }
            for (resource, start) in &row.kinds {
                let gated = kinds.entry(resource.clone()).or_default();
                if gated.sets == SETS_MAX {
                    return Err(FeatureError::TooMany {
                        resource: resource.to_string(),
                    });
                }
                gated.add(start, &row);
            }
        }
        let shared = kinds.into_iter().map(|(name, one)| (name, Arc::new(one)));
        features.fields = shared.collect();
        Ok(features)
    }

    /// Returns whether a gate is on. `by` names the caller for the error.
    ///
    /// # Errors
    /// Returns [`FeatureError::Unknown`] if upstream has no such gate.
    pub fn known(&self, gate: &str, by: &str) -> Result<bool, FeatureError> {
        let known = self.gates.get(gate).copied();
        known.ok_or_else(|| FeatureError::Unknown {
            gate: gate.to_owned(),
            by: by.to_owned(),
        })
    }

    /// Returns whether a gate is on. Its existence was checked by [`known`](Self::known) when the
    /// tables were built.
    pub fn enabled(&self, gate: &str) -> bool {
        self.gates.get(gate).copied().unwrap_or(false)
    }

    /// Returns the fields of a stored kind that belong to features which are off.
    pub fn gated(&self, group: &str, resource: &str) -> Option<&Arc<GatedFields>> {
        self.fields.get(format!("{group}/{resource}").as_str())
    }

    /// Returns the stored kinds that have such fields, as `group/resource`.
    pub fn gated_kinds(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(|name| &**name)
    }
}

/// Number of sets of fields that [`Sets`] has bits for.
const SETS_MAX: u32 = u64::BITS;

/// A selection of the sets of fields, with one bit for each set.
#[derive(Clone, Copy, Debug, Default)]
struct Sets(u64);

impl Sets {
    fn add(&mut self, set: u32) {
        self.0 |= 1 << set;
    }

    fn has(self, set: u32) -> bool {
        self.0 & 1 << set != 0
    }
}

/// The fields of one kind that a write drops unless the object used them before. Fields come in
/// sets: if the old object has any field of a set, all of the set is kept.
#[derive(Debug, Default)]
pub struct GatedFields {
    sets: u32,
    /// The sets of which a change increases `metadata.generation` although it is dropped.
    counted: Sets,
    dropped: Node,
    uses: Node,
}

/// The gated fields at one path and below it.
#[derive(Debug, Default)]
struct Node {
    members: Vec<(Str, Node)>,
    /// The node of the items of a list, or of the values of a map.
    each: Option<Box<Node>>,
    marks: Vec<Mark>,
    /// True if the object at the path is removed once it has lost its last member.
    goes_empty: bool,
}

/// A mark that the path belongs to a set.
#[derive(Debug)]
struct Mark {
    set: u32,
    /// The path below this one at which there must be a value; empty if this path itself is meant.
    when: Vec<PathSegment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathSegment {
    Member(Str),
    Each,
}

/// Parses a path such as `containers[].env{}.name`.
fn segments(path: &str) -> Vec<PathSegment> {
    let mut segments = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let name = part.split(['[', '{']).next().unwrap_or_default();
        segments.push(PathSegment::Member(name.into()));
        let brackets = part[name.len()..].len() / 2;
        segments.extend(std::iter::repeat_n(PathSegment::Each, brackets));
    }
    segments
}

impl GatedFields {
    fn add(&mut self, start: &str, row: &GatedRow) {
        let set = self.sets;
        self.sets += 1;
        if row.counted {
            self.counted.add(set);
        }
        for field in &row.fields {
            let at = |path: &str| segments(&format!("{start}{path}"));
            let path = at(&field.path);
            let used = field.uses.as_deref().map_or_else(|| path.clone(), at);
            self.uses.reach(&used).marks.push(Mark {
                set,
                when: Vec::new(),
            });
            let dropped = field.drops.as_deref().map_or_else(|| path.clone(), at);
            let when = path[dropped.len()..].to_vec();
            self.dropped.reach(&dropped).marks.push(Mark { set, when });
            if let Some(emptied) = &field.emptied {
                self.dropped.reach(&at(emptied)).goes_empty = true;
            }
        }
    }

    /// Drops from `tree` the fields that are off and that `old` has not used. Returns whether
    /// `metadata.generation` counts that as a change.
    pub fn drop_unused(&self, tree: &mut Value, old: Option<&Value>) -> bool {
        let mut used = Sets::default();
        if let Some(old) = old {
            self.uses.find(old, &mut used);
        }
        let mut lost = Sets::default();
        self.dropped.drop_in(tree, used, &mut lost);
        lost.0 & self.counted.0 != 0
    }
}

impl Node {
    fn reach(&mut self, path: &[PathSegment]) -> &mut Self {
        let Some((first, rest)) = path.split_first() else {
            return self;
        };
        let next = match first {
            PathSegment::Each => self.each.get_or_insert_default(),
            PathSegment::Member(name) => {
                let known = self.members.iter().position(|(known, _)| known == name);
                let at = known.unwrap_or_else(|| {
                    self.members.push((name.clone(), Self::default()));
                    self.members.len() - 1
                });
                &mut self.members[at].1
            }
        };
        next.reach(rest)
    }

    /// Collects the sets that are in use.
    fn find(&self, value: &Value, used: &mut Sets) {
        if !is_set(value) {
            return;
        }
        for mark in &self.marks {
            used.add(mark.set);
        }
        for (name, node) in &self.members {
            if let Some(member) = value.get(name) {
                node.find(member, used);
            }
        }
        if let Some(each) = &self.each {
            match value {
                Value::Array(items) => items.iter().for_each(|item| each.find(item, used)),
                Value::Object(map) => map.values().for_each(|one| each.find(one, used)),
                _ => {}
            }
        }
    }

    /// Drops the marked fields below a value, and records the sets that lost something. Returns
    /// whether the value itself must be removed.
    fn drop_in(&self, value: &mut Value, used: Sets, lost: &mut Sets) -> bool {
        let goes = |mark: &&Mark| !used.has(mark.set) && has(value, &mark.when);
        if let Some(mark) = self.marks.iter().find(goes) {
            lost.add(mark.set);
            return true;
        }
        let mut smaller = false;
        for (name, node) in &self.members {
            if let Some(member) = value.get_mut(name)
                && node.drop_in(member, used, lost)
            {
                drop(value.remove(&[name]));
                smaller = true;
            }
        }
        match (&self.each, &mut *value) {
            (Some(each), Value::Array(items)) => items.iter_mut().for_each(|item| {
                each.drop_in(item, used, lost);
            }),
            (Some(each), Value::Object(map)) => map.iter_mut().for_each(|(_, one)| {
                each.drop_in(one, used, lost);
            }),
            _ => {}
        }
        let is_empty = |map: &Map| map.values().all(Value::is_null);
        smaller && self.goes_empty && value.as_object().is_none_or(is_empty)
    }
}

/// Returns true if there is a value at a path below `value`.
fn has(value: &Value, path: &[PathSegment]) -> bool {
    match path.split_first() {
        None => !value.is_null(),
        Some((PathSegment::Member(name), rest)) => value
            .get(name)
            .is_some_and(|member| is_set(member) && has(member, rest)),
        Some((PathSegment::Each, rest)) => match value {
            Value::Array(items) => items.iter().any(|item| has(item, rest)),
            Value::Object(map) => map.values().any(|one| has(one, rest)),
            _ => false,
        },
    }
}

/// Returns true for a value that upstream's structures distinguish from an absent one.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    const GATES: &[u8] = br#"[{"name":"On","default":true,"stage":"BETA"},
        {"name":"Off","default":false,"stage":"ALPHA"},{"name":"Away","default":false,"stage":"ALPHA"}]"#;

    fn features(fields: &str) -> Result<Features, FeatureError> {
        Features::parse(GATES, fields.as_bytes())
    }

    fn after(fields: &str, mut new: Value, old: Option<Value>) -> Value {
        let features = features(fields).expect("the rows are sound");
        let gated = features.gated("apps", "things").expect("it has some");
        gated.drop_unused(&mut new, old.as_ref());
        new
    }

    #[test]
    fn a_field_of_a_feature_that_is_off_stays_where_any_of_its_set_was() {
        let rows = r#"[{"gate":"Off","kinds":{"apps/things":"spec."},
            "fields":[{"path":"list[].a"},{"path":"map{}.b"}]},
            {"gate":"Away","kinds":{"apps/things":"spec."},"fields":[{"path":"c"}]}]"#;
        let new = json!({"spec": {"list": [{"a": 1i64, "z": 1i64}], "map": {"k": {"b": 1i64}}, "c": "x"}});
        let bare = json!({"spec": {"list": [{"z": 1i64}], "map": {"k": {}}}});
        assert_eq!(after(rows, new.clone(), None), bare);
        assert_eq!(after(rows, new.clone(), Some(json!({"spec": {}}))), bare);
        let used = json!({"spec": {"map": {"other": {"b": 7i64}}}});
        let kept = json!({"spec": {"list": [{"a": 1i64, "z": 1i64}], "map": {"k": {"b": 1i64}}}});
        assert_eq!(after(rows, new, Some(used)), kept);
    }

    #[test]
    fn a_change_that_is_dropped_counts_where_the_data_says_so() {
        for counted in [true, false] {
            let rows = format!(
                r#"[{{"gate":"Off","kinds":{{"apps/things":""}},"counted":{counted},"fields":[{{"path":"a"}}]}}]"#
            );
            let features = features(&rows).expect("the rows are sound");
            let gated = features.gated("apps", "things").expect("it has some");
            let with = json!({"a": 1i64});
            let drop = |new: &Value, old: Value| gated.drop_unused(&mut new.clone(), Some(&old));
            assert_eq!(drop(&with, json!({})), counted);
            assert!(!drop(&json!({}), json!({})), "nothing is dropped");
            assert!(!drop(&with, with.clone()), "it stays");
        }
    }

    #[test]
    fn an_object_goes_with_its_last_field_or_with_a_part_of_it() {
        let rows = r#"[{"gate":"Off","kinds":{"apps/things":""},
            "fields":[{"path":"life.signal","emptied":"life"}]},
            {"gate":"Away","kinds":{"apps/things":""},
            "fields":[{"path":"source.namespace","uses":"source","drops":"source"}]}]"#;
        let gone = |new: Value| after(rows, new, None);
        assert_eq!(gone(json!({"life": {"signal": "x"}})), json!({}));
        let rest = json!({"life": {"hook": 1i64}});
        let both = json!({"life": {"signal": "x", "hook": 1i64}});
        assert_eq!(gone(both), rest);
        assert_eq!(gone(json!({"life": {}})), json!({"life": {}}));
        let near = json!({"source": {"name": "x"}});
        assert_eq!(gone(near.clone()), near);
        let far = json!({"source": {"name": "x", "namespace": "y"}});
        assert_eq!(gone(far.clone()), json!({}));
        assert_eq!(after(rows, far.clone(), Some(near)), far);
    }

    #[test]
    fn a_feature_that_is_on_drops_nothing_and_an_unknown_one_is_an_error() {
        let of = |gate: &str| {
            format!(
                r#"[{{"gate":"{gate}","kinds":{{"apps/things":""}},"fields":[{{"path":"a"}}]}}]"#
            )
        };
        let on = features(&of("On")).expect("the gate is known");
        assert!(on.gated("apps", "things").is_none() && on.enabled("On"));
        let refused = features(&of("Of")).expect_err("a misspelt gate");
        assert!(matches!(refused, FeatureError::Unknown { gate, .. } if gate == "Of"));
    }
}
