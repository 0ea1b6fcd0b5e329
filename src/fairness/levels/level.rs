//! What a plane says about its priority levels, and the seats that follow from it.

use std::sync::{Arc, OnceLock};

/// Seats that one request takes at most, whatever its level.
const SEATS_PER_REQUEST_MAX: u64 = 100;
/// A level with queues gives one request at most this part of its seats, in percent.
const REQUEST_PERCENT_MAX: u64 = 15;

/// One priority level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name, which no other level of the plane has.
    pub name: Arc<str>,
    /// What limits the level's requests.
    pub kind: LevelKind,
    /// The level's part of the plane's seats, relative to the shares of the other levels.
    pub shares: u32,
    /// The part of the level's seats that other levels may use, in percent.
    pub lendable_percent: u32,
    /// How many seats the level may borrow, in percent of its own; `None` for as many as there are.
    pub borrowing_percent: Option<u32>,
}

/// What limits the requests of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Nothing. Its requests take seats all the same, which other levels then cannot borrow.
    Exempt,
    /// A request that finds no seat is refused.
    Reject,
    /// A request that finds no seat waits in a queue.
    Queue(Queueing),
}

/// The queues of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// The number of queues.
    pub queues: u32,
    /// The number of queues among which a flow chooses.
    pub hand_size: u32,
    /// Requests that wait in one queue, at most.
    pub length_max: u32,
}

/// The seats of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeatLimits {
    /// The seats that are the level's by its shares.
    pub nominal: u64,
    /// The seats that no other level may borrow.
    pub min: u64,
    /// The seats that the level may take, at most.
    pub max: u64,
}

/// The levels of a plane at one moment.
#[derive(Debug, Default)]
pub struct Levels {
    /// In the order of names.
    levels: Vec<Arc<Level>>,
    shares: u64,
    totals: OnceLock<Totals>,
}

/// Sums over the levels, for a number of seats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    seats: u32,
    pub(super) nominal: u64,
    pub(super) min: u64,
}

impl Levels {
    /// Takes levels with different names, in any order.
    #[must_use]
    pub fn new(mut levels: Vec<Arc<Level>>) -> Self {
        levels.sort_by(|a, b| a.name.cmp(&b.name));
        let shares = levels.iter().map(|level| u64::from(level.shares)).sum();
        Self {
            levels,
            shares,
            totals: OnceLock::new(),
        }
    }

    /// Returns the level of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Level>> {
        let found = self
            .levels
            .binary_search_by(|level| (*level.name).cmp(name));
        found.ok().and_then(|at| self.levels.get(at))
    }

    /// Returns the levels in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Level>> {
        self.levels.iter()
    }

    /// Returns the seats of a level, of the seats of its plane. As upstream, a part of a seat counts as
    /// one.
    #[must_use]
    pub fn limits(&self, level: &Level, seats: u32) -> SeatLimits {
        let seats = u64::from(seats);
        let nominal = match self.shares {
            0 => 0,
            shares => (seats * u64::from(level.shares)).div_ceil(shares),
        };
        let percent =
            |part: u32| (nominal.saturating_mul(u64::from(part)).saturating_add(50)) / 100;
        let lendable = percent(level.lendable_percent.min(100));
        let borrowing = level.borrowing_percent.map_or(seats, percent);
        SeatLimits {
            nominal,
            min: nominal - lendable,
            max: nominal.saturating_add(borrowing),
        }
    }

    /// Returns how many seats one request of a level may take.
    #[must_use]
    pub fn seats_per_request_max(&self, level: &Level, seats: u32) -> u32 {
        let most = match level.kind {
            LevelKind::Exempt | LevelKind::Reject => SEATS_PER_REQUEST_MAX,
            LevelKind::Queue(queueing) => {
                let nominal = self.limits(level, seats).nominal;
                let part = (nominal * REQUEST_PERCENT_MAX).div_ceil(100);
                part.min(nominal / u64::from(queueing.hand_size.max(1)))
            }
        };
        u32::try_from(most.clamp(1, SEATS_PER_REQUEST_MAX)).unwrap_or(1)
    }

    pub(super) fn totals(&self, seats: u32) -> Totals {
        let known = *self.totals.get_or_init(|| self.sum(seats));
        if known.seats == seats {
            known
        } else {
            self.sum(seats)
        }
    }

    fn sum(&self, seats: u32) -> Totals {
        let mut totals = Totals {
            seats,
            nominal: 0,
            min: 0,
        };
        for level in &self.levels {
            let limits = self.limits(level, seats);
            totals.nominal += limits.nominal;
            totals.min += limits.min;
        }
        totals
    }
}
