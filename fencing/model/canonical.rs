//! One canonical form for all states of the world that have the same future. Owns which differences
//! do not matter; each is argued where it is dropped.
//!
//! * A transaction whose sender no longer waits for it, and whose compares can never hold again,
//!   does nothing whenever it arrives.
//! * A field that no later event reads gets one value: the revision that a batch compared once
//!   there is no batch, the state in memory of a plane without a tenure, the fields that only reads
//!   use once all reads of the budget are spent.
//! * Of attempts, openings, epochs and revisions of the fence only order and equality matter, and
//!   each new one follows the greatest of its kind. So they are replaced by their ranks. An attempt
//!   is compared only with the awaited one.
//! * Of a time only its distance from its own clock's present matters, and nothing waits longer
//!   than R and the margin.
//! * Writes are only distinguished, not ordered.
//! * Transactions and replies under way have no order: any of them may be applied next.
//!
//! The spent part of a budget limits the future and is not part of the form: see [`super::search`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use polyplane_fencing::naming::{EachName, Name};
use polyplane_fencing::{Attempt, Epoch, Revision, Time};

use super::replica::{Replica, since_origin};
use super::store::{Message, Request, Store};
use super::{ORIGIN, Scenario, World, Writes};

impl World {
    /// Returns the canonical form of this state, which all states with the same future share.
    pub fn canonical(mut self, scenario: &Scenario) -> World {
        // After a breach nothing more happens, so only the breach matters.
        if self.breach.is_some() {
            return self;
        }
        self.drop_dead_messages(scenario);
        let mut parts = Copied::of(&self);
        parts.forget_the_dead(&self, scenario);
        parts.rename_own_names();
        parts.rename_shared_names();
        parts.rename_writes(&mut self);
        parts.put_back(&mut self);
        if self.published & !self.notified == 0 {
            (self.published, self.notified) = (0, 0);
        }
        if self.net.len() > 1 {
            self.net.sort_by_cached_key(|message| {
                let mut hasher = DefaultHasher::new();
                message.hash(&mut hasher);
                hasher.finish()
            });
        }
        self
    }

    /// Returns everything that can be seen of this state, without names. A test uses it to compare
    /// the states that searches with and without canonical forms reach.
    pub fn outline(&self, scenario: &Scenario) -> String {
        let mut world = self.clone();
        world.drop_dead_messages(scenario);
        let mut under_way: Vec<String> = world.net.iter().map(|m| m.outline()).collect();
        under_way.sort_unstable();
        let outlines = self.replicas.iter().map(|replica| replica.outline());
        let replicas: Vec<String> = outlines.collect();
        let (store, breach) = (self.store.outline(), self.breach);
        format!("{store} {replicas:?} {under_way:?} {breach:?}")
    }

    fn drop_dead_messages(&mut self, scenario: &Scenario) {
        for message in &mut self.net {
            let from = &self.replicas[message.from];
            if !message.forgotten && from.holder() != message.sender {
                Arc::make_mut(message).forgotten = true;
            }
        }
        let store = &self.store;
        self.net.retain(|message| {
            let mut compares = message.transaction.compares.iter();
            let dead = compares.any(|compare| store.never_holds(scenario, compare));
            !(message.forgotten && (dead || message.reply.is_some()))
        });
    }
}

/// The parts of a world that contain names, as copies that can be changed.
struct Copied {
    store: Store,
    replicas: Vec<Replica>,
    net: Vec<Message>,
}

impl Copied {
    fn of(world: &World) -> Self {
        let replicas = world.replicas.iter();
        Self {
            store: Store::clone(&world.store),
            replicas: replicas.map(|part| Replica::clone(part)).collect(),
            net: world.net.iter().map(|part| Message::clone(part)).collect(),
        }
    }

    /// Puts the parts back. Those that did not change stay shared with other worlds.
    fn put_back(self, world: &mut World) {
        put_back(&mut world.store, self.store);
        for (shared, replica) in world.replicas.iter_mut().zip(self.replicas) {
            put_back(shared, replica);
        }
        for (shared, message) in world.net.iter_mut().zip(self.net) {
            put_back(shared, message);
        }
    }

    fn forget_the_dead(&mut self, world: &World, scenario: &Scenario) {
        let mut compared = Vec::new();
        for (process, replica) in self.replicas.iter_mut().enumerate() {
            let mut own = self.net.iter().filter(|message| message.from == process);
            let commit = own.any(|message| message.write().is_some());
            replica.forget_the_dead(scenario, &world.spent, commit);
            replica.compared(&mut compared);
        }
        self.store.keep_puts_after(&compared);
    }

