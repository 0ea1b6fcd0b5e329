//! What one object takes: the rows of the index.
//!
//! A row's value is `namespace 0 kind resource 0 signature`. Amounts are thousandths, so that parts
//! of a processor are whole numbers. The signature has what the scopes of quotas select by.

use super::extended::{MADE_FOR_POD, pod_of};
use crate::pod_resources::{Amount, Resources, add, held_by_pod, quantity, resources};
use crate::storage_class::CLASS_ANNOTATION;
use polyplane_apimachinery::json::scan::{find, items, key_is, members};
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Index, IndexRow, Key};
use std::collections::BTreeMap;

/// The thousandths of one.
pub(super) const ONE: i64 = 1000;
/// The devices that a request for all devices counts as: as many as a claim can get.
const ALL_DEVICES: i64 = 32;
/// What follows the name of a device class in the name of the resource for its devices.
pub(super) const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// What precedes the name of a device class in the extended resource that each class has.
pub(super) const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";
/// The kind letter of the rows that have the specs of quotas.
const SPECS: u8 = b'Q';
/// The kind letter of the rows that name the claims which were made for pods.
const MADE: u8 = b'M';

/// The kinds of which quotas count more than objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pods,
    Claims,
    Services,
    DeviceClaims,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Pods, Self::Claims, Self::Services, Self::DeviceClaims];

    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Claims => "persistentvolumeclaims",
            Self::Services => "services",
            Self::DeviceClaims => "resourceclaims.resource.k8s.io",
        }
    }

    pub(super) fn of_resource(qualified: &str) -> Option<Self> {
        let mut kinds = Self::ALL.into_iter();
        kinds.find(|kind| kind.resource() == qualified)
    }

    fn of_key(key: &Key) -> Option<Self> {
        match (key.group(), key.resource()) {
            ("resource.k8s.io", "resourceclaims") => Some(Self::DeviceClaims),
            ("", resource) => Self::of_resource(resource),
            _ => None,
        }
    }

    fn letter(self) -> u8 {
        match self {
            Self::Pods => b'P',
            Self::Claims => b'C',
            Self::Services => b'S',
            Self::DeviceClaims => b'D',
        }
    }
}

/// What the scopes of quotas select by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) is_terminating: bool,
    pub(super) is_best_effort: bool,
    pub(super) crosses_namespaces: bool,
    /// The time in seconds since 1970 after which the object takes nothing, because its deletion
    /// should have ended; 0 for never.
    pub(super) ends: i64,
    /// The priority class of a pod, the attributes classes of a claim.
    pub(super) classes: Vec<Str>,
}

impl Signature {
    fn encode(&self, value: &mut Vec<u8>) {
        let flags = u8::from(self.is_terminating)
            | u8::from(self.is_best_effort) << 1
            | u8::from(self.crosses_namespaces) << 2;
        value.push(flags);
        value.extend_from_slice(&self.ends.to_be_bytes());
        for class in &self.classes {
            value.extend_from_slice(class.as_bytes());
            value.push(0);
        }
    }

    /// Returns whether the object takes nothing any more at `now`, in seconds since 1970.
    pub(super) fn has_ended(&self, now: i64) -> bool {
        self.ends != 0 && self.ends < now
    }

    /// Returns the signature at the end of a row's value.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (flags, rest) = bytes.split_first()?;
        let (ends, classes) = rest.split_first_chunk()?;
        let classes = classes.split(|byte| *byte == 0);
        let classes = classes.filter(|class| !class.is_empty());
        Some(Self {
            is_terminating: flags & 1 != 0,
            is_best_effort: flags & 2 != 0,
            crosses_namespaces: flags & 4 != 0,
            ends: i64::from_be_bytes(*ends),
            classes: classes
                .filter_map(|class| Some(std::str::from_utf8(class).ok()?.into()))
                .collect(),
        })
    }
}

/// What one object takes, in thousandths by resource.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) signature: Signature,
    pub(super) amounts: BTreeMap<Str, i64>,
}

/// Returns the thousandths of a quantity; the greatest number if they do not fit.
pub(super) fn thousandths(quantity: &Quantity) -> i64 {
    if quantity.value() >= i64::MAX / ONE {
        return i64::MAX;
    }
    quantity.milli_value()
}

