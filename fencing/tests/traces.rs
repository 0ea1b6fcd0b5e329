//! Traces of two former machines, replayed against the machine that replaced them.
//!
//! `tests/fixtures/traces` has, step by step, the events that the fence and the sequencer of planes
//! got and the actions that they returned, in runs with a full disk, kills, pauses and a store out
//! of service. Each event of the fence is an event of today's machine, with three exceptions: a
//! commit that was acknowledged is reported once it is published ([`Event::Landed`], where the
//! sequencer landed it); a probe of a read-only plane was a commit without content and is an event
//! of its own ([`Event::Probe`]); and `writable`, `pause` and `resume` of the sequencer are events
//! of the machine ([`Event::StoreWritable`], [`Event::Pause`], [`Event::CallOff`]). The test
//! compares the actions and the tenure after each step, the answer after each permit, and after
//! each call of the sequencer whether it accepts writes.
//!
//! The other calls of the sequencer (`accept`, `take`, `again`, `withdraw`, `rejected`, `beside`)
//! belong to the queue of a plane today, which has no mode any more: of those calls only the mode
//! is compared. `close` and `end` reported to the sequencer what the fence had decided, and have no
//! counterpart.
//!
//! # Differences
//! [`Difference`] lists all differences, and why each is right. `disk-full-then-sleep` is the run
//! in which a plane never woke: today's machine departs from it where it should, and the steps that
//! the old machine repeated after that are not compared.

#[path = "traces/debug.rs"]
mod debug;
#[path = "traces/event.rs"]
mod event;

use std::collections::BTreeMap;
use std::path::PathBuf;

use debug::Value;
use polyplane_fencing::{
    Action, Attempt, CommitPermit, Event, Intake, LeaseTerms, Outcome, PlaneFence, Revision, Rules,
    Time,
};

/// A kind of step at which today's machine acts differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// A read-only plane was permitted a batch, so that its probe could be sent as one. Today a
    /// probe is not a batch, and no batch is permitted.
    NoBatchWhileReadOnly,
    /// A probe that was applied was followed by a replay of the history, as if it had settled a
    /// batch. There was no batch: today the plane accepts writes again at once.
    NothingToReplay,
    /// Between the probe's reply and the call of `writable` the sequencer still refused writes.
    /// Today it accepts them at once.
    WritableAtOnce,
    /// A probe that was refused or not answered was put again at once, by the plane that sent it.
    /// Today one plane probes for all planes of a store, and the prober decides when to try again.
    ProbedByTurn,
    /// A plane that was to fall asleep ended in memory before the outcome of its Released was
    /// final. Today it stays in memory until then.
    StaysInMemory,
    /// A plane that was to be released while its probe had no final reply waited for that reply, in
    /// the trace for ever. Today it puts the probe once more, and is released when that is final.
    ProbedToPart,
    /// Released was repeated after the store had refused it, until the store would accept it, with
    /// no tenure in the meantime. Today the tenure continues, because Released was not applied.
    WordWasNotSaid,
}

/// The number of times that each difference occurs in the traces.
const LISTED: [(Difference, usize); 7] = [
    (Difference::NoBatchWhileReadOnly, 9),
    (Difference::NothingToReplay, 8),
    (Difference::WritableAtOnce, 2),
    (Difference::ProbedByTurn, 19),
    (Difference::StaysInMemory, 4),
    (Difference::ProbedToPart, 1),
    (Difference::WordWasNotSaid, 1),
];

/// The trace files, and the number of lines of each that are compared.
const FILES: [(&str, usize); 11] = [
    ("disk-full", 1174),
    ("disk-full-then-sleep", 58),
    ("etcd-polyplane-1", 650),
    ("etcd-polyplane-2", 1055),
    ("etcd-polyplane-3", 524),
    ("kill-polyplane-1", 1012),
    ("kill-polyplane-2", 433),
    ("kill-polyplane-3", 293),
    ("pause-polyplane-1", 102),
    ("pause-polyplane-2", 1793),
    ("pause-polyplane-3", 573),
];

