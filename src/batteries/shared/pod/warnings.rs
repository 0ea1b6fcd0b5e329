//! Warnings for clients about pods and pod templates that are accepted but unusual.

mod overlaps;
mod ports;

use super::validation::annotations::{
    APP_ARMOR, APP_ARMOR_IS_DEPRECATED, SECCOMP_CONTAINER, app_armor_profile, has_prefixed,
};
use super::validation::{Subject, each_container};
use crate::shared::network::addresses::ip_warnings;
use crate::shared::node_selector::{deprecated_label, term_warnings};
use crate::shared::resource_names::amount;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::names;
use polyplane_apimachinery::quote::quote;
use std::collections::BTreeSet;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const USE_SECCOMP_FIELD: &str =
    r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Annotations that have no effect any more.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];

/// Volumes that were removed or are deprecated: the field, its name in the warning, and the text.
const OLD_VOLUMES: [(&str, &str, &str); 9] = [
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "flocker",
        "flocker",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "quobyte",
        "quobyte",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];

/// Returns warnings about a pod.
pub fn pod(pod: &Value) -> Vec<String> {
    warnings(pod, &Path::NIL, Subject::Pod)
}

/// Returns warnings about the template at `path`.
pub fn template(template: &Value, path: &Path<'_>) -> Vec<String> {
    if template.is_null() {
        Vec::new()
    } else {
        warnings(template, path, Subject::Template)
    }
}

fn warnings(owner: &Value, root: &Path<'_>, subject: Subject) -> Vec<String> {
    let mut out = Vec::new();
    let (metadata, path) = (root.child("metadata"), root.child("spec"));
    let (annotations, spec) = (&owner["metadata"]["annotations"], &owner["spec"]);
    let annotations_path = metadata.child("annotations");
    about_nodes(spec, &path, &mut out);
    for (key, text) in OLD_ANNOTATIONS {
        if annotations.get(key).is_some() {
            out.push(format!("{}: {text}", annotations_path.key(key)));
        }
    }
    about_volumes(
        spec.items_at(&["volumes"]),
        &path.child("volumes"),
        &mut out,
    );
    overlaps::warnings(spec.items_at(&["volumes"]), &mut out);
    about_lists(spec, &path, &mut out);
    about_bytes(&spec["overhead"], &path.child("overhead"), &mut out);
    if spec["securityContext"]["seccompProfile"].is_null() && annotations.get(SECCOMP_POD).is_some()
    {
        out.push(format!(
            "{}: {USE_SECCOMP_FIELD}",
            annotations_path.key(SECCOMP_POD)
        ));
    }
    let of_pod = &spec["securityContext"]["appArmorProfile"];
    let have_profiles =
        has_prefixed(annotations, SECCOMP_CONTAINER) || has_prefixed(annotations, APP_ARMOR);
    each_container(spec, &path, |container, path| {
        if have_profiles {
            about_profiles(
                container,
                annotations,
                of_pod,
                subject,
                &annotations_path,
                &mut out,
            );
        }
        let resources = path.child("resources");
        for name in ["memory", "ephemeral-storage"] {
            for list in ["limits", "requests"] {
                about_whole_bytes(
                    &container["resources"][list],
                    name,
                    &resources.child(list),
                    &mut out,
                );
            }
        }
        about_variables(container.items_at(&["env"]), &path.child("env"), &mut out);
    });
    ports::warnings(spec, &path, &mut out);
    let grace = "terminationGracePeriodSeconds";
    if spec.int_at(&[grace]).is_some_and(|seconds| seconds < 0) {
        let text = "must be >= 0; negative values are invalid and will be treated as 1";
        out.push(format!("{}: {text}", path.child(grace)));
    }
    about_pod_affinity(&spec["affinity"], &path.child("affinity"), &mut out);
    about_addresses(spec, &path, &mut out);
    out
}

