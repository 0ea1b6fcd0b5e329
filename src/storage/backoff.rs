//! The pause between two attempts at something that failed: short at first, then doubled, at most a
//! second. Must not decide whether there is a next attempt.

use std::time::Duration;

use tokio::time::sleep;

/// The first pause. A shorter one would load a store that has just failed.
const FIRST: Duration = Duration::from_millis(20);
/// The longest pause, and so the longest time until a store that answers again is noticed.
const LAST: Duration = Duration::from_secs(1);

/// The pause before the next attempt.
#[derive(Debug, Clone, Copy)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Waits, and makes the next wait longer.
    pub async fn wait(&mut self) {
        sleep(self.next_pause()).await;
    }

    /// Returns the time to wait now, and doubles the next one.
    pub fn next_pause(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LAST);
        now
    }
}
