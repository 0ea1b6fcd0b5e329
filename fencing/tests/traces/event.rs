//! Builds the crate's values from their text in the traces.

use polyplane_fencing::{
    Attempt, Directory, Duration, Epoch, Event, Fence, FenceState, Holder, Incarnation, LeaseTerms,
    Observed, Outcome, PlaneKind, Refusal, ReplicaId, Revision, Sighting, Streaming, Time,
    ViewNumber, Witness,
};

use super::debug::Value;

pub fn time(value: &Value) -> Time {
    Time::from_nanos(value.number())
}

fn revision(value: &Value) -> Revision {
    Revision::new(value.number())
}

fn replica(value: &Value) -> ReplicaId {
    value.name.parse().expect("a replica's name")
}

pub fn holder(value: &Value) -> Holder {
    Holder {
        replica: replica(value.field("replica")),
        incarnation: Incarnation::new(value.field("incarnation").number()),
    }
}

pub fn terms(value: &Value) -> LeaseTerms {
    let nanos = |name| Duration::from_nanos(value.field(name).number());
    LeaseTerms::new(nanos("read_lease"), nanos("margin")).expect("terms that were in use")
}

pub fn kind(text: &str) -> PlaneKind {
    match text {
        "Root" => PlaneKind::Root,
        "Tenant" => PlaneKind::Tenant,
        other => panic!("no kind of plane: {other}"),
    }
}

fn fence(value: &Value) -> Fence {
    let state = value.field("state");
    Fence {
        holder: holder(value.field("holder")),
        epoch: Epoch::new(value.field("epoch").number()),
        state: match state.name.as_str() {
            "Held" => FenceState::Held,
            "Released" => FenceState::Released {
                head: revision(state.field("head")),
                successor: state.field("successor").some().map(replica),
            },
            "Deleted" => FenceState::Deleted,
            other => panic!("no state of a fence: {other}"),
        },
    }
}

fn observed(value: &Value) -> Observed<Fence> {
    Observed {
        value: fence(value.field("value")),
        revision: revision(value.field("revision")),
    }
}

/// Builds a sighting, which only a witness can return: one that has seen what the trace's witness
/// knew about the holder's life.
fn sighting(value: &Value, terms: LeaseTerms) -> Sighting {
    let found = value.field("fence").some().map(observed);
    let life = value.field("life");
    let holder = found.as_ref().map(|fence| fence.value.holder.clone());
    let view = |number| ViewNumber::new(number);
    let mut witness = Witness::shared_store(terms);
    match (life.name.as_str(), holder) {
        ("Unseen", _) => {}
        ("Alive", Some(holder)) => {
            let number = holder.incarnation.get();
            witness.observe(Time::from_nanos(0), view(number), [holder]);
        }
        ("Gone", Some(holder)) => {
            let (number, since) = (holder.incarnation.get(), time(life.field("since")));
            witness.observe(Time::from_nanos(0), view(number), [holder]);
            witness.observe(since, view(number + 1), []);
        }
        ("BeforeOpening", Some(holder)) => {
            let opened = Revision::new(holder.incarnation.get());
            witness = Witness::embedded_store(opened, terms);
        }
        (other, holder) => panic!("no life: {other} of {holder:?}"),
    }
    let sighting = witness.sighting(found);
    let read = Value::read(&format!("{sighting:?}"));
    for name in ["fence", "life"] {
        assert_eq!(read.field(name), value.field(name));
    }
    sighting
}

fn outcome(value: &Value) -> Outcome {
    match value.name.as_str() {
        "Applied" => Outcome::Applied(revision(value)),
        "Refused" => {
            let refusal = value.only();
            let directory = refusal.field("directory");
            Outcome::Refused(Refusal {
                at: revision(refusal.field("at")),
                fence: refusal.field("fence").some().map(observed),
                own_incarnation: refusal
                    .field("own_incarnation")
                    .some()
                    .map(|own| Incarnation::new(own.number())),
                directory: match directory.name.as_str() {
                    "Present" => Directory::Present,
                    "Absent" => Directory::Absent,
                    other => panic!("no state of a directory record: {other}"),
                },
            })
        }
        "Rejected" => Outcome::Rejected,
        "Unknown" => Outcome::Unknown,
        other => panic!("no outcome: {other}"),
    }
}

/// Builds an event from its text. `sent` returns today's attempt for the number of one in the
/// trace.
pub fn event(
    value: &Value,
    terms: LeaseTerms,
    sent: impl Fn(u64) -> Option<Attempt>,
) -> Option<Event> {
    let head = || revision(value.field("head"));
    Some(match value.name.as_str() {
        "Acquire" => Event::Acquire(sighting(value.only(), terms)),
        "Looked" => Event::Looked(sighting(value.only(), terms)),
        "Done" => Event::Done {
            attempt: sent(value.field("attempt").number())?,
            outcome: outcome(value.field("outcome")),
        },
        "Loaded" => Event::Loaded { head: head() },
        "Published" => Event::Published { head: head() },
        "CommitSent" => Event::CommitSent,
        "CommitDone" => Event::CommitDone(outcome(value.only())),
        "Replayed" => Event::Replayed { head: head() },
        "StreamReceived" => Event::StreamReceived { head: head() },
        "HandOff" => {
            let streaming = value.field("streaming");
            Event::HandOff {
                successor: value.field("successor").some().map(replica),
                streaming: match streaming.name.as_str() {
                    "To" => Streaming::To(replica(streaming.only())),
                    "Nothing" => Streaming::Nothing,
                    other => panic!("no streaming: {other}"),
                },
            }
        }
        "StreamEnded" => Event::StreamEnded,
        "CallOff" => Event::CallOff,
        "MemberLost" => Event::MemberLost,
        other => panic!("no event of the traces: {other}"),
    })
}
