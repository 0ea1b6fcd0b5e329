//! What the file says, and what is wrong with it.

use super::*;
use polyplane_auth::{Attributes, Subject, UserInfo};

fn file(authorizers: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{authorizers}"
    )
}

/// A webhook with these further fields.
fn webhook(name: &str, fields: &str) -> String {
    format!(
        "- type: Webhook\n  name: {name}\n  webhook:\n    subjectAccessReviewVersion: v1\n    \
         connectionInfo: {{type: KubeConfigFile, kubeConfigFile: /etc/w}}\n{fields}"
    )
}

const GOOD: &str = "    timeout: 3s\n    failurePolicy: Deny\n";
const CONDITION: &str = "    matchConditionSubjectAccessReviewVersion: v1\n    matchConditions:\n";

fn said(text: &str) -> String {
    AuthorizationConfig::parse(text.as_bytes())
        .map(|_| ())
        .expect_err("refused")
        .to_string()
}

#[test]
fn authorizers_keep_their_order_and_settings() {
    let first = webhook(
        "first.example",
        &format!("{GOOD}    authorizedTTL: 1m\n    cacheUnauthorizedRequests: false\n"),
    );
    let second = webhook("second", "    timeout: 30s\n    failurePolicy: NoOpinion\n");
    let text = file(&format!(
        "{first}- {{type: Node, name: node}}\n- {{type: RBAC, name: rbac}}\n{second}"
    ));
    for text in [text.clone(), text.replace("io/v1", "io/v1beta1")] {
        let config = AuthorizationConfig::parse(text.as_bytes()).expect("good");
        let [
            AuthorizerConfig::Webhook(first),
            AuthorizerConfig::Node,
            AuthorizerConfig::Rbac,
            AuthorizerConfig::Webhook(second),
        ] = &config.authorizers[..]
        else {
            panic!("another order: {config:?}");
        };
        assert_eq!(first.lifetimes, (Duration::from_secs(60), Duration::ZERO));
        assert_eq!(
            (first.on_failure, first.timeout),
            (OnFailure::Deny, Duration::from_secs(3))
        );
        assert_eq!(first.kubeconfig, FilePath::new("/etc/w"));
        assert_eq!(second.lifetimes, LIFETIMES);
        assert_eq!(
            (second.name.as_str(), second.on_failure),
            ("second", OnFailure::NoOpinion)
        );
    }
}

