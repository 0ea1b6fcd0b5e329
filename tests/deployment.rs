//! A rendered Deployment as the programs that run its pods need it: command, environment, probes,
//! hooks, grace and the rules of a rolling update.
//!
//! This module reads manifests and fills in Kubernetes' defaults. It starts nothing: tests act as
//! Deployment controller and kubelet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A Deployment of pods with one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Its name.
    pub name: String,
    /// The number of replicas; `None` for an autoscaled Deployment.
    pub replicas: Option<u32>,
    /// The rules of a rolling update.
    pub strategy: RollingUpdate,
    /// The time for which a new pod must have been ready before the update continues.
    pub min_ready: Duration,
    /// The time from the deletion of a pod to SIGKILL, the pre-stop hook included.
    pub termination_grace: Duration,
    /// The labels of the pods.
    pub labels: BTreeMap<String, String>,
    /// The container.
    pub container: Container,
    /// The pods' volumes, by name.
    pub volumes: BTreeMap<String, Volume>,
}

/// The numbers of pods that may be missing or additional during a rolling update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollingUpdate {
    /// Pods that may be missing.
    pub unavailable_max: Amount,
    /// Pods that may be additional.
    pub surge_max: Amount,
}

/// A number of pods, or a share of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// A number of pods.
    Pods(u32),
    /// A percentage of the replicas.
    Percent(u32),
}

/// The container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// The program and its first arguments, before `$(NAME)` is replaced.
    pub command: Vec<String>,
    /// The other arguments, before `$(NAME)` is replaced.
    pub args: Vec<String>,
    /// The variables in their order, before `$(NAME)` is replaced.
    pub env: Vec<Variable>,
    /// The ports by name.
    pub ports: BTreeMap<String, u16>,
    /// The startup probe. Until it succeeds, the other probes wait; if it fails, the container is
    /// started again.
    pub startup: Option<Probe>,
    /// The liveness probe. If it fails, the container is started again.
    pub liveness: Option<Probe>,
    /// The readiness probe. While it fails, the pod is not an endpoint of its services.
    pub readiness: Option<Probe>,
    /// The hook that runs before SIGTERM.
    pub pre_stop: Option<Hook>,
    /// The mounted volumes.
    pub mounts: Vec<Mount>,
}

/// A variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The source of the value.
    pub source: Source,
}

/// The source of a variable's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A text, in which `$(NAME)` stands for a variable that was defined before.
    Text(String),
    /// A field of the pod, such as `metadata.name`.
    Field(String),
    /// A key of a Secret.
    Secret {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
}

/// A check that the kubelet repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The request or command.
    pub check: Check,
    /// The time from the container's start to the first check.
    pub initial_delay: Duration,
    /// The time from one check to the next.
    pub period: Duration,
    /// The time that one check may take.
    pub timeout: Duration,
    /// Successes in a row after which the probe counts as successful.
    pub successes: u32,
    /// Failures in a row after which the probe counts as failed.
    pub failures: u32,
}

/// The check of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// A GET of a path; a status from 200 to 399 is a success. Certificates are not verified.
    Http {
        /// True for HTTPS.
        https: bool,
        /// The path.
        path: String,
        /// The port.
        port: u16,
    },
    /// A command in the container; exit code 0 is a success.
    Exec(Vec<String>),
}

/// A hook that runs before a container gets SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hook {
    /// A command in the container.
    Exec(Vec<String>),
    /// A pause.
    Sleep(Duration),
}

/// A volume's folder in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The volume.
    pub volume: String,
    /// The path in the container.
    pub path: PathBuf,
    /// True if it cannot be written.
    pub read_only: bool,
}

/// The content of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// Keys of Secrets as files.
    Secrets(Vec<SecretFiles>),
    /// An empty folder.
    Empty,
    /// Other content, by the name of its kind.
    Other(String),
}

/// Keys of one Secret as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFiles {
    /// The Secret.
    pub secret: String,
    /// File names by key. If empty, every key is a file of its own name.
    pub files: BTreeMap<String, String>,
}

