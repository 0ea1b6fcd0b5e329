//! The record of a run: operations, lists and watches with their times and results, without a
//! judgement.
//!
//! This module owns the vocabulary of a recorded run. It is pure: callers pass in times, and
//! nothing is sent or read here. Invariant: every write of a run has a number of its own as its
//! value, so that a value names the operation that wrote it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A moment of the run, in nanoseconds of one monotonic clock since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

/// A `resourceVersion`, as a number. 0 is before all changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

/// The content of an object: the number of the operation that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(pub u64);

/// One client of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A plane by name.
pub type PlaneName = Arc<str>;
/// An object by name; names are unique within a plane's part of the run.
pub type ObjectName = Arc<str>;

/// The request about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// POST of a new object.
    Create(Value),
    /// GET without a version, which is a consistent read.
    Get,
    /// PUT. With a precondition, the object must have exactly that version.
    Update {
        /// The new content.
        value: Value,
        /// `metadata.resourceVersion` of the request.
        over: Option<Version>,
    },
    /// A merge patch without a precondition.
    Patch(Value),
    /// DELETE. With a precondition, the object must have exactly that version.
    Delete {
        /// `preconditions.resourceVersion` of the request.
        over: Option<Version>,
    },
}

impl Verb {
    /// Returns the content that the request writes.
    pub fn writes(&self) -> Option<Value> {
        match self {
            Self::Create(value) | Self::Update { value, .. } | Self::Patch(value) => Some(*value),
            Self::Get | Self::Delete { .. } => None,
        }
    }
}

/// A refusal that depends on the object, and so is a consistent read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// 404: the object does not exist.
    NotFound,
    /// 409 to a create: the object exists.
    AlreadyExists,
    /// 409 to a precondition: the object has another version.
    Conflict,
}

/// The end of an operation, as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A create, update or patch was acknowledged with this version, or a get was answered.
    Object {
        /// The version in the answer.
        version: Version,
        /// The content in the answer.
        value: Value,
    },
    /// A delete was acknowledged.
    Deleted,
    /// The request was refused because of the object's state.
    Refused(Refusal),
    /// The request was refused for another reason, certainly before it had any effect: 429, another
    /// 4xx, or a connection that was never made. The refusal says nothing about the object.
    Failed(Failure),
    /// There was no answer, or one that leaves open what happened. A write may take effect at any
    /// later time.
    Unknown(Failure),
}

/// The reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The server answered with this status code.
    Status(u16),
    /// The connection could not be made or broke.
    Connection,
    /// The client waited too long.
    TimedOut,
}

impl fmt::Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code) => write!(to, "status {code}"),
            Self::Connection => to.write_str("connection"),
            Self::TimedOut => to.write_str("no answer in time"),
        }
    }
}

/// One request about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client.
    pub client: ClientId,
    /// The plane.
    pub plane: PlaneName,
    /// The object.
    pub object: ObjectName,
    /// The verb.
    pub verb: Verb,
    /// The moment before the first byte was sent.
    pub start: Moment,
    /// The moment after the last byte was read, or at which the client gave up.
    pub end: Moment,
    /// The outcome.
    pub outcome: Outcome,
}

/// The content of a complete list of the run's objects of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The list's version.
    pub version: Version,
    /// Every object in it.
    pub items: BTreeMap<ObjectName, (Version, Value)>,
}

/// One list request without a version, which is a consistent read of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The client.
    pub client: ClientId,
    /// The plane.
    pub plane: PlaneName,
    /// The moment before the first byte was sent.
    pub start: Moment,
    /// The moment after the last byte was read.
    pub end: Moment,
    /// The answer.
    pub outcome: Result<Cut, Failure>,
}

/// The type of a watch event that reports a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// ADDED.
    Added,
    /// MODIFIED.
    Modified,
    /// DELETED. The event contains the last content.
    Deleted,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object changed.
    Change {
        /// The event's type.
        change: Change,
        /// The object.
        object: ObjectName,
        /// The object's new version.
        version: Version,
        /// The object's content; for a deleted object, the last one.
        value: Value,
    },
    /// BOOKMARK: the watch has delivered everything up to this version.
    Bookmark(Version),
}

impl Event {
    /// Returns the version in the event.
    pub fn version(&self) -> Version {
        match self {
            Self::Change { version, .. } | Self::Bookmark(version) => *version,
        }
    }
}

/// The end of one session of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The server ended the body properly.
    Closed,
    /// The connection broke, or the request never got an answer.
    Broken,
    /// The client waited too long for an answer.
    Unanswered,
    /// The server asked the client to retry later (429, 503) and opened no watch.
    Refused(u16),
    /// 410: the version is too old to continue from.
    Expired,
    /// Another ERROR event or status.
    Error(u16),
    /// The run was over.
    Finished,
}

/// One connection of a watch, from its request to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// `resourceVersion` of the request.
    pub from: Version,
    /// The moment of the request.
    pub start: Moment,
    /// The events, each with the moment at which it was read.
    pub events: Vec<(Moment, Event)>,
    /// The reason why the session ended.
    pub end: SessionEnd,
}

/// A watch of all objects of a plane through all its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The client.
    pub client: ClientId,
    /// The plane.
    pub plane: PlaneName,
    /// The list with which the watch began.
    pub first: Cut,
    /// The moment at which that list had been read.
    pub since: Moment,
    /// The sessions in order of time.
    pub sessions: Vec<Session>,
}

impl Watch {
    /// Returns the newest version up to which the watch has delivered everything.
    pub fn reached(&self) -> Version {
        let told = self.sessions.iter().flat_map(|session| &session.events);
        let newest = told.map(|(_, event)| event.version()).max();
        newest.unwrap_or_default().max(self.first.version)
    }
}

/// Everything that was recorded of a run, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Requests about single objects. Before the first one, no object existed.
    pub operations: Vec<Operation>,
    /// Lists.
    pub listings: Vec<Listing>,
    /// Watches.
    pub watches: Vec<Watch>,
}

impl History {
    /// Adds the record of another client.
    pub fn merge(&mut self, other: Self) {
        self.operations.extend(other.operations);
        self.listings.extend(other.listings);
        self.watches.extend(other.watches);
    }
}
