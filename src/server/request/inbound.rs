//! The body of a request as a stream, from a client or from a peer.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::peer::channel::stream::{Broken, PeerStream};

/// The body of a request.
pub(crate) enum Inbound {
    /// The body comes from the client itself.
    Client(Incoming),
    /// The body comes from a peer to which the client is connected.
    Peer(PeerStream),
}

/// The reason why a body could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboundError {
    #[error(transparent)]
    Client(#[from] hyper::Error),
    #[error(transparent)]
    Peer(#[from] Broken),
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = InboundError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        match &mut *self {
            Self::Client(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| Ok(frame?)))
            }
            Self::Peer(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| Ok(frame?)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Peer(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Peer(body) => body.size_hint(),
        }
    }
}