fn about_nodes(spec: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let selector = path.child("nodeSelector");
    for key in spec["nodeSelector"]
        .as_object()
        .into_iter()
        .flat_map(|labels| labels.keys())
    {
        if let Some(text) = deprecated_label(key) {
            out.push(format!("{}: {text}", selector.key(key)));
        }
    }
    let affinity = path.child("affinity");
    let nodes_path = affinity.child("nodeAffinity");
    let nodes = &spec["affinity"]["nodeAffinity"];
    let required = nodes_path.child(REQUIRED);
    let terms = required.child("nodeSelectorTerms");
    for (at, term) in nodes
        .items_at(&[REQUIRED, "nodeSelectorTerms"])
        .iter()
        .enumerate()
    {
        out.extend(term_warnings(term, &terms.index(at)));
    }
    let preferred = nodes_path.child(PREFERRED);
    for (at, weighted) in nodes.items_at(&[PREFERRED]).iter().enumerate() {
        let place = preferred.index(at);
        about_preference(&weighted["preference"], &place.child("preference"), out);
    }
    let constraints = path.child("topologySpreadConstraints");
    for (at, constraint) in spec
        .items_at(&["topologySpreadConstraints"])
        .iter()
        .enumerate()
    {
        let path = constraints.index(at);
        let key = constraint.str_at(&["topologyKey"]);
        if let Some(text) = deprecated_label(key) {
            out.push(format!("{}: {key} is {text}", path.child("topologyKey")));
        }
        if constraint["labelSelector"].is_null() {
            out.push(format!("{}: {NO_SELECTOR}", path.child("labelSelector")));
        }
    }
}

/// Adds warnings about a preferred term, whose values are not validated.
fn about_preference(term: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let expressions = path.child("matchExpressions");
    for (at, expression) in term.items_at(&["matchExpressions"]).iter().enumerate() {
        let path = expressions.index(at);
        let key = expression.str_at(&["key"]);
        if let Some(text) = deprecated_label(key) {
            out.push(format!("{}: {key} is {text}", path.child("key")));
        }
        let values = path.child("values");
        for (at, value) in expression.items_at(&["values"]).iter().enumerate() {
            let value = value.as_str().unwrap_or("");
            for complaint in names::label_value(value) {
                let place = values.index(at);
                out.push(format!("{place}: {value} is invalid, {complaint}"));
            }
        }
    }
}

fn about_volumes(volumes: &[Value], path: &Path<'_>, out: &mut Vec<String>) {
    for (at, volume) in volumes.iter().enumerate() {
        let path = path.index(at);
        for (field, shown, text) in &OLD_VOLUMES[..7] {
            if !volume[*field].is_null() {
                out.push(format!("{}: {text}", path.child(shown)));
            }
        }
        let resources = &volume["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"];
        let place = path.child("ephemeral.volumeClaimTemplate.spec.resources");
        for list in ["requests", "limits"] {
            about_whole_bytes(&resources[list], "storage", &place.child(list), out);
        }
        for (field, shown, text) in &OLD_VOLUMES[7..] {
            if !volume[*field].is_null() {
                out.push(format!("{}: {text}", path.child(shown)));
            }
        }
    }
}

fn about_lists(spec: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    for (list, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let list_path = path.child(list);
        let mut seen = BTreeSet::new();
        for (at, item) in spec.items_at(&[list]).iter().enumerate() {
            let text = item.str_at(&[field]);
            if !seen.insert(text) {
                out.push(format!(
                    "{}: duplicate {field} {}",
                    list_path.index(at).child(field),
                    quote(text)
                ));
            }
        }
    }
    let secrets = path.child("imagePullSecrets");
    for (at, secret) in spec.items_at(&["imagePullSecrets"]).iter().enumerate() {
        if secret.str_at(&["name"]).is_empty() {
            out.push(format!(
                "{}: invalid empty name \"\"",
                secrets.index(at).child("name")
            ));
        }
    }
}

fn about_bytes(list: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        about_whole_bytes(list, name, path, out);
    }
}

fn about_whole_bytes(list: &Value, name: &str, path: &Path<'_>, out: &mut Vec<String>) {
    let Some(value) = list.get(name) else { return };
    let bytes = amount(Some(value));
    if bytes.milli_value() % 1000 != 0 {
        let text = quote(&bytes.to_string());
        out.push(format!(
            "{}: fractional byte value {text} is invalid, must be an integer",
            path.key(name)
        ));
    }
}

