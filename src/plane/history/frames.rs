//! The frames that the events of one log keep for the watchers to share. Owns their bound: the
//! oldest frame is dropped first, and the newest one is kept however large it is, because all
//! watchers of an event request its frame within moments of each other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::history::event::Event;
use crate::memory::{Memory, Share};

/// Estimated bytes of memory that a kept frame takes beside its content.
const FRAME_BYTES: usize = 96;
/// Number of frames that a log remembers at once. A remembered frame keeps its event's memory
/// allocated, so without this limit many frames of dropped events would hold much memory.
const FRAMES_MAX: usize = 4096;

/// The frames of one log, in the order in which they were built.
#[derive(Debug)]
pub(crate) struct Frames {
    built: Mutex<VecDeque<(Weak<Event>, u32)>>,
    bytes: AtomicUsize,
    bytes_max: usize,
    memory: Arc<Memory>,
}

impl Frames {
    pub(crate) fn new(bytes_max: usize, memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            built: Mutex::default(),
            bytes: AtomicUsize::new(0),
            bytes_max,
            memory: Arc::clone(memory),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts the bytes of a frame that is about to be kept.
    pub(crate) fn add(&self, len: usize) {
        self.bytes.fetch_add(len + FRAME_BYTES, Ordering::Relaxed);
        self.memory.add(Share::Logs, len + FRAME_BYTES);
    }

    /// Subtracts the bytes of a frame that is no longer kept.
    pub(crate) fn subtract(&self, len: usize) {
        self.bytes.fetch_sub(len + FRAME_BYTES, Ordering::Relaxed);
        self.memory.subtract(Share::Logs, len + FRAME_BYTES);
    }

    /// Records that an event keeps a new frame, and drops the oldest frames beyond the limits.
    pub(crate) fn kept(&self, event: &Arc<Event>, view: u32) {
        let mut built = self.built.lock();
        built.push_back((Arc::downgrade(event), view));
        while built.len() > 1 {
            let is_gone = built[0].0.strong_count() == 0;
            if !is_gone && built.len() <= FRAMES_MAX && self.bytes() <= self.bytes_max {
                break;
            }
            if let Some((event, view)) = built.pop_front()
                && let Some(event) = event.upgrade()
            {
                event.forget_frame(view);
            }
        }
        drop(built);
        self.memory.shed_logs();
    }

    /// Forgets the oldest frames if their events are gone, because a remembered frame keeps the
    /// allocation of its event.
    pub(crate) fn forget_gone(&self) {
        let mut built = self.built.lock();
        while (built.front()).is_some_and(|(event, _)| event.strong_count() == 0) {
            built.pop_front();
        }
        if built.is_empty() {
            built.shrink_to_fit();
        }
    }

    /// Drops all frames.
    pub(crate) fn clear(&self) {
        for (event, view) in std::mem::take(&mut *self.built.lock()) {
            if let Some(event) = event.upgrade() {
                event.forget_frame(view);
            }
        }
    }
}
