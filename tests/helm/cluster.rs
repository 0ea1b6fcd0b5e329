//! A server's answers to every manifest of the chart, to helm itself, and to the keys.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_tests::chart::{Chart, NAMESPACE, RELEASE, on_etcd, over};
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::session::begin;
use serde_json::{Value, json};

use super::{Rendered, list, rendered, text};

/// API groups that a plane does not have by itself.
const FOREIGN: &[&str] = &["cert-manager.io/v1", "monitoring.coreos.com/v1"];
/// The Secret with the keys that the chart creates.
const KEYS: &str = "ring-polyplane-certificates";

/// Returns the path to which objects of a built-in kind are posted; `None` for other kinds.
fn collection(object: &Value) -> Result<Option<String>> {
    let version = text(&object["apiVersion"]);
    let resource = match text(&object["kind"]).as_str() {
        "ConfigMap" => "configmaps",
        "Deployment" => "deployments",
        "HorizontalPodAutoscaler" => "horizontalpodautoscalers",
        "NetworkPolicy" => "networkpolicies",
        "Pod" => "pods",
        "PodDisruptionBudget" => "poddisruptionbudgets",
        "Secret" => "secrets",
        "Service" => "services",
        "ServiceAccount" => "serviceaccounts",
        _ if FOREIGN.contains(&version.as_str()) => return Ok(None),
        kind => bail!("the chart has a {kind} of {version}"),
    };
    let base = if version.contains('/') { "apis" } else { "api" };
    Ok(Some(format!(
        "/{base}/{version}/namespaces/{NAMESPACE}/{resource}?fieldValidation=Strict"
    )))
}

async fn make_namespace(client: &Client) -> Result<()> {
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    client
        .post("/api/v1/namespaces", &namespace)
        .await?
        .expect(201)?;
    Ok(())
}

/// Creates an object. Like a cluster without dual stack, a plane has one address family; an object
/// that requests another one is refused, and only for that reason.
async fn create(client: &Client, path: &str, object: &Value) -> Result<Value> {
    let families = list(&object["spec"]["ipFamilies"]);
    let mut object = object.clone();
    if families.iter().any(|family| family == "IPv6") {
        let refused = client.post(path, &object).await?;
        refused.refuses(422, "not configured on this cluster")?;
        let causes = list(&refused.body["details"]["causes"]);
        let of_families = |cause: &Value| text(&cause["field"]).starts_with("spec.ipFamilies[");
        ensure!(causes.iter().all(of_families), "{}", refused.body);
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.remove("ipFamilies");
        }
    }
    client.post(path, &object).await?.expect(201)
}

/// Creates every built-in object in a plane of its own; returns their kinds.
async fn create_all(root: &Endpoint, at: usize, rendered: &Rendered) -> Result<BTreeSet<String>> {
    let client = Client::open(&create_plane(root, &format!("combination-{at}")).await?).await?;
    make_namespace(&client).await?;
    let mut kinds = BTreeSet::new();
    for object in &rendered.objects {
        if let Some(path) = collection(object)? {
            let made = create(&client, &path, object).await;
            let made = made.with_context(|| object.to_string())?;
            ensure!(made["metadata"]["name"] == object["metadata"]["name"]);
            kinds.insert(text(&object["kind"]));
        }
    }
    Ok(kinds)
}

#[tokio::test]
async fn a_plane_accepts_every_object_of_a_built_in_kind() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let mut seen = BTreeSet::new();
    for (at, rendered) in rendered().iter().enumerate() {
        let kinds = create_all(&root, at, rendered).await;
        seen.extend(kinds.with_context(|| rendered.combination.name.to_owned())?);
    }
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    let expected = [
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "Secret",
        "Service",
        "ServiceAccount",
    ];
    ensure!(seen == expected, "{seen:?}");
    ensure!(server.stop().await?.success());
    Ok(())
}

/// Returns a key of a Secret's data.
fn decoded(secret: &Value, key: &str) -> Result<Vec<u8>> {
    let text = secret["data"][key].as_str();
    let text = text.with_context(|| format!("the Secret has no {key}"))?;
    Ok(STANDARD.decode(text)?)
}

