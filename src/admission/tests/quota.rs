//! Quotas in a plane in memory: writers at once, and histories against a model.

#[path = "quota/devices.rs"]
mod devices;
#[path = "shared/tenant.rs"]
mod tenant;

use bytes::Bytes;
use polyplane_admission::{AdmissionConfig, configured, quota_status};
use polyplane_apimachinery::json::{Limits, parse, to_vec};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{Masters, UserInfo};
use polyplane_plane::Key;
use polyplane_registry::environment::System;
use polyplane_registry::{
    AnswerBody, Authority, GrantedAccess, Registry, ResourceRequest, Tenant, Verb,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tenant::empty_tenant;
use tokio::time::Instant;

/// A registry with all plug-ins, and a plane with the namespace `ns`.
#[derive(Clone)]
struct Site {
    registry: Arc<Registry>,
    tenant: Tenant,
}

impl Site {
    async fn open() -> Self {
        Self::with(&AdmissionConfig::default()).await
    }

    async fn with(config: &AdmissionConfig) -> Self {
        let registry = Registry::new(Arc::new(System), Authority::fixed(Masters), Vec::new());
        let site = Self {
            registry: Arc::new(registry.admitting(configured(config))),
            tenant: empty_tenant().await,
        };
        let namespace = json!({"metadata": {"name": "ns"}});
        let made = site.send(Verb::Create, "namespaces", ("", ""), &namespace);
        made.await.expect("the namespace is new");
        site
    }

    async fn send(
        &self,
        verb: Verb,
        resource: &str,
        (name, subresource): (&str, &str),
        body: &Value,
    ) -> Result<Value, ApiError> {
        let some = |text: &str| (!text.is_empty()).then(|| Str::from(text));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let is_namespaced = !["namespaces", "deviceclasses"].contains(&resource);
        let request = ResourceRequest {
            verb,
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: is_namespaced.then(|| "ns".into()),
            name: some(name),
            subresource: some(subresource),
            query: Vec::new(),
            accept: "application/json".to_owned(),
            content_type: Some(match verb {
                Verb::Patch => "application/merge-patch+json".to_owned(),
                _ => "application/json".to_owned(),
            }),
            user_agent: "test".to_owned(),
            body: match verb {
                Verb::Delete => Bytes::new(),
                _ => Bytes::from(to_vec(body)),
            },
            user: Arc::new(UserInfo::new("admin", &["system:masters"])),
            granted: GrantedAccess::of_every_cut(),
            deadline: Instant::now() + Duration::from_secs(60),
            seats: None,
            write_rate: None,
            annotations: None,
            token_reviewer: None,
        };
        let answer = self.registry.handle(&self.tenant, &request).await?;
        let AnswerBody::Slices(slices) = answer.body else {
            panic!("the answer is a stream");
        };
        let parsed = parse(&slices.concat(), &Limits::default());
        Ok(parsed.expect("the answer is JSON").value)
    }

    async fn create(&self, resource: &str, body: &Value) -> Result<Value, ApiError> {
        self.send(Verb::Create, resource, ("", ""), body).await
    }

    /// Returns what the status of a quota shows as used.
    fn used(&self, quota: &str) -> BTreeMap<String, String> {
        let cut = self.tenant.plane.snapshot();
        let key = Key::new("", "resourcequotas", Some("ns"), quota);
        let object = cut.get(&key).expect("the quota exists");
        let tree = parse(&object.body(), &Limits::default()).expect("JSON");
        let status = quota_status(&cut, &self.tenant.kinds(), &tree.value, 1_700_000_000);
        let used = status["used"].as_object().expect("it is an object");
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        used.iter()
            .map(|(name, value)| (name.to_owned(), text(value)))
            .collect()
    }
}

fn pod(name: &str, milli: u64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": (format!("{milli}m"))}}}]}
    })
}

