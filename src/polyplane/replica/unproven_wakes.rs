//! Bounds how often planes are woken for callers who are not proven: a bootstrap token can be judged only by
//! an awake plane. This module does not know tokens.

use polyplane_fairness::{Moment, RateLimit};
use std::time::Instant;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Such wakes of one plane in a second. A plane that is awake stays so for a while, so more would only repeat
/// what has failed.
const OF_PLANE_PER_SECOND: u64 = 1;
/// Such wakes of all planes of a replica in a second. With more, strangers who know the names of many planes
/// could fill its memory with them; with fewer, nodes of many planes that join at once would wait for long.
const OF_ALL_PER_SECOND: u64 = 8;

/// Such wakes of all planes in a second for clients of one source. With more, a few addresses could keep the clients
/// of all others from planes that sleep; with fewer, nodes behind one address would wait for long.
const OF_SOURCE_PER_SECOND: u64 = OF_ALL_PER_SECOND / 4;
/// Sources that are told apart, as many as the server tells apart among strangers. With fewer, more clients would share
/// the wakes of a flood.
const SOURCES: usize = 256;

/// Such wakes of all planes.
#[derive(Debug)]
pub struct UnprovenWakes {
    /// The time from which moments count.
    began: Instant,
    rate: RateLimit,
    of_sources: [RateLimit; SOURCES],
}

/// Such wakes of one plane.
#[derive(Debug)]
pub struct WakesOfPlane {
    rate: RateLimit,
    /// Who waits for the turn finds the plane awake, if the one before has woken it.
    turn: Semaphore,
}

impl Default for WakesOfPlane {
    fn default() -> Self {
        Self {
            rate: RateLimit::default(),
            turn: Semaphore::new(1),
        }
    }
}

impl WakesOfPlane {
    /// Waits until nobody else wakes the plane for such a caller.
    pub async fn turn(&self) -> SemaphorePermit<'_> {
        let turn = self.turn.acquire().await;
        turn.expect("nobody closes the semaphore")
    }
}

impl Default for UnprovenWakes {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            rate: RateLimit::default(),
            of_sources: std::array::from_fn(|_| RateLimit::default()),
        }
    }
}

impl UnprovenWakes {
    /// Takes one wake of a plane for a client with this number of a source. Returns whether there is room for it.
    pub fn take(&self, source: usize, of_plane: &WakesOfPlane) -> bool {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.take_at(source, of_plane, Moment(now))
    }

    fn take_at(&self, source: usize, of_plane: &WakesOfPlane, now: Moment) -> bool {
        // The source first: what is refused there must not take what others may have.
        let of_source = &self.of_sources[source % SOURCES];
        of_source.take(now, OF_SOURCE_PER_SECOND).is_ok()
            && of_plane.rate.take(now, OF_PLANE_PER_SECOND).is_ok()
            && self.rate.take(now, OF_ALL_PER_SECOND).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn planes() -> Vec<WakesOfPlane> {
        (0..20).map(|_| WakesOfPlane::default()).collect()
    }

    #[test]
    fn a_plane_is_woken_once_a_second_and_all_planes_together_eight_times() {
        let all = UnprovenWakes::default();
        let planes = planes();
        let start = Moment(7 * SECOND);
        assert!(all.take_at(0, &planes[0], start));
        assert!(!all.take_at(1, &planes[0], start));
        let others = planes.iter().enumerate().skip(1);
        let woken = others.filter(|(source, plane)| all.take_at(*source, plane, start));
        assert_eq!(woken.count(), 7);
        assert!(all.take_at(0, &planes[0], start.plus(SECOND)));
    }

    #[test]
    fn one_source_cannot_take_the_wakes_of_others() {
        let all = UnprovenWakes::default();
        let planes = planes();
        let (flood, other) = (1, 2);
        let start = Moment(7 * SECOND);
        let woken_by = |source: usize, planes: &[WakesOfPlane], now: Moment| {
            let woken = planes
                .iter()
                .filter(|plane| all.take_at(source, plane, now));
            woken.count()
        };
        assert_eq!(woken_by(flood, &planes, start), 2);
        // Those for which the flood found no room sleep, and others may wake them.
        assert_eq!(woken_by(other, &planes[2..], start), 2);
        assert_eq!(woken_by(flood, &planes, start.plus(SECOND)), 2);
    }
}
