//! Sends the answer to a peer's request as frames.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;

use crate::peer::channel::Channel;
use crate::peer::channel::frame::{self, CHUNK_BYTES, HeadTooLong, ResetReason};
use crate::peer::channel::stream::{Broken, Stream};

/// Sends one answer. If this is dropped before the end of the answer, the peer gets a reset.
pub(in crate::peer) struct AnswerSender {
    channel: Arc<Channel>,
    stream: Arc<Stream>,
}

impl AnswerSender {
    pub(in crate::peer) fn new(channel: &Arc<Channel>, stream: &Arc<Stream>) -> Self {
        Self {
            channel: Arc::clone(channel),
            stream: Arc::clone(stream),
        }
    }

    /// Sends the whole answer, as fast as the body produces it and the peer reads it.
    pub(in crate::peer) async fn send_all<B>(self, reply: Response<B>)
    where
        B: Body<Data = Bytes> + Unpin,
    {
        if self.send(reply).await.is_ok() {
            self.channel.forget(self.stream.id);
        }
    }

    async fn send<B>(&self, reply: Response<B>) -> Result<(), Broken>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let (mut parts, mut body) = reply.into_parts();
        if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
            let length = || HeaderValue::from(length);
            parts.headers.entry(CONTENT_LENGTH).or_insert_with(length);
        }
        self.channel.room().await?;
        let mut next = self.begin(parts.status, &parts.headers, &mut body).await?;
        while let Next::Frame(frame) = next {
            let frame = match frame {
                Some(frame) => Some(frame),
                None => body.frame().await.transpose().map_err(|_| Broken::Reset)?,
            };
            next = self.send_next(frame, body.is_end_stream()).await?;
        }
        Ok(())
    }

    /// Sends the head of the answer with as much of the body as is ready.
    async fn begin<B>(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &mut B,
    ) -> Result<Next, Broken>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut first = Bytes::new();
        let mut next = Next::Frame(None);
        if body.is_end_stream() {
            next = Next::Nothing;
        } else if let Some(there) = body.frame().now_or_never() {
            next = match there.transpose().map_err(|_| Broken::Reset)? {
                None => Next::Nothing,
                Some(mut frame) => match frame.data_mut() {
                    Some(data) if data.len() <= CHUNK_BYTES => {
                        first = std::mem::take(data);
                        Next::after(body.is_end_stream())
                    }
                    Some(_) | None => Next::Frame(Some(frame)),
                },
            };
        }
        self.stream.spend(first.len());
        let (id, is_last) = (self.stream.id, matches!(next, Next::Nothing));
        let head = (status, headers);
        let put = |out: &mut Vec<u8>| frame::put_answer(out, id, head, &first, is_last);
        let written = self.channel.push_when_room(put).await?;
        written.map_err(too_long)?;
        Ok(next)
    }

    /// Sends the next frame of a body; `is_last` if the body ends with it.
    async fn send_next(&self, frame: Option<Frame<Bytes>>, is_last: bool) -> Result<Next, Broken> {
        let frame = match frame.map(Frame::into_data) {
            Some(Ok(data)) => {
                self.channel.send_data(&self.stream, data, is_last).await?;
                return Ok(Next::after(is_last));
            }
            None => {
                self.channel
                    .send_data(&self.stream, Bytes::new(), true)
                    .await?;
                return Ok(Next::Nothing);
            }
            Some(Err(frame)) => frame,
        };
        let (id, trailers) = (self.stream.id, frame.into_trailers().unwrap_or_default());
        let put = |out: &mut Vec<u8>| frame::put_trailers(out, id, &trailers);
        let written = self.channel.push_when_room(put).await?;
        written.map_err(too_long)?;
        Ok(Next::Nothing)
    }
}

/// Reports an answer whose head does not fit a frame. The peer gets a reset, and tells the client
/// that the outcome is not known.
fn too_long(why: HeadTooLong) -> Broken {
    tracing::warn!(%why, "an answer to a peer cannot be sent");
    Broken::Reset
}

/// The part of a body that is sent next.
enum Next {
    /// The given frame, or the next one that the body produces.
    Frame(Option<Frame<Bytes>>),
    /// No part: the whole body was sent.
    Nothing,
}

impl Next {
    fn after(is_last: bool) -> Self {
        if is_last {
            Self::Nothing
        } else {
            Self::Frame(None)
        }
    }
}

impl Drop for AnswerSender {
    fn drop(&mut self) {
        let id = self.stream.id;
        if self.channel.forget(id) {
            let put = |out: &mut Vec<u8>| frame::put_reset(out, id, ResetReason::Broken);
            self.channel.push(put);
        }
    }
}
