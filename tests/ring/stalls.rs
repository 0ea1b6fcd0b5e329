//! When the machine of a test ran nobody, so that a bound on time is held against the servers
//! alone.
//!
//! A thread sleeps a little, again and again. What a sleep takes longer than it was asked to is time
//! in which a process of this machine that was ready to run did not, and the servers share the
//! machine. Must not judge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// One sleep.
const TURN: Duration = Duration::from_millis(5);
/// A sleep that is late by less is as usual.
const USUAL: Duration = Duration::from_millis(5);

/// A stall: when it began to count, and how long it took.
type Stall = (Instant, Duration);

/// Notes stalls until it is dropped.
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
    /// How much of a span the machine ran nobody.
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
