//! The configuration of admission plug-ins: what the test drop-in answers with a file is what the reference
//! answers with the same file. `RECORD=1` records the reference.
//!
//! This file owns the server and the objects. It does not know what is configured.

#[path = "admission_config/levels.rs"]
mod levels;
#[path = "admission_config/limits.rs"]
mod limits;
#[path = "admission_config/wrong_files.rs"]
mod wrong_files;

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::connection::Ask;
use polyplane_tests::programs::ask;
use polyplane_tests::recorded::{PlainServer, records};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
/// A user whom no configuration exempts.
const OTHER: &str = "other-user";
/// How long the reference takes at most until its admission has seen a quota.
const SEEN: Duration = Duration::from_secs(1);

/// A server with a configuration: the drop-in, or the reference while a recording is made.
struct Site {
    server: PlainServer,
    steps: Map<String, Value>,
    _files: TempDir,
}

impl Site {
    /// Starts a server with a file, and one that it may name.
    async fn start(plugins: &str, (beside, text): (&str, &str)) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let file = files.path().join("admission.yaml");
        std::fs::write(&file, format!("{HEAD}{plugins}"))?;
        std::fs::write(files.path().join(beside), text)?;
        let flags = vec![
            format!("--admission-control-config-file={}", file.display()),
            // Nobody makes accounts for the pods of the drop-in.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ];
        Ok(Self {
            server: PlainServer::start(flags).await?,
            steps: Map::new(),
            _files: files,
        })
    }

    /// Sends a request as a user who may do everything, and notes what a client is told.
    async fn note(&mut self, step: &str, (user, request): (&str, Ask)) -> Result<()> {
        let mut request = request;
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        request.headers.push(header("impersonate-user", user));
        request
            .headers
            .push(header("impersonate-group", "system:masters"));
        let answer = self.server.client.raw(request).await?;
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let warnings = answer.headers.get_all("warning").iter();
        let warnings: Vec<&str> = warnings.filter_map(|text| text.to_str().ok()).collect();
        let mut noted = json!({"code": answer.status.as_u16()});
        if !warnings.is_empty() {
            noted["warnings"] = json!(warnings);
        }
        if !answer.status.is_success() {
            for member in ["message", "reason", "details"] {
                noted[member] = body[member].clone();
            }
        }
        let before = self.steps.insert(step.to_owned(), noted);
        ensure!(before.is_none(), "{step} is there twice");
        Ok(())
    }

    async fn create(&mut self, step: &str, list: &str, object: &Value) -> Result<()> {
        let request = ask(Method::POST, list, object);
        self.note(step, (OTHER, request)).await
    }

    async fn patch(&mut self, step: &str, user: &str, one: &str, patch: &Value) -> Result<()> {
        let mut request = ask(Method::PATCH, one, patch);
        let form = if one.ends_with("/ephemeralcontainers") {
            "application/strategic-merge-patch+json"
        } else {
            "application/merge-patch+json"
        };
        request.headers.retain(|(name, _)| name != "content-type");
        let header = ("content-type".to_owned(), form.to_owned());
        request.headers.push(header);
        self.note(step, (user, request)).await
    }

    async fn delete(&mut self, step: &str, one: &str) -> Result<()> {
        let request = ask(Method::DELETE, one, &Value::Null);
        self.note(step, (OTHER, request)).await
    }

    /// Waits until the reference enforces the quotas as they are now.
    async fn until_quotas_are_seen(&self) {
        if records() {
            tokio::time::sleep(SEEN).await;
        }
    }

    /// Notes the metrics of pod security.
    async fn note_metrics(&mut self) -> Result<()> {
        let request = ask(Method::GET, "/metrics", &Value::Null);
        let text = String::from_utf8(self.server.client.raw(request).await?.body.to_vec())?;
        let mut series = Map::new();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else {
                continue;
            };
            if let Some((family, labels)) = name.split_once('{')
                && family.starts_with("pod_security_")
            {
                let mut labels: Vec<&str> = labels.trim_end_matches('}').split(',').collect();
                labels.sort_unstable();
                let name = format!("{family} {}", labels.join(","));
                series.insert(name, value.parse::<f64>()?.into());
            }
        }
        ensure!(!series.is_empty(), "no metrics");
        self.steps.insert("metrics".to_owned(), series.into());
        Ok(())
    }
}

const NAMESPACES: &str = "/api/v1/namespaces";

fn list(namespace: &str, resource: &str) -> String {
    match resource {
        "deployments" => format!("/apis/apps/v1/namespaces/{namespace}/{resource}"),
        _ => format!("/api/v1/namespaces/{namespace}/{resource}"),
    }
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn spec(violates: &str) -> Value {
    let context = match violates {
        "privileged" => json!({"privileged": true}),
        "baseline" => json!({}),
        _ => json!({
            "allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        }),
    };
    let container = json!({"name": "c", "image": "example.com/c:1", "securityContext": context});
    json!({"containers": [container], "terminationGracePeriodSeconds": 0})
}

fn pod(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

fn deployment(name: &str, spec: &Value) -> Value {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
    json!({"metadata": {"name": name}, "spec": spec})
}
