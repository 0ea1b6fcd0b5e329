//! Patches that change what their object names as its kind.

use super::*;
use crate::request::body::Expected;
use crate::request::body::custom::{Misnamed, check_patched};
use polyplane_apimachinery::json;

/// What upstream answers is in pkg/registry/customresource/validator.go (`ValidateTypeMeta`) and
/// pkg/crdserverscheme/unstructured.go (`ObjectKinds`) of apiextensions-apiserver, and in
/// pkg/apis/meta/v1/unstructured/helpers.go of apimachinery.
#[test]
fn a_patch_that_changes_kind_or_version_of_a_custom_object_is_refused_as_upstream_does() {
    let expected = Expected {
        group: "example.com",
        version: "v1",
        kind: "Thing",
        schemas: &SCHEMAS,
        definition: SCHEMAS
            .find("io.k8s.api.core.v1.ConfigMap")
            .expect("a built-in kind"),
        custom: None,
    };
    let refusal = |kind: Value, version: Value, subresource: &str| {
        let mut tree = json!({"metadata": {"name": "a"}});
        tree.set(&["kind"], kind);
        tree.set(&["apiVersion"], version);
        match check_patched(&tree, expected, subresource) {
            Ok(()) => "accepted".to_owned(),
            Err(Misnamed::Unread(error)) => error.to_string(),
            Err(Misnamed::NoKind) => "no kind".to_owned(),
            Err(Misnamed::Refused(error)) => format!("{} {}", error.code, error.message),
        }
    };
    let ours = || Value::from("example.com/v1");
    let text = |text: &str| Value::from(text);
    let cases = [
        (text("Thing"), ours(), "accepted"),
        (
            text("Other"),
            ours(),
            "422 Other.example.com \"a\" is invalid: kind: Invalid value: \"Other\": must be Thing",
        ),
        (
            text("Thing"),
            text("v2"),
            "422 Thing \"a\" is invalid: apiVersion: Invalid value: \"v2\": must be example.com/v1",
        ),
        (
            text("Other"),
            text("x/v1"),
            "422 Other.x \"a\" is invalid: [kind: Invalid value: \"Other\": must be Thing, apiVersion: Invalid value: \"x/v1\": must be example.com/v1]",
        ),
        (
            text("Thing"),
            text(""),
            "500 Internal error occurred: Object 'apiVersion' is missing in 'object has no apiVersion field'",
        ),
        (text(""), ours(), "no kind"),
        (Value::Null, ours(), "no kind"),
        (
            text("Thing"),
            text("a/b/c"),
            "unexpected GroupVersion string: a/b/c",
        ),
    ];
    for (kind, version, wanted) in cases {
        assert_eq!(refusal(kind, version, ""), wanted);
    }
    assert_eq!(refusal(text("Other"), text("x/v1"), "status"), "accepted");
    let unversioned = refusal(text("Thing"), Value::Null, "status");
    assert!(unversioned.starts_with("500 "), "{unversioned}");
}

/// Upstream's decoder completes a kind without a version with the type that it decodes into, which is the internal one,
/// whose fields have other names (pkg/runtime/serializer/json of apimachinery). So the object has no name.
#[tokio::test(start_paused = true)]
async fn a_patch_to_an_empty_version_is_refused_as_one_to_no_version() {
    let site = Site::open(Vec::new()).await;
    site.make("a", "1").await;
    for version in ["null", r#""""#] {
        let body = format!(r#"{{"apiVersion":{version}}}"#);
        let refused = site.send(Ask::patch("a", &body)).await;
        let refused = refused.map_err(|error| (error.code, error.message));
        let why =
            "the name of the object (a based on URL) was undeterminable: name must be provided";
        assert_eq!(refused, Err((400, why.to_owned())), "{version}");
    }
    let mut strict = Ask::patch("a", r#"{"apiVersion":""}"#);
    strict.query = vec![("fieldValidation".to_owned(), "Strict".to_owned())];
    let refused = site.send(strict).await.expect_err("it has unknown fields");
    let unknown = r#"strict decoding error: unknown field "data", unknown field "metadata""#;
    assert!(refused.message.ends_with(unknown), "{}", refused.message);
}
