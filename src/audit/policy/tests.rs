//! Policies: which rule decides, what it leaves out, and which texts are refused.

use super::*;
use polyplane_auth::UserInfo;

fn resource<'a>(path: &'a str, namespace: &'a str, name: &'a str) -> Subject<'a> {
    let (group, rest) = path.split_once(':').unwrap_or(("", path));
    let (resource, subresource) = rest.split_once('/').unwrap_or((rest, ""));
    Subject::Resource {
        group,
        version: "v1",
        resource,
        subresource,
        namespace,
        name,
        field_selector: "",
    }
}

fn policy(rules: &str) -> Policy {
    let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
    Policy::parse(text.as_bytes()).expect("it is a policy")
}

fn level(policy: &Policy, verb: &str, subject: Subject<'_>) -> Level {
    let user = UserInfo::new("jane", &["dev"]);
    let request = Attributes {
        user: &user,
        verb,
        subject,
    };
    policy.plan(&request).level
}

#[test]
fn the_first_matching_rule_decides() {
    let rules = r#"
- {level: None, users: [joe]}
- {level: None, userGroups: [ops], verbs: [get]}
- {level: None, nonResourceURLs: ["/healthz*", "/version"]}
- {level: Request, verbs: [delete], namespaces: [""]}
- {level: RequestResponse, resources: [{resources: [pods]}, {group: apps, resources: ["deployments/*"]}]}
- {level: Request, resources: [{resources: ["*/status"], resourceNames: [one]}]}
- {level: None, resources: [{group: batch}]}
- {level: Metadata, omitStages: [RequestReceived]}
"#;
    let policy = policy(rules);
    let of = |verb, subject| level(&policy, verb, subject);
    assert_eq!(of("get", Subject::Path("/healthz/ping")), Level::None);
    assert_eq!(of("get", Subject::Path("/version")), Level::None);
    assert_eq!(of("get", Subject::Path("/versions")), Level::Metadata);
    assert_eq!(of("delete", resource("nodes", "", "n")), Level::Request);
    assert_eq!(
        of("delete", resource("configmaps", "a", "m")),
        Level::Metadata
    );
    assert_eq!(
        of("get", resource("pods", "a", "p")),
        Level::RequestResponse
    );
    assert_eq!(of("get", resource("pods/log", "a", "p")), Level::Metadata);
    assert_eq!(
        of("get", resource("apps:deployments", "a", "p")),
        Level::RequestResponse
    );
    assert_eq!(
        of("get", resource("apps:deployments/scale", "a", "p")),
        Level::RequestResponse
    );
    assert_eq!(
        of("update", resource("services/status", "a", "one")),
        Level::Request
    );
    assert_eq!(
        of("update", resource("services/status", "a", "two")),
        Level::Metadata
    );
    assert_eq!(
        of("update", resource("batch:jobs/status", "a", "one")),
        Level::None
    );
}

#[test]
fn stages_and_managed_fields_are_left_out_by_policy_and_rule() {
    let text = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Metadata, verbs: [get], omitStages: [ResponseStarted], omitManagedFields: false}
- {level: Metadata}
"#;
    let policy = Policy::parse(text.as_bytes()).expect("it is a policy");
    let user = UserInfo::new("jane", &[]);
    let plan = |verb| {
        let subject = resource("pods", "a", "p");
        policy.plan(&Attributes {
            user: &user,
            verb,
            subject,
        })
    };
    let (get, list) = (plan("get"), plan("list"));
    assert!(!get.records(Stage::RequestReceived) && !get.records(Stage::ResponseStarted));
    assert!(get.records(Stage::ResponseComplete) && !get.omits_managed_fields);
    assert!(list.records(Stage::ResponseStarted) && list.omits_managed_fields);
}

#[test]
fn bodies_with_credentials_are_recorded_only_by_a_rule_that_names_them() {
    let all = policy("- {level: RequestResponse}");
    let any = policy(r#"- {level: RequestResponse, resources: [{resources: ["*"]}]}"#);
    let named = policy(
        r#"- {level: RequestResponse, resources: [{resources: [secrets, "serviceaccounts/token"]}]}"#,
    );
    for kind in ["secrets", "serviceaccounts/token"] {
        let subject = resource(kind, "a", "s");
        assert_eq!(level(&all, "get", subject), Level::Metadata, "{kind}");
        assert_eq!(level(&any, "get", subject), Level::Metadata, "{kind}");
        assert_eq!(
            level(&named, "get", subject),
            Level::RequestResponse,
            "{kind}"
        );
    }
    assert_eq!(
        level(&all, "get", resource("serviceaccounts", "a", "s")),
        Level::RequestResponse
    );
}

#[test]
fn a_wrong_policy_is_refused_with_its_place() {
    let head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
    let cases = [
        ("rules: []", "it has no rules"),
        (
            "rules: [{level: Everything}]",
            "rules[0].level: \"Everything\" is none of",
        ),
        (
            "rules: [{level: None, user: [joe]}]",
            "rules[0]: unknown field \"user\"",
        ),
        (
            "rules: [{level: None, nonResourceURLs: [healthz]}]",
            "must begin with a '/'",
        ),
        (
            "rules: [{level: None, nonResourceURLs: ['/a*b*']}]",
            "only at its end",
        ),
        (
            "rules: [{level: None, nonResourceURLs: ['/a'], namespaces: [b]}]",
            "both regular resources and non-resource URLs",
        ),
        (
            "rules: [{level: None, resources: [{group: apps/v1}]}]",
            "names a version",
        ),
        (
            "rules: [{level: None, resources: [{resourceNames: [a]}]}]",
            "at least one resource",
        ),
        (
            "rules: [{level: None, omitStages: [Received]}]",
            "\"Received\" is none of",
        ),
    ];
    for (rules, expected) in cases {
        let text = format!("{head}{rules}");
        let error = Policy::parse(text.as_bytes()).expect_err(rules).to_string();
        assert!(error.contains(expected), "{rules}: {error}");
    }
    let other = Policy::parse(b"apiVersion: v1\nkind: Policy\nrules: [{level: None}]");
    assert!(matches!(other, Err(PolicyError::Kind { .. })), "{other:?}");
}

#[test]
fn a_group_may_be_a_wildcard() {
    let any = policy(r#"- {level: Request, resources: [{group: "*", resources: [deployments]}]}"#);
    let of = |path| level(&any, "create", resource(path, "a", "d"));
    assert_eq!(of("apps:deployments"), Level::Request);
    assert_eq!(of("deployments"), Level::Request);
    assert_eq!(of("apps:replicasets"), Level::None);
    assert_eq!(of("apps:deployments/scale"), Level::None);
}
