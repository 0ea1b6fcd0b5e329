//! The fields of a Service that depend on each other: its address and addresses, their families,
//! and the fields that its type requires.

use crate::shared::network::addresses;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_registry::metadata::strings;
use polyplane_registry::service_ranges::ServiceRanges;
use std::collections::BTreeSet;

/// Returns true for a Service that has no address of its own.
pub fn is_headless(spec: &Value) -> bool {
    strings(&spec["clusterIPs"]) == ["None"]
}

/// Returns true for a Service that can be reached from outside the cluster.
pub fn is_reachable_from_outside(spec: &Value) -> bool {
    match spec.str_at(&["type"]) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !strings(&spec["externalIPs"]).is_empty(),
        _ => false,
    }
}

/// Returns true for a Service whose endpoints need a health check on a port of their own.
pub fn needs_health_check(spec: &Value) -> bool {
    spec.str_at(&["type"]) == "LoadBalancer" && spec.str_at(&["externalTrafficPolicy"]) == "Local"
}

fn has_address(spec: &Value) -> bool {
    spec.str_at(&["type"]) != "ExternalName"
}

/// Returns true for a Service whose ports are open on nodes.
pub fn needs_node_ports(spec: &Value) -> bool {
    match spec.str_at(&["type"]) {
        "NodePort" => true,
        "LoadBalancer" => spec["allocateLoadBalancerNodePorts"].as_bool() != Some(false),
        _ => false,
    }
}

/// Returns the node ports of a Service.
pub fn node_ports(spec: &Value) -> Vec<i64> {
    let ports = spec.items_at(&["ports"]).iter();
    ports
        .filter_map(|port| port.int_at(&["nodePort"]))
        .filter(|port| *port != 0)
        .collect()
}

/// Returns the Service with all its related fields set, as they are in Services of today.
pub fn filled_in(object: &Value, ranges: &ServiceRanges) -> Value {
    let mut object = object.clone();
    align_addresses(&mut object, None);
    let spec = &object["spec"];
    if !has_address(spec) {
        drop(object.remove(&["spec", "internalTrafficPolicy"]));
        return object;
    }
    if !spec.items_at(&["ipFamilies"]).is_empty() {
        return object;
    }
    let (families, policy) = if spec.str_at(&["clusterIP"]) == "None" {
        let primary = ranges.primary().family();
        match spec["selector"].as_object() {
            Some(selector) if !selector.is_empty() => (vec![primary.name()], Some("SingleStack")),
            _ => {
                let both = vec![primary.name(), primary.other().name()];
                (both, Some("RequireDualStack"))
            }
        }
    } else {
        let families: Vec<&str> = strings(&spec["clusterIPs"])
            .into_iter()
            .map(family_of)
            .collect();
        let policy = match families.len() {
            1 => Some("SingleStack"),
            2 => Some("RequireDualStack"),
            _ => None,
        };
        (families, policy)
    };
    set_texts(&mut object, "ipFamilies", &families);
    if let Some(policy) = policy {
        object.set(&["spec", "ipFamilyPolicy"], policy);
    }
    object
}

/// Returns the family of an address.
pub fn family_of(address: &str) -> &'static str {
    if addresses::is_ipv6(address) {
        "IPv6"
    } else {
        "IPv4"
    }
}

fn set_texts(object: &mut Value, field: &str, texts: &[&str]) {
    let items: Vec<Value> = texts.iter().map(|text| Value::from(*text)).collect();
    object.set(&["spec", field], items);
}

/// Makes `clusterIPs` follow `clusterIP` if the client knows only that field.
pub fn align_addresses(object: &mut Value, old: Option<&Value>) {
    let single = object.str_at(&["spec", "clusterIP"]).to_owned();
    let several = strings(&object["spec"]["clusterIPs"]);
    let Some(old) = old else {
        if !single.is_empty() && several.is_empty() {
            set_texts(object, "clusterIPs", &[&single]);
        }
        return;
    };
    let old_single = old.str_at(&["spec", "clusterIP"]);
    let old_several = strings(&old["spec"]["clusterIPs"]);
    if !old_several.is_empty() && several.is_empty() && old_single == single {
        set_texts(object, "clusterIPs", &old_several);
        return;
    }
    if old_single != single && several == old_several {
        if single.is_empty() && !old_single.is_empty() {
            drop(object.remove(&["spec", "clusterIPs"]));
        } else {
            set_texts(object, "clusterIPs", &[&single]);
        }
    }
}

