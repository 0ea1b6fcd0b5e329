//! The limits of one plane.

/// A plane may have this many times as much of something that all planes share as is free: requests in
/// flight, connections, bytes of memory in most shares. A plane that is alone gets 8 of 9 parts, and of several
/// greedy ones each gets the same, with an eighth of that left for the next. With more, the first greedy plane
/// would leave the others nothing.
pub const TIMES_FREE: u64 = 8;

/// What a plane may use. `None` means without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneLimits {
    /// Requests in a second, watches that begin among them.
    pub requests_per_second: Option<u64>,
    /// Changing requests in a second. They are counted as requests too.
    pub writes_per_second: Option<u64>,
    /// Watches that are open at a time.
    pub watches: Option<u64>,
    /// Objects of the plane itself; those that every plane is born with do not count until they are
    /// changed.
    pub objects: Option<u64>,
    /// Bytes of these objects: their JSON before compression, with their keys.
    pub bytes: Option<u64>,
}

/// The limits of planes whose record does not say otherwise.
pub type LimitDefaults = PlaneLimits;

impl PlaneLimits {
    /// No limits at all.
    pub const NONE: Self = Self {
        requests_per_second: None,
        writes_per_second: None,
        watches: None,
        objects: None,
        bytes: None,
    };

    /// Returns these limits, and those of `defaults` where these say nothing.
    #[must_use]
    pub fn or(self, defaults: &LimitDefaults) -> Self {
        Self {
            requests_per_second: self.requests_per_second.or(defaults.requests_per_second),
            writes_per_second: self.writes_per_second.or(defaults.writes_per_second),
            watches: self.watches.or(defaults.watches),
            objects: self.objects.or(defaults.objects),
            bytes: self.bytes.or(defaults.bytes),
        }
    }
}
