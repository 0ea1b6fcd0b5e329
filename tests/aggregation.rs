//! Aggregation of cluster roles: by the server itself, and with the real controller manager beside
//! it, the plane's roles are those of the reference. `RECORD=1` records the reference.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::found;
use polyplane_tests::recorded::{Recorded, skipped, without_identity};
use serde_json::{Map, Value, json};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// The roles that the steps change.
const AGGREGATED: [&str; 4] = ["admin", "edit", "view", "widget-owner"];
/// Looks at a role until the controller must have done its work.
const LOOKS: usize = 1500;
/// The pause between two looks. Shorter ones would take the CPU from the controller.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The controller manager of a plane; the reference has its own.
struct Controllers(Option<Child>);

impl Controllers {
    /// Starts the one controller on a plane. `None`: there is no controller manager.
    async fn start(server: &Recorded, folder: &std::path::Path) -> Result<Option<Self>> {
        if server.records {
            return Ok(Some(Self(None)));
        }
        let Some(program) = found("kube-controller-manager")? else {
            return Ok(None);
        };
        // The program takes no context, so the kubeconfig names the plane's.
        let kubeconfig = std::fs::read_to_string(server.kubeconfig().await?)?;
        let lines = kubeconfig.lines().map(|line| match line {
            line if line.starts_with("current-context:") => {
                format!("current-context: {}", server.context)
            }
            line => line.to_owned(),
        });
        let path = folder.join("kubeconfig");
        std::fs::write(&path, lines.collect::<Vec<_>>().join("\n"))?;
        let log = std::fs::File::create(folder.join("controllers.log"))?;
        let child = Command::new(program)
            .arg("--kubeconfig")
            .arg(path)
            .args(["--leader-elect=false", "--secure-port=0"])
            .arg("--controllers=clusterrole-aggregation-controller")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Some(Self(Some(child))))
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_roles_are_aggregated_as_on_the_reference() -> Result<()> {
    let server = Recorded::start().await?;
    let kubeconfig = server.kubeconfig().await?;
    let endpoint = Endpoint::from_kubeconfig(&kubeconfig, Some(server.context))?;
    let client = Client::open(&endpoint).await?;
    server.compare("aggregation", &run(&client).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_controller_and_the_server_agree_on_aggregated_roles() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Recorded::start().await?;
    let Some(_controllers) = Controllers::start(&server, folder.path()).await? else {
        let why = "there is no kube-controller-manager; `tests/programs kube-controller-manager` builds it in about ten minutes";
        return skipped("the aggregation of cluster roles", why);
    };
    let kubeconfig = server.kubeconfig().await?;
    let client = Client::open(&Endpoint::from_kubeconfig(
        &kubeconfig,
        Some(server.context),
    )?)
    .await?;
    let ran = run(&client).await;
    let log = || std::fs::read_to_string(folder.path().join("controllers.log"));
    let steps = ran.with_context(|| log().unwrap_or_default())?;
    server.compare("aggregation", &steps)
}

/// Runs all steps; returns the aggregated roles after each.
async fn run(client: &Client) -> Result<Map<String, Value>> {
    let mut steps = Map::new();
    note(client, &mut steps, "at the start").await?;

    let viewer = labelled("widget-viewer", "aggregate-to-view", &["get", "list"]);
    create(client, &viewer).await?;
    for name in ["view", "edit", "admin"] {
        until(client, name, |role| grants(role, "list")).await?;
    }
    note(client, &mut steps, "a role for viewers").await?;

    let editor = labelled("widget-editor", "aggregate-to-edit", &["update"]);
    create(client, &editor).await?;
    for name in ["edit", "admin"] {
        until(client, name, |role| grants(role, "update")).await?;
    }
    note(client, &mut steps, "a role for editors").await?;

    let owner = json!({
        "metadata": {"name": "widget-owner"},
        "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-view": "true", "widgets": "yes"}},
            {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true", "widgets": "yes"}}
        ]}
    });
    create(client, &owner).await?;
    until(client, "widget-owner", |role| rules(role).len() == 2).await?;
    note(client, &mut steps, "an aggregated role of a user").await?;

    // Rules that a user writes into an aggregated role do not stay.
    let patch = json!({"rules": [{"apiGroups": ["example.com"], "resources": ["gadgets"], "verbs": ["get"]}]});
    let path = format!("{ROLES}/widget-owner?fieldManager=somebody");
    let patched = client
        .typed(
            Method::PATCH,
            &path,
            "application/merge-patch+json",
            patch.to_string(),
        )
        .await?;
    ensure!(patched.status == 200, "{}", patched.body);
    until(client, "widget-owner", |role| rules(role).len() == 2).await?;
    note(client, &mut steps, "a user's own rules").await?;

    let gone = client.delete(&format!("{ROLES}/widget-viewer")).await?;
    gone.expect(200)?;
    for name in ["view", "edit", "admin", "widget-owner"] {
        until(client, name, |role| !grants(role, "list")).await?;
    }
    note(client, &mut steps, "the role for viewers is gone").await?;
    Ok(steps)
}

