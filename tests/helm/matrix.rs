//! The values with which the chart is tested: every switch on and off, every source of
//! certificates, and the settings of large installations.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use polyplane_tests::chart::{Chart, RELEASE, default_values, on_etcd, over};
use serde_json::{Value, json};

/// Values under a name.
pub struct Combination {
    /// Describes what is special.
    pub name: &'static str,
    /// The values that differ from the chart's own.
    pub values: Value,
    /// Secrets that the user provides.
    pub given_secrets: &'static [&'static str],
}

/// Returns all combinations. Each has etcd's endpoints.
pub fn combinations() -> Vec<Combination> {
    let mut all = Vec::new();
    let mut add = |name, given_secrets, more: Value| {
        all.push(Combination {
            name,
            values: over(&on_etcd(&["etcd-0.etcd:2379"]), &more),
            given_secrets,
        });
    };
    add("as it comes", &[], json!({}));
    rings(&mut add);
    certificates(&mut add);
    stores(&mut add);
    networks(&mut add);
    pods(&mut add);
    all
}

type Add<'a> = &'a mut dyn FnMut(&'static str, &'static [&'static str], Value);

fn rings(add: Add<'_>) {
    add("one replica", &[], json!({"replicas": 1}));
    add(
        "many replicas, replaced by quarters",
        &[],
        json!({
            "replicas": 100, "rollingUpdate": {"maxSurge": "25%"}, "minReadySeconds": 0,
            "podDisruptionBudget": {"minAvailable": "75%"},
        }),
    );
    add(
        "autoscaled by CPU",
        &[],
        json!({"autoscaling": {"enabled": true, "minReplicas": 2, "maxReplicas": 9}}),
    );
    add(
        "autoscaled by memory",
        &[],
        json!({"autoscaling": {
            "enabled": true, "cpuPercent": null, "memoryPercent": 80, "behavior": {},
        }}),
    );
    add(
        "long grace",
        &[],
        json!({
            "server": {
                "graceSeconds": 600, "drainNoticeSeconds": 12, "memberTtlSeconds": 10,
                "weight": 300, "sleepAfterSeconds": 31_536_000, "raiseFloorAfterSeconds": 2_592_000,
            },
            "probes": {"readiness": {"periodSeconds": 5}},
        }),
    );
    add(
        "own time to end",
        &[],
        json!({
            "server": {"graceSeconds": 20, "drainNoticeSeconds": 14},
            "terminationGracePeriodSeconds": 45,
        }),
    );
    add(
        "no budget, no spread, no zone",
        &[],
        json!({
            "podDisruptionBudget": {"enabled": false}, "topologySpread": {"enabled": false},
            "zone": {"source": "none"},
        }),
    );
    add(
        "a release per zone",
        &[],
        json!({
            "zone": {"source": "fixed", "name": "eu-1a"},
            "nodeSelector": {"topology.kubernetes.io/zone": "eu-1a"},
            "topologySpread": {"node": "DoNotSchedule"},
        }),
    );
}

fn certificates(add: Add<'_>) {
    add(
        "given certificates",
        &["ring-keys"],
        json!({
            "certificates": {"mode": "secret", "existingSecret": "ring-keys", "mountPath": "/etc/ring"},
            "serviceMonitor": {"enabled": true},
        }),
    );
    add(
        "given certificates that others sign",
        &["ring-keys", "scrape"],
        json!({
            "certificates": {
                "mode": "secret", "existingSecret": "ring-keys", "servingCaKey": "serving-ca.crt",
            },
            "server": {"endpoint": "planes.example.org"},
            "metrics": {"existingSecret": "scrape", "tokenKey": "bearer"},
            "serviceMonitor": {"enabled": true, "serverName": "planes.example.org"},
        }),
    );
    add(
        "certificates by cert-manager",
        &[],
        json!({"certificates": {"mode": "certManager"}, "serviceMonitor": {"enabled": true}}),
    );
    add(
        "certificates by an issuer of the company",
        &["ring-admin"],
        json!({"certificates": {"mode": "certManager", "certManager": {
            "issuerRef": {"name": "company", "kind": "ClusterIssuer", "group": "cert-manager.io"},
            "adminSecret": "ring-admin",
        }}}),
    );
}

fn stores(add: Add<'_>) {
    add(
        "encrypted at rest",
        &["planes-keys"],
        json!({"encryption": {"existingSecret": "planes-keys", "key": "encryption.yaml"}}),
    );
    add(
        "etcd over TLS",
        &["etcd-ca"],
        json!({"etcd": {
            "endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379", "10.1.2.3:12379"],
            "prefix": "/rings/one/",
            "tls": {"enabled": true, "caSecret": "etcd-ca"},
        }}),
    );
    add(
        "etcd with client certificates",
        &["etcd"],
        json!({"etcd": {"tls": {"enabled": true, "caSecret": "etcd", "clientSecret": "etcd"}}}),
    );
    add(
        "etcd with a user",
        &["etcd-user"],
        json!({"etcd": {"auth": {"existingSecret": "etcd-user", "userKey": "user"}}}),
    );
    add(
        "etcd with everything",
        &["etcd-ca", "etcd-client", "etcd-user"],
        json!({"etcd": {
            "endpoints": ["[fd00::2]:2379"],
            "tls": {"enabled": true, "caSecret": "etcd-ca", "clientSecret": "etcd-client"},
            "auth": {"existingSecret": "etcd-user"},
        }}),
    );
}

fn networks(add: Add<'_>) {
    add(
        "a closed network",
        &[],
        json!({"networkPolicy": {
            "enabled": true,
            "clients": [{"namespaceSelector": {"matchLabels": {"team": "platform"}}}],
            "egress": {
                "etcd": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
                "extra": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
            },
        }}),
    );
    add(
        "a network closed from outside",
        &[],
        json!({"networkPolicy": {"enabled": true, "egress": {"enabled": false}}}),
    );
    add(
        "an open network",
        &[],
        json!({"networkPolicy": {"peers": false}}),
    );
    add(
        "IPv6",
        &[],
        json!({
            "server": {"ipFamily": "IPv6", "endpoint": "[fd00::1]:8443"},
            "service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        }),
    );
    add(
        "a load balancer",
        &[],
        json!({
            "server": {"endpoint": "planes.example.org", "hostNames": ["*.planes.example.org"]},
            "service": {
                "type": "LoadBalancer", "port": 6443, "nodePort": 30443,
                "externalTrafficPolicy": "Local", "loadBalancerClass": "example.org/lb",
                "loadBalancerSourceRanges": ["10.0.0.0/8"], "trafficDistribution": "PreferClose",
                "annotations": {"example.org/proxy": "tcp"},
            },
        }),
    );
    add(
        "watched by Prometheus",
        &[],
        json!({"serviceMonitor": {
            "enabled": true, "labels": {"release": "prometheus"},
            "metricRelabelings": [{"action": "labeldrop", "regex": "pod"}],
        }}),
    );
}

fn pods(add: Add<'_>) {
    add(
        "everything about pods",
        &[],
        json!({
            "labels": {"cost-center": "42"}, "annotations": {"example.org/owner": "sre"},
            "podLabels": {"mesh": "off"}, "podAnnotations": {"example.org/log": "json"},
            "image": {
                "repository": "registry.example.org/ring/polyplane",
                "digest": format!("sha256:{}", "0".repeat(64)),
                "pullSecrets": [{"name": "registry"}],
            },
            "priorityClassName": "system-cluster-critical",
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}},
            ]}},
            "extraTopologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "replica"}},
            }],
            "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["etcd.example.org"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "authentication": {
                "config": {"jwt": [{
                    "issuer": {"url": "https://issuer.example.org", "audiences": ["planes"]},
                    "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}},
                }]},
                "outboundAllow": ["10.0.0.0/8", "issuer.corp.example"],
            },
            "admission": {"config": {"plugins": [
                {"name": "PodSecurity", "configuration": {
                    "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
                    "defaults": {"enforce": "baseline"},
                }},
                {"name": "ResourceQuota", "configuration": {
                    "apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
                    "limitedResources": [{"resource": "pods", "matchContains": ["pods"]}],
                }},
            ]}},
            "server": {
                "extraArgs": ["--plane-seats=300"],
                "hstsDirectives": ["max-age=31536000", "preload"],
                "corsAllowedOrigins": ["^https://console\\.example\\.org$", "//\"quoted\":"],
                "planeLimits": {"requestsPerSecond": 50, "watches": 0, "bytes": "256Mi"}, "log": "info,polyplane_ownership=debug",
                "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
            },
            "extraVolumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
            "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }),
    );
    add(
        "events for a webhook and no log",
        &["audit-webhook"],
        json!({"audit": {
            "policy": {"rules": [{"level": "Metadata"}]}, "log": {"enabled": false},
            "webhook": {"existingSecret": "audit-webhook", "mode": "blocking", "truncate": true},
        }}),
    );
    add(
        "events in a file",
        &[],
        json!({
            "audit": {
                "policy": {"rules": [{"level": "Metadata"}]}, "log": {"path": "/events/audit.log"},
            },
            "server": {"extraArgs": ["--audit-log-maxsize=100"]},
            "extraVolumes": [{"name": "events", "emptyDir": {"sizeLimit": "1Gi"}}],
            "extraVolumeMounts": [{"name": "events", "mountPath": "/events"}],
        }),
    );
    add(
        "users chosen by the platform",
        &[],
        json!({
            "user": {"runAsUser": null, "runAsGroup": null, "fsGroup": null},
            "serviceAccount": {"create": false}, "fullnameOverride": "planes",
        }),
    );
}

