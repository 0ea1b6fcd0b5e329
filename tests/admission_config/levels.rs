//! Levels of pods, who is exempt from them, and what labels of namespaces say.

use anyhow::Result;
use http::Method;
use polyplane_tests::programs::ask;
use polyplane_tests::recorded::{compare, records};
use serde_json::{Value, json};

use super::{NAMESPACES, OTHER, Site, deployment, list, pod, spec};

/// The user whom the configuration exempts.
const EXEMPT: &str = "exempt-user";
/// Pods are judged by these levels unless labels of their namespace name others.
const STRICT: &str = "plugins:
- name: PodSecurity
  path: pod-security.yaml
";
const STRICT_LEVELS: &str = "apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: baseline, audit: restricted, audit-version: v1.30, warn: restricted, warn-version: v1.31}
exemptions:
  usernames: [exempt-user]
  namespaces: [exempt, exempt-like-others, exempt-privileged]
  runtimeClasses: [exempt-class]
";
/// Only warnings have a level, which is below that of the labels.
const WARNING: &str = "plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1beta1
    kind: PodSecurityConfiguration
    defaults: {enforce-version: v1.24, warn: baseline, warn-version: v1.26}
";
/// A pod that violates `baseline`, one that violates only `restricted`, and one that violates nothing.
const SPECS: [&str; 3] = ["privileged", "baseline", "restricted"];

/// Returns a namespace with labels of pod security, by the ends of their names.
fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    json!({"metadata": {"name": name, "labels": security(labels)}})
}

