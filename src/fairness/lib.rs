//! What each control plane uses of a replica, what it may use of it, and whose turn it is when the
//! replica is busy.
//!
//! A [`PlaneMeter`] is one plane's account at one replica: it counts requests, CPU time and open
//! watches, and holds the plane's [`PlaneLimits`]. The plane's owner enforces the limits; a replica
//! that forwards to the owner counts only its own work, and remembers for at most a second that the
//! owner has refused. A rate is a [`RateLimit`]: one time stamp, read when somebody asks. So a plane
//! that nobody uses has no timer and no task here.
//!
//! When planes want more of a replica than there is, [`Turns`] says who goes next: start-time fair
//! queueing by the CPU time that requests take. The server asks it only while the replica is busy and
//! shared. [`Places`] are given in that order to work of which only so much may be done at a time. Room
//! that is there at once is divided by [`fair_limit`].
//!
//! Within one plane its [`levels`] say which requests go on: upstream's priority and fairness, by
//! the plane's own priority levels.
//!
//! Objects and bytes are not counted here: the plane's map knows them, and its sequencer tests them
//! as a claim.
//!
//! What a piece of work costs is measured by a [`CpuTimer`].
//!
//! Invariant: this crate does no I/O, and but for [`CpuTimer`] it reads no clock. Times are [`Moment`]s
//! that the caller gives.

mod cpu_time;
pub mod levels;
mod limits;
mod max_min;
mod meter;
mod places;
mod rate_limit;
mod turns;

pub use cpu_time::{CpuTimer, Precision, Spent};
pub use limits::{LimitDefaults, PlaneLimits, TIMES_FREE};
pub use max_min::fair_limit;
pub use meter::{Asked, Connected, CountedWatch, InFlight, PlaneMeter, Refusal, Usage};
pub use places::{Place, Places};
pub use rate_limit::RateLimit;
pub use turns::{Flow, Started, Turns, VirtualTime};

/// A time, in nanoseconds since a moment of the caller's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Returns the time that is `nanos` nanoseconds later.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}
