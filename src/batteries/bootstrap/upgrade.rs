//! The changes of a plane's own objects when its layer is replaced by a newer one, and of roles and
//! bindings when the plane is loaded: the rules by which upstream's start hooks update objects.
//!
//! - RBAC: missing rules, subjects, labels and annotations are added, and none are removed. The rules
//!   of aggregated roles are left to the reconciler that writes them: upstream's hook names none. An
//!   object with the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` is not
//!   changed. A binding with another roleRef is deleted and created again.
//! - Priority and fairness: the spec is replaced if `apf.kubernetes.io/autoupdate-spec` requests
//!   it, or if it was never changed since its creation; always for objects that the server
//!   requires. Objects that the server no longer has are deleted if they are still marked for
//!   updates.
//! - All other objects that a user has changed stay as they are.

use crate::flowcontrol::flow_schema::mandatory_spec;
use polyplane_apimachinery::{Map, Value, json};
use polyplane_plane::Key;

const RBAC: &str = "rbac.authorization.k8s.io";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AUTO_UPDATE_SPEC: &str = "apf.kubernetes.io/autoupdate-spec";

/// The change of an object that a plane has under the same key as its layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Merge {
    /// The object stays as it is.
    Keep,
    /// The object is replaced by this tree.
    Update(Value),
    /// The object is deleted, and the layer's object is created in its place.
    Recreate,
    /// The object is deleted.
    Delete,
}

/// Returns the change of a plane's own object. `new` is the newer layer's object under the same
/// key.
pub fn merge(key: &Key, own: &Value, new: Option<&Value>) -> Merge {
    match (key.group(), key.resource(), new) {
        (RBAC, "clusterroles" | "roles", Some(new)) => policy(own, |own| add_rules(own, new), new),
        (RBAC, "clusterrolebindings" | "rolebindings", Some(new)) => {
            if recreates(key, own, new) {
                return match is_protected(own) {
                    true => Merge::Keep,
                    false => Merge::Recreate,
                };
            }
            policy(own, |own| add_subjects(own, new), new)
        }
        (FLOW_CONTROL, resource, Some(new)) => flow(resource, own, new),
        (FLOW_CONTROL, _, None) if marked(own) == Some(true) => Merge::Delete,
        _ => Merge::Keep,
    }
}

/// Returns whether the newer layer's object under a name must be deleted and created again, because
/// a roleRef cannot be changed.
pub fn recreates(key: &Key, old: &Value, new: &Value) -> bool {
    let binding = matches!(key.resource(), "clusterrolebindings" | "rolebindings");
    let field = |object: &Value, name: &str| object.str_at(&["roleRef", name]).to_owned();
    let differs = |name: &&str| field(old, name) != field(new, name);
    key.group() == RBAC && binding && ["apiGroup", "kind", "name"].iter().any(differs)
}

fn is_protected(own: &Value) -> bool {
    own.str_at(&["metadata", "annotations", AUTO_UPDATE]) == "false"
}

fn policy(own: &Value, add: impl FnOnce(&mut Value), new: &Value) -> Merge {
    if is_protected(own) {
        return Merge::Keep;
    }
    let mut merged = own.clone();
    add_texts(&mut merged, new, "annotations");
    add_texts(&mut merged, new, "labels");
    add(&mut merged);
    match merged == *own {
        true => Merge::Keep,
        false => Merge::Update(merged),
    }
}

/// Adds labels or annotations that are missing.
fn add_texts(own: &mut Value, new: &Value, field: &str) {
    let wanted = new.at(&["metadata", field]).and_then(Value::as_object);
    for (name, text) in wanted.into_iter().flat_map(Map::iter) {
        let path = ["metadata", field, name];
        if own.at(&path).is_none() {
            own.set(&path, text.clone());
        }
    }
}

fn add_rules(own: &mut Value, new: &Value) {
    let path = ["aggregationRule", "clusterRoleSelectors"];
    if new.at(&["aggregationRule"]).is_none_or(Value::is_null) {
        add_single_rules(own, new);
        own.remove(&["aggregationRule"]);
        return;
    }
    let selectors = new.items_at(&path).iter();
    let missing = selectors.filter(|selector| !own.items_at(&path).contains(selector));
    let missing = missing.cloned().collect();
    append(own, &path, missing);
}

fn add_single_rules(own: &mut Value, new: &Value) {
    let missing: Vec<Value> = new
        .items_at(&["rules"])
        .iter()
        .flat_map(single_rules)
        .filter(|rule| !own.items_at(&["rules"]).iter().any(|own| covers(own, rule)))
        .collect();
    append(own, &["rules"], missing);
}

fn add_subjects(own: &mut Value, new: &Value) {
    let same = |a: &Value, b: &Value| {
        let fields = ["kind", "apiGroup", "name", "namespace"];
        fields
            .iter()
            .all(|field| a.str_at(&[field]) == b.str_at(&[field]))
    };
    let subjects = new.items_at(&["subjects"]).iter();
    let missing = subjects.filter(|subject| {
        let mut known = own.items_at(&["subjects"]).iter();
        !known.any(|known| same(known, subject))
    });
    let missing = missing.cloned().collect();
    append(own, &["subjects"], missing);
}

