//! kube-controller-manager, kube-scheduler and kwok of one plane, each with a user of its own there.
//!
//! This module owns their command lines and which loops run where. It does not know the workload.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polyplane_tests::programs::{found, polyplane};
use polyplane_tests::ring::process::{Launch, Process};
use polyplane_tests::ring::setup::Ring;
use serde_json::{Value, json};

use super::plane::Plane;

/// The loops that a plane's owner can run, and the service account in `kube-system` as which the real
/// manager runs each.
static LOOPS: [(&str, &str); 13] = [
    (
        "certificatesigningrequest-approving-controller",
        "certificate-controller",
    ),
    (
        "certificatesigningrequest-cleaner-controller",
        "certificate-controller",
    ),
    (
        "certificatesigningrequest-signing-controller",
        "certificate-controller",
    ),
    (
        "clusterrole-aggregation-controller",
        "clusterrole-aggregation-controller",
    ),
    ("garbage-collector-controller", "generic-garbage-collector"),
    ("namespace-controller", "namespace-controller"),
    (
        "persistentvolume-protection-controller",
        "pv-protection-controller",
    ),
    (
        "persistentvolumeclaim-protection-controller",
        "pvc-protection-controller",
    ),
    ("resourcequota-controller", "resourcequota-controller"),
    (
        "root-ca-certificate-publisher-controller",
        "root-ca-cert-publisher",
    ),
    ("serviceaccount-controller", "service-account-controller"),
    ("serviceaccount-token-controller", "tokens-controller"),
    (
        "volumeattributesclass-protection-controller",
        "volumeattributesclass-protection-controller",
    ),
];
/// Loops that need a key of the plane, which the real manager does not have.
const KEYED: [&str; 2] = [
    "certificatesigningrequest-signing-controller",
    "serviceaccount-token-controller",
];
/// The loops that the owner runs if the two share them.
const HALF: [&str; 5] = [
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
];

/// Who runs the loops that the plane's owner can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The real manager, but for those that need keys.
    Theirs,
    /// The owner.
    Ours,
    /// The owner some of them, the real manager the others.
    Shared,
}

impl Split {
    /// Returns whether the owner runs a loop.
    pub fn is_here(self, name: &str) -> bool {
        KEYED.contains(&name)
            || match self {
                Self::Theirs => false,
                Self::Ours => true,
                Self::Shared => HALF.contains(&name),
            }
    }

    /// Returns `spec.controllers` of the plane.
    pub fn controllers(self) -> Value {
        let here = LOOPS.iter().map(|(name, _)| *name);
        here.filter(|name| self.is_here(name)).collect()
    }

    /// Returns the service accounts of the loops that the owner runs.
    pub fn accounts_here(self) -> impl Iterator<Item = &'static str> {
        let here = LOOPS.iter().filter(move |(name, _)| self.is_here(name));
        here.map(|(_, account)| *account)
    }

    /// Returns `--controllers` of the real manager.
    fn flag(self) -> String {
        let off = LOOPS.iter().map(|(name, _)| *name);
        let off = off
            .filter(|name| self.is_here(name))
            .map(|name| format!(",-{name}"));
        format!("--controllers=*{}", off.collect::<String>())
    }
}

/// The programs, found.
pub struct Programs {
    manager: String,
    scheduler: String,
    kwok: String,
}

impl Programs {
    /// Finds the programs if they are built.
    ///
    /// # Errors
    /// Returns an error if `tests/programs` cannot be run.
    pub fn find() -> Result<Option<Self>> {
        let names = ["kube-controller-manager", "kube-scheduler", "kwok"].map(found);
        let [manager, scheduler, kwok] = names;
        let (Some(manager), Some(scheduler), Some(kwok)) = (manager?, scheduler?, kwok?) else {
            return Ok(None);
        };
        Ok(Some(Self {
            manager,
            scheduler,
            kwok,
        }))
    }

    /// Returns a file that is published with kwok.
    fn published(&self, name: &str) -> Result<String> {
        let path = Path::new(&self.kwok)
            .with_file_name("kwok-files")
            .join(name);
        std::fs::read_to_string(&path).with_context(|| format!("{} is missing", path.display()))
    }

