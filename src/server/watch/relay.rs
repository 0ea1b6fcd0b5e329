//! A client's watch that continues when its plane moves to another replica.
//!
//! The replica to which the client is connected keeps the client's stream. The events come from a
//! *source*: a watch of this replica or one at another replica. If the source ends because the
//! plane moved, or because its connection broke, the relay opens the next source after the last
//! version that it sent to the client.
//!
//! Whole lines are passed on as they arrive. A part of an event whose connection broke is never
//! sent, so the client gets no event twice and no part of one. [`WatchReader`] knows up to which
//! version the client has events: from the records of the other replica, or from the lines
//! themselves if that replica is too old for records. If it cannot know, the watch ends as any
//! watch may, and the client resumes.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body as _;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::answer::body::Watch;
use crate::connection::unread::Sending;
use crate::peer::channel::answer_memory::Kept;
use crate::peer::channel::stream::{Broken, PeerStream};
use crate::peer::headers::{MOVED, MovedTo, SENT_UP_TO};
use crate::request::seats::Seat;
use crate::watch::lines::WatchLines;
use crate::watch::position::ClientPosition;
use crate::watch::record::{MalformedRecord, WatchForm, WatchRecords};

/// Sources in a row that a watch opens without getting an event. Without the limit, two replicas
/// that disagree about the owner would keep a watch busy forever.
const REOPENED_WITHOUT_EVENTS_MAX: u32 = 16;

/// The outcome of opening the next source of a watch.
pub(crate) enum Reopened {
    /// The next source.
    Source(Source),
    /// The watch ends with this frame.
    Last(Bytes),
    /// The watch ends.
    Over,
}

type Opening = Pin<Box<dyn Future<Output = Reopened> + Send>>;

/// Opens the rest of a watch at the next source.
pub(crate) trait Reopen: Send + Sync {
    /// Opens a watch of the changes after version `sent_up_to`, at whichever replica serves the
    /// plane. `hint` names the replica to try first.
    fn reopen(&self, sent_up_to: u64, hint: Option<MovedTo>) -> Opening;
}

/// The place from which the events of a watch come.
pub(crate) enum Source {
    /// A watch of this replica.
    Here(Box<Watch>),
    /// A watch of another replica.
    There(Box<RemoteWatch>),
    /// The next source is being opened.
    Opening(Opening),
    /// No source: the watch has ended.
    Over,
}

/// A watch at another replica.
pub(crate) struct RemoteWatch {
    pub stream: PeerStream,
    /// Resolves when that replica leaves the ring.
    pub gone: Pin<Box<WaitForCancellationFutureOwned>>,
    pub reader: WatchReader,
    /// Counts what the reader keeps.
    pub kept: Kept,
    /// Counts the watch among the forwarded ones.
    pub _seat: Option<Seat>,
}

/// The stream of events to one client.
pub(crate) struct Relay {
    source: Source,
    session: Box<dyn Reopen>,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    reopened_without_events: u32,
    /// How the events are sent to the client; not set if by a WebSocket.
    sending: OnceLock<Arc<Sending>>,
}

impl Relay {
    pub(crate) fn new(
        source: Source,
        session: Box<dyn Reopen>,
        ending: WaitForCancellationFutureOwned,
    ) -> Self {
        Self {
            source,
            session,
            ending: Box::pin(ending),
            reopened_without_events: 0,
            sending: OnceLock::new(),
        }
    }

    /// Notes how the events are sent to the client.
    pub(crate) fn send_by(&self, sending: &Arc<Sending>) {
        // A watch is sent once.
        drop(self.sending.set(Arc::clone(sending)));
        if let Source::There(there) = &self.source {
            there.stream.set_sending(sending);
        }
    }

    pub(crate) fn into_source(self) -> Source {
        self.source
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.source, Source::Over)
    }

    /// Returns the next bytes for the client; `None` at the end of the watch.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let gone = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::Here(watch) => match watch.poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(bytes))) => {
                        self.reopened_without_events = 0;
                        return Poll::Ready(Some(bytes));
                    }
                    Poll::Ready(Some(Err(_)) | None) => SourceEnd {
                        sent_up_to: watch.moved().flatten(),
                        hint: None,
                    },
                },
                Source::There(there) => match there.poll(context) {
                    Poll::Pending => {
                        std::task::ready!(self.ending.as_mut().poll(context));
                        self.source = Source::Over;
                        return Poll::Ready(None);
                    }
                    Poll::Ready(Ok(bytes)) => {
                        self.reopened_without_events = 0;
                        return Poll::Ready(Some(bytes));
                    }
                    Poll::Ready(Err(gone)) => gone,
                },
                Source::Opening(opening) => match opening.as_mut().poll(context) {
                    Poll::Ready(Reopened::Source(source)) => {
                        if let (Source::There(there), Some(sending)) = (&source, self.sending.get())
                        {
                            there.stream.set_sending(sending);
                        }
                        self.source = source;
                        continue;
                    }
                    Poll::Ready(Reopened::Last(frame)) => {
                        self.source = Source::Over;
                        return Poll::Ready(Some(frame));
                    }
                    Poll::Ready(Reopened::Over) => SourceEnd::for_good(),
                    Poll::Pending => {
                        std::task::ready!(self.ending.as_mut().poll(context));
                        self.source = Source::Over;
                        return Poll::Ready(None);
                    }
                },
            };
            self.reopened_without_events += 1;
            self.source = match gone.sent_up_to {
                Some(sent_up_to) if self.reopened_without_events <= REOPENED_WITHOUT_EVENTS_MAX => {
                    Source::Opening(self.session.reopen(sent_up_to, gone.hint))
                }
                _ => Source::Over,
            };
        }
    }
}

