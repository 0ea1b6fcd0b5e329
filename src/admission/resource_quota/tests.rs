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

#[test]
fn the_rows_of_the_index_have_the_whole_usage() {
    let body = polyplane_apimachinery::json::to_vec(&pod());
    let key = Key::new("", "pods", Some("ns"), "p");
    let rows = super::UsageIndex.rows(&key, &body);
    let usage = Usage::of(Kind::Pods, &pod());
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
