//! Sends a sequence to two servers and compares their answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::features::Features;
use super::sequence::{Body, Sequence, Step};
use super::vary;
use crate::client::{Client, Reply};
use crate::compare::{Difference, differences};
use crate::golden::{Golden, Recorded};
use crate::kubeconfig::Endpoint;
use crate::normalize::Normalizer;
use crate::symbols::Symbols;

/// The two servers that are compared.
pub struct Pair {
    reference: Client,
    plane: Client,
    plane_path: String,
    namespace: String,
    /// Whether bodies must name their kind, as those of custom kinds.
    names_kinds: bool,
}

/// What happened to a sequence.
#[derive(Default)]
pub struct Outcome {
    /// Where the answers to the last step differ; empty if all answers are equal.
    pub differences: Vec<Difference>,
    /// The number of steps that were sent.
    pub sent: usize,
    /// The number of steps that were refused, by both.
    pub refused: usize,
    /// What the sequence contains.
    pub features: Features,
    /// Whether the sequence ended early because the reference broke off an answer: some writes make
    /// it panic.
    pub broken_off: bool,
}

const VERSION: &str = "/body/metadata/resourceVersion";

/// Differences that are accepted, as kind, place and reason.
pub const ACCEPTED: [(&str, &str, &str); 7] = [
    (
        "PersistentVolumeClaim",
        VERSION,
        "the reference stores a new claim without the phase that it shows, so the first write without a change is one",
    ),
    (
        "Job",
        VERSION,
        "the reference stores a Job without the labels that it shows, so the first write without a change is one",
    ),
    (
        "ReplicationController",
        VERSION,
        "the reference stores no labels that a status without a template leaves out, though it shows them, so the next write without a change is one",
    ),
    (
        "MutatingWebhookConfiguration",
        "/body/metadata/generation",
        EMPTY_COUNTS,
    ),
    ("MutatingWebhookConfiguration", VERSION, EMPTY_COUNTS),
    (
        "ValidatingWebhookConfiguration",
        "/body/metadata/generation",
        EMPTY_COUNTS,
    ),
    ("ValidatingWebhookConfiguration", VERSION, EMPTY_COUNTS),
];

const EMPTY_COUNTS: &str = "the reference counts an empty list in place of an absent one as a change, though it stores neither";

fn is_accepted(kind: &str, difference: &Difference) -> bool {
    let mut accepted = ACCEPTED.iter().filter(|(of, ..)| *of == kind);
    accepted.any(|(_, path, _)| difference.path == *path || difference.step == "(all)")
}

/// How often a sequence is played again for the seconds.
const REPEATS_MAX: usize = 3;

/// Returns true if nothing but versions and times differ. An apply of an empty list that changes nothing is a write if
/// the time of its entry changes, so it depends on the second, which is not the same on both servers.
fn may_be_of_seconds(differences: &[Difference]) -> bool {
    let is_time =
        |path: &str| path.starts_with("/body/metadata/managedFields/") && path.ends_with("/time");
    let mut paths = differences.iter().map(|difference| &difference.path);
    !differences.is_empty() && paths.all(|path| path == VERSION || is_time(path))
}

/// Returns the time until the next second begins, so that a sequence has as much of it as it can.
fn to_next_second() -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Duration::from_secs(1).saturating_sub(Duration::from_nanos(now.subsec_nanos().into()))
}

/// Returns true if somebody owns labels or annotations of an object that has none. Of a custom kind the reference
/// stores `null` for these, though it does not show them, so the next write without a change is one.
fn owns_what_is_gone(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let entries = metadata["managedFields"].as_array();
    let mut owned = entries.into_iter().flatten();
    owned.any(|entry| {
        let fields = &entry["fieldsV1"]["f:metadata"];
        let is_gone =
            |name: &str| metadata[name].is_null() && !fields[format!("f:{name}")].is_null();
        ["labels", "annotations"].into_iter().any(is_gone)
    })
}

/// One server while a sequence is played.
struct Side<'a> {
    client: &'a Client,
    base_path: &'a str,
    names_kinds: bool,
    symbols: Symbols,
    /// All bodies so far.
    sent: String,
    /// The object as the server has last shown it.
    live: Value,
    /// The last answer.
    answer: Value,
}

