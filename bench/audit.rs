//! What an audit line costs: two servers of one build, of which one writes a line for each request.

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::arguments::EffortArguments;
use crate::interleave::{Plan, prepare_and_run};
use crate::report::{Block, Spread};
use crate::scenarios::Scenario;
use crate::servers::{Build, Plane, Server};

/// Who asked for what, without bodies, once for each request.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// Prints the CPU that a line of the audit log adds to a GET and to a CREATE.
///
/// # Errors
/// Returns an error if a server does not start, or a request failed.
pub async fn audit(rounds: u32, effort: &EffortArguments) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let silent = Build::current(None)?;
    let mut audited = silent.clone();
    audited.options = options(&folder)?;
    let silent = Server::start("silent", &silent, Plane::Tenant).await?;
    let audited = Server::start("audited", &audited, Plane::Tenant).await?;
    for scenario in [Scenario::Get, Scenario::Create] {
        let plan = Plan {
            rounds: 0..rounds,
            effort,
        };
        let targets = [&silent.plane, &audited.plane];
        let blocks = prepare_and_run(scenario, &targets, &plan, None).await?;
        let [of_silent, of_audited] = &blocks[..] else {
            anyhow::bail!("two servers have two rows of blocks");
        };
        let errors: u64 = blocks.iter().flatten().map(|block| block.errors).sum();
        ensure!(errors == 0, "{}: {errors} requests failed", scenario.name());
        let median = |blocks: &[Block]| {
            let all = blocks.iter().filter_map(Block::server_micros);
            Spread::of(all.collect()).map_or(0.0, |all| all.median)
        };
        let pairs = of_silent.iter().zip(of_audited);
        let added = pairs.filter_map(|(silent, audited)| {
            Some(audited.server_micros()? - silent.server_micros()?)
        });
        let added = Spread::of(added.collect()).context("no CPU time was counted")?;
        println!(
            "{}: a line of the audit log adds {:.1} µs ({:.1} to {:.1}) to a request of {:.1} µs",
            scenario.name(),
            added.median,
            added.min,
            added.max,
            median(of_silent)
        );
    }
    silent.stop().await?;
    audited.stop().await
}

fn options(folder: &TempDir) -> Result<Vec<String>> {
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY)?;
    let log = folder.path().join("audit.log");
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ])
}
