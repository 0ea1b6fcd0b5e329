//! Limits on handshakes in progress at the peer listener.
//!
//! Nobody is proven before the end of a handshake, so anybody can begin any number of them. If the
//! listener refused new ones, a stranger could shut out peers. Instead the listener aborts the
//! *oldest* handshake, of the same source or of all, whichever limit is reached. A peer's handshake
//! takes a few milliseconds. To abort it a stranger has to begin a full limit of handshakes within
//! that time; a stranger that only holds connections open aborts its own.
//!
//! Invariant: handshakes and proven connections never count against each other's limits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::request::doorway::Source;

/// The limits on handshakes in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakesMax {
    pub all: usize,
    pub of_one_source: usize,
}

/// All handshakes in progress.
#[derive(Debug)]
pub(super) struct Handshakes {
    max: HandshakesMax,
    in_progress: Mutex<InProgress>,
}

#[derive(Debug, Default)]
struct InProgress {
    next: u64,
    /// The handshakes by number, so the oldest one is first.
    all: BTreeMap<u64, (Source, CancellationToken)>,
}

/// One handshake in progress; dropping this ends it.
#[derive(Debug)]
pub(super) struct Handshake {
    handshakes: Arc<Handshakes>,
    number: u64,
    /// Cancelled when the handshake is to be aborted.
    pub evicted: CancellationToken,
}

impl Handshakes {
    pub(super) fn new(max: HandshakesMax) -> Arc<Self> {
        Arc::new(Self {
            max,
            in_progress: Mutex::default(),
        })
    }

    /// Begins a handshake, and aborts the oldest one if there are too many.
    pub(super) fn begin(self: &Arc<Self>, address: IpAddr) -> Handshake {
        let source = Source::of(Some(address));
        let evicted = CancellationToken::new();
        let mut in_progress = self.in_progress.lock();
        let of_source = |(of, _): &&(Source, CancellationToken)| *of == source;
        if in_progress.all.values().filter(of_source).count() >= self.max.of_one_source {
            let mut numbers = in_progress.all.iter();
            let oldest = numbers.find(|(_, (of, _))| *of == source);
            let oldest = oldest.map(|(number, _)| *number);
            in_progress.evict(oldest);
        } else if in_progress.all.len() >= self.max.all {
            let oldest = in_progress.all.keys().next().copied();
            in_progress.evict(oldest);
        }
        let number = in_progress.next;
        in_progress.next += 1;
        in_progress.all.insert(number, (source, evicted.clone()));
        Handshake {
            handshakes: Arc::clone(self),
            number,
            evicted,
        }
    }
}

impl InProgress {
    fn evict(&mut self, number: Option<u64>) {
        if let Some((_, evicted)) = number.and_then(|number| self.all.remove(&number)) {
            evicted.cancel();
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.in_progress.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshakes(all: usize, of_one_source: usize) -> Arc<Handshakes> {
        Handshakes::new(HandshakesMax { all, of_one_source })
    }

    fn begin(handshakes: &Arc<Handshakes>, address: &str) -> Handshake {
        handshakes.begin(address.parse().expect("an address"))
    }

    fn stay(all: &[Handshake]) -> Vec<usize> {
        let stays = |(at, one): (usize, &Handshake)| (!one.evicted.is_cancelled()).then_some(at);
        all.iter().enumerate().filter_map(stays).collect()
    }

    #[test]
    fn the_oldest_of_a_source_evicted_to_its_next() {
        let handshakes = handshakes(10, 2);
        let all = ["1.1.1.1", "2.2.2.2", "1.1.1.1", "1.1.1.1", "::ffff:1.1.1.1"];
        let all = all.map(|address| begin(&handshakes, address));
        assert_eq!(stay(&all), [1, 3, 4]);
        drop(all);
        assert!(handshakes.in_progress.lock().all.is_empty());
    }

    #[test]
    fn the_oldest_of_all_evicted_when_there_are_too_many() {
        let handshakes = handshakes(3, 2);
        let mut all = Vec::from(
            ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"].map(|address| begin(&handshakes, address)),
        );
        assert_eq!(stay(&all), [1, 2, 3]);
        // A handshake that has ended makes room for another one.
        drop(all.remove(1));
        all.push(begin(&handshakes, "5.5.5.5"));
        assert_eq!(stay(&all), [1, 2, 3]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let handshakes = handshakes(10, 1);
        let all = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"];
        let all = all.map(|address| begin(&handshakes, address));
        assert_eq!(stay(&all), [1, 2]);
    }
}
