//! What the events of a log pin in memory, as the log weighs it.
//!
//! An event pins the object it replaced. The new object is in the plane's map, and once it is
//! replaced there it is the replaced one of a later event, so it is not weighed twice. Parts that
//! objects share are weighed once for the whole log, although the map may pin them too: the log
//! must not hold more than it weighs.

use std::collections::HashMap;

use crate::history::event::Event;
use crate::state::entry::ObjectRef;

/// Bytes of an event and of its places in the log beside its objects.
const EVENT_BYTES: usize = 192;

/// Which of its objects an event pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pins {
    /// The one it replaced.
    Previous,
    /// The new one too: it was read from history, and the plane's map has an equal one of its own.
    Both,
}

/// What the events of a log pin.
#[derive(Debug, Default)]
pub(crate) struct PinnedBytes {
    bytes: usize,
    /// How many objects of the log have a shared part, by its address. An address stands for one
    /// part as long as an object of the log has it.
    parts: HashMap<usize, usize>,
}

impl PinnedBytes {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Weighs an event that comes into the log; returns by how much the log has grown.
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

    /// An event leaves the log.
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
