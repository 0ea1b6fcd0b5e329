//! A small store with clients and watchers whose run is computed, not measured.
//!
//! This module decides in which order planned requests take effect and which answers clients get. A
//! bug can be switched on; the run reports whether the bug had an occasion to show. It does not
//! know the checker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use polyplane_tests::history::{
    Change, ClientId, Cut, Event, Failure, History, Listing, Moment, ObjectName, Operation,
    Outcome, PlaneName, Refusal, Session, SessionEnd, Value, Verb, Version, Watch,
};

/// A fault of the store, which it commits once, at the first occasion after a planned request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An acknowledged write is not present.
    LostWrite,
    /// An acknowledged deletion did not happen.
    LostDelete,
    /// A read shows the state before a write that had been acknowledged.
    StaleRead,
    /// A list leaves out the newest change below its version.
    StaleList,
    /// A write takes effect again, after another one.
    AppliedTwice,
    /// A write gets a version below one that clients already know.
    VersionFalls,
    /// A write is refused and takes effect.
    RefusedApplied,
    /// A create gets the answer that the object exists, which it never did.
    PhantomAlreadyExists,
    /// A read gets the answer that the object is gone, although it exists.
    PhantomNotFound,
    /// A watch leaves out a change.
    WatchGap,
    /// A resumed watch delivers a change again.
    WatchRepeat,
    /// A watch delivers two changes in the wrong order.
    WatchReorder,
    /// A bookmark names a version above a change that is delivered later.
    BookmarkAhead,
    /// A resumed watch gets 410.
    Expires,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request is answered.
    Answered,
    /// The request takes effect, but its answer is lost.
    AnswerLost,
    /// The request takes effect long after its caller gave up.
    Late,
    /// The request never arrives, and its caller cannot know that.
    Lost,
    /// The request is refused because of load, certainly without effect.
    Overload,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A [`Verb::Create`].
    Create,
    /// A [`Verb::Get`].
    Get,
    /// An update over a version that clients know.
    Update,
    /// An update without a precondition.
    Overwrite,
    /// A [`Verb::Patch`].
    Patch,
    /// A deletion without a precondition.
    Delete,
    /// A deletion of a version that clients know.
    DeleteExact,
    /// A list.
    List,
    /// No request: the watchers' connections break.
    Break,
}

/// One planned request.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The kind of the request.
    pub kind: Kind,
    /// The number of the object.
    pub object: u8,
    /// Time since the request before it began.
    pub gap: u16,
    /// Time from its start to its effect.
    pub there: u16,
    /// Time from its effect to the answer.
    pub back: u16,
    /// The fate of the request.
    pub fate: Fate,
}

/// A computed run.
pub struct Run {
    /// The recorded history.
    pub history: History,
    /// True if the bug had an effect that the history must show.
    pub shown: bool,
}

/// How long a client waits, in the run's time.
const PATIENCE: u64 = 5_000;
/// How much later than planned a late request takes effect, in the run's time.
const LATE: u64 = 40_000;
const OBJECTS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moves {
    Start,
    Effect,
    Again,
}

struct Store {
    plane: PlaneName,
    revision: u64,
    objects: BTreeMap<ObjectName, (Version, Value)>,
    /// Every change with the moment at which it happened.
    log: Vec<(u64, Event)>,
    /// The last version of an object that an answer contained.
    known: BTreeMap<ObjectName, Version>,
    /// The newest version that any client knew, with the moment from which it did.
    told: Vec<(u64, Version)>,
    /// For each object, the state before the newest change, and when that change was acknowledged.
    before: BTreeMap<ObjectName, (Option<(Version, Value)>, u64)>,
    history: History,
    bug: Option<(Bug, usize)>,
    shown: bool,
}

