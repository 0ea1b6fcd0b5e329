//! Finds the times in which the machine of a test ran no process, so that they do not count against
//! the servers' time limits.
//!
//! A thread sleeps for short times, again and again. For as long as a sleep takes beyond the
//! requested time, the machine did not run a process that was ready to run, and the servers share
//! the machine. This module does not judge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The length of one sleep.
const TURN: Duration = Duration::from_millis(5);
/// A sleep that is late by less than this is normal.
const USUAL: Duration = Duration::from_millis(5);

/// A stall: its beginning and its length.
type Stall = (Instant, Duration);

/// Records stalls until it is dropped.
pub struct Stalls {
    seen: Arc<Mutex<Vec<Stall>>>,
    stop: Arc<AtomicBool>,
}

impl Default for Stalls {
    fn default() -> Self {
        let (seen, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let stalls = Self { seen, stop };
        let (seen, stop) = (Arc::clone(&stalls.seen), Arc::clone(&stalls.stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(TURN);
                let late = began.elapsed().saturating_sub(TURN);
                if late > USUAL {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((began + TURN, late));
                }
            }
        });
        stalls
    }
}

impl Stalls {
    /// Returns the time within a span in which the machine ran no process.
    pub fn within(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |(began, late): &Stall| {
            let ended = (*began + *late).min(to);
            ended.saturating_duration_since((*began).max(from))
        };
        seen.iter().map(part).sum()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
