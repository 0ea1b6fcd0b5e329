//! An event: one change of one object, with the frames that watchers share.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::history::frames::Frames;
use crate::key::Key;
use crate::state::entry::ObjectRef;
use crate::version::Version;

/// Number of frames that one event keeps. Frames of further views are built again for each request.
const FRAMES_MAX: usize = 8;
/// Estimated bytes that an event takes in an export beside its key and object.
const EXPORTED_BYTES: usize = 64;

/// One change of one object, shared by everyone who watches.
#[derive(Debug)]
pub struct Event {
    version: Version,
    key: Key,
    previous: Option<ObjectRef>,
    current: Option<ObjectRef>,
    frames: Mutex<Vec<(u32, Bytes)>>,
    /// The log that counts the bytes of its frames; unset before the event is appended to a log.
    weighed_by: OnceLock<Arc<Frames>>,
}

impl Event {
    pub(crate) fn new(
        version: Version,
        key: Key,
        previous: Option<ObjectRef>,
        current: Option<ObjectRef>,
    ) -> Arc<Self> {
        Arc::new(Self {
            version,
            key,
            previous,
            current,
            frames: Mutex::default(),
            weighed_by: OnceLock::new(),
        })
    }

    /// Returns the version of the event; that of the new object if there is one.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the object before the event; `None` if there was none.
    #[must_use]
    pub fn previous(&self) -> Option<&ObjectRef> {
        self.previous.as_ref()
    }

    /// Returns the object after the event; `None` if the event deleted it.
    #[must_use]
    pub fn current(&self) -> Option<&ObjectRef> {
        self.current.as_ref()
    }

    /// Returns the frame of this event in one view, built once for all watchers. `view` is the
    /// number that the caller has given to a form of frames. A frame may be dropped and built again
    /// later.
    pub fn frame(self: &Arc<Self>, view: u32, build: impl FnOnce(&Self) -> Bytes) -> Bytes {
        if let Some((_, frame)) = self.frames.lock().iter().find(|(known, _)| *known == view) {
            return frame.clone();
        }
        let frame = build(self);
        let mut frames = self.frames.lock();
        if let Some((_, other)) = frames.iter().find(|(known, _)| *known == view) {
            return other.clone();
        }
        if frames.len() < FRAMES_MAX
            && let Some(weighed_by) = self.weighed_by.get()
        {
            weighed_by.add(frame.len());
            frames.push((view, frame.clone()));
            // Keeping this frame may drop frames of other events, which have locks of their own.
            drop(frames);
            weighed_by.kept(self, view);
        }
        frame
    }

    /// Returns about how many bytes an export writes for the event: those of the replaced object.
    /// The new object is in the exported state, or is the replaced object of a later event.
    pub(crate) fn history_len(&self) -> usize {
        let body = self.previous.as_ref();
        EXPORTED_BYTES + self.key.as_bytes().len() + body.map_or(0, ObjectRef::body_len)
    }

    /// Reports that the event was appended to the log that weighs its frames.
    pub(crate) fn weigh_frames(&self, frames: &Arc<Frames>) {
        self.weighed_by.get_or_init(|| Arc::clone(frames));
    }

    /// Drops a frame. The next request builds it again.
    pub(crate) fn forget_frame(&self, view: u32) {
        let mut frames = self.frames.lock();
        if let Some(at) = frames.iter().position(|(known, _)| *known == view)
            && let Some(weighed_by) = self.weighed_by.get()
        {
            weighed_by.subtract(frames.swap_remove(at).1.len());
        }
    }

    /// Returns about how many bytes of the event a watcher is sent.
    pub(crate) fn sent_len(&self) -> usize {
        let body = self.current.as_ref().or(self.previous.as_ref());
        self.key.as_bytes().len() + body.map_or(0, ObjectRef::body_len)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(weighed_by) = self.weighed_by.get() {
            for (_, frame) in self.frames.get_mut() {
                weighed_by.subtract(frame.len());
            }
        }
    }
}
