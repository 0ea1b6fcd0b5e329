//! The memory of the selectors of watches, which is kept for as long as the watches are open.
//!
//! The selectors of a request have up to 64 KiB of text and take several times as much when they are parsed, and
//! a plane may have thousands of watches. What is more than a small part counts in the share of selectors; long
//! requirements on labels that are the same in several watches of a plane are kept and counted once.

use crate::request::ResourceRequest;
use crate::request::call::Call;
use crate::select::Selection;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::labels::ManyRequirements;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Reservation, Share};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Weak};

/// Bytes that selectors of a watch take without being counted. More would let the watches of a plane take much
/// memory outside the budget; with less, common selectors would be counted, and their watches be refused when
/// others have filled the share.
const FREE_BYTES: usize = 4 << 10;
/// `Retry-After`, in seconds, for a client that found the share of selectors full.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The id of a plane, and a hash of requirements that clients cannot foresee.
type Key = (Str, u64);

/// The long requirements on labels of all open watches.
#[derive(Debug, Default)]
pub struct SharedSelectors {
    hasher: RandomState,
    shared: Mutex<HashMap<Key, Weak<SharedLabels>>>,
}

/// Requirements on labels that watches of one plane share.
#[derive(Debug)]
struct SharedLabels {
    labels: Arc<ManyRequirements>,
    key: Key,
    among: Arc<SharedSelectors>,
    _room: Reservation,
}

impl Drop for SharedLabels {
    fn drop(&mut self) {
        self.among.forget(&self.key);
    }
}

/// What a watch has of the share of selectors.
#[derive(Debug)]
pub(super) struct HeldSelectors {
    _labels: Option<Arc<SharedLabels>>,
    _others: Option<Reservation>,
}

/// Counts the memory of the selectors of a watch that is about to begin.
///
/// # Errors
/// Returns 429 if the selectors of open watches fill their share, or the plane's part of it.
pub(super) fn hold(call: &Call<'_>, selection: &mut Selection) -> Result<HeldSelectors, ApiError> {
    let many = selection.many_labels();
    let long = many.filter(|many| many.heap_bytes() > FREE_BYTES).cloned();
    let labels = match long {
        None => None,
        Some(long) => {
            let shared = call.services.selectors.share(call, long)?;
            selection.share_labels(Arc::clone(&shared.labels));
            Some(shared)
        }
    };
    // The accesses that were granted have the selector by fields too.
    let accesses = call.request.granted.accesses().iter();
    let accesses: usize = accesses.map(|access| access.bytes()).sum();
    let others = selection.other_bytes() + accesses + recorded_bytes(call.request);
    let others = match others > FREE_BYTES {
        true => Some(room(call, others)?),
        false => None,
    };
    Ok(HeldSelectors {
        _labels: labels,
        _others: others,
    })
}

/// Returns about how many bytes the record of a request has of its texts, until the watch ends.
fn recorded_bytes(request: &ResourceRequest) -> usize {
    if request.annotations.is_none() {
        return 0;
    }
    let query = request.query.iter();
    let query: usize = query.map(|(name, value)| name.len() + value.len()).sum();
    query + request.user_agent.len()
}

fn room(call: &Call<'_>, bytes: usize) -> Result<Reservation, ApiError> {
    let room = call.tenant.plane.take_memory(Share::Selectors, bytes);
    room.ok_or_else(|| {
        let text =
            "The server has no memory for a further watch with a long selector, please try again later.";
        ApiError::too_many_requests(text, RETRY_AFTER_SECONDS)
    })
}

impl SharedSelectors {
    /// Returns the requirements of other watches of the plane that are equal, or else shares these.
    fn share(
        self: &Arc<Self>,
        call: &Call<'_>,
        labels: Arc<ManyRequirements>,
    ) -> Result<Arc<SharedLabels>, ApiError> {
        let plane = call.tenant.plane.id();
        let key: Key = (plane.into(), self.hasher.hash_one(&*labels));
        let known = self.shared.lock().get(&key).and_then(Weak::upgrade);
        // Compared outside the lock: dropping the last handle takes it.
        if let Some(known) = known
            && known.labels == labels
        {
            return Ok(known);
        }
        let shared = Arc::new(SharedLabels {
            _room: room(call, labels.heap_bytes())?,
            labels,
            key: key.clone(),
            among: Arc::clone(self),
        });
        // Others with this hash, if there are any, stay with their watches and are not found any more.
        self.shared.lock().insert(key, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Removes the entry of requirements whose last watch ended.
    fn forget(&self, key: &Key) {
        let mut shared = self.shared.lock();
        // Not if later ones have taken the entry.
        if shared
            .get(key)
            .is_some_and(|entry| entry.strong_count() == 0)
        {
            shared.remove(key);
        }
    }
}
