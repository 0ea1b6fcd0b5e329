//! What a write costs between the server and the store: `cargo run --release -p polyplane-admission
//! --example write_cost [SCENARIO [COUNT]]` prints the time of one write of each scenario, or of one of
//! them. The plane is in memory and the objects are those of `bench/`, so what is left is the work of
//! the registry, of field management, of admission and of the plane.
//!
//! Instructions say more than times on a machine that others use, too:
//!
//! ```text
//! RUSTFLAGS='--cfg rustix_use_libc' cargo build --release -p polyplane-admission --example write_cost
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured_writes*' \
//!     target/release/examples/write_cost put-deployment 200
//! ```
//!
//! counts those of 200 writes. Valgrind hides the kernel's vDSO, which rustix would look into for the
//! time, so it is built to ask libc.

use bytes::Bytes;
#[path = "../tests/shared/tenant.rs"]
mod tenant;

use polyplane_admission::built_in;
use polyplane_apimachinery::Str;
use polyplane_auth::{Masters, UserInfo};
use polyplane_registry::environment::System;
use polyplane_registry::{Authority, GrantedAccess, Registry, ResourceRequest, Tenant, Verb};
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use tenant::empty_tenant;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// The same allocator as in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SCENARIOS: [&str; 7] = [
    "create",
    "put",
    "patch",
    "create-deployment",
    "put-deployment",
    "patch-deployment",
    "patch-status",
];

/// Objects that are changed in turn.
const OBJECTS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let one = arguments.next();
    let count = arguments.next().map(|count| count.parse::<usize>());
    let count = count.transpose()?.unwrap_or(20_000);
    let scenarios = SCENARIOS.iter().copied();
    for scenario in scenarios.filter(|name| one.as_deref().is_none_or(|one| one == *name)) {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let site = runtime.block_on(Site::open());
        runtime.block_on(site.fill())?;
        // The first writes fill caches and change what the others leave as it is.
        let first = (0..4 * OBJECTS).map(|at| site.request(scenario, at));
        send(&runtime, &site, first.collect())?;
        let requests = (0..count).map(|at| site.request(scenario, at + 4 * OBJECTS));
        let requests: Vec<ResourceRequest> = requests.collect();
        let start = std::time::Instant::now();
        measured_writes(&runtime, &site, requests)?;
        let each = start.elapsed().as_secs_f64() * 1e6 / count as f64;
        println!("{scenario:20} {each:8.1} µs");
    }
    Ok(())
}

#[inline(never)]
fn measured_writes(
    runtime: &Runtime,
    site: &Site,
    requests: Vec<ResourceRequest>,
) -> Result<(), Box<dyn Error>> {
    send(runtime, site, requests)
}

/// Sends requests, one after the other.
fn send(
    runtime: &Runtime,
    site: &Site,
    requests: Vec<ResourceRequest>,
) -> Result<(), Box<dyn Error>> {
    for request in requests {
        let answer = runtime.block_on(site.registry.handle(&site.tenant, &request));
        black_box(answer.map_err(|error| format!("{request:?}: {error:?}"))?);
    }
    Ok(())
}

struct Site {
    registry: Registry,
    tenant: Tenant,
    user: Arc<UserInfo>,
}

impl Site {
    async fn open() -> Self {
        let registry = Registry::new(Arc::new(System), Authority::fixed(Masters), Vec::new());
        Self {
            registry: registry.admitting(built_in()),
            tenant: empty_tenant().await,
            user: Arc::new(UserInfo::new("admin", &["system:masters"])),
        }
    }

