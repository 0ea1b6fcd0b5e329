//! A body that is kept compressed and unpacked as its client reads it.
//!
//! Unpacked whole, a document of megabytes would be held once for each stream whose client does not
//! read, and a connection may have a hundred of these.

use std::io::{self, Read as _};
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http_body::{Frame, SizeHint};

use crate::answer::body::BodyEnd;
use crate::answer::guard::Finite;

/// Bytes that are unpacked at a time. More would be held for each client that reads a little and stops.
const PIECE_BYTES: usize = 32 * 1024;

/// See the module.
pub(crate) struct Inflated {
    source: Source,
    /// Bytes still to come, unpacked.
    left: usize,
}

enum Source {
    /// Nothing was read yet: this is all that a client costs that opens a stream and reads nothing.
    Packed(Bytes),
    Begun(Box<GzDecoder<io::Cursor<Bytes>>>),
}

impl Inflated {
    /// Creates the body of what `gzip` has, which is `length` bytes unpacked.
    pub(crate) fn new(gzip: Bytes, length: usize) -> Self {
        Self {
            source: Source::Packed(gzip),
            left: length,
        }
    }

    /// Returns the next piece; an empty one at the end.
    fn read(&mut self) -> io::Result<Bytes> {
        if let Source::Packed(gzip) = &mut self.source {
            let packed = io::Cursor::new(std::mem::take(gzip));
            self.source = Source::Begun(Box::new(GzDecoder::new(packed)));
        }
        let Source::Begun(decoder) = &mut self.source else {
            return Ok(Bytes::new());
        };
        let wanted = self.left.min(PIECE_BYTES);
        let mut piece = Vec::with_capacity(wanted);
        decoder.take(wanted as u64).read_to_end(&mut piece)?;
        if piece.len() < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= wanted;
        Ok(piece.into())
    }
}

impl Finite for Inflated {
    fn poll_next(
        &mut self,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let piece = self.read().map_err(BodyEnd::Compression);
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn size(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::task::Waker;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(plain: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory").into()
    }

    fn all(mut body: Inflated) -> Result<Vec<Bytes>, BodyEnd> {
        let mut context = Context::from_waker(Waker::noop());
        let mut pieces = Vec::new();
        while let Poll::Ready(Some(frame)) = body.poll_next(&mut context) {
            pieces.push(frame?.into_data().expect("data"));
        }
        Ok(pieces)
    }

    #[test]
    fn what_was_packed_comes_in_small_pieces_and_whole() {
        let text = "one of many lines\n".repeat(100_000);
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, text.len()] {
            let plain = &text.as_bytes()[..length];
            let body = Inflated::new(packed(plain), length);
            assert_eq!(body.size().exact(), Some(length as u64));
            let pieces = all(body).expect("it is whole");
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert_eq!(pieces.concat(), plain);
        }
    }

    #[test]
    fn what_is_cut_short_breaks_off() {
        let gzip = packed(&b"x".repeat(100_000));
        let short = gzip.slice(..gzip.len() / 2);
        assert!(all(Inflated::new(short, 100_000)).is_err());
        assert!(all(Inflated::new(gzip, 100_001)).is_err());
    }
}
