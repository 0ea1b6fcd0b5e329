//! Limits how many bytes of request bodies are in memory at a time: in the process, and for one
//! plane.
//!
//! Bytes are reserved as they arrive, not as they are announced. A client that announces a long
//! body and sends nothing therefore uses up no memory. The bytes are released when the request is
//! answered or dropped.
//!
//! Invariant: the sum over all planes is the number for the process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use polyplane_plane::{Memory, Share};

use crate::backend::PlaneRecord;
use crate::operations::exposition::{Exposition, Kind};

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    Process,
    Plane,
}

/// The bytes of all bodies that are being read or used.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    process_bytes_max: usize,
    plane_bytes_max: usize,
    /// The memory budget of the process; bodies have a share of it.
    memory: Arc<Memory>,
    reserved: Mutex<ReservedBytes>,
    /// Bodies refused because of the limit for the process.
    refused_by_process: AtomicU64,
    /// Bodies refused because of the limit for their plane.
    refused_by_plane: AtomicU64,
}

#[derive(Debug, Default)]
struct ReservedBytes {
    bytes: usize,
    /// Bytes by the plane's id; planes without any have no entry.
    by_plane: HashMap<Box<str>, usize>,
}

impl BodyBudget {
    pub(crate) fn new(
        process_bytes_max: usize,
        plane_bytes_max: usize,
        memory: Arc<Memory>,
    ) -> Arc<Self> {
        Arc::new(Self {
            process_bytes_max,
            plane_bytes_max,
            memory,
            reserved: Mutex::default(),
            refused_by_process: AtomicU64::new(0),
            refused_by_plane: AtomicU64::new(0),
        })
    }

    /// Returns the reservation of one body, empty at first.
    pub(crate) fn reserve(self: &Arc<Self>, record: &Arc<dyn PlaneRecord>) -> Reservation {
        Reservation {
            budget: Arc::clone(self),
            record: Arc::clone(record),
            bytes: 0,
        }
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let name = "polyplane_body_bytes";
        out.family(name, Kind::Gauge, "Bytes of request bodies in memory.");
        out.sample(name, &[], self.reserved.lock().bytes);
        let name = "polyplane_refused_bodies_total";
        let help = "Request bodies refused because others took all the room, by whose room it was.";
        out.family(name, Kind::Counter, help);
        for (budget, counter) in [
            ("plane", &self.refused_by_plane),
            ("process", &self.refused_by_process),
        ] {
            let count = counter.load(Ordering::Relaxed);
            out.sample(name, &[("budget", budget)], count);
        }
    }

    fn take(&self, plane: &str, bytes: usize) -> Result<(), Exhausted> {
        let mut reserved = self.reserved.lock();
        if bytes > self.process_bytes_max - reserved.bytes {
            self.refused_by_process.fetch_add(1, Ordering::Relaxed);
            return Err(Exhausted::Process);
        }
        let of_plane = reserved.by_plane.get(plane).copied().unwrap_or(0);
        if bytes > self.plane_bytes_max.saturating_sub(of_plane) {
            self.refused_by_plane.fetch_add(1, Ordering::Relaxed);
            return Err(Exhausted::Plane);
        }
        reserved.bytes += bytes;
        self.memory.add(Share::Bodies, bytes);
        match reserved.by_plane.get_mut(plane) {
            Some(of_plane) => *of_plane += bytes,
            None => _ = reserved.by_plane.insert(plane.into(), bytes),
        }
        Ok(())
    }

    fn release(&self, plane: &str, bytes: usize) {
        let mut reserved = self.reserved.lock();
        reserved.bytes -= bytes;
        self.memory.subtract(Share::Bodies, bytes);
        if let Some(of_plane) = reserved.by_plane.get_mut(plane) {
            *of_plane -= bytes;
            if *of_plane == 0 {
                reserved.by_plane.remove(plane);
            }
        }
    }
}

/// The bytes reserved for one body; released when dropped.
pub(crate) struct Reservation {
    budget: Arc<BodyBudget>,
    record: Arc<dyn PlaneRecord>,
    bytes: usize,
}

impl Reservation {
    /// Reserves more bytes.
    ///
    /// # Errors
    /// Returns the limit that was reached if there is no room.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        if bytes > 0 {
            self.budget.take(self.record.id(), bytes)?;
            self.bytes += bytes;
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.record.id(), self.bytes);
        }
    }
}
