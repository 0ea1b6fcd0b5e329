//! Authorizers that are replaced while requests are authorized, because the file that names them has
//! changed.

use super::decisions::DecisionCount;
use super::{Authority, ChainedAuthorizer};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::Arc;

/// Counts of authorizers that are kept for the metrics, at most. Each has a name that an operator wrote
/// into a file, which may have another one in every version of the file.
const COUNTS_MAX: usize = 256;

/// The authorizers of a plane, the last of which may be replaced.
pub struct ReplaceableAuthorizers {
    /// The first ones, which stay.
    first: Vec<ChainedAuthorizer>,
    current: ArcSwap<Authority>,
    /// The counts of all that have been among them, oldest first. Without those that were replaced the
    /// metrics would fall.
    counts: Mutex<Vec<Arc<DecisionCount>>>,
}

impl ReplaceableAuthorizers {
    /// Creates authorizers that are called in the order given. Those in `last` may be replaced.
    pub fn new(first: Vec<ChainedAuthorizer>, last: Vec<ChainedAuthorizer>) -> Arc<Self> {
        let made = Self {
            first,
            current: ArcSwap::from_pointee(Authority::new(Vec::new())),
            counts: Mutex::default(),
        };
        made.replace(last);
        Arc::new(made)
    }

    /// Replaces the last authorizers. A request that is under way is decided on by those that it began
    /// with.
    pub fn replace(&self, last: Vec<ChainedAuthorizer>) {
        let mut counts = self.counts.lock();
        let mut authorizers = self.first.clone();
        authorizers.extend(last.into_iter().map(|mut one| {
            if let Some(count) = &mut one.count {
                let known = counts.iter().position(|known| known.is_of_same(count));
                // To the end, so that the counts in use are the last to go.
                match known.map(|place| counts.remove(place)) {
                    Some(known) => *count = known,
                    None if counts.len() == COUNTS_MAX => drop(counts.remove(0)),
                    None => {}
                }
                counts.push(Arc::clone(count));
            }
            one
        }));
        self.current.store(Arc::new(Authority::new(authorizers)));
    }

    pub(super) fn pin(&self) -> Pinned<'_> {
        Pinned::Replaceable(self.current.load_full())
    }

    pub(super) fn counts(&self) -> Vec<Arc<DecisionCount>> {
        self.counts.lock().clone()
    }
}

/// An authority that stays the same while one request is authorized.
#[derive(Clone)]
pub(crate) enum Pinned<'a> {
    /// Authorizers that nobody replaces.
    Own(&'a Authority),
    /// Those that were in use when the request began.
    Replaceable(Arc<Authority>),
}

impl Deref for Pinned<'_> {
    type Target = Authority;

    fn deref(&self) -> &Authority {
        match self {
            Self::Own(authority) => authority,
            Self::Replaceable(authority) => authority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::{AllowAll, AlwaysDeny, Decision};

    fn chained(name: &str, allows: bool) -> ChainedAuthorizer {
        match allows {
            true => ChainedAuthorizer::fixed(Arc::new(AllowAll)),
            false => ChainedAuthorizer::fixed(Arc::new(AlwaysDeny)),
        }
        .counted_as("Webhook", name)
    }

    #[test]
    fn what_is_replaced_stays_for_requests_under_way_and_in_the_counts() {
        let authorizers = ReplaceableAuthorizers::new(Vec::new(), vec![chained("a", true)]);
        let pinned = authorizers.pin();
        let count = |pinned: &Pinned<'_>, place: usize| {
            let count = pinned.authorizers[place].count.clone();
            count.expect("counted")
        };
        count(&pinned, 0).count(&Decision::Allow);
        authorizers.replace(vec![chained("b", false), chained("a", true)]);
        assert_eq!(pinned.authorizers.len(), 1);
        let later = authorizers.pin();
        assert_eq!(later.authorizers.len(), 2);
        assert!(Arc::ptr_eq(&count(&pinned, 0), &count(&later, 1)));
        authorizers.replace(vec![chained("b", false)]);
        let names: Vec<String> = authorizers
            .counts()
            .iter()
            .map(|one| one.name().to_owned())
            .collect();
        assert_eq!(names, ["a", "b"]);
        for number in 0..2 * COUNTS_MAX {
            authorizers.replace(vec![chained(&number.to_string(), true)]);
        }
        assert_eq!(authorizers.counts().len(), COUNTS_MAX);
    }
}
