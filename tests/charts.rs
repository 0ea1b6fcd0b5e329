//! Published charts, installed, upgraded, rolled back and uninstalled by helm 4, which applies
//! server-side: in a plane as on the reference. `RECORD=1` records the reference.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use polyplane_tests::golden::folder;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::recorded::{Recorded, skipped, without_identity};
use serde_json::{Map, Value};

/// A chart that others publish. Those with custom kinds are left out, because planes do not serve
/// these yet.
struct Published {
    name: &'static str,
    /// The namespace of the release. kubectl looks at all of a manifest in one namespace only.
    namespace: &'static str,
    /// Flags of install and upgrade.
    flags: &'static [&'static str],
    /// The values that the upgrade changes.
    upgrade: &'static str,
    /// A Deployment that somebody scales between two upgrades, and the value for its replicas.
    scaled: (&'static str, &'static str),
}

const CHARTS: [Published; 3] = [
    Published {
        name: "podinfo",
        namespace: "podinfo",
        flags: &[],
        upgrade: "replicaCount=2,ingress.enabled=true,hpa.maxReplicas=4,service.type=NodePort,ui.message=later",
        scaled: ("podinfo", "replicaCount=3"),
    },
    Published {
        name: "metrics-server",
        namespace: "kube-system",
        flags: &[],
        upgrade: "replicas=2,podDisruptionBudget.enabled=true,podDisruptionBudget.minAvailable=1,metrics.enabled=true",
        scaled: ("metrics-server", "replicas=3"),
    },
    Published {
        name: "ingress-nginx",
        namespace: "ingress-nginx",
        // Its hooks are Jobs, which need controllers.
        flags: &["--no-hooks"],
        upgrade: "controller.replicaCount=2,controller.metrics.enabled=true,controller.config.use-gzip=true,tcp.9000=default/echo:9000",
        scaled: ("ingress-nginx-controller", "controller.replicaCount=3"),
    },
];

/// helm with an environment of its own, for one release.
struct Helm<'c> {
    program: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    context: &'static str,
    chart: &'c Published,
    path: PathBuf,
    kubectl: Kubectl,
}

impl Helm<'_> {
    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .args(["--namespace", self.chart.namespace])
            .args(["--kube-context", self.context])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("HELM_CACHE_HOME", self.home.join("cache"))
            .env("HELM_CONFIG_HOME", self.home.join("config"))
            .env("HELM_DATA_HOME", self.home.join("data"))
            .stdin(Stdio::null());
        command.output().context("cannot start helm")
    }

    fn ok(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {arguments:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs install or upgrade with the chart.
    fn bring(&self, verb: &str, further: &[&str]) -> Result<Output> {
        let path = self.path.to_string_lossy();
        let named = [verb, self.chart.name, path.as_ref()];
        self.run(&[&named, self.chart.flags, further].concat())
    }

    fn brought(&self, verb: &str, further: &[&str]) -> Result<()> {
        let output = self.bring(verb, further)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {verb} {further:?}: {said}");
        Ok(())
    }

    /// Returns the objects of the release that the server has, and its records.
    fn objects(&self) -> Result<Value> {
        let manifest = self.ok(&["get", "manifest", self.chart.name])?;
        let namespace = ["--namespace", self.chart.namespace];
        let get = ["get", "-o", "json", "--show-managed-fields"];
        let list = [&get[..], &["-f", "-"], &namespace].concat();
        let objects = self.kubectl.ok_with(&list, &manifest)?;
        let records = [&get[..], &["secrets", "-l", "owner=helm"], &namespace].concat();
        let records = self.kubectl.ok(&records)?;
        let mut all = Map::new();
        for text in [objects, records] {
            let list: Value = serde_json::from_str(&text)?;
            for object in list["items"].as_array().context("a list")? {
                let mut object = object.clone();
                settle(&mut object);
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let name = text(&object["metadata"]["name"]);
                all.insert(format!("{} {name}", text(&object["kind"])), object);
            }
        }
        Ok(Value::Object(all))
    }
}

/// Takes out of an object what the server chooses, and the times of helm.
fn settle(object: &mut Value) {
    without_identity(object);
    let kind = object["kind"].clone();
    if kind == "Service" {
        let spec = &mut object["spec"];
        for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
            if let Some(value) = spec.get_mut(field) {
                *value = "<allocated>".into();
            }
        }
        for port in spec["ports"].as_array_mut().into_iter().flatten() {
            if let Some(port) = port.get_mut("nodePort") {
                *port = "<allocated>".into();
            }
        }
    }
    if kind == "Secret" {
        // The release, packed, with times in it.
        if let Some(release) = object["data"].get_mut("release") {
            *release = "<release>".into();
        }
        if let Some(time) = object["metadata"]["labels"].get_mut("modifiedAt") {
            *time = "<time>".into();
        }
    }
    if kind == "APIService" {
        // Planes do not ask the servers of other API groups whether they are there.
        drop(object.as_object_mut().and_then(|of| of.remove("status")));
        let owners = object["metadata"]["managedFields"].as_array_mut();
        if let Some(owners) = owners {
            owners.retain(|entry| entry["subresource"] != "status");
        }
    }
    let conditions = object["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        if let Some(time) = condition.get_mut("lastTransitionTime") {
            *time = "<time>".into();
        }
    }
}

