//! Searches an order of concurrent calls that one sequential object could have produced.
//!
//! The search is that of Wing and Gong with the memory of Lowe: calls are placed one after another,
//! always one that began before the earliest end among those not yet placed, and a set of placed
//! calls with a state is never examined twice. Three rules shorten the search without losing
//! orders: a call that changes nothing is placed as soon as it fits; of calls that may or may not
//! have happened and have the same effect, only one is tried; a model may name a moment by which a
//! state must have been left. This module is pure, and does not know what the calls mean.

use std::collections::HashSet;
use std::hash::Hash;

use crate::history::Moment;

/// One call to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call happened after this moment.
    pub start: Moment,
    /// The call happened before this moment; `None` if it may have happened at any later time, or
    /// never.
    pub end: Option<Moment>,
    /// True if the call never changes the state.
    pub reads: bool,
    /// Calls without an end that have the same number here have the same effect in every state.
    pub alike: Option<u32>,
}

/// A sequential object.
pub trait Model {
    /// The state of the object.
    type State: Clone + Eq + Hash;

    /// Returns the state after a call, which is given by its place in the list; `None` if the call
    /// cannot have had its answer in this state.
    fn step(&self, state: &Self::State, call: usize) -> Option<Self::State>;

    /// Returns the moment by which the state was certainly left. No call that began later saw the
    /// state.
    fn left_by(&self, state: &Self::State) -> Option<Moment>;

    /// Returns whether the object may stay in this state forever.
    fn may_end(&self, state: &Self::State) -> bool;
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<S> {
    /// A legal order, as places in the list of calls.
    Order(Vec<usize>),
    /// There is no legal order. The fields describe the longest legal beginning.
    None {
        /// The number of calls that were placed.
        placed: usize,
        /// The state after these calls.
        state: S,
        /// The calls of which one had to follow, but none could.
        open: Vec<usize>,
    },
    /// The search exceeded its limit.
    GaveUp,
}

/// One decision that can be undone.
struct Choice<S> {
    /// The number of calls that had been placed before the decision.
    placed: usize,
    state: S,
    /// The other calls that could be placed here, the best one last.
    others: Vec<usize>,
}

struct Search<'a, M: Model> {
    model: &'a M,
    calls: &'a [Call],
    /// The calls that are not placed, by their start, as a ring of neighbours. The last place in
    /// both lists is the ring's beginning and end.
    after: Vec<usize>,
    before: Vec<usize>,
    order: Vec<usize>,
    /// The number of calls with an end that are not placed.
    owed: usize,
    /// A number that represents the set of placed calls.
    signature: u128,
    steps: u64,
}

/// Searches with at most `steps_max` calls of the model; returns the number of calls as well.
pub fn search<M: Model>(
    model: &M,
    calls: &[Call],
    initial: M::State,
    steps_max: u64,
) -> (Found<M::State>, u64) {
    let mut by_start: Vec<usize> = (0..calls.len()).collect();
    by_start.sort_by_key(|call| calls[*call].start);
    let (mut after, mut before) = (vec![calls.len(); calls.len() + 1], vec![0; calls.len() + 1]);
    let mut last = calls.len();
    for call in by_start {
        after[last] = call;
        before[call] = last;
        last = call;
    }
    before[calls.len()] = last;
    let mut search = Search {
        model,
        calls,
        after,
        before,
        order: Vec::with_capacity(calls.len()),
        owed: calls.iter().filter(|call| call.end.is_some()).count(),
        signature: 0,
        steps: 0,
    };
    let found = search.run(initial, steps_max);
    (found, search.steps)
}

