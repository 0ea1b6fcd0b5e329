//! Replays scenarios against the reference and records the answers, or checks that another run has
//! the same answers.
//!
//! `cargo run -p polyplane-tests --bin record` starts a reference of its own; `--kubeconfig` uses a
//! running server; `--check` writes nothing and compares with the recordings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use polyplane_tests::compare::differences;
use polyplane_tests::golden::{Golden, scenario_files};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::Server;
use polyplane_tests::run::run;
use polyplane_tests::scenario::Scenario;

/// Records what the reference answers.
#[derive(Parser)]
struct Arguments {
    /// Scenarios to replay; all if none is named
    scenarios: Vec<String>,
    /// A running server to replay against, instead of a reference started for this
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The context to use of that kubeconfig
    #[arg(long)]
    context: Option<String>,
    /// Compare with the recordings instead of writing them
    #[arg(long)]
    check: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut references = References::default();
    let (mut scenarios, mut steps, mut different) = (0, 0, 0);
    for (name, path) in scenario_files()? {
        if !arguments.scenarios.is_empty() && !arguments.scenarios.contains(&name) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let scenario = Scenario::parse(&name, &text).with_context(|| format!("scenario {name}"))?;
        let kubeconfig = match &arguments.kubeconfig {
            Some(path) => path.clone(),
            None => references.with_flags(&scenario.reference_flags).await?,
        };
        let endpoint = Endpoint::from_kubeconfig(&kubeconfig, arguments.context.as_deref())?;
        let answered = run(&scenario, &endpoint).await?;
        scenarios += 1;
        steps += answered.steps.len();
        println!("{name}: {} steps", answered.steps.len());
        if !arguments.check {
            answered.store(&name)?;
            continue;
        }
        for difference in differences(&Golden::load(&name)?, &answered) {
            different += 1;
            println!("  step {:?}\n{difference}", difference.step);
        }
    }
    if scenarios == 0 {
        bail!("no such scenario");
    }
    println!("{scenarios} scenarios, {steps} steps");
    if different > 0 {
        bail!("{different} differences");
    }
    Ok(())
}

/// The references that run, by the flags that scenarios need.
#[derive(Default)]
struct References(BTreeMap<Vec<String>, Server>);

impl References {
    /// Returns the kubeconfig of the reference with these flags, and starts it first if it does not
    /// run.
    async fn with_flags(&mut self, flags: &[String]) -> Result<PathBuf> {
        if let Some(server) = self.0.get(flags) {
            return Ok(server.kubeconfig.clone());
        }
        let server = Server::start_reference_flagged(flags).await?;
        let kubeconfig = server.kubeconfig.clone();
        self.0.insert(flags.to_vec(), server);
        Ok(kubeconfig)
    }
}