impl Usage {
    pub(super) fn of(kind: Kind, object: &Value) -> Self {
        match kind {
            Kind::Pods => of_pods(object),
            Kind::Claims => of_claims(object),
            Kind::Services => of_services(object),
            Kind::DeviceClaims => of_device_claims(object),
        }
    }

    pub(super) fn take(&mut self, resource: impl Into<Str>, amount: i64) {
        let total = self.amounts.entry(resource.into()).or_default();
        *total = total.saturating_add(amount);
    }
}

fn of_pods(pod: &Value) -> Usage {
    let mut usage = Usage::default();
    let spec = &pod["spec"];
    let class = spec.str_at(&["priorityClassName"]);
    usage.signature = Signature {
        is_terminating: spec
            .int_at(&["activeDeadlineSeconds"])
            .is_some_and(|seconds| seconds >= 0),
        is_best_effort: pod.str_at(&["status", "qosClass"]) == "BestEffort",
        crosses_namespaces: crosses_namespaces(&spec["affinity"]),
        ends: ends(pod),
        classes: (!class.is_empty())
            .then(|| class.into())
            .into_iter()
            .collect(),
    };
    usage.take("count/pods", ONE);
    if matches!(pod.str_at(&["status", "phase"]), "Failed" | "Succeeded") {
        return usage;
    }
    usage.take("pods", ONE);
    let overhead = resources(&spec["overhead"]);
    let mut requests = held_by_pod(pod, Amount::Requests);
    add(&mut requests, &overhead);
    for (name, request) in &requests {
        let amount = thousandths(request);
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
            || name.starts_with("hugepages-")
        {
            usage.take(name.clone(), amount);
        }
        usage.take(format!("requests.{name}"), amount);
    }
    let mut limits: Resources = held_by_pod(pod, Amount::Limits);
    limits.retain(|name, _| matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage"));
    let is_limited = |name: &Str| limits.get(name).is_some_and(|limit| !limit.is_zero());
    let overhead = overhead.into_iter().filter(|(name, _)| is_limited(name));
    let overhead = overhead.collect();
    add(&mut limits, &overhead);
    for (name, limit) in &limits {
        usage.take(format!("limits.{name}"), thousandths(limit));
    }
    usage
}

/// Returns when a deleted pod should be gone.
fn ends(pod: &Value) -> i64 {
    let metadata = &pod["metadata"];
    let deleted = Timestamp::parse(metadata.str_at(&["deletionTimestamp"])).ok();
    let grace = metadata.int_at(&["deletionGracePeriodSeconds"]);
    match (deleted, grace) {
        (Some(deleted), Some(grace)) => {
            let since_1970 = deleted.nanoseconds_since(Timestamp::from_seconds(0));
            (since_1970 / 1_000_000_000).saturating_add(grace)
        }
        _ => 0,
    }
}

fn crosses_namespaces(affinity: &Value) -> bool {
    let crosses = |term: &Value| {
        !term.items_at(&["namespaces"]).is_empty() || term.get("namespaceSelector").is_some()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let required = [*kind, "requiredDuringSchedulingIgnoredDuringExecution"];
        let preferred = [*kind, "preferredDuringSchedulingIgnoredDuringExecution"];
        let mut weighted = affinity.items_at(&preferred).iter();
        affinity.items_at(&required).iter().any(crosses)
            || weighted.any(|term| crosses(&term["podAffinityTerm"]))
    })
}

fn of_claims(claim: &Value) -> Usage {
    let mut usage = Usage::default();
    let classes = [
        claim.str_at(&["spec", "volumeAttributesClassName"]),
        claim.str_at(&["status", "currentVolumeAttributesClassName"]),
        claim.str_at(&[
            "status",
            "modifyVolumeStatus",
            "targetVolumeAttributesClassName",
        ]),
    ];
    let mut classes: Vec<Str> = classes
        .into_iter()
        .filter(|class| !class.is_empty())
        .map(Into::into)
        .collect();
    classes.sort();
    classes.dedup();
    usage.signature.classes = classes;
    let class = match claim.at(&["metadata", "annotations", CLASS_ANNOTATION]) {
        Some(class) => class.as_str().unwrap_or(""),
        None => claim.str_at(&["spec", "storageClassName"]),
    };
    let requested = quantity(&claim["spec"]["resources"]["requests"]["storage"]);
    let allocated = quantity(&claim["status"]["allocatedResources"]["storage"]);
    // Storage is counted in whole bytes.
    let storage = requested.max(allocated).value().saturating_mul(ONE);
    usage.take("count/persistentvolumeclaims", ONE);
    for (resource, amount) in [
        ("persistentvolumeclaims", ONE),
        ("requests.storage", storage),
    ] {
        usage.take(resource, amount);
        if !class.is_empty() {
            usage.take(
                format!("{class}.storageclass.storage.k8s.io/{resource}"),
                amount,
            );
        }
    }
    usage
}