/// Runs a plan. The bug shows at the first occasion at or after the given place in the plan.
pub fn simulate(plans: &[Plan], bug: Option<(Bug, usize)>) -> Run {
    let mut store = Store {
        plane: Arc::from("p"),
        revision: 10,
        objects: BTreeMap::new(),
        log: Vec::new(),
        known: BTreeMap::new(),
        told: Vec::new(),
        before: BTreeMap::new(),
        history: History::default(),
        bug,
        shown: false,
    };
    let mut queue: BTreeMap<(u64, Moves, usize), Option<Verb>> = BTreeMap::new();
    let (mut now, mut breaks) = (100, Vec::new());
    let mut starts = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        now += u64::from(plan.gap);
        starts.push(now);
        match plan.kind {
            Kind::Break => breaks.push(now),
            _ => drop(queue.insert((now, Moves::Start, at), None)),
        }
    }
    let mut newest = now;
    while let Some(((now, moves, at), verb)) = queue.pop_first() {
        newest = newest.max(now);
        let plan = &plans[at];
        match (moves, verb) {
            (Moves::Start, _) => {
                let late = if plan.fate == Fate::Late { LATE } else { 0 };
                let verb = store.verb(plan, at);
                queue.insert(
                    (now + u64::from(plan.there) + late, Moves::Effect, at),
                    verb,
                );
            }
            (Moves::Effect, Some(verb)) => {
                if let Some(again) = store.effect(plan, at, starts[at], now, verb) {
                    queue.insert((again, Moves::Again, at), Some(verb));
                }
            }
            (Moves::Effect, None) => store.list(plan, at, starts[at], now),
            (Moves::Again, verb) => store.again(plan, now, verb),
        }
    }
    let end = newest + PATIENCE;
    store.read_all(end);
    for watcher in 0..2 {
        store.watch(watcher, &breaks, end + 1_000);
    }
    Run {
        history: store.history,
        shown: store.shown,
    }
}

fn name(plan: &Plan) -> ObjectName {
    Arc::from(format!("o{}", plan.object % OBJECTS))
}

impl Store {
    /// Returns whether this bug is on and has to show now, which happens once.
    fn buggy(&mut self, bug: Bug, at: usize, occasion: bool) -> bool {
        let now =
            occasion && !self.shown && self.bug.is_some_and(|(on, from)| on == bug && at >= from);
        self.shown |= now;
        now
    }

    fn verb(&self, plan: &Plan, at: usize) -> Option<Verb> {
        let value = Value(at as u64 + 1);
        // Some clients use an old version.
        let known = self
            .known
            .get(&name(plan))
            .filter(|_| !at.is_multiple_of(4));
        let over = Some(known.copied().unwrap_or(Version(1)));
        Some(match plan.kind {
            Kind::Create => Verb::Create(value),
            Kind::Get => Verb::Get,
            Kind::Update => Verb::Update { value, over },
            Kind::Overwrite => Verb::Update { value, over: None },
            Kind::Patch => Verb::Patch(value),
            Kind::Delete => Verb::Delete { over: None },
            Kind::DeleteExact => Verb::Delete { over },
            Kind::List | Kind::Break => return None,
        })
    }

    fn told_before(&self, moment: u64) -> Version {
        let told = self.told.iter().filter(|(when, _)| *when < moment);
        told.map(|(_, version)| *version).max().unwrap_or_default()
    }

    /// Returns the new state of the object if the request changes it, or the refusal.
    fn judge(&self, object: &ObjectName, verb: Verb) -> Result<Option<Value>, Refusal> {
        let found = self.objects.get(object);
        let over = match verb {
            Verb::Create(value) if found.is_none() => return Ok(Some(value)),
            Verb::Create(_) => return Err(Refusal::AlreadyExists),
            Verb::Update { over, .. } | Verb::Delete { over } => over,
            Verb::Get | Verb::Patch(_) => None,
        };
        let Some((version, _)) = found else {
            return Err(Refusal::NotFound);
        };
        if over.is_some_and(|over| over != *version) {
            return Err(Refusal::Conflict);
        }
        Ok(verb.writes())
    }

    fn change(&mut self, object: &ObjectName, now: u64, to: Option<Value>) -> Version {
        self.revision += 1;
        let version = Version(self.revision << 8);
        let found = self.objects.get(object).copied();
        let (change, value) = match (found, to) {
            (None, Some(value)) => (Change::Added, value),
            (Some(_), Some(value)) => (Change::Modified, value),
            (Some((_, last)), None) => (Change::Deleted, last),
            (None, None) => unreachable!("a deletion finds the object"),
        };
        match to {
            Some(value) => drop(self.objects.insert(object.clone(), (version, value))),
            None => drop(self.objects.remove(object)),
        }
        let object = object.clone();
        let event = Event::Change {
            change,
            object,
            version,
            value,
        };
        self.log.push((now, event));
        version
    }

