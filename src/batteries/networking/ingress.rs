//! Ingresses: hosts, paths and the backends they lead to.

use super::ingress_class::validate_reference;
use crate::shared::network::addresses::{ip_warnings, validate_ip};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];

/// Behaviour of Ingresses.
#[derive(Debug)]
pub struct Ingress;

/// Invalid values that an update may keep because they were stored before.
#[derive(Clone, Copy, Debug, Default)]
struct Leniency {
    secret_names: bool,
    wildcard_rules: bool,
}

/// A check of the names of services.
type ServiceNames = fn(&str) -> Vec<String>;

impl Strategy for Ingress {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"], Leniency::default());
        let annotation = object["metadata"]["annotations"][CLASS_ANNOTATION].as_str();
        let class = object["spec"]["ingressClassName"].as_str();
        if let (Some(annotation), Some(class)) = (annotation, class)
            && annotation != class
        {
            let path = Path::new("annotations");
            let detail = "must match `ingressClassName` when both are specified";
            errors.push(FieldError::invalid(
                &path.child(CLASS_ANNOTATION),
                annotation,
                detail,
            ));
        }
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(object_metadata::validate(
            object,
            Scope::Namespaced,
            NameRule::DnsSubdomain,
        ));
        validate_spec(&mut errors, &object["spec"], leniency(&old["spec"]));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate_status(&mut errors, object, old);
        errors
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        keep_spec(object, old);
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        if context.subresource == "status" {
            let (status, mut warnings) = (Path::new("status"), Vec::new());
            let balancer = status.child("loadBalancer");
            let list = balancer.child("ingress");
            for (at, point) in object
                .items_at(&["status", "loadBalancer", "ingress"])
                .iter()
                .enumerate()
            {
                let address = point.str_at(&["ip"]);
                if !address.is_empty() {
                    warnings.extend(ip_warnings(&list.index(at), address));
                }
            }
            return warnings;
        }
        let annotated = present(&object["metadata"]["annotations"][CLASS_ANNOTATION]);
        if old.is_none() && annotated && object["spec"]["ingressClassName"].is_null() {
            return vec![format!(
                "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
            )];
        }
        Vec::new()
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let class = object["spec"]["ingressClassName"]
            .as_str()
            .unwrap_or("<none>");
        let tls = !object.items_at(&["spec", "tls"]).is_empty();
        vec![
            name_cell(object),
            class.into(),
            hosts(object.items_at(&["spec", "rules"])).into(),
            balancer_addresses(object).into(),
            if tls { "80, 443" } else { "80" }.into(),
            age_cell(object, now),
        ]
    }
}

/// Keeps the spec in a write to the status subresource; metadata may change.
pub fn keep_spec(object: &mut Value, old: &Value) {
    match old.get("spec") {
        Some(spec) => object.set(&["spec"], spec.clone()),
        None => drop(object.remove(&["spec"])),
    }
}

/// Returns the hosts of the rules, at most three.
fn hosts(rules: &[Value]) -> String {
    const SHOWN_MAX: usize = 3;
    let (mut list, mut more) = (Vec::new(), false);
    for rule in rules {
        let host = rule.str_at(&["host"]);
        more |= list.len() == SHOWN_MAX;
        if !more && !host.is_empty() {
            list.push(host);
        }
    }
    let text = list.join(",");
    match (text.as_str(), more) {
        ("", false) => "*".to_owned(),
        (text, true) => format!("{text} + {} more...", rules.len() - SHOWN_MAX),
        (text, false) => text.to_owned(),
    }
}

/// Returns the addresses at which a load balancer is reached.
fn balancer_addresses(object: &Value) -> String {
    let points = object
        .items_at(&["status", "loadBalancer", "ingress"])
        .iter();
    let addresses: BTreeSet<&str> = points
        .map(|point| match point.str_at(&["ip"]) {
            "" => point.str_at(&["hostname"]),
            address => address,
        })
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}

fn leniency(old: &Value) -> Leniency {
    let bad_secret = |tls: &Value| {
        let name = tls.str_at(&["secretName"]);
        !name.is_empty() && !names::dns1123_subdomain(name).is_empty()
    };
    let bad_wildcard = |rule: &Value| {
        let mut errors = Complaints::default();
        if rule.str_at(&["host"]).contains('*') {
            validate_rule_value(&mut errors, rule, &Path::NIL, names::dns1035_label);
        }
        !errors.is_empty()
    };
    Leniency {
        secret_names: old.items_at(&["tls"]).iter().any(bad_secret),
        wildcard_rules: old.items_at(&["rules"]).iter().any(bad_wildcard),
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value, lenient: Leniency) {
    let path = Path::new("spec");
    let rules = spec.items_at(&["rules"]);
    if rules.is_empty() && spec["defaultBackend"].is_null() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(
            &path,
            Bad::Json(spec["rules"].clone()),
            detail,
        ));
    }
    if present(&spec["defaultBackend"]) {
        let place = path.child("defaultBackend");
        validate_backend(
            errors,
            &spec["defaultBackend"],
            &place,
            names::dns1123_label,
        );
    }
    for (at, rule) in rules.iter().enumerate() {
        validate_rule(errors, rule, &path.child("rules").index(at), lenient);
    }
    for (at, tls) in spec.items_at(&["tls"]).iter().enumerate() {
        let list = path.child("tls");
        let place = list.index(at);
        for (at, host) in texts(&tls["hosts"]).into_iter().enumerate() {
            complain(
                errors,
                &place.child("hosts").index(at),
                host,
                host_complaints(host),
            );
        }
        let secret = tls.str_at(&["secretName"]);
        if !lenient.secret_names && !secret.is_empty() {
            complain(
                errors,
                &place.child("secretName"),
                secret,
                names::dns1123_subdomain(secret),
            );
        }
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        complain(
            errors,
            &path.child("ingressClassName"),
            class,
            names::dns1123_subdomain(class),
        );
    }
}

