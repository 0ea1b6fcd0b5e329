//! Work through many bodies that lets other tasks run in between.

use tokio::task::yield_now;

/// Bytes that are worked through at a stretch: about a millisecond. A plane has hundreds of
/// megabytes, and whatever shares its worker thread would wait for all of them, renewals of leases
/// included.
pub(crate) const SLICE_BYTES: usize = 256 << 10;
/// What an object costs beside its bytes.
const OBJECT_BYTES: usize = 256;

/// How much was done since other tasks could run.
#[derive(Debug, Default)]
pub struct Slices {
    done: usize,
}

impl Slices {
    /// Counts an object of this many bytes; lets other tasks run if a slice is full.
    pub async fn pass(&mut self, bytes: usize) {
        self.done += OBJECT_BYTES.saturating_add(bytes);
        if self.done >= SLICE_BYTES {
            self.done = 0;
            yield_now().await;
        }
    }
}