impl Pair {
    /// Connects to both servers and creates what sequences rely on.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached.
    pub async fn open(reference: &Endpoint, plane: &Endpoint, namespace: &str) -> Result<Self> {
        let pair = Self {
            reference: Client::open(reference).await?,
            plane: Client::open(plane).await?,
            plane_path: plane.base_path.clone(),
            namespace: namespace.to_owned(),
            names_kinds: false,
        };
        for client in [&pair.reference, &pair.plane] {
            let all = [namespace.to_owned(), limits_of(namespace)];
            for name in all {
                let body = json!({"metadata": {"name": name}});
                client.post("/api/v1/namespaces", &body).await?;
                let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
                for account in ["default", "builder"] {
                    let body = json!({"metadata": {"name": account}});
                    client.post(&path, &body).await?;
                }
            }
        }
        Ok(pair)
    }

    /// Lets all bodies name their kind.
    #[must_use]
    pub fn naming_kinds(self) -> Self {
        Self {
            names_kinds: true,
            ..self
        }
    }

    /// Plays a sequence until a step differs. If that may be for the second in which each server carried it out, it is
    /// played again.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached.
    pub async fn play(&self, sequence: &Sequence) -> Result<Outcome> {
        let mut outcome = self.play_once(sequence).await?;
        for _ in 0..REPEATS_MAX {
            if !may_be_of_seconds(&outcome.differences) {
                break;
            }
            sleep(to_next_second()).await;
            outcome = self.play_once(sequence).await?;
        }
        Ok(outcome)
    }

    async fn play_once(&self, sequence: &Sequence) -> Result<Outcome> {
        let filled = self.filled(sequence);
        let mut reference = Side::new(&self.reference, "", self.names_kinds);
        let mut plane = Side::new(&self.plane, &self.plane_path, self.names_kinds);
        reference.clean(&filled.path).await?;
        plane.clean(&filled.path).await?;
        let mut outcome = Outcome::default();
        for (at, step) in filled.steps.iter().enumerate() {
            let before = reference.live.clone();
            let Ok(expected) = reference.send(at, step).await else {
                outcome.broken_off = true;
                break;
            };
            let answered = plane.send(at, step).await?;
            outcome.sent += 1;
            let status = expected.steps[0].status.unwrap_or_default();
            outcome.refused += usize::from(status >= 400);
            outcome
                .features
                .add(step, &before, status, &reference.answer);
            outcome.differences = differences(&expected, &answered);
            let is_older = self.names_kinds && owns_what_is_gone(&before);
            outcome.differences.retain(|difference| {
                let is_version = difference.path == VERSION;
                !(is_accepted(&sequence.kind, difference) || is_older && is_version)
            });
            if !outcome.differences.is_empty() {
                break;
            }
        }
        reference.clean(&filled.path).await?;
        plane.clean(&filled.path).await?;
        Ok(outcome)
    }

    /// Returns a sequence with the names filled in.
    fn filled(&self, sequence: &Sequence) -> Sequence {
        // Limits would act on the objects of other sequences.
        let limits = ["ResourceQuota", "LimitRange"].contains(&sequence.kind.as_str());
        let namespace = match limits {
            true => limits_of(&self.namespace),
            false => self.namespace.clone(),
        };
        let name = format!("s{}", sequence.seed);
        let fill = |text: &str| text.replace("{ns}", &namespace).replace("{name}", &name);
        let fill_tree = |tree: &Value| {
            let text = fill(&tree.to_string());
            serde_json::from_str(&text).unwrap_or_default()
        };
        let mut filled = sequence.clone();
        filled.path = fill(&sequence.path);
        for step in &mut filled.steps {
            step.path = fill(&step.path);
            step.body = match &step.body {
                Body::Sent(tree) => Body::Sent(fill_tree(tree)),
                Body::WithVersion(tree) => Body::WithVersion(fill_tree(tree)),
                other => other.clone(),
            };
            if self.names_kinds && step.is_apply() {
                without_empty_metadata(&mut step.body);
            }
        }
        filled
    }
}

/// Takes empty labels, annotations and the like from what is applied. The reference stores them in
/// custom objects and does not show them, so its next write changes something although it shows the
/// same; a plane does not store them.
fn without_empty_metadata(body: &mut Body) {
    let Body::Sent(tree) = body else { return };
    if let Some(metadata) = tree["metadata"].as_object_mut() {
        let is_empty = |value: &Value| *value == json!({}) || *value == json!([]);
        metadata.retain(|_, value| !is_empty(value));
    }
}

