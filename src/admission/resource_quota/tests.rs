//! The signature of objects, and what scopes select.

use super::usage::{Kind, Signature, Usage};
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{Index, Key};

fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "deletionTimestamp": "2024-05-06T07:08:09Z", "deletionGracePeriodSeconds": 30},
        "spec": {
            "priorityClassName": "high",
            "activeDeadlineSeconds": 5,
            "overhead": {"cpu": "50m", "memory": "1Mi"},
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["other"]}]}},
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "2"}}}],
            "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m", "memory": "1Gi", "example.com/gpu": "2"}, "limits": {"cpu": "1"}}},
                {"name": "d", "image": "i"}
            ]
        },
        "status": {"phase": "Running", "qosClass": "Burstable"}
    })
}

#[test]
fn a_pod_takes_what_its_containers_and_its_runtime_do() {
    let usage = Usage::of(Kind::Pods, &pod());
    let amounts: Vec<(&str, i64)> = usage
        .amounts
        .iter()
        .map(|(name, amount)| (name.as_str(), *amount))
        .collect();
    let gib_and_mib = (1i64 << 30) + (1 << 20);
    assert_eq!(
        amounts,
        [
            ("count/pods", 1000),
            ("cpu", 2050),
            ("limits.cpu", 1050),
            ("memory", gib_and_mib * 1000),
            ("pods", 1000),
            ("requests.cpu", 2050),
            ("requests.example.com/gpu", 2000),
            ("requests.memory", gib_and_mib * 1000),
        ]
    );
    let mut done = pod();
    done.set(&["status", "phase"], "Succeeded");
    let names: Vec<_> = Usage::of(Kind::Pods, &done).amounts.into_keys().collect();
    assert_eq!(names, ["count/pods"]);
}

/// Returns a pod whose node has reserved and set more for its containers than their spec wants.
fn resized() -> Value {
    let mut pod = pod();
    let status = json!([
        {"name": "c", "image": "i", "ready": true,
            "allocatedResources": {"cpu": "3", "memory": "2Gi", "example.com/gpu": "2"},
            "resources": {"requests": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"}, "limits": {"cpu": "4"}}},
        {"name": "d", "image": "i", "ready": true, "resources": {"requests": {"cpu": "1500m"}, "limits": {}}}
    ]);
    pod.set(&["status", "containerStatuses"], status);
    pod
}

#[test]
fn a_pod_that_is_resized_takes_the_most_of_what_is_wanted_reserved_and_set() {
    let taken = |pod: &Value, name: &str| Usage::of(Kind::Pods, pod).amounts[name];
    let mut pod = resized();
    // Reserved are 3, and set are 1 and 1.5; the runtime takes 0.05.
    assert_eq!(taken(&pod, "requests.cpu"), 3050);
    assert_eq!(taken(&pod, "limits.cpu"), 4050);
    let mib = 1024 * 1024 * 1000;
    assert_eq!(taken(&pod, "requests.memory"), 2049 * mib);
    assert_eq!(taken(&pod, "requests.example.com/gpu"), 2000);
    let grown = json!({"requests": {"cpu": "9"}, "limits": {"cpu": "9"}});
    let mut containers = pod.items_at(&["spec", "containers"]).to_vec();
    containers[0].set(&["resources"], grown);
    pod.set(&["spec", "containers"], containers);
    assert_eq!(taken(&pod, "requests.cpu"), 9050);
    for (reason, wanted) in [("Deferred", [9050, 9050]), ("Infeasible", [3050, 4050])] {
        let conditions = json!([{"type": "Ready", "status": "True"},
            {"type": "PodResizePending", "status": "True", "reason": reason}]);
        pod.set(&["status", "conditions"], conditions);
        let shown = ["requests.cpu", "limits.cpu"].map(|name| taken(&pod, name));
        assert_eq!(shown, wanted, "{reason}");
    }
}

#[test]
fn the_rows_of_the_index_have_the_whole_usage() {
    let mut infeasible = resized();
    let conditions = json!([{"type": "PodResizePending", "reason": "Infeasible"}]);
    infeasible.set(&["status", "conditions"], conditions);
    for pod in [pod(), resized(), infeasible] {
        check_rows(&pod);
    }
}

fn check_rows(pod: &Value) {
    let body = polyplane_apimachinery::json::to_vec(pod);
    let key = Key::new("", "pods", Some("ns"), "p");
    let rows = super::UsageIndex.rows(&key, &body);
    let usage = Usage::of(Kind::Pods, pod);
    let wanted = Signature {
        is_terminating: true,
        is_best_effort: false,
        crosses_namespaces: true,
        ends: 1_714_979_319,
        classes: vec!["high".into()],
    };
    assert_eq!(usage.signature, wanted);
    assert_eq!(rows.len(), usage.amounts.len());
    for row in rows {
        let value = row.value.strip_prefix(b"ns\0P").expect("it is of a pod");
        let end = value.iter().position(|byte| *byte == 0).expect("it ends");
        let name = std::str::from_utf8(&value[..end]).expect("a name");
        assert_eq!(usage.amounts.get(name), Some(&row.amount), "{name}");
        assert_eq!(Signature::decode(&value[end + 1..]), Some(wanted.clone()));
    }
}