/// Returns what a node reports that has reserved this much for the container of a pod.
fn reserving(milli: u64) -> Value {
    let reserved = json!({"cpu": (format!("{milli}m"))});
    json!({"status": {"containerStatuses": [{
        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": reserved
    }]}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_at_once_never_overshoot() {
    let site = Site::open().await;
    let hard = json!({"pods": "10", "requests.cpu": "1", "count/configmaps": "10"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    site.create("resourcequotas", &quota)
        .await
        .expect("it is new");
    let writers: Vec<_> = (0..64)
        .map(|at| {
            let site = site.clone();
            tokio::spawn(async move {
                let map = json!({"metadata": {"name": (format!("m{at}"))}});
                let pod = pod(&format!("p{at}"), 125);
                let (map, pod) =
                    tokio::join!(site.create("configmaps", &map), site.create("pods", &pod));
                for refused in [map.as_ref().err(), pod.as_ref().err()]
                    .into_iter()
                    .flatten()
                {
                    assert_eq!(refused.code, 403, "{}", refused.message);
                }
                (u32::from(map.is_ok()), u32::from(pod.is_ok()))
            })
        })
        .collect();
    let (mut maps, mut pods) = (0, 0);
    for writer in writers {
        let (map, pod) = writer.await.expect("no panic");
        maps += map;
        pods += pod;
    }
    // One map has the certificates of the namespace. Eight pods take one processor.
    assert_eq!((maps, pods), (9, 8));
    let used = site.used("q");
    assert_eq!(used["count/configmaps"], "10");
    assert_eq!(used["requests.cpu"], "1");
}

#[tokio::test]
async fn only_what_something_counts_is_shown_as_used() {
    let site = Site::open().await;
    let hard = json!({
        "foo.com/bar": "1",
        "count/widgets.example.com": "1",
        "count/events": "1",
        "count/nodes": "1",
        "count/deployments.apps": "1",
        "fast.storageclass.storage.k8s.io/other": "1",
        "fast.storageclass.storage.k8s.io/requests.storage": "1",
        "hugepages-2Mi": "1",
        "requests.example.com/gpu": "1",
        "requests.foo.kubernetes.io/bar": "1",
        "secrets": "1"
    });
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    site.create("resourcequotas", &quota)
        .await
        .expect("it is new");
    let used = site.used("q");
    let shown: Vec<&str> = used.keys().map(String::as_str).collect();
    let counted = [
        "count/deployments.apps",
        "fast.storageclass.storage.k8s.io/requests.storage",
        "hugepages-2Mi",
        "requests.example.com/gpu",
        "secrets",
    ];
    assert_eq!(shown, counted);
}

#[tokio::test]
async fn a_quota_that_comes_in_between_counts() {
    let site = Site::open().await;
    for round in 0..20 {
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "0"}}});
        let secret = json!({"metadata": {"name": (format!("s{round}"))}});
        let (made, written) = tokio::join!(
            site.create("resourcequotas", &quota),
            site.create("secrets", &secret)
        );
        let made = made.expect("it is new");
        if let Ok(written) = written {
            // It was sequenced before the quota.
            assert!(version(&written) < version(&made));
            let name = format!("s{round}");
            let gone = site.send(Verb::Delete, "secrets", (&name, ""), &Value::Null);
            gone.await.expect("it is there");
        }
        let gone = site.send(Verb::Delete, "resourcequotas", ("q", ""), &Value::Null);
        gone.await.expect("it is there");
    }
}

/// Returns a configuration in which nobody takes what `limited` says without a quota.
fn limiting(limited: &Value) -> AdmissionConfig {
    let file = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": (limited.clone())
            }
        }]
    });
    let config = AdmissionConfig::parse(&to_vec(&file), &|_| Err("no file".to_owned()));
    config.expect("it is a configuration")
}

