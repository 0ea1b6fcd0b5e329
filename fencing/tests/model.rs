//! Whole state spaces of the protocol, driven by the crate's own machines, within small budgets;
//! `examples/explore.rs` has the larger ones. Taking out any rule must break an invariant. Random
//! runs go where no exhaustive search can. proptest shrinks a failing run to its shortest list of
//! choices.

#[path = "../model/mod.rs"]
mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use model::search::{Found, Limits, Reduction, search};
use model::{Scenario, World, scenarios};
use polyplane_fencing::Rule;
use proptest::prelude::*;
use stateright::{Checker, Expectation, Model};

/// The limits of a search. A test fails if a search reaches them: a change has then made its state
/// space far larger.
const PATIENCE: Limits = Limits {
    time: Duration::from_secs(120),
    states: 10_000_000,
};

/// Searches a space and collects the outlines of the states that it reaches.
fn searched(scenario: &Scenario, reduction: Reduction, outlines: &mut BTreeSet<String>) -> Found {
    let visit = |world: &World| {
        outlines.insert(world.outline(scenario));
    };
    search(scenario, reduction, PATIENCE, |_| {}, visit)
}

/// Forms and bounds lose nothing that can be seen: the reduced search reaches exactly the outlines
/// that a search of every state reaches.
#[test]
fn the_whole_space_of_every_small_scenario_is_sound() {
    let small = scenarios::small().into_iter().chain(scenarios::tenure());
    for (name, scenario) in small.chain(scenarios::changing()) {
        let (mut all, mut few) = (BTreeSet::new(), BTreeSet::new());
        let every = searched(&scenario, Reduction::None, &mut all);
        let reduced = searched(&scenario, Reduction::Full, &mut few);
        println!(
            "{name}: {} states, {} ms; reduced to {} states, {} ms",
            every.states,
            every.took.as_millis(),
            reduced.states,
            reduced.took.as_millis()
        );
        for found in [every, reduced] {
            assert!(found.failure.is_none(), "{name}: {:#?}", found.failure);
            assert!(found.whole, "{name}: not searched to its end");
            assert!(found.second_owner, "{name}: nobody ever takes over");
        }
        let missed = all.symmetric_difference(&few).next();
        assert!(
            missed.is_none(),
            "{name}: only one of two came to {missed:?}"
        );
    }
}

/// The search here finds as many states as a general checker does.
#[test]
fn a_search_of_every_state_is_that_of_a_general_checker() {
    let (name, scenario) = scenarios::tenure().swap_remove(1);
    let checker = scenario.clone().checker().threads(2).spawn_bfs().join();
    let found = searched(&scenario, Reduction::None, &mut BTreeSet::new());
    assert_eq!(found.states, checker.unique_state_count(), "{name}");
}

#[test]
fn each_rule_taken_out_is_missed() {
    let mut useless = Vec::new();
    for rule in Rule::ALL {
        let scenario = scenarios::without(rule);
        let found = [Reduction::None, Reduction::Full].map(|reduction| {
            let found = search(&scenario, reduction, PATIENCE, |_| {}, |_| {});
            let (states, millis) = (found.states, found.took.as_millis());
            println!(
                "{rule:?}: {states} states, {millis} ms: {:?}",
                found.failure
            );
            found.failure
        });
        if found.iter().any(Option::is_none) {
            useless.push(rule);
        }
    }
    assert!(useless.is_empty(), "nothing goes wrong without {useless:?}");
}

/// The coverage of a random run.
#[derive(Default)]
struct Run {
    second_owner: bool,
}

/// Runs the choices. Returns the first broken invariant with the events that led to it, if one
/// breaks.
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

    /// Budgets too large for an exhaustive search: five processes of three replicas, lagging and
    /// lost replies, transactions applied at any later time, clocks that miss ticks, long pauses.
    #[test]
    fn no_random_run_breaks_an_invariant(
        choices in proptest::collection::vec(any::<u16>(), 150..600)
    ) {
        for scenario in [scenarios::wide(), scenarios::wide_changing()] {
            let run = run(&scenario, &choices);
            prop_assert!(run.is_ok(), "{}", run.err().unwrap_or_default());
        }
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
    // A simple random number generator: the test only needs runs in which a takeover happens.
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
