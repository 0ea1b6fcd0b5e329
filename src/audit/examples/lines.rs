//! Records requests as a server does, without a server: what a line costs, for a profiler.
//!
//! ```text
//! valgrind --tool=callgrind target/debug/examples/lines get 20000 /tmp/audit.log
//! ```

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use polyplane_audit::{
    Auditor, Backend, BatchOptions, Format, Head, Log, LogOptions, Mode, Object, Outcome,
    PlaneName, Policy, SinkOptions, Sources, Stage,
};
use polyplane_auth::{Attributes, Subject, UserInfo};

const POLICY: &[u8] = b"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: lines get|create NUMBER FILE";
    let verb = arguments.next().context(usage)?;
    let count: u64 = arguments.next().context(usage)?.parse()?;
    let path = arguments.next().context(usage)?;
    let name = match verb.as_str() {
        "get" => "object-000123",
        "create" => "",
        _ => bail!(usage),
    };
    let log = Log::open(&LogOptions {
        path: path.into(),
        format: Format::Json,
        megabytes_max: 0,
        kept_max: 0,
        days_max: 0,
        sink: SinkOptions {
            mode: Mode::Batch,
            batch: BatchOptions {
                waiting_max: 40_000,
                events_max: 400,
                wait_max: Duration::from_millis(10),
                throttle: None,
            },
            truncation: None,
        },
    })?;
    let auditor = Arc::new(Auditor::new(
        Policy::parse(POLICY)?,
        vec![Backend::Log(log)],
    ));
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ];
    let user = Arc::new(UserInfo::new(
        "system:serviceaccount:default:bench",
        &groups,
    ));
    let remote: IpAddr = [127, 0, 0, 1].into();
    for _ in 0..count {
        record(&auditor, &user, remote, &verb, name);
    }
    Arc::clone(&auditor).close().await;
    let metrics = auditor.metrics();
    ensure!(metrics.events == count, "{metrics:?}");
    println!("{} lines, {} lost", metrics.events, metrics.lost);
    Ok(())
}

fn record(auditor: &Auditor, user: &Arc<UserInfo>, remote: IpAddr, verb: &str, name: &str) {
    let collection = "/api/v1/namespaces/default/configmaps";
    let object = "/api/v1/namespaces/default/configmaps/object-000123";
    let request = Attributes {
        user,
        verb,
        subject: Subject::Resource {
            group: "",
            version: "v1",
            resource: "configmaps",
            subresource: "",
            namespace: "default",
            name,
            field_selector: "",
        },
    };
    let Some(plan) = auditor.plan(&request) else {
        return;
    };
    let mut event = auditor.event(
        plan,
        Head {
            audit_id: "2b5d8f0e-3a61-4b5e-9b8e-0f5ad7a1c9d4",
            uri: if name.is_empty() { collection } else { object },
            verb,
            user,
            sources: Sources::from_iter([remote]),
            user_agent: "polyplane-bench/0.1",
            object: Some(Object {
                version: "v1",
                resource: "configmaps",
                namespace: "default",
                name,
                ..Object::default()
            }),
            plane: PlaneName {
                name: "tenant",
                id: "5f0c9a3e-1d2b-4c8f-8a7e-6b5d4c3b2a19",
            },
            received: SystemTime::now(),
        },
    );
    let reason =
        "RBAC: allowed by ClusterRoleBinding \"edit\" of ClusterRole \"edit\" to User \"jane\"";
    event.decided(true, reason);
    if name.is_empty() {
        event.created = "object-000123".into();
    }
    event.outcome = Some(Outcome {
        code: 200,
        status: Bytes::new(),
    });
    if plan.records(Stage::ResponseComplete) {
        let event = Arc::new(event);
        drop(auditor.record_whole(&event, Stage::ResponseComplete, SystemTime::now()));
    }
}
