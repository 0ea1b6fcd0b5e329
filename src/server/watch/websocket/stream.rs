//! Sends the events of a watch as messages of a WebSocket.
//!
//! The stream of a watch is lines of JSON, or messages of protobuf with their length in front; each
//! line with its newline becomes one text message in one frame, each message without its length one
//! binary message. Messages from the client are read, limited in size and ignored, except for close and
//! ping.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::BodyExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::answer::body::ResponseBody;

/// Longest message from a client, in bytes. Clients have no reason to send any; without the limit
/// one could use up the memory.
const CLIENT_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the read buffer of each WebSocket. More would cost memory per watch without use.
const READ_BUFFER_BYTES: usize = 4 * 1024;
/// Bytes up to which messages are coalesced before they are written. More would cost memory per
/// watch: the unwritten bytes are at most this and one message.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;
/// Longest event, in bytes. No event is longer; without the limit a broken stream would use up the
/// memory.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long a client may take to read the close and to close the connection. Without the limit, a
/// client that hangs would keep the connection.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes that are read from a client that has to close. Without the limit, one that keeps sending
/// would never be disconnected.
const CLOSE_BYTES_MAX: u64 = 256 * 1024;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A watch that continues over a WebSocket once the handshake has replaced HTTP.
pub(crate) struct Session {
    upgrade: OnUpgrade,
    events: ResponseBody,
    framing: Framing,
}

/// How the events of a stream are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Each ends with a newline.
    #[default]
    Lines,
    /// Each begins with its length, in four bytes.
    Lengths,
}

/// The way in which a WebSocket ended.
enum End {
    /// The watch ended, or the client broke the protocol.
    Close(CloseCode),
    /// The client sent a close.
    ClosedByClient,
    /// The connection broke.
    Broken,
}

impl Session {
    pub(crate) fn new(upgrade: OnUpgrade, events: ResponseBody, framing: Framing) -> Self {
        Self {
            upgrade,
            events,
            framing,
        }
    }

    /// Sends events until the watch ends or the client closes. Must be called after HTTP has ended
    /// on the connection. Dropping the future aborts the connection.
    pub(crate) async fn serve(mut self) {
        let Ok(upgraded) = self.upgrade.await else {
            return;
        };
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(WRITE_BUFFER_BYTES)
            .max_message_size(Some(CLIENT_MESSAGE_BYTES_MAX))
            .max_frame_size(Some(CLIENT_MESSAGE_BYTES_MAX))
            .accept_unmasked_frames(false);
        let socket = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(socket, Role::Server, Some(config)).await;
        let end = send_events(&mut socket, &mut self.events, self.framing).await;
        // Before the close, so that a slow client keeps no watch open.
        drop(self.events);
        if timeout(CLOSE_TIME_MAX, close(socket, end)).await.is_err() {
            tracing::debug!("the client of a WebSocket did not close it in time");
        }
    }
}

async fn send_events(socket: &mut Socket, events: &mut ResponseBody, framing: Framing) -> End {
    let mut messages = Messages {
        framing,
        ..Messages::default()
    };
    loop {
        tokio::select! {
            // The client first, so that its close counts before further events. A client that sends
            // without end only delays its own events.
            biased;
            received = socket.next() => match received {
                Some(Ok(Message::Close(_))) => return End::ClosedByClient,
                Some(Ok(_)) => {}
                Some(Err(error)) => return end_of(&error),
                None => return End::Broken,
            },
            frame = events.frame() => {
                let Some(Ok(frame)) = frame else {
                    return End::Close(CloseCode::Normal);
                };
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                if let Err(TooLong) = messages.feed(data) {
                    return End::Close(CloseCode::Error);
                }
                if let Err(error) = send(socket, &mut messages).await {
                    return end_of(&error);
                }
            }
        }
    }
}

/// Sends the messages that are ready. A client that does not read delays its own watch only.
async fn send(socket: &mut Socket, messages: &mut Messages) -> Result<(), Error> {
    while let Some(event) = messages.ready.pop_front() {
        let message = match messages.framing {
            Framing::Lines => Message::Text(Utf8Bytes::try_from(event)?),
            Framing::Lengths => Message::Binary(event),
        };
        socket.feed(message).await?;
    }
    socket.flush().await
}

fn end_of(error: &Error) -> End {
    tracing::debug!(%error, "a WebSocket ends early");
    match error {
        Error::Protocol(_) | Error::AttackAttempt => End::Close(CloseCode::Protocol),
        Error::Capacity(_) => End::Close(CloseCode::Size),
        Error::Utf8(_) => End::Close(CloseCode::Invalid),
        _ => End::Broken,
    }
}

