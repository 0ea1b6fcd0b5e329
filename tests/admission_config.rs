//! The configuration of admission plug-ins: what the test drop-in answers with a file is what the reference
//! answers with the same file. `RECORD=1` records the reference.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::connection::Ask;
use polyplane_tests::drop_in::{DropIn, START_LIMIT, assets};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{Server, ask, create_plane, found};
use polyplane_tests::recorded::{compare, records};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
/// The user whom the configuration exempts, and another one.
const EXEMPT: &str = "exempt-user";
const OTHER: &str = "other-user";
/// How long the reference takes at most until its admission has seen a quota.
const SEEN: Duration = Duration::from_secs(1);

/// Pods are judged by these levels unless labels of their namespace name others.
const STRICT: &str = "plugins:
- name: PodSecurity
  path: pod-security.yaml
";
const STRICT_LEVELS: &str = "apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: baseline, audit: restricted, audit-version: v1.30, warn: restricted, warn-version: v1.31}
exemptions:
  usernames: [exempt-user]
  namespaces: [exempt, exempt-like-others, exempt-privileged]
  runtimeClasses: [exempt-class]
";
/// Only warnings have a level, which is below that of the labels.
const WARNING: &str = "plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1beta1
    kind: PodSecurityConfiguration
    defaults: {enforce-version: v1.24, warn: baseline, warn-version: v1.26}
";
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

/// A server with a configuration: the drop-in, or the reference while a recording is made.
struct Site {
    client: Client,
    steps: Map<String, Value>,
    _drop_in: Option<DropIn>,
    _reference: Option<Server>,
    _files: TempDir,
}

impl Site {
    async fn start(plugins: &str) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let file = files.path().join("admission.yaml");
        std::fs::write(&file, format!("{HEAD}{plugins}"))?;
        std::fs::write(files.path().join("pod-security.yaml"), STRICT_LEVELS)?;
        let mut flags = vec![
            format!("--admission-control-config-file={}", file.display()),
            // Nobody makes accounts for the pods of the drop-in.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ];
        let (endpoint, drop_in, reference) = if records() {
            let server = Server::start_reference_flagged(&flags).await?;
            let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, Some("reference"))?;
            (endpoint, None, Some(server))
        } else {
            let drop_in = start_drop_in(&mut flags).await?;
            let endpoint = drop_in.endpoint(&json!({"token": "the-token"}))?;
            (endpoint, Some(drop_in), None)
        };
        Ok(Self {
            client: Client::open(&endpoint).await?,
            steps: Map::new(),
            _drop_in: drop_in,
            _reference: reference,
            _files: files,
        })
    }

    /// Sends a request as a user who may do everything, and notes what a client is told.
    async fn note(&mut self, step: &str, (user, request): (&str, Ask)) -> Result<()> {
        let mut request = request;
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        request.headers.push(header("impersonate-user", user));
        request
            .headers
            .push(header("impersonate-group", "system:masters"));
        let answer = self.client.raw(request).await?;
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let warnings = answer.headers.get_all("warning").iter();
        let warnings: Vec<&str> = warnings.filter_map(|text| text.to_str().ok()).collect();
        let mut noted = json!({"code": answer.status.as_u16()});
        if !warnings.is_empty() {
            noted["warnings"] = json!(warnings);
        }
        if !answer.status.is_success() {
            for member in ["message", "reason", "details"] {
                noted[member] = body[member].clone();
            }
        }
        let before = self.steps.insert(step.to_owned(), noted);
        ensure!(before.is_none(), "{step} is there twice");
        Ok(())
    }

    async fn create(&mut self, step: &str, list: &str, object: &Value) -> Result<()> {
        let request = ask(Method::POST, list, object);
        self.note(step, (OTHER, request)).await
    }

    async fn patch(&mut self, step: &str, user: &str, one: &str, patch: &Value) -> Result<()> {
        let mut request = ask(Method::PATCH, one, patch);
        let form = if one.ends_with("/ephemeralcontainers") {
            "application/strategic-merge-patch+json"
        } else {
            "application/merge-patch+json"
        };
        request.headers.retain(|(name, _)| name != "content-type");
        let header = ("content-type".to_owned(), form.to_owned());
        request.headers.push(header);
        self.note(step, (user, request)).await
    }

    async fn delete(&mut self, step: &str, one: &str) -> Result<()> {
        let request = ask(Method::DELETE, one, &Value::Null);
        self.note(step, (OTHER, request)).await
    }

    /// Waits until the reference enforces the quotas as they are now.
    async fn until_quotas_are_seen(&self) {
        if records() {
            tokio::time::sleep(SEEN).await;
        }
    }

    /// Notes the metrics of pod security.
    async fn note_metrics(&mut self) -> Result<()> {
        let request = ask(Method::GET, "/metrics", &Value::Null);
        let text = String::from_utf8(self.client.raw(request).await?.body.to_vec())?;
        let mut series = Map::new();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else {
                continue;
            };
            if let Some((family, labels)) = name.split_once('{')
                && family.starts_with("pod_security_")
            {
                let mut labels: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
                labels.sort_unstable();
                let name = format!("{family} {}", labels.join(","));
                series.insert(name, value.parse::<f64>()?.into());
            }
        }
        ensure!(!series.is_empty(), "no metrics");
        self.steps.insert("metrics".to_owned(), series.into());
        Ok(())
    }
}

