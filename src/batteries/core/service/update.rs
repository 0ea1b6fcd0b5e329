//! The checks of changes of a Service, and of the status of its load balancer.

use super::ip_families::{is_headless, needs_health_check};
use super::validation::validate_balancer_class;
use crate::shared::network::addresses;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, ip_sloppy};
use polyplane_registry::metadata::strings;

/// Validates a change of a Service beyond its content.
pub fn validate(object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let (spec, before) = (&object["spec"], &old["spec"]);
    let named = |spec: &Value| spec.str_at(&["type"]) == "ExternalName";
    if !named(spec) && !named(before) {
        validate_address_change(spec, before, &mut errors);
        validate_family_change(spec, before, &mut errors);
    }
    validate_balancer_class(spec, before, &mut errors);
    let port = |spec: &Value| spec.int_at(&["healthCheckNodePort"]).unwrap_or(0);
    if needs_health_check(spec) && needs_health_check(before) && port(spec) != port(before) {
        let path = Path::new("spec");
        errors.push(FieldError::forbidden(
            &path.child("healthCheckNodePort"),
            "field is immutable",
        ));
    }
    errors
}

fn not_single(spec: &Value, what: &str, errors: &mut Complaints) {
    let path = Path::new("spec");
    if spec.str_at(&["ipFamilyPolicy"]) != "SingleStack" {
        let bad = match &spec["ipFamilyPolicy"] {
            Value::Null => Bad::Plain(Value::Null),
            policy => Bad::Json(policy.clone()),
        };
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.push(FieldError::invalid(
            &path.child("ipFamilyPolicy"),
            bad,
            detail,
        ));
    }
}

fn validate_address_change(spec: &Value, before: &Value, errors: &mut Complaints) {
    if is_headless(spec) && is_headless(before) {
        return;
    }
    let (now, then) = (strings(&spec["clusterIPs"]), strings(&before["clusterIPs"]));
    let path = Path::new("spec");
    let place = path.child("clusterIPs");
    let shown = || Bad::Json(spec["clusterIPs"].clone());
    let mut changed = |at: usize| {
        errors.push(FieldError::invalid(
            &place.index(at),
            shown(),
            "may not change once set",
        ));
    };
    if now.len() == then.len() {
        (0..now.len())
            .filter(|at| now[*at] != then[*at])
            .for_each(&mut changed);
        return;
    }
    if let (Some(now), Some(then)) = (now.first(), then.first())
        && now != then
    {
        changed(0);
    }
    if now.is_empty() {
        let detail = "primary clusterIP can not be unset";
        errors.push(FieldError::invalid(&place.index(0), shown(), detail));
    }
    if then.len() > 1 && now.len() == 1 {
        not_single(spec, "clusterIP", errors);
    }
}

fn validate_family_change(spec: &Value, before: &Value, errors: &mut Complaints) {
    if is_headless(spec) || is_headless(before) {
        return;
    }
    let (now, then) = (strings(&spec["ipFamilies"]), strings(&before["ipFamilies"]));
    let path = Path::new("spec");
    let list = path.child("ipFamilies");
    let place = list.index(0);
    let detail = "may not change once set";
    if now.len() == then.len() {
        for _ in now.iter().zip(&then).filter(|(now, then)| now != then) {
            errors.push(FieldError::invalid(
                &place,
                Bad::Json(spec["ipFamilies"].clone()),
                detail,
            ));
        }
        return;
    }
    if now.len() < then.len() && spec.items_at(&["clusterIPs"]).is_empty() {
        let detail = "primary ipFamily can not be unset";
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(spec["ipFamilies"].clone()),
            detail,
        ));
    }
    if let (Some(now), Some(then)) = (now.first(), then.first())
        && now != then
    {
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(spec["clusterIPs"].clone()),
            detail,
        ));
    }
    if then.len() > now.len() && now.len() == 1 {
        not_single(spec, "ipFamily", errors);
    }
}

/// Validates the status of the load balancer of a Service.
pub fn validate_balancer(object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let status = Path::new("status");
    let balancer = status.child("loadBalancer");
    let list = balancer.child("ingress");
    let points = object.items_at(&["status", "loadBalancer", "ingress"]);
    if object.str_at(&["spec", "type"]) != "LoadBalancer" {
        if !points.is_empty() {
            let detail = "may only be used when `spec.type` is 'LoadBalancer'";
            errors.push(FieldError::forbidden(&list, detail));
        }
        return errors;
    }
    let before = old.items_at(&["status", "loadBalancer", "ingress"]).iter();
    let before: Vec<&str> = before.map(|point| point.str_at(&["ip"])).collect();
    for (at, point) in points.iter().enumerate() {
        validate_ingress(point, &before, &list.index(at), &mut errors);
    }
    errors
}

fn validate_ingress(point: &Value, before: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    let ip = point.str_at(&["ip"]);
    if !ip.is_empty() {
        errors.extend(addresses::validate_ip(&path.child("ip"), ip, before));
    }
    let modes = ["Proxy", "VIP"];
    let place = path.child("ipMode");
    match point["ipMode"].as_str() {
        None if !ip.is_empty() => {
            errors.push(FieldError::required(
                &place,
                "must be specified when `ip` is set",
            ));
        }
        None => {}
        Some(_) if ip.is_empty() => {
            errors.push(FieldError::forbidden(
                &place,
                "may not be specified when `ip` is not set",
            ));
        }
        Some(mode) if !modes.contains(&mode) => {
            errors.push(FieldError::not_supported(
                &place,
                Bad::Json(mode.into()),
                &modes,
            ));
        }
        Some(_) => {}
    }
    let hostname = point.str_at(&["hostname"]);
    if hostname.is_empty() {
        return;
    }
    for detail in names::dns1123_subdomain(hostname) {
        errors.push(FieldError::invalid(
            &path.child("hostname"),
            hostname,
            detail,
        ));
    }
    if ip_sloppy(hostname).is_some() {
        let detail = "must be a DNS name, not an IP address";
        errors.push(FieldError::invalid(
            &path.child("hostname"),
            hostname,
            detail,
        ));
    }
}
