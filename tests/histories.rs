//! Tests of the checker: it passes right runs, and finds each fault of a store.
//!
//! Runs come from a simulated store, so that thousands are checked in a second. A second,
//! independent search judges small call histories.

#[path = "histories/simulated.rs"]
mod simulated;

use polyplane_tests::checker::search::{Call, Found, Model, search};
use polyplane_tests::checker::{Allowed, check};
use polyplane_tests::history::Moment;
use proptest::prelude::*;
use simulated::{Bug, Fate, Kind, Plan, simulate};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

const KINDS: [Kind; 10] = [
    Kind::Create,
    Kind::Create,
    Kind::Get,
    Kind::Update,
    Kind::Overwrite,
    Kind::Patch,
    Kind::Delete,
    Kind::DeleteExact,
    Kind::List,
    Kind::Break,
];
const FATES: [Fate; 10] = [
    Fate::Answered,
    Fate::Answered,
    Fate::Answered,
    Fate::Answered,
    Fate::Answered,
    Fate::Answered,
    Fate::AnswerLost,
    Fate::Late,
    Fate::Lost,
    Fate::Overload,
];
const BUGS: [Bug; 14] = [
    Bug::LostWrite,
    Bug::LostDelete,
    Bug::StaleRead,
    Bug::StaleList,
    Bug::AppliedTwice,
    Bug::VersionFalls,
    Bug::RefusedApplied,
    Bug::PhantomAlreadyExists,
    Bug::PhantomNotFound,
    Bug::WatchGap,
    Bug::WatchRepeat,
    Bug::WatchReorder,
    Bug::BookmarkAhead,
    Bug::Expires,
];

fn plan() -> impl Strategy<Value = Plan> {
    let kind = proptest::sample::select(KINDS.as_slice());
    let fate = proptest::sample::select(FATES.as_slice());
    let times = (0_u16..40, 1_u16..120, 1_u16..120);
    (kind, 0_u8..4, times, fate).prop_map(|(kind, object, (gap, there, back), fate)| Plan {
        kind,
        object,
        gap,
        there,
        back,
        fate,
    })
}

/// Returns the same requests one after another, each with an answer, so that nothing excuses a
/// fault.
fn one_by_one(plans: &[Plan]) -> Vec<Plan> {
    let plans = plans.iter().map(|plan| Plan {
        gap: 300,
        fate: match plan.fate {
            Fate::Overload => Fate::Overload,
            _ => Fate::Answered,
        },
        ..*plan
    });
    plans.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_right_store_is_found_right(plans in prop::collection::vec(plan(), 1..120)) {
        let run = simulate(&plans, None);
        let verdict = check(&run.history, Allowed::default());
        prop_assert!(verdict.is_right(), "{}", verdict);
    }

    #[test]
    fn a_right_store_is_found_right_without_watches(plans in prop::collection::vec(plan(), 1..60)) {
        let mut run = simulate(&plans, None);
        run.history.watches.clear();
        let verdict = check(&run.history, Allowed::default());
        prop_assert!(verdict.is_right(), "{}", verdict);
    }

    #[test]
    fn every_fault_is_found_where_nothing_excuses_it(
        plans in prop::collection::vec(plan(), 30..90),
        bug in proptest::sample::select(BUGS.as_slice()),
        from in 0_usize..20,
    ) {
        let run = simulate(&one_by_one(&plans), Some((bug, from)));
        let verdict = check(&run.history, Allowed::default());
        prop_assert_eq!(!verdict.is_right(), run.shown, "{:?}: {}", bug, verdict);
    }
}

/// Returns a deterministic plan, whose kinds, objects and times come from a small random generator.
fn seeded(seed: u64, length: usize, kinds: &[Kind], objects: u8) -> Vec<Plan> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let plans = (0..length).map(|_| Plan {
        kind: kinds[draw(kinds.len())],
        object: draw(usize::from(objects)) as u8,
        gap: draw(40) as u16,
        there: 1 + draw(120) as u16,
        back: 1 + draw(120) as u16,
        fate: FATES[draw(FATES.len())],
    });
    plans.collect()
}