fn security(labels: &[(&str, &str)]) -> Value {
    let label = |name: &str| format!("pod-security.kubernetes.io/{name}");
    let labels = labels
        .iter()
        .map(|(name, value)| (label(name), json!(value)));
    Value::Object(labels.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn levels_and_exemptions_are_those_of_the_reference() -> Result<()> {
    let mut site = Site::start(STRICT, ("pod-security.yaml", STRICT_LEVELS)).await?;
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    for name in ["exempt-class", "other-class"] {
        let class = json!({"metadata": {"name": name}, "handler": "h"});
        site.create(&format!("class {name}"), classes, &class)
            .await?;
    }
    namespaces(&mut site).await?;
    for (user, violates) in [OTHER, EXEMPT]
        .iter()
        .flat_map(|user| SPECS.map(|one| (*user, one)))
    {
        for class in ["", "exempt-class", "other-class"] {
            let mut spec = spec(violates);
            if !class.is_empty() {
                spec["runtimeClassName"] = class.into();
            }
            let name = format!(
                "{violates}-{user}{}{class}",
                if class.is_empty() { "" } else { "-" }
            );
            for namespace in ["plain", "privileged", "exempt"] {
                let request = ask(
                    Method::POST,
                    &list(namespace, "pods"),
                    &pod(&name, spec.clone()),
                );
                let step = format!("pod {name} in {namespace}");
                site.note(&step, (user, request)).await?;
            }
            let deployment = deployment(&name, &spec);
            let request = ask(Method::POST, &list("plain", "deployments"), &deployment);
            site.note(&format!("deployment {name}"), (user, request))
                .await?;
        }
    }
    changes(&mut site).await?;
    site.note_metrics().await?;
    println!(
        "admission_config: {} requests about levels",
        site.steps.len()
    );
    compare(records(), "admission-levels", &site.steps)
}

/// Namespaces with labels, of which some are exempt.
async fn namespaces(site: &mut Site) -> Result<()> {
    for (name, labels) in [
        ("plain", &[][..]),
        (
            "privileged",
            &[
                ("enforce", "privileged"),
                ("audit", "privileged"),
                ("warn", "privileged"),
            ],
        ),
        ("warned", &[("warn-version", "v1.20")]),
        (
            "exempt",
            &[("enforce", "restricted"), ("audit-version", "latest")],
        ),
        (
            "exempt-like-others",
            &[("enforce", "baseline"), ("warn", "restricted")],
        ),
        (
            "exempt-privileged",
            &[("audit", "privileged"), ("enforce", "privileged")],
        ),
        (
            "wrong",
            &[
                ("enforce", "strict"),
                ("audit-version", "1.30"),
                ("warn", ""),
            ],
        ),
        ("exempt", &[("enforce", "strict")]),
    ] {
        let step = format!("namespace {name} {labels:?}");
        site.create(&step, NAMESPACES, &namespace(name, labels))
            .await?;
    }
    Ok(())
}

/// Changes of pods and of the labels of their namespaces.
async fn changes(site: &mut Site) -> Result<()> {
    let pods = list("plain", "pods");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "example.com/c:2"}]}});
    let image = |violates: &str| {
        let mut image = image.clone();
        image["spec"]["containers"][0]["securityContext"] =
            spec(violates)["containers"][0]["securityContext"].clone();
        image
    };
    let debugger = json!({"spec": {"ephemeralContainers": [
        {"name": "d", "image": "example.com/d:1", "securityContext": {"privileged": true}}]}});
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for (user, name, violates) in [
        (OTHER, "privileged-exempt-user", "privileged"),
        (EXEMPT, "privileged-exempt-user", "privileged"),
        (OTHER, "privileged-other-user-exempt-class", "privileged"),
        (OTHER, "baseline-other-user", "baseline"),
    ] {
        let one = format!("{pods}/{name}");
        site.patch(&format!("{user} labels {name}"), user, &one, &label)
            .await?;
        site.patch(
            &format!("{user} changes {name}"),
            user,
            &one,
            &image(violates),
        )
        .await?;
        let one = format!("{one}/ephemeralcontainers");
        site.patch(&format!("{user} debugs {name}"), user, &one, &debugger)
            .await?;
    }
    for (name, labels) in [
        ("plain", &[("enforce", "restricted")][..]),
        (
            "plain",
            &[("enforce", "restricted"), ("enforce-version", "v1.22")],
        ),
        (
            "plain",
            &[("enforce", "baseline"), ("enforce-version", "v1.22")],
        ),
        ("plain", &[("enforce", "strict")]),
        ("exempt", &[("enforce", "baseline")]),
        (
            "exempt",
            &[("enforce", "restricted"), ("enforce-version", "v1.30")],
        ),
        (
            "exempt",
            &[
                ("enforce", "baseline"),
                ("enforce-version", "v1.31"),
                ("warn", "privileged"),
            ],
        ),
        ("exempt-privileged", &[("enforce", "baseline")]),
        ("exempt-privileged", &[("enforce", "strict")]),
        ("privileged", &[("enforce", "baseline")]),
    ] {
        let one = format!("{NAMESPACES}/{name}");
        let patch = json!({"metadata": {"labels": security(labels)}});
        let step = format!("labels of {name} {labels:?}");
        site.patch(&step, OTHER, &one, &patch).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warnings_follow_the_enforced_level_as_on_the_reference() -> Result<()> {
    let mut site = Site::start(WARNING, ("nothing.yaml", "")).await?;
    for (name, labels) in [
        ("plain", &[][..]),
        ("same", &[("enforce", "baseline")]),
        ("strict", &[("enforce", "restricted")]),
        (
            "strict-version",
            &[("enforce", "restricted"), ("enforce-version", "v1.20")],
        ),
        (
            "warn-version",
            &[("enforce", "restricted"), ("warn-version", "v1.21")],
        ),
        ("warn", &[("enforce", "restricted"), ("warn", "privileged")]),
        ("version", &[("enforce-version", "v1.20")]),
    ] {
        site.create(
            &format!("namespace {name}"),
            NAMESPACES,
            &namespace(name, labels),
        )
        .await?;
        for violates in SPECS {
            let step = format!("{violates} in {name}");
            let made = deployment(violates, &spec(violates));
            site.create(&step, &list(name, "deployments"), &made)
                .await?;
            let made = pod(violates, spec(violates));
            site.create(&format!("pod {step}"), &list(name, "pods"), &made)
                .await?;
        }
    }
    site.note_metrics().await?;
    println!(
        "admission_config: {} requests about warnings",
        site.steps.len()
    );
    compare(records(), "admission-warnings", &site.steps)
}