    /// Creates what is changed: ConfigMaps, and Deployments with three managers.
    async fn fill(&self) -> Result<(), Box<dyn Error>> {
        let namespace = String::from(r#"{"metadata":{"name":"ns"}}"#);
        let mut requests = vec![self.ask(Verb::Create, "namespaces", "", "", namespace)];
        for at in 0..OBJECTS {
            let name = format!("o-{at}");
            let create = |kind, body| self.ask(Verb::Create, kind, "", "creator", body);
            requests.push(create("configmaps", config_map(&name, 0)));
            requests.push(create("deployments", deployment(&name, 0)));
            let mut report = self.ask(Verb::Patch, "deployments", &name, "reporter", status(0));
            report.subresource = Some("status".into());
            requests.push(report);
            let scale = format!(
                r#"{{"metadata":{{"annotations":{{"mark":"{:020}"}}}},"spec":{{"replicas":4}}}}"#,
                1
            );
            requests.push(self.ask(Verb::Patch, "deployments", &name, "scaler", scale));
        }
        for request in requests {
            let answer = self.registry.handle(&self.tenant, &request).await;
            answer.map_err(|error| format!("{request:?}: {error:?}"))?;
        }
        Ok(())
    }

    fn request(&self, scenario: &str, at: usize) -> ResourceRequest {
        let name = format!("o-{}", at % OBJECTS);
        let mark = at + 2;
        match scenario {
            "create" => {
                let body = config_map(&format!("n-{at}"), 0);
                self.ask(Verb::Create, "configmaps", "", "", body)
            }
            "create-deployment" => {
                let body = deployment(&format!("n-{at}"), 0);
                self.ask(Verb::Create, "deployments", "", "", body)
            }
            "put" => {
                let body = config_map(&name, mark);
                self.ask(Verb::Update, "configmaps", &name, "", body)
            }
            "put-deployment" => {
                let body = deployment(&name, mark);
                self.ask(Verb::Update, "deployments", &name, "scaler", body)
            }
            "patch" => {
                let body = format!(r#"{{"data":{{"stamp":"{mark:020}"}}}}"#);
                self.ask(Verb::Patch, "configmaps", &name, "", body)
            }
            "patch-deployment" => {
                let body = format!(r#"{{"metadata":{{"annotations":{{"mark":"{mark:020}"}}}}}}"#);
                self.ask(Verb::Patch, "deployments", &name, "scaler", body)
            }
            _ => {
                let body = status(mark);
                let mut ask = self.ask(Verb::Patch, "deployments", &name, "reporter", body);
                ask.subresource = Some("status".into());
                ask
            }
        }
    }

    fn ask(
        &self,
        verb: Verb,
        resource: &str,
        name: &str,
        manager: &str,
        body: String,
    ) -> ResourceRequest {
        let query = (!manager.is_empty()).then(|| ("fieldManager".to_owned(), manager.to_owned()));
        let media = match verb {
            Verb::Patch => "application/merge-patch+json",
            _ => "application/json",
        };
        ResourceRequest {
            verb,
            group: if resource == "deployments" {
                "apps"
            } else {
                ""
            }
            .into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: (resource != "namespaces").then(|| "ns".into()),
            name: (!name.is_empty()).then(|| Str::from(name)),
            subresource: None,
            query: query.into_iter().collect(),
            accept: "application/json".to_owned(),
            content_type: Some(media.to_owned()),
            user_agent: "bench/1.0".to_owned(),
            body: Bytes::from(body),
            user: Arc::clone(&self.user),
            granted: GrantedAccess::of_every_cut(),
            deadline: Instant::now() + Duration::from_secs(3600),
            seats: None,
            write_rate: None,
            annotations: None,
            token_reviewer: None,
        }
    }
}

/// Returns a ConfigMap of 1.1 KB.
fn config_map(name: &str, mark: usize) -> String {
    let data = "x".repeat(880);
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"bench":"1"}}}},"data":{{"text":"{mark:020}{data}"}}}}"#
    )
}

/// Returns a Deployment of 1.3 KB, with its members in the order of their names.
fn deployment(name: &str, mark: usize) -> String {
    let container = |name: &str, port: u16| {
        format!(
            r#"{{"args":["--listen",":{port}","--log-level","info"],"env":[{{"name":"LEVEL","value":"info"}},{{"name":"NAMESPACE","valueFrom":{{"fieldRef":{{"apiVersion":"v1","fieldPath":"metadata.namespace"}}}}}}],"image":"registry.example.com/{name}:1.2.3","name":"{name}","ports":[{{"containerPort":{port},"name":"http","protocol":"TCP"}}],"readinessProbe":{{"httpGet":{{"path":"/readyz","port":"http"}},"periodSeconds":5}},"resources":{{"limits":{{"memory":"128Mi"}},"requests":{{"cpu":"100m","memory":"64Mi"}}}}}}"#
        )
    };
    let labels = format!(r#"{{"app":"{name}","bench":"1"}}"#);
    let (web, proxy) = (container("web", 8080), container("proxy", 9090));
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"annotations":{{"mark":"{mark:020}"}},"labels":{labels},"name":"{name}"}},"spec":{{"replicas":3,"selector":{{"matchLabels":{{"app":"{name}"}}}},"template":{{"metadata":{{"labels":{labels}}},"spec":{{"containers":[{web},{proxy}]}}}}}}}}"#
    )
}

/// Returns a merge patch of forty fields of a Deployment's status.
fn status(mark: usize) -> String {
    let condition = |at: usize| {
        format!(
            r#"{{"lastTransitionTime":"2026-01-01T00:00:00Z","lastUpdateTime":"2026-01-01T00:00:00Z","message":"at {mark:020}","reason":"Measured","status":"True","type":"Condition{at}"}}"#
        )
    };
    let conditions: Vec<String> = (0..6).map(condition).collect();
    let (ready, conditions) = (mark % 3, conditions.join(","));
    format!(
        r#"{{"status":{{"conditions":[{conditions}],"observedGeneration":1,"readyReplicas":{ready},"replicas":3,"updatedReplicas":3}}}}"#
    )
}
