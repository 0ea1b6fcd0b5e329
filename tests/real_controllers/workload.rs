//! What runs in each plane: a Deployment with a Service, a Job, a StatefulSet and a CronJob, on nodes
//! that kwok simulates.
//!
//! This module owns the objects and the steps. It does not know the faults.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::plane::Plane;

/// The namespace of everything.
pub const NAMESPACE: &str = "work";
/// Pods of the Deployment while it is rolled, one after the other.
pub const REPLICAS: u64 = 8;
/// Its path.
pub const WEB: &str = "/apis/apps/v1/namespaces/work/deployments/web";
/// The time after which a node must have done what it has to do with a pod.
const BETWEEN_TOUCHES: Duration = Duration::from_secs(2);
const CORE: &str = "/api/v1/namespaces/work";
const APPS: &str = "/apis/apps/v1/namespaces/work";
const BATCH: &str = "/apis/batch/v1/namespaces/work";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/work/endpointslices";

/// The collections that controllers write to, without events.
pub const COLLECTIONS: [(&str, &str); 13] = [
    ("pods", CORE),
    ("services", CORE),
    ("endpoints", CORE),
    ("configmaps", CORE),
    ("serviceaccounts", CORE),
    ("resourcequotas", CORE),
    ("deployments", APPS),
    ("replicasets", APPS),
    ("statefulsets", APPS),
    ("controllerrevisions", APPS),
    ("jobs", BATCH),
    ("cronjobs", BATCH),
    (
        "endpointslices",
        "/apis/discovery.k8s.io/v1/namespaces/work",
    ),
];

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "example.com/app:1",
            "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}}}]}})
}

/// Makes the nodes and the namespace.
///
/// # Errors
/// Returns an error if something is refused.
pub async fn prepare(plane: &Plane) -> Result<()> {
    for number in 0..3 {
        let node = json!({"metadata": {"name": format!("node-{number}"),
            "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": {"kubernetes.io/hostname": format!("node-{number}")}}});
        plane.create("/api/v1/nodes", &node).await?;
    }
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    plane.create("/api/v1/namespaces", &namespace).await
}

