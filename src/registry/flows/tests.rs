//! Which class a request belongs to, as objects come, change and go.

use super::*;
use polyplane_auth::{Subject, UserInfo};

struct World(FlowIndex);

impl World {
    /// Returns the schemas and levels of a new plane.
    fn new() -> Self {
        let mut world = Self(FlowIndex::default());
        let rows = include_str!("../../batteries/data/bootstrap.json");
        let limits = json::Limits::default();
        let rows = json::parse(rows.as_bytes(), &limits).expect("it is JSON");
        for row in rows.value.as_array().expect("it is a list") {
            let (group, name) = (row.str_at(&["group"]), row.str_at(&["name"]));
            if let Some(resource) = FlowResource::of(group, row.str_at(&["resource"])) {
                world.0 = world.0.with(resource, name, row.get("object"));
            }
        }
        assert!(world.0.schemas.len() >= 11, "{}", world.0.schemas.len());
        world
    }

    fn put(&mut self, resource: FlowResource, name: &str, text: &str) {
        let limits = json::Limits::default();
        let parsed = json::parse(text.as_bytes(), &limits).expect("it is JSON");
        self.0 = self.0.with(resource, name, Some(&parsed.value));
    }

    fn remove(&mut self, resource: FlowResource, name: &str) {
        self.0 = self.0.with(resource, name, None);
    }

    fn class(&self, user: &UserInfo, verb: &str, subject: Subject<'_>) -> (String, String) {
        let class = self.0.classify(&Attributes {
            user,
            verb,
            subject,
        });
        (class.schema().to_owned(), class.level().name.to_string())
    }

    fn of(&self, user: &str, groups: &[&str]) -> String {
        self.class(&UserInfo::new(user, groups), "get", pods("default", ""))
            .0
    }
}

fn pods<'a>(namespace: &'a str, subresource: &'a str) -> Subject<'a> {
    Subject::Resource {
        group: "",
        version: "v1",
        resource: "pods",
        subresource,
        namespace,
        name: "",
        field_selector: "",
    }
}

const AUTHENTICATED: &str = "system:authenticated";
const SCHEMA: &str = r#"{"spec": {"priorityLevelConfiguration": {"name": "own"}, "matchingPrecedence": 500,
    "distinguisherMethod": {"type": "ByNamespace"}, "rules": [{"subjects": [{"kind": "User", "user": {"name": "jane"}}],
    "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"], "namespaces": ["a"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/x/*", "/y"]}]}]}}"#;
const LEVEL: &str = r#"{"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "borrowingLimitPercent": 0,
    "limitResponse": {"type": "Reject"}}}}"#;

#[test]
fn the_schemas_of_a_new_plane_classify_as_upstream_s() {
    let world = World::new();
    for (user, groups, schema) in [
        ("admin", &["system:masters", AUTHENTICATED][..], "exempt"),
        (
            "system:node:a",
            &["system:nodes", AUTHENTICATED],
            "system-nodes",
        ),
        ("jane", &[AUTHENTICATED], "global-default"),
        (
            "system:anonymous",
            &["system:unauthenticated"],
            "global-default",
        ),
        ("system:kube-scheduler", &[AUTHENTICATED], "kube-scheduler"),
        (
            "system:serviceaccount:kube-system:x",
            &[
                "system:serviceaccounts",
                "system:serviceaccounts:kube-system",
                AUTHENTICATED,
            ],
            "kube-system-service-accounts",
        ),
        (
            "system:serviceaccount:demo:x",
            &[
                "system:serviceaccounts",
                "system:serviceaccounts:demo",
                AUTHENTICATED,
            ],
            "service-accounts",
        ),
        ("nobody", &[], "catch-all"),
    ] {
        assert_eq!(world.of(user, groups), schema, "{user}");
    }
    let anonymous = UserInfo::anonymous();
    let probe = world.class(&anonymous, "get", Subject::Path("/healthz"));
    assert_eq!(probe, ("probes".into(), "exempt".into()));
}

#[test]
fn a_schema_matches_its_subjects_and_rules_from_its_write_on() {
    let mut world = World::new();
    world.put(FlowResource::Schema, "own", SCHEMA);
    let jane = UserInfo::new("jane", &[AUTHENTICATED]);
    // Its level does not exist yet.
    assert_eq!(world.class(&jane, "get", pods("a", "")).0, "global-default");
    world.put(FlowResource::Level, "own", LEVEL);
    for (verb, subject, is_own) in [
        ("get", pods("a", ""), true),
        ("get", pods("a", "log"), true),
        ("get", pods("a", "exec"), false),
        ("list", pods("a", ""), false),
        ("get", pods("b", ""), false),
        ("get", pods("", ""), false),
        ("post", Subject::Path("/x/z"), true),
        ("get", Subject::Path("/x"), false),
        ("get", Subject::Path("/y"), true),
        ("get", Subject::Path("/y/z"), true),
        ("get", Subject::Path("/yz"), false),
    ] {
        let (schema, level) = world.class(&jane, verb, subject);
        assert_eq!(schema == "own", is_own, "{verb} {subject:?}");
        assert_eq!(level == "own", is_own);
    }
    let foreign = UserInfo {
        is_foreign: true,
        ..jane.clone()
    };
    assert_eq!(
        world.class(&foreign, "get", pods("a", "")).0,
        "global-default"
    );
    world.put(
        FlowResource::Schema,
        "earlier",
        &SCHEMA.replace("500", "499"),
    );
    assert_eq!(world.class(&jane, "get", pods("a", "")).0, "earlier");
    world.remove(FlowResource::Level, "own");
    assert_eq!(world.class(&jane, "get", pods("a", "")).0, "global-default");
}

#[test]
fn exempt_and_catch_all_are_always_there() {
    let mut world = World::new();
    for name in ["exempt", "catch-all", "global-default"] {
        world.remove(FlowResource::Schema, name);
        world.remove(FlowResource::Level, name);
    }
    assert_eq!(
        world.of("admin", &["system:masters", AUTHENTICATED]),
        "exempt"
    );
    assert_eq!(world.of("jane", &[AUTHENTICATED]), "catch-all");
    let nothing = World(FlowIndex::default());
    assert_eq!(
        nothing.of("admin", &["system:masters", AUTHENTICATED]),
        "exempt"
    );
    assert_eq!(nothing.of("jane", &[AUTHENTICATED]), "catch-all");
    // A level cannot make itself exempt.
    world.put(
        FlowResource::Level,
        "own",
        r#"{"spec": {"type": "Exempt", "exempt": {}}}"#,
    );
    assert!(world.0.levels().get("own").is_none());
}

#[test]
fn a_classification_allocates_nothing() {
    let world = World::new();
    let jane = UserInfo::new("jane", &["dev", "ops", AUTHENTICATED]);
    let request = Attributes {
        user: &jane,
        verb: "get",
        subject: pods("default", "log"),
    };
    // The first question computes what follows from the objects together.
    let first =
        allocation_counter::measure(|| assert!(!world.0.classify(&request).schema().is_empty()));
    assert!(first.count_total > 0, "allocations are counted");
    let next = allocation_counter::measure(|| {
        assert_eq!(world.0.classify(&request).schema(), "global-default");
    });
    assert_eq!(next.count_total, 0);
}
