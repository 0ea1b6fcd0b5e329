//! Bounds the memory for heads over HTTP/2 before the server knows who the client is.
//!
//! A client may begin thousands of requests on a connection, and each of them waits until it is proven or answered.
//! Most of a head costs the client nothing: one byte names a header that it has sent before, and the server keeps up to
//! [`HEADER_BYTES`] for it. So the requests of a connection have [`OWN_BYTES`] until one of them is proven. Beyond that
//! they take from [`SHARED_BYTES`], of which no source address takes more than it leaves free. A request for which there
//! is no room is refused with a code that says that it was not begun (RFC 9113, 8.7), so that clients send it again. Most
//! of their connections are proven by then, and the requests of those are not counted.
//!
//! A request is counted when the library hands it on. What the library keeps of heads before that is bounded too:
//! - Heads that it has not handed on: at the end of its turn a connection has none, and a turn reads little
//!   (`coalesce.rs`).
//! - A head that has not ended takes [`UNFINISHED_BYTES`] of the same room (`control_frames.rs`).
//! - The buffers of small pieces of bodies take of it too (`control_frames.rs`).
//! - Trailers, which nobody needs: a stranger that sends some loses the connection (`control_frames.rs`).
//!
//! Invariant: a connection takes from the shared room what its requests take beyond its own, and nothing once one of
//! them is proven.

use std::collections::HashMap;
use std::sync::Arc;

use http::Request;
use parking_lot::Mutex;

use crate::request::doorway::Source;

/// Bytes that the requests of one connection always have. With more, connections of strangers, of which there may be
/// thousands, could fill the memory; with less, a client would need shared room for the few requests that it begins with.
const OWN_BYTES: usize = 64 * 1024;
/// Bytes that the requests of all connections have beyond that. With more, strangers could fill the memory; with less,
/// clients that connect at once, each with dozens of requests, would have to send some again.
const SHARED_BYTES: usize = 128 * 1024 * 1024;
/// Bytes that a request takes beside its head: the library's state of the stream, and the work on the request.
const REQUEST_BYTES: usize = 8 * 1024;
/// Bytes that a header takes beside its texts. The library's map takes up to twice as much as it needs.
const HEADER_BYTES: usize = 224;
/// Bytes that a head takes until it ends, at most: as many of the shortest headers as the library takes.
pub(crate) const UNFINISHED_BYTES: usize = 2 * 1024 * 1024;

/// Returns how many bytes a request takes while it waits.
pub(crate) fn bytes_of<B>(request: &Request<B>) -> usize {
    let headers = request.headers();
    let texts = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    let (method, uri) = (request.method().as_str(), request.uri());
    let authority = uri.authority();
    let authority = authority.map_or(0, |authority| authority.as_str().len());
    let target = uri.path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    let line = method.len() + authority + target;
    REQUEST_BYTES + headers.len() * HEADER_BYTES + texts.sum::<usize>() + line
}

/// There is no room for a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("clients that have proven nobody take all the room for heads")]
pub(crate) struct NoRoom;

/// The room that all connections share.
#[derive(Debug, Default)]
pub(crate) struct SharedRoom(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    /// Bytes by source; sources without any have no entry.
    by_source: HashMap<Source, usize>,
}

impl SharedRoom {
    fn take(&self, source: Source, bytes: usize) -> Result<(), NoRoom> {
        let mut taken = self.0.lock();
        let all = taken.bytes + bytes;
        let own = taken.by_source.get(&source).copied().unwrap_or(0) + bytes;
        // So a flood from one source leaves half of the room to others.
        if own > SHARED_BYTES.saturating_sub(all) {
            return Err(NoRoom);
        }
        taken.bytes = all;
        taken.by_source.insert(source, own);
        Ok(())
    }

    fn give_back(&self, source: Source, bytes: usize) {
        let mut taken = self.0.lock();
        taken.bytes -= bytes;
        if let Some(own) = taken.by_source.get_mut(&source) {
            *own -= bytes;
            if *own == 0 {
                taken.by_source.remove(&source);
            }
        }
    }
}

/// The heads of one connection.
#[derive(Debug)]
pub(crate) struct StrangeHeads {
    shared: Arc<SharedRoom>,
    source: Source,
    /// The bytes that they take; `None` once a request of the connection is proven.
    bytes: Mutex<Option<usize>>,
}

/// A head that takes room, until this is dropped or a request of its connection is proven.
#[derive(Debug)]
pub(crate) struct HeldHead {
    heads: Arc<StrangeHeads>,
    bytes: usize,
}

