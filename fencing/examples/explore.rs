//! Searches with large budgets: `cargo run --release -p polyplane-fencing --example explore --
//! [secs] [name] [every]` searches every scenario whose name contains `name`, each for at most
//! `secs` seconds (60 by default), and then walks at random for the same time. With `every` after
//! the name it searches every state, without the reductions that make spaces smaller. Exits with 1
//! if an invariant broke.

#[path = "../model/mod.rs"]
mod model;

use std::process::ExitCode;
use std::time::Duration;

use model::search::{Limits, Reduction, search};
use model::{Scenario, scenarios};
use polyplane_fencing::Rule;
use stateright::{Checker, Expectation, HasDiscoveries, Model, UniformChooser};

/// Number of states of one search at most: they take about six gigabytes.
const STATES_MAX: usize = 80_000_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(60);
    let wanted = arguments.next().unwrap_or_default();
    let reduction = match arguments.next().as_deref() {
        Some("every") => Reduction::None,
        Some(_) | None => Reduction::Full,
    };
    let limit = Duration::from_secs(seconds);
    let mut sound = true;
    let every = [
        scenarios::small(),
        scenarios::tenure(),
        scenarios::changing(),
        scenarios::large(),
    ];
    for (name, scenario) in every.into_iter().flatten() {
        if name.contains(&wanted) {
            sound &= explore(&name, scenario, limit, reduction);
        }
    }
    for rule in Rule::ALL {
        if format!("without {rule:?}").contains(&wanted) {
            let found = !explore(
                &format!("without {rule:?}"),
                scenarios::without(rule),
                limit,
                reduction,
            );
            sound &= found;
        }
    }
    for seed in 0..2 {
        let name = format!("walks {seed}");
        if name.contains(&wanted) {
            let walks = match seed {
                0 => scenarios::wide(),
                _ => scenarios::wide_changing(),
            };
            let walks = walks.checker().threads(2).timeout(limit);
            let walks = walks.finish_when(HasDiscoveries::AnyFailures);
            let walks = walks.spawn_simulation(seed, UniformChooser).join();
            sound &= report(&name, &walks);
        }
    }
    match sound {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn explore(name: &str, scenario: Scenario, limit: Duration, reduction: Reduction) -> bool {
    let limits = Limits {
        time: limit,
        states: STATES_MAX,
    };
    let tell = |line: &str| println!("    {line}");
    let found = search(&scenario, reduction, limits, tell, |_| {});
    let (states, worlds, depth) = (found.states, found.worlds, found.depth);
    let space = match found.whole {
        true => "whole space",
        false => "not exhausted",
    };
    let millis = found.took.as_millis();
    println!(
        "{name}: {states} states ({worlds} worlds, {} generated), depth {depth}, {space}, {millis} ms",
        found.generated
    );
    let Some((property, way)) = found.failure else {
        return true;
    };
    println!("    {property}:");
    for happening in way {
        println!("        {happening:?}");
    }
    false
}

/// Prints the result of a search. Returns whether no invariant broke.
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
