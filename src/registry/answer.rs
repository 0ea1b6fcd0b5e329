//! The registry's answers: bytes in the negotiated media type, ready to be written.

pub mod held;
pub mod media_range;
pub mod negotiate;
pub mod representation;
pub mod scale;
pub mod watch_frame;

use crate::request::call::Call;
use crate::verbs::connect::ConnectTarget;
use bytes::Bytes;
use futures_util::Stream;
use negotiate::Representation;
use std::borrow::Cow;
use std::pin::Pin;

/// The way in which a successful request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request has read, changed or removed an object.
    Ok,
    /// The request has created an object.
    Created,
    /// The request was accepted and continues after the answer.
    Accepted,
    /// The answer has no content; its body is empty and has no media type.
    NoContent,
}

/// The reason why a stream of an answer ended before it was complete.
#[derive(Debug, thiserror::Error)]
pub enum StreamEnd {
    /// The reader fell behind the events or objects that are kept for it.
    #[error("the reader fell behind the log")]
    Lagged,
    /// The plane moved to another owner, fell asleep or was deleted.
    #[error("the plane is no longer served here")]
    Closed,
    /// The objects that the answer keeps from being freed exceed the memory budget.
    #[error("there is no memory for the rest of the answer")]
    Full,
    /// A stored object cannot be decoded.
    #[error("a stored object is damaged")]
    Damaged,
    /// A watch ended because the plane has another owner, where it can resume.
    #[error("the control plane moved to another replica")]
    Moved {
        /// The watch has sent every event up to this version, the initial events included; `None`
        /// if no such version is known.
        sent_up_to: Option<u64>,
    },
}

/// The slices of a body, in order.
pub enum AnswerBody {
    /// The whole body; its length is the sum of the slices.
    Slices(Vec<Bytes>),
    /// A long list, which is produced as the client reads it.
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, StreamEnd>> + Send>>),
    /// A watch, which continues until the client or a time-out ends it.
    Watch(WatchStream),
    /// A connection to another server, which the replica with the client opens.
    Connect(Box<ConnectTarget>),
}

/// The chunks of a watch, in order.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchChunk, StreamEnd>> + Send>>;

/// One or more whole lines of a watch, with the position of a client that has read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchChunk {
    /// The lines.
    pub bytes: Bytes,
    /// The position of a client that has read them.
    pub progress: WatchProgress,
}

/// The position of a client that has read a chunk of a watch: from where the watch can resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchProgress {
    /// Within the initial events. These are ordered by key, so the watch cannot resume there.
    Initial,
    /// The client has every event up to this version, which is that of the last event of the chunk.
    Events(u64),
    /// The chunk is one bookmark, and the client has every event up to its version.
    Bookmark(u64),
    /// The chunk ends with an error, so there is nothing to resume.
    Failed,
}

/// A successful answer.
pub struct Answer {
    /// The way in which the request ended.
    pub outcome: Outcome,
    /// The media type with its parameters.
    pub content_type: Cow<'static, str>,
    /// The texts for Warning headers, in order.
    pub warnings: Vec<String>,
    /// The body.
    pub body: AnswerBody,
}

impl Answer {
    /// Creates an answer that ends by itself, in the negotiated representation.
    pub(crate) fn finite(
        call: &Call<'_>,
        wish: Representation,
        outcome: Outcome,
        body: AnswerBody,
    ) -> Self {
        Self {
            outcome,
            content_type: Cow::Borrowed(wish.content_type()),
            warnings: call.take_warnings(),
            body,
        }
    }
}