/// Starts the drop-in with these flags and a user who may do everything.
async fn start_drop_in(flags: &mut Vec<String>) -> Result<DropIn> {
    let folder = tempfile::tempdir()?;
    let tokens = folder.path().join("tokens.csv");
    std::fs::write(&tokens, "the-token,admin,admin,system:masters\n")?;
    flags.push(format!("--token-auth-file={}", tokens.display()));
    flags.push("--authorization-mode=RBAC".to_owned());
    DropIn::start(folder, std::mem::take(flags), None).await
}

const NAMESPACES: &str = "/api/v1/namespaces";

fn list(namespace: &str, resource: &str) -> String {
    match resource {
        "deployments" => format!("/apis/apps/v1/namespaces/{namespace}/{resource}"),
        _ => format!("/api/v1/namespaces/{namespace}/{resource}"),
    }
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// Returns a namespace with labels of pod security, by the ends of their names.
fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    json!({"metadata": {"name": name, "labels": security(labels)}})
}

fn security(labels: &[(&str, &str)]) -> Value {
    let label = |name: &str| format!("pod-security.kubernetes.io/{name}");
    let labels = labels
        .iter()
        .map(|(name, value)| (label(name), json!(value)));
    Value::Object(labels.collect())
}

/// A pod that violates `baseline`, one that violates only `restricted`, and one that violates nothing.
const SPECS: [&str; 3] = ["privileged", "baseline", "restricted"];