fn labelled(name: &str, label: &str, verbs: &[&str]) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {(format!("rbac.authorization.k8s.io/{label}")): "true", "widgets": "yes"}
        },
        "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": verbs}]
    })
}

async fn create(client: &Client, role: &Value) -> Result<()> {
    client.post(ROLES, role).await?.expect(201)?;
    Ok(())
}

fn rules(role: &Value) -> &[Value] {
    role["rules"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns true if a role allows a verb on widgets.
fn grants(role: &Value, verb: &str) -> bool {
    let has = |rule: &Value, field: &str, text: &str| {
        let texts = rule[field].as_array().into_iter().flatten();
        texts.into_iter().any(|known| known == text)
    };
    let mut rules = rules(role).iter();
    rules.any(|rule| has(rule, "resources", "widgets") && has(rule, "verbs", verb))
}

async fn until(client: &Client, name: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
    let mut role = Value::Null;
    for _ in 0..LOOKS {
        role = client.get(&format!("{ROLES}/{name}")).await?.expect(200)?;
        if holds(&role) {
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    bail!("the controller does not change {name}: {role}")
}

/// Waits until a role has all rules of another one.
async fn whole(client: &Client, name: &str, selected: &str) -> Result<()> {
    for _ in 0..LOOKS {
        let selected = client.get(&format!("{ROLES}/{selected}")).await?;
        let selected = selected.expect(200)?;
        let role = client.get(&format!("{ROLES}/{name}")).await?.expect(200)?;
        let mut wanted = rules(&selected).iter();
        if !rules(&selected).is_empty() && wanted.all(|rule| rules(&role).contains(rule)) {
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    bail!("the controller does not give the rules of {selected} to {name}")
}

/// Notes the aggregated roles that there are, once each has the rules of those that it selects.
async fn note(client: &Client, steps: &mut Map<String, Value>, step: &str) -> Result<()> {
    for (name, selected) in [("edit", "view"), ("admin", "edit")] {
        whole(client, name, selected).await?;
    }
    let mut roles = Map::new();
    for name in AGGREGATED {
        let reply = client.get(&format!("{ROLES}/{name}")).await?;
        if reply.status == 404 {
            continue;
        }
        let mut role = reply.expect(200)?;
        without_identity(&mut role);
        if name != "widget-owner" {
            // The rules of the start are in scenario `rbac`.
            let (own, born): (Vec<_>, Vec<_>) = rules(&role).iter().cloned().partition(|rule| {
                let groups = rule["apiGroups"].as_array().into_iter().flatten();
                groups.into_iter().any(|group| group == "example.com")
            });
            role["rules"] = json!({"born": born.len(), "own": own});
        }
        roles.insert(name.to_owned(), role);
    }
    steps.insert(step.to_owned(), Value::Object(roles));
    Ok(())
}
