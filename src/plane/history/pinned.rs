//! The memory that the events of a log pin, as the log weighs it.
//!
//! An event pins the object it replaced. The new object is in the plane's map, and when it is
//! replaced there, a later event pins it, so it is not weighed twice. Parts that objects share are
//! weighed once for the whole log, although the map may pin them too: the log must not hold more
//! than it weighs.

use std::collections::HashMap;

use crate::history::event::Event;
use crate::state::entry::ObjectRef;

/// Estimated bytes of an event and of its positions in the log, beside its objects.
const EVENT_BYTES: usize = 192;

/// The objects that an event pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pins {
    /// The object that the event replaced.
    Previous,
    /// The new object too: the event was read from history, and the plane's map has a copy of its
    /// own.
    Both,
}

/// The bytes that the events of a log pin.
#[derive(Debug, Default)]
pub(crate) struct PinnedBytes {
    bytes: usize,
    /// For each shared part, by its address, the number of objects of the log that have it. An
    /// address identifies one part as long as an object of the log has that part.
    parts: HashMap<usize, usize>,
}

impl PinnedBytes {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an event that is appended to the log. Returns by how many bytes the log has grown.
    pub(crate) fn add(&mut self, event: &Event, pins: Pins) -> usize {
        let mut weight = EVENT_BYTES + event.key().as_bytes().len();
        for object in pinned(event, pins) {
            weight += object.pinned_len();
            for (address, len) in object.shared_parts() {
                let users = self.parts.entry(address).or_default();
                if *users == 0 {
                    weight += len;
                }
                *users += 1;
            }
        }
        self.bytes += weight;
        weight
    }

    /// Subtracts an event that is dropped from the log.
    pub(crate) fn subtract(&mut self, event: &Event, pins: Pins) {
        self.bytes -= EVENT_BYTES + event.key().as_bytes().len();
        for object in pinned(event, pins) {
            self.bytes -= object.pinned_len();
            for (address, len) in object.shared_parts() {
                if let Some(users) = self.parts.get_mut(&address) {
                    *users -= 1;
                    if *users == 0 {
                        self.parts.remove(&address);
                        self.bytes -= len;
                    }
                }
            }
        }
        if self.parts.is_empty() {
            self.parts.shrink_to_fit();
        }
    }
}

fn pinned(event: &Event, pins: Pins) -> impl Iterator<Item = &ObjectRef> {
    let current = match pins {
        Pins::Both => event.current(),
        Pins::Previous => None,
    };
    event.previous().into_iter().chain(current)
}
