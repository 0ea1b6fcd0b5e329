//! A search of a scenario's whole space, for spaces that are too large for a general checker. Owns
//! the reductions that make the space smaller without losing any behaviour:
//!
//! * **Forms.** Of all states with the same future only one is searched, see [`super::canonical`].
//! * **Bounds.** What is spent of a budget only forbids events. So a state need not be searched if
//!   an equal world that has spent no more of anything was searched: that one can do everything
//!   that this one can. States are searched in the order of the sum of what they have spent: of two
//!   equal worlds the one that has spent less comes first.
//! * **Parts.** A state is stored as the numbers of its parts (the store, each process, the
//!   messages under way), of which there are few. So a state costs only about a hundred bytes, and
//!   different states are never taken for one, which can happen if only hashes are stored.
//!
//! A `focus` may read what is spent, so scenarios with one are searched without the bounds.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stateright::{Expectation, Model};

use super::store::Message;
use super::{Budget, Happening, Replica, Scenario, World};

/// The choice whether states with the same future are searched only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Every different state is searched.
    None,
    /// Of all states with the same future only one is searched: in canonical form, and with the least
    /// that was spent.
    Full,
}

/// The result of a search.
#[derive(Debug)]
pub struct Found {
    /// Number of searched states: each is a world and what was spent to reach it.
    pub states: usize,
    /// Number of different worlds among them, whatever was spent.
    pub worlds: usize,
    /// Number of times that a state was reached, for the first time or again.
    pub generated: u64,
    /// Number of events on the longest path to a state.
    pub depth: u16,
    /// True if nothing was left to search.
    pub whole: bool,
    /// True if another process than the first came to own the plane.
    pub second_owner: bool,
    /// The property that failed, and the events that led to the failure.
    pub failure: Option<(String, Vec<Happening>)>,
    pub took: Duration,
}

/// The limits at which a search ends although something is left.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub time: Duration,
    /// Number of states. Each costs about a hundred bytes.
    pub states: usize,
}

type Hashed = BuildHasherDefault<Mixed>;
type Parts = [u32; PARTS];

/// Number of parts of a state: the store with what was seen of it, at most three processes, and the
/// messages under way.
const PARTS: usize = 5;

/// A state that was searched or waits to be searched.
#[derive(Debug, Clone, Copy)]
struct Seen {
    world: u32,
    spent: u64,
    /// The next state of the same world; the next field has the state from which it was reached.
    other: u32,
    from: u32,
    by: u16,
    depth: u16,
}

const NONE: u32 = u32::MAX;

/// A search while it runs.
struct Search<'a> {
    scenario: &'a Scenario,
    reduction: Reduction,
    rests: Numbered<World>,
    replicas: Numbered<Arc<Replica>>,
    nets: Numbered<Vec<Arc<Message>>>,
    worlds: HashMap<Parts, u32, Hashed>,
    /// The parts of each world and its first state.
    parts: Vec<(Parts, u32)>,
    states: Vec<Seen>,
    /// The states to search, by the sum of what they have spent.
    waiting: Vec<Vec<u32>>,
    found: Found,
}

/// Time between two progress lines.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// Searches until a property fails, nothing is left, or the limits are reached.
pub fn search(
    scenario: &Scenario,
    reduction: Reduction,
    limits: Limits,
    mut report: impl FnMut(&str),
    mut visit: impl FnMut(&World),
) -> Found {
    let started = Instant::now();
    let mut search = Search::new(scenario, reduction);
    for world in scenario.init_states() {
        search.come_to(world, NONE, 0, &mut visit);
    }
    let mut reported = Duration::ZERO;
    let mut happenings = Vec::new();
    while let Some((level, index)) = search.next() {
        search.found.took = started.elapsed();
        if search.found.took >= reported + REPORT_EVERY {
            reported = search.found.took;
            report(&search.progress(level));
        }
        if search.found.took >= limits.time || search.states.len() >= limits.states {
            search.found.whole = false;
            break;
        }
        let world = search.world(index);
        happenings.clear();
        scenario.actions(&world, &mut happenings);
        for (by, happening) in happenings.iter().enumerate() {
            let mut next = world.clone();
            next.happen(scenario, *happening);
            search.come_to(next, index, by as u16, &mut visit);
        }
        if search.found.failure.is_some() {
            break;
        }
    }
    search.found.whole &= search.found.failure.is_none();
    search.found.took = started.elapsed();
    search.found.states = search.states.len();
    search.found.worlds = search.parts.len();
    search.found
}

impl<'a> Search<'a> {
    fn new(scenario: &'a Scenario, reduction: Reduction) -> Self {
        Self {
            scenario,
            reduction,
            rests: Numbered::default(),
            replicas: Numbered::default(),
            nets: Numbered::default(),
            worlds: HashMap::default(),
            parts: Vec::new(),
            states: Vec::new(),
            waiting: Vec::new(),
            found: Found {
                states: 0,
                worlds: 0,
                generated: 0,
                depth: 0,
                whole: true,
                second_owner: false,
                failure: None,
                took: Duration::ZERO,
            },
        }
    }

    fn next(&mut self) -> Option<(usize, u32)> {
        let level = self.waiting.iter().position(|level| !level.is_empty())?;
        Some((level, self.waiting[level].pop()?))
    }