#[tokio::test]
async fn what_is_limited_needs_a_quota_that_covers_it() {
    let secrets = json!({"resource": "secrets", "matchContains": ["secrets"]});
    let cpu = json!({"resource": "pods", "matchContains": ["requests.cpu"]});
    let site = Site::with(&limiting(&json!([secrets, cpu]))).await;
    let secret = |name: &str| json!({"metadata": {"name": name}});
    let refused = site.create("secrets", &secret("a")).await;
    let refused = refused.expect_err("nothing covers it");
    let said = r#"secrets "a" is forbidden: insufficient quota to consume: count/secrets,secrets"#;
    assert_eq!((refused.code, refused.message.as_str()), (403, said));
    // Only some of it, and others than the limited.
    let one = json!({"metadata": {"name": "one"}, "spec": {"hard": {"secrets": "9", "pods": "9"}}});
    site.create("resourcequotas", &one)
        .await
        .expect("it is new");
    let refused = site.create("secrets", &secret("a")).await;
    let refused = refused.expect_err("half of it is not covered");
    assert!(
        refused.message.ends_with(": count/secrets"),
        "{}",
        refused.message
    );
    let refused = site
        .create("pods", &pod("p", 100))
        .await
        .expect_err("its processor");
    assert!(
        refused.message.ends_with(": requests.cpu"),
        "{}",
        refused.message
    );
    let free = json!({"metadata": {"name": "free"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    site.create("pods", &free)
        .await
        .expect("it takes no processor");
    let map = json!({"metadata": {"name": "m"}});
    site.create("configmaps", &map).await.expect("not limited");
    // The rest from a second quota.
    let two = json!({"metadata": {"name": "two"}, "spec": {"hard": {"count/secrets": "1", "requests.cpu": "1"}}});
    site.create("resourcequotas", &two)
        .await
        .expect("it is new");
    site.create("secrets", &secret("a")).await.expect("covered");
    site.create("pods", &pod("p", 100)).await.expect("covered");
    let refused = site
        .create("secrets", &secret("b"))
        .await
        .expect_err("there is one");
    assert!(
        refused.message.contains("exceeded quota: two"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn a_limited_scope_needs_a_quota_with_it() {
    let scopes = json!([
        {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["fast", "x"]},
        {"scopeName": "Terminating", "operator": "Exists"}
    ]);
    let limited = json!([{"resource": "pods", "matchScopes": scopes}]);
    let site = Site::with(&limiting(&limited)).await;
    let mut ending = pod("p", 100);
    ending.set(&["spec", "activeDeadlineSeconds"], 60);
    let resources = json!({"requests": {"storage": "1Gi"}});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": "fast", "resources": resources});
    let claim = json!({"metadata": {"name": "c"}, "spec": spec});
    for (resource, object, scope) in [
        ("pods", &ending, "Terminating Exists []"),
        // Upstream's scopes are not only those of the resource that they are written at.
        (
            "persistentvolumeclaims",
            &claim,
            "VolumeAttributesClass In [fast x]",
        ),
    ] {
        let refused = site.create(resource, object).await;
        let refused = refused.expect_err("nothing covers it");
        let said = format!("insufficient quota to match these scopes: [{{{scope}}}]");
        assert_eq!((refused.code, refused.message), (500, said));
    }
    let lasting = pod("q", 100);
    site.create("pods", &lasting).await.expect("not limited");
    let scopes = json!(["Terminating"]);
    let pods =
        json!({"metadata": {"name": "p"}, "spec": {"hard": {"pods": "1"}, "scopes": scopes}});
    let scopes =
        json!({"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": "Exists"}]});
    let hard = json!({"persistentvolumeclaims": "1"});
    let claims =
        json!({"metadata": {"name": "c"}, "spec": {"hard": hard, "scopeSelector": scopes}});
    for quota in [pods, claims] {
        let made = site.create("resourcequotas", &quota).await;
        made.expect("it is new");
    }
    site.create("pods", &ending).await.expect("covered");
    let made = site.create("persistentvolumeclaims", &claim).await;
    made.expect("covered");
}

/// A write that only a quota allows is sequenced before the deletion of the quota, or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quota_that_covers_a_write_stays_until_the_write() {
    let limited = json!([{"resource": "secrets", "matchContains": ["count/secrets"]}]);
    let site = Site::with(&limiting(&limited)).await;
    // A second quota with the same limits elsewhere in its spec does not cover the write.
    let other =
        json!({"metadata": {"name": "other"}, "spec": {"hard": {"count/configmaps": "999"}}});
    site.create("resourcequotas", &other)
        .await
        .expect("it is new");
    let mut outcomes = [0, 0];
    for round in 0..200 {
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "999"}}});
        site.create("resourcequotas", &quota)
            .await
            .expect("it is new");
        let deletion = {
            let site = site.clone();
            tokio::spawn(async move {
                let gone = site.send(Verb::Delete, "resourcequotas", ("q", ""), &Value::Null);
                gone.await.expect("it is there");
                let marker = json!({"metadata": {"name": (format!("m{round}"))}});
                site.create("configmaps", &marker).await.expect("it is new")
            })
        };
        let mut versions = Vec::new();
        for at in 0.. {
            let secret = json!({"metadata": {"name": (format!("s{round}-{at}"))}});
            match site.create("secrets", &secret).await {
                Ok(written) => versions.push(version(&written)),
                Err(refused) => {
                    assert_eq!(refused.code, 403, "{}", refused.message);
                    break;
                }
            }
            outcomes[0] += 1;
        }
        let marked = version(&deletion.await.expect("no panic"));
        // The mark is younger than the deletion.
        assert!(
            versions.iter().all(|one| *one < marked),
            "{versions:?} {marked}"
        );
        outcomes[1] += 1;
    }
    println!("{} writes before {} deletions", outcomes[0], outcomes[1]);
}

