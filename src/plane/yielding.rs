//! Yielding: lets other tasks run while one task works through many bodies.

use tokio::task::yield_now;

/// Bytes between two yields: about a millisecond of work. A plane may have hundreds of
/// megabytes, and every task of the same worker thread would wait for all of them, lease renewals
/// included.
pub(crate) const YIELD_BYTES: usize = 256 << 10;
/// The work for one object apart from its bytes, expressed in bytes.
const OBJECT_BYTES: usize = 256;

/// A count of the work since the last yield.
#[derive(Debug, Default)]
pub struct YieldBudget {
    done: usize,
}

impl YieldBudget {
    /// Counts an object of this many bytes. Yields after each `YIELD_BYTES` bytes.
    pub async fn spend(&mut self, bytes: usize) {
        self.done += OBJECT_BYTES.saturating_add(bytes);
        if self.done >= YIELD_BYTES {
            self.done = 0;
            yield_now().await;
        }
    }
}
