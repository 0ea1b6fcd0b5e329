//! The gzip form of a watch that begins with a list, for a client that takes it. As upstream, no other watch is
//! compressed.
//!
//! Each piece is a gzip member of its own. So a watch that goes on at another replica goes on in the same form, and
//! nothing is kept for a watch between its events.
//!
//! Inside a member an empty block follows the piece, before the last block. At an empty block a reader hands out what
//! it has. Go's hands out the bytes of the last block only after it has read the head of the next member, which comes
//! with the next event.

use std::io::Write as _;

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::write::GzEncoder;
use flate2::{Compression, Crc};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderValue, Request};
use polyplane_registry::request::parameters::{ALLOW_WATCH_BOOKMARKS, SEND_INITIAL_EVENTS};

use crate::answer::negotiate::takes_gzip;
use crate::answer::respond::Reply;
use crate::request::route::parse_query;

/// Bytes from which a piece is compressed. Single events are mostly shorter, and each watcher gets its own copy: the
/// state of the compressor, some 300 KiB that are allocated for each piece, would cost more than they save.
const COMPRESSED_BYTES_MIN: usize = 16 * 1024;
/// The head of a gzip member without name, time and system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The type of a block of deflate that holds its bytes as they are.
const STORED: u8 = 0;
/// Such a block without bytes, and one more, which is the last.
const END: [u8; 10] = [0, 0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// Returns whether a watch that answers this request is compressed.
pub(crate) fn is_wanted<B>(request: &Request<B>) -> bool {
    // First what needs no parsing, because this looks at every request.
    let text = request.uri().query().unwrap_or("");
    if !text.contains(SEND_INITIAL_EVENTS.row().name)
        || !takes_gzip(request.headers().get(ACCEPT_ENCODING))
    {
        return false;
    }
    let query = parse_query(Some(text));
    SEND_INITIAL_EVENTS.read(&query) == Some(true)
        && ALLOW_WATCH_BOOKMARKS.read(&query) == Some(true)
}

/// Marks an answer whose pieces the connection compresses. A watch over a WebSocket is no answer of the connection
/// any more, and its messages stay as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packs;

/// Marks the answer if it is a watch.
pub(crate) fn packed(mut reply: Reply) -> Reply {
    if reply.body().is_watch() {
        reply.extensions_mut().insert(Packs);
        let headers = reply.headers_mut();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    reply
}

/// Returns a piece of a watch as a gzip member.
pub(crate) fn member(plain: &Bytes) -> Bytes {
    match u16::try_from(plain.len()) {
        Ok(length) if plain.len() < COMPRESSED_BYTES_MIN => stored(plain, length),
        _ => compressed(plain),
    }
}

/// Returns a member whose blocks are compressed.
fn compressed(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    // The flush writes the empty block.
    let written = encoder.write_all(plain).and_then(|()| encoder.flush());
    let member = written.and_then(|()| encoder.finish());
    member.expect("writing into memory does not fail").into()
}

/// Returns a member whose blocks hold the bytes as they are.
fn stored(plain: &[u8], length: u16) -> Bytes {
    let mut sum = Crc::new();
    sum.update(plain);
    let mut member = BytesMut::with_capacity(HEAD.len() + 5 + plain.len() + END.len() + 8);
    member.put_slice(&HEAD);
    member.put_u8(STORED);
    member.put_u16_le(length);
    member.put_u16_le(!length);
    member.put_slice(plain);
    member.put_slice(&END);
    member.put_u32_le(sum.sum());
    member.put_u32_le(u32::from(length));
    member.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// As Go reads: it hands out the bytes before an empty block, and those of the last block only with the next
    /// member.
    #[test]
    fn a_piece_can_be_read_before_the_next_one_comes() {
        const EMPTY_BLOCK: [u8; 4] = [0, 0, 0xff, 0xff];
        for length in [1, 100, COMPRESSED_BYTES_MIN, 1 << 20] {
            let plain: Vec<u8> = (0..=250).cycle().take(length).collect();
            let plain = Bytes::from(plain);
            let member = member(&plain);
            let ends = (HEAD.len()..=member.len() - 8 - EMPTY_BLOCK.len())
                .filter(|at| member[*at..].starts_with(&EMPTY_BLOCK));
            let is_before_the_last = |end: usize| {
                let mut reader = flate2::bufread::DeflateDecoder::new(&member[HEAD.len()..end]);
                let mut read = vec![0; length];
                let rest = member.len() - 8 - end;
                rest > 0 && reader.read_exact(&mut read).is_ok() && read == plain
            };
            let mut ends = ends.map(|at| at + EMPTY_BLOCK.len());
            assert!(ends.any(is_before_the_last), "of {length} bytes");
        }
    }

    #[test]
    fn every_piece_is_whole_and_all_are_one_stream() {
        let mut stream = Vec::new();
        let mut all = Vec::new();
        for length in [
            1,
            100,
            COMPRESSED_BYTES_MIN - 1,
            COMPRESSED_BYTES_MIN,
            1 << 20,
        ] {
            let plain = Bytes::from(vec![b'x'; length]);
            let member = member(&plain);
            let mut read = Vec::new();
            let unpacked = flate2::read::GzDecoder::new(&member[..]).read_to_end(&mut read);
            assert_eq!(unpacked.expect("gzip"), length);
            assert_eq!(read, plain);
            stream.extend_from_slice(&member);
            all.extend_from_slice(&plain);
        }
        let mut read = Vec::new();
        let unpacked = flate2::read::MultiGzDecoder::new(&stream[..]).read_to_end(&mut read);
        assert_eq!(unpacked.expect("gzip"), all.len());
        assert!(read == all && stream.len() < all.len() / 10);
    }

    #[test]
    fn watches_that_begin_with_a_list_are_compressed_for_those_who_take_it() {
        let wanted = |query: &str, codings: &str| {
            let request = Request::get(format!("/api/v1/pods?{query}"));
            let request = request.header(ACCEPT_ENCODING, codings).body(());
            is_wanted(&request.expect("a request"))
        };
        let list = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true";
        assert!(wanted(list, "gzip") && wanted(list, "deflate, gzip "));
        assert!(!wanted(list, "") && !wanted(list, "gzip;q=1, *"));
        for query in [
            "watch=1",
            "watch=1&sendInitialEvents=true",
            "watch=1&sendInitialEvents=false&allowWatchBookmarks=true",
            "watch=1&allowWatchBookmarks=true",
        ] {
            assert!(!wanted(query, "gzip"), "{query}");
        }
    }
}