/// Keeps the values that the server has chosen if the client leaves them out.
pub fn keep_choices(object: &mut Value, old: &Value) {
    let before = &old["spec"];
    if has_address(before) && has_address(&object["spec"]) {
        if object.str_at(&["spec", "clusterIP"]).is_empty() {
            object.set(&["spec", "clusterIP"], before.str_at(&["clusterIP"]));
        }
        if object.items_at(&["spec", "clusterIPs"]).is_empty() {
            set_texts(object, "clusterIPs", &strings(&before["clusterIPs"]));
        }
    }
    if needs_node_ports(before) && needs_node_ports(&object["spec"]) {
        keep_node_ports(object, before);
    }
    let unset = object.int_at(&["spec", "healthCheckNodePort"]).unwrap_or(0) == 0;
    if needs_health_check(before) && needs_health_check(&object["spec"]) && unset {
        let port = before.int_at(&["healthCheckNodePort"]).unwrap_or(0);
        object.set(&["spec", "healthCheckNodePort"], port);
    }
}

fn keep_node_ports(object: &mut Value, before: &Value) {
    let now: BTreeSet<i64> = node_ports(&object["spec"]).into_iter().collect();
    let used: BTreeSet<i64> = node_ports(before)
        .into_iter()
        .filter(|port| now.contains(port))
        .collect();
    let ports = object
        .at_mut(&["spec", "ports"])
        .and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        if port.int_at(&["nodePort"]).unwrap_or(0) != 0 {
            continue;
        }
        let name = port.str_at(&["name"]);
        let known = before
            .items_at(&["ports"])
            .iter()
            .rev()
            .find(|port| port.str_at(&["name"]) == name);
        let number = known
            .and_then(|port| port.int_at(&["nodePort"]))
            .unwrap_or(0);
        if number != 0 && !used.contains(&number) {
            port.set(&["nodePort"], number);
        }
    }
}

/// Drops fields that an earlier type needed and the present one does not, if the client has not
/// changed them.
pub fn drop_leftovers(object: &mut Value, old: &Value) {
    let (spec, before) = (object["spec"].clone(), &old["spec"]);
    let same = |field: &str| spec[field] == before[field];
    let mut gone: Vec<&str> = Vec::new();
    if has_address(before) && !has_address(&spec) {
        if spec.str_at(&["clusterIP"]) == before.str_at(&["clusterIP"]) && same("clusterIPs") {
            gone.extend(["clusterIP", "clusterIPs"]);
        }
        gone.extend(
            // Upstream keeps `internalTrafficPolicy` of an ExternalName Service in the store and
            // hides it from readers; here it is dropped, which looks the same to them.
            ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]
                .iter()
                .filter(|field| same(field)),
        );
    }
    let on_nodes = |spec: &Value| matches!(spec.str_at(&["type"]), "NodePort" | "LoadBalancer");
    let old_ports = node_ports(before);
    if on_nodes(before)
        && !on_nodes(&spec)
        && node_ports(&spec)
            .iter()
            .all(|port| old_ports.contains(port))
    {
        let ports = object
            .at_mut(&["spec", "ports"])
            .and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten() {
            drop(port.remove(&["nodePort"]));
        }
    }
    if needs_health_check(before) && !needs_health_check(&spec) && same("healthCheckNodePort") {
        gone.push("healthCheckNodePort");
    }
    let balanced = |spec: &Value| spec.str_at(&["type"]) == "LoadBalancer";
    if balanced(before) && !balanced(&spec) {
        gone.extend(
            ["allocateLoadBalancerNodePorts", "loadBalancerClass"]
                .iter()
                .filter(|field| same(field)),
        );
    }
    let outside = is_reachable_from_outside(before) && !is_reachable_from_outside(&spec);
    if outside && same("externalTrafficPolicy") {
        gone.push("externalTrafficPolicy");
    }
    for field in gone {
        drop(object.remove(&["spec", field]));
    }
    if !balanced(&spec) && object.at(&["status", "loadBalancer"]).is_some() {
        object.set(&["status", "loadBalancer"], Value::object());
    }
}

/// Returns true if a Service that prefers both families does not change.
pub fn stays_dual(object: &Value, old: &Value) -> bool {
    let (spec, before) = (&object["spec"], &old["spec"]);
    let prefers = |spec: &Value| spec.str_at(&["ipFamilyPolicy"]) == "PreferDualStack";
    let kind = spec.str_at(&["type"]);
    prefers(spec)
        && (prefers(before) || before["ipFamilyPolicy"].is_null())
        && kind == before.str_at(&["type"])
        && matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer")
        && strings(&spec["clusterIPs"]) == strings(&before["clusterIPs"])
        && strings(&spec["ipFamilies"]) == strings(&before["ipFamilies"])
}

