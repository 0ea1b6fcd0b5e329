//! A document that is kept compressed and unpacked as its client reads it.
//!
//! Unpacked whole, a document of megabytes would be held once for each stream whose client does not
//! read, and a connection may have a hundred of these.

use std::io::{self, Read as _};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use futures_util::Stream;
use polyplane_registry::StreamEnd;

/// Bytes that are unpacked at a time. More would be held for each client that reads a little and stops.
const PIECE_BYTES: usize = 32 * 1024;

/// See the module.
pub(crate) struct Inflated {
    source: Source,
    /// Bytes that are unpacked and not sent, before the first that is.
    skipped: usize,
    /// Bytes still to come, unpacked.
    left: usize,
}

enum Source {
    /// Nothing was read yet: this is all that a client costs that opens a stream and reads nothing.
    Packed(Bytes),
    Begun(Box<GzDecoder<io::Cursor<Bytes>>>),
}

impl Inflated {
    /// Creates the stream of these bytes of what `gzip` has unpacked.
    pub(crate) fn new(gzip: Bytes, part: Range<usize>) -> Self {
        Self {
            source: Source::Packed(gzip),
            skipped: part.start,
            left: part.len(),
        }
    }

    /// Returns the next piece; an empty one for what is skipped, and at the end.
    fn read(&mut self) -> io::Result<Bytes> {
        if let Source::Packed(gzip) = &mut self.source {
            let packed = io::Cursor::new(std::mem::take(gzip));
            self.source = Source::Begun(Box::new(GzDecoder::new(packed)));
        }
        let Source::Begun(decoder) = &mut self.source else {
            return Ok(Bytes::new());
        };
        let is_skipped = self.skipped > 0;
        let rest = match is_skipped {
            true => &mut self.skipped,
            false => &mut self.left,
        };
        let wanted = (*rest).min(PIECE_BYTES);
        let mut piece = Vec::with_capacity(wanted);
        decoder.take(wanted as u64).read_to_end(&mut piece)?;
        if piece.len() < wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *rest -= wanted;
        if is_skipped {
            piece.clear();
        }
        Ok(piece.into())
    }
}

impl Stream for Inflated {
    type Item = Result<Bytes, StreamEnd>;

    fn poll_next(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(this.read().map_err(|error| {
            tracing::error!(%error, "a document that was compressed here cannot be unpacked");
            this.left = 0;
            StreamEnd::Damaged
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::StreamExt as _;

    use super::*;

    fn packed(plain: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory").into()
    }

    async fn all(stream: Inflated) -> Result<Vec<Bytes>, StreamEnd> {
        let pieces: Vec<_> = stream.collect().await;
        pieces.into_iter().collect()
    }

    #[tokio::test]
    async fn what_was_packed_comes_in_small_pieces_and_whole() {
        let text = "one of many lines\n".repeat(100_000);
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, text.len()] {
            let plain = &text.as_bytes()[..length];
            let stream = Inflated::new(packed(plain), 0..length);
            let pieces = all(stream).await.expect("it is whole");
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert_eq!(pieces.concat(), plain);
        }
    }

    #[tokio::test]
    async fn what_is_cut_short_breaks_off() {
        let gzip = packed(&b"x".repeat(100_000));
        let short = gzip.slice(..gzip.len() / 2);
        assert!(all(Inflated::new(short, 0..100_000)).await.is_err());
        assert!(all(Inflated::new(gzip.clone(), 0..100_001)).await.is_err());
        assert!(all(Inflated::new(gzip, 100_001..100_002)).await.is_err());
    }

    #[tokio::test]
    async fn a_part_is_what_stands_there_in_the_whole() {
        let text = "one of many lines\n".repeat(100_000);
        let gzip = packed(text.as_bytes());
        for part in [
            0..1,
            7..7,
            PIECE_BYTES..PIECE_BYTES + 1,
            100_001..300_000,
            text.len() - 1..text.len(),
        ] {
            let pieces = all(Inflated::new(gzip.clone(), part.clone())).await;
            let pieces = pieces.expect("it is whole");
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert_eq!(pieces.concat(), &text.as_bytes()[part]);
        }
    }
}