impl<M: Model> Search<'_, M> {
    fn run(&mut self, initial: M::State, steps_max: u64) -> Found<M::State> {
        let mut state = initial;
        let mut choices: Vec<Choice<M::State>> = Vec::new();
        let mut visited: HashSet<(u128, M::State)> = HashSet::new();
        let mut deepest: Option<(usize, M::State, Vec<usize>)> = None;
        loop {
            if self.steps > steps_max {
                return Found::GaveUp;
            }
            self.place_reads(&state);
            if self.owed == 0 && self.model.may_end(&state) {
                return Found::Order(std::mem::take(&mut self.order));
            }
            let mut others = self.writes(&state);
            if others.len() > 1 && !visited.insert((self.signature, state.clone())) {
                others.clear();
            }
            if others.is_empty()
                && deepest
                    .as_ref()
                    .is_none_or(|(placed, ..)| *placed < self.order.len())
            {
                let open = self.window(&state);
                deepest = Some((self.order.len(), state.clone(), open));
            }
            choices.push(Choice {
                placed: self.order.len(),
                state: state.clone(),
                others,
            });
            let Some((next, after)) = self.choose(&mut choices) else {
                let (placed, state, open) = deepest.unwrap_or((0, state, Vec::new()));
                return Found::None {
                    placed,
                    state,
                    open,
                };
            };
            self.place(next);
            state = after;
        }
    }

    /// Takes the next open decision, and first undoes as many as needed.
    fn choose(&mut self, choices: &mut Vec<Choice<M::State>>) -> Option<(usize, M::State)> {
        while let Some(choice) = choices.last_mut() {
            while self.order.len() > choice.placed {
                self.take_back();
            }
            while let Some(next) = choice.others.pop() {
                self.steps += 1;
                if let Some(after) = self.model.step(&choice.state, next) {
                    return Some((next, after));
                }
            }
            choices.pop();
        }
        None
    }

    fn place(&mut self, call: usize) {
        let (before, after) = (self.before[call], self.after[call]);
        self.after[before] = after;
        self.before[after] = before;
        self.order.push(call);
        self.owed -= usize::from(self.calls[call].end.is_some());
        self.signature ^= signature(call);
    }

    /// Undoes the last [`Search::place`], so that the neighbours are as before it.
    fn take_back(&mut self) {
        let call = self.order.pop().expect("something was placed");
        let (before, after) = (self.before[call], self.after[call]);
        self.after[before] = call;
        self.before[after] = call;
        self.owed += usize::from(self.calls[call].end.is_some());
        self.signature ^= signature(call);
    }

    /// Returns the calls that may come next, by their start.
    fn window(&self, state: &M::State) -> Vec<usize> {
        let mut limit = self.model.left_by(state).unwrap_or(Moment(u64::MAX));
        let mut open = Vec::new();
        let mut call = self.after[self.calls.len()];
        while let Some(Call { start, end, .. }) = self.calls.get(call).copied() {
            if start > limit {
                break;
            }
            open.push(call);
            limit = limit.min(end.unwrap_or(limit));
            call = self.after[call];
        }
        open
    }

    /// Places every call that changes nothing and fits.
    fn place_reads(&mut self, state: &M::State) {
        loop {
            let before = self.order.len();
            for call in self.window(state) {
                if self.calls[call].reads {
                    self.steps += 1;
                    if self.model.step(state, call).is_some() {
                        self.place(call);
                    }
                }
            }
            if self.order.len() == before {
                return;
            }
        }
    }

    /// Returns the writes that may come next, the most urgent one last.
    fn writes(&self, state: &M::State) -> Vec<usize> {
        let mut tried = Vec::new();
        let mut writes = Vec::new();
        for call in self.window(state) {
            let Call {
                reads, end, alike, ..
            } = self.calls[call];
            let again = end.is_none() && alike.is_some_and(|alike| tried.contains(&alike));
            if reads || again || self.model.step(state, call).is_none() {
                continue;
            }
            if let (None, Some(alike)) = (end, alike) {
                tried.push(alike);
            }
            writes.push(call);
        }
        let pressing = |call: &usize| self.calls[*call].end.unwrap_or(Moment(u64::MAX));
        writes.sort_by_key(|call| std::cmp::Reverse(pressing(call)));
        writes
    }
}

/// Returns a number for a call. Combined by exclusive or, the numbers of equal sets of calls are
/// equal, and those of different sets differ with near certainty.
fn signature(call: usize) -> u128 {
    let mix = |seed: u64| {
        let mut mixed = (call as u64)
            .wrapping_add(seed)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(mixed ^ (mixed >> 31))
    };
    mix(0x0123_4567_89ab_cdef) << 64 | mix(0xfedc_ba98_7654_3210)
}