fn limits_of(namespace: &str) -> String {
    format!("{namespace}-limits")
}

impl<'a> Side<'a> {
    fn new(client: &'a Client, base_path: &'a str, names_kinds: bool) -> Self {
        Self {
            client,
            base_path,
            names_kinds,
            symbols: Symbols::default(),
            sent: String::new(),
            live: Value::Null,
            answer: Value::Null,
        }
    }

    /// Sends a step and returns the normalised answer.
    async fn send(&mut self, at: usize, step: &Step) -> Result<Golden> {
        let reply = self.ask(step).await?;
        let status = reply.status.as_u16();
        if status < 300 && step.answers_object() {
            self.live = reply.body.clone();
        }
        self.answer = reply.body.clone();
        let name = format!("step {at}");
        let mut body = Normalizer {
            symbols: &mut self.symbols,
            step: &name,
            sent: &self.sent,
            base_path: self.base_path,
        }
        .value(reply.body);
        cut(status, &mut body);
        let recorded = Recorded {
            step: name,
            request: format!("{} {}", step.method, step.path),
            status: Some(status),
            headers: Default::default(),
            body,
        };
        Ok(Golden {
            steps: vec![recorded],
            order: self.symbols.order(),
        })
    }

    async fn ask(&mut self, step: &Step) -> Result<Reply> {
        let body = match &step.body {
            Body::Nothing => return self.client.get(&step.path).await,
            Body::Sent(tree) => tree.clone(),
            Body::WithVersion(tree) => {
                let mut tree = tree.clone();
                let version = self.live["metadata"]["resourceVersion"].clone();
                tree["metadata"]["resourceVersion"] = version;
                tree
            }
            Body::Edited(seed) => {
                let mut tree = vary::edit(*seed, &self.live);
                // The live object may have been shown in another version.
                if self.names_kinds {
                    let parts: Vec<&str> = step.path.split('/').collect();
                    tree["apiVersion"] = json!(parts[2..4].join("/"));
                } else if let Some(members) = tree.as_object_mut() {
                    members.remove("apiVersion");
                    members.remove("kind");
                }
                tree
            }
        };
        let text = body.to_string();
        if !matches!(step.body, Body::Edited(_)) {
            self.sent.push_str(&text);
        }
        let method = Method::from_bytes(step.method.as_bytes()).context("a bad method")?;
        self.client
            .typed(method, &step.path, step.content_type, text)
            .await
    }

    /// Deletes the object.
    async fn clean(&self, path: &str) -> Result<()> {
        let free = json!({"metadata": {"finalizers": null}}).to_string();
        let kind = "application/merge-patch+json";
        let freed = self.client.typed(Method::PATCH, path, kind, free).await?;
        if freed.status != 404 {
            let path = format!("{path}?gracePeriodSeconds=0");
            self.client.delete(&path).await?;
        }
        Ok(())
    }
}

/// Takes from an answer what is not compared: the words about invalid objects, which other tests
/// compare, and the user of a certificate request, which has another name on each server.
fn cut(status: u16, body: &mut Value) {
    if status == 422 {
        *body = Value::Null;
    }
    // The reference finds conflicts and faults in the random order of Go's maps.
    if let Some(causes) = body
        .pointer_mut("/details/causes")
        .and_then(Value::as_array_mut)
    {
        causes.sort_by_key(Value::to_string);
    }
    // It also stops at the first member of an object that the schema does not declare.
    const UNDECLARED: &str = "field not declared in schema";
    if let Some(Value::String(message)) = body.get_mut("message")
        && message.contains(UNDECLARED)
    {
        let head = message.split_once("): ").map_or("", |(head, _)| head);
        *message = format!("{head}: {UNDECLARED}");
    }
    if let Some(Value::String(message)) = body.get_mut("message")
        && let Some((head, faults)) = message.split_once("errors:\n")
    {
        let mut faults: Vec<&str> = faults.split('\n').collect();
        faults.sort_unstable();
        *message = format!("{head}errors:\n{}", faults.join("\n"));
    }
    if body["kind"] == "CertificateSigningRequest"
        && let Some(spec) = body["spec"].as_object_mut()
    {
        for name in ["username", "uid", "groups", "extra"] {
            spec.remove(name);
        }
    }
}
