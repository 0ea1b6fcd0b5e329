//! The consistency of every manifest of the matrix. There are no recorded manifests: each test
//! states what must hold, whatever the chart looks like.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyplane_tests::chart::{NAMESPACE, RELEASE};
use polyplane_tests::deployment::{Amount, Check, Deployment, Hook, Source, Volume};
use serde_json::{Map, Value, json};

use super::{Rendered, each, list, text};

impl Rendered {
    /// Returns the names of the Secrets that will exist, with their keys; `None` where only the
    /// cluster knows the keys.
    fn secrets(&self) -> BTreeMap<String, Option<BTreeSet<String>>> {
        let mut secrets = BTreeMap::new();
        for secret in self.of_kind("Secret") {
            let keys = secret["data"].as_object().into_iter().flatten();
            let keys = keys.map(|(key, _)| key.clone()).collect();
            secrets.insert(text(&secret["metadata"]["name"]), Some(keys));
        }
        for certificate in self.of_kind("Certificate") {
            let keys = ["ca.crt", "tls.crt", "tls.key"].map(str::to_owned);
            secrets.insert(
                text(&certificate["spec"]["secretName"]),
                Some(keys.into_iter().collect()),
            );
        }
        for given in self.combination.given_secrets {
            secrets.insert((*given).to_owned(), None);
        }
        secrets
    }
}

/// Returns whether labels match a selector. An empty selector matches nothing here.
fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let wanted = selector.as_object().into_iter().flatten();
    let mut wanted = wanted.peekable();
    wanted.peek().is_some()
        && wanted.all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
}

#[test]
fn either_the_deployment_or_the_autoscaler_says_how_many_replicas() -> Result<()> {
    each(|rendered| {
        let autoscaling = &rendered.values["autoscaling"];
        let mut autoscalers = rendered.of_kind("HorizontalPodAutoscaler");
        if autoscaling["enabled"] == true {
            ensure!(rendered.deployment.replicas.is_none(), "both say it");
            let spec = &autoscalers.next().context("no autoscaler")?["spec"];
            ensure!(spec["scaleTargetRef"]["name"] == *rendered.deployment.name);
            ensure!(spec["minReplicas"] == autoscaling["minReplicas"]);
            ensure!(!list(&spec["metrics"]).is_empty(), "no metric");
        } else {
            let replicas = rendered.deployment.replicas.map(Value::from);
            ensure!(replicas.as_ref() == Some(&rendered.values["replicas"]));
            ensure!(autoscalers.next().is_none(), "an autoscaler");
        }
        Ok(())
    })
}

#[test]
fn a_replica_has_time_to_drain_before_it_is_killed() -> Result<()> {
    each(|rendered| {
        let deployment = &rendered.deployment;
        let grace = rendered.values["server"]["graceSeconds"].as_u64();
        let grace = Duration::from_secs(grace.context("no grace")?);
        ensure!(deployment.termination_grace > grace);
        if rendered.values["terminationGracePeriodSeconds"].is_null() {
            ensure!(deployment.termination_grace >= 2 * grace);
        }
        let Some(Hook::Exec(words)) = &deployment.container.pre_stop else {
            bail!("no command before SIGTERM");
        };
        ensure!(words[..2] == ["/polyplane", "drain"], "{words:?}");
        ensure!(
            words.contains(&format!("--timeout={}", grace.as_secs())),
            "{words:?}"
        );
        let argument = format!("--grace={}", grace.as_secs());
        let notice = rendered.values["server"]["drainNoticeSeconds"].as_u64();
        let notice = format!("--drain-notice={}", notice.context("no notice")?);
        for argument in [argument, notice] {
            ensure!(
                deployment.container.args.contains(&argument),
                "no {argument}"
            );
        }
        Ok(())
    })
}

/// Returns what the program is given for a flag.
fn of_flag(rendered: &Rendered, flag: &str) -> Option<String> {
    let flag = format!("{flag}=");
    let mut found = rendered.deployment.container.args.iter();
    found.find_map(|one| one.strip_prefix(&flag).map(str::to_owned))
}

/// The files of these flags are ConfigMaps of the chart, and a change of one replaces the pods.
#[test]
fn configurations_are_where_their_flags_say() -> Result<()> {
    for (part, flag, kind) in [
        (
            "authentication",
            "--authentication-config",
            "AuthenticationConfiguration",
        ),
        (
            "admission",
            "--admission-control-config-file",
            "AdmissionConfiguration",
        ),
    ] {
        let with_one = std::cell::Cell::new(0);
        each(|rendered| {
            let config = rendered.values[part]["config"].as_object();
            let config = config.filter(|one| !one.is_empty());
            with_one.set(with_one.get() + usize::from(config.is_some()));
            check_configuration(rendered, part, flag, (kind, config))
        })?;
        ensure!(with_one.get() > 0, "no combination has one of {part}");
    }
    Ok(())
}