fn spec(violates: &str) -> Value {
    let context = match violates {
        "privileged" => json!({"privileged": true}),
        "baseline" => json!({}),
        _ => json!({
            "allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        }),
    };
    let container = json!({"name": "c", "image": "example.com/c:1", "securityContext": context});
    json!({"containers": [container], "terminationGracePeriodSeconds": 0})
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

fn with(mut spec: Value, member: &str, value: Value) -> Value {
    spec[member] = value;
    spec
}

fn deployment(name: &str, spec: &Value) -> Value {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn levels_and_exemptions_are_those_of_the_reference() -> Result<()> {
    let mut site = Site::start(STRICT).await?;
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    for name in ["exempt-class", "other-class"] {
        let class = json!({"metadata": {"name": name}, "handler": "h"});
        site.create(&format!("class {name}"), classes, &class)
            .await?;
    }
    namespaces(&mut site).await?;
    for (user, violates) in [OTHER, EXEMPT]
        .iter()
        .flat_map(|user| SPECS.map(|one| (*user, one)))
    {
        for class in ["", "exempt-class", "other-class"] {
            let mut spec = spec(violates);
            if !class.is_empty() {
                spec["runtimeClassName"] = class.into();
            }
            let name = format!(
                "{violates}-{user}{}{class}",
                if class.is_empty() { "" } else { "-" }
            );
            for namespace in ["plain", "privileged", "exempt"] {
                let request = ask(
                    Method::POST,
                    &list(namespace, "pods"),
                    &pod(&name, spec.clone()),
                );
                let step = format!("pod {name} in {namespace}");
                site.note(&step, (user, request)).await?;
            }
            let deployment = deployment(&name, &spec);
            let request = ask(Method::POST, &list("plain", "deployments"), &deployment);
            site.note(&format!("deployment {name}"), (user, request))
                .await?;
        }
    }
    changes(&mut site).await?;
    site.note_metrics().await?;
    println!(
        "admission_config: {} requests about levels",
        site.steps.len()
    );
    compare(records(), "admission-levels", &site.steps)
}

/// Namespaces with labels, of which some are exempt.
async fn namespaces(site: &mut Site) -> Result<()> {
    for (name, labels) in [
        ("plain", &[][..]),
        (
            "privileged",
            &[
                ("enforce", "privileged"),
                ("audit", "privileged"),
                ("warn", "privileged"),
            ],
        ),
        ("warned", &[("warn-version", "v1.20")]),
        (
            "exempt",
            &[("enforce", "restricted"), ("audit-version", "latest")],
        ),
        (
            "exempt-like-others",
            &[("enforce", "baseline"), ("warn", "restricted")],
        ),
        (
            "exempt-privileged",
            &[("audit", "privileged"), ("enforce", "privileged")],
        ),
        (
            "wrong",
            &[
                ("enforce", "strict"),
                ("audit-version", "1.30"),
                ("warn", ""),
            ],
        ),
        ("exempt", &[("enforce", "strict")]),
    ] {
        let step = format!("namespace {name} {labels:?}");
        site.create(&step, NAMESPACES, &namespace(name, labels))
            .await?;
    }
    Ok(())
}

/// Changes of pods and of the labels of their namespaces.
async fn changes(site: &mut Site) -> Result<()> {
    let pods = list("plain", "pods");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "example.com/c:2"}]}});
    let image = |violates: &str| {
        let mut image = image.clone();
        image["spec"]["containers"][0]["securityContext"] =
            spec(violates)["containers"][0]["securityContext"].clone();
        image
    };
    let debugger = json!({"spec": {"ephemeralContainers": [
        {"name": "d", "image": "example.com/d:1", "securityContext": {"privileged": true}}]}});
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for (user, name, violates) in [
        (OTHER, "privileged-exempt-user", "privileged"),
        (EXEMPT, "privileged-exempt-user", "privileged"),
        (OTHER, "privileged-other-user-exempt-class", "privileged"),
        (OTHER, "baseline-other-user", "baseline"),
    ] {
        let one = format!("{pods}/{name}");
        site.patch(&format!("{user} labels {name}"), user, &one, &label)
            .await?;
        site.patch(
            &format!("{user} changes {name}"),
            user,
            &one,
            &image(violates),
        )
        .await?;
        let one = format!("{one}/ephemeralcontainers");
        site.patch(&format!("{user} debugs {name}"), user, &one, &debugger)
            .await?;
    }
    for (name, labels) in [
        ("plain", &[("enforce", "restricted")][..]),
        (
            "plain",
            &[("enforce", "restricted"), ("enforce-version", "v1.22")],
        ),
        (
            "plain",
            &[("enforce", "baseline"), ("enforce-version", "v1.22")],
        ),
        ("plain", &[("enforce", "strict")]),
        ("exempt", &[("enforce", "baseline")]),
        (
            "exempt",
            &[("enforce", "restricted"), ("enforce-version", "v1.30")],
        ),
        (
            "exempt",
            &[
                ("enforce", "baseline"),
                ("enforce-version", "v1.31"),
                ("warn", "privileged"),
            ],
        ),
        ("exempt-privileged", &[("enforce", "baseline")]),
        ("exempt-privileged", &[("enforce", "strict")]),
        ("privileged", &[("enforce", "baseline")]),
    ] {
        let one = format!("{NAMESPACES}/{name}");
        let patch = json!({"metadata": {"labels": security(labels)}});
        let step = format!("labels of {name} {labels:?}");
        site.patch(&step, OTHER, &one, &patch).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_follow_the_enforced_level_as_on_the_reference() -> Result<()> {
    let mut site = Site::start(WARNING).await?;
    for (name, labels) in [
        ("plain", &[][..]),
        ("same", &[("enforce", "baseline")]),
        ("strict", &[("enforce", "restricted")]),
        (
            "strict-version",
            &[("enforce", "restricted"), ("enforce-version", "v1.20")],
        ),
        (
            "warn-version",
            &[("enforce", "restricted"), ("warn-version", "v1.21")],
        ),
        ("warn", &[("enforce", "restricted"), ("warn", "privileged")]),
        ("version", &[("enforce-version", "v1.20")]),
    ] {
        site.create(
            &format!("namespace {name}"),
            NAMESPACES,
            &namespace(name, labels),
        )
        .await?;
        for violates in SPECS {
            let step = format!("{violates} in {name}");
            let made = deployment(violates, &spec(violates));
            site.create(&step, &list(name, "deployments"), &made)
                .await?;
            let made = pod(violates, spec(violates));
            site.create(&format!("pod {step}"), &list(name, "pods"), &made)
                .await?;
        }
    }
    site.note_metrics().await?;
    println!(
        "admission_config: {} requests about warnings",
        site.steps.len()
    );
    compare(records(), "admission-warnings", &site.steps)
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
    let mut site = Site::start(LIMITED).await?;
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

const POD_SECURITY: &str =
    "apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration";
const QUOTA: &str = "apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration";

/// Wrong files, with words in what is said of them.
fn wrong() -> Vec<(&'static str, String, &'static [&'static str])> {
    let embedded = |plugin: &str, configuration: String| {
        format!("{HEAD}plugins: [{{name: {plugin}, configuration: {{{configuration}}}}}]\n")
    };
    let pod_security = |rest: &str| embedded("PodSecurity", format!("{POD_SECURITY}, {rest}"));
    let quota = |rest: &str| embedded("ResourceQuota", format!("{QUOTA}, {rest}"));
    vec![
        (
            "another kind",
            "apiVersion: v1\nkind: Policy\n".to_owned(),
            &["Policy"],
        ),
        ("unknown field", format!("{HEAD}plugin: []\n"), &["plugin"]),
        (
            "no version",
            embedded("PodSecurity", "kind: PodSecurityConfiguration".to_owned()),
            &[],
        ),
        (
            "level",
            pod_security("defaults: {enforce: strict}"),
            &[
                "PodSecurity",
                "enforce",
                "must be one of privileged, baseline, restricted",
            ],
        ),
        (
            "version",
            pod_security("defaults: {warn-version: '1.30'}"),
            &[
                "PodSecurity",
                "warn-version",
                r#"must be "latest" or "v1.x""#,
            ],
        ),
        (
            "field",
            pod_security("default: {}"),
            &["PodSecurity", "default"],
        ),
        (
            "exempt namespace",
            pod_security("exemptions: {namespaces: [a.b]}"),
            &["PodSecurity", "exemptions.namespaces[0]", "a.b"],
        ),
        (
            "exempt twice",
            pod_security("exemptions: {usernames: [bob, bob]}"),
            &["PodSecurity", "exemptions.usernames[1]", "Duplicate value"],
        ),
        (
            "no file",
            format!("{HEAD}plugins: [{{name: PodSecurity, path: none.yaml}}]\n"),
            &["none.yaml"],
        ),
        (
            "no resource",
            quota("limitedResources: [{matchContains: [pods]}]"),
            &[
                "ResourceQuota",
                "limitedResources[0].resource",
                "Required value",
            ],
        ),
        (
            "kind of another plug-in",
            embedded("ResourceQuota", POD_SECURITY.to_owned()),
            &["ResourceQuota", "PodSecurityConfiguration"],
        ),
    ]
}

/// Starts an API server with a file, and returns what it says before it ends.
async fn said_of(program: &Path, beside: &DropIn, file: &Path) -> Result<String> {
    let own = |name: &str| beside.folder.path().join(name).display().to_string();
    let output = Command::new(program)
        .arg(format!("--etcd-servers={}", beside.etcd_url()))
        .arg("--etcd-prefix=/wrong")
        .arg(format!("--cert-dir={}", own("certs-of-wrong")))
        .arg("--bind-address=127.0.0.1")
        .arg("--service-account-issuer=https://own.example.com/")
        .args(["--service-account-key-file", &own("accounts.crt")])
        .args(["--service-account-signing-key-file", &own("accounts.key")])
        .arg(format!(
            "--admission-control-config-file={}",
            file.display()
        ))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(START_LIMIT, output).await;
    let output = output.context("the server goes on with a wrong file")??;
    ensure!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_files_end_the_start_as_that_of_the_reference() -> Result<()> {
    let drop_in = start_drop_in(&mut Vec::new()).await?;
    let program = match records() {
        true => found("kube-apiserver")?.context("no reference")?.into(),
        false => assets(drop_in.folder.path())?.join("kube-apiserver"),
    };
    let files = tempfile::tempdir()?;
    let file = files.path().join("admission.yaml");
    let shown = file.display().to_string();
    let mut steps = Map::new();
    for (name, text, words) in wrong() {
        std::fs::write(&file, text)?;
        let said = said_of(&program, &drop_in, &file).await?;
        for word in words {
            let quoted = word.replace('"', "\\\"");
            let is_said = said.contains(word) || said.contains(&quoted);
            ensure!(is_said, "{name}: no {word:?} in {said}");
        }
        if !records() {
            ensure!(
                said.contains("--admission-control-config-file") && said.contains(&shown),
                "{said}"
            );
            let options = ["--admission-control-config-file", &shown];
            let ended = refused(&files.path().join("data"), &options).await?;
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            for word in words.iter().chain(&options) {
                ensure!(said.contains(word), "{name}: no {word:?} in {said}");
            }
        }
        steps.insert(name.to_owned(), json!({"words": words}));
    }
    println!("admission_config: {} wrong files", steps.len());
    compare(records(), "admission-wrong-files", &steps)
}
