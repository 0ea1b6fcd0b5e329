//! Requests that clients seldom make, with the answers of a running upstream: names of which it makes no key, bodies
//! that say nothing, verbs that a path does not have, contradictory decisions, and custom objects whose rules cannot be
//! checked.

use crate::shared::plane::Opening;
use crate::site::{Reply, Site, request};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::kind_tables::custom_kinds;
use polyplane_registry::environment::System;
use polyplane_registry::{ResourceRequest, Verb};
use std::sync::Arc;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// The definition of widgets, whose specs have a rule.
const DEFINITION: &str = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-validations":[{"rule":"self.n < 10"}],"properties":{"n":{"type":"integer"},"replicas":{"type":"integer"}}},"status":{"type":"object","properties":{"replicas":{"type":"integer"}}}}}}}]}}"#;
/// A request for a certificate, which its key has signed.
const CERTIFICATE_REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlHTE1EOENBUUF3RERFS01BZ0dBMVVFQXd3QmVEQXFNQVVHQXl0bGNBTWhBTFYvRVoyQ2xLZU9tVEd4SWVkUwpSY3N5RWdvRC8zenBYZXV2dEFNUThnQkFvQUF3QlFZREsyVndBMEVBVEJ6cWVwVXlDcmdDbndmSmJwTE5mRGpjCm9jK2VGOHBES1VzTGhSejZpZEM0Yi92ODFmRW1lY293d2tGb1ROSEI5VzV2alk0VUtCNWU0R2FIVnNLbEJ3PT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";

/// Creates a site whose plane has a namespace and defines widgets.
async fn open() -> Site {
    let opening = Opening {
        derivation: Some(custom_kinds()),
        ..Opening::default()
    };
    let site = Site::with(Arc::new(System), opening).await;
    let namespaces = ("", "namespaces", "");
    let definitions = ("apiextensions.k8s.io", "customresourcedefinitions", "");
    for (of, body) in [
        (namespaces, r#"{"metadata":{"name":"default"}}"#),
        (definitions, DEFINITION),
    ] {
        let mut made = about(Verb::Create, of, "", (JSON, body));
        made.namespace = None;
        site.send(&made).await.expect("it is sound");
    }
    site
}

/// Returns a request about a kind: its group, its resource and the subresource.
fn about(
    verb: Verb,
    (group, resource, subresource): (&str, &str, &str),
    name: &str,
    (content_type, body): (&str, &str),
) -> ResourceRequest {
    let some = |text: &str| (!text.is_empty()).then(|| Str::from(text));
    ResourceRequest {
        group: group.into(),
        name: some(name),
        subresource: some(subresource),
        content_type: Some(content_type.to_owned()),
        body: body.to_owned().into(),
        ..request(verb, resource)
    }
}

#[tokio::test]
async fn names_of_which_upstream_makes_no_key_are_wrong_for_every_verb() {
    let site = open().await;
    let kinds = [
        ("", "configmaps", "v1", "ConfigMap"),
        // A PUT creates these.
        (
            "coordination.k8s.io",
            "leases",
            "coordination.k8s.io/v1",
            "Lease",
        ),
        ("example.com", "widgets", "example.com/v1", "Widget"),
    ];
    let ways = [
        (Verb::Get, JSON),
        (Verb::Delete, JSON),
        (Verb::Update, JSON),
        (Verb::Patch, MERGE),
        (Verb::Patch, APPLY),
    ];
    for (name, why) in [
        (".", "may not be '.'"),
        ("..", "may not be '..'"),
        ("a%b", "may not contain '%'"),
    ] {
        let wrong: Reply = Err((400, format!("Name parameter invalid: \"{name}\": {why}")));
        for (group, resource, api_version, kind) in kinds {
            let object = format!(
                r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{"name":"{name}"}}}}"#
            );
            for (verb, content_type) in ways {
                let body = match verb {
                    Verb::Update | Verb::Patch => object.as_str(),
                    _ => "",
                };
                let mut asked = about(verb, (group, resource, ""), name, (content_type, body));
                if content_type == APPLY {
                    let manager = ("fieldManager".to_owned(), "test".to_owned());
                    asked.query.push(manager);
                }
                let reply = site.send(&asked).await;
                assert_eq!(reply, wrong, "{verb:?} {content_type} {resource}");
            }
        }
    }
}

