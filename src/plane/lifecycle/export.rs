//! The export of a plane: what its owner streams to the successor in a hand-off.
//!
//! An export begins with a header that has the layer steps. Then come the plane's own objects in
//! the form of the store, the keys of layer objects that were deleted, and the newest events. It
//! ends with a digest. An event refers to objects of the state or of an earlier event instead of
//! repeating them. [`crate::lifecycle::import`] reads an export.
//!
//! Invariant: everything in an export is published, and all of it is of one moment.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest;
use bytes::{BufMut, Bytes, BytesMut};
use polyplane_storage::Revision;

use crate::history::event::Event;
use crate::history::log::LogContents;
use crate::key::Key;
use crate::layers::chain::Chain;
use crate::layers::chain::fold::Fold;
use crate::layers::chain::record::StepsRecord;
use crate::memory::Share;
use crate::plane::Plane;
use crate::record::{EventHeader, encode_object};
use crate::sealing::plane_keys::PlaneKeys;
use crate::state::Root;
use crate::state::entry::ObjectRef;
use crate::version::{Stamp, Version};
use crate::yielding::{YIELD_BYTES, YieldBudget};

pub(crate) const MAGIC: &[u8; 4] = b"pexp";
/// The number of the form without folded steps, the only form that programs below level
/// `FOLDS_LEVEL` read.
pub(crate) const FORMAT: u16 = 2;
/// The number of the form with folded steps. It also has the chains of events from before the fold.
pub(crate) const FOLDED: u16 = 3;
/// The numbers of the same two forms of a plane that is sealed in the store. The export itself is in
/// clear. A program that does not know them, or a replica without the operator's keys, refuses them and
/// turns to the store.
pub(crate) const OF_SEALED: u16 = 4;
pub(crate) const OF_SEALED_FOLDED: u16 = 5;
/// Bytes of own objects beyond which a plane is not exported, because an export holds the state in
/// memory a second time. The successor then loads the plane from the store.
const STATE_BYTES_MAX: u64 = 64 << 20;
/// Approximate bytes of events in an export. Older events are left out.
const HISTORY_BYTES_MAX: usize = 4 << 20;

pub(crate) const NOTHING: u8 = 0;
pub(crate) const OF_LAYER: u8 = 1;
pub(crate) const INLINE: u8 = 2;
/// A mark instead of an object in an event. For the new object it means the one in the state; for
/// the replaced object, the one that the previous event of the same key made.
pub(crate) const KNOWN: u8 = 3;

/// The state that a successor opens the plane with, see [`crate::Import`].
#[derive(Debug, Clone)]
pub struct Export {
    /// The newest revision in the export. The successor uses the export only if Released names this
    /// revision.
    pub head: Revision,
    /// The exported state and history.
    pub bytes: Bytes,
}

/// The reason why a plane is not exported. The successor then loads it from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The plane is too large to be held in memory twice.
    #[error("the control plane has {bytes} bytes, {bytes_max} are exported at most")]
    TooLarge {
        /// Bytes of the plane's own objects.
        bytes: u64,
        /// The limit, in bytes.
        bytes_max: u64,
    },
    /// Exports of other planes have filled their share of the memory budget.
    #[error("exports of other control planes have used up their share of memory")]
    Full,
}

impl Plane {
    /// Returns the published state with the newest events. Only while the plane is paused is this
    /// certainly the state that Released will name; compare [`Export::head`]. Copies up to about 70
    /// MB, and yields to other tasks while it does.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub async fn export(&self) -> Result<Export, ExportError> {
        // Read before the state, so the state has everything up to this revision.
        let through = self.follow().map_or(Revision(0), |follow| follow.through());
        let (root, mut contents) = self.log().contents(|| self.published());
        let bytes = root.resources.weight().bytes;
        if bytes > STATE_BYTES_MAX {
            return Err(ExportError::TooLarge {
                bytes,
                bytes_max: STATE_BYTES_MAX,
            });
        }
        contents.bound(HISTORY_BYTES_MAX);
        let chain = root.template_values.chain();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let hold = self.memory().take(Share::Exports, bytes);
        let mut hold = hold.ok_or(ExportError::Full)?;
        let head = root.head.revision(self.base());
        let through = through.max(head);
        let mut out = Writer(BytesMut::with_capacity(bytes + (64 << 10)));
        let mut yield_budget = YieldBudget::default();
        out.0.put_slice(MAGIC);
        let is_sealed = self.data_keys().is_some_and(PlaneKeys::has_keys);
        out.0.put_u16(match (chain.fold(), is_sealed) {
            (Some(_), false) => FOLDED,
            (None, false) => FORMAT,
            (Some(_), true) => OF_SEALED_FOLDED,
            (None, true) => OF_SEALED,
        });
        out.text(self.id().as_bytes());
        out.text(chain.birth().0.as_bytes());
        out.0.put_u64(self.base().0);
        out.version(self.birth());
        out.version(root.head);
        out.0.put_u64(through.0);
        // All commits of the chain are published, so each has its version.
        StepsRecord::of(chain, Vec::new()).write(&mut out.0);
        if let Some(fold) = chain.fold() {
            write_past_chains(fold, &contents, &mut out);
        }
        write_state(&root, &mut out, &mut yield_budget).await;
        write_history(&root, &contents, &mut out, &mut yield_budget).await;
        let digest = digest_of(&out.0, &mut yield_budget).await;
        out.0.put_slice(digest.as_ref());
        hold.resize(out.0.len());
        Ok(Export {
            head,
            bytes: hold.keep(out.0),
        })
    }
}

