//! Bodies that name another kind or version than the request takes, options of deletions that are out of
//! range, and definitions without versions. The texts are upstream's.

use crate::shared::plane::Opening;
use crate::site::{Reply, Site, request};
use polyplane_apimachinery::{Str, json};
use polyplane_batteries::kind_tables::custom_kinds;
use polyplane_registry::environment::System;
use polyplane_registry::{ResourceRequest, Verb};
use std::sync::Arc;

const CONFIG_MAPS: [&str; 3] = ["", "configmaps", ""];
const PODS: [&str; 3] = ["", "pods", ""];
const BUILT_IN_SCALES: [&str; 3] = ["", "replicationcontrollers", "scale"];
const CUSTOM_SCALES: [&str; 3] = ["example.com", "widgets", "scale"];
const WIDGETS: [&str; 3] = ["example.com", "widgets", ""];
const DEFINITIONS: [&str; 3] = ["apiextensions.k8s.io", "customresourcedefinitions", ""];
/// A number that 64 bits do not hold.
const TOO_BIG: &str = "99999999999999999999";

async fn open() -> Site {
    let opening = Opening {
        derivation: Some(custom_kinds()),
        ..Opening::default()
    };
    Site::with(Arc::new(System), opening).await
}

/// Sends a request about a kind: its group, its resource and the subresource.
async fn ask(
    site: &Site,
    verb: Verb,
    [group, resource, subresource]: [&str; 3],
    name: &str,
    body: &str,
) -> Reply {
    let some = |text: &str| (!text.is_empty()).then(|| Str::from(text));
    let content_type = match verb {
        Verb::Patch => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = ResourceRequest {
        group: group.into(),
        namespace: some("default").filter(|_| group.is_empty()),
        name: some(name),
        subresource: some(subresource),
        content_type: Some(content_type.into()),
        body: body.to_owned().into(),
        ..request(verb, resource)
    };
    site.send(&request).await
}

#[tokio::test]
async fn bodies_of_deletions_are_options_whose_numbers_have_64_bits() {
    let site = open().await;
    site.put("configmaps", "a", json!({})).await;
    let too_big = format!(r#"{{"gracePeriodSeconds":{TOO_BIG}}}"#);
    let field = "into Go struct field DeleteOptions.gracePeriodSeconds of type int64";
    for (body, text) in [
        (
            r#"{"kind":"Status","apiVersion":"v1"}"#,
            "converting (v1.Status) to (v1.DeleteOptions): unknown conversion".to_owned(),
        ),
        (
            r#"{"kind":"Status","apiVersion":"v1","code":"x"}"#,
            "json: cannot unmarshal string into Go struct field Status.code of type int32"
                .to_owned(),
        ),
        (
            r#"{"kind":"Pod"}"#,
            r#"no kind "Pod" is registered for version "meta.k8s.io/v1" in scheme "pkg/apis/meta/internalversion/scheme/register.go:27""#.to_owned(),
        ),
        (
            too_big.as_str(),
            format!("json: cannot unmarshal number {TOO_BIG} {field}"),
        ),
        (
            r#"{"gracePeriodSeconds":1.5}"#,
            format!("json: cannot unmarshal number 1.5 {field}"),
        ),
    ] {
        for (verb, name) in [(Verb::Delete, "a"), (Verb::DeleteCollection, "")] {
            let refused = ask(&site, verb, CONFIG_MAPS, name, body).await;
            assert_eq!(refused, Err((400, text.clone())), "{verb:?} {body}");
        }
    }
    let other_group = r#"{"kind":"DeleteOptions","apiVersion":"apps/v1"}"#;
    let deleted = ask(&site, Verb::Delete, CONFIG_MAPS, "a", other_group).await;
    deleted.expect("options may be in the version of any group");
}

#[tokio::test]
async fn a_negative_grace_period_is_one_second() {
    let site = open().await;
    let pod = json!({"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    site.put("pods", "p", pod).await;
    let body = r#"{"gracePeriodSeconds":-5}"#;
    let marked = ask(&site, Verb::Delete, PODS, "p", body).await;
    let marked = marked.expect("the pod ends");
    let grace = marked.int_at(&["metadata", "deletionGracePeriodSeconds"]);
    assert_eq!(grace, Some(1));
}

#[tokio::test]
async fn a_definition_without_versions_has_neither_a_version_to_store_nor_one_that_was_stored() {
    let site = open().await;
    for (versions, shown) in [(r#","versions":[]"#, "[]"), ("", "null")] {
        let body = format!(
            r#"{{"metadata":{{"name":"widgets.example.com"}},"spec":{{"group":"example.com","scope":"Cluster","names":{{"plural":"widgets","kind":"Widget"}}{versions}}}}}"#
        );
        let text = format!(
            "CustomResourceDefinition.apiextensions.k8s.io \"widgets.example.com\" is invalid: [spec.versions: Invalid value: {shown}: must have exactly one version marked as storage version, status.storedVersions: Invalid value: null: must have at least one stored version]"
        );
        let refused = ask(&site, Verb::Create, DEFINITIONS, "", &body).await;
        assert_eq!(refused, Err((422, text)));
    }
}

#[tokio::test]
async fn a_scale_of_a_built_in_kind_is_one_of_the_served_version() {
    let site = open().await;
    let controller = json!({"spec": {"replicas": 1i64, "selector": {"a": "b"}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    site.put("replicationcontrollers", "rc", controller).await;
    for (body, text) in [
        (
            r#"{"kind":"Status","apiVersion":"v1"}"#,
            r#"Status in version "v1" cannot be handled as a Scale: converting (v1.Status) to (autoscaling.Scale): unknown conversion"#,
        ),
        (
            r#"{"kind":"Scale","apiVersion":"apps/v1beta1"}"#,
            "the API version in the data (apps/v1beta1) does not match the expected API version (autoscaling/v1)",
        ),
        (
            r#"{"kind":"Scale","apiVersion":"autoscaling/v2"}"#,
            r#"Scale in version "v2" cannot be handled as a Scale: no kind "Scale" is registered for version "autoscaling/v2" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
    ] {
        let refused = ask(&site, Verb::Update, BUILT_IN_SCALES, "rc", body).await;
        assert_eq!(refused, Err((400, text.to_owned())), "{body}");
    }
    let body = r#"{"apiVersion":"extensions/v1beta1"}"#;
    let refused = ask(&site, Verb::Patch, BUILT_IN_SCALES, "rc", body).await;
    let (code, message) = refused.expect_err("its selector is no map");
    assert_eq!(code, 422);
    let text = "json: cannot unmarshal string into Go struct field ScaleStatus.status.selector of type map[string]string";
    assert!(message.ends_with(text), "{message}");
}

#[tokio::test]
async fn a_patched_scale_keeps_the_name_and_the_namespace_of_its_path() {
    let site = open().await;
    let controller = json!({"spec": {"replicas": 1i64, "selector": {"a": "b"}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30i64,
            "containers": [{
                "name": "c", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]}}}});
    site.put("replicationcontrollers", "rc", controller).await;
    let none = "the name of the object (rc based on URL) was undeterminable: name must be provided";
    for (body, text) in [
        (
            r#"{"metadata":{"name":"other"},"spec":{"replicas":2}}"#,
            "the name of the object (other) does not match the name on the URL (rc)",
        ),
        (r#"{"metadata":null,"spec":{"replicas":2}}"#, none),
        (r#"{"apiVersion":null,"spec":{"replicas":2}}"#, none),
        (
            r#"{"metadata":{"namespace":"other"},"spec":{"replicas":2}}"#,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ] {
        let refused = ask(&site, Verb::Patch, BUILT_IN_SCALES, "rc", body).await;
        assert_eq!(refused, Err((400, text.to_owned())), "{body}");
    }
    let body = r#"{"metadata":{"name":"rc","namespace":null},"spec":{"replicas":2}}"#;
    let scaled = ask(&site, Verb::Patch, BUILT_IN_SCALES, "rc", body).await;
    let scaled = scaled.expect("it is the scale of the path");
    assert_eq!(scaled.int_at(&["spec", "replicas"]), Some(2));
}

#[tokio::test]
async fn some_kinds_check_a_generated_name_and_not_its_beginning() {
    let site = open().await;
    let classes = ["resource.k8s.io", "deviceclasses", ""];
    let body = r#"{"metadata":{"generateName":"gpu."},"spec":{}}"#;
    let made = ask(&site, Verb::Create, classes, "", body).await;
    let made = made.expect("a suffix follows the dot");
    assert!(made.str_at(&["metadata", "name"]).starts_with("gpu."));
    let row = site.tenant.base.stored("", "namespaces");
    let namespace =
        json!({"metadata": {"name": "default", "uid": "n"}, "status": {"phase": "Active"}});
    site.put_whole(row.expect("the kind is stored"), namespace)
        .await;
    let controllers = ["", "replicationcontrollers", ""];
    let body = r#"{"metadata":{"generateName":"_x"},"spec":{}}"#;
    let refused = ask(&site, Verb::Create, controllers, "", body).await;
    let (code, message) = refused.expect_err("an underscore is in no name");
    assert_eq!(code, 422);
    assert!(message.contains("metadata.name: "), "{message}");
    assert!(!message.contains("metadata.generateName"), "{message}");
}

#[tokio::test]
async fn ports_that_are_none_are_refused_before_the_pod_is_looked_for() {
    let site = open().await;
    for (ports, answer) in [
        (
            "80,x",
            (
                400,
                r#"cannot convert to []int32: strconv.ParseUint: parsing "x": invalid syntax"#,
            ),
        ),
        ("80", (404, r#"pods "p" not found"#)),
    ] {
        let request = ResourceRequest {
            name: Some("p".into()),
            subresource: Some("portforward".into()),
            query: vec![("ports".to_owned(), ports.to_owned())],
            ..request(Verb::Connect, "pods")
        };
        let refused = site.registry.handle(&site.tenant, &request).await;
        let refused = refused
            .map(drop)
            .map_err(|error| (error.code, error.message));
        assert_eq!(refused, Err((answer.0, answer.1.to_owned())), "{ports}");
    }
}

#[tokio::test]
async fn a_scale_of_a_custom_kind_that_cannot_be_read_is_of_an_unknown_type() {
    let site = open().await;
    let definition = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"scale":{"specReplicasPath":".spec.size","statusReplicasPath":".status.size"}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"}}},"status":{"type":"object","properties":{"size":{"type":"integer"}}}}}}}]}}"#;
    let made = ask(&site, Verb::Create, DEFINITIONS, "", definition).await;
    made.expect("it is sound");
    let widget = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":1}}"#;
    let made = ask(&site, Verb::Create, WIDGETS, "", widget).await;
    made.expect("it is a widget");
    let text = r#"no kind is registered for the type v1.Scale in scheme "pkg/apiserver/customresource_handler.go:781""#;
    for body in [
        r#"{"kind":"Status","apiVersion":"v1"}"#,
        r#"{"kind":"Deployment","apiVersion":"apps/v1"}"#,
        r#"{"kind":"Scale","apiVersion":"extensions/v1beta1","metadata":{"name":"w"}}"#,
        r#"{"metadata":{"name":"w"},"spec":{"replicas":"two"}}"#,
    ] {
        let refused = ask(&site, Verb::Update, CUSTOM_SCALES, "w", body).await;
        assert_eq!(refused, Err((400, text.to_owned())), "{body}");
    }
    for (body, text) in [
        (
            r#"{"apiVersion":"extensions/v1beta1"}"#,
            "converting (v1beta1.Scale) to (v1.Scale): unknown conversion",
        ),
        (
            r#"{"apiVersion":"autoscaling/v2"}"#,
            r#"no kind "Scale" is registered for version "autoscaling/v2" in scheme "k8s.io/client-go/scale/util.go:146""#,
        ),
    ] {
        let refused = ask(&site, Verb::Patch, CUSTOM_SCALES, "w", body).await;
        let (code, message) = refused.expect_err("it is no Scale of the served version");
        assert_eq!(code, 422);
        assert!(message.ends_with(text), "{message}");
    }
    let body = r#"{"apiVersion":null,"spec":{"replicas":2}}"#;
    let scaled = ask(&site, Verb::Patch, CUSTOM_SCALES, "w", body).await;
    let scaled = scaled.expect("a Scale without a version is one of the served version");
    assert_eq!(scaled.int_at(&["spec", "replicas"]), Some(2));
}

/// What was a field of older versions is a number, which upstream reads when it converts an object.
#[tokio::test]
async fn annotations_that_were_fields_have_numbers() {
    let site = open().await;
    let row = site.tenant.base.stored("apps", "deployments");
    let present = json!({"metadata": {"name": "a", "namespace": "default", "uid": "u"}});
    site.put_whole(row.expect("the kind is stored"), present)
        .await;
    let (rollback, generation) = (
        "deprecated.deployment.rollback.to",
        "deprecated.daemonset.template.generation",
    );
    let wrong = r#"strconv.ParseInt: parsing "x": invalid syntax"#;
    let unread = format!("failed to parse annotation[{rollback}]=x as int64: {wrong}");
    let deployment = format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"a","namespace":"default","annotations":{{"{rollback}":"x"}}}}}}"#
    );
    let set = format!(r#"{{"metadata":{{"name":"a","annotations":{{"{generation}":"x"}}}}}}"#);
    let as_a = |kind: &str| format!("{kind} in version \"v1\" cannot be handled as a {kind}: ");
    let place = "failed to convert to unversioned (default/a; apps/v1, Kind=Deployment): ";
    for (verb, content_type, body, code, text) in [
        (
            Verb::Create,
            "application/json",
            &deployment,
            400,
            as_a("Deployment") + &unread,
        ),
        (
            Verb::Create,
            "application/json",
            &set,
            400,
            as_a("DaemonSet") + wrong,
        ),
        (
            Verb::Patch,
            "application/merge-patch+json",
            &deployment,
            422,
            unread.clone(),
        ),
        (
            Verb::Patch,
            "application/strategic-merge-patch+json",
            &deployment,
            500,
            unread.clone(),
        ),
        (
            Verb::Patch,
            "application/apply-patch+yaml",
            &deployment,
            500,
            format!("{place}{unread}"),
        ),
    ] {
        let resource = match *body == set {
            true => "daemonsets",
            false => "deployments",
        };
        let mut sent = request(verb, resource);
        sent.group = "apps".into();
        sent.name = (verb == Verb::Patch).then(|| "a".into());
        sent.query = vec![("fieldManager".to_owned(), "m".to_owned())];
        sent.content_type = Some(content_type.into());
        sent.body = body.clone().into();
        let (found, message) = site.send(&sent).await.expect_err("it is no number");
        assert_eq!(found, code, "{content_type}: {message}");
        match code {
            422 => assert!(message.ends_with(&text), "{message}"),
            _ => assert_eq!(message, text, "{content_type}"),
        }
    }
}