fn version(object: &Value) -> u64 {
    let text = object.str_at(&["metadata", "resourceVersion"]);
    text.parse().expect("a version")
}

/// A small generator with a printed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Returns thousandths of a processor as a quota shows them.
fn processors(milli: u64) -> String {
    match milli.is_multiple_of(1000) {
        true => (milli / 1000).to_string(),
        false => format!("{milli}m"),
    }
}

#[tokio::test]
async fn after_any_history_the_count_is_that_of_the_living_pods() {
    let seed = 0x5eed_1234_5678_9abc;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let site = Site::open().await;
    let hard = json!({"pods": "12", "requests.cpu": "6", "count/pods": "15"});
    let all = json!({"metadata": {"name": "all"}, "spec": {"hard": hard}});
    let burstable = json!({"metadata": {"name": "burstable"}, "spec": {"hard": {"pods": "9"}, "scopes": ["NotBestEffort"]}});
    for quota in [all, burstable] {
        site.create("resourcequotas", &quota)
            .await
            .expect("it is new");
    }
    // The thousandths of a processor that the pod wants and that it holds, and whether it still runs.
    let mut model: BTreeMap<String, (u64, u64, bool)> = BTreeMap::new();
    for step in 0..400 {
        let name = format!("p{}", random.below(20));
        let running = || model.values().filter(|(.., runs)| *runs);
        match random.below(4) {
            0 => {
                let milli = 100 + random.below(10) * 100;
                let cpu: u64 = running().map(|(_, milli, _)| milli).sum();
                let fits = running().count() < 9 && cpu + milli <= 6000 && model.len() < 15;
                let made = site.create("pods", &pod(&name, milli)).await;
                match (model.contains_key(&name), fits, made) {
                    (false, true, Ok(_)) => drop(model.insert(name, (milli, milli, true))),
                    (false, false, Err(error)) if error.code == 403 => {}
                    (true, _, Err(_)) => {}
                    (_, _, made) => {
                        panic!("step {step}: {:?}", made.map_err(|error| error.message))
                    }
                }
            }
            kind @ (1 | 2) => {
                let milli = 100 + random.below(20) * 100;
                let change = match kind {
                    1 => json!({"status": {"phase": "Succeeded"}}),
                    _ => reserving(milli),
                };
                let sent = site
                    .send(Verb::Patch, "pods", (&name, "status"), &change)
                    .await;
                assert_eq!(sent.is_ok(), model.contains_key(&name), "step {step}");
                match (kind, model.get_mut(&name)) {
                    (1, Some((_, _, runs))) => *runs = false,
                    (_, Some((wanted, held, _))) => *held = milli.max(*wanted),
                    _ => {}
                }
            }
            _ => {
                let sent = site
                    .send(Verb::Delete, "pods", (&name, ""), &Value::Null)
                    .await;
                assert_eq!(sent.is_ok(), model.remove(&name).is_some(), "step {step}");
            }
        }
        let running = model.values().filter(|(.., runs)| *runs);
        let cpu: u64 = running.clone().map(|(_, milli, _)| milli).sum();
        let used = site.used("all");
        let wanted = [
            running.count().to_string(),
            processors(cpu),
            model.len().to_string(),
        ];
        let shown = ["pods", "requests.cpu", "count/pods"].map(|name| used[name].clone());
        assert_eq!(shown, wanted, "step {step}");
        assert_eq!(site.used("burstable")["pods"], used["pods"], "step {step}");
    }
}