#[test]
fn every_fault_gets_its_occasion_and_few_are_excused_by_concurrency() {
    for bug in BUGS {
        let (mut shown, mut found) = (0, 0);
        for seed in 1..=200 {
            let run = simulate(&seeded(seed, 80, &KINDS, 4), Some((bug, 20)));
            let verdict = check(&run.history, Allowed::default());
            shown += usize::from(run.shown);
            found += usize::from(run.shown && !verdict.is_right());
        }
        println!("{bug:?}: shown in {shown} of 200 runs, found in {found}");
        assert!(shown >= 20, "{bug:?} had {shown} occasions in 200 runs");
        assert!(found * 2 >= shown, "{bug:?}: {found} of {shown} found");
    }
}

#[test]
fn a_long_history_of_one_object_takes_few_steps() {
    let kinds = &KINDS[..9];
    let plans = seeded(7, 20_000, kinds, 1);
    let run = simulate(&plans, None);
    let verdict = check(&run.history, Allowed::default());
    println!("{verdict}");
    assert!(verdict.is_right(), "{verdict}");
    assert!(
        verdict.steps < 40 * plans.len() as u64,
        "{} steps",
        verdict.steps
    );
}

/// A register with compare-and-swap, for both searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register(u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Read,
    Write(u8),
    Swap(u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Held(u8),
    Done,
    Swapped(bool),
}

impl SequentialSpec for Register {
    type Op = Ask;
    type Ret = Answer;

    fn invoke(&mut self, op: &Ask) -> Answer {
        match *op {
            Ask::Read => Answer::Held(self.0),
            Ask::Write(value) => {
                self.0 = value;
                Answer::Done
            }
            Ask::Swap(old, new) => {
                let same = self.0 == old;
                if same {
                    self.0 = new;
                }
                Answer::Swapped(same)
            }
        }
    }
}

/// Calls with their answers, for [`search`].
struct Calls(Vec<(Ask, Option<Answer>)>);

impl Model for Calls {
    type State = Register;

    fn step(&self, state: &Register, call: usize) -> Option<Register> {
        let (ask, answer) = &self.0[call];
        let mut after = *state;
        let given = after.invoke(ask);
        answer.is_none_or(|answer| answer == given).then_some(after)
    }

    fn left_by(&self, _: &Register) -> Option<Moment> {
        None
    }

    fn may_end(&self, _: &Register) -> bool {
        true
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        Just(Ask::Read),
        (0_u8..3).prop_map(Ask::Write),
        (0_u8..3, 0_u8..3).prop_map(|(old, new)| Ask::Swap(old, new)),
    ]
}

fn answer(ask: Ask, guess: u8) -> Answer {
    match ask {
        Ask::Read => Answer::Held(guess % 3),
        Ask::Write(_) => Answer::Done,
        Ask::Swap(..) => Answer::Swapped(guess.is_multiple_of(2)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// Threads act in random order: one without a request in flight sends one, another gets an
    /// answer, which may be wrong. Some requests are never answered.
    #[test]
    fn the_search_agrees_with_another_one(
        turns in prop::collection::vec((0_usize..3, ask(), 0_u8..6), 2..16),
    ) {
        let mut other = LinearizabilityTester::new(Register(0));
        let mut calls: Vec<Call> = Vec::new();
        let mut asked: Vec<(Ask, Option<Answer>)> = Vec::new();
        let mut under_way: [Option<usize>; 3] = [None; 3];
        for (at, (thread, ask, guess)) in turns.into_iter().enumerate() {
            let now = Moment(2 * at as u64);
            match under_way[thread].take() {
                None => {
                    other.on_invoke(thread, ask).expect("one at a time");
                    under_way[thread] = Some(calls.len());
                    let reads = ask == Ask::Read;
                    calls.push(Call { start: now, end: None, reads, alike: None });
                    asked.push((ask, None));
                }
                Some(call) => {
                    let given = answer(asked[call].0, guess);
                    other.on_return(thread, given).expect("it was asked");
                    calls[call].end = Some(now);
                    asked[call].1 = Some(given);
                }
            }
        }
        let (found, _) = search(&Calls(asked), &calls, Register(0), 1_000_000);
        prop_assert_eq!(matches!(found, Found::Order(_)), other.is_consistent());
    }
}