    /// Lets a request take effect; returns the moment at which it takes effect a second time, if it
    /// does.
    fn effect(&mut self, plan: &Plan, at: usize, start: u64, now: u64, verb: Verb) -> Option<u64> {
        let object = name(plan);
        let answered = now + u64::from(plan.back);
        let known = match plan.fate {
            Fate::Answered => answered,
            _ => u64::MAX,
        };
        let found = self.objects.get(&object).copied();
        let judged = self.judge(&object, verb);
        let reads = verb == Verb::Get;
        let mut again = None;
        let acknowledged = plan.fate == Fate::Answered;
        let outcome = match (plan.fate, judged) {
            (Fate::Overload, _) => Outcome::Failed(Failure::Status(429)),
            (Fate::Lost, _) => Outcome::Unknown(Failure::TimedOut),
            (_, Err(_)) if reads || !acknowledged => self.refused(plan, judged),
            (_, Err(refusal)) => self.wrongly_applied(at, &object, now, verb, refusal),
            (_, Ok(_)) if reads => self.read(at, start, &object),
            (_, Ok(None)) => {
                if self.buggy(Bug::LostDelete, at, acknowledged) {
                    Outcome::Deleted
                } else {
                    self.before.insert(object.clone(), (found, known));
                    self.change(&object, now, None);
                    Outcome::Deleted
                }
            }
            (_, Ok(Some(_)))
                if matches!(verb, Verb::Create(_))
                    && self.buggy(Bug::PhantomAlreadyExists, at, acknowledged) =>
            {
                Outcome::Refused(Refusal::AlreadyExists)
            }
            (_, Ok(Some(value))) => {
                let falls = acknowledged && self.told_before(start) > Version(3 << 8);
                let kept = self.revision;
                if self.buggy(Bug::VersionFalls, at, falls) {
                    self.revision = 1;
                }
                let version = if self.buggy(Bug::LostWrite, at, acknowledged) {
                    self.revision += 1;
                    Version(self.revision << 8)
                } else {
                    self.before.insert(object.clone(), (found, known));
                    self.change(&object, now, Some(value))
                };
                self.revision = self.revision.max(kept);
                let twice = self.bug.is_some_and(|(bug, from)| {
                    bug == Bug::AppliedTwice && at >= from && matches!(verb, Verb::Patch(_))
                });
                again = (twice && !self.shown).then_some(now + LATE);
                Outcome::Object { version, value }
            }
        };
        let outcome = match plan.fate {
            Fate::AnswerLost | Fate::Late => Outcome::Unknown(Failure::Connection),
            _ => outcome,
        };
        let end = match plan.fate {
            Fate::Answered | Fate::Overload => answered,
            _ => start + PATIENCE.min(u64::from(plan.there) + u64::from(plan.back) + 1),
        };
        self.record(at, object, verb, start, end, outcome);
        again
    }

    fn refused(&mut self, plan: &Plan, judged: Result<Option<Value>, Refusal>) -> Outcome {
        match (plan.fate, judged) {
            (Fate::Answered, Err(refusal)) => Outcome::Refused(refusal),
            _ => Outcome::Unknown(Failure::TimedOut),
        }
    }

    fn wrongly_applied(
        &mut self,
        at: usize,
        object: &ObjectName,
        now: u64,
        verb: Verb,
        refusal: Refusal,
    ) -> Outcome {
        if let (Some(value), Refusal::Conflict) = (verb.writes(), refusal)
            && self.buggy(Bug::RefusedApplied, at, true)
        {
            self.change(object, now, Some(value));
        }
        Outcome::Refused(refusal)
    }

    fn read(&mut self, at: usize, start: u64, object: &ObjectName) -> Outcome {
        if self.buggy(Bug::PhantomNotFound, at, true) {
            return Outcome::Refused(Refusal::NotFound);
        }
        let mut shown = self.objects[object];
        if let Some((Some(old), acknowledged)) = self.before.get(object).copied()
            && self.buggy(Bug::StaleRead, at, acknowledged < start)
        {
            shown = old;
        }
        Outcome::Object {
            version: shown.0,
            value: shown.1,
        }
    }

    /// Lets a patch take effect again, if another write came in between.
    fn again(&mut self, plan: &Plan, now: u64, verb: Option<Verb>) {
        let object = name(plan);
        let Some(value) = verb.and_then(|verb| verb.writes()) else {
            return;
        };
        let other = self
            .objects
            .get(&object)
            .is_some_and(|(_, there)| *there != value);
        if other && !self.shown {
            self.shown = true;
            self.change(&object, now, Some(value));
        }
    }

    fn record(
        &mut self,
        at: usize,
        object: ObjectName,
        verb: Verb,
        start: u64,
        end: u64,
        outcome: Outcome,
    ) {
        if let Outcome::Object { version, .. } = outcome {
            self.told.push((end, version));
            self.known.insert(object.clone(), version);
        }
        self.history.operations.push(Operation {
            client: ClientId(at as u32),
            plane: self.plane.clone(),
            object,
            verb,
            start: Moment(start),
            end: Moment(end),
            outcome,
        });
    }