fn host_complaints(host: &str) -> Vec<String> {
    if host.contains('*') {
        names::wildcard_dns1123_subdomain(host)
    } else {
        names::dns1123_subdomain(host)
    }
}

fn validate_rule(errors: &mut Complaints, rule: &Value, path: &Path<'_>, lenient: Leniency) {
    let host = rule.str_at(&["host"]);
    if !host.is_empty() {
        if names::ip_sloppy(host).is_some() {
            let detail = "must be a DNS name, not an IP address";
            errors.push(FieldError::invalid(&path.child("host"), host, detail));
        }
        complain(errors, &path.child("host"), host, host_complaints(host));
    }
    if !(host.contains('*') && lenient.wildcard_rules) {
        validate_rule_value(errors, rule, path, names::dns1123_label);
    }
}

fn validate_rule_value(
    errors: &mut Complaints,
    rule: &Value,
    path: &Path<'_>,
    services: ServiceNames,
) {
    if rule["http"].is_null() {
        return;
    }
    let http = path.child("http");
    let list = http.child("paths");
    let paths = rule.items_at(&["http", "paths"]);
    if paths.is_empty() {
        errors.push(FieldError::required(&list, ""));
    }
    for (at, item) in paths.iter().enumerate() {
        validate_path(errors, item, &list.index(at), services);
    }
}

fn validate_path(errors: &mut Complaints, item: &Value, path: &Path<'_>, services: ServiceNames) {
    let place = path.child("path");
    let text = item.str_at(&["path"]);
    let Some(kind) = item["pathType"].as_str() else {
        errors.push(FieldError::required(
            &path.child("pathType"),
            "pathType must be specified",
        ));
        return;
    };
    let mut invalid = |detail: String| errors.push(FieldError::invalid(&place, text, detail));
    match kind {
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                invalid("must be an absolute path".to_owned());
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"]
                .iter()
                .filter(|part| text.contains(**part))
            {
                invalid(format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].iter().filter(|end| text.ends_with(**end)) {
                invalid(format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                invalid("must be an absolute path".to_owned());
            }
        }
        other => errors.push(FieldError::not_supported(
            &path.child("pathType"),
            named(other),
            &PATH_TYPES,
        )),
    }
    validate_backend(errors, &item["backend"], &path.child("backend"), services);
}

fn validate_backend(
    errors: &mut Complaints,
    backend: &Value,
    path: &Path<'_>,
    services: ServiceNames,
) {
    match (present(&backend["resource"]), present(&backend["service"])) {
        (true, true) => {
            let detail = "cannot set both resource and service backends";
            errors.push(FieldError::invalid(path, "", detail));
        }
        (true, false) => validate_reference(errors, &backend["resource"], &path.child("resource")),
        (false, true) => validate_service(errors, &backend["service"], path, services),
        (false, false) => {
            errors.push(FieldError::invalid(
                path,
                "",
                "resource or service backend is required",
            ));
        }
    }
}

fn validate_service(
    errors: &mut Complaints,
    service: &Value,
    path: &Path<'_>,
    services: ServiceNames,
) {
    let place = path.child("service");
    let name = service.str_at(&["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&place.child("name"), ""));
    } else {
        complain(errors, &place.child("name"), name, services(name));
    }
    let port = place.child("port");
    let (name, number) = (
        service.str_at(&["port", "name"]),
        service.int_at(&["port", "number"]).unwrap_or(0),
    );
    match (name, number) {
        ("", 0) => errors.push(FieldError::required(
            path,
            "port name or number is required",
        )),
        ("", number) => {
            for detail in names::port_number(number) {
                errors.push(FieldError::invalid(&port.child("number"), number, detail));
            }
        }
        (name, 0) => complain(errors, &port.child("name"), name, names::port_name(name)),
        _ => errors.push(FieldError::invalid(
            path,
            "",
            "cannot set both port name & port number",
        )),
    }
}

fn validate_status(errors: &mut Complaints, object: &Value, old: &Value) {
    let points = |object: &'_ Value| {
        object
            .items_at(&["status", "loadBalancer", "ingress"])
            .to_vec()
    };
    let before = points(old);
    let before: Vec<&str> = before
        .iter()
        .map(|point| point.str_at(&["ip"]))
        .filter(|ip| !ip.is_empty())
        .collect();
    let status = Path::new("status");
    let balancer = status.child("loadBalancer");
    let list = balancer.child("ingress");
    for (at, point) in points(object).iter().enumerate() {
        let path = list.index(at);
        let (address, host) = (point.str_at(&["ip"]), point.str_at(&["hostname"]));
        if !address.is_empty() {
            errors.extend(validate_ip(&path.child("ip"), address, &before));
        }
        if !host.is_empty() {
            complain(
                errors,
                &path.child("hostname"),
                host,
                names::dns1123_subdomain(host),
            );
            if names::ip_sloppy(host).is_some() {
                let detail = "must be a DNS name, not an IP address";
                errors.push(FieldError::invalid(&path.child("hostname"), host, detail));
            }
        }
    }
}
