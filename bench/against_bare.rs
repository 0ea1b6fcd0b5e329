//! A server beside the bare one in alternating blocks: what it costs above receiving a request and
//! answering it.

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;

use crate::arguments::EffortArguments;
use crate::bare::Bare;
use crate::builds::orders;
use crate::interleave::{Plan, prepare_and_run};
use crate::report::{Block, Format, show};
use crate::results::{Kind, Measured, Results, Samples, Side, cpu_ratio};
use crate::scenarios::Scenario;
use crate::servers::{Build, Plane, Server};
use crate::table;
use crate::target::{Place, Target};

/// The server, and the load.
#[derive(Args)]
pub struct AgainstBareArguments {
    /// Scenarios; get and list if none is named
    scenarios: Vec<Scenario>,
    /// The server: kubeconfig, or kubeconfig:context; default: this tree's program is started
    #[arg(long)]
    kubeconfig: Option<Place>,
    /// Process ids of the server and its store; default: the pids or pid file beside the kubeconfig
    #[arg(long, value_delimiter = ',', requires = "kubeconfig")]
    pids: Vec<u32>,
    /// The store of the program that is started: `etcd`, or a value of `up --store`
    #[arg(long, conflicts_with = "kubeconfig")]
    store: Option<String>,
    /// The plane that gets the load, if the program is started
    #[arg(long, value_enum, default_value_t = Plane::Root)]
    plane: Plane,
    /// Blocks on each side of each scenario
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Name of the result file in bench/results; default: one that git ignores
    #[arg(long)]
    out: Option<String>,
    #[command(flatten)]
    effort: EffortArguments,
}

/// Prints the ratio of CPU per operation of each scenario, and writes the result file.
///
/// # Errors
/// Returns an error if a server does not start, answers no request of a block, or a request failed.
pub async fn against_bare(arguments: &AgainstBareArguments, format: Format) -> Result<()> {
    let scenarios = match arguments.scenarios.is_empty() {
        true => vec![Scenario::Get, Scenario::List],
        false => arguments.scenarios.clone(),
    };
    ensure!(
        !scenarios.contains(&Scenario::CreatePlane),
        "create-plane: the bare server has no planes"
    );
    let build = match arguments.kubeconfig {
        None => Some(Build::current(arguments.store.clone())?),
        Some(_) => None,
    };
    let side = match &build {
        Some(build) => build.side("server")?,
        None => Side::named("server"),
    };
    let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name()).collect();
    let recorded = json!({"scenarios": names, "rounds": arguments.rounds,
        "plane": build.as_ref().map(|_| arguments.plane), "effort": arguments.effort});
    let sides = vec![side, Side::named("bare")];
    let mut results = Results::begin(Kind::AgainstBare, recorded, sides, arguments.out.as_deref())?;
    let server = match &build {
        Some(build) => Some(Server::start("server", build, arguments.plane).await?),
        None => None,
    };
    let opened = match &arguments.kubeconfig {
        Some(place) => Some(Target::open("server", place, &arguments.pids, 4).await?),
        None => None,
    };
    let target = opened
        .as_ref()
        .or(server.as_ref().map(|server| &server.plane));
    let bare = Bare::start().await?;
    let bare = (bare.target(4).await?, bare);
    let plan = Plan {
        rounds: 0..arguments.rounds,
        effort: &arguments.effort,
    };
    for scenario in scenarios {
        let targets: Vec<&Target> = target.into_iter().chain([&bare.0]).collect();
        let blocks = prepare_and_run(scenario, &targets, &plan, None).await?;
        if matches!(scenario, Scenario::Get | Scenario::List) {
            ensure_same_length(&blocks)?;
        }
        let mut samples = vec![Samples::new("server"), Samples::new("bare")];
        for (samples, blocks) in samples.iter_mut().zip(&blocks) {
            blocks.iter().for_each(|block| samples.add(block));
        }
        let measured = measured(scenario, arguments.rounds, samples)?;
        print(&measured, format)?;
        results.scenarios.push(measured);
    }
    if let Some(server) = server {
        server.stop().await?;
    }
    if format == Format::Text {
        print!("\n{}", table::markdown(&results));
    }
    let path = results.write(arguments.out.as_deref())?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// Shows that the load generator is not the bottleneck: load on the bare server alone.
///
/// # Errors
/// Returns an error if the bare server does not start, or answers no request of a block.
pub async fn bare_alone(effort: &EffortArguments, format: Format) -> Result<()> {
    let bare = Bare::start().await?;
    let target = bare.target(4).await?;
    for scenario in [Scenario::Get, Scenario::List, Scenario::Create] {
        let prepared = scenario.prepare(&target, &effort.effort()).await?;
        prepared.block(&target, &effort.warming()).await?;
        show(
            format,
            "self, ",
            &prepared.block(&target, &effort.effort()).await?,
        );
    }
    Ok(())
}

/// Returns an error if an answer of one side is more than a twentieth longer than the other's, since
/// the ratio would be that of the lengths then.
fn ensure_same_length(blocks: &[Vec<Block>]) -> Result<()> {
    let bytes = |side: &Vec<Block>| {
        let block = side.last()?;
        Some(block.megabytes_per_second * 1e6 / block.per_second)
    };
    if let [Some(server), Some(bare)] = blocks.iter().map(bytes).collect::<Vec<_>>()[..] {
        ensure!(
            (server / bare - 1.0).abs() < 0.05,
            "the server answers {server:.0} bytes and the bare server {bare:.0}"
        );
    }
    Ok(())
}

fn measured(scenario: Scenario, rounds: u32, samples: Vec<Samples>) -> Result<Measured> {
    let name = scenario.name();
    ensure!(
        !samples.iter().any(Samples::has_errors),
        "{name}: requests failed"
    );
    let ratio = match samples.as_slice() {
        [server, bare] => cpu_ratio(server, bare),
        _ => None,
    };
    ensure!(
        ratio.is_some(),
        "{name}: the server's processes are unknown: give --pids"
    );
    Ok(Measured {
        scenario: name.to_owned(),
        order: orders(samples.len(), rounds),
        samples,
        ratio,
        twin: None,
        verdict: None,
    })
}

/// Prints the line of a scenario, which judged.toml reads.
fn print(measured: &Measured, format: Format) -> Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string(measured)?);
        return Ok(());
    }
    if let Some(ratio) = &measured.ratio {
        println!(
            "{}: {:.2}x of the CPU of the bare server ({:.2} to {:.2}); the server takes {}, the bare one {}",
            measured.scenario,
            ratio.median,
            ratio.min,
            ratio.max,
            table::micros_of(measured, 0),
            table::micros_of(measured, 1),
        );
    }
    Ok(())
}
