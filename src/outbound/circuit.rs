//! Leaves a target alone that fails.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures in a row after which a target is left alone. Fewer would let one lost connection refuse
/// the requests of a second.
const FAILURES_MAX: u32 = 5;
/// The first time for which a target is left alone.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest time for which a target is left alone. More would delay the use of one that is back.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Counts the failures of one target, and says whether a call may be tried. After several failures in
/// a row none may for a time, which doubles with each failed try after it; then one call at a time is
/// tried until one succeeds.
#[derive(Debug, Default)]
pub struct Circuit {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Until when the target is left alone; `None` while it is not.
    until: Option<Instant>,
    is_tried: bool,
}

/// The right to try a call. Dropped without an outcome, it counts as no call.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    circuit: &'a Circuit,
    is_trial: bool,
}

impl Circuit {
    /// Begins a call.
    ///
    /// # Errors
    /// Returns how long the target is left alone, if it is.
    pub(crate) fn begin(&self, now: Instant) -> Result<Attempt<'_>, Duration> {
        let mut state = self.state.lock();
        let is_trial = match state.until {
            None => false,
            Some(until) if now < until => return Err(until - now),
            Some(_) if state.is_tried => return Err(WAIT_MIN),
            Some(_) => {
                state.is_tried = true;
                true
            }
        };
        Ok(Attempt {
            circuit: self,
            is_trial,
        })
    }

    /// Returns whether the target is left alone.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state.lock().until.is_some()
    }
}

impl Attempt<'_> {
    /// Counts a call that the target answered.
    pub(crate) fn succeeded(self) {
        let mut state = self.circuit.state.lock();
        state.failures = 0;
        state.until = None;
    }

    /// Counts a call that the target did not answer.
    pub(crate) fn failed(self, now: Instant) {
        let mut state = self.circuit.state.lock();
        // Calls that began before the others failed tell nothing new.
        if state.until.is_some() && !self.is_trial {
            return;
        }
        state.failures = state.failures.saturating_add(1);
        if let Some(beyond) = state.failures.checked_sub(FAILURES_MAX) {
            let wait = WAIT_MIN * 2_u32.saturating_pow(beyond.min(16));
            state.until = Some(now + wait.min(WAIT_MAX));
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_trial {
            self.circuit.state.lock().is_tried = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_target_is_left_alone_and_tried_by_one_call_at_a_time() {
        let circuit = Circuit::default();
        let mut now = Instant::now();
        for _ in 0..FAILURES_MAX {
            circuit.begin(now).expect("closed").failed(now);
        }
        assert_eq!(circuit.begin(now).err(), Some(WAIT_MIN));
        now += WAIT_MIN;
        let trial = circuit.begin(now).expect("one may try");
        assert!(circuit.begin(now).is_err());
        drop(trial);
        let trial = circuit.begin(now).expect("the one before was given up");
        trial.failed(now);
        assert_eq!(circuit.begin(now).err(), Some(WAIT_MIN * 2));
        for _ in 0..20 {
            now += WAIT_MAX;
            circuit.begin(now).expect("tried again").failed(now);
        }
        assert_eq!(circuit.begin(now).err(), Some(WAIT_MAX));
        now += WAIT_MAX;
        circuit.begin(now).expect("tried again").succeeded();
        assert!(!circuit.is_open());
        // One failure after a success is one again.
        circuit.begin(now).expect("closed").failed(now);
        assert!(circuit.begin(now).is_ok());
    }
}
