//! What the registry answers: bytes in the negotiated media type, ready to be written.

pub mod negotiate;
pub mod representation;
pub mod watch_frame;

use crate::request::call::Call;
use bytes::Bytes;
use futures_util::Stream;
use negotiate::Representation;
use std::borrow::Cow;
use std::pin::Pin;

/// How a request that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request has read, changed or removed an object.
    Ok,
    /// An object was made.
    Created,
    /// It was taken, and goes on behind the answer.
    Accepted,
    /// There is nothing to tell; the body is empty and has no media type.
    NoContent,
}

/// Why a stream of an answer ended before it was complete.
#[derive(Debug, thiserror::Error)]
pub enum StreamEnd {
    /// The reader fell behind what is kept for it.
    #[error("the reader fell behind the log")]
    Lagged,
    /// The plane went to another owner, to sleep or away.
    #[error("the plane is no longer served here")]
    Closed,
    /// What the answer keeps from being freed is too much for the memory budget.
    #[error("there is no memory for the rest of the answer")]
    Full,
    /// A stored object cannot be read.
    #[error("a stored object is damaged")]
    Damaged,
    /// A watch ended because the plane has another owner; it can go on there.
    #[error("the control plane moved to another replica")]
    Moved {
        /// The watch has sent every event up to this version, the initial events included; `None`
        /// if no such version is known.
        sent_up_to: Option<u64>,
    },
}

/// The slices of a body, in order.
pub enum AnswerBody {
    /// All of it; the length is the sum of the slices.
    Slices(Vec<Bytes>),
    /// A long list, as it is read.
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, StreamEnd>> + Send>>),
    /// A watch, which goes on until the client or a time-out ends it.
    Watch(WatchStream),
}

/// The chunks of a watch, in order.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchChunk, StreamEnd>> + Send>>;

/// One or more whole lines of a watch, with what they mean for a watch that resumes behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchChunk {
    /// The lines.
    pub bytes: Bytes,
    /// How far a client is that has read them.
    pub progress: WatchProgress,
}

/// How far a client is that has read a chunk of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchProgress {
    /// Amid the initial events. They are ordered by key, so the watch cannot resume behind them.
    Initial,
    /// It has every event up to this version, which is that of the last event of the chunk.
    Events(u64),
    /// The chunk is one bookmark, and the client has every event up to its version.
    Bookmark(u64),
    /// The chunk ends with an error, so there is nothing to resume.
    Failed,
}

/// A successful answer.
pub struct Answer {
    /// How it ended.
    pub outcome: Outcome,
    /// Media type with its parameters.
    pub content_type: Cow<'static, str>,
    /// Texts for Warning headers, in order.
    pub warnings: Vec<String>,
    /// The bytes.
    pub body: AnswerBody,
}

impl Answer {
    /// One that ends by itself, in the representation that was negotiated.
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
