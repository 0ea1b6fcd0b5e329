//! How long a failed try waits for the next: a little at first, never long. Owns no decision to
//! try again.

use std::time::Duration;
use tokio::time::sleep;

const FIRST: Duration = Duration::from_millis(20);
const LAST: Duration = Duration::from_secs(1);

/// The pause before the next try.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Waits, and makes the next wait longer.
    pub(crate) async fn wait(&mut self) {
        sleep(self.next()).await;
    }

    /// How long to wait now; the next wait is longer.
    pub(crate) fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LAST);
        now
    }
}
