//! The CPU time that a piece of work takes on its thread.
//!
//! A piece of work is one poll of a future. Its wall time is its CPU time, unless the kernel gives the
//! CPU to somebody else meanwhile: on a busy machine for milliseconds, in which the work did nothing. A
//! plane that is charged for them waits behind the others until each has had as much, so with a hundred
//! busy planes a few milliseconds are a second without an answer.
//!
//! The kernel knows the CPU time of a thread, but asking it takes 0.2 µs, and 1 µs in a nested virtual
//! machine. So it is asked only about work that took long, and for a reading to compare with that is
//! hardly older than the work.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Wall time from which on work may have been preempted. With more, a shorter preemption counts as work
/// of a plane that had bad luck; with less, the kernel is asked more often.
const LONG: Duration = Duration::from_micros(250);
/// Age of the newest reading above which exact work takes another one before it begins. With more, it
/// is less certain when the thread did not run; with less, the kernel is asked more often.
const FRESH: Duration = Duration::from_micros(500);

/// How closely a piece of work is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Nobody waits for the CPU. The kernel is asked only after long work.
    Rough,
    /// Planes compete for the CPU, and what one is charged too much delays it. The kernel is asked once
    /// in half a millisecond of a thread at most, beside long work.
    Exact,
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Nanoseconds for which the work held its thread.
    pub wall_nanos: u64,
    /// Nanoseconds of CPU time in it. At most the wall time.
    pub cpu_nanos: u64,
    /// False if the kernel may have given the CPU to somebody else for a part of them: nothing is known of the thread
    /// from shortly before the work.
    pub is_exact: bool,
}

/// The measurement of a piece of work, which ends on the thread on which it has begun.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct CpuTimer {
    began: Instant,
    /// The newest reading of the thread then. Kept here, because work that is a part of this one may
    /// take others.
    before: Option<Reading>,
}

/// The clocks of one thread at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    cpu: Duration,
}

thread_local! {
    /// The newest reading of the thread.
    static NEWEST: Cell<Option<Reading>> = const { Cell::new(None) };
}

impl CpuTimer {
    /// Begins to measure.
    pub fn start(precision: Precision) -> Self {
        let began = Instant::now();
        let newest = NEWEST.get();
        let is_fresh = newest.is_some_and(|reading| reading.is_fresh(began));
        let before = match precision {
            Precision::Exact if !is_fresh => Some(take_reading(began)),
            Precision::Exact | Precision::Rough => newest,
        };
        Self { began, before }
    }

    /// Returns what the work has taken.
    #[must_use]
    pub fn stop(self) -> Spent {
        let ended = Instant::now();
        let wall = ended.saturating_duration_since(self.began);
        let is_long = wall >= LONG;
        let cpu = if is_long {
            let after = take_reading(ended);
            let before = self.before;
            before.map_or(wall, |before| cpu_between(before, self.began, after))
        } else {
            wall
        };
        let is_known = |before: Reading| before.is_fresh(self.began);
        Spent {
            wall_nanos: nanos(wall),
            cpu_nanos: nanos(cpu),
            is_exact: !is_long || self.before.is_some_and(is_known),
        }
    }
}

impl Reading {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) <= FRESH
    }
}

/// Returns the CPU time of work between its begin and `after`, with a reading from before the begin.
fn cpu_between(before: Reading, began: Instant, after: Reading) -> Duration {
    let wall = after.at.saturating_duration_since(began);
    let ran = after.cpu.saturating_sub(before.cpu);
    if !before.is_fresh(began) {
        // The thread may have rested before the work, so it is unknown when it did not run.
        return wall.min(ran);
    }
    let rested = after
        .at
        .saturating_duration_since(before.at)
        .saturating_sub(ran);
    wall.saturating_sub(rested).min(ran)
}

