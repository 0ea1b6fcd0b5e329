//! What nobody takes without a quota that covers it.

use anyhow::{Context, Result, ensure};
use polyplane_tests::client::Client;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::recorded::{compare, records};
use serde_json::{Value, json};

use super::{HEAD, NAMESPACES, OTHER, Site, deployment, list, named, pod, spec};

const LIMITED: &str = "plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - {resource: secrets, matchContains: [count/secrets]}
    - {resource: deployments, apiGroup: apps, matchContains: [deployments]}
    - {resource: persistentvolumeclaims, matchContains: [.storageclass.storage.k8s.io/requests.storage]}
    - {resource: services, matchContains: [services.loadbalancers]}
    - {resource: events, matchContains: [count/]}
    - resource: pods
      matchContains: [requests.example.com/gpu]
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [limited, other]}
      - {scopeName: CrossNamespacePodAffinity, operator: Exists}
";

fn with(mut spec: Value, member: &str, value: Value) -> Value {
    spec[member] = value;
    spec
}

fn claim(name: &str, class: Option<&str>) -> Value {
    let resources = json!({"requests": {"storage": "1Gi"}});
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": resources});
    if let Some(class) = class {
        spec["storageClassName"] = class.into();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn service(name: &str, kind: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": [{"port": 80}]}})
}

fn quota(name: &str, hard: Value, selector: Option<Value>) -> Value {
    let mut spec = json!({"hard": hard});
    if let Some(expression) = selector {
        spec["scopeSelector"] = json!({"matchExpressions": [expression]});
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

/// What the configuration limits, and what is beside it.
async fn take(site: &mut Site, when: &str) -> Result<()> {
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "zone", "namespaces": ["default"], "labelSelector": {"matchLabels": {"a": "b"}}}]}});
    let gpu = json!({"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}});
    let mut with_gpu = spec("restricted");
    with_gpu["containers"][0]["resources"] = gpu;
    let event = json!({"metadata": {"name": "a"}, "involvedObject": {"namespace": "quotas"}});
    let of_class = |class: &str| with(spec("restricted"), "priorityClassName", class.into());
    let pods = [
        ("plain", spec("restricted")),
        ("limited", of_class("limited")),
        ("free", of_class("free")),
        ("across", with(spec("restricted"), "affinity", affinity)),
        ("gpu", with_gpu),
    ];
    let pods = pods.map(|(name, spec)| ("pods", pod(name, spec)));
    let others = [
        ("secrets", named("a")),
        ("secrets", named("b")),
        ("configmaps", named("a")),
        ("events", event),
        ("deployments", deployment("a", &spec("restricted"))),
        ("persistentvolumeclaims", claim("no-class", Some(""))),
        ("persistentvolumeclaims", claim("gold", Some("gold"))),
        ("services", service("inner", "ClusterIP")),
        ("services", service("outer", "LoadBalancer")),
    ];
    for (resource, object) in pods.iter().chain(&others) {
        let name = object["metadata"]["name"].as_str().context("a name")?;
        let step = format!("{when}: {resource} {name}");
        site.create(&step, &list("quotas", resource), object)
            .await?;
    }
    let inner = format!("{}/inner", list("quotas", "services"));
    let outwards = json!({"spec": {"type": "LoadBalancer"}});
    site.patch(&format!("{when}: inner goes out"), OTHER, &inner, &outwards)
        .await?;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    site.patch(&format!("{when}: inner is labelled"), OTHER, &inner, &label)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limited_resources_need_a_quota_as_on_the_reference() -> Result<()> {
    let mut site = Site::start(LIMITED, ("nothing.yaml", "")).await?;
    site.create("namespace", NAMESPACES, &named("quotas"))
        .await?;
    for name in ["limited", "free"] {
        let class = json!({"metadata": {"name": name}, "value": 5});
        let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
        site.create(&format!("class {name}"), classes, &class)
            .await?;
    }
    let quotas = list("quotas", "resourcequotas");
    take(&mut site, "no quota").await?;
    let beside = json!({"secrets": "9", "pods": "99", "requests.storage": "9Gi", "services": "9"});
    site.create("a quota beside", &quotas, &quota("beside", beside, None))
        .await?;
    site.until_quotas_are_seen().await;
    take(&mut site, "a quota beside").await?;
    let some = json!({"count/secrets": "1", "count/deployments.apps": "1", "services.loadbalancers": "1",
        "gold.storageclass.storage.k8s.io/requests.storage": "1Gi", "requests.example.com/gpu": "1"});
    site.create("quotas", &quotas, &quota("covering", some, None))
        .await?;
    let limited = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["limited"]});
    let scoped = quota("classes", json!({"pods": "1"}), Some(limited));
    site.create("quota of classes", &quotas, &scoped).await?;
    let across = json!({"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"});
    let scoped = quota("affinity", json!({"pods": "0"}), Some(across));
    site.create("quota of affinity", &quotas, &scoped).await?;
    site.until_quotas_are_seen().await;
    take(&mut site, "covered").await?;
    for (resource, name) in [("pods", "limited"), ("services", "outer"), ("secrets", "a")] {
        let one = format!("{}/{name}", list("quotas", resource));
        site.delete(&format!("{resource} {name} goes"), &one)
            .await?;
    }
    for name in ["covering", "classes"] {
        site.delete(&format!("{name} goes"), &format!("{quotas}/{name}"))
            .await?;
    }
    site.until_quotas_are_seen().await;
    take(&mut site, "not covered any more").await?;
    println!(
        "admission_config: {} requests about quotas",
        site.steps.len()
    );
    compare(records(), "admission-limits", &site.steps)
}

/// A file of `up` holds in each control plane and in the root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_holds_in_all_control_planes() -> Result<()> {
    let files = tempfile::tempdir()?;
    let file = files.path().join("admission.yaml");
    std::fs::write(
        &file,
        format!("{HEAD}{LIMITED}- {{name: Nobody, path: none.yaml}}\n"),
    )?;
    let shown = file.display().to_string();
    let options = ["--admission-control-config-file", &shown, "--replicas", "2"];
    let server = Up::start(&files.path().join("data"), &options).await?;
    let mut clients = vec![("root", Client::open(&server.root()?).await?)];
    for name in ["one", "two"] {
        let plane = create_plane(&server.root()?, name).await?;
        clients.push((name, Client::open(&plane).await?));
    }
    for (plane, client) in &clients {
        let secrets = list("default", "secrets");
        let reply = client.post(&secrets, &named("a")).await?;
        let said = r#"secrets "a" is forbidden: insufficient quota to consume: count/secrets"#;
        reply.refuses(403, said).context(*plane)?;
        let hard = quota("q", json!({"count/secrets": "5"}), None);
        let quotas = list("default", "resourcequotas");
        client.post(&quotas, &hard).await?.expect(201)?;
        let made = client.post(&secrets, &named("a")).await?;
        made.expect(201).context(*plane)?;
    }
    let log = server.log()?;
    let told = r#"plug-in \"Nobody\" takes no configuration here"#;
    ensure!(
        log.contains(told) || log.contains(&told.replace('\\', "")),
        "{log}"
    );
    Ok(())
}
