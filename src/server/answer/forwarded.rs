//! The answer of another replica, which is passed on frame by frame. What the client's connection keeps of it counts in
//! the memory of such answers (`peer::channel::answer_memory`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use crate::answer::body::BodyEnd;
use crate::answer::guard::Finite;
use crate::connection::unread::Sending;
use crate::peer::channel::stream::PeerStream;
use crate::peer::headers::strip;

/// Length in bytes from which a piece of another replica's answer counts in the memory budget after it was read. Below
/// it, counting costs more than it is worth.
const COUNTED_BYTES: usize = 4 * 1024;

impl Finite for PeerStream {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        poll_forwarded(self, context)
    }

    fn size(&self) -> SizeHint {
        self.size_hint()
    }

    fn send_by(&self, sending: &Arc<Sending>) {
        self.set_sending(sending);
    }
}

/// Returns the next frame of another replica's answer, without the headers that only replicas may
/// see.
pub(super) fn poll_forwarded(
    stream: &mut PeerStream,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
    let frame = std::task::ready!(Pin::new(&mut *stream).poll_frame(context));
    Poll::Ready(match frame {
        None => None,
        Some(Err(error)) => Some(Err(BodyEnd::Peer(error))),
        Some(Ok(frame)) => match frame.into_trailers() {
            Ok(mut trailers) => {
                strip(&mut trailers);
                Some(Ok(Frame::trailers(trailers)))
            }
            Err(frame) => Some(Ok(frame.map_data(|data| {
                match data.len() < COUNTED_BYTES {
                    true => data,
                    false => stream.kept().hand_over(data),
                }
            }))),
        },
    })
}