/// A process as the kubelet starts it: variables are replaced, sources are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program's path in the image.
    pub program: String,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// The whole environment, in order.
    pub environment: Vec<(String, String)>,
    /// The command that runs before SIGTERM.
    pub pre_stop: Option<Hook>,
}

/// Returns the documents of a manifest, without the empty ones.
///
/// # Errors
/// Returns an error if the manifest is not YAML.
pub fn documents(manifest: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(manifest).context("a manifest is not YAML")?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

impl Deployment {
    /// Returns the one Deployment of a manifest.
    ///
    /// # Errors
    /// Returns an error if there is none or more than one, or it contains a setting that this
    /// module does not know.
    pub fn from_manifest(manifest: &str) -> Result<Self> {
        let mut found = documents(manifest)?
            .into_iter()
            .filter(|document| document["kind"] == "Deployment");
        let document = found.next().context("the manifest has no Deployment")?;
        ensure!(
            found.next().is_none(),
            "the manifest has several Deployments"
        );
        Self::from_object(&document)
    }

    /// Reads a Deployment from JSON.
    ///
    /// # Errors
    /// Returns an error if it contains a setting that this module does not know.
    pub fn from_object(object: &Value) -> Result<Self> {
        let spec = &object["spec"];
        let pod = &spec["template"]["spec"];
        let containers = list(&pod["containers"]);
        let [container] = containers else {
            bail!("a pod has {} containers, not one", containers.len());
        };
        ensure!(
            list(&pod["initContainers"]).is_empty(),
            "init containers are not understood"
        );
        let volumes = list(&pod["volumes"]).iter().map(volume);
        let replicas = match &spec["replicas"] {
            Value::Null => None,
            number => Some(small(number, 1)?),
        };
        Ok(Self {
            name: text(&object["metadata"]["name"])?,
            replicas,
            strategy: strategy(&spec["strategy"])?,
            min_ready: seconds(&spec["minReadySeconds"], 0)?,
            termination_grace: seconds(&pod["terminationGracePeriodSeconds"], 30)?,
            labels: labels(&spec["template"]["metadata"]["labels"])?,
            container: Container::from_object(container)?,
            volumes: volumes.collect::<Result<_>>()?,
        })
    }
}

impl Amount {
    /// Returns the number of pods for `replicas` replicas. Like the controller, callers round up a
    /// share of additional pods and round down one of missing pods.
    pub fn of(self, replicas: u32, round_up: bool) -> u32 {
        match self {
            Self::Pods(pods) => pods,
            Self::Percent(percent) if round_up => (replicas * percent).div_ceil(100),
            Self::Percent(percent) => replicas * percent / 100,
        }
    }
}

impl Container {
    fn from_object(object: &Value) -> Result<Self> {
        let mut ports = BTreeMap::new();
        for port in list(&object["ports"]) {
            ports.insert(text(&port["name"])?, number(&port["containerPort"])?);
        }
        let probe = |name: &str| match &object[name] {
            Value::Null => Ok(None),
            found => Probe::from_object(found, &ports)
                .with_context(|| name.to_owned())
                .map(Some),
        };
        let (startup, liveness, readiness) = (
            probe("startupProbe")?,
            probe("livenessProbe")?,
            probe("readinessProbe")?,
        );
        ensure!(
            object["lifecycle"]["postStart"].is_null() && list(&object["envFrom"]).is_empty(),
            "postStart and envFrom are not understood"
        );
        let mounts = list(&object["volumeMounts"]).iter().map(mount);
        let env = list(&object["env"]).iter().map(variable);
        Ok(Self {
            name: text(&object["name"])?,
            image: text(&object["image"])?,
            command: texts(&object["command"])?,
            args: texts(&object["args"])?,
            env: env.collect::<Result<_>>()?,
            startup,
            liveness,
            readiness,
            pre_stop: hook(&object["lifecycle"]["preStop"])?,
            mounts: mounts.collect::<Result<_>>()?,
            ports,
        })
    }

    /// Returns the process of one pod. `resolve` returns each value that is not a text, such as a
    /// field of the pod or a key of a Secret.
    ///
    /// # Errors
    /// Returns an error if there is no command, or `resolve` fails.
    pub fn launch(&self, mut resolve: impl FnMut(&Source) -> Result<String>) -> Result<Launch> {
        let mut environment: Vec<(String, String)> = Vec::new();
        for variable in &self.env {
            let value = match &variable.source {
                Source::Text(text) => expand(text, &environment),
                source => resolve(source).with_context(|| variable.name.clone())?,
            };
            environment.push((variable.name.clone(), value));
        }
        let mut words = self.command.iter().chain(&self.args);
        let mut words = words.by_ref().map(|word| expand(word, &environment));
        let program = words.next().context("the container has no command")?;
        let arguments = words.collect();
        Ok(Launch {
            program,
            arguments,
            environment,
            // The kubelet does not replace variables in a hook.
            pre_stop: self.pre_stop.clone(),
        })
    }

    /// Returns the probes with their names, in the kubelet's order.
    pub fn probes(&self) -> impl Iterator<Item = (&'static str, &Probe)> {
        [
            ("startup", &self.startup),
            ("liveness", &self.liveness),
            ("readiness", &self.readiness),
        ]
        .into_iter()
        .filter_map(|(name, probe)| probe.as_ref().map(|probe| (name, probe)))
    }
}

impl Launch {
    /// Replaces every `from` by `to`, for values that differ between this machine and a pod, such
    /// as the folder of a volume or an address to listen on.
    #[must_use]
    pub fn relocated(mut self, from: &str, to: &str) -> Self {
        let replace = |word: &mut String| *word = word.replace(from, to);
        replace(&mut self.program);
        self.arguments.iter_mut().for_each(replace);
        self.environment
            .iter_mut()
            .for_each(|(_, value)| replace(value));
        if let Some(Hook::Exec(words)) = &mut self.pre_stop {
            words.iter_mut().for_each(replace);
        }
        self
    }
}

impl Probe {
    fn from_object(object: &Value, ports: &BTreeMap<String, u16>) -> Result<Self> {
        let http = &object["httpGet"];
        let check = if http.is_object() {
            let port = match &http["port"] {
                Value::String(name) => *ports.get(name).context("a port that is not there")?,
                port => number(port)?,
            };
            Check::Http {
                https: http["scheme"] == "HTTPS",
                path: http["path"].as_str().unwrap_or("/").to_owned(),
                port,
            }
        } else if object["exec"].is_object() {
            Check::Exec(texts(&object["exec"]["command"])?)
        } else {
            bail!("a probe of a kind that is not understood: {object}");
        };
        Ok(Self {
            check,
            initial_delay: seconds(&object["initialDelaySeconds"], 0)?,
            period: seconds(&object["periodSeconds"], 10)?,
            timeout: seconds(&object["timeoutSeconds"], 1)?,
            successes: small(&object["successThreshold"], 1)?,
            failures: small(&object["failureThreshold"], 3)?,
        })
    }

    /// Returns the longest time until the probe notices a failure that begins now.
    pub fn notices_within(&self) -> Duration {
        self.period * self.failures + self.timeout
    }
}

/// Replaces `$(NAME)` as the kubelet does: an unknown variable stays as it is, and `$$` is a dollar
/// sign.
fn expand(text: &str, variables: &[(String, String)]) -> String {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        made.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            made.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        {
            let known = variables.iter().rev().find(|(known, _)| known == name);
            match known {
                Some((_, value)) => made.push_str(value),
                None => made.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            made.push('$');
        }
    }
    made + rest
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Result<String> {
    let text = value.as_str().map(str::to_owned);
    text.with_context(|| format!("{value} is no text"))
}

fn texts(value: &Value) -> Result<Vec<String>> {
    list(value).iter().map(text).collect()
}

fn number<N: TryFrom<u64>>(value: &Value) -> Result<N> {
    let number = value.as_u64().and_then(|number| N::try_from(number).ok());
    number.with_context(|| format!("{value} is no number that fits"))
}

fn small(value: &Value, default: u32) -> Result<u32> {
    match value {
        Value::Null => Ok(default),
        value => number(value),
    }
}

fn seconds(value: &Value, default: u32) -> Result<Duration> {
    Ok(Duration::from_secs(small(value, default)?.into()))
}

fn labels(value: &Value) -> Result<BTreeMap<String, String>> {
    let labels = value.as_object().into_iter().flatten();
    labels
        .map(|(key, value)| Ok((key.clone(), text(value)?)))
        .collect()
}

fn strategy(value: &Value) -> Result<RollingUpdate> {
    ensure!(
        value.is_null() || value["type"].is_null() || value["type"] == "RollingUpdate",
        "the strategy is not RollingUpdate: {value}"
    );
    let amount = |value: &Value| match value {
        Value::Null => Ok(Amount::Percent(25)),
        Value::String(share) => {
            let percent = share.strip_suffix('%').context("an amount without %")?;
            Ok(Amount::Percent(percent.parse()?))
        }
        pods => number(pods).map(Amount::Pods),
    };
    Ok(RollingUpdate {
        unavailable_max: amount(&value["rollingUpdate"]["maxUnavailable"])?,
        surge_max: amount(&value["rollingUpdate"]["maxSurge"])?,
    })
}

fn variable(object: &Value) -> Result<Variable> {
    let from = &object["valueFrom"];
    let secret = &from["secretKeyRef"];
    let source = if from.is_null() {
        Source::Text(object["value"].as_str().unwrap_or_default().to_owned())
    } else if from["fieldRef"].is_object() {
        Source::Field(text(&from["fieldRef"]["fieldPath"])?)
    } else if secret.is_object() {
        Source::Secret {
            name: text(&secret["name"])?,
            key: text(&secret["key"])?,
        }
    } else {
        bail!("a variable from what is not understood: {from}");
    };
    Ok(Variable {
        name: text(&object["name"])?,
        source,
    })
}

fn hook(object: &Value) -> Result<Option<Hook>> {
    if object.is_null() {
        Ok(None)
    } else if object["exec"].is_object() {
        Ok(Some(Hook::Exec(texts(&object["exec"]["command"])?)))
    } else if object["sleep"].is_object() {
        Ok(Some(Hook::Sleep(seconds(&object["sleep"]["seconds"], 0)?)))
    } else {
        bail!("a hook of a kind that is not understood: {object}")
    }
}

fn mount(object: &Value) -> Result<Mount> {
    Ok(Mount {
        volume: text(&object["name"])?,
        path: text(&object["mountPath"])?.into(),
        read_only: object["readOnly"] == true,
    })
}

fn volume(object: &Value) -> Result<(String, Volume)> {
    let name = text(&object["name"])?;
    let projected = &object["projected"]["sources"];
    let volume = if object["secret"].is_object() {
        let secret = &object["secret"];
        Volume::Secrets(vec![secret_files(&secret["secretName"], &secret["items"])?])
    } else if projected.is_array() {
        let sources = list(projected).iter().map(|source| {
            let secret = &source["secret"];
            ensure!(
                secret.is_object(),
                "a projection of what is no Secret: {source}"
            );
            secret_files(&secret["name"], &secret["items"])
        });
        Volume::Secrets(sources.collect::<Result<_>>()?)
    } else if object["emptyDir"].is_object() {
        Volume::Empty
    } else {
        let mut kinds = object.as_object().into_iter().flatten();
        let kind = kinds.find(|(key, _)| *key != "name");
        Volume::Other(kind.map(|(key, _)| key.clone()).unwrap_or_default())
    };
    Ok((name, volume))
}

fn secret_files(name: &Value, items: &Value) -> Result<SecretFiles> {
    let files = list(items)
        .iter()
        .map(|item| Ok((text(&item["key"])?, text(&item["path"])?)));
    Ok(SecretFiles {
        secret: text(name)?,
        files: files.collect::<Result<_>>()?,
    })
}

#[cfg(test)]
#[path = "deployment/tests.rs"]
mod tests;