#[test]
fn the_machine_does_what_the_two_before_it_did() {
    let mut differences: BTreeMap<Difference, usize> = BTreeMap::new();
    let mut compared = Vec::new();
    for (name, _) in FILES {
        let mut trace = Trace::default();
        for (at, line) in lines(name).iter().enumerate() {
            trace.line(line).unwrap_or_else(|unlisted| {
                panic!("{name}, line {}: {unlisted}\n{line}", at + 1);
            });
        }
        for difference in trace.differences {
            *differences.entry(difference).or_default() += 1;
        }
        compared.push((name, trace.compared));
    }
    assert_eq!(compared, FILES);
    assert_eq!(Vec::from_iter(differences), LISTED);
}

/// The replay fails if the machine acts differently from a trace.
#[test]
fn a_trace_that_was_changed_is_noticed() {
    let lines = lines("kill-polyplane-1");
    let step = |text: &str| {
        let at = lines.iter().position(|line| line.contains(text));
        at.unwrap_or_else(|| panic!("no {text}"))
    };
    let opened = step("actions=[OpenTenure");
    let changed = |text: &str, other: &str| {
        let mut trace = Trace::default();
        let mut lines = lines.clone();
        lines[opened] = lines[opened].replace(text, other);
        let recorded: Result<(), String> = lines.iter().try_for_each(|line| trace.line(line));
        recorded
    };
    assert_eq!(changed("never written", ""), Ok(()));
    for (text, other) in [
        ("opening: 1", "opening: 2"),
        ("not_before: Revision(", "not_before: Revision(9"),
        ("Applied(Revision(", "Applied(Revision(9"),
        ("outcome: Applied(", "outcome: Unknown("),
    ] {
        let noticed = changed(text, other);
        assert!(noticed.is_err(), "{text} -> {other}");
    }
}

/// One trace file, as far as it is replayed.
#[derive(Default)]
struct Trace {
    replays: BTreeMap<String, Replay>,
    /// The fence that each sequencer belongs to.
    sequencers: BTreeMap<String, String>,
    differences: Vec<Difference>,
    /// Number of steps, permits and modes that were compared.
    compared: usize,
}

/// Today's machine in place of one in a trace.
struct Replay {
    machine: PlaneFence,
    /// The terms that takers waited out.
    terms: LeaseTerms,
    now: Time,
    /// The attempts of today's machine, by their numbers in the trace.
    sent: BTreeMap<u64, Attempt>,
    /// True if the permitted batch of the trace is a probe.
    probes: bool,
    /// An acknowledged commit that is not published yet.
    unpublished: Option<Revision>,
    /// True once today's machine has departed from the trace, so that the rest is not compared.
    departed: bool,
}

impl Trace {
    /// Replays one line. Returns an error for a difference that is not listed.
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some((_, rest)) = line.split_once("polyplane::fence_trace: ") {
            return self.of_fence(rest);
        }
        match line.split_once("polyplane::sequencer_trace: ") {
            Some((_, rest)) => self.of_sequencer(rest),
            None => Ok(()),
        }
    }

    fn of_fence(&mut self, line: &str) -> Result<(), String> {
        let fence = between(line, " fence=", " ").to_owned();
        let now = between(line, " at=", " ");
        let now = Time::from_nanos(now.parse().expect("nanoseconds"));
        if line.starts_with("new ") {
            // A second machine for the same plane means that the first one was abandoned.
            self.replays.insert(fence, Replay::new(line, now));
            return Ok(());
        }
        let replay = self.replays.get_mut(&fence).expect("it has begun");
        replay.now = now;
        if replay.departed {
            return Ok(());
        }
        self.compared += 1;
        let difference = match line.starts_with("permit ") {
            true => replay.permit(line),
            false => replay.step(line),
        };
        self.differences.extend(difference?);
        Ok(())
    }

    fn of_sequencer(&mut self, line: &str) -> Result<(), String> {
        let number = between(line, " number=", " ").to_owned();
        if line.starts_with("new ") {
            let fence = format!("fence/{}", between(line, " plane=", " "));
            self.sequencers.insert(number, fence);
            return Ok(());
        }
        let fence = &self.sequencers[&number];
        let replay = self.replays.get_mut(fence).expect("it has begun");
        if replay.departed {
            return Ok(());
        }
        self.compared += 1;
        self.differences.extend(replay.sequencer(line)?);
        Ok(())
    }
}