    fn rename_own_names(&mut self) {
        for (process, replica) in self.replicas.iter_mut().enumerate() {
            let (awaited, clock) = (replica.awaits(), replica.clock());
            replica.rename_own();
            for message in self.net.iter_mut().filter(|m| m.from == process) {
                rename_attempt(message, awaited, clock);
            }
        }
    }

    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        self.store.each_name(visit);
        for replica in &mut self.replicas {
            replica.each_name(visit);
        }
        for message in &mut self.net {
            message.each_name(visit);
        }
    }

    /// Renumbers the epochs and revisions of the fence.
    fn rename_shared_names(&mut self) {
        let (mut epochs, mut fences) = (vec![0], vec![0]);
        self.each_name(&mut |name| match name {
            Name::Epoch(epoch) => epochs.push(epoch.get()),
            Name::Fence(revision) => fences.push(revision.get()),
            Name::Attempt(_) | Name::Opening(_) | Name::Time(_) => {}
        });
        for all in [&mut epochs, &mut fences] {
            all.sort_unstable();
            all.dedup();
        }
        let rank = |all: &[u64], one: u64| all.partition_point(|other| *other < one) as u64;
        self.each_name(&mut |name| match name {
            Name::Epoch(epoch) => *epoch = Epoch::new(rank(&epochs, epoch.get())),
            Name::Fence(revision) => *revision = Revision::new(rank(&fences, revision.get())),
            Name::Attempt(_) | Name::Opening(_) | Name::Time(_) => {}
        });
    }

    /// Numbers the writes that still occur somewhere, in the order in which they are found.
    fn rename_writes(&mut self, world: &mut World) {
        let mut met: Vec<u8> = Vec::new();
        let mut meet = |write: u8| {
            if !met.contains(&write) {
                met.push(write);
            }
        };
        self.store.history_mut().iter().copied().for_each(&mut meet);
        for replica in &mut self.replicas {
            replica.each_write(&mut |write| meet(*write));
            let (value, floor) = replica.read_writes();
            bits(value | floor).for_each(&mut meet);
        }
        bits(world.observed).for_each(&mut meet);
        let mut under_way: Vec<u8> = self.net.iter().filter_map(Message::write).collect();
        under_way.sort_unstable();
        under_way.into_iter().for_each(&mut meet);
        world.next_write = met.len() as u8;
        let number = |write: u8| met.iter().position(|other| *other == write);
        let renamed = |writes: Writes| -> Writes {
            let numbers = bits(writes).filter_map(number);
            numbers.fold(0, |set, number| set | 1 << number)
        };
        // A write that occurs nowhere else can no longer be applied, so it is dropped here too.
        world.denied = renamed(world.denied);
        if met.iter().zip(0..).all(|(write, rank)| *write == rank) {
            return;
        }
        world.observed = renamed(world.observed);
        (world.published, world.notified) = (renamed(world.published), renamed(world.notified));
        let rename = |write: &mut u8| *write = number(*write).map_or(0, |number| number as u8);
        self.store.history_mut().iter_mut().for_each(rename);
        for replica in &mut self.replicas {
            replica.each_write(&mut |write| rename(write));
            replica.rename_read(&renamed);
        }
        for message in &mut self.net {
            message.each_write(&mut |write| rename(write));
        }
    }
}

fn bits(writes: Writes) -> impl Iterator<Item = u8> {
    (0..Writes::BITS as u8).filter(move |write| writes & 1 << write != 0)
}

/// Renumbers the attempt of a message. All attempts that no machine awaits get the same number,
/// because their outcomes do nothing.
fn rename_attempt(message: &mut Message, awaited: Option<Attempt>, clock: u64) {
    let forgotten = message.forgotten;
    if let Request::Fence(attempt) = &mut message.request {
        let wanted = !forgotten && awaited == Some(*attempt);
        *attempt = Attempt::numbered(u32::from(wanted));
    }
    message.sent = match forgotten {
        true => Time::from_nanos(ORIGIN),
        false => since_origin(message.sent, clock),
    };
}

fn put_back<T: PartialEq>(shared: &mut Arc<T>, part: T) {
    if part != **shared {
        *shared = Arc::new(part);
    }
}