#[tokio::test]
async fn wrong_names_in_subresources_and_bindings_are_named_as_such() {
    let site = open().await;
    let binding =
        |metadata: &str| format!(r#"{{{metadata}"target":{{"kind":"Node","name":"n"}}}}"#);
    let named = binding(r#""metadata":{"name":".."},"#);
    let eviction = r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":".."}}"#;
    let wrong: Reply = Err((
        400,
        "Name parameter invalid: \"..\": may not be '..'".to_owned(),
    ));
    for (verb, subresource, body) in [
        (Verb::Get, "log", ""),
        (Verb::Get, "status", ""),
        (Verb::Create, "binding", named.as_str()),
        (Verb::Create, "eviction", eviction),
    ] {
        let asked = about(verb, ("", "pods", subresource), "..", (JSON, body));
        assert_eq!(site.send(&asked).await, wrong, "{subresource}");
    }
    let slash = binding(r#""metadata":{"name":"a/b"},"#);
    for (body, text) in [
        (binding(""), "Name parameter required."),
        (named, "Name parameter invalid: \"..\": may not be '..'"),
        (
            slash,
            "Name parameter invalid: \"a/b\": may not contain '/'",
        ),
    ] {
        let asked = about(Verb::Create, ("", "bindings", ""), "", (JSON, &body));
        let wrong: Reply = Err((400, text.to_owned()));
        assert_eq!(site.send(&asked).await, wrong, "{body}");
    }
}

#[tokio::test]
async fn a_post_to_a_subresource_is_refused_for_its_namespace_before_its_object_is_looked_for() {
    let site = open().await;
    let namespaces = |verb, name: &str, body: &str| ResourceRequest {
        namespace: None,
        ..about(verb, ("", "namespaces", ""), name, (JSON, body))
    };
    let made = namespaces(Verb::Create, "", r#"{"metadata":{"name":"ending"}}"#);
    site.send(&made).await.expect("it is sound");
    let deleted = site.send(&namespaces(Verb::Delete, "ending", "")).await;
    deleted.expect("it is there");
    let binding = r#"{"metadata":{"name":"a"},"target":{"kind":"Node","name":"n"}}"#;
    let eviction = r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"}}"#;
    for (resource, subresource, body) in [
        ("pods", "binding", binding),
        ("bindings", "", binding),
        ("pods", "eviction", eviction),
        (
            "serviceaccounts",
            "token",
            r#"{"spec":{"audiences":["x"]}}"#,
        ),
    ] {
        let name = if subresource.is_empty() { "" } else { "a" };
        let refusal = async |namespace: &str| {
            let asked = ResourceRequest {
                namespace: Some(namespace.into()),
                ..about(
                    Verb::Create,
                    ("", resource, subresource),
                    name,
                    (JSON, body),
                )
            };
            let answer = site.registry.handle(&site.tenant, &asked).await;
            answer.err().expect("it is refused")
        };
        let absent = refusal("absent").await;
        let text = "namespaces \"absent\" not found";
        assert_eq!((absent.code, absent.message.as_str()), (404, text));
        let ending = refusal("ending").await;
        let text = format!(
            "{resource} \"a\" is forbidden: unable to create new content in namespace ending because it is being terminated"
        );
        assert_eq!((ending.code, ending.message), (403, text));
        let causes = ending.details.expect("it has some").causes;
        assert_eq!(causes[0].reason, "NamespaceTerminating");
    }
}

#[tokio::test]
async fn a_namespace_of_which_upstream_makes_no_key_is_refused() {
    let site = open().await;
    for (verb, name, key) in [
        (Verb::List, "", "/configmaps/.."),
        (Verb::Watch, "", "/configmaps/.."),
        (Verb::DeleteCollection, "", "/configmaps/.."),
        (Verb::Get, "a", "/configmaps/../a"),
    ] {
        let mut asked = about(verb, ("", "configmaps", ""), name, (JSON, ""));
        asked.namespace = Some("..".into());
        let wrong: Reply = Err((500, format!("invalid key: \"{key}\"")));
        assert_eq!(site.send(&asked).await, wrong, "{verb:?}");
    }
}

#[tokio::test]
async fn a_strategic_patch_of_null_changes_nothing() {
    let site = open().await;
    site.put("configmaps", "a", json!({"data": {"k": "1"}}))
        .await;
    let patch = |kind| about(Verb::Patch, ("", "configmaps", ""), "a", (kind, "null"));
    let patched = site.send(&patch(STRATEGIC)).await;
    let patched = patched.expect("null is a map without members");
    assert_eq!(patched.str_at(&["data", "k"]), "1");
    let refused = site.send(&patch(MERGE)).await;
    assert_eq!(refused.map_err(|(code, _)| code), Err(400));
}

#[tokio::test]
async fn a_dry_run_names_the_key_of_an_object_without_the_root_of_the_store() {
    let site = open().await;
    site.put("configmaps", "a", json!({})).await;
    let body = r#"{"metadata":{"name":"a","uid":"other"}}"#;
    let mut put = about(Verb::Update, ("", "configmaps", ""), "a", (JSON, body));
    for (root, query) in [("/registry", None), ("", Some("All"))] {
        let dry = query.map(|value| ("dryRun".to_owned(), value.to_owned()));
        put.query = dry.into_iter().collect();
        let text = format!(
            "Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, Key: {root}/configmaps/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: other, UID in object meta: a"
        );
        assert_eq!(site.send(&put).await, Err((409, text)));
    }
}

#[tokio::test]
async fn a_certificate_request_is_approved_or_denied() {
    let site = open().await;
    let condition = |kind: &str| json!({"type": (kind), "status": "True"});
    let conditions = |kinds: &[&str]| -> Value {
        let all: Vec<Value> = kinds.iter().map(|kind| condition(kind)).collect();
        json!({"conditions": (Value::Array(all))})
    };
    let row = site
        .tenant
        .base
        .stored("certificates.k8s.io", "certificatesigningrequests");
    let row = row.expect("they are served");
    let stored: [(&str, &[&str]); 2] = [("new", &[]), ("both", &["Approved", "Denied"])];
    for (name, before) in stored {
        let object = json!({
            "metadata": {"name": (name), "uid": (name)},
            "spec": {"request": (CERTIFICATE_REQUEST), "signerName": "example.com/a", "usages": ["client auth"]},
            "status": (conditions(before)),
        });
        site.put_whole(row, object).await;
    }
    let patch = |name: &str, subresource: &str, kinds: &[&str]| {
        let body = json::to_string(&json!({"status": (conditions(kinds))}));
        let what = (
            "certificates.k8s.io",
            "certificatesigningrequests",
            subresource,
        );
        ResourceRequest {
            namespace: None,
            ..about(Verb::Patch, what, name, (MERGE, &body))
        }
    };
    let one = r#"status.conditions: Invalid value: "{conditions[{\"type\": \"Approved\"}], conditions[{\"type\": \"Denied\"}]}": must specify at most one of: `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`"#;
    let invalid = r#"CertificateSigningRequest.certificates.k8s.io "new" is invalid"#;
    let added = r#"status.conditions: Forbidden: updates may not add a condition of type"#;
    for (subresource, text) in [
        ("approval", format!("{invalid}: {one}")),
        (
            "status",
            format!(r#"{invalid}: [{added} "Approved", {added} "Denied", {one}]"#),
        ),
    ] {
        let refused = site
            .send(&patch("new", subresource, &["Denied", "Approved"]))
            .await;
        assert_eq!(refused, Err((422, text)));
    }
    let kept = patch("both", "approval", &["Approved", "Denied", "Failed"]);
    let kept = site.send(&kept).await;
    kept.expect("what was both before may stay so");
}

#[tokio::test]
async fn a_verb_that_a_subresource_of_a_custom_kind_does_not_have_is_named() {
    let site = open().await;
    for (verb, subresource, name) in [
        (Verb::Create, "scale", "create"),
        (Verb::Delete, "status", "delete"),
    ] {
        let what = ("example.com", "widgets", subresource);
        let reply = site.send(&about(verb, what, "w", (JSON, ""))).await;
        let text = format!(r#"{name} is not supported on resources of kind "widgets.example.com""#);
        assert_eq!(reply, Err((405, text)));
    }
}

#[tokio::test]
async fn rules_are_not_checked_for_an_object_without_a_name_or_with_a_fraction() {
    let site = open().await;
    let widget = |metadata: &str, number: &str| {
        format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Widget","metadata":{metadata},"spec":{{"n":{number}}}}}"#
        )
    };
    for (body, text) in [
        (
            widget("{}", "11"),
            "Widget.example.com \"\" is invalid: [metadata.name: Required value: name or generateName is required, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]",
        ),
        (
            widget(r#"{"name":"w"}"#, "1.0"),
            "Widget.example.com \"w\" is invalid: spec: Invalid value: \"object\": invalid data, expected int, got float64 evaluating rule: self.n < 10",
        ),
    ] {
        let what = ("example.com", "widgets", "");
        let reply = site
            .send(&about(Verb::Create, what, "", (JSON, &body)))
            .await;
        assert_eq!(reply, Err((422, text.to_owned())), "{body}");
    }
    let sound = widget(r#"{"name":"w"}"#, "1");
    let what = ("example.com", "widgets", "");
    let made = site
        .send(&about(Verb::Create, what, "", (JSON, &sound)))
        .await;
    made.expect("it follows the rule");
}
