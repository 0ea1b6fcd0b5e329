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
        told: Option<u64>,
    },
}

/// The slices of a body, in order.
pub enum AnswerBody {
    /// All of it; the length is the sum of the slices.
    Slices(Vec<Bytes>),
    /// As it comes: long lists and watches. A watch is told from a list by [`Answer::watch`].
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, StreamEnd>> + Send>>),
}

/// A successful answer.
pub struct Answer {
    /// How it ended.
    pub outcome: Outcome,
    /// Media type with its parameters.
    pub content_type: Cow<'static, str>,
    /// Texts for Warning headers, in order.
    pub warnings: Vec<String>,
    /// True if the body goes on until the client or a time-out ends it.
    pub watch: Liveness,
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
            watch: Liveness::Finite,
            body,
        }
    }
}

/// Whether a body ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It ends by itself: an object, a list, a Status.
    Finite,
    /// It goes on until somebody ends it: a watch.
    Endless,
}