impl Replay {
    fn new(line: &str, now: Time) -> Self {
        let me = event::holder(&Value::read(between(line, " me=", " kind=")));
        let kind = event::kind(between(line, " kind=", " "));
        let terms = event::terms(&Value::read(between(line, " terms=", "\n")));
        Self {
            machine: PlaneFence::new(me, kind, Rules::default()),
            terms,
            now,
            sent: BTreeMap::new(),
            probes: false,
            unpublished: None,
            departed: false,
        }
    }

    fn intake(&self) -> Intake {
        let tenure = self.machine.tenure();
        tenure.map_or(Intake::Ended, |tenure| self.machine.intake(tenure))
    }

    fn permit(&mut self, line: &str) -> Result<Option<Difference>, String> {
        let recorded = Value::read(between(line, " asked=", "\n"));
        let tenure = Value::read(between(line, " tenure=", " asked="));
        let open = self.machine.tenure();
        let today = open.map(|tenure| (tenure, self.machine.commit_permit(self.now, tenure)));
        match today {
            Some((open, CommitPermit::Granted(guard))) => {
                let today = Value::read(&format!("Granted({guard:?})"));
                let tenure = tenure == Value::read(&format!("{open:?}"));
                // Compares without the rules in force, because a test build can take one out.
                let fence = |value: &Value| {
                    let guard = value.only();
                    (guard.field("fence").clone(), guard.field("member").clone())
                };
                match recorded.name == "Granted" && tenure && fence(&recorded) == fence(&today) {
                    true => Ok(None),
                    false => Err(format!("today {today:?}")),
                }
            }
            Some((_, CommitPermit::Wait))
                if recorded.name == "Granted" && self.intake() == Intake::ReadOnly =>
            {
                self.probes = true;
                Ok(Some(Difference::NoBatchWhileReadOnly))
            }
            other => Err(format!("today {other:?}")),
        }
    }

    fn step(&mut self, line: &str) -> Result<Option<Difference>, String> {
        let recorded = Value::read(between(line, " event=", " actions="));
        let actions = Value::read(between(line, " actions=", " tenure="));
        let tenure = Value::read(line.rsplit_once(" tenure=").map_or("", |(_, last)| last));
        let event = event::event(&recorded, self.terms, |attempt| {
            self.sent.get(&attempt).copied()
        });
        let event = event.ok_or("today's machine did not send that")?;
        let today = match &event {
            Event::CommitSent if self.probes => Vec::new(),
            Event::CommitDone(Outcome::Unknown) if self.probes => {
                self.step_machine(Event::Probe, &actions)
            }
            Event::CommitDone(Outcome::Applied(at)) => {
                self.unpublished = Some(*at);
                Vec::new()
            }
            Event::Replayed { .. } if self.probes => {
                self.probes = false;
                Vec::new()
            }
            event => self.step_machine(event.clone(), &actions),
        };
        let difference = match Value::read(&format!("{today:?}")) == actions {
            true => None,
            false => {
                let difference = self.difference(&event, &actions, &today);
                Some(difference.ok_or_else(|| format!("today {today:?}"))?)
            }
        };
        let open = Value::read(&format!("{:?}", self.machine.tenure()));
        match open == tenure || self.departed {
            true => Ok(difference),
            false => Err(format!("today the open tenure is {open:?}")),
        }
    }

    /// Steps the machine, and records by which number the trace knows its attempts.
    fn step_machine(&mut self, event: Event, actions: &Value) -> Vec<Action> {
        let today = self.machine.step(self.now, event);
        for ((_, recorded), action) in actions.fields.iter().zip(&today) {
            if let Action::Transact { attempt, .. } = action
                && recorded.name == "Transact"
            {
                let number = recorded.field("attempt").number();
                self.sent.insert(number, *attempt);
            }
        }
        today
    }

