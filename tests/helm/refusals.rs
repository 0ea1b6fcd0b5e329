//! Values that make no sense, and the words with which they are refused: where the mistake is, and
//! what would be right.

use anyhow::{Result, ensure};
use polyplane_tests::chart::{Chart, on_etcd, over};
use serde_json::{Value, json};

/// Returns a user's mistakes, each with words that the refusal must contain.
fn mistakes() -> Vec<(Value, &'static [&'static str])> {
    let mut mistakes = unknown_and_out_of_range();
    mistakes.extend(contradictions());
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
        (
            json!({"extraVolumes": [{"name": "metrics-token", "emptyDir": {}}]}),
            &["/extraVolumes/0/name"],
        ),
        (
            json!({"extraVolumes": [{"name": "certificates", "emptyDir": {}}]}),
            &["/extraVolumes/0/name"],
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
            json!({"server": {"graceSeconds": 6}}),
            &["drainNoticeSeconds (6)", "graceSeconds (6)"],
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
            json!({"certificates": {"mountPath": "/metrics-token"}}),
            &["/certificates/mountPath"],
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
