//! Who becomes whom, by which rights.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use polyplane_apimachinery::Str;
use polyplane_auth::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, Attributes, Authorizer, Decision, DenyAll,
    Masters, SYSTEM_MASTERS, Subject, UserInfo, Verdict,
};
use polyplane_registry::Authority;

use super::*;

/// Allows rights that are written as `verb resource/name` or, below a resource,
/// `verb resource/subresource/name`.
struct Rights(&'static [&'static str]);

impl Authorizer for Rights {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let Subject::Resource {
            resource,
            subresource,
            namespace,
            name,
            ..
        } = attributes.subject
        else {
            return Verdict::now(Decision::NoOpinion(String::new()));
        };
        let parts = [resource, subresource, namespace, name];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let wanted = format!("{} {}", attributes.verb, parts.join("/"));
        Verdict::now(match self.0.contains(&wanted.as_str()) {
            true => Decision::Allow,
            false => Decision::NoOpinion(String::new()),
        })
    }
}

fn listing(user: &UserInfo) -> Attributes<'_> {
    Attributes {
        user,
        verb: "list",
        subject: Subject::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace: "",
            name: "",
            field_selector: "",
        },
    }
}

async fn acting_with(
    memory: &ModeMemory,
    proven: &Arc<UserInfo>,
    headers: &HeaderMap,
    authorizer: impl Authorizer + 'static,
) -> Result<ActingUser, String> {
    let authority = Authority::fixed(authorizer);
    let mut access_check = authority.access_check_without_plane();
    let place = (memory, "a");
    let acting = acting_user(&listing(proven), proven, headers, &mut access_check, place).await;
    acting.map_err(|refusal| match refusal {
        Refusal::Status(error)
        | Refusal::Access(error)
        | Refusal::Impersonation(error)
        | Refusal::Unsettled(error) => format!("{} {}", error.code, error.message),
        Refusal::Busy(seconds) => format!("429 {seconds}"),
        Refusal::Text(code, text) => format!("{code} {text}"),
    })
}