fn of_services(service: &Value) -> Usage {
    let mut usage = Usage::default();
    let spec = &service["spec"];
    let ports = spec.items_at(&["ports"]);
    let has_number = |port: &&Value| port.int_at(&["nodePort"]).is_some_and(|port| port != 0);
    let given = ports.iter().filter(has_number).count();
    let allocates = spec
        .get("allocateLoadBalancerNodePorts")
        .and_then(Value::as_bool);
    let node_ports = match spec.str_at(&["type"]) {
        "LoadBalancer" if allocates == Some(false) => given,
        "NodePort" | "LoadBalancer" => ports.len(),
        _ => 0,
    };
    let node_ports = i64::try_from(node_ports).unwrap_or(i64::MAX);
    usage.take("services.nodeports", node_ports.saturating_mul(ONE));
    if spec.str_at(&["type"]) == "LoadBalancer" {
        usage.take("services.loadbalancers", ONE);
    }
    usage
}

fn of_device_claims(claim: &Value) -> Usage {
    let mut usage = Usage::default();
    let devices = |request: &Value| {
        let class = request.str_at(&["deviceClassName"]);
        let count = match request.str_at(&["allocationMode"]) {
            "ExactCount" => request.int_at(&["count"]).unwrap_or(0),
            "All" => ALL_DEVICES,
            _ => 0,
        };
        let resource = format!("{class}{DEVICES}");
        (Str::from(resource), count.saturating_mul(ONE))
    };
    for request in claim.items_at(&["spec", "devices", "requests"]) {
        if let Some(exact) = request.get("exactly") {
            let (resource, amount) = devices(exact);
            usage.take(resource, amount);
        }
        // One of the alternatives is taken, so each class counts with the most.
        let mut most: BTreeMap<Str, i64> = BTreeMap::new();
        for (resource, amount) in request.items_at(&["firstAvailable"]).iter().map(devices) {
            let present = most.entry(resource).or_default();
            *present = amount.max(*present);
        }
        for (resource, amount) in most {
            usage.take(resource, amount);
        }
    }
    usage
}

/// Returns the beginning of the values of a resource's rows.
pub(super) fn beginning(namespace: &str, kind: Kind, resource: &str) -> Vec<u8> {
    let mut value = beginning_of(namespace, kind.letter());
    value.extend_from_slice(resource.as_bytes());
    value.push(0);
    value
}

/// Returns the beginning of the rows that have the specs of a namespace's quotas.
pub(super) fn beginning_of_specs(namespace: &str) -> Vec<u8> {
    beginning_of(namespace, SPECS)
}

/// Returns the beginning of the rows that name the claims which were made for pods.
pub(super) fn beginning_of_made(namespace: &str) -> Vec<u8> {
    beginning_of(namespace, MADE)
}

fn beginning_of(namespace: &str, letter: u8) -> Vec<u8> {
    let mut value = Vec::with_capacity(namespace.len() + 64);
    value.extend_from_slice(namespace.as_bytes());
    value.extend_from_slice(&[0, letter]);
    value
}

fn is_quota(key: &Key) -> bool {
    key.is_of("", "resourcequotas")
}

/// The index with what the objects of each namespace take, and with the specs of its quotas.
#[derive(Debug)]
pub(crate) struct UsageIndex;

impl Index for UsageIndex {
    fn covers(&self, key: &Key) -> bool {
        is_quota(key)
            || key.is_of("resource.k8s.io", "resourceclaims")
            || [Kind::Pods, Kind::Claims, Kind::Services]
                .iter()
                .any(|kind| key.is_of("", kind.resource()))
    }