impl StrangeHeads {
    /// Creates the heads of a new connection from a source.
    pub(crate) fn new(shared: &Arc<SharedRoom>, source: Source) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            source,
            bytes: Mutex::new(Some(0)),
        })
    }

    /// Takes room for a head, or for what else the library keeps of a stranger.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Result<HeldHead, NoRoom> {
        let mut held = self.bytes.lock();
        if let Some(before) = *held {
            let after = before + bytes;
            let shared = beyond_own(after) - beyond_own(before);
            if shared > 0 {
                self.shared.take(self.source, shared)?;
            }
            *held = Some(after);
        }
        Ok(HeldHead {
            heads: Arc::clone(self),
            bytes,
        })
    }

    /// Gives back all room, because a request of the connection is proven. From then on heads need none.
    pub(crate) fn end(&self) {
        if let Some(before) = self.bytes.lock().take() {
            self.shrink(before, 0);
        }
    }

    /// Gives back to the others what the connection does not need any more.
    fn shrink(&self, before: usize, after: usize) {
        let shared = beyond_own(before) - beyond_own(after);
        if shared > 0 {
            self.shared.give_back(self.source, shared);
        }
    }
}

impl Drop for HeldHead {
    fn drop(&mut self) {
        let mut held = self.heads.bytes.lock();
        if let Some(before) = *held {
            let after = before - self.bytes;
            *held = Some(after);
            self.heads.shrink(before, after);
        }
    }
}

/// Returns how many of these bytes of one connection are shared ones.
fn beyond_own(bytes: usize) -> usize {
    bytes.saturating_sub(OWN_BYTES)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn source(number: u32) -> Source {
        Source::of(Some(IpAddr::from(Ipv4Addr::from(number))))
    }

    /// Returns as many heads of a new connection as there is room for.
    fn fill(shared: &Arc<SharedRoom>, number: u32, bytes: usize) -> Vec<HeldHead> {
        let heads = StrangeHeads::new(shared, source(number));
        std::iter::from_fn(|| heads.hold(bytes).ok()).collect()
    }

    #[test]
    fn a_source_takes_no_more_than_it_leaves_free_and_each_connection_has_room_of_its_own() {
        let shared = Arc::<SharedRoom>::default();
        let floods = [1, 1, 2, 3].map(|number| fill(&shared, number, MIB));
        assert_eq!(floods.each_ref().map(Vec::len), [64, 0, 32, 16]);
        let small = fill(&shared, 1, OWN_BYTES / 4);
        assert_eq!(small.len(), 4);
        drop((floods, small));
        let left = shared.0.lock();
        assert!(left.bytes == 0 && left.by_source.is_empty(), "{left:?}");
    }

    #[test]
    fn a_connection_that_is_proven_needs_no_room() {
        let shared = Arc::<SharedRoom>::default();
        let heads = StrangeHeads::new(&shared, source(1));
        let before: Vec<_> = std::iter::from_fn(|| heads.hold(MIB).ok()).collect();
        heads.end();
        assert_eq!(shared.0.lock().bytes, 0);
        let others = fill(&shared, 1, MIB);
        assert_eq!(others.len(), before.len());
        assert!((0..2000).all(|_| heads.hold(MIB).is_ok()));
        drop(before);
        drop(others);
        assert_eq!(shared.0.lock().bytes, 0);
    }

    #[test]
    fn many_short_headers_count_for_what_they_take() {
        let request = |headers: usize| {
            let mut request = Request::new(());
            for _ in 0..headers {
                let value = http::HeaderValue::from_static("");
                request.headers_mut().append("a", value);
            }
            bytes_of(&request)
        };
        assert!(request(8000) - request(0) >= 8000 * HEADER_BYTES);
        assert!(request(8000) <= UNFINISHED_BYTES);
    }

    /// The library bounds all of them together alone.
    #[test]
    fn method_authority_and_path_count_as_headers_do() {
        const LONG: usize = 60_000;
        let bytes = |method: &str, uri: &str| {
            let request = Request::builder().method(method).uri(uri).body(());
            bytes_of(&request.expect("a request"))
        };
        let (short, long) = (bytes("GET", "https://a/a"), "a".repeat(LONG));
        for (what, taken) in [
            ("the method", bytes(&long, "https://a/a")),
            ("the authority", bytes("GET", &format!("https://{long}/a"))),
            ("the path", bytes("GET", &format!("https://a/{long}"))),
        ] {
            assert!(taken - short >= LONG - "GET".len(), "{what}");
        }
    }
}