/// Installs, upgrades, rolls back and uninstalls a chart; returns the objects after each.
fn life(helm: &Helm<'_>) -> Result<Map<String, Value>> {
    let chart = helm.chart;
    let mut steps = Map::new();
    helm.brought("install", &["--create-namespace"])?;
    steps.insert("install".to_owned(), helm.objects()?);
    helm.brought("upgrade", &["--set", chart.upgrade])?;
    steps.insert("upgrade".to_owned(), helm.objects()?);

    // Whoever scales owns the replicas, so the next upgrade conflicts until it is forced.
    let (deployment, replicas) = chart.scaled;
    let deployment = format!("deployment/{deployment}");
    let scale = ["scale", &deployment, "--replicas=5", "-n", chart.namespace];
    helm.kubectl.ok(&scale)?;
    let upgrade = ["--reuse-values", "--set", replicas];
    let refused = helm.bring("upgrade", &upgrade)?;
    ensure!(!refused.status.success(), "the conflict is not reported");
    let said = String::from_utf8(refused.stderr)?;
    let told = said.lines().filter(|line| !line.starts_with("level="));
    let told: Vec<&str> = told.collect();
    steps.insert("conflict".to_owned(), Value::from(told.join("\n")));
    let forced = [&upgrade[..], &["--force-conflicts"]].concat();
    helm.brought("upgrade", &forced)?;
    steps.insert("forced upgrade".to_owned(), helm.objects()?);

    helm.ok(&["rollback", chart.name, "1"])?;
    steps.insert("rollback".to_owned(), helm.objects()?);
    let history = helm.ok(&["history", chart.name, "-o", "json"])?;
    let mut history: Value = serde_json::from_str(&history)?;
    for revision in history.as_array_mut().into_iter().flatten() {
        drop(revision.as_object_mut().and_then(|of| of.remove("updated")));
    }
    steps.insert("history".to_owned(), history);

    let manifest = helm.ok(&["get", "manifest", chart.name])?;
    helm.ok(&["uninstall", chart.name])?;
    let left = [
        "get",
        "-f",
        "-",
        "--ignore-not-found",
        "-o",
        "name",
        "-n",
        chart.namespace,
    ];
    let left = helm.kubectl.ok_with(&left, &manifest)?;
    let records = ["get", "secrets", "-l", "owner=helm", "-o", "name"];
    let records = [&records[..], &["-n", chart.namespace]].concat();
    let left = left + &helm.kubectl.ok(&records)?;
    steps.insert("uninstall".to_owned(), Value::from(left));
    Ok(steps)
}

/// Finds helm and the charts; prints the reason and returns `None` if they cannot be had here.
fn programs() -> Result<Option<Vec<(String, PathBuf)>>> {
    let found = Command::new(folder().join("programs"))
        .args(["helm", "charts"])
        .output()?;
    if !found.status.success() {
        let why = String::from_utf8_lossy(&found.stderr);
        skipped("helm on published charts", why.trim())?;
        return Ok(None);
    }
    let text = String::from_utf8(found.stdout)?;
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(Some(
        pairs
            .map(|(name, path)| (name.to_owned(), PathBuf::from(path)))
            .collect(),
    ))
}

fn path_of(programs: &[(String, PathBuf)], name: &str) -> Result<PathBuf> {
    let mut named = programs.iter().filter(|(known, _)| known == name);
    let path = named.next().map(|(_, path)| path.clone());
    path.with_context(|| format!("tests/programs names no {name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_installs_upgrades_rolls_back_and_uninstalls_published_charts() -> Result<()> {
    let Some(programs) = programs()? else {
        return Ok(());
    };
    let server = Recorded::start().await?;
    let kubeconfig = server.kubeconfig().await?;
    let home = tempfile::tempdir()?;
    let kubectl = Kubectl::find(&kubeconfig, home.path(), Path::new("/nonexistent"))?;
    for chart in &CHARTS {
        let helm = Helm {
            program: path_of(&programs, "helm")?,
            home: home.path().to_owned(),
            kubeconfig: kubeconfig.clone(),
            context: server.context,
            chart,
            path: path_of(&programs, chart.name)?,
            kubectl: kubectl.in_context(server.context),
        };
        let steps = life(&helm).context(chart.name)?;
        server.compare(&format!("helm-{}", chart.name), &steps)?;
    }
    Ok(())
}
