//! Values that make no sense, and the words with which they are refused: where the mistake is, and
//! what would be right.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use polyplane_tests::chart::{Chart, default_values, on_etcd, over};
use serde_json::{Value, json};

use super::each;

/// Returns a user's mistakes, each with words that the refusal must contain.
fn mistakes() -> Vec<(Value, &'static [&'static str])> {
    let mut mistakes = unknown_and_out_of_range();
    mistakes.extend(contradictions());
    mistakes.extend(budgets());
    mistakes
}

/// Returns values that the schema refuses.
fn unknown_and_out_of_range() -> Vec<(Value, &'static [&'static str])> {
    vec![
        (json!({"replicaCount": 3}), &["replicaCount", "not allowed"]),
        (json!({"replicas": 0}), &["/replicas", "1"]),
        (json!({"replicas": "3"}), &["/replicas", "integer"]),
        (json!({"replicas": 2.5}), &["/replicas", "integer"]),
        (
            json!({"server": {"grace": 5}}),
            &["/server", "grace", "not allowed"],
        ),
        (
            json!({"server": {"memberTtlSeconds": 0}}),
            &["/server/memberTtlSeconds"],
        ),
        // The last six seconds of a replica are not for its planes.
        (
            json!({"server": {"graceSeconds": 6}}),
            &["/server/graceSeconds", "7"],
        ),
        (
            json!({"server": {"clientPort": 443}}),
            &["/server/clientPort", "1,024"],
        ),
        (json!({"server": {"weight": 70000}}), &["/server/weight"]),
        (
            json!({"admission": {"config": {"plugins": [{"name": "Priority"}]}}}),
            &["/admission/config/plugins/0", "PodSecurity"],
        ),
        (
            json!({"server": {"ipFamily": "ipv4"}}),
            &["/server/ipFamily", "IPv4"],
        ),
        (
            json!({"server": {"endpoint": "https://planes.example.org"}}),
            &["/server/endpoint"],
        ),
        (
            json!({"server": {"hostNames": ["a:443"]}}),
            &["/server/hostNames/0"],
        ),
        (
            json!({"server": {"extraArgs": ["verbose"]}}),
            &["/server/extraArgs/0"],
        ),
        (
            json!({"etcd": {"endpoints": ["https://etcd:2379"]}}),
            &["/etcd/endpoints/0"],
        ),
        (
            json!({"etcd": {"endpoints": ["etcd"]}}),
            &["/etcd/endpoints/0"],
        ),
        (
            json!({"etcd": {"endpoints": ["a:1", "a:1"]}}),
            &["/etcd/endpoints"],
        ),
        (json!({"etcd": {"prefix": "polyplane"}}), &["/etcd/prefix"]),
        (
            json!({"etcd": {"auth": {"password": "secret"}}}),
            &["/etcd/auth", "password", "not allowed"],
        ),
        (
            json!({"certificates": {"mode": "self-signed"}}),
            &["/certificates/mode", "generated", "certManager"],
        ),
        (
            json!({"certificates": {"mountPath": "certs"}}),
            &["/certificates/mountPath"],
        ),
        (json!({"user": {"runAsUser": 0}}), &["/user/runAsUser"]),
        (
            json!({"podSecurityContext": {"runAsNonRoot": false}}),
            &["podSecurityContext", "not allowed"],
        ),
        (
            json!({"image": {"digest": "sha256:abc"}}),
            &["/image/digest"],
        ),
        (
            json!({"image": {"pullPolicy": "always"}}),
            &["/image/pullPolicy", "Always"],
        ),
        (
            json!({"probes": {"liveness": {"path": "/healthz"}}}),
            &["/probes/liveness", "path"],
        ),
        (
            json!({"probes": {"liveness": {"successThreshold": 2}}}),
            &["/probes/liveness/successThreshold"],
        ),
        (
            json!({"rollingUpdate": {"maxSurge": "half"}}),
            &["/rollingUpdate/maxSurge"],
        ),
        (
            json!({"topologySpread": {"zone": "Always"}}),
            &["/topologySpread/zone", "DoNotSchedule"],
        ),
        (json!({"service": {"port": 0}}), &["/service/port"]),
        (
            json!({"service": {"type": "ExternalName"}}),
            &["/service/type", "LoadBalancer"],
        ),
    ]
}

