//! The security properties of the chart: pods meet the restricted Pod Security Standard, metrics
//! have a token of their own, only replicas reach the peer port, names that look like numbers stay
//! text, and the base of the image is named by its digest.

use anyhow::{Context, Result, ensure};
use polyplane_tests::chart::{Chart, on_etcd};
use polyplane_tests::deployment::documents;
use serde_json::{Value, json};

use super::{each, list, rendered, text};

/// Kinds of volumes that the restricted standard allows.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Returns the violations of the restricted Pod Security Standard in a pod.
fn violations(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut demand = |holds: bool, what: String| {
        if !holds {
            found.push(what);
        }
    };
    for host in ["hostNetwork", "hostPID", "hostIPC", "hostProcess"] {
        demand(pod[host] != true, host.to_owned());
    }
    for volume in list(&pod["volumes"]) {
        let mut kinds = volume
            .as_object()
            .into_iter()
            .flatten()
            .map(|(kind, _)| kind);
        let allowed = |kind: &String| kind == "name" || VOLUMES.contains(&kind.as_str());
        demand(kinds.all(allowed), format!("the volume {volume}"));
    }
    let own = &pod["securityContext"];
    demand(list(&own["sysctls"]).is_empty(), "sysctls".to_owned());
    demand(
        own["windowsOptions"]["hostProcess"] != true,
        "hostProcess".to_owned(),
    );
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    for container in lists.iter().flat_map(|name| list(&pod[*name])) {
        let name = text(&container["name"]);
        let context = &container["securityContext"];
        // The container sets the field, or the pod sets it for all containers.
        let said = |field: &str| match &context[field] {
            Value::Null => own[field].clone(),
            value => value.clone(),
        };
        demand(
            said("runAsNonRoot") == true,
            format!("{name}: runAsNonRoot"),
        );
        demand(said("runAsUser") != 0, format!("{name}: runAsUser"));
        let profile = text(&said("seccompProfile")["type"]);
        let profiles = ["RuntimeDefault", "Localhost"];
        demand(
            profiles.contains(&profile.as_str()),
            format!("{name}: seccompProfile"),
        );
        demand(context["privileged"] != true, format!("{name}: privileged"));
        let escalates = &context["allowPrivilegeEscalation"];
        demand(
            *escalates == false,
            format!("{name}: allowPrivilegeEscalation"),
        );
        let capabilities = &context["capabilities"];
        demand(
            list(&capabilities["drop"]).contains(&json!("ALL")),
            format!("{name}: drop"),
        );
        let mut added = list(&capabilities["add"]).iter();
        demand(
            added.all(|one| one == "NET_BIND_SERVICE"),
            format!("{name}: add"),
        );
        let mount = text(&context["procMount"]);
        demand(
            mount.is_empty() || mount == "Default",
            format!("{name}: procMount"),
        );
        let profile = text(&said("appArmorProfile")["type"]);
        demand(profile != "Unconfined", format!("{name}: appArmorProfile"));
        let mut ports = list(&container["ports"]).iter();
        demand(
            ports.all(|port| port["hostPort"].is_null()),
            format!("{name}: hostPort"),
        );
    }
    found
}

#[test]
fn pods_are_admitted_where_pod_security_is_restricted() -> Result<()> {
    each(|rendered| {
        let pods = rendered.of_kind("Pod").map(|pod| &pod["spec"]);
        for pod in pods.chain([rendered.pod()?]) {
            let found = violations(pod);
            ensure!(found.is_empty(), "{found:?}");
            // Stricter than the standard: nothing can be written into the image.
            for container in list(&pod["containers"]) {
                ensure!(container["securityContext"]["readOnlyRootFilesystem"] == true);
            }
        }
        Ok(())
    })
}