    /// Binds the roles that kwok publishes to its user of the plane, and starts all three.
    ///
    /// # Errors
    /// Returns an error if a user cannot be made, or a program cannot be started.
    pub async fn start(&self, ring: &Ring, plane: &Plane, split: Split) -> Result<Vec<Process>> {
        let role: Value = serde_saphyr::from_str(&self.published("rbac/role.yaml")?)?;
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        plane.create(&format!("{rbac}/clusterroles"), &role).await?;
        let binding = json!({"metadata": {"name": "kwok"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": (role["metadata"]["name"].clone())},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kwok"}]});
        plane
            .create(&format!("{rbac}/clusterrolebindings"), &binding)
            .await?;
        let stages = [
            "node/fast/node-initialize",
            "pod/fast/pod-ready",
            "pod/fast/pod-complete",
            "pod/fast/pod-delete",
        ];
        let stages: Result<Vec<String>> = stages
            .iter()
            .map(|name| self.published(&format!("stage/{name}.yaml")))
            .collect();
        let config = ring.folder().join("kwok.yaml");
        std::fs::write(&config, stages?.join("\n---\n"))?;
        // The limits are above the manager's own, so that the machine and not a limiter sets the pace.
        let manager = Launch::of(&self.manager)
            .with([
                "--kubeconfig",
                &kubeconfig(ring, plane, "system:kube-controller-manager").await?,
            ])
            .with([
                "--use-service-account-credentials",
                "--secure-port=0",
                &split.flag(),
            ])
            .with(["--kube-api-qps=200", "--kube-api-burst=400"]);
        let scheduler = Launch::of(&self.scheduler)
            .with([
                "--kubeconfig",
                &kubeconfig(ring, plane, "system:kube-scheduler").await?,
            ])
            .with(["--secure-port=0"]);
        let kwok = Launch::of(&self.kwok)
            .with(["--kubeconfig", &kubeconfig(ring, plane, "kwok").await?])
            .with(["--config", &config.to_string_lossy()])
            .with(["--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"])
            .with([
                "--node-ip=10.0.0.1",
                "--node-lease-duration-seconds=40",
                "--server-address=127.0.0.1:0",
            ]);
        let launches = [
            ("manager", manager),
            ("scheduler", scheduler),
            ("kwok", kwok),
        ];
        let logs = logs(ring);
        std::fs::create_dir_all(&logs)?;
        let start = |(name, launch): &(&str, Launch)| {
            Process::start(&format!("{}-{name}", plane.name), launch, None, &logs)
        };
        launches.iter().map(start).collect()
    }
}

/// Returns the folder of the programs' logs.
pub fn logs(ring: &Ring) -> PathBuf {
    ring.folder().join("programs")
}

/// Makes a user of a plane and returns the path of their kubeconfig.
async fn kubeconfig(ring: &Ring, plane: &Plane, user: &str) -> Result<String> {
    let user_flag = format!("--user={user}");
    let words = ["kubeconfig", &plane.name, &user_flag, "--expires=8h"];
    let said = ring.plugin(&polyplane()?, &words).await?;
    // Before the kubeconfig the plugin says whom it is for.
    let at = said
        .find("apiVersion:")
        .with_context(|| format!("no kubeconfig: {said}"))?;
    let path = ring.folder().join(format!(
        "{}-{}.kubeconfig",
        plane.name,
        user.replace(':', "-")
    ));
    std::fs::write(&path, &said[at..])?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns the lines of the programs' logs with one of these words, each with the name of its file.
///
/// # Errors
/// Returns an error if a log cannot be read.
pub fn lines_with(ring: &Ring, words: &[&str]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for log in std::fs::read_dir(logs(ring))? {
        let path = log?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read(&path)?;
        let text = String::from_utf8_lossy(&text);
        let lines = text
            .lines()
            .filter(|line| words.iter().any(|word| line.contains(word)));
        found.extend(lines.map(|line| format!("{name}: {line}")));
    }
    Ok(found)
}
