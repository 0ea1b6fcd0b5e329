//! The regression guard: two builds in alternating blocks, and the old one beside itself.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;

use crate::arguments::EffortArguments;
use crate::interleave::{Plan, order, prepare_and_run};
use crate::report::{Block, Format};
use crate::results::{Kind, Measured, Results, Samples, cpu_ratio};
use crate::scenarios::Scenario;
use crate::servers::{Build, Plane, Server};
use crate::table;
use crate::verdict::{ROUNDS_MIN, Verdict, verdict};

/// The sides: the old build, the new one, and a second instance of the old one.
const SIDES: [&str; 3] = ["a", "b", "twin"];

/// The two builds, and how they are compared.
#[derive(Args)]
pub struct BuildsArguments {
    /// Scenarios; all if none is named
    scenarios: Vec<Scenario>,
    /// The old build's program; default: the tagged release
    #[arg(long)]
    a: Option<PathBuf>,
    /// The new build's program; default: that of this tree
    #[arg(long)]
    b: Option<PathBuf>,
    /// The old build's commit, for the result file
    #[arg(long)]
    a_commit: Option<String>,
    /// The new build's commit, for the result file
    #[arg(long)]
    b_commit: Option<String>,
    /// The store of each server: `etcd`, or a value of `up --store` in which {dir} stands for the
    /// server's folder; default: that of `up`
    #[arg(long)]
    store: Option<String>,
    /// The new build's store, if it is another one
    #[arg(long)]
    b_store: Option<String>,
    /// The plane that gets the load
    #[arg(long, value_enum, default_value_t = Plane::Root)]
    plane: Plane,
    /// Blocks on each side of each scenario
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(i64::from(ROUNDS_MIN)..))]
    rounds: u32,
    /// How often the servers are started anew within the rounds, because two processes of one build
    /// differ
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// A difference up to this share is none, whatever the twin shows
    #[arg(long, default_value_t = 0.02)]
    margin: f64,
    /// Name of the result file in bench/results; default: one that git ignores
    #[arg(long)]
    out: Option<String>,
    #[command(flatten)]
    effort: EffortArguments,
}

impl BuildsArguments {
    fn old_build(&self) -> Result<Build> {
        let mut build = match &self.a {
            None => Build::tagged(self.store.clone())?,
            Some(program) => Build {
                program: program.clone(),
                commit: None,
                store: self.store.clone(),
                options: Vec::new(),
            },
        };
        build.commit = self.a_commit.clone().or(build.commit);
        Ok(build)
    }

    fn new_build(&self) -> Result<Build> {
        let store = self.b_store.clone().or_else(|| self.store.clone());
        let mut build = match &self.b {
            None => Build::current(store)?,
            Some(program) => Build {
                program: program.clone(),
                commit: None,
                store,
                options: Vec::new(),
            },
        };
        build.commit = self.b_commit.clone().or(build.commit);
        Ok(build)
    }

