//! The large budgets: `cargo run --release -p polyplane-fencing --example explore -- [secs] [name]`
//! explores every scenario whose name contains `name`, each for at most `secs` seconds (60), and
//! then walks at random for as long. Exits with 1 if an invariant broke.

#[path = "../model/mod.rs"]
mod model;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use model::{Scenario, scenarios};
use polyplane_fencing::Rule;
use stateright::{Checker, Expectation, HasDiscoveries, Model, UniformChooser};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(60);
    let wanted = arguments.next().unwrap_or_default();
    let limit = Duration::from_secs(seconds);
    let mut sound = true;
    let every = [scenarios::small(), scenarios::tenure(), scenarios::large()];
    for (name, scenario) in every.into_iter().flatten() {
        if name.contains(&wanted) {
            sound &= explore(name, scenario, limit);
        }
    }
    for rule in Rule::ALL {
        if format!("without {rule:?}").contains(&wanted) {
            let found = !explore(
                &format!("without {rule:?}"),
                scenarios::without(rule),
                limit,
            );
            sound &= found;
        }
    }
    for seed in 0..2 {
        let walks = scenarios::wide().checker().threads(2).timeout(limit);
        let walks = walks.finish_when(HasDiscoveries::AnyFailures);
        sound &= report(
            &format!("walks {seed}"),
            &walks.spawn_simulation(seed, UniformChooser).join(),
        );
    }
    match sound {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn explore(name: &str, scenario: Scenario, limit: Duration) -> bool {
    let started = Instant::now();
    let checker = scenario.checker().threads(2).timeout(limit);
    let checker = checker
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let sound = report(name, &checker);
    let whole = sound && checker.is_done() && started.elapsed() < limit;
    let space = if whole {
        "whole space"
    } else {
        "not exhausted"
    };
    println!("    {space}, {} s", started.elapsed().as_secs());
    sound
}

/// Prints what was found; whether nothing broke.
fn report(name: &str, checker: &impl Checker<Scenario>) -> bool {
    let (unique, all) = (checker.unique_state_count(), checker.state_count());
    println!(
        "{name}: {unique} states ({all} generated), depth {}",
        checker.max_depth()
    );
    let mut sound = true;
    for property in checker.model().properties() {
        if property.expectation != Expectation::Always {
            continue;
        }
        if let Some(path) = checker.discovery(property.name) {
            sound = false;
            println!("    {}: {:?}", property.name, path.last_state().breach);
            for happening in path.into_actions() {
                println!("        {happening:?}");
            }
        }
    }
    sound
}
