//! Objects with several managers: who creates them, and what each manager writes.
//!
//! Before a load, the creator and others have written; whoever sends the load is one of three. Only
//! the appliers' loads need server-side apply, so that the others compare with releases before it.

use anyhow::Result;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::lane::{Content, Lane};
use crate::objects::{digits, text};

/// The manager that creates the objects.
const CREATOR: &str = "creator";
/// The manager that applies.
pub const APPLIER: &str = "applier";
/// The manager that changes replicas and annotations.
pub const SCALER: &str = "scaler";
/// The manager that reports the status.
pub const REPORTER: &str = "reporter";
/// Conditions of a status. With six fields each, and four of the status, they are forty.
const CONDITIONS: usize = 6;

/// Creates a ConfigMap and has a second manager add to it.
///
/// # Errors
/// Returns an error if the server refuses a request.
pub async fn create_config_map(
    lane: &Lane,
    collection: &str,
    name: &str,
    object: Bytes,
) -> Result<()> {
    let path = format!("{collection}?fieldManager={CREATOR}");
    lane.call(Method::POST, &path, Content::Json(object))
        .await?;
    let patch = json!({"data": {"replicas": "3"}});
    let path = format!("{collection}/{name}?fieldManager={SCALER}");
    let patch = Content::MergePatch(patch.to_string().into());
    lane.call(Method::PATCH, &path, patch).await?;
    Ok(())
}

/// Creates a Deployment whose status a second manager reports and, if it is `scaled`, whose
/// replicas and mark a third one has changed.
///
/// # Errors
/// Returns an error if the server refuses a request.
pub async fn create_deployment(
    lane: &Lane,
    collection: &str,
    name: &str,
    scaled: bool,
) -> Result<()> {
    let path = format!("{collection}?fieldManager={CREATOR}");
    let object = Content::Json(deployment(name, 0));
    lane.call(Method::POST, &path, object).await?;
    let path = format!("{collection}/{name}/status?fieldManager={REPORTER}");
    let content = Content::MergePatch(status(0));
    lane.call(Method::PATCH, &path, content).await?;
    if scaled {
        let path = format!("{collection}/{name}?fieldManager={SCALER}");
        let scale = json!({
            "metadata": {"annotations": {"mark": digits(1)}},
            "spec": {"replicas": 4}
        });
        let content = Content::MergePatch(text(&scale));
        lane.call(Method::PATCH, &path, content).await?;
    }
    Ok(())
}

/// Returns a Deployment with two containers. A server may skip a write that changes nothing, so each
/// has a mark.
pub fn deployment(name: &str, mark: u64) -> Bytes {
    let container = |name: &str, port: u16| {
        json!({
            "name": name, "image": format!("registry.example.com/{name}:1.2.3"),
            "args": ["--listen", format!(":{port}"), "--log-level", "info"],
            "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
            "env": [
                {"name": "LEVEL", "value": "info"},
                {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}}
            ],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5}
        })
    };
    let labels = json!({"app": name, "bench": "1"});
    text(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "annotations": {"mark": digits(mark)}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container("web", 8080), container("proxy", 9090)]}
            }
        }
    }))
}

/// Returns a merge patch of one field.
pub fn patch(mark: u64) -> Bytes {
    text(&json!({"metadata": {"annotations": {"mark": digits(mark)}}}))
}

/// Returns a merge patch of forty fields of a Deployment's status.
pub fn status(mark: u64) -> Bytes {
    let condition = |at: usize| {
        json!({
            "type": format!("Condition{at}"), "status": "True", "reason": "Measured",
            "message": format!("at {}", digits(mark)),
            "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"
        })
    };
    let conditions: Vec<Value> = (0..CONDITIONS).map(condition).collect();
    text(&json!({"status": {
        "observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "readyReplicas": mark % 3,
        "conditions": conditions
    }}))
}

/// Returns the fields of a ConfigMap that the applier wants.
pub fn applied_config_map(name: &str, mark: u64) -> Bytes {
    text(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"applied": "yes"}},
        "data": {"mark": digits(mark), "mode": "fast", "zone": "a"}
    }))
}

/// Returns the fields of a Deployment that the applier wants: a container of the creator's, with a
/// variable of its own.
pub fn applied_deployment(name: &str, mark: u64) -> Bytes {
    text(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": {"applied": "yes"},
            "annotations": {"applied": digits(mark)}
        },
        "spec": {"template": {"spec": {"containers": [
            {"name": "web", "env": [{"name": "MODE", "value": "fast"}]}
        ]}}}
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_forty_fields() {
        let status: Value = serde_json::from_slice(&status(7)).expect("JSON");
        let status = status["status"].as_object().expect("an object");
        let conditions = status["conditions"].as_array().expect("a list");
        let of_conditions: usize = conditions
            .iter()
            .map(|condition| condition.as_object().expect("an object").len())
            .sum();
        assert_eq!(status.len() - 1 + of_conditions, 40);
    }

    #[test]
    fn each_write_changes_the_object_and_not_its_size() {
        let makers: [fn(u64) -> Bytes; 5] = [
            |mark| deployment("o-1", mark),
            patch,
            status,
            |mark| applied_config_map("o-1", mark),
            |mark| applied_deployment("o-1", mark),
        ];
        for make in makers {
            let (one, two) = (make(1), make(2));
            assert_ne!(one, two);
            assert_eq!(one.len(), two.len());
        }
        let bytes = deployment("o-1", 0).len();
        assert!((1200..1400).contains(&bytes), "{bytes}");
    }
}
