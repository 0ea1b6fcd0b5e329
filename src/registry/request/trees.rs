//! The memory of the trees that a write is prepared from: what its body says, and the object that it changes.
//!
//! A body of 3 MB is a tree of up to 100 MB, and a plan has several trees at a time. What is more than a small part counts in
//! the share of trees until the request ends: a plan that waits may keep them. Parsing is not counted before: it takes about
//! as much as its tree, and only while a thread does it.

use crate::plan::prepare;
use crate::request::Verb;
use crate::request::call::Call;
use parking_lot::Mutex;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::value::Weight;
use polyplane_plane::{BODY_BYTES_MAX, Reservation, Share};

/// Bytes of a text below which its tree is not weighed: that would cost small requests more than it is worth, and all that
/// are prepared at a time take little.
const TEXT_BYTES_MIN: usize = 32 << 10;
/// A text in YAML counts as if it were so many times as long, because it may name one part of it many times.
const YAML_TIMES: usize = 32;
/// Number of times that a plan has a tree in memory, as an estimate: the tree, parts of it in another version or before
/// a change, the sets of its fields, and its text.
const COPIES: usize = 3;
/// Bytes that the trees of a request take without being counted. With less, common large objects would be refused when others
/// have filled the share.
const FREE_BYTES: usize = 4 << 20;
/// Values up to which an object is prepared whatever its length is: few take little memory, and the rules of its kind may
/// say better what is wrong with it.
const VALUES_FEW: usize = 1 << 16;
/// `Retry-After`, in seconds, for a client that found the share of trees full.
const RETRY_AFTER_SECONDS: u32 = 1;

/// What a tree was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The body of the request.
    Body,
    /// The stored object.
    Stored,
}

/// What a request has of the share of trees.
#[derive(Debug, Default)]
pub(super) struct Trees(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    /// The bytes of the largest tree of each [`Source`]. A plan that runs again makes them again.
    bytes: [usize; 2],
    /// `None` if the bytes are few, or if the request goes on without room.
    room: Option<Reservation>,
}

impl Counted {
    fn is_large(&self) -> bool {
        self.bytes.iter().sum::<usize>() > FREE_BYTES
    }
}

/// Returns the length of a text in YAML for [`Call::count_tree`].
pub(crate) fn yaml_bytes(length: usize) -> usize {
    length * YAML_TIMES
}

impl Call<'_> {
    /// Counts a tree that was parsed from so many bytes. `weigh` is called if they are many.
    ///
    /// # Errors
    /// Returns 429 if the trees of other requests fill their share, or the plane's part of it, and the request needs room.
    pub(crate) fn count_tree(
        &self,
        source: Source,
        text_bytes: usize,
        weigh: impl FnOnce() -> Weight,
    ) -> Result<(), ApiError> {
        if text_bytes < TEXT_BYTES_MIN {
            return Ok(());
        }
        let now = COPIES * weigh().memory_bytes;
        let mut counted = self.trees.0.lock();
        let mut bytes = counted.bytes;
        if now <= bytes[source as usize] {
            return Ok(());
        }
        bytes[source as usize] = now;
        // Released first: a request alone has to find room for both of its trees.
        *counted = Counted::default();
        let mut both = Counted { bytes, room: None };
        if both.is_large() {
            both.room = self.tree_room(bytes.iter().sum())?;
        }
        *counted = both;
        Ok(())
    }

    /// Returns room for so many bytes; `None` if there is none and the request goes on without.
    fn tree_room(&self, bytes: usize) -> Result<Option<Reservation>, ApiError> {
        let plane = &self.tenant.plane;
        let bytes = bytes.min(plane.memory().most_for_one(Share::Trees));
        let room = plane.take_memory(Share::Trees, bytes);
        if room.is_none() && self.needs_room() {
            let text = "The server has no memory for a further object of so many values, please try again later.";
            return Err(ApiError::too_many_requests(text, RETRY_AFTER_SECONDS));
        }
        Ok(room)
    }

    /// Returns whether the request is refused if there is no room for its trees. What the server does by itself is
    /// bounded by what users have added, as for the limits of a plane; it must not leave clients no room, so it takes no
    /// more than there is. A deletion is what makes room.
    fn needs_room(&self) -> bool {
        let deletes = matches!(self.request.verb, Verb::Delete | Verb::DeleteCollection);
        self.request.seats.is_some() && !deletes
    }

    /// Checks, before more is made of it, that a tree with many values is no longer than the objects that are stored.
    ///
    /// # Errors
    /// Returns the error of an object that the store would not take.
    pub(crate) fn check_storable(&self, tree: &Value) -> Result<(), ApiError> {
        if !self.trees.0.lock().is_large() {
            return Ok(());
        }
        let weight = Weight::of(tree);
        match weight.values > VALUES_FEW && weight.text_bytes > BODY_BYTES_MAX {
            true => Err(prepare::too_large()),
            false => Ok(()),
        }
    }
}