/// Returns the user that a listing of pods acts as if `authorizer` decides.
async fn acting(
    proven: &Arc<UserInfo>,
    headers: &HeaderMap,
    authorizer: impl Authorizer + 'static,
) -> Result<ActingUser, String> {
    acting_with(&ModeMemory::default(), proven, headers, authorizer).await
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const SCOPES: &str = "impersonate-extra-acme.com%2fscopes";

fn master() -> Arc<UserInfo> {
    Arc::new(UserInfo::new("admin", &[SYSTEM_MASTERS]))
}

fn eve() -> Arc<UserInfo> {
    Arc::new(UserInfo::new("eve", &[]))
}

/// Returns a service account whose pod runs on `node`.
fn agent(node: &str) -> Arc<UserInfo> {
    let key = |name: &str| Str::from(format!("authentication.kubernetes.io/{name}"));
    Arc::new(UserInfo {
        extra: vec![
            (key("node-name"), vec![node.into()]),
            (key("pod-name"), vec!["p".into()]),
        ],
        ..UserInfo::new("system:serviceaccount:ns:agent", &[])
    })
}

#[tokio::test]
async fn without_headers_a_user_stays_itself() {
    let user = acting(&master(), &headers(&[("accept", "*/*")]), DenyAll).await;
    assert_eq!(user.expect("itself").user.name, "admin");
}

#[tokio::test]
async fn a_master_may_be_anybody() {
    let asked = headers(&[
        (USER, "jane"),
        (GROUP, "dev"),
        (GROUP, "ops"),
        (UID, "7"),
        ("impersonate-extra-acme.com%2fproject", "x"),
    ]);
    let acting_as = acting(&master(), &asked, Masters).await.expect("allowed");
    assert_eq!(acting_as.constraint, "impersonate:user-info");
    let user = acting_as.user;
    assert_eq!((&*user.name, &*user.uid), ("jane", "7"));
    assert_eq!(user.groups, ["dev", "ops", ALL_AUTHENTICATED]);
    let project = (Str::from("acme.com/project"), vec![Str::from("x")]);
    assert_eq!(user.extra, [project]);
    let as_master = headers(&[(USER, "jane"), (GROUP, SYSTEM_MASTERS)]);
    let acting_as = acting(&master(), &as_master, Masters)
        .await
        .expect("by the legacy mode");
    assert_eq!(acting_as.constraint, "");
}

#[tokio::test]
async fn groups_follow_from_the_name() {
    let account = [
        "system:serviceaccounts",
        "system:serviceaccounts:ns",
        ALL_AUTHENTICATED,
    ];
    let cases: &[(&str, &[&str], &str)] = &[
        (
            "system:serviceaccount:ns:robot",
            &account,
            "impersonate:serviceaccount",
        ),
        (
            "system:serviceaccount:ns:r:x",
            &[ALL_AUTHENTICATED],
            "impersonate:user-info",
        ),
        (
            "system:serviceaccount:Ns:robot",
            &[ALL_AUTHENTICATED],
            "impersonate:user-info",
        ),
        (
            "system:node:n1",
            &["system:nodes", ALL_AUTHENTICATED],
            "impersonate:arbitrary-node",
        ),
        (
            "system:node:N1",
            &[ALL_AUTHENTICATED],
            "impersonate:user-info",
        ),
        (ANONYMOUS, &[ALL_UNAUTHENTICATED], "impersonate:user-info"),
    ];
    for (name, groups, constraint) in cases {
        let asked = headers(&[(USER, *name)]);
        let acting_as = acting(&master(), &asked, Masters).await.expect("allowed");
        assert_eq!(acting_as.user.groups, *groups, "{name}");
        assert_eq!(acting_as.constraint, *constraint, "{name}");
    }
}

#[tokio::test]
async fn each_mode_needs_the_user_and_the_request() {
    const NODE: &str = "system:node:n1";
    const ROBOT: &str = "system:serviceaccount:ns:robot";
    let cases: &[(Arc<UserInfo>, &'static str, &'static [&'static str])] = &[
        (
            eve(),
            "jane",
            &[
                "impersonate-on:user-info:list pods",
                "impersonate:user-info users/jane",
            ],
        ),
        (
            eve(),
            NODE,
            &[
                "impersonate-on:arbitrary-node:list pods",
                "impersonate:arbitrary-node nodes/n1",
            ],
        ),
        (
            eve(),
            ROBOT,
            &[
                "impersonate-on:serviceaccount:list pods",
                "impersonate:serviceaccount serviceaccounts/ns/robot",
            ],
        ),
        (
            agent("n1"),
            NODE,
            &[
                "impersonate-on:associated-node:list pods",
                "impersonate:associated-node nodes/*",
            ],
        ),
        (eve(), "jane", &["impersonate users/jane"]),
        (eve(), NODE, &["impersonate users/system:node:n1"]),
        (eve(), ROBOT, &["impersonate serviceaccounts/ns/robot"]),
    ];
    for (caller, name, rights) in cases {
        let asked = headers(&[(USER, *name)]);
        let allowed = acting(caller, &asked, Rights(rights)).await;
        assert_eq!(allowed.expect("allowed").user.name, *name, "{rights:?}");
        for lacking in 0..rights.len() {
            let mut fewer = rights.to_vec();
            fewer.remove(lacking);
            let refused = acting(caller, &asked, Rights(fewer.leak())).await;
            assert!(refused.is_err(), "{name} without {}", rights[lacking]);
        }
    }
    // Whose pod is elsewhere is not that node.
    let asked = headers(&[(USER, NODE)]);
    let refused = acting(&agent("n2"), &asked, Rights(cases[3].2)).await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn constrained_modes_have_limits_of_their_own() {
    const RIGHTS: &[&str] = &[
        "impersonate-on:user-info:list pods",
        "impersonate:user-info users/jane",
        "impersonate:user-info uids/7",
        "impersonate:user-info groups/dev",
        "impersonate:user-info groups/system:masters",
        "impersonate:user-info userextras/acme.com/scopes/view",
        "impersonate:user-info userextras/scopes/view",
    ];
    const ALLOWED: &[&[(&str, &str)]] = &[
        &[(USER, "jane"), (UID, "7"), (GROUP, "dev"), (SCOPES, "view")],
        &[
            (USER, "jane"),
            (GROUP, "dev"),
            (GROUP, "dev"),
            (GROUP, "dev"),
            (GROUP, "dev"),
        ],
    ];
    for asked in ALLOWED {
        let allowed = acting(&eve(), &headers(asked), Rights(RIGHTS)).await;
        assert_eq!(
            allowed.expect("allowed").constraint,
            "impersonate:user-info"
        );
    }
    const REFUSED: &[(&[(&str, &str)], &str)] = &[
        (
            &[(USER, "jane"), (GROUP, "system:masters")],
            "impersonating the system:masters group is not allowed",
        ),
        (
            &[(USER, "jane"), (GROUP, "")],
            "impersonating the empty string group is not allowed",
        ),
        (
            &[(USER, "jane"), ("impersonate-extra-scopes", "view")],
            "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \"scopes\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        (
            &[(USER, "jane"), (SCOPES, "")],
            "impersonating the empty string value in extra is not allowed",
        ),
        (
            &[(USER, "jane"), ("impersonate-extra-acme.com%2f%41", "view")],
            "impersonating a non-lowercase key in extra is not allowed: \"acme.com/A\"",
        ),
        (
            &[(USER, "jane"), (GROUP, "ops")],
            "cannot impersonate:user-info resource \"groups\" in API group \"authentication.k8s.io\"",
        ),
        (
            &[(USER, "jane"), (UID, "8")],
            "cannot impersonate:user-info resource \"uids\"",
        ),
        (
            &[(USER, "jane"), (SCOPES, "edit")],
            "resource \"userextras/acme.com/scopes\"",
        ),
        // A node, or an account, is its name alone.
        (
            &[(USER, "system:node:n1"), (GROUP, "dev")],
            "cannot impersonate resource \"users\"",
        ),
        (
            &[(USER, "system:serviceaccount:ns:r"), (UID, "7")],
            "cannot impersonate resource \"serviceaccounts\"",
        ),
    ];
    for (asked, why) in REFUSED {
        let refused = acting(&eve(), &headers(asked), Rights(RIGHTS)).await;
        let text = refused.expect_err("refused");
        assert!(
            text.starts_with("403") && text.contains(why),
            "{asked:?}: {text}"
        );
    }
    // One right for all of many.
    let all: &[&str] = &[
        "impersonate-on:user-info:list pods",
        "impersonate:user-info users/jane",
        "impersonate:user-info groups/*",
    ];
    let four = [
        (USER, "jane"),
        (GROUP, "a"),
        (GROUP, "b"),
        (GROUP, "c"),
        (GROUP, "d"),
    ];
    assert!(acting(&eve(), &headers(&four), Rights(all)).await.is_ok());
    assert!(
        acting(&eve(), &headers(&four[..4]), Rights(all))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_refusal_has_the_text_of_the_mode_that_came_first() {
    let refused = acting(&eve(), &headers(&[(USER, "jane")]), DenyAll).await;
    assert_eq!(
        refused.expect_err("refused"),
        r#"403 pods is forbidden: User "eve" cannot impersonate-on:user-info:list resource "pods" in API group "" at the cluster scope"#
    );
    // The mode that let eve through before comes first from then on.
    let memory = ModeMemory::default();
    let rights = Rights(&["impersonate users/joe"]);
    let allowed = acting_with(&memory, &eve(), &headers(&[(USER, "joe")]), rights).await;
    assert_eq!(allowed.expect("allowed").constraint, "");
    let refused = acting_with(&memory, &eve(), &headers(&[(USER, "jane")]), DenyAll).await;
    assert_eq!(
        refused.expect_err("refused"),
        r#"403 users "jane" is forbidden: User "eve" cannot impersonate resource "users" in API group "" at the cluster scope"#
    );
}

#[tokio::test]
async fn whoever_names_no_user_is_told_so() {
    let nobody = acting(
        &master(),
        &headers(&[(GROUP, "dev"), (SCOPES, "x")]),
        Masters,
    )
    .await;
    assert_eq!(
        nobody.expect_err("refused"),
        r#"400 requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"dev"}, Extra:map[string][]string{"acme.com/scopes":[]string{"x"}}} without impersonating a user name"#
    );
}