/// The end of a source, and the version at which the next one begins.
struct SourceEnd {
    /// The version to resume after; `None` if the watch ends.
    sent_up_to: Option<u64>,
    hint: Option<MovedTo>,
}

impl SourceEnd {
    fn for_good() -> Self {
        Self {
            sent_up_to: None,
            hint: None,
        }
    }
}

impl RemoteWatch {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, SourceEnd>> {
        loop {
            if let Some(bytes) = self.reader.next() {
                return Poll::Ready(Ok(self.kept.hand_over(bytes)));
            }
            self.kept.resize(self.reader.begun_bytes());
            match Pin::new(&mut self.stream).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.kept.grow(data.len());
                        if let Err(error) = self.reader.feed(data) {
                            tracing::debug!(%error, "a watch cannot be resumed");
                            return Poll::Ready(Err(SourceEnd::for_good()));
                        }
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(Err(self.end_of(&trailers)));
                    }
                },
                // The other replica ended the watch in good order: its time was up.
                Poll::Ready(None) => return Poll::Ready(Err(SourceEnd::for_good())),
                // Resumed here, it would fill the memory again at once. Clients resume after a pause.
                Poll::Ready(Some(Err(Broken::Unread))) => {
                    tracing::debug!("a watch ends, because there is no memory for its events");
                    return Poll::Ready(Err(SourceEnd::for_good()));
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "the connection to the replica that sends a watch broke");
                    return Poll::Ready(Err(self.broken()));
                }
                Poll::Pending => {
                    std::task::ready!(self.gone.as_mut().poll(context));
                    return Poll::Ready(Err(self.broken()));
                }
            }
        }
    }

    fn broken(&self) -> SourceEnd {
        SourceEnd {
            sent_up_to: self.reader.sent_up_to(),
            hint: None,
        }
    }

    fn end_of(&self, trailers: &HeaderMap) -> SourceEnd {
        let Some(moved) = trailers.get(MOVED) else {
            return SourceEnd::for_good();
        };
        let text = trailers
            .get(SENT_UP_TO)
            .and_then(|value| value.to_str().ok());
        let sent_up_to = text.and_then(|text| text.parse().ok());
        SourceEnd {
            sent_up_to: sent_up_to.or_else(|| self.reader.sent_up_to()),
            hint: Some(MovedTo::parse(moved)),
        }
    }
}

/// Reads the form in which another replica sends a watch.
#[derive(Debug)]
pub(crate) enum WatchReader {
    /// The other replica is too old for records.
    Lines(WatchLines),
    Records(WatchRecords),
}

impl WatchReader {
    /// Creates a reader for a watch in `form`, whose client begins at `position`.
    pub(crate) fn new(form: WatchForm, position: ClientPosition) -> Self {
        match form {
            WatchForm::Lines => Self::Lines(WatchLines::new(position)),
            WatchForm::Records => Self::Records(WatchRecords::new(position)),
        }
    }

    pub(super) fn feed(&mut self, data: Bytes) -> Result<(), MalformedRecord> {
        match self {
            Self::Lines(lines) => {
                lines.feed(data);
                Ok(())
            }
            Self::Records(records) => records.feed(data),
        }
    }

    /// Returns the next bytes for the client, which are whole lines.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Lines(lines) => lines.next(),
            Self::Records(records) => records.next(),
        }
    }

    /// Returns the bytes of what has begun and not ended.
    pub(super) fn begun_bytes(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.begun_bytes(),
            Self::Records(records) => records.begun_bytes(),
        }
    }

    /// Returns the version to resume after if the source breaks now, or `None` if the watch cannot
    /// be resumed.
    pub(super) fn sent_up_to(&self) -> Option<u64> {
        match self {
            Self::Lines(lines) => lines.position().sent_up_to(),
            Self::Records(records) => records.position().sent_up_to(),
        }
    }
}