/// Sets families and policy of a Service, in a plane that has addresses of these ranges.
///
/// # Errors
/// Returns the complaints about fields that contradict each other or need a family without a range.
pub fn init(
    object: &mut Value,
    old: Option<&Value>,
    ranges: &ServiceRanges,
) -> Result<(), Complaints> {
    if !has_address(&object["spec"]) || old.is_some_and(|old| stays_dual(object, old)) {
        return Ok(());
    }
    let selectorless = object["spec"]["selector"]
        .as_object()
        .is_none_or(|selector| selector.is_empty());
    let open = object.str_at(&["spec", "clusterIP"]) == "None" && selectorless;
    if object["spec"]["ipFamilyPolicy"].is_null() {
        let before = old.and_then(|old| old["spec"]["ipFamilyPolicy"].as_str());
        let policy = before
            .unwrap_or(if open {
                "RequireDualStack"
            } else {
                "SingleStack"
            })
            .to_owned();
        object.set(&["spec", "ipFamilyPolicy"], policy);
    }
    refuse(super::validation::validate_addresses(
        object,
        old.unwrap_or(&Value::Null),
    ))?;
    let policy = object.str_at(&["spec", "ipFamilyPolicy"]).to_owned();
    let mut errors = Complaints::default();
    if let Some(old) = old {
        release(object, old, &policy, &mut errors);
    }
    complain_about_number(object, &policy, &mut errors);
    add_families(object, ranges, &mut errors);
    refuse(errors)?;
    let mut families: Vec<String> = strings(&object["spec"]["ipFamilies"])
        .into_iter()
        .map(str::to_owned)
        .collect();
    if !open {
        refuse(complain_about_ranges(&object["spec"], &policy, ranges))?;
    }
    let primary = ranges.primary().family();
    if families.is_empty() {
        families.push(primary.name().to_owned());
    }
    if (open || ranges.are_dual()) && families.len() == 1 && policy != "SingleStack" {
        let other = match families[0] == primary.name() {
            true => primary.other(),
            false => primary,
        };
        families.push(other.name().to_owned());
    }
    let families: Vec<&str> = families.iter().map(String::as_str).collect();
    set_texts(object, "ipFamilies", &families);
    Ok(())
}

fn refuse(errors: Complaints) -> Result<(), Complaints> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Releases the addresses of the other family of a Service that goes back to one family.
fn release(object: &mut Value, old: &Value, policy: &str, errors: &mut Complaints) {
    let path = Path::new("spec");
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let now: Vec<String> = strings(&object["spec"][field])
            .into_iter()
            .map(str::to_owned)
            .collect();
        let then = strings(&old["spec"][field]);
        if policy == "SingleStack" {
            if now == then && now.len() > 1 {
                set_texts(object, field, &[&now[0]]);
            }
        } else if !now.is_empty() && now.len() < then.len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid(
                &path.child("ipFamilyPolicy"),
                Bad::Json(policy.into()),
                detail,
            ));
        }
    }
}

fn complain_about_number(object: &Value, policy: &str, errors: &mut Complaints) {
    let path = Path::new("spec");
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if policy == "SingleStack" && object.items_at(&["spec", field]).len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            errors.push(FieldError::invalid(
                &path.child("ipFamilyPolicy"),
                Bad::Json(policy.into()),
                detail,
            ));
        }
    }
}

/// Derives families from addresses that were given without families.
fn add_families(object: &mut Value, ranges: &ServiceRanges, errors: &mut Complaints) {
    let spec = &object["spec"];
    let addresses = strings(&spec["clusterIPs"]);
    let mut families = strings(&spec["ipFamilies"]);
    let path = Path::new("spec");
    for (at, address) in addresses.iter().enumerate() {
        if *address == "None" {
            break;
        }
        if at < families.len() {
            continue;
        }
        let family = family_of(address);
        if has_range(ranges, family) {
            families.push(family);
            continue;
        }
        let bad = Bad::Json(spec["clusterIPs"].clone());
        let detail = format!("{family} is not configured on this cluster");
        errors.push(FieldError::invalid(
            &path.child("clusterIPs").index(at),
            bad,
            detail,
        ));
    }
    let families: Vec<String> = families.into_iter().map(str::to_owned).collect();
    let families: Vec<&str> = families.iter().map(String::as_str).collect();
    if !families.is_empty() {
        set_texts(object, "ipFamilies", &families);
    }
}

fn has_range(ranges: &ServiceRanges, family: &str) -> bool {
    ranges.iter().any(|range| range.family().name() == family)
}

fn complain_about_ranges(spec: &Value, policy: &str, ranges: &ServiceRanges) -> Complaints {
    let mut errors = Complaints::default();
    let path = Path::new("spec");
    if policy == "RequireDualStack" && !ranges.are_dual() {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(
            &path.child("ipFamilyPolicy"),
            Bad::Json(policy.into()),
            detail,
        ));
    }
    for (at, family) in strings(&spec["ipFamilies"]).iter().enumerate() {
        if !has_range(ranges, family) {
            let bad = Bad::Json((*family).into());
            let detail = "not configured on this cluster";
            errors.push(FieldError::invalid(
                &path.child("ipFamilies").index(at),
                bad,
                detail,
            ));
        }
    }
    errors
}