/// Writes the chains for events from before the fold, because the fold does not know that time.
/// There are such events only if they were read from the store's history.
fn write_past_chains(fold: &Fold, contents: &LogContents, out: &mut Writer) {
    let mut chains: Vec<(Version, &Arc<Chain>)> = Vec::new();
    for (_, event) in &contents.events {
        if event.version() > fold.newest() {
            break;
        }
        let object = event.current().or(event.previous());
        let Some(chain) = object.map(|object| object.template_values().chain()) else {
            continue;
        };
        match chains.last_mut() {
            Some((until, last)) if Arc::ptr_eq(last, chain) => *until = event.version(),
            Some(_) | None => chains.push((event.version(), chain)),
        }
    }
    out.count(chains.len());
    for (until, chain) in chains {
        out.version(until);
        out.0.put_u8(u8::from(chain.fold().is_some()));
        StepsRecord::of(chain, Vec::new()).write(&mut out.0);
    }
}

async fn write_history(
    root: &Root,
    contents: &LogContents,
    out: &mut Writer,
    yield_budget: &mut YieldBudget,
) {
    out.version(contents.floor);
    out.count(contents.floors.len());
    for (resource, floor) in &contents.floors {
        out.text(resource);
        out.version(*floor);
    }
    out.count(contents.events.len());
    let mut newest: HashMap<&Key, Option<Stamp>> = HashMap::new();
    for (age, event) in &contents.events {
        let before = out.0.len();
        out.0
            .put_u32(u32::try_from(age.as_millis()).unwrap_or(u32::MAX));
        out.version(event.version());
        out.text(event.key().as_bytes());
        let known = newest.get(event.key()).copied().flatten();
        out.side(event.previous(), known);
        let state = root.resources.get(event.key()).map(|entry| entry.stamp());
        out.side(event.current(), state);
        newest.insert(event.key(), event.current().map(ObjectRef::stamp));
        yield_budget.spend(out.0.len() - before).await;
    }
}

async fn write_state(root: &Root, out: &mut Writer, yield_budget: &mut YieldBudget) {
    let own = || {
        root.resources
            .entries()
            .filter(|entry| entry.as_template().is_none())
    };
    out.count(own().count());
    for entry in own() {
        let before = out.0.len();
        out.text(entry.key().as_bytes());
        out.object(&root.object(entry));
        yield_budget.spend(out.0.len() - before).await;
    }
    let layers = root.template_values.chain().resources();
    let gone = || {
        layers
            .entries()
            .filter(|entry| root.resources.get(entry.key()).is_none())
    };
    out.count(gone().count());
    for entry in gone() {
        out.text(entry.key().as_bytes());
    }
}

/// Returns the digest that closes an export.
pub(crate) async fn digest_of(bytes: &[u8], yield_budget: &mut YieldBudget) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    for slice in bytes.chunks(YIELD_BYTES) {
        context.update(slice);
        yield_budget.spend(slice.len()).await;
    }
    context.finish()
}

struct Writer(BytesMut);

impl Writer {
    fn version(&mut self, version: Version) {
        self.0.put_u64(version.raw());
    }

    fn count(&mut self, count: usize) {
        self.0
            .put_u32(u32::try_from(count).expect("what fits in memory twice is counted by u32"));
    }

    fn text(&mut self, text: &[u8]) {
        self.0
            .put_u16(u16::try_from(text.len()).expect("keys and names are short"));
        self.0.put_slice(text);
    }

    /// Writes one of the plane's own objects with its versions.
    fn object(&mut self, object: &ObjectRef) {
        let (versions, object) = object.source().expect("what is published is durable");
        self.version(versions.version);
        self.version(versions.created);
        let header = EventHeader {
            index: versions.version.index(),
            previous: Version::ZERO,
            created: versions.created,
        };
        let record = encode_object(header, &object);
        self.count(record.len());
        self.0.put_slice(&record);
    }

    /// Writes one side of an event. `known` is the stamp of the key's object that the reader has
    /// already.
    fn side(&mut self, object: Option<&ObjectRef>, known: Option<Stamp>) {
        match object {
            None => self.0.put_u8(NOTHING),
            Some(object) if known == Some(object.stamp()) => self.0.put_u8(KNOWN),
            Some(object) if object.is_template() => self.0.put_u8(OF_LAYER),
            Some(object) => {
                self.0.put_u8(INLINE);
                self.object(object);
            }
        }
    }
}

impl LogContents {
    /// Drops the oldest events until the rest has about `bytes_max` bytes.
    fn bound(&mut self, bytes_max: usize) {
        let mut bytes = 0;
        let fits = |(_, event): &&(std::time::Duration, Arc<Event>)| {
            bytes += event.history_len();
            bytes <= bytes_max
        };
        let fitting = self.events.iter().rev().take_while(fits).count();
        let left = self.events.len() - fitting;
        for (_, event) in self.events.drain(..left) {
            let resource = event.key().resource_prefix();
            if let Some(floor) = self.floors.get_mut(resource.as_bytes()) {
                *floor = (*floor).max(event.version());
            }
        }
    }
}