fn check_configuration(
    rendered: &Rendered,
    part: &str,
    flag: &str,
    (kind, config): (&str, Option<&Map<String, Value>>),
) -> Result<()> {
    let pod = rendered.pod()?;
    let is_named = |one: &&Value| one["name"] == part;
    let volume = list(&pod["volumes"]).iter().find(is_named);
    let map = rendered.one("ConfigMap", &format!("-{part}"));
    let given = of_flag(rendered, flag);
    let Some(config) = config else {
        ensure!(given.is_none() && volume.is_none());
        ensure!(map.is_err(), "a ConfigMap without a use");
        return Ok(());
    };
    let map = map?;
    let volume = volume.context("no volume")?;
    ensure!(
        volume["configMap"]["name"] == map["metadata"]["name"],
        "{volume}"
    );
    let mounts = list(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(is_named).context("no mount")?;
    ensure!(mount["readOnly"] == true, "{mount}");
    let file = format!("{}/config.yaml", text(&mount["mountPath"]));
    ensure!(given == Some(file));
    let written: Value = serde_saphyr::from_str(&text(&map["data"]["config.yaml"]))?;
    let mut expected = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": kind});
    expected
        .as_object_mut()
        .context("an object")?
        .extend(config.clone());
    ensure!(written == expected, "{written}");
    let deployment = rendered.of_kind("Deployment").next().context("none")?;
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    let hash = format!("polyplane.dev/{part}-config");
    ensure!(annotations[hash].is_string());
    Ok(())
}

/// What control planes may name is what the values allow.
#[test]
fn hosts_beside_the_internet_are_those_of_the_values() -> Result<()> {
    each(|rendered| {
        let allowed = list(&rendered.values["authentication"]["outboundAllow"]);
        let allowed: Vec<String> = allowed.iter().map(text).collect();
        let allowed = (!allowed.is_empty()).then(|| allowed.join(","));
        let given = of_flag(rendered, "--outbound-allow");
        ensure!(given == allowed, "{given:?}");
        Ok(())
    })
}

/// What browsers get is what the values say, whatever characters an expression has.
#[test]
fn browsers_get_what_the_values_say() -> Result<()> {
    each(|rendered| {
        for (value, flag) in [
            ("hstsDirectives", "--strict-transport-security-directives"),
            ("corsAllowedOrigins", "--cors-allowed-origins"),
        ] {
            let items = list(&rendered.values["server"][value]);
            let items: Vec<String> = items.iter().map(text).collect();
            let expected = (!items.is_empty()).then(|| items.join(","));
            let given = of_flag(rendered, flag);
            ensure!(given == expected, "{flag}: {given:?}");
        }
        Ok(())
    })
}

/// The events go where the values say: lines of the pods, and a webhook whose kubeconfig is in a Secret.
#[test]
fn the_backends_of_the_audit_are_where_their_flags_say() -> Result<()> {
    let webhooks = std::cell::Cell::new(0);
    each(|rendered| {
        let values = &rendered.values["audit"];
        let arguments = &rendered.deployment.container.args;
        let of_flag = |flag: &str| {
            let flag = format!("--audit-{flag}=");
            let mut found = arguments.iter();
            found.find_map(|one| one.strip_prefix(&flag).map(str::to_owned))
        };
        let has_policy = values["policy"]
            .as_object()
            .is_some_and(|one| !one.is_empty());
        ensure!(of_flag("policy-file").is_some() == has_policy);
        let has_log = has_policy && values["log"]["enabled"] == true;
        ensure!(
            of_flag("log-path") == has_log.then(|| text(&values["log"]["path"])),
            "{arguments:?}"
        );
        let pod = rendered.pod()?;
        let is_named = |one: &&Value| one["name"] == "audit-webhook";
        let volume = list(&pod["volumes"]).iter().find(is_named);
        let webhook = &values["webhook"];
        let secret = text(&webhook["existingSecret"]);
        if secret.is_empty() {
            ensure!(of_flag("webhook-config-file").is_none() && volume.is_none());
            return Ok(());
        }
        webhooks.set(webhooks.get() + 1);
        let volume = volume.context("no volume")?;
        ensure!(
            volume["secret"]["secretName"] == secret.as_str(),
            "{volume}"
        );
        let mounts = list(&pod["containers"][0]["volumeMounts"]);
        let mount = mounts.iter().find(is_named).context("no mount")?;
        ensure!(mount["readOnly"] == true, "{mount}");
        let file = format!("{}/{}", text(&mount["mountPath"]), text(&webhook["key"]));
        ensure!(of_flag("webhook-config-file") == Some(file));
        ensure!(of_flag("webhook-mode") == Some(text(&webhook["mode"])));
        Ok(())
    })?;
    ensure!(webhooks.get() > 0, "no combination has a webhook");
    Ok(())
}

#[test]
fn an_update_takes_no_replica_away_before_its_successor_is_ready() -> Result<()> {
    each(|rendered| {
        let strategy = &rendered.deployment.strategy;
        if rendered.combination.values["rollingUpdate"].is_null() {
            ensure!(strategy.unavailable_max == Amount::Pods(0));
            ensure!(strategy.surge_max == Amount::Pods(1));
        }
        ensure!(strategy.unavailable_max.of(100, false) + strategy.surge_max.of(100, true) > 0);
        Ok(())
    })
}

#[test]
fn probes_ask_the_client_port_over_tls() -> Result<()> {
    each(|rendered| {
        let container = &rendered.deployment.container;
        let expected = [
            ("startup", "/livez"),
            ("liveness", "/livez"),
            ("readiness", "/readyz"),
        ];
        let probes: Vec<_> = container.probes().collect();
        ensure!(probes.len() == expected.len());
        for ((name, probe), (expected, path)) in probes.into_iter().zip(expected) {
            let port = *container.ports.get("https").context("no port https")?;
            let check = Check::Http {
                https: true,
                path: path.to_owned(),
                port,
            };
            ensure!(name == expected && probe.check == check, "{name}");
        }
        let readiness = container.readiness.as_ref().context("no readiness")?;
        // A draining replica must have left the Service before it stops accepting connections.
        let notice = rendered.values["server"]["drainNoticeSeconds"].as_u64();
        ensure!(readiness.notices_within() <= Duration::from_secs(notice.context("no notice")?));
        Ok(())
    })
}

#[test]
fn selectors_select_the_pods_and_nothing_else_of_the_release() -> Result<()> {
    each(|rendered| {
        let labels = &rendered.deployment.labels;
        let mut seen = 0;
        for object in &rendered.objects {
            let selector = match object["kind"].as_str().unwrap_or_default() {
                "Service" => &object["spec"]["selector"],
                "Deployment" | "PodDisruptionBudget" => &object["spec"]["selector"]["matchLabels"],
                "NetworkPolicy" => &object["spec"]["podSelector"]["matchLabels"],
                _ => continue,
            };
            seen += 1;
            ensure!(selects(selector, labels), "{object}");
            for pod in rendered.of_kind("Pod") {
                let other = serde_json::from_value(pod["metadata"]["labels"].clone())?;
                ensure!(!selects(selector, &other), "{selector} selects the test");
            }
        }
        ensure!(seen >= 3, "{seen} selectors");
        for constraint in list(&rendered.pod()?["topologySpreadConstraints"]) {
            ensure!(selects(&constraint["labelSelector"]["matchLabels"], labels));
            let own = constraint["matchLabelKeys"].is_array();
            ensure!(!own || constraint["nodeTaintsPolicy"] == "Honor");
        }
        for monitor in rendered.of_kind("ServiceMonitor") {
            let selector = &monitor["spec"]["selector"]["matchLabels"];
            let mut selected = Vec::new();
            for service in rendered.of_kind("Service") {
                let labels = serde_json::from_value(service["metadata"]["labels"].clone())?;
                if selects(selector, &labels) {
                    selected.push(service);
                }
            }
            let [service] = selected[..] else {
                bail!("a monitor of {} Services", selected.len());
            };
            let port = &monitor["spec"]["endpoints"][0]["port"];
            let ports = list(&service["spec"]["ports"]);
            ensure!(ports.iter().any(|one| one["name"] == *port));
        }
        Ok(())
    })
}

#[test]
fn the_services_lead_to_ports_that_are_there() -> Result<()> {
    each(|rendered| {
        let ports = &rendered.deployment.container.ports;
        for service in rendered.of_kind("Service") {
            for port in list(&service["spec"]["ports"]) {
                let target = text(&port["targetPort"]);
                ensure!(ports.contains_key(&target), "no port {target}");
            }
        }
        let clients = &rendered.one("Service", "")?["spec"];
        ensure!(clients["ports"][0]["port"] == rendered.values["service"]["port"]);
        ensure!(clients["ports"][0]["targetPort"] == "https");
        let peers = &rendered.one("Service", "-peers")?["spec"];
        ensure!(peers["clusterIP"] == "None" && peers["publishNotReadyAddresses"] == true);
        for policy in rendered.of_kind("NetworkPolicy") {
            let rules = list(&policy["spec"]["ingress"]).iter();
            for rule in rules.chain(list(&policy["spec"]["egress"])) {
                for port in list(&rule["ports"]) {
                    let named = port["port"].as_str();
                    ensure!(
                        named.is_none_or(|name| ports.contains_key(name)),
                        "no port {port}"
                    );
                }
            }
        }
        Ok(())
    })
}

#[test]
fn what_is_mounted_is_there() -> Result<()> {
    each(|rendered| {
        let deployment = &rendered.deployment;
        let secrets = rendered.secrets();
        let mounted: BTreeSet<_> = deployment
            .container
            .mounts
            .iter()
            .map(|mount| mount.volume.as_str())
            .collect();
        let there: BTreeSet<_> = deployment.volumes.keys().map(String::as_str).collect();
        ensure!(mounted == there, "mounted {mounted:?}, there {there:?}");
        for volume in deployment.volumes.values() {
            let Volume::Secrets(parts) = volume else {
                continue;
            };
            for part in parts {
                let keys = secrets.get(&part.secret);
                let keys = keys.with_context(|| format!("no Secret {}", part.secret))?;
                let missing = part.files.keys().find(|key| {
                    keys.as_ref()
                        .is_some_and(|keys| !keys.contains(key.as_str()))
                });
                ensure!(missing.is_none(), "{} has no key {missing:?}", part.secret);
            }
        }
        for variable in &deployment.container.env {
            if let Source::Secret { name, .. } = &variable.source {
                ensure!(secrets.contains_key(name), "no Secret {name}");
            }
        }
        for monitor in rendered.of_kind("ServiceMonitor") {
            let endpoint = &monitor["spec"]["endpoints"][0];
            for part in [
                &endpoint["authorization"]["credentials"],
                &endpoint["tlsConfig"]["ca"]["secret"],
            ] {
                let keys = secrets.get(&text(&part["name"]));
                let keys = keys.with_context(|| format!("no Secret {part}"))?;
                let there = |keys: &BTreeSet<String>| keys.contains(&text(&part["key"]));
                ensure!(keys.as_ref().is_none_or(there), "no key {part}");
            }
        }
        Ok(())
    })
}

/// Returns the files in a mounted folder, if their names are known.
fn files_below(deployment: &Deployment, folder: &str) -> Option<BTreeSet<String>> {
    let mut mounts = deployment.container.mounts.iter();
    let mount = mounts.find(|mount| mount.path.as_os_str() == folder)?;
    let Volume::Secrets(parts) = deployment.volumes.get(&mount.volume)? else {
        return None;
    };
    let files = parts.iter().flat_map(|part| part.files.values().cloned());
    Some(files.collect())
}

#[test]
fn files_that_arguments_name_are_mounted() -> Result<()> {
    each(|rendered| {
        let deployment = &rendered.deployment;
        let mut named = 0;
        for argument in &deployment.container.args {
            let Some((_, path)) = argument.split_once("=/store/") else {
                continue;
            };
            named += 1;
            let files = files_below(deployment, "/store").context("nothing at /store")?;
            ensure!(files.contains(path), "{argument} is not in {files:?}");
        }
        let tls = rendered.values["etcd"]["tls"]["enabled"] == true;
        let user = rendered.values["etcd"]["auth"]["existingSecret"] != "";
        ensure!(
            (named > 0) == (tls || user),
            "{named} files of the connection to etcd"
        );
        Ok(())
    })
}

#[test]
fn the_certificate_folder_is_complete() -> Result<()> {
    each(|rendered| {
        let folder = text(&rendered.values["certificates"]["mountPath"]);
        let argument = format!("--certs={folder}");
        let container = &rendered.deployment.container;
        ensure!(container.args.contains(&argument), "no {argument}");
        let files = files_below(&rendered.deployment, &folder).context("no folder")?;
        let expected: &[&str] = match rendered.values["certificates"]["mode"].as_str() {
            Some("generated") => &[
                "admin.token",
                "ca.crt",
                "ca.key",
                "peer-ca.crt",
                "peer-ca.key",
                "root.secret",
            ],
            // With a peer certificate the key of its CA is not needed.
            Some("certManager") => &[
                "admin.token",
                "ca.crt",
                "ca.key",
                "peer-ca.crt",
                "peer.crt",
                "peer.key",
                "root.secret",
                "serving.crt",
                "serving.key",
            ],
            // All keys of the Secret.
            _ => &[],
        };
        ensure!(
            files
                .iter()
                .map(String::as_str)
                .eq(expected.iter().copied()),
            "{files:?}"
        );
        Ok(())
    })
}

#[test]
fn nothing_runs_with_more_rights_than_it_needs() -> Result<()> {
    each(|rendered| {
        let pods = rendered.of_kind("Pod").map(|pod| &pod["spec"]);
        for pod in pods.chain([rendered.pod()?]) {
            ensure!(pod["automountServiceAccountToken"] == false);
            ensure!(pod["enableServiceLinks"] == false);
            let context = &pod["securityContext"];
            ensure!(context["runAsNonRoot"] == true && context["runAsUser"] != 0);
            ensure!(context["seccompProfile"]["type"] == "RuntimeDefault");
            for name in ["hostNetwork", "hostPID", "hostIPC"] {
                ensure!(pod[name].is_null(), "{name}");
            }
            for container in list(&pod["containers"]) {
                let context = &container["securityContext"];
                ensure!(context["allowPrivilegeEscalation"] == false);
                ensure!(context["privileged"] == false);
                ensure!(context["readOnlyRootFilesystem"] == true);
                ensure!(context["capabilities"] == json!({"drop": ["ALL"]}));
                ensure!(!container["resources"]["limits"]["memory"].is_null());
            }
        }
        let mounts = &rendered.deployment.container.mounts;
        let secret = |name: &str| {
            matches!(
                rendered.deployment.volumes.get(name),
                Some(Volume::Secrets(_))
            )
        };
        ensure!(
            mounts
                .iter()
                .all(|mount| mount.read_only || !secret(&mount.volume))
        );
        Ok(())
    })
}

#[test]
fn every_object_is_named_and_labelled_as_one_release() -> Result<()> {
    each(|rendered| {
        let mut seen = BTreeSet::new();
        for object in &rendered.objects {
            let metadata = &object["metadata"];
            let identity = (text(&object["kind"]), text(&metadata["name"]));
            ensure!(identity.1.len() <= 63, "{identity:?} is too long");
            ensure!(
                identity.1.starts_with(&rendered.deployment.name),
                "{identity:?}"
            );
            ensure!(metadata["namespace"] == NAMESPACE, "{identity:?}");
            let labels = &metadata["labels"];
            ensure!(labels["app.kubernetes.io/instance"] == RELEASE);
            ensure!(labels["app.kubernetes.io/managed-by"] == "Helm");
            for (key, value) in rendered.values["labels"].as_object().into_iter().flatten() {
                ensure!(labels[key] == *value, "{identity:?} has no label {key}");
            }
            ensure!(seen.insert(identity), "twice: {metadata}");
        }
        // A new version of the chart alone must replace no pod.
        ensure!(!rendered.deployment.labels.contains_key("helm.sh/chart"));
        Ok(())
    })
}

#[test]
fn a_replica_is_told_who_and_where_it_is() -> Result<()> {
    each(|rendered| {
        let six = rendered.values["server"]["ipFamily"] == "IPv6";
        let launch = rendered
            .deployment
            .container
            .launch(|source| match source {
                Source::Field(path) => Ok(match path.as_str() {
                    "status.podIP" if six => "fd00::7".to_owned(),
                    "status.podIP" => "10.0.0.7".to_owned(),
                    "metadata.name" => "ring-polyplane-5d4f-x2x7z".to_owned(),
                    "metadata.labels['topology.kubernetes.io/zone']" => "zone-a".to_owned(),
                    other => bail!("the pod is asked for {other}"),
                }),
                Source::Secret { name, key } => Ok(format!("{name}/{key}")),
                Source::Text(_) => bail!("a text is not asked for"),
            })?;
        let environment: BTreeMap<_, _> = launch.environment.into_iter().collect();
        let port = &rendered.values["server"]["peerPort"];
        let address = if six { "[fd00::7]" } else { "10.0.0.7" };
        ensure!(environment["POLYPLANE_ADVERTISE"] == format!("{address}:{port}"));
        ensure!(environment["POLYPLANE_REPLICA_ID"] == "ring-polyplane-5d4f-x2x7z");
        let zone = environment.get("POLYPLANE_ZONE").map(String::as_str);
        let expected = match rendered.values["zone"]["source"].as_str() {
            Some("label") => Some("zone-a"),
            Some("fixed") => rendered.values["zone"]["name"].as_str(),
            _ => None,
        };
        ensure!(zone == expected, "{zone:?}");
        ensure!(launch.program == "/polyplane" && launch.arguments[0] == "serve");
        ensure!(
            launch.arguments.iter().all(|word| !word.contains("$(")),
            "{:?}",
            launch.arguments
        );
        Ok(())
    })
}
