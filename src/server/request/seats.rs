//! The count of requests, or of connections, at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use polyplane_apimachinery::status::ApiError;

/// Limits how many requests, or connections, there are at a time.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: AtomicUsize,
    seats_max: usize,
    /// The number of requests that released their seat while they wait for others, such as
    /// webhooks. It is limited too.
    waiting: AtomicUsize,
}

/// One seat; released when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
}

impl Seats {
    pub(crate) fn new(seats_max: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            seats_max,
            waiting: AtomicUsize::new(0),
        })
    }

    /// Takes a seat, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Seat> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.seats_max {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Seat {
            seats: Arc::clone(self),
        })
    }

    /// Takes a seat, even above the limit.
    pub(crate) fn take_anyway(self: &Arc<Self>) -> Seat {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Seat {
            seats: Arc::clone(self),
        }
    }

    /// Returns the number of free seats.
    pub(crate) fn free(&self) -> usize {
        self.seats_max.saturating_sub(self.taken())
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl polyplane_registry::Seats for Seats {
    fn leave(&self) -> Result<(), ApiError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.seats_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many());
        }
        self.taken.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn return_to(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the refusal of a request for which there is no seat.
pub(crate) fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