#[tokio::test]
async fn a_server_runs_with_the_keys_and_the_kubeconfig_opens_it() -> Result<()> {
    let rendered = rendered().first().context("no combination")?;
    let secret = rendered.one("Secret", "-certificates")?;
    let folder = tempfile::tempdir()?;
    let keys = folder.path().join("data/pki");
    fs::create_dir_all(&keys)?;
    for name in ["ca.crt", "ca.key", "admin.token"] {
        fs::write(keys.join(name), decoded(secret, name)?)?;
    }
    let kubeconfig = folder.path().join("admin.kubeconfig");
    fs::write(&kubeconfig, decoded(secret, "admin.kubeconfig")?)?;
    let mut administrator = Endpoint::from_kubeconfig(&kubeconfig, None)?;
    let host = administrator.host.clone();
    ensure!(host == "ring-polyplane.planes.svc.cluster.local" && administrator.port == 443);
    let server = Up::start(&folder.path().join("data"), &["--host-name", &host]).await?;
    let listening = server.root()?;
    (administrator.host, administrator.port) = (listening.host, listening.port);
    let client = Client::open(&administrator).await?;
    client.get("/api/v1/namespaces").await?.expect(200)?;
    // Another token proves nobody.
    administrator.token = Some("x".repeat(43));
    let stranger = Client::open(&administrator).await?;
    stranger
        .get("/api/v1/namespaces")
        .await?
        .refuses(401, "Unauthorized")?;
    ensure!(server.stop().await?.success());
    Ok(())
}

/// helm against a cluster.
struct Release {
    chart: Chart,
    kubeconfig: std::path::PathBuf,
    /// Options that not all versions of helm know.
    options: Vec<String>,
}

impl Release {
    fn new(kubeconfig: &Path) -> Result<Self> {
        let chart = Chart::find()?;
        let help = chart.command(&["install", "--help"]).output()?;
        let four = String::from_utf8_lossy(&help.stdout).contains("--server-side");
        Ok(Self {
            chart,
            kubeconfig: kubeconfig.to_owned(),
            options: four
                .then(|| "--server-side=false".to_owned())
                .into_iter()
                .collect(),
        })
    }

    fn ran(&self, verb: &str, command: &mut Command) -> Result<(bool, String)> {
        let output = command.env("KUBECONFIG", &self.kubeconfig).output();
        let output = output.with_context(|| format!("cannot start helm {verb}"))?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok((output.status.success(), said))
    }

    /// Runs `helm install` or `helm upgrade`; returns whether it succeeded, and its output.
    fn apply(&self, verb: &str, values: &Value) -> Result<(bool, String)> {
        let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
        serde_json::to_writer(&mut file, values)?;
        let path = Chart::path();
        let mut command = self
            .chart
            .command(&[verb, RELEASE, &path.to_string_lossy()]);
        command.args(&self.options).arg("--values").arg(file.path());
        self.ran(verb, &mut command)
    }

    fn applied(&self, verb: &str, values: &Value) -> Result<String> {
        let (well, said) = self.apply(verb, values)?;
        ensure!(well, "helm {verb}: {said}");
        Ok(said)
    }

    fn uninstalled(&self) -> Result<String> {
        let mut command = self.chart.command(&["uninstall", RELEASE]);
        let (well, said) = self.ran("uninstall", &mut command)?;
        ensure!(well, "helm uninstall: {said}");
        Ok(said)
    }
}

/// Returns the keys in a plane's Secret.
fn keys(kubectl: &Kubectl) -> Result<Value> {
    let arguments = ["get", "secret", KEYS, "-n", NAMESPACE, "-o", "json"];
    let secret: Value = serde_json::from_str(&kubectl.ok(&arguments)?)?;
    Ok(secret["data"].clone())
}

fn metrics_token(kubectl: &Kubectl) -> Result<String> {
    let path = "jsonpath={.data.token}";
    kubectl.ok(&[
        "get",
        "secret",
        "ring-polyplane-metrics",
        "-n",
        NAMESPACE,
        "-o",
        path,
    ])
}

/// Returns the replicas that the Deployment names.
fn replicas(kubectl: &Kubectl) -> Result<String> {
    let path = "jsonpath={.spec.replicas}";
    kubectl.ok(&[
        "get",
        "deployment",
        "ring-polyplane",
        "-n",
        NAMESPACE,
        "-o",
        path,
    ])
}

