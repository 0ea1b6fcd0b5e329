//! Table cells of pods and of kinds with a pod template.

use super::validation::is_sidecar;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_registry::strategy::{RowCompletion, age};

/// Returns names and images of the containers of a pod spec.
pub fn containers(spec: &Value) -> (String, String) {
    let join = |field: &str| {
        let texts: Vec<&str> = spec
            .items_at(&["containers"])
            .iter()
            .map(|one| one.str_at(&[field]))
            .collect();
        texts.join(",")
    };
    (join("name"), join("image"))
}

/// Returns labels as a cell shows them.
pub fn labels(labels: &Value) -> String {
    let pairs: Vec<String> = labels
        .as_object()
        .into_iter()
        .flat_map(|labels| labels.iter())
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// Returns how a pod has ended.
pub fn completion(pod: &Value) -> Option<RowCompletion> {
    let (reason, message) = match pod.str_at(&["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(RowCompletion { reason, message })
}

/// Returns the cells of a pod.
pub fn pod(pod: &Value, now: i64) -> Vec<Value> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let summary = ContainerSummary::of(pod);
    let or_none = |text: &str| Value::string(if text.is_empty() { "<none>" } else { text });
    let first_ip = status
        .items_at(&["podIPs"])
        .first()
        .map_or("", |item| item.str_at(&["ip"]));
    vec![
        Value::string(pod.str_at(&["metadata", "name"])),
        Value::from(format!("{}/{}", summary.ready, summary.total)),
        Value::from(summary.reason),
        Value::from(summary.restarts.cell(now)),
        age(pod.str_at(&["metadata", "creationTimestamp"]), now),
        or_none(first_ip),
        or_none(spec.str_at(&["nodeName"])),
        or_none(status.str_at(&["nominatedNodeName"])),
        Value::from(readiness_gates(spec, status)),
    ]
}

fn readiness_gates(spec: &Value, status: &Value) -> String {
    let gates = spec.items_at(&["readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let is_true = |gate: &&Value| {
        let kind = gate.str_at(&["conditionType"]);
        let mut conditions = status.items_at(&["conditions"]).iter();
        let condition = conditions.find(|condition| condition.str_at(&["type"]) == kind);
        condition.is_some_and(|condition| condition.str_at(&["status"]) == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

/// The number of restarts, and the time of the last one.
#[derive(Debug, Default, Clone, Copy)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &Value) {
        self.count += container.int_at(&["restartCount"]).unwrap_or(0);
        let ended = container.str_at(&["lastState", "terminated", "finishedAt"]);
        if let Ok(ended) = Timestamp::parse(ended)
            && self
                .last
                .is_none_or(|last| ended.nanoseconds_since(last) > 0)
        {
            self.last = Some(ended);
        }
    }

    fn cell(self, now: i64) -> String {
        match self.last {
            Some(last) if self.count != 0 => {
                let passed = Timestamp::from_seconds(now).nanoseconds_since(last);
                format!("{} ({} ago)", self.count, human_duration(passed))
            }
            _ => self.count.to_string(),
        }
    }
}

/// The state of a pod's containers as the table row shows it.
#[derive(Debug)]
struct ContainerSummary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: Restarts,
}

impl ContainerSummary {
    fn of(pod: &Value) -> Self {
        let (spec, status) = (&pod["spec"], &pod["status"]);
        let inits = spec.items_at(&["initContainers"]);
        let sidecars = inits
            .iter()
            .filter(|container| is_sidecar(container))
            .count();
        let reason = match status.str_at(&["reason"]) {
            "" => status.str_at(&["phase"]),
            reason => reason,
        };
        let gated = conditions(status, "PodScheduled")
            .any(|one| one.str_at(&["reason"]) == "SchedulingGated");
        let mut summary = Self {
            ready: 0,
            total: spec.items_at(&["containers"]).len() + sidecars,
            reason: if gated { "SchedulingGated" } else { reason }.to_owned(),
            restarts: Restarts::default(),
        };
        let (initializing, of_sidecars) = summary.look_at_inits(inits, status);
        let initialized = conditions(status, "Initialized")
            .next()
            .is_some_and(is_true);
        if !initializing || initialized {
            summary.restarts = of_sidecars;
            summary.look_at_regular(status);
        }
        summary.look_at_deletion(pod);
        summary
    }

    /// Reads the states of the init containers. Returns whether the pod is still initializing, and
    /// the restarts of its sidecars.
    fn look_at_inits(&mut self, inits: &[Value], status: &Value) -> (bool, Restarts) {
        let mut of_sidecars = Restarts::default();
        for (at, container) in status
            .items_at(&["initContainerStatuses"])
            .iter()
            .enumerate()
        {
            self.restarts.add(container);
            // If several containers have one name, the last one counts.
            let name = container.str_at(&["name"]);
            let own = inits
                .iter()
                .rev()
                .find(|init| init.str_at(&["name"]) == name);
            let sidecar = own.is_some_and(is_sidecar);
            if sidecar {
                of_sidecars.add(container);
            }
            let terminated = &container["state"]["terminated"];
            let waiting = container.str_at(&["state", "waiting", "reason"]);
            if !terminated.is_null() && terminated.int_at(&["exitCode"]).unwrap_or(0) == 0 {
                continue;
            }
            if sidecar && container.bool_at(&["started"]) {
                self.ready += usize::from(container.bool_at(&["ready"]));
                continue;
            }
            self.reason = if !terminated.is_null() {
                format!("Init:{}", end_of(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{at}/{}", inits.len())
            };
            return (true, of_sidecars);
        }
        (false, of_sidecars)
    }

    fn look_at_regular(&mut self, status: &Value) {
        let (mut running, mut error) = (false, String::new());
        for container in status.items_at(&["containerStatuses"]).iter().rev() {
            self.restarts.add(container);
            let state = &container["state"];
            let waiting = state.str_at(&["waiting", "reason"]);
            let terminated = &state["terminated"];
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if !terminated.is_null() {
                self.reason = end_of(terminated);
                if terminated.int_at(&["exitCode"]).unwrap_or(0) != 0 {
                    error = self.reason.clone();
                }
            } else if container.bool_at(&["ready"]) && !state["running"].is_null() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason != "Completed" {
            return;
        }
        if running && conditions(status, "Ready").any(is_true) {
            self.reason = "Running".to_owned();
        } else if !error.is_empty() {
            self.reason = error;
        } else if running {
            self.reason = "NotReady".to_owned();
        }
    }

    fn look_at_deletion(&mut self, pod: &Value) {
        if pod["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        if pod.str_at(&["status", "reason"]) == "NodeLost" {
            self.reason = "Unknown".to_owned();
        } else if !matches!(pod.str_at(&["status", "phase"]), "Failed" | "Succeeded") {
            self.reason = "Terminating".to_owned();
        }
    }
}

fn conditions<'a>(status: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    status
        .items_at(&["conditions"])
        .iter()
        .filter(move |condition| condition.str_at(&["type"]) == kind)
}

fn is_true(condition: &Value) -> bool {
    condition.str_at(&["status"]) == "True"
}

/// Returns the text about how a container ended.
fn end_of(terminated: &Value) -> String {
    let (reason, signal) = (
        terminated.str_at(&["reason"]),
        terminated.int_at(&["signal"]).unwrap_or(0),
    );
    if !reason.is_empty() {
        reason.to_owned()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", terminated.int_at(&["exitCode"]).unwrap_or(0))
    }
}
