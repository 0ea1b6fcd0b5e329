//! Devices that pods request by the name of an extended resource, and claims by their class.

use super::{Random, Site};
use polyplane_apimachinery::{Value, json};
use polyplane_registry::Verb;
use std::collections::BTreeMap;

const CLAIMS: &str = "resourceclaims.resource.k8s.io";
const BY_NAME: &str = "requests.example.com/gpu";
const BY_CLASS: &str = "requests.deviceclass.resource.kubernetes.io/gpu";

/// Returns a pod that requests this many devices by the name of an extended resource.
fn pod_with_devices(name: &str, devices: u64) -> Value {
    let amounts = json!({"example.com/gpu": (devices.to_string())});
    let resources = json!({"requests": (amounts.clone()), "limits": amounts});
    let container = json!({"name": "c", "image": "i", "resources": resources});
    json!({"metadata": {"name": name}, "spec": {"containers": [container]}})
}

/// Returns a claim to devices of the class `gpu`, made for what `pod` requests if there is one.
fn claim(name: &str, devices: u64, pod: Option<(&str, &str)>) -> Value {
    let count = i64::try_from(devices).expect("a few");
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count});
    let request = json!({"name": "r", "exactly": exactly});
    let mut claim =
        json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
    if let Some((pod, uid)) = pod {
        let mark = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true});
        claim.set(&["metadata", "annotations"], mark);
        claim.set(&["metadata", "ownerReferences"], json!([owner]));
    }
    claim
}

/// Makes a class whose devices count as `example.com/gpu`, and a quota of both names.
async fn limit_devices(site: &Site, by_name: &str, by_class: &str) {
    let class =
        json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    let made = site.create("deviceclasses.resource.k8s.io", &class).await;
    made.expect("it is new");
    let hard = json!({BY_NAME: by_name, BY_CLASS: by_class});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let made = site.create("resourcequotas", &quota).await;
    made.expect("it is new");
}

#[tokio::test]
async fn devices_are_limited_together_however_they_are_requested() {
    let site = Site::open().await;
    limit_devices(&site, "3", "9").await;
    let refused = site.create(CLAIMS, &claim("a", 4, None)).await;
    let refused = refused.expect_err("it is more than the limit");
    let said = "exceeded quota: q, requested: requests.example.com/gpu=4, used: requests.example.com/gpu=0, limited: requests.example.com/gpu=3";
    assert_eq!(refused.code, 403);
    assert!(refused.message.ends_with(said), "{}", refused.message);
    let made = site.create(CLAIMS, &claim("a", 2, None)).await;
    made.expect("it fits");
    let refused = site.create("pods", &pod_with_devices("p", 2)).await;
    assert_eq!(refused.expect_err("one is left").code, 403);
    let made = site.create("pods", &pod_with_devices("p", 1)).await;
    let made = made.expect("it fits");
    // What the pod requests by name was charged with the pod.
    let owner = ("p", made.str_at(&["metadata", "uid"]));
    let for_pod = site.create(CLAIMS, &claim("b", 1, Some(owner))).await;
    for_pod.expect("the pod has paid");
    let used = site.used("q");
    assert_eq!(
        (used[BY_NAME].as_str(), used[BY_CLASS].as_str()),
        ("3", "3")
    );
    // A second claim for the same pod, and one for a pod that is not there.
    for owner in [owner, ("p", "another")] {
        let refused = site.create(CLAIMS, &claim("c", 1, Some(owner))).await;
        assert_eq!(refused.expect_err("nobody has paid").code, 403);
    }
}

/// Devices, by the name of their holder, and a uid: that of the pod, or that of the claim's owner.
type Holders = BTreeMap<String, (u64, String)>;

/// Returns the devices that pods and claims hold, if what a pod requests pays for its claim.
fn held(pods: &Holders, claims: &Holders) -> u64 {
    let left = claims.values().map(|(devices, owner)| {
        let mut owners = pods.values();
        let paid = owners.find(|(_, uid)| !owner.is_empty() && uid == owner);
        devices.saturating_sub(paid.map_or(0, |(devices, _)| *devices))
    });
    left.sum::<u64>() + pods.values().map(|(devices, _)| devices).sum::<u64>()
}

#[tokio::test]
async fn after_any_history_devices_of_pods_and_their_claims_count_once() {
    let seed = 0x0dd5_eed5_1234_5678;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let site = Site::open().await;
    limit_devices(&site, "12", "99").await;
    let (mut pods, mut claims) = (Holders::new(), Holders::new());
    for step in 0..400 {
        let (at, devices) = (random.below(6), 1 + random.below(3));
        let (pod, plain, made_for) = (format!("p{at}"), format!("c{at}"), format!("e{at}"));
        let before = held(&pods, &claims);
        let owner = pods.get(&pod).map(|(_, uid)| (pod.as_str(), uid.as_str()));
        let (resource, name, object) = match random.below(6) {
            0 => ("pods", pod.clone(), pod_with_devices(&pod, devices)),
            1 => (CLAIMS, plain.clone(), claim(&plain, devices, None)),
            2 => (CLAIMS, made_for.clone(), claim(&made_for, devices, owner)),
            3 => ("pods", pod.clone(), Value::Null),
            4 => (CLAIMS, plain, Value::Null),
            _ => (CLAIMS, made_for, Value::Null),
        };
        let owner = &object["metadata"]["ownerReferences"][0];
        let uid = owner.str_at(&["uid"]).to_owned();
        let model = if resource == "pods" {
            &mut pods
        } else {
            &mut claims
        };
        let is_new = !model.contains_key(&name);
        if object.is_null() {
            let gone = site
                .send(Verb::Delete, resource, (&name, ""), &object)
                .await;
            assert_eq!(gone.is_ok(), model.remove(&name).is_some(), "step {step}");
        } else if is_new {
            model.insert(name.clone(), (devices, uid));
            let made = site.create(resource, &object).await;
            let after = held(&pods, &claims);
            let fits = after <= 12;
            assert_eq!(made.is_ok(), fits, "step {step}: {before} to {after}");
            match (resource, made) {
                ("pods", Ok(made)) => {
                    let uid = made.str_at(&["metadata", "uid"]).to_owned();
                    pods.insert(name, (devices, uid));
                }
                ("pods", Err(_)) => drop(pods.remove(&name)),
                (_, Ok(_)) => {}
                (_, Err(_)) => drop(claims.remove(&name)),
            }
        }
        let (used, wanted) = (site.used("q"), held(&pods, &claims));
        assert_eq!(used[BY_NAME], wanted.to_string(), "step {step}");
    }
}