    /// Returns the scenarios in the order of the enum, whose last one leaves planes behind. Those that
    /// an older release refuses have to be named.
    fn scenarios(&self) -> Vec<Scenario> {
        let mut chosen = self.scenarios.clone();
        if chosen.is_empty() {
            chosen = Scenario::of_one_plane();
            chosen.retain(|scenario| !scenario.is_recent());
            chosen.push(Scenario::CreatePlane);
        }
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    fn recorded(&self) -> serde_json::Value {
        let names = self.scenarios();
        let names: Vec<&str> = names.iter().map(|scenario| scenario.name()).collect();
        json!({"scenarios": names, "plane": self.plane, "rounds": self.rounds, "starts": self.starts,
               "margin": self.margin, "effort": self.effort})
    }
}

/// Compares the builds, prints the table and writes the result file. Returns whether no scenario is
/// slower.
///
/// # Errors
/// Returns an error if a server does not start, or answers no request of a block.
pub async fn builds(arguments: &BuildsArguments, format: Format) -> Result<bool> {
    let (old, new) = (arguments.old_build()?, arguments.new_build()?);
    let sides = vec![old.side("a")?, new.side("b")?, old.side("twin")?];
    let mut results = Results::begin(
        Kind::Builds,
        arguments.recorded(),
        sides,
        arguments.out.as_deref(),
    )?;
    let scenarios = arguments.scenarios();
    let mut samples = vec![SIDES.map(Samples::new); scenarios.len()];
    for start in 0..arguments.starts {
        let rounds = share(arguments.rounds, arguments.starts, start);
        if rounds.is_empty() {
            continue;
        }
        let mut servers = Vec::new();
        for (side, build) in SIDES.iter().zip([&old, &new, &old]) {
            servers.push(Server::start(side, build, arguments.plane).await?);
        }
        let plan = Plan {
            rounds,
            effort: &arguments.effort,
        };
        for (scenario, samples) in scenarios.iter().zip(&mut samples) {
            eprintln!("start {}: {}", start + 1, scenario.name());
            let blocks = measure(*scenario, &servers, &plan).await?;
            for (samples, blocks) in samples.iter_mut().zip(&blocks) {
                blocks.iter().for_each(|block| samples.add(block));
            }
        }
        for server in servers {
            server.stop().await?;
        }
    }
    let orders = orders(SIDES.len(), arguments.rounds);
    for (scenario, samples) in scenarios.iter().zip(samples) {
        let judged = judge(
            scenario.name(),
            orders.clone(),
            samples.to_vec(),
            arguments.margin,
        );
        if format == Format::Json {
            println!("{}", serde_json::to_string(&judged)?);
        }
        results.scenarios.push(judged);
    }
    if format == Format::Text {
        print!("{}", table::markdown(&results));
    }
    let path = results.write(arguments.out.as_deref())?;
    eprintln!("written: {}", path.display());
    ensure!(!results.scenarios.is_empty(), "nothing was measured");
    let is_bad =
        |judged: &Measured| matches!(judged.verdict, Some(Verdict::Slower | Verdict::Failed));
    Ok(!results.scenarios.iter().any(is_bad))
}

async fn measure(
    scenario: Scenario,
    servers: &[Server],
    plan: &Plan<'_>,
) -> Result<Vec<Vec<Block>>> {
    let targets = servers.iter().map(|server| match scenario {
        Scenario::CreatePlane => &server.root,
        _ => &server.plane,
    });
    let targets: Vec<_> = targets.collect();
    let blocks = prepare_and_run(scenario, &targets, plan, None).await?;
    for (side, blocks) in SIDES.iter().zip(&blocks) {
        for error in blocks.iter().filter_map(|block| block.first_error.as_ref()) {
            eprintln!("{side}, {}: requests failed: {error}", scenario.name());
        }
    }
    Ok(blocks)
}

/// Returns the rounds of one start: all starts together have each round once.
fn share(rounds: u32, starts: u32, start: u32) -> std::ops::Range<u32> {
    rounds * start / starts..rounds * (start + 1) / starts
}

/// Returns the order of the sides in each round, as result files have it.
pub fn orders(sides: usize, rounds: u32) -> Vec<String> {
    let text = |round| order(sides, round).iter().map(usize::to_string).collect();
    (0..rounds).map(text).collect()
}

/// Compares the samples of `a`, `b` and the twin.
pub fn judge(scenario: &str, order: Vec<String>, samples: Vec<Samples>, margin: f64) -> Measured {
    let (ratio, twin) = match samples.as_slice() {
        [a, b, twin] => (cpu_ratio(a, b), cpu_ratio(a, twin)),
        _ => (None, None),
    };
    let found = match (&ratio, &twin) {
        (Some(ratio), Some(twin)) if !samples.iter().any(Samples::has_errors) => {
            verdict(ratio, twin, margin)
        }
        _ => Verdict::Failed,
    };
    Measured {
        scenario: scenario.to_owned(),
        order,
        samples,
        ratio,
        twin,
        verdict: Some(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::block;

    fn judged(new_micros: f64, has_error: bool) -> Option<Verdict> {
        let samples = [100.0, new_micros, 101.0].into_iter().zip(SIDES);
        let samples = samples.map(|(micros, side)| {
            let mut samples = Samples::new(side);
            for _ in 0..ROUNDS_MIN {
                let mut block = block(1000, micros);
                block.errors = u64::from(has_error);
                samples.add(&block);
            }
            samples
        });
        judge("get", Vec::new(), samples.collect(), 0.02).verdict
    }

    #[test]
    fn more_cpu_for_an_operation_is_slower() {
        assert_eq!(judged(110.0, false), Some(Verdict::Slower));
        assert_eq!(judged(90.0, false), Some(Verdict::Faster));
        assert_eq!(judged(101.0, false), Some(Verdict::Same));
    }

    #[test]
    fn figures_of_a_server_that_failed_mean_nothing() {
        assert_eq!(judged(90.0, true), Some(Verdict::Failed));
        let unknown = SIDES.map(Samples::new).to_vec();
        let judged = judge("get", Vec::new(), unknown, 0.02);
        assert_eq!(judged.verdict, Some(Verdict::Failed));
    }

    #[test]
    fn every_round_belongs_to_one_start() {
        for (rounds, starts) in [(6, 1), (12, 3), (7, 3), (6, 8)] {
            let all: Vec<u32> = (0..starts)
                .flat_map(|start| share(rounds, starts, start))
                .collect();
            assert_eq!(all, (0..rounds).collect::<Vec<_>>());
        }
    }
}