fn append(own: &mut Value, path: &[&str], missing: Vec<Value>) {
    if !missing.is_empty() {
        let known = own.items_at(path).iter().cloned();
        let all: Vec<Value> = known.chain(missing).collect();
        own.set(path, all);
    }
}

/// Splits a rule into rules of one verb and one resource, resource name or path each. Each of these
/// is covered as a whole or not at all.
fn single_rules(rule: &Value) -> Vec<Value> {
    let verbs = texts(rule, "verbs");
    let mut single = Vec::new();
    for group in texts(rule, "apiGroups") {
        for resource in texts(rule, "resources") {
            for verb in &verbs {
                let names = texts(rule, "resourceNames");
                let of = json!({"verbs": [(*verb)], "apiGroups": [group], "resources": [resource]});
                if names.is_empty() {
                    single.push(of);
                    continue;
                }
                single.extend(names.into_iter().map(|name| {
                    let mut of = of.clone();
                    of.set(&["resourceNames"], vec![Value::from(name)]);
                    of
                }));
            }
        }
    }
    for url in texts(rule, "nonResourceURLs") {
        let of = |verb: &&str| json!({"verbs": [(*verb)], "nonResourceURLs": [url]});
        single.extend(verbs.iter().map(of));
    }
    single
}

fn texts<'a>(rule: &'a Value, field: &str) -> Vec<&'a str> {
    let items = rule.items_at(&[field]).iter();
    items.filter_map(Value::as_str).collect()
}

/// Returns whether a rule allows everything that a single rule allows.
fn covers(rule: &Value, single: &Value) -> bool {
    let all = |field: &str, any: &str| {
        let known = texts(rule, field);
        known.contains(&any) || texts(single, field).iter().all(|text| known.contains(text))
    };
    let (names, wanted) = (texts(rule, "resourceNames"), texts(single, "resourceNames"));
    let named = names.is_empty()
        || !wanted.is_empty() && wanted.iter().all(|wanted| names.contains(wanted));
    let urls = texts(rule, "nonResourceURLs");
    let reached = |url: &&str| urls.iter().any(|known| covers_url(known, url));
    all("verbs", "*")
        && all("apiGroups", "*")
        && covers_resources(&texts(rule, "resources"), &texts(single, "resources"))
        && named
        && texts(single, "nonResourceURLs").iter().all(reached)
}

fn covers_resources(known: &[&str], wanted: &[&str]) -> bool {
    known.contains(&"*")
        || wanted.iter().all(|wanted| {
            let of_any = wanted.split_once('/').map(|(_, sub)| format!("*/{sub}"));
            known.contains(wanted) || of_any.is_some_and(|any| known.contains(&any.as_str()))
        })
}

fn covers_url(known: &str, wanted: &str) -> bool {
    known == wanted || known.ends_with('*') && wanted.starts_with(known.trim_end_matches('*'))
}

fn flow(resource: &str, own: &Value, new: &Value) -> Merge {
    let name = own.str_at(&["metadata", "name"]);
    let untouched = || own.int_at(&["metadata", "generation"]) == Some(1);
    let updates = mandatory_spec(resource, name).is_some() || marked(own).unwrap_or_else(untouched);
    let mut merged = own.clone();
    if updates && own["spec"] != new["spec"] {
        merged.set(&["spec"], new["spec"].clone());
    }
    if marked(own) != Some(updates) {
        let text = if updates { "true" } else { "false" };
        merged.set(&["metadata", "annotations", AUTO_UPDATE_SPEC], text);
    }
    match merged == *own {
        true => Merge::Keep,
        false => Merge::Update(merged),
    }
}

