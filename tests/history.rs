//! What clients did and saw: operations, lists and watches with their times, nothing judged.
//!
//! Owns the vocabulary of a recorded run. Pure: times are given, nothing is sent or read here.
//! Invariant: every write of a run carries a number of its own as its value, so that a value names
//! the operation that wrote it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A moment of the run, in nanoseconds of one monotonic clock since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

/// A `resourceVersion`, as a number. 0 is before everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

/// What an object holds: the number of the operation that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(pub u64);

/// One client of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A plane by name.
pub type PlaneName = Arc<str>;
/// An object by name; names are unique within a plane's part of the run.
pub type ObjectName = Arc<str>;

/// What was asked of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// POST of a new object.
    Create(Value),
    /// GET without a version, which is a consistent read.
    Get,
    /// PUT; with a precondition it must find exactly that version.
    Update {
        /// The new content.
        value: Value,
        /// `metadata.resourceVersion` of the request.
        over: Option<Version>,
    },
    /// A merge patch without a precondition.
    Patch(Value),
    /// DELETE; with a precondition it must find exactly that version.
    Delete {
        /// `preconditions.resourceVersion` of the request.
        over: Option<Version>,
    },
}

impl Verb {
    /// Returns the content that it writes.
    pub fn writes(&self) -> Option<Value> {
        match self {
            Self::Create(value) | Self::Update { value, .. } | Self::Patch(value) => Some(*value),
            Self::Get | Self::Delete { .. } => None,
        }
    }
}

/// A refusal that says something about the object, and so is a consistent read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// 404: it is not there.
    NotFound,
    /// 409 to a create: it is there.
    AlreadyExists,
    /// 409 to a precondition: it is there with another version.
    Conflict,
}

/// How an operation ended, for its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A create, update or patch was acknowledged with this version, or a get was answered.
    Object {
        /// The version told.
        version: Version,
        /// The content told.
        value: Value,
    },
    /// A delete was acknowledged.
    Deleted,
    /// Refused for what the object is.
    Refused(Refusal),
    /// Refused for something else, for certain before anything happened: 429, another 4xx, a
    /// connection that was never made. It says nothing about the object and must have no effect.
    Failed(Failure),
    /// No answer, or one that leaves open what happened. A write may take effect at any later time.
    Unknown(Failure),
}

/// Why an operation was not answered as asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// The server answered this status code.
    Status(u16),
    /// The connection could not be made or broke.
    Connection,
    /// The client's patience ended.
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
    /// Who asked.
    pub client: ClientId,
    /// Whom.
    pub plane: PlaneName,
    /// About what.
    pub object: ObjectName,
    /// What.
    pub verb: Verb,
    /// Before the first byte was sent.
    pub start: Moment,
    /// After the last byte was read, or when the client gave up.
    pub end: Moment,
    /// The answer.
    pub outcome: Outcome,
}

/// What a complete list of the run's objects of a plane told.
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
    /// Who asked.
    pub client: ClientId,
    /// Whom.
    pub plane: PlaneName,
    /// Before the first byte was sent.
    pub start: Moment,
    /// After the last byte was read.
    pub end: Moment,
    /// The answer.
    pub outcome: Result<Cut, Failure>,
}

/// The type of a watch event that tells a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// ADDED.
    Added,
    /// MODIFIED.
    Modified,
    /// DELETED; it carries the last content.
    Deleted,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object changed.
    Change {
        /// The event's type.
        change: Change,
        /// Which object.
        object: ObjectName,
        /// Its new version.
        version: Version,
        /// Its content, the last one of a deleted object.
        value: Value,
    },
    /// BOOKMARK: everything up to here has been told.
    Bookmark(Version),
}

impl Event {
    /// Returns the version it tells.
    pub fn version(&self) -> Version {
        match self {
            Self::Change { version, .. } | Self::Bookmark(version) => *version,
        }
    }
}

/// How one session of a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The server ended the body properly.
    Closed,
    /// The connection broke, or the request never got an answer.
    Broken,
    /// The request was not answered in the client's patience.
    Unanswered,
    /// The server asked for patience (429, 503) and opened nothing.
    Refused(u16),
    /// 410: the version is too old to go on from.
    Expired,
    /// Another ERROR event or status.
    Error(u16),
    /// The run was over.
    Finished,
}

/// One connection of a watch, from the version it asked for to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// `resourceVersion` of the request.
    pub from: Version,
    /// When it was asked for.
    pub start: Moment,
    /// What came, with the moment at which it was read.
    pub events: Vec<(Moment, Event)>,
    /// Why no more came.
    pub end: SessionEnd,
}

/// A watch of all objects of a plane through all its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Who watches.
    pub client: ClientId,
    /// Which plane.
    pub plane: PlaneName,
    /// What was there when it began, by the list that gave the first version.
    pub first: Cut,
    /// When that list had been read.
    pub since: Moment,
    /// In order of time.
    pub sessions: Vec<Session>,
}

impl Watch {
    /// Returns the newest version that was told.
    pub fn reached(&self) -> Version {
        let told = self.sessions.iter().flat_map(|session| &session.events);
        let newest = told.map(|(_, event)| event.version()).max();
        newest.unwrap_or_default().max(self.first.version)
    }
}

/// Everything that was recorded of a run, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Requests about single objects. Nothing existed before the first.
    pub operations: Vec<Operation>,
    /// Lists.
    pub listings: Vec<Listing>,
    /// Watches.
    pub watches: Vec<Watch>,
}

impl History {
    /// Takes in what another recorder wrote down.
    pub fn merge(&mut self, other: Self) {
        self.operations.extend(other.operations);
        self.listings.extend(other.listings);
        self.watches.extend(other.watches);
    }
}
