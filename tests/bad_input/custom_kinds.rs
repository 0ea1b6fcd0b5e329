//! Requests about custom kinds that their paths do not have.

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::programs::ask;
use serde_json::{Value, json};

use crate::{Target, target};

/// Defines foos, whose first version is deprecated and has no status.
async fn define_foos(target: &Target) -> Result<()> {
    let version = |name: &str, is_newest: bool| {
        json!({"name": name, "served": true, "storage": is_newest, "deprecated": !is_newest,
            "schema": {"openAPIV3Schema": {"type": "object"}}})
    };
    let mut newest = version("v1", true);
    newest["subresources"] = json!({"status": {}});
    let definition = json!({"metadata": {"name": "foos.ex.io"}, "spec": {
        "group": "ex.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
        "versions": [newest, version("v1beta1", false)]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = target.client.post(definitions, &definition).await?;
    made.expect(201)?;
    Ok(())
}

/// Upstream warns of a deprecated version before it looks for the subresource.
#[tokio::test]
async fn a_deprecated_version_warns_of_what_it_has_not() -> Result<()> {
    const WARNING: &str = "299 - \"ex.io/v1beta1 Foo is deprecated; use ex.io/v1 Foo\"";
    let target = target().await?;
    define_foos(&target).await?;
    for (method, what, code) in [
        (Method::GET, "default/foos/a", 404),
        (Method::GET, "default/foos/a/status", 404),
        (Method::PUT, "default/foos/a/status", 404),
        (Method::GET, "default/foos/a/scale", 404),
        (Method::GET, "%2e%2e/foos", 500),
    ] {
        let path = format!("/apis/ex.io/v1beta1/namespaces/{what}");
        let answer = target.client.raw(ask(method, &path, &Value::Null)).await?;
        let warning = answer.headers.get("warning");
        ensure!(answer.status == code, "{what}: {}", answer.status);
        ensure!(
            warning.is_some_and(|text| text == WARNING),
            "{what}: {warning:?}"
        );
    }
    // Outside a namespace there is no such kind for upstream, except in a list.
    let outside = "/apis/ex.io/v1beta1/foos";
    for method in [Method::PUT, Method::PATCH, Method::OPTIONS, Method::POST] {
        let asked = ask(method.clone(), outside, &Value::Null);
        let answer = target.client.raw(asked).await?;
        ensure!(
            answer.status == 404 && answer.body == "404 page not found\n",
            "{method}: {answer:?}"
        );
        ensure!(!answer.headers.contains_key("warning"), "{method}");
    }
    target.is_well().await
}

#[tokio::test]
async fn a_custom_kind_refuses_methods_as_upstream_does() -> Result<()> {
    let target = target().await?;
    define_foos(&target).await?;
    let foos = "/apis/ex.io/v1/namespaces/default/foos";
    let unsupported = |verb: &str| {
        let kind = "on resources of kind \"foos.ex.io\"";
        format!("{verb} is not supported {kind}")
    };
    for (method, what, code, text) in [
        (Method::POST, "/a/status", 405, unsupported("create")),
        (Method::OPTIONS, "/a", 405, unsupported("")),
        (Method::PUT, "", 400, "name must be provided".to_owned()),
        (Method::PATCH, "", 400, "name must be provided".to_owned()),
    ] {
        let (path, kind) = (format!("{foos}{what}"), "application/merge-patch+json");
        let reply = target.client.typed(method.clone(), &path, kind, "{}");
        let reply = reply.await?;
        ensure!(
            reply.status == code && reply.body["message"] == text,
            "{method} {what}: {reply:?}"
        );
    }
    target.is_well().await
}
