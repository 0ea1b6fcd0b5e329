//! Time as this crate sees it: numbers handed in by the caller. Owns no clock.
//!
//! The driver reads a clock that runs in suspend (`CLOCK_BOOTTIME`) at the very moment of a check
//! and never passes a cached value (PROTOCOL 11).

use core::fmt;
use core::ops::Add;

/// A point on one replica's clock, in nanoseconds. Points of two replicas are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The point so many nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How far `self` lies behind `earlier`; zero if it does not.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(duration.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Duration {
    /// No time at all.
    pub const ZERO: Duration = Duration(0);

    /// So many nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add for Duration {
    type Output = Duration;

    fn add(self, other: Duration) -> Duration {
        Duration(self.0.saturating_add(other.0))
    }
}

/// R and the drift margin. One record of the store: a replica configured otherwise does not join,
/// because the taker of a fence waits out the lease its predecessor counts (PROTOCOL 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    read_lease: Duration,
    margin: Duration,
}

/// Why two durations are no lease terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the read lease and its margin must both be longer than nothing")]
pub struct InvalidTerms;

impl LeaseTerms {
    /// Terms of a read lease R and a drift margin.
    ///
    /// # Errors
    /// Either is zero.
    pub const fn new(read_lease: Duration, margin: Duration) -> Result<Self, InvalidTerms> {
        if read_lease.0 == 0 || margin.0 == 0 {
            return Err(InvalidTerms);
        }
        Ok(Self { read_lease, margin })
    }

    /// R: how long one proof of life lets a replica answer from memory.
    pub const fn read_lease(self) -> Duration {
        self.read_lease
    }

    /// What a taker waits beyond R, for clocks of unequal rate.
    pub const fn margin(self) -> Duration {
        self.margin
    }
}

impl Default for LeaseTerms {
    /// 300 ms and 100 ms.
    fn default() -> Self {
        Self {
            read_lease: Duration::from_millis(300),
            margin: Duration::from_millis(100),
        }
    }
}

impl fmt::Display for LeaseTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |duration: Duration| duration.0 / 1_000_000;
        let (read_lease, margin) = (millis(self.read_lease), millis(self.margin));
        write!(f, "read lease {read_lease} ms, margin {margin} ms")
    }
}