/// Labels of pods switch a mesh or an exemption on, which the test of the release needs as well.
#[test]
fn labels_and_annotations_of_pods_are_on_every_pod() -> Result<()> {
    each(|rendered| {
        let deployment = rendered.of_kind("Deployment").next();
        let template = &deployment.context("no Deployment")?["spec"]["template"];
        for pod in rendered.of_kind("Pod").chain([template]) {
            for (value, part) in [("podLabels", "labels"), ("podAnnotations", "annotations")] {
                let wanted = rendered.values[value].as_object().into_iter().flatten();
                for (key, text) in wanted {
                    ensure!(pod["metadata"][part][key] == *text, "{part}: no {key}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn each_rule_of_the_standard_can_be_broken() -> Result<()> {
    let pod = rendered().first().context("no combination")?.pod()?.clone();
    ensure!(violations(&pod).is_empty());
    for (path, broken) in [
        ("/hostNetwork", json!(true)),
        (
            "/volumes",
            json!([{"name": "host", "hostPath": {"path": "/"}}]),
        ),
        (
            "/securityContext/seccompProfile",
            json!({"type": "Unconfined"}),
        ),
        ("/containers/0/securityContext/runAsNonRoot", json!(false)),
        ("/containers/0/securityContext/runAsUser", json!(0)),
        ("/containers/0/securityContext/privileged", json!(true)),
        (
            "/containers/0/securityContext/allowPrivilegeEscalation",
            Value::Null,
        ),
        (
            "/containers/0/securityContext/capabilities",
            json!({"drop": ["NET_RAW"]}),
        ),
        (
            "/containers/0/securityContext/capabilities",
            json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        ),
        (
            "/containers/0/ports",
            json!([{"containerPort": 6443, "hostPort": 6443}]),
        ),
    ] {
        let mut worse = pod.clone();
        let (parent, field) = path.rsplit_once('/').context("a path")?;
        let parent = worse.pointer_mut(parent).context("no such part")?;
        parent[field] = broken;
        ensure!(
            violations(&worse).len() == 1,
            "{path}: {:?}",
            violations(&worse)
        );
    }
    Ok(())
}

#[test]
fn metrics_have_a_token_of_their_own() -> Result<()> {
    each(|rendered| {
        let container = &rendered.deployment.container;
        let flag = "--metrics-token-file=/metrics-token/token";
        ensure!(
            container.args.iter().any(|argument| argument == flag),
            "no {flag}"
        );
        let volumes = list(&rendered.pod()?["volumes"]);
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == "metrics-token");
        let source = &volume.context("no volume")?["projected"]["sources"][0]["secret"];
        ensure!(source["items"][0]["path"] == "token", "{source}");
        for monitor in rendered.of_kind("ServiceMonitor") {
            let endpoint = &monitor["spec"]["endpoints"][0];
            let credentials = &endpoint["authorization"]["credentials"];
            ensure!(credentials["name"] == source["name"], "{credentials}");
            ensure!(
                credentials["key"] == source["items"][0]["key"],
                "{credentials}"
            );
            // Prometheus must not read the administrator's token.
            ensure!(!monitor.to_string().contains("admin.token"), "{monitor}");
        }
        Ok(())
    })
}

#[test]
fn only_replicas_reach_the_peer_port() -> Result<()> {
    each(|rendered| {
        let values = &rendered.values["networkPolicy"];
        let Some(policy) = rendered.of_kind("NetworkPolicy").next() else {
            ensure!(
                values["peers"] == false && values["enabled"] == false,
                "no policy"
            );
            return Ok(());
        };
        let rules = list(&policy["spec"]["ingress"]);
        let names_peer = |rule: &&Value| {
            list(&rule["ports"])
                .iter()
                .any(|port| port["port"] == "peer")
        };
        let peers: Vec<&Value> = rules.iter().filter(names_peer).collect();
        ensure!(peers.len() == 1, "{peers:?}");
        let from = list(&peers[0]["from"]);
        ensure!(
            from.len() == 1 && from[0]["podSelector"]["matchLabels"].is_object(),
            "{from:?}"
        );
        let labels = &from[0]["podSelector"]["matchLabels"];
        ensure!(
            labels["app.kubernetes.io/component"] == "replica",
            "{labels}"
        );
        // In a ring with one release per zone, peers belong to other releases.
        let spans = rendered.values["zone"]["source"] == "fixed";
        ensure!(
            labels["app.kubernetes.io/instance"].is_null() == spans,
            "{labels}"
        );
        ensure!(
            rules.iter().all(|rule| !list(&rule["ports"]).is_empty()),
            "a rule for all ports"
        );
        let restricts = values["enabled"] == true && values["egress"]["enabled"] == true;
        ensure!(policy["spec"]["egress"].is_array() == restricts);
        Ok(())
    })
}

/// Collects all values that must be text in a manifest and are not.
fn not_text(value: &Value, path: &str, found: &mut Vec<String>) {
    const TEXTS: [&str; 8] = [
        "name",
        "namespace",
        "key",
        "secretName",
        "serviceAccountName",
        "serverName",
        "priorityClassName",
        "runtimeClassName",
    ];
    const MAPS: [&str; 3] = ["labels", "matchLabels", "annotations"];
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}/{name}");
                if TEXTS.contains(&name.as_str()) && !value.is_string() {
                    found.push(path.clone());
                }
                if MAPS.contains(&name.as_str()) {
                    let texts = value.as_object().into_iter().flatten();
                    let wrong = texts.filter(|(_, text)| !text.is_string());
                    found.extend(wrong.map(|(label, _)| format!("{path}/{label}")));
                }
                not_text(value, &path, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| not_text(item, path, found)),
        _ => {}
    }
}

#[test]
fn names_that_look_like_numbers_or_booleans_stay_text() -> Result<()> {
    let chart = Chart::find()?;
    let path = Chart::path();
    let base = on_etcd(&["etcd:2379"]);
    for more in [
        json!({"fullnameOverride": "null", "nameOverride": "true", "priorityClassName": "5"}),
        json!({"nameOverride": "off", "certificates": {"mode": "certManager"}}),
        json!({
            "fullnameOverride": "y", "runtimeClassName": "1e3",
            "certificates": {"mode": "secret", "existingSecret": "123"},
            "metrics": {"existingSecret": "0x1", "tokenKey": "7"},
            "autoscaling": {"enabled": true}, "networkPolicy": {"enabled": true},
        }),
    ] {
        let values = polyplane_tests::chart::over(&base, &more);
        let values =
            polyplane_tests::chart::over(&values, &json!({"serviceMonitor": {"enabled": true}}));
        let arguments = ["template", "123", &path.to_string_lossy()];
        let output = chart.run(&arguments, &values)?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut found = Vec::new();
        for object in documents(&String::from_utf8(output.stdout)?)? {
            not_text(&object, &text(&object["kind"]), &mut found);
        }
        ensure!(found.is_empty(), "{more}: {found:?}");
    }
    Ok(())
}

#[test]
fn the_image_is_built_on_an_image_named_by_its_digest() -> Result<()> {
    let recipe = std::fs::read_to_string(Chart::path().join("../Containerfile"))?;
    let bases = recipe.lines().filter_map(|line| line.strip_prefix("FROM "));
    for base in bases.filter(|base| *base != "scratch") {
        let name = base.split_whitespace().next().unwrap_or_default();
        let (_, digest) = name
            .split_once("@sha256:")
            .with_context(|| format!("{base} has no digest"))?;
        ensure!(
            digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()),
            "{digest}"
        );
    }
    Ok(())
}
