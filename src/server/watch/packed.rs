//! The gzip form of a watch that begins with a list, for a client that takes it. As upstream, no other watch is
//! compressed.
//!
//! Each piece is a gzip member of its own. So the client can read every event when it arrives, a watch that goes on
//! at another replica goes on in the same form, and nothing is kept for a watch between its events.

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::Crc;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderValue, Request};
use polyplane_registry::request::parameters::{ALLOW_WATCH_BOOKMARKS, SEND_INITIAL_EVENTS};

use crate::answer::body::compressed;
use crate::answer::negotiate::takes_gzip;
use crate::answer::respond::Reply;
use crate::request::route::parse_query;

/// Bytes from which a piece is compressed. Single events are mostly shorter, and each watcher gets its own copy: the
/// state of the compressor, some 300 KiB that are allocated for each piece, would cost more than they save.
const COMPRESSED_BYTES_MIN: usize = 16 * 1024;
/// The head of a gzip member without name, time and system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The type of a block of deflate that is the last one and holds its bytes as they are.
const LAST_AND_STORED: u8 = 1;

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

/// Returns a member whose only block holds the bytes as they are.
fn stored(plain: &[u8], length: u16) -> Bytes {
    let mut sum = Crc::new();
    sum.update(plain);
    let mut member = BytesMut::with_capacity(HEAD.len() + 5 + plain.len() + 8);
    member.put_slice(&HEAD);
    member.put_u8(LAST_AND_STORED);
    member.put_u16_le(length);
    member.put_u16_le(!length);
    member.put_slice(plain);
    member.put_u32_le(sum.sum());
    member.put_u32_le(u32::from(length));
    member.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

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
