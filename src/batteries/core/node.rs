//! Nodes: they report their own status, also when they are created.

pub mod validation;

use super::config_map::members;
use crate::shared::network::addresses;
use crate::shared::pod::defaults::round_up;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::{Str, Value};
use polyplane_registry::metadata::strings;
use polyplane_registry::strategy::{Context, Strategy, age};
use std::collections::BTreeSet;
use validation as checks;

/// Behaviour of Nodes.
#[derive(Debug)]
pub struct Node;

impl Strategy for Node {
    fn normalize(&self, object: &mut Value, _: i64) {
        align_ranges(object);
    }

    fn default(&self, object: &mut Value) {
        let capacity = object
            .at(&["status", "capacity"])
            .filter(|value| !value.is_null());
        let allocatable = object
            .at(&["status", "allocatable"])
            .filter(|value| !value.is_null());
        if let (Some(capacity), None) = (capacity.cloned(), allocatable) {
            object.set(&["status", "allocatable"], capacity);
        }
        for list in ["capacity", "allocatable"] {
            object
                .at_mut(&["status", list])
                .into_iter()
                .for_each(round_up);
        }
    }

    fn keeps_status(&self) -> bool {
        true
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        align_ranges(object);
        for path in [["spec", "configSource"], ["status", "config"]] {
            drop(object.remove(&path));
        }
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        align_ranges(object);
        if old["spec"]["configSource"].is_null() {
            drop(object.remove(&["spec", "configSource"]));
        }
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
        align_ranges(object);
        if old["status"]["config"].is_null() {
            drop(object.remove(&["status", "config"]));
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        checks::validate(object)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = checks::validate_whole(object);
        errors.extend(checks::validate_change(object, old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        checks::validate_change(object, old)
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if !context.subresource.is_empty() {
            return warnings;
        }
        if !object["spec"]["configSource"].is_null() {
            warnings.push("spec.configSource: the feature is removed".to_owned());
        }
        if !object.str_at(&["spec", "externalID"]).is_empty() {
            let text = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
            warnings.push(text.to_owned());
        }
        let spec = Path::new("spec");
        let path = spec.child("podCIDRs");
        for (at, range) in strings(&object["spec"]["podCIDRs"]).iter().enumerate() {
            warnings.extend(addresses::cidr_warnings(&path.index(at), range));
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let info = |field: &str| object.str_at(&["status", "nodeInfo", field]);
        let known = |text: &str| if text.is_empty() { "<unknown>" } else { text }.to_owned();
        let mut kernel = known(info("kernelVersion"));
        if !info("architecture").is_empty() {
            kernel = format!("{kernel} ({})", info("architecture"));
        }
        vec![
            object.str_at(&["metadata", "name"]).into(),
            state(object).into(),
            roles(object).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            info("kubeletVersion").into(),
            address(object, "InternalIP").into(),
            address(object, "ExternalIP").into(),
            known(info("osImage")).into(),
            kernel.into(),
            known(info("containerRuntimeVersion")).into(),
        ]
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let unschedulable = || object.bool_at(&["spec", "unschedulable"]);
        (name == "spec.unschedulable").then(|| unschedulable().to_string().into())
    }
}

/// Makes `podCIDR` and `podCIDRs` consistent: `podCIDR` is the first of `podCIDRs`, and counts if
/// they differ.
fn align_ranges(object: &mut Value) {
    let single = object.str_at(&["spec", "podCIDR"]).to_owned();
    let first = object
        .items_at(&["spec", "podCIDRs"])
        .first()
        .and_then(Value::as_str)
        .map(str::to_owned);
    match first {
        Some(first) if single.is_empty() => object.set(&["spec", "podCIDR"], first),
        Some(first) if first == single => {}
        _ if single.is_empty() => {}
        _ => object.set(&["spec", "podCIDRs"], vec![Value::from(single)]),
    }
}

fn state(object: &Value) -> String {
    let conditions = object.items_at(&["status", "conditions"]).iter();
    let ready = conditions
        .rev()
        .find(|condition| condition.str_at(&["type"]) == "Ready");
    let mut state = match ready.map(|condition| condition.str_at(&["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object.bool_at(&["spec", "unschedulable"]) {
        state.push_str(",SchedulingDisabled");
    }
    state
}

fn roles(object: &Value) -> String {
    let labels = members(&object["metadata"]["labels"]);
    let roles: BTreeSet<&str> = labels
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => value.as_str(),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        return "<none>".to_owned();
    }
    roles.into_iter().collect::<Vec<_>>().join(",")
}

fn address<'a>(object: &'a Value, kind: &str) -> &'a str {
    let mut addresses = object.items_at(&["status", "addresses"]).iter();
    let found = addresses.find(|address| address.str_at(&["type"]) == kind);
    found.map_or("<none>", |address| address.str_at(&["address"]))
}