    /// Returns which listed difference this is, if it is one.
    fn difference(
        &mut self,
        event: &Event,
        recorded: &Value,
        today: &[Action],
    ) -> Option<Difference> {
        let recorded_one = match recorded.fields.as_slice() {
            [] => "nothing",
            [(_, only)] => &only.name,
            _ => return None,
        };
        match (event, recorded_one, today) {
            (
                Event::Done {
                    outcome: Outcome::Applied(_),
                    ..
                },
                "Settle",
                [Action::ResumeAccepting],
            ) if self.probes => Some(Difference::NothingToReplay),
            (
                Event::Done {
                    outcome: Outcome::Rejected | Outcome::Unknown,
                    ..
                },
                "Transact",
                [],
            ) if self.probes => {
                let again = self.step_machine(Event::Probe, recorded);
                let same = Value::read(&format!("{again:?}")) == *recorded;
                same.then_some(Difference::ProbedByTurn)
            }
            (
                Event::Done {
                    outcome: Outcome::Rejected,
                    ..
                },
                "Transact",
                [Action::OpenTenure { .. }, Action::ResumeAccepting],
            ) => {
                self.departed = true;
                Some(Difference::WordWasNotSaid)
            }
            (
                Event::HandOff { .. },
                "StopAccepting",
                [Action::StopAccepting, Action::Transact { .. }],
            ) if self.probes => {
                self.departed = true;
                Some(Difference::ProbedToPart)
            }
            _ => None,
        }
    }

    fn sequencer(&mut self, line: &str) -> Result<Option<Difference>, String> {
        let word = line.split(' ').next().unwrap_or_default();
        let landed = match word {
            "landed" => self.unpublished.take(),
            _ => None,
        };
        let event = match word {
            "landed" => landed.map(|at| Event::Landed { at }),
            "writable" => Some(Event::StoreWritable),
            "pause" => Some(Event::Pause),
            "resume" => Some(Event::CallOff),
            _ => None,
        };
        let event = event.map(|event| self.machine.step(self.now, event));
        match (word, event.unwrap_or_default().as_slice()) {
            (_, []) | ("pause", [Action::StopAccepting]) => {}
            (_, actions) => return Err(format!("today {actions:?}")),
        }
        let mode = between(line, " mode=", " queued=");
        let mode = mode.split_once('(').map_or(mode, |(mode, _)| mode);
        let recorded = match mode {
            "Accepting" if line.ends_with("paused=true") => Intake::Wait,
            "Accepting" => Intake::Open,
            "Settling" => Intake::Wait,
            "ReadOnly" => Intake::ReadOnly,
            "Ended" => Intake::Ended,
            other => return Err(format!("no mode: {other}")),
        };
        match (recorded, self.intake()) {
            (recorded, today) if recorded == today => Ok(None),
            (Intake::ReadOnly, Intake::Open) => Ok(Some(Difference::WritableAtOnce)),
            (Intake::Ended, Intake::Open | Intake::ReadOnly) if line.contains("Ended(Closed)") => {
                Ok(Some(Difference::StaysInMemory))
            }
            (recorded, today) => Err(format!("today {today:?}, not {recorded:?}")),
        }
    }
}

fn lines(name: &str) -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/traces");
    let bytes = std::fs::read(folder.join(format!("{name}.log.zst"))).expect("the trace is there");
    let text = zstd::decode_all(bytes.as_slice()).expect("it was compressed by zstd");
    let text = String::from_utf8(text).expect("it is text");
    text.lines().map(str::to_owned).collect()
}

/// Returns the text between a field's name and the name of the next field.
fn between<'a>(line: &'a str, name: &str, next: &str) -> &'a str {
    let (_, rest) = line.split_once(name).unwrap_or(("", ""));
    rest.split_once(next).map_or(rest, |(found, _)| found)
}