fn take_reading(at: Instant) -> Reading {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    let cpu = Duration::new(seconds, nanos);
    let reading = Reading { at, cpu };
    NEWEST.set(Some(reading));
    reading
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Returns a reading at these numbers of microseconds.
    fn reading(origin: Instant, wall: u64, cpu: u64) -> Reading {
        Reading {
            at: origin + Duration::from_micros(wall),
            cpu: Duration::from_micros(cpu),
        }
    }

    fn micros_between(before: (u64, u64), began: u64, after: (u64, u64)) -> u128 {
        let origin = Instant::now();
        let began = origin + Duration::from_micros(began);
        let [before, after] = [before, after].map(|(wall, cpu)| reading(origin, wall, cpu));
        cpu_between(before, began, after).as_micros()
    }

    #[test]
    fn time_in_which_the_thread_did_not_run_is_not_the_works() {
        // Preempted for 4 of 5 ms.
        assert_eq!(micros_between((0, 70), 100, (5100, 1170)), 1000);
        // Never preempted.
        assert_eq!(micros_between((0, 70), 100, (5100, 5170)), 5000);
        // Hardly ever there.
        assert_eq!(micros_between((0, 70), 100, (5100, 171)), 1);
    }

    #[test]
    fn a_rest_long_before_the_work_makes_it_no_cheaper() {
        let fresh = u64::try_from(FRESH.as_micros()).expect("it is short");
        assert_eq!(
            micros_between((0, 70), fresh + 1, (fresh + 5001, 5070)),
            5000
        );
        // What the thread has done in all is all that is known of a reading of old.
        assert_eq!(micros_between((0, 70), 90_000, (95_000, 1070)), 1000);
    }

    #[test]
    fn clocks_that_disagree_charge_no_more_than_the_wall_time() {
        assert_eq!(micros_between((0, 0), 100, (400, 900)), 300);
        assert_eq!(micros_between((0, 900), 100, (400, 800)), 0);
    }

    #[test]
    fn work_is_no_cheaper_for_a_part_that_is_measured_too() {
        let timer = CpuTimer::start(Precision::Exact);
        let part = CpuTimer::start(Precision::Exact);
        work_for(Duration::from_millis(5));
        let part = part.stop();
        let whole = timer.stop();
        assert!(whole.cpu_nanos >= part.cpu_nanos, "{part:?} of {whole:?}");
        assert!(part.cpu_nanos >= 4_000_000, "{part:?}");
    }

    #[test]
    fn a_thread_that_waits_uses_no_cpu_time() {
        let timer = CpuTimer::start(Precision::Exact);
        let (sender, receiver) = mpsc::channel::<()>();
        let waited = receiver.recv_timeout(Duration::from_millis(50));
        assert!(waited.is_err());
        drop(sender);
        let spent = timer.stop();
        assert!(spent.wall_nanos >= 50_000_000);
        assert!(spent.cpu_nanos < spent.wall_nanos / 4, "{spent:?}");
    }

    #[test]
    fn long_work_costs_what_the_kernel_says() {
        for precision in [Precision::Exact, Precision::Rough] {
            take_reading(Instant::now());
            let timer = CpuTimer::start(precision);
            work_for(Duration::from_millis(20));
            let spent = timer.stop();
            assert!(spent.cpu_nanos <= spent.wall_nanos);
            assert!(
                (15_000_000..25_000_000).contains(&spent.cpu_nanos),
                "{spent:?}"
            );
        }
    }

    #[test]
    fn long_work_is_exact_only_if_the_thread_is_known_from_shortly_before() {
        for (precision, is_exact) in [(Precision::Rough, false), (Precision::Exact, true)] {
            NEWEST.set(None);
            let timer = CpuTimer::start(precision);
            work_for(Duration::from_millis(5));
            assert_eq!(timer.stop().is_exact, is_exact, "{precision:?}");
        }
    }

    fn work_for(cpu: Duration) {
        let began = cpu_now();
        while cpu_now().saturating_sub(began) < cpu {}
    }

    /// Returns the thread's CPU time, and leaves the readings as they are.
    fn cpu_now() -> Duration {
        let kept = NEWEST.get();
        let cpu = take_reading(Instant::now()).cpu;
        NEWEST.set(kept);
        cpu
    }
}