    fn rows(&self, key: &Key, body: &[u8]) -> Vec<IndexRow> {
        let namespace = key.namespace().unwrap_or("");
        if is_quota(key) {
            let mut value = beginning_of_specs(namespace);
            value.extend_from_slice(spec(body));
            let value = value.into();
            return vec![IndexRow { value, amount: 1 }];
        }
        let Some(kind) = Kind::of_key(key) else {
            return Vec::new();
        };
        let usage = Usage::of(kind, &relevant(body));
        let taken = usage.amounts.iter().filter(|(_, amount)| **amount != 0);
        let rows = taken.map(|(resource, amount)| {
            let mut value = beginning(namespace, kind, resource);
            usage.signature.encode(&mut value);
            IndexRow {
                value: value.into(),
                amount: *amount,
            }
        });
        let made = (kind == Kind::DeviceClaims && is_made_for_pod(body)).then(|| {
            let mut value = beginning_of_made(namespace);
            value.extend_from_slice(key.name().as_bytes());
            let value = value.into();
            IndexRow { value, amount: 1 }
        });
        rows.chain(made).collect()
    }
}

/// Returns whether a claim was made for what a pod requests.
fn is_made_for_pod(claim: &[u8]) -> bool {
    let is_marked = find(claim, &["metadata", "annotations", MADE_FOR_POD]).is_some();
    is_marked && pod_of(&parsed(claim)).is_some()
}

/// Returns the bytes of an object's spec.
pub(super) fn spec(body: &[u8]) -> &[u8] {
    find(body, &["spec"]).map_or(&[], |range| &body[range])
}

/// The members of containers that count.
const OF_CONTAINERS: [&str; 3] = ["name", "resources", "restartPolicy"];
/// The members of the statuses of containers that count.
const OF_CONTAINER_STATUSES: &[&str] = &["name", "resources", "allocatedResources"];
/// The members of conditions that count.
const OF_CONDITIONS: &[&str] = &["type", "reason"];
/// The members of an object that count, with their own relevant members if those are few.
const OF_METADATA: [&str; 3] = [
    "annotations",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];
const OF_STATUS: [&str; 5] = [
    "qosClass",
    "phase",
    "allocatedResources",
    "currentVolumeAttributesClassName",
    "modifyVolumeStatus",
];

/// Returns the members of an object that its usage depends on. Most bytes of a pod are others, and
/// this runs inside the sequencer.
fn relevant(body: &[u8]) -> Value {
    let mut tree = Value::object();
    for (name, value) in members(body).map(|(name, range)| (name, &body[range])) {
        if key_is(name, "metadata") {
            tree.set(&["metadata"], only(value, &OF_METADATA));
        } else if key_is(name, "status") {
            tree.set(&["status"], relevant_status(value));
        } else if key_is(name, "spec") {
            tree.set(&["spec"], relevant_spec(value));
        }
    }
    tree
}

fn relevant_spec(spec: &[u8]) -> Value {
    let mut tree = Value::object();
    for (name, value) in members(spec).map(|(name, range)| (name, &spec[range])) {
        let Some(text) = name_of(name) else {
            continue;
        };
        match text {
            "containers" | "initContainers" => {
                tree.set(&[text], only_of_each(value, &OF_CONTAINERS));
            }
            "volumes" | "selector" | "tolerations" | "topologySpreadConstraints" => {}
            _ => tree.set(&[text], parsed(value)),
        }
    }
    tree
}

fn relevant_status(status: &[u8]) -> Value {
    let mut tree = only(status, &OF_STATUS);
    for (list, names) in [
        ("containerStatuses", OF_CONTAINER_STATUSES),
        ("initContainerStatuses", OF_CONTAINER_STATUSES),
        ("conditions", OF_CONDITIONS),
    ] {
        if let Some(range) = find(status, &[list]) {
            tree.set(&[list], only_of_each(&status[range], names));
        }
    }
    tree
}

/// Returns the items of an array with only these members.
fn only_of_each(array: &[u8], names: &[&str]) -> Vec<Value> {
    let ranges = items(array);
    ranges.map(|range| only(&array[range], names)).collect()
}

/// Returns the members of an object with these names.
fn only(object: &[u8], names: &[&str]) -> Value {
    let mut tree = Value::object();
    for (name, range) in members(object) {
        if let Some(name) = names.iter().find(|wanted| key_is(name, wanted)) {
            tree.set(&[name], parsed(&object[range]));
        }
    }
    tree
}

fn name_of(raw: &[u8]) -> Option<&str> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    std::str::from_utf8(inner).ok()
}

fn parsed(bytes: &[u8]) -> Value {
    parse(bytes, &Limits::default()).map_or(Value::Null, |parsed| parsed.value)
}