#[test]
fn what_is_wrong_is_said_as_upstream_says_it() {
    let one = |fields: &str| file(&webhook("w", fields));
    let good = || webhook("w", GOOD);
    let connected = |connection: &str| {
        one(GOOD).replace("{type: KubeConfigFile, kubeConfigFile: /etc/w}", connection)
    };
    let condition = |text: &str| one(&format!("{GOOD}{CONDITION}    - expression: {text}\n"));
    let many: String = (0..65)
        .map(|at| format!("    - expression: '{at} == 1'\n"))
        .collect();
    let cases = [
        (
            file("").replace("authorizers:\n", ""),
            "authorizers: Required value: at least one authorization mode must be defined",
        ),
        (file("- {name: x}\n"), "authorizers[0].type: Required value"),
        (
            file("- {type: X, name: x}\n"),
            "authorizers[0].type: Unsupported value: \"X\": supported values: \"ABAC\", \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"",
        ),
        (
            file("- {type: ABAC, name: abac}\n"),
            "there is no ABAC here",
        ),
        (
            file("- {type: RBAC, name: rbac}\n- {type: RBAC, name: x}\n"),
            "authorizers[1].type: Duplicate value: \"RBAC\"",
        ),
        (
            file("- {type: RBAC}\n"),
            "authorizers[0].name: Required value",
        ),
        (
            file("- {type: RBAC, name: roles}\n"),
            "expected name rbac for authorizer RBAC instead of roles",
        ),
        (
            file(&format!("{}{}", good(), good())),
            "authorizers[1].name: Duplicate value: \"w\"",
        ),
        (
            file(&webhook("W_1", GOOD)),
            "authorizers[0].name: Invalid value: \"W_1\": authorizer name is invalid: a lowercase RFC 1123 subdomain",
        ),
        (
            file("- {type: Webhook, name: w}\n"),
            "authorizers[0].webhook: Required value: required when type=Webhook",
        ),
        (
            file("- {type: RBAC, name: rbac, webhook: {}}\n"),
            "authorizers[0].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook",
        ),
        (
            one("    failurePolicy: Deny\n"),
            "authorizers[0].timeout: Required value",
        ),
        (
            one(&GOOD.replace("3s", "31s")),
            "authorizers[0].timeout: Invalid value: \"31s\": must be > 0s and <= 30s",
        ),
        (one(&GOOD.replace("3s", "-1s")), "must be > 0s and <= 30s"),
        (
            one(&GOOD.replace("3s", "soon")),
            "authorizers[0].timeout: Invalid value: \"soon\"",
        ),
        (
            one(&format!("{GOOD}    authorizedTTL: -1s\n")),
            "authorizers[0].authorizedTTL: Invalid value: \"-1s\": must be > 0s",
        ),
        (
            one(&format!("{GOOD}    unauthorizedTTL: -1s\n")),
            "authorizers[0].unauthorizedTTL: Invalid value: \"-1s\": must be > 0s",
        ),
        (
            one(GOOD).replace(
                "subjectAccessReviewVersion: v1",
                "subjectAccessReviewVersion: v2",
            ),
            "authorizers[0].subjectAccessReviewVersion: Unsupported value: \"v2\": supported values: \"v1\", \"v1beta1\"",
        ),
        (
            one("    timeout: 3s\n"),
            "authorizers[0].failurePolicy: Required value",
        ),
        (
            one(&GOOD.replace("Deny", "Fail")),
            "authorizers[0].failurePolicy: Unsupported value: \"Fail\": supported values: \"NoOpinion\", \"Deny\"",
        ),
        (
            connected("{}"),
            "authorizers[0].connectionInfo.type: Required value",
        ),
        (
            connected("{type: KubeConfigFile}"),
            "authorizers[0].connectionInfo.kubeConfigFile: Required value",
        ),
        (
            connected("{type: KubeConfigFile, kubeConfigFile: w}"),
            "Invalid value: \"w\": must be an absolute path",
        ),
        (
            connected("{type: InClusterConfig}"),
            "the server cannot ask itself",
        ),
        (
            one(&format!(
                "{GOOD}    matchConditions:\n    - expression: 'true'\n"
            )),
            "authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
        ),
        (
            one(&format!(
                "{GOOD}    matchConditionSubjectAccessReviewVersion: v1beta1\n"
            )),
            "Unsupported value: \"v1beta1\": supported values: \"v1\"",
        ),
        (
            condition("' '"),
            "authorizers[0].matchConditions[0].expression: Required value",
        ),
        (
            condition("request.user"),
            "authorizers[0].matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string",
        ),
        (
            condition("request.name == 'x'"),
            "compilation failed: ERROR: <input>:1:8: undefined field 'name'",
        ),
        (
            condition("\"'x' ==\""),
            "compilation failed: ERROR: <input>:1:",
        ),
        (
            one(&format!(
                "{GOOD}{CONDITION}    - expression: 'true'\n    - expression: 'true'\n"
            )),
            "authorizers[0].matchConditions[1].expression: Duplicate value: \"true\"",
        ),
        (
            one(&format!("{GOOD}{CONDITION}{many}")),
            "authorizers[0].matchConditions: Too many: 65: must have at most 64 items",
        ),
        (
            one(&format!("{GOOD}    retries: 3\n")),
            "there is no such field",
        ),
        (
            one(GOOD).replace("Configuration", "Config"),
            "and not AuthorizationConfiguration",
        ),
    ];
    for (text, words) in cases {
        let said = said(&text);
        assert!(said.contains(words), "{text}\nsaid {said}\nand not {words}");
    }
}

#[test]
fn conditions_read_the_whole_question() {
    let user = UserInfo {
        extra: vec![("acme.com/level".into(), vec!["3".into()])],
        uid: "7".into(),
        ..UserInfo::new("jane", &["dev"])
    };
    let pods = Subject::Resource {
        group: "apps",
        version: "v1",
        resource: "deployments",
        subresource: "",
        namespace: "kube-system",
        name: "",
        field_selector: "metadata.name=x",
    };
    let holds = |subject: Subject<'_>, conditions: &[&str]| {
        let lines: String = conditions
            .iter()
            .map(|one| format!("    - expression: \"{one}\"\n"))
            .collect();
        let text = file(&webhook("w", &format!("{GOOD}{CONDITION}{lines}")));
        let mut config = AuthorizationConfig::parse(text.as_bytes()).expect("good");
        let Some(AuthorizerConfig::Webhook(webhook)) = config.authorizers.pop() else {
            panic!("a webhook");
        };
        let attributes = Attributes {
            user: &user,
            verb: "list",
            subject,
        };
        webhook.conditions.hold_for(&attributes)
    };
    for condition in [
        "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'",
        "request.resourceAttributes.verb == 'list' && request.resourceAttributes.name == ''",
        "request.resourceAttributes.fieldSelector.requirements[0].values == ['x']",
        "request.user == 'jane' && request.uid == '7' && 'dev' in request.groups",
        "request.extra['acme.com/level'] == ['3']",
        "!has(request.nonResourceAttributes)",
    ] {
        assert_eq!(holds(pods, &[condition]), Ok(true), "{condition}");
    }
    let failing = "request.nonResourceAttributes.path == '/x'";
    let failed = holds(pods, &[failing]).expect_err("no value");
    assert!(
        failed.starts_with(&format!("expression '{failing}' resulted in error:")),
        "{failed}"
    );
    // One that is false decides, wherever it stands.
    assert_eq!(holds(pods, &[failing, "request.user == 'joe'"]), Ok(false));
    assert!(holds(pods, &["request.user == 'jane'", failing]).is_err());
    let path = Subject::Path("/x");
    assert_eq!(
        holds(path, &[failing, "!has(request.resourceAttributes)"]),
        Ok(true)
    );
}
