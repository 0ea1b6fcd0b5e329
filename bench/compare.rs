//! The same load on two servers in alternating blocks, and their ratios.

use anyhow::{Context, Result};
use clap::Args;
use polyplane_tests::programs::Server as Program;
use serde_json::json;

use crate::arguments::EffortArguments;
use crate::builds::orders;
use crate::interleave::{Plan, prepare_and_run};
use crate::report::{Block, Format, Spread};
use crate::results::{Kind, Measured, Results, Samples, Side, cpu_ratio};
use crate::scenarios::Scenario;
use crate::servers::{Build, Plane, Server};
use crate::target::{Place, Target};

/// The two servers, and the load.
#[derive(Args)]
pub struct CompareArguments {
    /// Scenarios; all that every API server can run if none is named
    scenarios: Vec<Scenario>,
    /// The measured server: kubeconfig, or kubeconfig:context; default: this tree's program is
    /// started
    #[arg(long)]
    a: Option<Place>,
    /// The server it is compared with: kubeconfig, or kubeconfig:context; default: kube-apiserver
    /// and etcd are started
    #[arg(long)]
    b: Option<Place>,
    /// Process ids of a; default: the pids or pid file beside its kubeconfig
    #[arg(long, value_delimiter = ',', requires = "a")]
    a_pids: Vec<u32>,
    /// Process ids of b; default: the pids or pid file beside its kubeconfig
    #[arg(long, value_delimiter = ',', requires = "b")]
    b_pids: Vec<u32>,
    /// The store of a, if it is started: `etcd`, or a value of `up --store`
    #[arg(long, conflicts_with = "a")]
    store: Option<String>,
    /// The plane that gets the load, if a is started
    #[arg(long, value_enum, default_value_t = Plane::Root)]
    plane: Plane,
    /// Blocks on each side
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Name of a result file in bench/results
    #[arg(long)]
    out: Option<String>,
    #[command(flatten)]
    effort: EffortArguments,
}

/// A server that was started or was there.
enum Opened {
    There(Target),
    Started(Box<Server>),
    Reference(
        Target,
        #[expect(dead_code, reason = "its end ends the processes")] Box<Program>,
    ),
}

impl Opened {
    fn target(&self) -> &Target {
        match self {
            Self::There(target) | Self::Reference(target, _) => target,
            Self::Started(server) => &server.plane,
        }
    }
}

/// Prints the ratios of each scenario, and writes the result file if it has a name.
///
/// # Errors
/// Returns an error if a server does not start, or answers no request of a block.
pub async fn compare(arguments: &CompareArguments, format: Format) -> Result<()> {
    let scenarios = match arguments.scenarios.is_empty() {
        true => Scenario::of_one_plane(),
        false => arguments.scenarios.clone(),
    };
    let build = match arguments.a {
        None => Some(Build::current(arguments.store.clone())?),
        Some(_) => None,
    };
    let on_a = match &build {
        Some(build) => build.side("Polyplane")?,
        None => Side::named("a"),
    };
    let on_b = Side::named(match arguments.b {
        None => "kube-apiserver + etcd",
        Some(_) => "b",
    });
    let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name()).collect();
    let recorded = json!({"scenarios": names, "rounds": arguments.rounds,
        "plane": build.as_ref().map(|_| arguments.plane), "effort": arguments.effort});
    let mut results = Results::begin(
        Kind::Compare,
        recorded,
        vec![on_a, on_b],
        arguments.out.as_deref(),
    )?;
    let a = match (&arguments.a, &build) {
        (Some(place), _) => Opened::There(Target::open("a", place, &arguments.a_pids, 4).await?),
        (None, build) => {
            let build = build.as_ref().context("found above")?;
            Opened::Started(Box::new(Server::start("a", build, arguments.plane).await?))
        }
    };
    let b = match &arguments.b {
        Some(place) => Opened::There(Target::open("b", place, &arguments.b_pids, 4).await?),
        None => reference().await?,
    };
    let plan = Plan {
        rounds: 0..arguments.rounds,
        effort: &arguments.effort,
    };
    for scenario in scenarios {
        let targets = [a.target(), b.target()];
        let blocks = prepare_and_run(scenario, &targets, &plan, Some(format)).await?;
        if let [on_a, on_b] = blocks.as_slice() {
            print_ratios(scenario, on_a, on_b, format);
            results
                .scenarios
                .push(measured(scenario, arguments.rounds, on_a, on_b));
        }
    }
    if let Some(name) = &arguments.out {
        eprintln!("written: {}", results.write(Some(name))?.display());
    }
    Ok(())
}

async fn reference() -> Result<Opened> {
    let program = Box::new(Program::start_reference().await?);
    let place = Place {
        kubeconfig: program.kubeconfig.clone(),
        context: None,
    };
    let target = Target::open("b", &place, &[], 4).await?;
    Ok(Opened::Reference(target, program))
}

fn measured(scenario: Scenario, rounds: u32, on_a: &[Block], on_b: &[Block]) -> Measured {
    let samples = [("a", on_a), ("b", on_b)].map(|(side, blocks)| {
        let mut samples = Samples::new(side);
        blocks.iter().for_each(|block| samples.add(block));
        samples
    });
    Measured {
        scenario: scenario.name().to_owned(),
        order: orders(samples.len(), rounds),
        ratio: cpu_ratio(&samples[1], &samples[0]),
        samples: samples.to_vec(),
        twin: None,
        verdict: None,
    }
}

fn print_ratios(scenario: Scenario, on_a: &[Block], on_b: &[Block], format: Format) {
    let ratios = |of: &dyn Fn(&Block, &Block) -> Option<f64>| {
        let pairs = on_a.iter().zip(on_b);
        Spread::of(pairs.filter_map(|(a, b)| of(a, b)).collect())
    };
    let cpu = ratios(&|a, b| Some(b.server_micros()? / a.server_micros()?));
    let rate = ratios(&|a, b| Some(a.per_second / b.per_second));
    let median = ratios(&|a, b| Some(b.latency.p50 / a.latency.p50));
    let tail = ratios(&|a, b| Some(b.latency.p99 / a.latency.p99));
    let name = scenario.name();
    match format {
        Format::Json => println!(
            "{}",
            json!({"scenario": name, "operations per CPU second, a/b": cpu, "rate, a/b": rate,
                   "p50, b/a": median, "p99, b/a": tail})
        ),
        Format::Text => {
            let text = |spread: &Option<Spread>| match spread {
                Some(Spread { median, min, max }) => format!("{median:.2}x ({min:.2} to {max:.2})"),
                None => "unknown".to_owned(),
            };
            let rounds = on_a.len();
            println!("{name}: a against b, median and range of {rounds} rounds");
            println!(
                "  {name}, operations per CPU second of server and store: {}",
                text(&cpu)
            );
            println!("  operations per second: {}", text(&rate));
            println!(
                "  latency, how many times shorter: p50 {}, p99 {}",
                text(&median),
                text(&tail)
            );
        }
    }
}