/// Runs the command for the kubeconfig that a release's notes show to the user.
fn kubeconfig_by_the_notes(kubectl: &Kubectl, notes: &str) -> Result<String> {
    let line = notes
        .lines()
        .find(|line| line.contains("get secret"))
        .context("the notes get no Secret")?;
    let (words, template) = line.split_once(" -o '").context("no template")?;
    let (template, _) = template.split_once("' > ").context("no file")?;
    let mut arguments: Vec<&str> = words.split_whitespace().skip(1).collect();
    arguments.extend(["-o", template]);
    kubectl.ok(&arguments)
}

#[tokio::test]
async fn upgrades_keep_the_keys_and_an_end_of_the_release_does_too() -> Result<()> {
    let session = begin().await?;
    let kubectl = &session.team;
    kubectl.ok(&["create", "namespace", NAMESPACE])?;
    let release = Release::new(&session.folder.path().join("team-a.kubeconfig"))?;
    let values = on_etcd(&["etcd:2379"]);
    let notes = release.applied("install", &values)?;
    let first = keys(kubectl)?;
    let kubeconfig = kubeconfig_by_the_notes(kubectl, &notes)?;
    ensure!(kubeconfig.as_bytes() == decoded(&json!({"data": first}), "admin.kubeconfig")?);

    let moved = over(
        &values,
        &json!({"replicas": 5, "server": {"endpoint": "planes.example.org"}}),
    );
    let token = metrics_token(kubectl)?;
    release.applied("upgrade", &moved)?;
    ensure!(metrics_token(kubectl)? == token, "a new token for metrics");
    let second = keys(kubectl)?;
    for name in [
        "admin.token",
        "ca.crt",
        "ca.key",
        "peer-ca.crt",
        "peer-ca.key",
    ] {
        ensure!(first[name] == second[name], "{name} was made anew");
    }
    let kubeconfig = decoded(&json!({"data": second}), "admin.kubeconfig")?;
    ensure!(String::from_utf8(kubeconfig)?.contains("https://planes.example.org:443"));
    ensure!(replicas(kubectl)? == "5");

    // The autoscaler continues from the present number, and later upgrades keep its choice.
    let autoscaled = over(&values, &json!({"autoscaling": {"enabled": true}}));
    release.applied("upgrade", &autoscaled)?;
    ensure!(replicas(kubectl)? == "5", "{}", replicas(kubectl)?);
    let scale = [
        "scale",
        "deployment",
        "ring-polyplane",
        "-n",
        NAMESPACE,
        "--replicas=9",
    ];
    kubectl.ok(&scale)?;
    release.applied(
        "upgrade",
        &over(&autoscaled, &json!({"minReadySeconds": 9})),
    )?;
    ensure!(replicas(kubectl)? == "9", "{}", replicas(kubectl)?);
    release.uninstalled()?;
    let left = kubectl.ok(&[
        "get",
        "deploy,svc,pdb,hpa,sa,secret",
        "-n",
        NAMESPACE,
        "-l",
        "app.kubernetes.io/instance=ring",
        "-o",
        "name",
    ])?;
    ensure!(left.trim() == format!("secret/{KEYS}"), "left: {left}");
    release.applied("install", &values)?;
    ensure!(keys(kubectl)?["ca.key"] == first["ca.key"], "begun anew");
    Ok(())
}

#[tokio::test]
async fn keys_that_are_not_complete_are_refused_before_anything_is_changed() -> Result<()> {
    let session = begin().await?;
    let kubectl = &session.team;
    kubectl.ok(&["create", "namespace", NAMESPACE])?;
    let release = Release::new(&session.folder.path().join("team-a.kubeconfig"))?;
    let given = json!({"certificates": {"mode": "secret", "existingSecret": "keys"}});
    let values = over(&on_etcd(&["etcd:2379"]), &given);
    let names = ["ca.crt", "ca.key", "peer-ca.crt", "admin.token"];
    let literals: Vec<_> = names.map(|name| format!("--from-literal={name}=x")).into();
    let mut create = vec!["create", "secret", "generic", "keys", "-n", NAMESPACE];
    create.extend(literals.iter().map(String::as_str));
    kubectl.ok(&create)?;
    let (well, said) = release.apply("install", &values)?;
    ensure!(
        !well && said.contains("the Secret keys has no peer-ca.key"),
        "{said}"
    );
    // With a peer certificate the key of its CA is not needed.
    kubectl.ok(&[
        "patch",
        "secret",
        "keys",
        "-n",
        NAMESPACE,
        "-p",
        r#"{"stringData": {"peer.crt": "x", "peer.key": "x"}}"#,
    ])?;
    release.applied("install", &values)?;
    Ok(())
}
