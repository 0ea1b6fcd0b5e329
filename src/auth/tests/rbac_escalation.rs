//! Who may write and bind roles, beyond the recorded comparisons of rules.

use polyplane_apimachinery::{Value, json};
use polyplane_auth::rbac::binding::{ObjectName, RoleRef};
use polyplane_auth::rbac::escalation::{Escalation, bind, escalate};
use polyplane_auth::rbac::index::{Index, RbacResource};
use polyplane_auth::rbac::role::Role;
use polyplane_auth::{Attributes, Decision, Subject, UserInfo};

fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("test JSON parses").value
}

fn name<'a>(namespace: &'a str, name: &'a str) -> ObjectName<'a> {
    ObjectName { namespace, name }
}

const ADMIN: &str = r#"{"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]},{"verbs":["*"],"nonResourceURLs":["*"]}]}"#;
const READER: &str =
    r#"{"rules":[{"verbs":["get","list"],"apiGroups":[""],"resources":["pods"]}]}"#;
const DELEGATE: &str = r#"{"rules":[{"verbs":["bind"],"apiGroups":["rbac.authorization.k8s.io"],"resources":["clusterroles"],"resourceNames":["admin"]},
    {"verbs":["escalate"],"apiGroups":["rbac.authorization.k8s.io"],"resources":["roles"]}]}"#;

/// Returns an index in which `root` holds everything, `jane` the role reader in namespace `a`, and
/// `delegate` may bind and escalate there.
fn index() -> Index {
    let mut index = Index::default();
    for (role, rules) in [("admin", ADMIN), ("reader", READER), ("delegate", DELEGATE)] {
        index.put(RbacResource::Role, name("", role), &tree(rules));
    }
    for (namespace, role, user) in [
        ("", "admin", "root"),
        ("a", "reader", "jane"),
        ("a", "delegate", "delegate"),
    ] {
        let binding = format!(
            r#"{{"roleRef":{{"kind":"ClusterRole","name":"{role}"}},"subjects":[{{"kind":"User","name":"{user}"}}]}}"#
        );
        index.put(
            RbacResource::Binding,
            name(namespace, role),
            &tree(&binding),
        );
    }
    index
}

fn reference(kind: &str, name: &str) -> RoleRef {
    RoleRef::from_value(&tree(&format!(r#"{{"kind":"{kind}","name":"{name}"}}"#)))
}

#[test]
fn a_user_binds_only_what_it_holds_there() {
    let (index, jane) = (index(), UserInfo::new("jane", &["dev"]));
    let reader = reference("ClusterRole", "reader");
    assert_eq!(index.confirm_binding(&jane, &reader, "a"), Ok(()));
    let elsewhere = index.confirm_binding(&jane, &reader, "b");
    assert_eq!(
        elsewhere.expect_err("she holds it in a only").to_string(),
        "user \"jane\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\"]}"
    );
    let cases = [
        (
            reference("Role", "reader"),
            "roles.rbac.authorization.k8s.io \"reader\" not found",
        ),
        (
            reference("ClusterRole", "gone"),
            "clusterroles.rbac.authorization.k8s.io \"gone\" not found",
        ),
        (
            reference("Robe", "reader"),
            "unsupported role reference kind: \"Robe\"",
        ),
    ];
    for (role, text) in cases {
        let refusal = index
            .confirm_binding(&jane, &role, "a")
            .expect_err("there is no such role");
        assert!(matches!(refusal, Escalation::NoRole(_)), "{refusal:?}");
        assert_eq!(refusal.to_string(), text);
    }
}

#[test]
fn only_somebody_with_all_rights_writes_an_aggregation_rule() {
    let index = index();
    let (jane, root) = (UserInfo::new("jane", &[]), UserInfo::new("root", &[]));
    let selecting = r#"{"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}"#;
    let (selecting, plain) = (Role::from_value(&tree(selecting)), Role::default());
    let place = name("", "new");
    let refused = Err(Escalation::Aggregation);
    assert_eq!(index.confirm_role(&jane, place, &plain, None), Ok(()));
    assert_eq!(index.confirm_role(&jane, place, &selecting, None), refused);
    assert_eq!(
        index.confirm_role(&jane, place, &plain, Some(&selecting)),
        refused
    );
    assert_eq!(index.confirm_role(&root, place, &selecting, None), Ok(()));
    let empty = Role::from_value(&tree(r#"{"aggregationRule":{"clusterRoleSelectors":[]}}"#));
    assert_eq!(index.confirm_role(&jane, place, &empty, None), Ok(()));
}

#[test]
fn the_verbs_bind_and_escalate_are_asked_about_the_role() {
    let (index, user) = (index(), UserInfo::new("delegate", &[]));
    let allows = |access: &Attributes<'_>| index.decide(access) == Decision::Allow;
    let (admin, reader) = (
        reference("ClusterRole", "admin"),
        reference("ClusterRole", "reader"),
    );
    assert!(allows(&bind(&user, &admin, "a").expect("it can be bound")));
    assert!(!allows(&bind(&user, &admin, "").expect("it can be bound")));
    assert!(!allows(
        &bind(&user, &reader, "a").expect("it can be bound")
    ));
    assert!(bind(&user, &reference("Robe", "admin"), "a").is_none());
    assert!(allows(&escalate(&user, name("a", "any"))));
    assert!(!allows(&escalate(&user, name("", "any"))));
}

#[test]
fn rules_with_too_many_combinations_are_refused_without_comparing_them() {
    let list = |what: &str| {
        let items: Vec<String> = (0..60).map(|at| format!(r#""{what}{at}""#)).collect();
        items.join(",")
    };
    let wide = format!(
        r#"{{"rules":[{{"verbs":[{}],"apiGroups":[{}],"resources":[{}]}}]}}"#,
        list("v"),
        list("g"),
        list("r")
    );
    let wide = Role::from_value(&tree(&wide));
    let root = UserInfo::new("root", &[]);
    let answer = index().confirm_no_escalation(&root, "", wide.rules());
    assert!(matches!(answer, Err(Escalation::TooMany(_))), "{answer:?}");
}

/// A refusal names roles that bindings name and that do not exist, but not any number of them.
#[test]
fn a_refusal_names_a_bounded_number_of_missing_roles() {
    let mut index = Index::default();
    for at in 0..150 {
        let binding = format!(
            r#"{{"roleRef":{{"kind":"ClusterRole","name":"lost-{at}"}},"subjects":[{{"kind":"User","name":"jane"}}]}}"#
        );
        let of = format!("binding-{at}");
        index.put(RbacResource::Binding, name("", &of), &tree(&binding));
    }
    let decision = index.decide(&Attributes {
        user: &UserInfo::new("jane", &[]),
        verb: "get",
        subject: Subject::Path("/metrics"),
    });
    let Decision::NoOpinion(reason) = decision else {
        panic!("nothing allows it: {decision:?}");
    };
    assert!(reason.ends_with(", and 50 more]"), "{reason}");
    assert_eq!(reason.matches("not found").count(), 100);
}
