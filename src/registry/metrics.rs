//! What the registry counts for `/metrics`, for all planes together: counters that many threads write,
//! and the form in which they are shown.
//!
//! Threads count in [`Sharded`] numbers, so that they do not wait for each other's cache lines, and a
//! request for `/metrics` adds the shards up.
//!
//! Invariant: the number of series is bounded; no label is a plane, a user or an object.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

const NANOS_PER_SECOND: f64 = 1e9;
/// Copies of the numbers that are kept at most. With fewer than threads, some write the same ones; more
/// use memory on machines with many processors.
const SHARDS_MAX: usize = 16;

/// Labels of a sample: name and value, sorted by name.
pub type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// One metric with its samples, as `/metrics` shows it.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name of the metric.
    pub name: &'static str,
    /// The text that explains it.
    pub help: &'static str,
    /// Its samples.
    pub samples: Samples,
}

/// The samples of one metric.
#[derive(Clone, Debug)]
pub enum Samples {
    /// Numbers that only grow.
    Counters(Vec<(Labels, u64)>),
    /// Numbers that may also fall.
    Gauges(Vec<(Labels, u64)>),
    /// Distributions of durations.
    Histograms {
        /// Upper bounds of all buckets but the last, which has none.
        bounds: &'static [Duration],
        /// The distributions.
        samples: Vec<(Labels, Observed)>,
    },
}

/// The observations of one distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Observations by bucket; the last bucket has no upper bound.
    pub buckets: Vec<u64>,
    /// The sum of all observations, in seconds.
    pub seconds: f64,
}

impl Observed {
    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, other: &Self) {
        self.buckets.resize(other.buckets.len(), 0);
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += more;
        }
        self.seconds += other.seconds;
    }
}

/// Durations that are counted in `BUCKETS` buckets, of which the last has no upper bound. It begins a
/// cache line of its own, so that an observation writes few lines.
#[derive(Debug)]
#[repr(align(64))]
pub struct Durations<const BUCKETS: usize> {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl<const BUCKETS: usize> Default for Durations<BUCKETS> {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
        }
    }
}

impl<const BUCKETS: usize> Durations<BUCKETS> {
    /// Counts a duration. `bounds` are the upper bounds of all buckets but the last.
    #[inline]
    pub fn observe(&self, bounds: &[Duration], duration: Duration) {
        let bucket = match bounds.first() {
            // The most frequent by far.
            Some(first) if duration <= *first => 0,
            _ => bounds.partition_point(|bound| *bound < duration),
        };
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if nanos > 0 {
            self.nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// Counts work that took too little to be worth a reading of the clock.
    #[inline]
    pub fn observe_nothing(&self) {
        self.buckets[0].fetch_add(1, Ordering::Relaxed);
    }

    fn observed(&self) -> Observed {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Observed {
            buckets: self.buckets.iter().map(load).collect(),
            seconds: load(&self.nanos) as f64 / NANOS_PER_SECOND,
        }
    }
}

/// Copies of the same numbers, of which each thread writes one.
#[derive(Debug)]
pub struct Sharded<T> {
    shards: Box<[Shard<T>]>,
}

/// A copy on cache lines that no other copy touches.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T>(T);

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_PLACE: AtomicUsize = AtomicUsize::new(0);

impl<T> Sharded<T> {
    /// Creates as many copies as there are processors, up to a limit.
    pub fn new(mut create: impl FnMut() -> T) -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        let count = processors.next_power_of_two().min(SHARDS_MAX);
        Self {
            shards: (0..count).map(|_| Shard(create())).collect(),
        }
    }

    /// Returns the copy that this thread writes.
    #[inline]
    pub fn own(&self) -> &T {
        let place = PLACE.with(|place| {
            if place.get() == usize::MAX {
                place.set(NEXT_PLACE.fetch_add(1, Ordering::Relaxed));
            }
            place.get()
        });
        // The number of copies is a power of two.
        &self.shards[place & (self.shards.len() - 1)].0
    }

    /// Returns the sum of a counter over all copies.
    pub fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let counters = self.shards.iter().map(|shard| counter(&shard.0));
        counters.map(|one| one.load(Ordering::Relaxed)).sum()
    }

    /// Returns the sum of a distribution over all copies.
    pub fn observed<const BUCKETS: usize>(
        &self,
        durations: impl Fn(&T) -> &Durations<BUCKETS>,
    ) -> Observed {
        let mut sum = Observed::default();
        for shard in &self.shards {
            sum.add(&durations(&shard.0).observed());
        }
        sum
    }
}

impl<T: Default> Default for Sharded<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(2)];

    #[test]
    fn a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let durations = Durations::<3>::default();
        let nanos = Duration::from_nanos(1);
        for duration in [Duration::ZERO, BOUNDS[0], BOUNDS[0] + nanos, BOUNDS[1]] {
            durations.observe(&BOUNDS, duration);
        }
        durations.observe(&BOUNDS, BOUNDS[1] + nanos);
        durations.observe_nothing();
        let observed = durations.observed();
        assert_eq!(observed.buckets, [3, 2, 1]);
        assert_eq!(observed.count(), 6);
        let seconds = 0.001 + 0.001 + 0.002 + 0.002 + 2e-9;
        assert!((observed.seconds - seconds).abs() < 1e-12, "{observed:?}");
    }

    #[test]
    fn what_threads_count_is_added_up() {
        let counted: Sharded<(AtomicU64, Durations<3>)> = Sharded::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    counted.own().0.fetch_add(2, Ordering::Relaxed);
                    counted.own().1.observe(&BOUNDS, BOUNDS[1]);
                });
            }
        });
        assert_eq!(counted.sum(|counted| &counted.0), 8);
        assert_eq!(counted.observed(|counted| &counted.1).buckets, [0, 4, 0]);
    }
}
