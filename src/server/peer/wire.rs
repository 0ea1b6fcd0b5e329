//! The encoding of messages between replicas: the length of the JSON, the JSON, the payload.

use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use http_body_util::BodyExt as _;
use polyplane_fairness::PlaneMeter;
use polyplane_ownership::{PeerMessage, PeerReply, PeerRequest};

use crate::peer::channel::frame::CHUNK_BYTES;
use crate::peer::channel::stream::{Broken, PeerStream};

/// Longest JSON of a message, in bytes. More would let a peer use that much memory before its
/// message is read.
pub(super) const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
const LENGTH_BYTES: usize = 4;

/// A complete body in a few pieces, which are never copied together.
#[derive(Debug, Default)]
pub(crate) struct PeerBody {
    pieces: Vec<Bytes>,
    /// The plane for which it is sent; `None` if for the replicas themselves.
    payer: Option<Arc<PlaneMeter>>,
}

impl PeerBody {
    pub(crate) fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        Self {
            pieces: pieces.collect(),
            payer: None,
        }
    }

    /// Lets a plane pay for what it costs to send the request, and to receive its answer.
    pub(crate) fn paid_by(mut self, plane: &Arc<PlaneMeter>) -> Self {
        self.payer = Some(Arc::clone(plane));
        self
    }

    pub(super) fn payer(&self) -> Option<&Arc<PlaneMeter>> {
        self.payer.as_ref()
    }

    pub(super) fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Returns the only piece, if there is one and it fits one frame.
    pub(super) fn short_piece(&self) -> Option<&Bytes> {
        match self.pieces.as_slice() {
            [only] if only.len() <= CHUNK_BYTES => Some(only),
            _ => None,
        }
    }

    /// Adds `Content-Length`, unless the whole body fits one frame.
    pub(crate) fn announce(&self, headers: &mut HeaderMap) {
        if self.short_piece().is_none() && self.length() > 0 {
            headers.insert(CONTENT_LENGTH, self.length().into());
        }
    }

    pub(super) fn length(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// The reason why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// The message is longer than the limit.
    #[error("the message is longer than {0} bytes")]
    TooLong(usize),
    /// The message is shorter than its length says.
    #[error("the message is cut short")]
    Short,
    /// The JSON is not a known message.
    #[error("the message is not understood")]
    Json(#[source] serde_json::Error),
    /// The connection failed.
    #[error("the message could not be read")]
    Broken(#[source] Broken),
}

/// Encodes a message.
///
/// # Errors
/// Returns an error if the message has no JSON form or is too long.
pub(super) fn encode(request: &PeerRequest) -> Result<PeerBody, WireError> {
    let json = serde_json::to_vec(&request.message).map_err(WireError::Json)?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|length| *length as usize <= MESSAGE_BYTES_MAX)
        .ok_or(WireError::TooLong(MESSAGE_BYTES_MAX))?;
    let mut head = BytesMut::with_capacity(LENGTH_BYTES + json.len());
    head.extend_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&json);
    Ok(PeerBody::new([head.freeze(), request.payload.clone()]))
}

/// Decodes a message.
///
/// # Errors
/// Returns an error if the bytes are not a message.
pub(super) fn decode(mut bytes: Bytes) -> Result<PeerRequest, WireError> {
    if bytes.len() < LENGTH_BYTES {
        return Err(WireError::Short);
    }
    let length = bytes.get_u32() as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(WireError::TooLong(MESSAGE_BYTES_MAX));
    }
    if bytes.len() < length {
        return Err(WireError::Short);
    }
    let json = bytes.split_to(length);
    let message: PeerMessage = serde_json::from_slice(&json).map_err(WireError::Json)?;
    Ok(PeerRequest {
        message,
        payload: bytes,
    })
}

/// Encodes a reply. One that is longer than what the peer reads becomes a failure that says so.
///
/// # Errors
/// Returns an error if the reply has no JSON form.
pub(super) fn encode_reply(reply: &PeerReply) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(reply)?;
    if json.len() <= PeerReply::BYTES_MAX {
        return Ok(json);
    }
    let reason = format!("the reply has {} bytes, more than a peer reads", json.len());
    serde_json::to_vec(&PeerReply::Failed { reason })
}

/// Reads a body to its end, at most `bytes_max` bytes. Memory for the announced length is allocated
/// at once, so that a large payload is copied only once.
///
/// # Errors
/// Returns an error if the body is longer, or breaks off.
pub(super) async fn read_to_end(
    body: &mut PeerStream,
    bytes_max: usize,
) -> Result<Bytes, WireError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(WireError::TooLong(bytes_max));
    }
    let mut read = BytesMut::with_capacity(announced);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(WireError::Broken)?;
        if let Ok(data) = frame.into_data() {
            if read.len() + data.len() > bytes_max {
                return Err(WireError::TooLong(bytes_max));
            }
            read.extend_from_slice(&data);
        }
    }
    Ok(read.freeze())
}

/// Returns the longest body of a message, in bytes, for a limit on its payload.
pub(super) fn body_bytes_max(payload_bytes_max: usize) -> usize {
    LENGTH_BYTES + MESSAGE_BYTES_MAX + payload_bytes_max
}

/// Returns the announced length of a body.
pub(super) fn announced(body: &PeerStream) -> u64 {
    body.size_hint().lower()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(body: &PeerBody) -> Bytes {
        body.pieces().concat().into()
    }

    #[test]
    fn messages_survive_the_way() {
        let payload = Bytes::from(vec![7; 100_000]);
        let request = PeerRequest {
            message: PeerMessage::State {
                plane: "abc".to_owned(),
                head: 12,
            },
            payload: payload.clone(),
        };
        let body = encode(&request).expect("short");
        assert_eq!(body.length(), bytes_of(&body).len());
        let back = decode(bytes_of(&body)).expect("its own encoding");
        assert_eq!(
            (back.message, back.payload),
            (request.message, request.payload)
        );
    }

    #[test]
    fn a_reply_that_a_peer_would_refuse_is_not_sent() {
        for (bytes, fits) in [(100, true), (PeerReply::BYTES_MAX, false)] {
            let reason = "x".repeat(bytes);
            let reply = PeerReply::Failed { reason };
            let json = encode_reply(&reply).expect("plain data");
            assert!(json.len() <= PeerReply::BYTES_MAX);
            let back: PeerReply = serde_json::from_slice(&json).expect("its own encoding");
            assert_eq!(back == reply, fits);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let request = PeerRequest::from(PeerMessage::Load);
        let whole = bytes_of(&encode(&request).expect("short"));
        assert!(matches!(
            decode(whole.slice(..whole.len() - 1)),
            Err(WireError::Short)
        ));
        assert!(matches!(decode(Bytes::new()), Err(WireError::Short)));
        let long = Bytes::from_static(&[0xff; 8]);
        assert!(matches!(decode(long), Err(WireError::TooLong(_))));
        let nonsense = Bytes::from_static(&[0, 0, 0, 2, b'n', b'o']);
        assert!(matches!(decode(nonsense), Err(WireError::Json(_))));
    }
}
