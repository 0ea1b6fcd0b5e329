//! Handshakes under way at the peer listener. Until it has ended nobody is proven, so a stranger
//! can begin as many as it likes; here they are bounded without shutting peers out.
//!
//! Nobody is turned away: above a bound the *oldest* handshake gives way, of the same source or of
//! all. A peer's handshake takes a few milliseconds. A stranger that wants to push it out has to
//! begin as many others as there may be within that time, and whoever only holds connections open
//! pushes out itself.
//!
//! Invariant: handshakes take no place of proven connections, and proven ones none here.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// How many handshakes may be under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakesMax {
    pub all: usize,
    pub of_one_source: usize,
}

/// All handshakes under way.
#[derive(Debug)]
pub(super) struct Doorway {
    max: HandshakesMax,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// By number, so the oldest comes first.
    all: BTreeMap<u64, (Source, CancellationToken)>,
}

/// Who may hold how many: an IPv4 address, or the half of an IPv6 address that names a network,
/// because a single host has all the addresses of the other half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }
}

/// One handshake under way; it is over when this is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    doorway: Arc<Doorway>,
    number: u64,
    /// Cancelled when it has to give way.
    pub gives_way: CancellationToken,
}

impl Doorway {
    pub(super) fn new(max: HandshakesMax) -> Arc<Self> {
        Arc::new(Self {
            max,
            waiting: Mutex::default(),
        })
    }

    /// Begins a handshake. Others may have to give way to it.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Entered {
        let source = Source::from(address);
        let gives_way = CancellationToken::new();
        let mut waiting = self.waiting.lock();
        let of_source = |(of, _): &&(Source, CancellationToken)| *of == source;
        if waiting.all.values().filter(of_source).count() >= self.max.of_one_source {
            let mut numbers = waiting.all.iter();
            let oldest = numbers.find(|(_, (of, _))| *of == source);
            let oldest = oldest.map(|(number, _)| *number);
            waiting.push_out(oldest);
        } else if waiting.all.len() >= self.max.all {
            let oldest = waiting.all.keys().next().copied();
            waiting.push_out(oldest);
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, (source, gives_way.clone()));
        Entered {
            doorway: Arc::clone(self),
            number,
            gives_way,
        }
    }
}

impl Waiting {
    fn push_out(&mut self, number: Option<u64>) {
        if let Some((_, gives_way)) = number.and_then(|number| self.all.remove(&number)) {
            gives_way.cancel();
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.doorway.waiting.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doorway(all: usize, of_one_source: usize) -> Arc<Doorway> {
        Doorway::new(HandshakesMax { all, of_one_source })
    }

    fn enter(doorway: &Arc<Doorway>, address: &str) -> Entered {
        doorway.enter(address.parse().expect("an address"))
    }

    fn stay(all: &[Entered]) -> Vec<usize> {
        let stays = |(at, one): (usize, &Entered)| (!one.gives_way.is_cancelled()).then_some(at);
        all.iter().enumerate().filter_map(stays).collect()
    }

    #[test]
    fn the_oldest_of_a_source_gives_way_to_its_next() {
        let doorway = doorway(10, 2);
        let all = ["1.1.1.1", "2.2.2.2", "1.1.1.1", "1.1.1.1", "::ffff:1.1.1.1"];
        let all = all.map(|address| enter(&doorway, address));
        assert_eq!(stay(&all), [1, 3, 4]);
        drop(all);
        assert!(doorway.waiting.lock().all.is_empty());
    }

    #[test]
    fn the_oldest_of_all_gives_way_when_there_are_too_many() {
        let doorway = doorway(3, 2);
        let mut all = Vec::from(
            ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"].map(|address| enter(&doorway, address)),
        );
        assert_eq!(stay(&all), [1, 2, 3]);
        // Whoever has ended gives its place back.
        drop(all.remove(1));
        all.push(enter(&doorway, "5.5.5.5"));
        assert_eq!(stay(&all), [1, 2, 3]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let doorway = doorway(10, 1);
        let all = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"];
        let all = all.map(|address| enter(&doorway, address));
        assert_eq!(stay(&all), [1, 2]);
    }
}