    /// Returns a progress line.
    fn progress(&self, level: usize) -> String {
        let (seconds, states) = (self.found.took.as_secs(), self.states.len());
        let waiting: usize = self.waiting.iter().map(Vec::len).sum();
        let generated = self.found.generated;
        format!(
            "{seconds} s: {states} states ({generated} generated), {waiting} wait, level {level}"
        )
    }

    /// Adds a state to the search, unless an equal world with no more spent was searched.
    fn come_to(&mut self, world: World, from: u32, by: u16, visit: &mut impl FnMut(&World)) {
        self.found.generated += 1;
        let world = match self.reduction {
            Reduction::None => world,
            Reduction::Full => world.canonical(self.scenario),
        };
        let spent = world.spent.packed();
        let parts = self.parts_of(&world);
        let known = self.worlds.get(&parts).copied();
        let number = known.unwrap_or(self.parts.len() as u32);
        if known.is_none() {
            self.worlds.insert(parts, number);
            self.parts.push((parts, NONE));
        } else if self.is_covered(number, spent) {
            return;
        }
        let depth = match from {
            NONE => 0,
            from => self.states[from as usize].depth + 1,
        };
        let index = self.states.len() as u32;
        assert!(index < NONE, "fewer states than can be numbered");
        let first = &mut self.parts[number as usize].1;
        let other = std::mem::replace(first, index);
        self.states.push(Seen {
            world: number,
            spent,
            other,
            from,
            by,
            depth,
        });
        self.found.depth = self.found.depth.max(depth);
        let level = match self.reduction {
            Reduction::None => usize::from(depth),
            Reduction::Full => sum(spent),
        };
        if self.waiting.len() <= level {
            self.waiting.resize_with(level + 1, Vec::new);
        }
        self.waiting[level].push(index);
        if known.is_none() {
            visit(&world);
            self.check(&world, index);
        }
    }

    fn is_covered(&self, world: u32, spent: u64) -> bool {
        let mut at = self.parts[world as usize].1;
        while at != NONE {
            let seen = &self.states[at as usize];
            let covers = match self.bounded() {
                true => no_more(seen.spent, spent),
                false => seen.spent == spent,
            };
            if covers {
                return true;
            }
            at = seen.other;
        }
        false
    }

    fn bounded(&self) -> bool {
        self.reduction == Reduction::Full && self.scenario.focus.is_none()
    }

    /// Checks the properties of a new world. They depend only on the world, and not on what was
    /// spent.
    fn check(&mut self, world: &World, index: u32) {
        for property in self.scenario.properties() {
            let holds = (property.condition)(self.scenario, world);
            match property.expectation {
                Expectation::Always if !holds && self.found.failure.is_none() => {
                    let outline = world.outline(self.scenario);
                    let name = format!("{}: {outline}", property.name);
                    self.found.failure = Some((name, self.way(index)));
                }
                Expectation::Sometimes => self.found.second_owner |= holds,
                Expectation::Always | Expectation::Eventually => {}
            }
        }
    }

    /// Returns the events on the path to a state.
    fn way(&self, mut index: u32) -> Vec<Happening> {
        let mut way = Vec::new();
        while let Seen { from, by, .. } = self.states[index as usize]
            && from != NONE
        {
            let mut happenings = Vec::new();
            let world = self.world(from);
            self.scenario.actions(&world, &mut happenings);
            way.push(happenings[usize::from(by)]);
            index = from;
        }
        way.reverse();
        way
    }

    fn parts_of(&mut self, world: &World) -> Parts {
        let mut parts = [NONE; PARTS];
        parts[0] = self.nets.number(&world.net);
        for (part, replica) in parts[2..].iter_mut().zip(&world.replicas) {
            *part = self.replicas.number(replica);
        }
        let rest = World {
            replicas: Vec::new(),
            net: Vec::new(),
            spent: Budget::default(),
            ..world.clone()
        };
        parts[1] = self.rests.number(&rest);
        parts
    }

    fn world(&self, index: u32) -> World {
        let seen = &self.states[index as usize];
        let parts = self.parts[seen.world as usize].0;
        let replicas = parts[2..].iter().filter(|part| **part != NONE);
        World {
            replicas: replicas
                .map(|part| Arc::clone(self.replicas.of(*part)))
                .collect(),
            net: self.nets.of(parts[0]).clone(),
            spent: Budget::unpacked(seen.spent),
            ..self.rests.of(parts[1]).clone()
        }
    }
}

/// Parts by number, each kept once.
#[derive(Debug)]
struct Numbered<T> {
    numbers: HashMap<T, u32, Hashed>,
    parts: Vec<T>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::default(),
            parts: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn number(&mut self, part: &T) -> u32 {
        if let Some(number) = self.numbers.get(part) {
            return *number;
        }
        let number = self.parts.len() as u32;
        self.numbers.insert(part.clone(), number);
        self.parts.push(part.clone());
        number
    }

    fn of(&self, number: u32) -> &T {
        &self.parts[number as usize]
    }
}

/// The highest bit of each of the counts of a packed budget.
const GUARDS: u64 = 0x8888_8888_8888_8888;

/// Returns whether `less` has spent no more of anything than `more`.
fn no_more(less: u64, more: u64) -> bool {
    ((more | GUARDS) - less) & GUARDS == GUARDS
}

/// Returns the sum of everything that was spent.
fn sum(spent: u64) -> usize {
    (0..16).map(|at| (spent >> (4 * at) & 15) as usize).sum()
}

/// A simple mixing hasher. It need not resist attacks, because the hashed data is made here.
#[derive(Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}
