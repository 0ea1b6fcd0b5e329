//! What is known of tokens, so that a signature is verified once and not at every request.
//!
//! An entry holds under one set of keys: a look-up that brings other keys forgets all. The end of a
//! token is checked at each use.

use std::sync::Arc;

use parking_lot::Mutex;
use polyplane_auth::{Digest, UserInfo};

use super::bounds::Bounds;
use super::token::{Times, TokenRefused};
use crate::halves::Halves;

/// What is known of a token.
#[derive(Clone)]
pub(super) enum Verdict {
    /// The token proves a user at these times.
    Proves(Arc<UserInfo>, Times),
    /// The token proves nobody under these keys, at no time.
    Refused(TokenRefused),
}

/// The cache of one issuer. Right and wrong tokens have places of their own, so a flood of wrong ones
/// forgets no right one.
pub(super) struct Verdicts {
    proven: Mutex<Halves<Verdict>>,
    refused: Mutex<Halves<Verdict>>,
}

impl Verdicts {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self {
            proven: Mutex::new(Halves::new(bounds.proven_half_max)),
            refused: Mutex::new(Halves::new(bounds.refused_half_max)),
        }
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<Verdict> {
        // One after the other: a lock in the same expression would be held for both.
        let proven = self.proven.lock().get(digest);
        proven.or_else(|| self.refused.lock().get(digest))
    }

    pub(super) fn insert(&self, digest: Digest, verdict: Verdict) {
        let halves = match &verdict {
            Verdict::Proves(..) => &self.proven,
            Verdict::Refused(_) => &self.refused,
        };
        halves.lock().insert(digest, verdict);
    }
}