/// Returns values that are valid alone and contradict each other.
fn contradictions() -> Vec<(Value, &'static [&'static str])> {
    vec![
        (
            json!({"etcd": {"endpoints": []}}),
            &["etcd.endpoints is empty", "--set"],
        ),
        (
            json!({"autoscaling": {"enabled": true, "minReplicas": 5, "maxReplicas": 4}}),
            &["maxReplicas is below"],
        ),
        (
            json!({"autoscaling": {"enabled": true, "cpuPercent": null}}),
            &["no target", "cpuPercent"],
        ),
        (
            json!({"autoscaling": {"enabled": true}, "resources": {"requests": null}}),
            &["resources.requests.cpu"],
        ),
        (
            json!({"podDisruptionBudget": {"minAvailable": 2, "maxUnavailable": 1}}),
            &["/podDisruptionBudget/maxUnavailable", "want null"],
        ),
        (
            json!({"terminationGracePeriodSeconds": 25}),
            &["terminationGracePeriodSeconds (25)", "graceSeconds (25)"],
        ),
        (
            json!({"server": {"graceSeconds": 7, "drainNoticeSeconds": 7}}),
            &["drainNoticeSeconds (7)", "graceSeconds (7)", "at most 1,"],
        ),
        (
            json!({"server": {"drainNoticeSeconds": 20}}),
            &[
                "drainNoticeSeconds (20)",
                "graceSeconds (25)",
                "at most 19,",
            ],
        ),
        (json!({"rollingUpdate": {"maxSurge": 0}}), &["are both 0"]),
        (
            json!({"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}}),
            &["are both 0"],
        ),
        (
            json!({"server": {"peerPort": 6443}}),
            &["clientPort and server.peerPort are the same"],
        ),
        (
            json!({"server": {"extraArgs": ["--grace=3"]}}),
            &["--grace", "which the chart sets itself"],
        ),
        (
            json!({"server": {"extraEnv": [{"name": "POLYPLANE_ZONE", "value": "a"}]}}),
            &["POLYPLANE_ZONE", "which the chart sets itself"],
        ),
        (
            json!({"audit": {"webhook": {"existingSecret": "audit"}}}),
            &["audit.webhook.existingSecret", "audit.policy"],
        ),
        (
            json!({"audit": {"policy": {"rules": [{"level": "Metadata"}]}, "log": {"enabled": false}}}),
            &["audit.log.enabled", "where events go"],
        ),
        (
            json!({"minReadySeconds": 600}),
            &["progressDeadlineSeconds must be above minReadySeconds"],
        ),
        (
            json!({"certificates": {"mode": "secret"}}),
            &["/certificates/existingSecret"],
        ),
        (
            json!({"certificates": {"existingSecret": "keys"}}),
            &["/certificates/existingSecret"],
        ),
        (
            json!({"etcd": {"tls": {"enabled": true}}}),
            &["/etcd/tls/caSecret"],
        ),
        (
            json!({"etcd": {"tls": {"caSecret": "etcd-ca"}}}),
            &["/etcd/tls/caSecret"],
        ),
        (
            json!({"certificates": {"servingCaKey": "serving-ca.crt"}}),
            &["/certificates/servingCaKey"],
        ),
        (
            json!({"server": {"extraArgs": ["--metrics-token-file=/x"]}}),
            &["--metrics-token-file", "which the chart sets itself"],
        ),
        (json!({"zone": {"source": "fixed"}}), &["/zone/name"]),
        (json!({"zone": {"name": "eu-1a"}}), &["/zone/name"]),
        (
            json!({"service": {"nodePort": 30443}}),
            &["/service/nodePort"],
        ),
        (
            json!({"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}),
            &["/service/loadBalancerSourceRanges"],
        ),
    ]
}

/// Returns disruption budgets with which no node could be drained.
fn budgets() -> Vec<(Value, &'static [&'static str])> {
    vec![
        (
            json!({"podDisruptionBudget": {"minAvailable": "75%"}}),
            &["minAvailable 75% lets none of 3 replicas go"],
        ),
        (
            json!({"podDisruptionBudget": {"minAvailable": 1}, "replicas": 1}),
            &["minAvailable 1 lets none of 1 replicas go"],
        ),
        (
            json!({"podDisruptionBudget": {"minAvailable": 2}, "autoscaling": {"enabled": true, "minReplicas": 2}}),
            &["minAvailable 2 lets none of 2 replicas go"],
        ),
        (
            json!({"podDisruptionBudget": {"maxUnavailable": "0%"}}),
            &["maxUnavailable 0% lets none of 3 replicas go"],
        ),
    ]
}

#[test]
fn nonsense_is_refused_with_the_place_and_the_reason() -> Result<()> {
    let chart = Chart::find()?;
    for (more, words) in mistakes() {
        let values = over(&on_etcd(&["etcd:2379"]), &more);
        let said = chart.refused(&values)?;
        for word in words {
            ensure!(said.contains(word), "{more}: no {word:?} in: {said}");
        }
    }
    Ok(())
}

/// The names of what the chart renders with any of the tested values.
#[derive(Default)]
struct Own {
    flags: BTreeSet<String>,
    variables: BTreeSet<String>,
    /// Volumes and the folders in which they are mounted.
    mounts: BTreeSet<(String, String)>,
}

/// Collects what the chart itself sets in any combination, without what the values add.
fn own() -> Result<Own> {
    let own = std::cell::RefCell::new(Own::default());
    each(|rendered| {
        let mut own = own.borrow_mut();
        let server = &rendered.values["server"];
        let container = &rendered.deployment.container;
        for argument in container.args.iter().skip(1) {
            let flag = argument.split('=').next().unwrap_or_default();
            if !server["extraArgs"].to_string().contains(flag) {
                own.flags.insert(flag.to_owned());
            }
        }
        for variable in &container.env {
            if !server["extraEnv"].to_string().contains(&variable.name) {
                own.variables.insert(variable.name.clone());
            }
        }
        for mount in &container.mounts {
            let extra = rendered.values["extraVolumeMounts"].to_string();
            let path = mount.path.to_string_lossy().into_owned();
            if !extra.contains(&path) {
                own.mounts.insert((mount.volume.clone(), path));
            }
        }
        Ok(())
    })?;
    Ok(own.into_inner())
}

/// Returns the variable that stands for a flag.
fn variable_of(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_");
    format!("POLYPLANE_{}", name.to_uppercase())
}

/// Returns the flag that a variable stands for.
fn flag_of(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("POLYPLANE_")?;
    Some(format!("--{}", name.to_lowercase().replace('_', "-")))
}

/// A flag that is given twice ends each replica at its start, so the chart's own are refused, with the
/// default values too, which set few of them.
#[test]
fn what_the_chart_sets_cannot_be_set_beside_it() -> Result<()> {
    let chart = Chart::find()?;
    let Own {
        mut flags,
        mut variables,
        ..
    } = own()?;
    let named = flags.iter().map(|flag| variable_of(flag));
    let named: Vec<_> = named.collect();
    flags.extend(variables.iter().filter_map(|name| flag_of(name)));
    variables.extend(named);
    // The matrix has audit, encryption, authentication, admission and limits.
    ensure!(flags.len() >= 40, "only {flags:?}");
    for flag in &flags {
        let more = json!({"server": {"extraArgs": [format!("{flag}=1")]}});
        let said = chart.refused(&over(&on_etcd(&["etcd:2379"]), &more))?;
        let reason = format!("server.extraArgs has {flag}, which the chart sets itself");
        ensure!(said.contains(&reason), "{said}");
    }
    for name in &variables {
        let more = json!({"server": {"extraEnv": [{"name": name, "value": "1"}]}});
        let said = chart.refused(&over(&on_etcd(&["etcd:2379"]), &more))?;
        let reason = format!("server.extraEnv has {name}, which the chart sets itself");
        ensure!(said.contains(&reason), "{said}");
    }
    let others = json!({"server": {
        "extraArgs": ["--plane-seats=300", "--audit-log-maxsize=100", "--kubelet-access=plane"],
        "extraEnv": [{"name": "POLYPLANE_CONNECTIONS_MAX", "value": "100"}],
    }});
    chart.render(&over(&on_etcd(&["etcd:2379"]), &others))?;
    Ok(())
}

#[test]
fn no_folder_of_a_volume_hides_another_one() -> Result<()> {
    let chart = Chart::find()?;
    let refused = |more: &Value, word: &str| -> Result<()> {
        let said = chart.refused(&over(&on_etcd(&["etcd:2379"]), more))?;
        ensure!(said.contains(word), "{more}: no {word:?} in: {said}");
        Ok(())
    };
    let at = |folder: &str| json!({"certificates": {"mountPath": folder}});
    let mounted =
        |folder: &str| json!({"extraVolumeMounts": [{"name": "own", "mountPath": folder}]});
    for (volume, folder) in own()?.mounts {
        let extra = json!({"extraVolumes": [{"name": volume, "emptyDir": {}}]});
        refused(&extra, &format!("extraVolumes has {volume}"))?;
        if volume == "certificates" {
            continue;
        }
        for folder in [folder.clone(), format!("{folder}/below")] {
            let word = format!("certificates.mountPath {folder}");
            refused(&at(&folder), &word)?;
            refused(
                &mounted(&folder),
                &format!("extraVolumeMounts has {folder}"),
            )?;
        }
    }
    for folder in ["/tmp", "/proc/keys", "/dev", "/etc", "/polyplane"] {
        refused(&at(folder), &format!("certificates.mountPath {folder}"))?;
    }
    refused(&at("/x/../audit"), "such as /audit")?;
    for folder in ["/", "/certs", "/certs/own/", "/polyplane"] {
        refused(
            &mounted(folder),
            &format!("extraVolumeMounts has {folder},"),
        )?;
    }
    let beside = over(&at("/etc/polyplane"), &mounted("/etc/other"));
    let both = over(
        &beside,
        &json!({"extraVolumes": [{"name": "own", "emptyDir": {}}]}),
    );
    chart.render(&over(&on_etcd(&["etcd:2379"]), &both))?;
    // Mounts that another one holds.
    let above = json!({"extraVolumeMounts": [{"name": "own", "mountPath": "/certs/keys"}]});
    refused(
        &over(&at("/certs/keys/ring"), &above),
        "extraVolumeMounts has /certs/keys",
    )
}

/// Returns the path of every value.
fn paths(value: &Value, path: &str) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    let below = fields.flat_map(|(name, value)| {
        let path = format!("{path}/{name}");
        let mut found = paths(value, &path);
        found.push(path);
        found
    });
    below.collect()
}

/// helm takes a value that is null out, so a template would meet nothing where it needs something.
#[test]
fn a_value_that_is_taken_out_is_missed_by_its_place() -> Result<()> {
    let chart = Chart::find()?;
    let mut missed = 0;
    for path in paths(&default_values()?, "") {
        let without = path.rsplit('/').fold(Value::Null, |below, name| {
            if name.is_empty() {
                below
            } else {
                json!({name: below})
            }
        });
        let values = over(&on_etcd(&["etcd:2379"]), &without);
        if chart.render(&values).is_ok() {
            continue;
        }
        missed += 1;
        let said = chart.refused(&values)?;
        let name = path.rsplit('/').next().unwrap_or_default();
        let reason = format!("missing property '{name}'");
        ensure!(said.contains(&reason), "{path}: {said}");
    }
    ensure!(missed > 100, "only {missed} are missed");
    Ok(())
}