fn about_profiles(
    container: &Value,
    annotations: &Value,
    of_pod: &Value,
    subject: Subject,
    path: &Path<'_>,
    out: &mut Vec<String>,
) {
    let (name, context) = (container.str_at(&["name"]), &container["securityContext"]);
    let key = format!("{SECCOMP_CONTAINER}{name}");
    if context["seccompProfile"].is_null() && annotations.get(&key).is_some() {
        out.push(format!("{}: {USE_SECCOMP_FIELD}", path.key(&key)));
    }
    if subject == Subject::Pod {
        // The fields of a pod are set from these annotations, which warns of them.
        return;
    }
    let key = format!("{APP_ARMOR}{name}");
    let Some(text) = annotations.get(&key).and_then(Value::as_str) else {
        return;
    };
    let is_of_pod = app_armor_profile(text).as_ref() == Some(of_pod);
    if context["appArmorProfile"].is_null() && !is_of_pod {
        out.push(format!("{}: {APP_ARMOR_IS_DEPRECATED}", path.key(&key)));
    }
}

fn about_variables(variables: &[Value], path: &Path<'_>, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (at, variable) in variables.iter().enumerate() {
        let name = variable.str_at(&["name"]);
        if seen.insert(name) {
            continue;
        }
        // Appending to the earlier value is a common practice that works.
        let (value, reference) = (variable.str_at(&["value"]), format!("$({name})"));
        let appends = value != reference && value.contains(&reference);
        if !variable["valueFrom"].is_null() || !appends {
            let name = quote(name);
            let place = path.index(at);
            out.push(format!("{place}: hides previous definition of {name}, which may be dropped when using apply"));
        }
    }
}

fn about_pod_affinity(affinity: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    for field in ["podAffinity", "podAntiAffinity"] {
        let field_path = path.child(field);
        for (list, inner) in [(REQUIRED, ""), (PREFERRED, "podAffinityTerm")] {
            let list_path = field_path.child(list);
            for (at, item) in affinity.items_at(&[field, list]).iter().enumerate() {
                let place = list_path.index(at);
                if inner.is_empty() && item["labelSelector"].is_null() {
                    out.push(format!("{}: {NO_SELECTOR}", place.child("labelSelector")));
                } else if !inner.is_empty() && item[inner]["labelSelector"].is_null() {
                    out.push(format!(
                        "{}: {NO_SELECTOR}",
                        place.child(inner).child("labelSelector")
                    ));
                }
            }
        }
    }
}

fn about_addresses(spec: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let config = path.child("dnsConfig");
    let servers = config.child("nameservers");
    for (at, server) in spec
        .items_at(&["dnsConfig", "nameservers"])
        .iter()
        .enumerate()
    {
        out.extend(ip_warnings(
            &servers.index(at),
            server.as_str().unwrap_or(""),
        ));
    }
    let aliases = path.child("hostAliases");
    for (at, alias) in spec.items_at(&["hostAliases"]).iter().enumerate() {
        out.extend(ip_warnings(
            &aliases.index(at).child("ip"),
            alias.str_at(&["ip"]),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn odd_templates_are_told_about() {
        let given = json!({
            "metadata": {"annotations": {"scheduler.alpha.kubernetes.io/critical-pod": ""}},
            "spec": {
                "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "volumes": [{"name": "v", "rbd": {}}, {"name": "c", "configMap": {"name": "m", "items": [
                    {"key": "a", "path": "x/y"}, {"key": "b", "path": "x"},
                ]}}],
                "containers": [{
                    "name": "a",
                    "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A)3"}],
                    "resources": {"limits": {"memory": "100m"}},
                    "ports": [
                        {"name": "p", "containerPort": 80i64, "protocol": "TCP"},
                        {"name": "p", "containerPort": 80i64, "protocol": "TCP", "hostPort": 81i64},
                    ],
                }],
            },
        });
        let path = Path::new("spec");
        let wanted = [
            "spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.template.metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
            "spec.template.spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
            "volume \"c\" (ConfigMap \"m\"): overlapping paths: \"x\" with \"x/y\"",
            "spec.template.spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            "spec.template.spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.template.spec.containers[0].ports[1]: overlapping port definition with spec.template.spec.containers[0].ports[0]",
            "spec.template.spec.containers[0].ports[1]: duplicate port name \"p\" with spec.template.spec.containers[0].ports[0], services and probes that select ports by name will use spec.template.spec.containers[0].ports[0]",
        ];
        assert_eq!(template(&given, &path.child("template")), wanted);
    }
}