#[test]
fn the_matrix_covers_every_switch_of_the_values() -> Result<()> {
    let combinations = combinations();
    ensure!(combinations.len() >= 12);
    let names: BTreeSet<_> = combinations.iter().map(|one| one.name).collect();
    ensure!(names.len() == combinations.len(), "two have one name");
    // Every boolean of values.yaml must be on in one combination and off in another.
    let defaults = default_values()?;
    for path in switches(&defaults, "") {
        let seen: BTreeSet<bool> = combinations
            .iter()
            .filter_map(|one| over(&defaults, &one.values).pointer(&path)?.as_bool())
            .collect();
        ensure!(seen.len() == 2, "{path} is only ever {seen:?}");
    }
    Ok(())
}

fn switches(value: &Value, path: &str) -> Vec<String> {
    match value {
        Value::Bool(_) => vec![path.to_owned()],
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| switches(value, &format!("{path}/{key}")))
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_readme_has_every_value() -> Result<()> {
    let readme = std::fs::read_to_string(Chart::path().join("README.md"))?;
    let quoted: BTreeSet<&str> = readme.split('`').skip(1).step_by(2).collect();
    let missing = unexplained(&default_values()?, "", &quoted);
    ensure!(missing.is_empty(), "README.md does not have {missing:?}");
    Ok(())
}

/// Returns the values that the README explains neither as a whole nor by each of their parts, given
/// the texts in its backticks. A row of its table may list several parts of one value; all but the
/// first are then shortened to their last word.
fn unexplained(value: &Value, path: &str, quoted: &BTreeSet<&str>) -> Vec<String> {
    let ending = path.rfind('.').map(|at| &path[at..]);
    if quoted.contains(path) || ending.is_some_and(|ending| quoted.contains(ending)) {
        return Vec::new();
    }
    match value.as_object() {
        Some(parts) if !parts.is_empty() => parts
            .iter()
            .flat_map(|(name, value)| {
                let separator = if path.is_empty() { "" } else { "." };
                unexplained(value, &format!("{path}{separator}{name}"), quoted)
            })
            .collect(),
        _ => vec![path.to_owned()],
    }
}

/// Returns what helm prints after an installation, without one.
fn notes(chart: &Chart, more: &Value) -> Result<String> {
    let path = Chart::path();
    let arguments = [
        "install",
        RELEASE,
        &path.to_string_lossy(),
        "--dry-run=client",
    ];
    let output = chart.run(&arguments, &over(&on_etcd(&["etcd:2379"]), more))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{more}: {said}");
    let printed = String::from_utf8(output.stdout)?;
    let (_, notes) = printed.split_once("NOTES:").context("no notes")?;
    Ok(notes.to_owned())
}

#[test]
fn the_notes_warn_of_what_the_values_leave_open() -> Result<()> {
    let chart = Chart::find()?;
    let outside = "set server.endpoint";
    for service in ["ClusterIP", "NodePort", "LoadBalancer"] {
        let open = notes(&chart, &json!({"service": {"type": service}}))?;
        ensure!(open.contains(outside), "{service}: {open}");
    }
    let named = notes(
        &chart,
        &json!({"server": {"endpoint": "planes.example.org"}}),
    )?;
    ensure!(!named.contains(outside), "{named}");
    let lonely = "one replica alone";
    let fewest = json!({"autoscaling": {"enabled": true, "minReplicas": 1}});
    ensure!(notes(&chart, &fewest)?.contains(lonely));
    ensure!(!notes(&chart, &json!({}))?.contains(lonely));
    let keys = "would make new\nkeys each time";
    let signed = json!({"certificates": {"mode": "certManager"}});
    ensure!(notes(&chart, &signed)?.contains(keys));
    let given = json!({"certificates": {"certManager": {"adminSecret": "own"}}});
    ensure!(!notes(&chart, &over(&signed, &given))?.contains(keys));
    Ok(())
}

#[test]
fn lint_finds_nothing() -> Result<()> {
    let chart = Chart::find()?;
    for combination in combinations() {
        chart
            .lint(&combination.values)
            .context(combination.name.to_owned())?;
    }
    Ok(())
}