/// Sends the close and reads until the client closes the connection. With unread bytes the system
/// would reset the connection, and the client would lose the last messages.
async fn close(mut socket: Socket, end: End) {
    let said = match end {
        End::Close(code) => {
            let reason = Utf8Bytes::from_static("");
            socket.close(Some(CloseFrame { code, reason })).await
        }
        // The library queued its answer when it read the client's close.
        End::ClosedByClient => socket.flush().await,
        End::Broken => return,
    };
    let mut connection = socket.into_inner();
    if said.is_err() || connection.shutdown().await.is_err() {
        return;
    }
    let mut rest = connection.take(CLOSE_BYTES_MAX);
    let _gone = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
}

/// An error: an event is longer than the limit.
#[derive(Debug, PartialEq, Eq)]
struct TooLong;

/// Splits a stream into its events.
#[derive(Debug, Default)]
struct Messages {
    framing: Framing,
    /// The part of an event whose end has not arrived.
    begun: BytesMut,
    ready: VecDeque<Bytes>,
}

impl Messages {
    fn feed(&mut self, data: Bytes) -> Result<(), TooLong> {
        match self.framing {
            Framing::Lines => self.feed_lines(data),
            Framing::Lengths => self.feed_lengths(data),
        }
    }

    fn feed_lengths(&mut self, data: Bytes) -> Result<(), TooLong> {
        self.begun.extend_from_slice(&data);
        while let Some(length) = self.begun.first_chunk().copied() {
            let length = u32::from_be_bytes(length) as usize;
            if length > MESSAGE_BYTES_MAX {
                return Err(TooLong);
            }
            let length_bytes = size_of::<u32>();
            if self.begun.len() < length_bytes + length {
                break;
            }
            let mut event = self.begun.split_to(length_bytes + length);
            self.ready.push_back(event.split_off(length_bytes).freeze());
        }
        Ok(())
    }

    fn feed_lines(&mut self, mut data: Bytes) -> Result<(), TooLong> {
        while let Some(newline) = data.iter().position(|byte| *byte == b'\n') {
            let mut line = data.split_to(newline + 1);
            if !self.begun.is_empty() {
                self.begun.extend_from_slice(&line);
                line = std::mem::take(&mut self.begun).freeze();
            }
            self.ready.push_back(line);
        }
        self.begun.extend_from_slice(&data);
        if self.begun.len() > MESSAGE_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut messages = Messages::default();
        let part = Bytes::from(vec![b'x'; MESSAGE_BYTES_MAX / 2]);
        assert_eq!(messages.feed(part.clone()), Ok(()));
        assert_eq!(messages.feed(part), Ok(()));
        assert_eq!(messages.feed(Bytes::from_static(b"x")), Err(TooLong));
    }

    #[test]
    fn a_length_beyond_all_events_is_given_up() {
        let mut messages = Messages {
            framing: Framing::Lengths,
            ..Messages::default()
        };
        let length = u32::try_from(MESSAGE_BYTES_MAX + 1).expect("it fits");
        let head = Bytes::copy_from_slice(&length.to_be_bytes());
        assert_eq!(messages.feed(head), Err(TooLong));
    }

    proptest! {
        /// However a stream is divided, the messages are what its lengths say.
        #[test]
        fn messages_have_their_lengths(
            events in proptest::collection::vec("[a-z\n]{0,9}", 0..9),
            cuts in proptest::collection::vec(0_usize..100, 0..9),
        ) {
            let mut stream = BytesMut::new();
            for event in &events {
                let length = u32::try_from(event.len()).expect("it is short");
                stream.extend_from_slice(&length.to_be_bytes());
                stream.extend_from_slice(event.as_bytes());
            }
            let mut stream = stream.freeze();
            let mut messages = Messages { framing: Framing::Lengths, ..Messages::default() };
            for cut in cuts {
                let piece = stream.split_to(cut.min(stream.len()) / 2);
                prop_assert_eq!(messages.feed(piece), Ok(()));
            }
            prop_assert_eq!(messages.feed(stream), Ok(()));
            prop_assert_eq!(Vec::from(messages.ready), events);
            prop_assert!(messages.begun.is_empty());
        }

        /// However a stream is divided, the messages are its whole lines.
        #[test]
        fn messages_are_whole_lines(
            lines in proptest::collection::vec("[a-z]{0,9}\n", 0..9),
            rest in "[a-z]{0,4}",
            cuts in proptest::collection::vec(0_usize..100, 0..9),
        ) {
            let mut stream = Bytes::from(lines.concat() + &rest);
            let mut messages = Messages::default();
            for cut in cuts {
                let piece = stream.split_to(cut.min(stream.len()) / 2);
                prop_assert_eq!(messages.feed(piece), Ok(()));
            }
            prop_assert_eq!(messages.feed(stream), Ok(()));
            prop_assert_eq!(Vec::from(messages.ready), lines);
            prop_assert_eq!(messages.begun, rest.as_bytes());
        }
    }
}