/// Returns the value of the object's annotation about updates, in any form that Go parses as a
/// bool.
fn marked(own: &Value) -> Option<bool> {
    match own.str_at(&["metadata", "annotations", AUTO_UPDATE_SPEC]) {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(resource: &str) -> Key {
        Key::new(RBAC, resource, None, "x")
    }

    fn role(rules: Value) -> Value {
        let mut role = json!({"metadata": {"name": "x"}});
        role.set(&["rules"], rules);
        role
    }

    #[test]
    fn rules_are_added_and_never_taken_away() {
        let own = role(json!([
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/scale"]},
            {"verbs": ["*"], "apiGroups": ["mine"], "resources": ["*"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz*"]}
        ]));
        let new = role(json!([
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["deployments/scale"]},
            {"verbs": ["use"], "apiGroups": ["mine"], "resources": ["y"], "resourceNames": ["a"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]},
            {"verbs": ["get"], "nonResourceURLs": ["/healthz/etcd", "/livez"]}
        ]));
        let Merge::Update(merged) = merge(&key("clusterroles"), &own, Some(&new)) else {
            panic!("rules are missing");
        };
        let rules = merged.items_at(&["rules"]);
        assert_eq!(&rules[..3], own.items_at(&["rules"]));
        let added = json!([
            {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/livez"]}
        ]);
        assert_eq!(&rules[3..], added.as_array().expect("a list"));
        let again = merge(&key("clusterroles"), &merged, Some(&new));
        assert_eq!(again, Merge::Keep, "once is enough");
        assert_eq!(merge(&key("clusterroles"), &own, None), Merge::Keep);
    }

    #[test]
    fn an_object_that_opted_out_is_left_alone() {
        let note = json!({"name": "x", "annotations": {AUTO_UPDATE: "false"}});
        let new = role(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
        let mut own = role(json!([]));
        own.set(&["metadata"], note.clone());
        assert_eq!(merge(&key("roles"), &own, Some(&new)), Merge::Keep);
        let old = json!({"metadata": (note), "roleRef": {"kind": "ClusterRole", "name": "a"}});
        let new =
            json!({"metadata": {"name": "x"}, "roleRef": {"kind": "ClusterRole", "name": "b"}});
        assert_eq!(merge(&key("rolebindings"), &old, Some(&new)), Merge::Keep);
    }

    #[test]
    fn labels_annotations_and_selectors_are_added_and_own_ones_stay() {
        let own = json!({
            "metadata": {"name": "x", "labels": {"a": "mine"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "1"}}]}
        });
        let new = json!({
            "metadata": {"name": "x", "labels": {"a": "1", "b": "2"}, "annotations": {"n": "1"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"b": "1"}}]}
        });
        let Merge::Update(merged) = merge(&key("clusterroles"), &own, Some(&new)) else {
            panic!("something is missing");
        };
        let wanted = json!({
            "metadata": {"name": "x", "labels": {"a": "mine", "b": "2"}, "annotations": {"n": "1"}},
            "aggregationRule": {"clusterRoleSelectors": [
                {"matchLabels": {"a": "1"}}, {"matchLabels": {"b": "1"}}
            ]}
        });
        assert_eq!(merged, wanted);
    }

    #[test]
    fn the_rules_of_an_aggregated_role_are_not_touched() {
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let selectors = json!([{"matchLabels": {"a": "1"}}]);
        let of = |rules: Value| {
            let mut role = role(rules);
            role.set(
                &["aggregationRule", "clusterRoleSelectors"],
                selectors.clone(),
            );
            role
        };
        let (own, new) = (of(json!([])), of(vec![rule].into()));
        assert_eq!(merge(&key("clusterroles"), &own, Some(&new)), Merge::Keep);
    }

    #[test]
    fn a_binding_gains_subjects_and_another_role_makes_it_another_one() {
        let binding = |role: &str, users: &[&str]| {
            let subject = |user: &&str| json!({"kind": "User", "name": (*user)});
            let subjects: Vec<Value> = users.iter().map(subject).collect();
            json!({
                "metadata": {"name": "x"},
                "subjects": (subjects),
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
            })
        };
        let key = key("clusterrolebindings");
        let own = binding("a", &["me", "both"]);
        let merged = merge(&key, &own, Some(&binding("a", &["both", "new"])));
        assert_eq!(merged, Merge::Update(binding("a", &["me", "both", "new"])));
        let other = binding("b", &["both"]);
        assert_eq!(merge(&key, &own, Some(&other)), Merge::Recreate);
        assert!(recreates(&key, &own, &other) && !recreates(&key, &own, &own));
    }

    #[test]
    fn flow_objects_follow_what_they_say_of_themselves() {
        let flow = |note: Option<&str>, generation: i64, precedence: i64| {
            let mut object = json!({
                "metadata": {"name": "probes", "generation": generation},
                "spec": {"matchingPrecedence": precedence}
            });
            if let Some(note) = note {
                object.set(&["metadata", "annotations", AUTO_UPDATE_SPEC], note);
            }
            object
        };
        let key = Key::new(FLOW_CONTROL, "flowschemas", None, "probes");
        let new = flow(Some("true"), 1, 7);
        let of = |own: Value| merge(&key, &own, Some(&new));
        assert_eq!(
            of(flow(Some("true"), 3, 5)),
            Merge::Update(flow(Some("true"), 3, 7))
        );
        assert_eq!(of(flow(Some("T"), 3, 7)), Merge::Keep);
        assert_eq!(of(flow(Some("false"), 3, 5)), Merge::Keep);
        assert_eq!(
            of(flow(None, 1, 5)),
            Merge::Update(flow(Some("true"), 1, 7))
        );
        assert_eq!(
            of(flow(None, 2, 5)),
            Merge::Update(flow(Some("false"), 2, 5))
        );
        assert_eq!(merge(&key, &flow(Some("true"), 2, 5), None), Merge::Delete);
        assert_eq!(merge(&key, &flow(None, 1, 5), None), Merge::Keep);
        let class = Key::new("scheduling.k8s.io", "priorityclasses", None, "x");
        assert_eq!(merge(&class, &flow(None, 1, 5), Some(&new)), Merge::Keep);
    }
}
