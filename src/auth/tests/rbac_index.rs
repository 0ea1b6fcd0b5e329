//! The index after a sequence of changes against the index of what is left, and its decisions
//! against a plain look at every binding.

use std::collections::BTreeMap;

use polyplane_apimachinery::{Value, json};
use polyplane_auth::rbac::binding::ObjectName;
use polyplane_auth::rbac::index::{GROUP, Index, RbacResource};
use polyplane_auth::{Attributes, Subject, UserInfo};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const NAMESPACES: [&str; 3] = ["", "a", "b"];
const VERBS: [&str; 4] = ["get", "list", "use", "*"];
const USERS: [&str; 4] = ["u0", "u1", "system:serviceaccount:a:u0", "u3"];

type Place = (bool, u8, u8);

/// One change: a role or binding, its namespace and name, and the new object unless it is removed.
#[derive(Clone, Debug)]
struct Change {
    place: Place,
    object: Option<Value>,
}

fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("test JSON parses").value
}

fn role() -> impl Strategy<Value = Value> {
    vec((0..4usize, 0..3u8), 0..3).prop_map(|rules| {
        let rules: Vec<String> = rules
            .iter()
            .map(|(verb, resource)| {
                format!(
                    r#"{{"verbs":["{}"],"apiGroups":[""],"resources":["r{resource}"]}}"#,
                    VERBS[*verb]
                )
            })
            .collect();
        tree(&format!(r#"{{"rules":[{}]}}"#, rules.join(",")))
    })
}

fn binding() -> impl Strategy<Value = Value> {
    let subject = (0..4u8, 0..4u8).prop_map(|(kind, at)| match kind {
        0 | 1 => format!(r#"{{"kind":"User","name":"{}"}}"#, USERS[usize::from(at)]),
        2 => format!(r#"{{"kind":"Group","name":"g{at}"}}"#),
        _ => format!(r#"{{"kind":"ServiceAccount","name":"u{at}"}}"#),
    });
    (vec(subject, 0..4), any::<bool>(), 0..4u8).prop_map(|(subjects, of_cluster, role)| {
        let kind = if of_cluster { "ClusterRole" } else { "Role" };
        let subjects = subjects.join(",");
        tree(&format!(
            r#"{{"roleRef":{{"kind":"{kind}","name":"n{role}"}},"subjects":[{subjects}]}}"#
        ))
    })
}

fn change(names: u8) -> impl Strategy<Value = Change> {
    let role =
        (0..3u8, 0..4u8, option::weighted(0.7, role())).prop_map(|(namespace, name, object)| {
            Change {
                place: (false, namespace, name),
                object,
            }
        });
    let binding = (0..3u8, 0..names, option::weighted(0.7, binding())).prop_map(
        |(namespace, name, object)| Change {
            place: (true, namespace, name),
            object,
        },
    );
    prop_oneof![role, binding]
}

fn apply(index: &mut Index, place: Place, object: Option<&Value>) {
    let (is_binding, namespace, name) = place;
    let resource = if is_binding { "rolebindings" } else { "roles" };
    let resource = RbacResource::of(GROUP, resource).expect("the index reads it");
    let text = format!("n{name}");
    let name = ObjectName {
        namespace: NAMESPACES[usize::from(namespace)],
        name: &text,
    };
    match object {
        Some(object) => index.put(resource, name, object),
        None => index.remove(resource, name),
    }
}

fn anew(objects: &BTreeMap<Place, Value>) -> Index {
    let mut index = Index::default();
    for (place, object) in objects.iter().rev() {
        apply(&mut index, *place, Some(object));
    }
    index
}

/// Returns whether any binding allows a user of one group a verb on a resource, by a look at all.
fn plainly_allowed(objects: &BTreeMap<Place, Value>, user: &UserInfo, asked: &Subject<'_>) -> bool {
    let Subject::Resource {
        resource,
        namespace,
        ..
    } = *asked
    else {
        return false;
    };
    let holds = |subject: &Value, own: &str| {
        let name = subject.str_at(&["name"]);
        match subject.str_at(&["kind"]) {
            "User" => user.name == name,
            "Group" => user.in_group(name),
            _ => !own.is_empty() && user.name == format!("system:serviceaccount:{own}:{name}"),
        }
    };
    let mut bindings = objects.iter().filter(|((is_binding, ..), _)| *is_binding);
    bindings.any(|((_, at, _), binding)| {
        let own = NAMESPACES[usize::from(*at)];
        let mut subjects = binding.items_at(&["subjects"]).iter();
        let applies = own.is_empty() || own == namespace;
        if !applies || !subjects.any(|subject| holds(subject, own)) {
            return false;
        }
        let of_cluster = binding.str_at(&["roleRef", "kind"]) == "ClusterRole";
        if !of_cluster && own.is_empty() {
            return false;
        }
        let name: u8 = binding.str_at(&["roleRef", "name"])[1..]
            .parse()
            .expect("a number");
        let place = (false, if of_cluster { 0 } else { *at }, name);
        let rules = objects
            .get(&place)
            .map_or(&[][..], |role| role.items_at(&["rules"]));
        rules.iter().any(|rule| {
            let verb = rule.items_at(&["verbs"])[0].as_str();
            rule.items_at(&["resources"])[0].as_str() == Some(resource)
                && matches!(verb, Some("get" | "*"))
        })
    })
}

fn check_decisions(index: &Index, objects: &BTreeMap<Place, Value>) {
    for name in USERS {
        for group in ["g0", "g1"] {
            let user = UserInfo::new(name, &[group, "g3"]);
            for (resource, namespace) in [("r0", ""), ("r0", "a"), ("r1", "b"), ("r2", "c")] {
                let subject = Subject::Resource {
                    group: "",
                    version: "v1",
                    resource,
                    subresource: "",
                    namespace,
                    name: "",
                    field_selector: "",
                };
                let attributes = Attributes {
                    user: &user,
                    verb: "get",
                    subject,
                };
                let expected = plainly_allowed(objects, &user, &subject);
                assert_eq!(
                    index.authorize(&attributes).is_some(),
                    expected,
                    "{attributes:?}"
                );
            }
        }
    }
}

/// Applies changes to the index of a layer, and checks that the layer's own stays as it was.
fn check(layer: &[Change], changes: &[Change]) {
    let (mut objects, mut shared) = (BTreeMap::new(), Index::default());
    for change in layer {
        objects.extend(change.object.clone().map(|object| (change.place, object)));
        if let Some(object) = &change.object {
            apply(&mut shared, change.place, Some(object));
        }
    }
    let of_layer = anew(&objects);
    let mut index = shared.clone();
    for change in changes {
        match &change.object {
            Some(object) => drop(objects.insert(change.place, object.clone())),
            None => drop(objects.remove(&change.place)),
        }
        apply(&mut index, change.place, change.object.as_ref());
    }
    assert_eq!(index, anew(&objects), "as if made anew");
    assert_eq!(shared, of_layer, "the layer's index is shared, not changed");
    check_decisions(&index, &objects);
}

proptest! {
    #[test]
    fn an_index_is_a_function_of_what_is_left(
        layer in vec(change(6), 0..20),
        changes in vec(change(6), 0..60),
    ) {
        check(&layer, &changes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// So many bindings of one subject that its list has several chunks.
    #[test]
    fn an_index_of_many_bindings_is_a_function_of_what_is_left(
        layer in vec(change(250), 300..400),
        changes in vec(change(250), 0..900),
    ) {
        check(&layer, &changes);
    }
}

#[test]
fn an_emptied_index_equals_a_new_one() {
    let object = tree(
        r#"{"roleRef":{"kind":"Role","name":"n0"},"subjects":[{"kind":"User","name":"u0"},{"kind":"User","name":"u0"}]}"#,
    );
    let mut index = Index::default();
    apply(&mut index, (true, 1, 0), Some(&object));
    apply(&mut index, (false, 1, 0), Some(&tree("{}")));
    assert_ne!(index, Index::default());
    apply(&mut index, (true, 1, 0), None);
    apply(&mut index, (false, 1, 0), None);
    assert_eq!(index, Index::default());
}

#[test]
fn very_many_rules_take_a_bounded_amount_of_work() {
    let mut index = Index::default();
    fn name(name: &str) -> ObjectName<'_> {
        ObjectName {
            namespace: "",
            name,
        }
    }
    let rule =
        |resource: String| json!({"verbs": ["get"], "apiGroups": [""], "resources": [(resource)]});
    let rules = |range: std::ops::Range<usize>| {
        let rules = range.map(|at| rule(format!("r{at}"))).collect();
        json!({"rules": (Value::Array(rules))})
    };
    index.put(RbacResource::Role, name("large"), &rules(0..1_000));
    index.put(RbacResource::Role, name("small"), &rules(0..1));
    let bind = |index: &mut Index, to: &str, role: &str| {
        let binding = json!({"subjects": [{"kind": "User", "name": "u0"}],
            "roleRef": {"apiGroup": (GROUP), "kind": "ClusterRole", "name": (role)}});
        index.put(RbacResource::Binding, name(to), &binding);
    };
    bind(&mut index, "a", "small");
    (0..1_000).for_each(|at| bind(&mut index, &format!("b{at}"), "large"));
    let user = UserInfo {
        name: "u0".into(),
        ..UserInfo::default()
    };
    let allows = |resource| {
        index.decide(&Attributes {
            user: &user,
            verb: "get",
            subject: Subject::Resource {
                group: "",
                version: "v1",
                resource,
                subresource: "",
                namespace: "",
                name: "",
                field_selector: "",
            },
        })
    };
    assert_eq!(allows("r0"), polyplane_auth::Decision::Allow);
    let refused = allows("none");
    assert!(
        format!("{refused:?}").contains("too many rules"),
        "{refused:?}"
    );
    let shown = index.rules_for(&user, "");
    assert!(shown.is_cut && shown.error.is_some() && shown.rules.len() < 50_000);
}