    fn list(&mut self, plan: &Plan, at: usize, start: u64, now: u64) {
        let end = now + u64::from(plan.back);
        let outcome = match plan.fate {
            Fate::Answered => {
                let mut items = self.objects.clone();
                let newest = items.iter().max_by_key(|(_, (version, _))| *version);
                let newest = newest.map(|(object, _)| object.clone());
                if let Some(object) = newest
                    && self.buggy(Bug::StaleList, at, true)
                {
                    items.remove(&object);
                }
                let version = Version(self.revision << 8 | 255);
                self.told.push((end, version));
                Ok(Cut { version, items })
            }
            _ => Err(Failure::TimedOut),
        };
        self.history.listings.push(Listing {
            client: ClientId(at as u32),
            plane: self.plane.clone(),
            start: Moment(start),
            end: Moment(end),
            outcome,
        });
    }

    /// Ends the run: each object is read once more.
    fn read_all(&mut self, now: u64) {
        for object in 0..OBJECTS {
            let object: ObjectName = Arc::from(format!("o{object}"));
            let outcome = match self.objects.get(&object) {
                Some((version, value)) => Outcome::Object {
                    version: *version,
                    value: *value,
                },
                None => Outcome::Refused(Refusal::NotFound),
            };
            self.record(
                usize::from(u16::MAX),
                object,
                Verb::Get,
                now,
                now + 10,
                outcome,
            );
        }
    }

    /// Records what a watcher saw whose connection broke at these moments.
    fn watch(&mut self, watcher: usize, breaks: &[u64], end: u64) {
        let delay = 7 + 20 * watcher as u64;
        let mut sessions = Vec::new();
        let mut left: VecDeque<(u64, Event)> = self.log.iter().cloned().collect();
        let (mut from, mut start) = (Version(10 << 8), 0);
        let ends = breaks.iter().copied().chain([end]);
        for (place, until) in ends.enumerate() {
            let mut events: Vec<(Moment, Event)> = Vec::new();
            while left
                .front()
                .is_some_and(|(when, _)| until == end || when + delay < until)
            {
                let (when, event) = left.pop_front().expect("just seen");
                let seen = Moment(when.max(start) + delay);
                let version = event.version();
                events.push((seen, event));
                if left.len().is_multiple_of(3) {
                    events.push((seen, Event::Bookmark(Version(version.0 | 255))));
                }
            }
            self.spoil(place, &mut events, sessions.last());
            // The watcher resumes after the highest version that it got; a version that fell must
            // not undo that.
            let told = events.iter().map(|(_, event)| event.version()).max();
            let last = if until == end {
                SessionEnd::Finished
            } else {
                SessionEnd::Broken
            };
            let last = if place > 0 && self.buggy(Bug::Expires, usize::MAX, true) {
                SessionEnd::Expired
            } else {
                last
            };
            sessions.push(Session {
                from,
                start: Moment(start),
                events,
                end: last,
            });
            from = from.max(told.unwrap_or(from));
            start = until;
        }
        self.history.watches.push(Watch {
            client: ClientId(100_000 + watcher as u32),
            plane: self.plane.clone(),
            first: Cut {
                version: Version(10 << 8),
                items: BTreeMap::new(),
            },
            since: Moment(0),
            sessions,
        });
    }

    /// Lets the bug of a watch show in one session.
    fn spoil(&mut self, place: usize, events: &mut Vec<(Moment, Event)>, before: Option<&Session>) {
        let many = events.len() > 1;
        let is_change = |(_, event): &&(Moment, Event)| matches!(event, Event::Change { .. });
        let first = events.iter().position(|event| is_change(&event));
        if let Some(first) = first.filter(|first| first + 1 < events.len())
            && self.buggy(Bug::WatchGap, usize::MAX, many)
        {
            events.remove(first);
        }
        let told = before.and_then(|session| session.events.iter().rfind(is_change).cloned());
        if let Some((_, event)) = told
            && self.buggy(Bug::WatchRepeat, usize::MAX, place > 0)
        {
            let seen = events.first().map_or(Moment(0), |(seen, _)| *seen);
            events.insert(0, (seen, event));
        }
        if self.buggy(Bug::WatchReorder, usize::MAX, many) {
            let at = events.len() / 2;
            events.swap(at - 1, at);
        }
        if self.buggy(Bug::BookmarkAhead, usize::MAX, many) {
            let at = events.len() / 2;
            let ahead = Version(events[at].1.version().0 + 1);
            events.insert(at, (events[at].0, Event::Bookmark(ahead)));
        }
    }
}