/// Creates everything in the namespace and waits until it runs.
///
/// # Errors
/// Returns an error if something is refused or does not come up.
pub async fn deploy(plane: &Plane) -> Result<()> {
    for content in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
        plane
            .until(
                &format!("{CORE}/{content}"),
                "content of a namespace",
                |seen| !seen.is_null(),
            )
            .await?;
    }
    for number in 0..3 {
        let path = format!("/api/v1/nodes/node-{number}");
        plane
            .until(&path, "ready node", |node| {
                has_condition(node, "Ready") && node["spec"]["taints"].is_null()
            })
            .await?;
    }
    let quota = json!({"metadata": {"name": "all"}, "spec": {"hard": {"pods": "100", "count/deployments.apps": "10"}}});
    plane
        .create(&format!("{CORE}/resourcequotas"), &quota)
        .await?;
    let once = |app: &str| {
        let mut template = template(app);
        template["spec"]["restartPolicy"] = json!("Never");
        template
    };
    let tick = json!({"metadata": {"name": "tick"}, "spec": {"schedule": "* * * * *",
        "jobTemplate": {"spec": {"template": (once("tick"))}}}});
    plane.create(&format!("{BATCH}/cronjobs"), &tick).await?;
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    plane.create(&format!("{CORE}/services"), &service).await?;
    let web = json!({"metadata": {"name": "web"}, "spec": {"replicas": REPLICAS, "minReadySeconds": 1,
        "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": {"app": "web"}}, "template": (template("web"))}});
    plane.create(&format!("{APPS}/deployments"), &web).await?;
    let sum = json!({"metadata": {"name": "sum"}, "spec": {"completions": 4, "parallelism": 2, "template": (once("sum"))}});
    plane.create(&format!("{BATCH}/jobs"), &sum).await?;
    let db = json!({"metadata": {"name": "db"}, "spec": {"replicas": 3, "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}}, "template": (template("db"))}});
    plane.create(&format!("{APPS}/statefulsets"), &db).await?;
    plane
        .until(WEB, "available Deployment", |web| {
            is_rolled_out(web, REPLICAS) && has_condition(web, "Available")
        })
        .await?;
    plane
        .until(&format!("{BATCH}/jobs/sum"), "complete Job", |job| {
            has_condition(job, "Complete") && job["status"]["succeeded"] == 4
        })
        .await?;
    stateful(plane, 3).await
}

async fn stateful(plane: &Plane, replicas: u64) -> Result<()> {
    let path = format!("{APPS}/statefulsets/db");
    let ready = |db: &Value| {
        db["status"]["availableReplicas"] == replicas && db["status"]["updatedReplicas"] == replicas
    };
    plane
        .until(&path, "ready StatefulSet", ready)
        .await
        .map(drop)
}

/// Touches pods whose node does not go on with them, until the end. A kubelet looks at its pods again
/// and again; kwok drops a change of a pod whose request a kill has broken, and does not look again.
///
/// # Errors
/// Returns an error if no answer comes. Without one, never returns.
pub async fn wake_kwok(plane: &Plane) -> Result<()> {
    let mut waiting: BTreeMap<String, Value> = BTreeMap::new();
    for look in 0_u64.. {
        sleep(BETWEEN_TOUCHES).await;
        let list = plane.get(&format!("{CORE}/pods")).await?;
        let pods = list["items"].as_array().into_iter().flatten();
        let still: BTreeMap<String, Value> = pods
            .filter(|pod| waits_for_node(pod))
            .map(|pod| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                (name.to_owned(), pod["metadata"]["resourceVersion"].clone())
            })
            .collect();
        for (name, version) in &still {
            if waiting.get(name) == Some(version) {
                let touch =
                    json!({"metadata": {"annotations": {"example.com/touched": look.to_string()}}});
                plane.touch(&format!("{CORE}/pods/{name}"), &touch).await?;
            }
        }
        waiting = still;
    }
    Ok(())
}

/// Returns whether the node has to do something with a pod.
fn waits_for_node(pod: &Value) -> bool {
    let is_of_job = pod["metadata"]["ownerReferences"][0]["kind"] == "Job";
    let phase = pod["status"]["phase"].as_str();
    !pod["spec"]["nodeName"].is_null()
        && (!pod["metadata"]["deletionTimestamp"].is_null()
            || phase == Some("Pending")
            || phase == Some("Running") && is_of_job)
}

/// Changes the template of the Deployment and waits until it is rolled out.
///
/// # Errors
/// Returns an error if that takes too long.
pub async fn roll(plane: &Plane, number: usize) -> Result<()> {
    let change = json!({"spec": {"template": {"metadata": {"annotations": {"example.com/roll": number.to_string()}}}}});
    plane.patch(WEB, &change).await?;
    plane
        .until(WEB, "rolled out Deployment", |web| {
            is_rolled_out(web, REPLICAS)
        })
        .await
        .map(drop)
}

/// Returns how many pods a running rollout has replaced; `None` if no rollout runs, or it is about to
/// end.
pub fn in_rollout(web: &Value) -> Option<u64> {
    let status = &web["status"];
    let updated = status["updatedReplicas"].as_u64().unwrap_or(0);
    (is_observed(web) && (1..REPLICAS - 1).contains(&updated)).then_some(updated)
}

fn is_observed(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

fn is_rolled_out(web: &Value, replicas: u64) -> bool {
    let fields = ["replicas", "updatedReplicas", "availableReplicas"];
    is_observed(web) && fields.iter().all(|field| web["status"][*field] == replicas)
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let mut conditions = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions.any(|one| one["type"] == kind && one["status"] == "True")
}

/// Scales down and up, and waits until endpoints and quota follow.
///
/// # Errors
/// Returns an error if one of them does not.
pub async fn scale(plane: &Plane) -> Result<()> {
    for (path, replicas) in [
        (format!("{WEB}/scale"), 4),
        (format!("{APPS}/statefulsets/db/scale"), 5),
    ] {
        plane
            .patch(&path, &json!({"spec": {"replicas": replicas}}))
            .await?;
    }
    plane
        .until(WEB, "scaled Deployment", |web| is_rolled_out(web, 4))
        .await?;
    stateful(plane, 5).await?;
    let of_web = format!("{SLICES}?labelSelector=kubernetes.io/service-name=web");
    plane
        .until(&of_web, "endpoint of each pod", |list| {
            let slices = list["items"].as_array().into_iter().flatten();
            let ready =
                slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            ready
                .filter(|endpoint| endpoint["conditions"]["ready"] == true)
                .count()
                == 4
        })
        .await?;
    // Pods of Jobs have ended by now or end soon, and do not count then.
    plane
        .until(
            &format!("{CORE}/resourcequotas/all"),
            "usage of the quota",
            |quota| quota["status"]["used"]["pods"] == "9",
        )
        .await
        .map(drop)
}

/// Waits until the CronJob has run a Job to its end.
///
/// # Errors
/// Returns an error if it does not.
pub async fn ticked(plane: &Plane) -> Result<()> {
    plane
        .until(&format!("{BATCH}/jobs"), "Job of the CronJob", |list| {
            let mut jobs = list["items"].as_array().into_iter().flatten();
            jobs.any(|job| {
                job["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
                    && has_condition(job, "Complete")
            })
        })
        .await
        .map(drop)
}

/// Deletes the owners of pods, and waits until the garbage collector has taken these.
///
/// # Errors
/// Returns an error if something stays.
pub async fn collect(plane: &Plane) -> Result<()> {
    plane
        .delete(&format!("{APPS}/statefulsets/db"), "Foreground")
        .await?;
    plane.delete(WEB, "Background").await?;
    let none = |list: &Value| list["items"].as_array().is_some_and(Vec::is_empty);
    for (path, what) in [
        (
            format!("{CORE}/pods?labelSelector=app+in+(web,db)"),
            "end of the pods",
        ),
        (format!("{APPS}/replicasets"), "end of the ReplicaSets"),
        (
            format!("{APPS}/controllerrevisions"),
            "end of the revisions",
        ),
        (format!("{APPS}/statefulsets"), "end of the StatefulSet"),
    ] {
        plane.until(&path, what, none).await?;
    }
    Ok(())
}

/// Deletes the namespace, and waits until nothing of it is left.
///
/// # Errors
/// Returns an error if something is.
pub async fn remove(plane: &Plane) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}");
    plane.delete(&path, "Background").await?;
    plane
        .until(&path, "end of the namespace", Value::is_null)
        .await?;
    for (resource, base) in COLLECTIONS {
        let left = plane.get(&format!("{base}/{resource}")).await?;
        anyhow::ensure!(
            left["items"] == json!([]),
            "{}: {resource} are left: {left}",
            plane.name
        );
    }
    Ok(())
}
