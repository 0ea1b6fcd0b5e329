//! Whole state spaces of the protocol, driven by the crate's own machines, within small budgets;
//! `examples/explore.rs` has the larger ones. Each rule taken out must be missed, and random runs go
//! where no exhaustive search can. proptest shrinks a broken run to its shortest list of choices.

#[path = "../model/mod.rs"]
mod model;

use std::time::{Duration, Instant};

use model::{Scenario, scenarios};
use polyplane_fencing::Rule;
use proptest::prelude::*;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

const SECOND_OWNER: &str = "the plane has a second owner";

/// The scenario's end, should a change blow a space up: a run that meets it fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// What an exploration found.
struct Explored {
    failures: Vec<String>,
    states: usize,
    /// The space was searched to its end.
    whole: bool,
    second_owner: bool,
}

/// Explores until a property fails or nothing is left.
fn explore(scenario: &Scenario) -> Explored {
    let started = Instant::now();
    let finish = HasDiscoveries::AnyFailures;
    let checker = scenario.clone().checker().threads(2).finish_when(finish);
    let checker = checker.timeout(PATIENCE).spawn_bfs().join();
    let mut failures = Vec::new();
    for (name, path) in checker.discoveries() {
        let breach = path.last_state().breach;
        if name != SECOND_OWNER {
            failures.push(format!("{name} ({breach:?}): {:?}", path.into_actions()));
        }
    }
    Explored {
        states: checker.unique_state_count(),
        whole: failures.is_empty() && checker.is_done() && started.elapsed() < PATIENCE,
        second_owner: checker.discovery(SECOND_OWNER).is_some(),
        failures,
    }
}

#[test]
fn the_whole_space_of_every_small_scenario_is_sound() {
    for (name, scenario) in scenarios::small().into_iter().chain(scenarios::tenure()) {
        let started = Instant::now();
        let explored = explore(&scenario);
        println!(
            "{name}: {} states, {} ms",
            explored.states,
            started.elapsed().as_millis()
        );
        assert!(
            explored.failures.is_empty(),
            "{name}: {:#?}",
            explored.failures
        );
        assert!(explored.whole, "{name}: not searched to its end");
        assert!(explored.second_owner, "{name}: nobody ever takes over");
    }
}

#[test]
fn each_rule_taken_out_is_missed() {
    let mut useless = Vec::new();
    for rule in Rule::ALL {
        let started = Instant::now();
        let Explored {
            failures, states, ..
        } = explore(&scenarios::without(rule));
        let millis = started.elapsed().as_millis();
        println!("{rule:?}: {states} states, {millis} ms: {failures:?}");
        if failures.is_empty() {
            useless.push(rule);
        }
    }
    assert!(useless.is_empty(), "nothing goes wrong without {useless:?}");
}

/// What a run saw.
#[derive(Default)]
struct Run {
    second_owner: bool,
}

/// Follows the choices; the first broken invariant, with the way to it.
fn run(scenario: &Scenario, choices: &[u16]) -> Result<Run, String> {
    let mut world = scenario
        .init_states()
        .pop()
        .expect("there is one initial state");
    let mut run = Run::default();
    let mut way = Vec::new();
    for choice in choices {
        let mut happenings = Vec::new();
        scenario.actions(&world, &mut happenings);
        if happenings.is_empty() {
            break;
        }
        let happening = happenings[usize::from(*choice) % happenings.len()];
        way.push(happening);
        world = scenario
            .next_state(&world, happening)
            .expect("what is offered can happen");
        for property in scenario.properties() {
            let holds = (property.condition)(scenario, &world);
            match property.expectation {
                Expectation::Always if !holds => {
                    let breach = world.breach;
                    return Err(format!("{} ({breach:?}) after {way:?}", property.name));
                }
                Expectation::Sometimes => run.second_owner |= holds,
                Expectation::Always | Expectation::Eventually => {}
            }
        }
    }
    Ok(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Budgets far beyond what can be exhausted: five processes of three replicas, lagging and lost
    /// replies, transactions applied at any later time, clocks that miss ticks, long pauses.
    #[test]
    fn no_random_run_breaks_an_invariant(
        choices in proptest::collection::vec(any::<u16>(), 150..600)
    ) {
        let run = run(&scenarios::wide(), &choices);
        prop_assert!(run.is_ok(), "{}", run.err().unwrap_or_default());
    }

    #[test]
    fn no_random_run_of_a_large_scenario_breaks_an_invariant(
        which in 0..scenarios::large().len(),
        choices in proptest::collection::vec(any::<u16>(), 10..60)
    ) {
        let (name, scenario) = scenarios::large().swap_remove(which);
        let run = run(&scenario, &choices);
        prop_assert!(run.is_ok(), "{name}: {}", run.err().unwrap_or_default());
    }
}

#[test]
fn random_runs_get_somewhere() {
    // A plain generator: the point is only that such runs do take over.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut takeovers = 0;
    for _ in 0..50 {
        let mut choices = Vec::new();
        for _ in 0..500 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            choices.push((random >> 40) as u16);
        }
        let run = run(&scenarios::wide(), &choices).expect("a sound run");
        takeovers += u32::from(run.second_owner);
    }
    assert!(
        takeovers > 25,
        "only {takeovers} of 50 runs saw a second owner"
    );
}
