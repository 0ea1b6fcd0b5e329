//! The certificates that connected clients have shown. A chain is kept once, over however many
//! connections it is shown, so each CA judges it once, and it travels once over a connection to
//! another replica, where a value is known by its place in memory.
//!
//! Invariant: a chain is forgotten with its last connection. Whoever shows one has proven to hold
//! its key in a handshake of its own; what is shared is the chain, not the proof.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use http::HeaderValue;
use parking_lot::Mutex;
use polyplane_auth::{ClientCa, ClientChain, Denied, UserInfo};

use crate::connection::verdicts::Verdicts;
use crate::peer::headers::encode_chain;

const DIGEST_BYTES: usize = 32;
/// Chains among which those that nobody shows any more are not looked for.
const SWEPT_MIN: usize = 64;

/// A chain that somebody has shown, and what is known of it.
#[derive(Debug)]
pub(crate) struct Shown {
    chain: ClientChain,
    /// As peers are told of it; made when the first request is forwarded.
    value: OnceLock<HeaderValue>,
    verdicts: Verdicts,
}

impl Shown {
    fn new(chain: ClientChain) -> Self {
        Self {
            chain,
            value: OnceLock::new(),
            verdicts: Verdicts::default(),
        }
    }

    /// The certificates.
    pub(crate) fn chain(&self) -> &ClientChain {
        &self.chain
    }

    /// What peers are told: always the same value in memory.
    pub(crate) fn value(&self) -> HeaderValue {
        self.value.get_or_init(|| encode_chain(&self.chain)).clone()
    }

    /// The user that the chain stands for under `ca`; judged once while the verdict holds.
    pub(crate) fn user(&self, ca: &ClientCa, now: SystemTime) -> Result<Arc<UserInfo>, Denied> {
        let judge = || ca.judge(&self.chain, now);
        self.verdicts.of(ca.fingerprint(), now, judge).user
    }
}

/// All chains that are shown.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_digest: HashMap<[u8; DIGEST_BYTES], Weak<Shown>>,
    /// How many there may be before those that are gone are swept out.
    sweep_at: usize,
}

impl Chains {
    /// The chain as others have shown it, or as the first to do so.
    pub(crate) fn shown(&self, chain: ClientChain) -> Arc<Shown> {
        let digest = digest_of(&chain);
        let mut known = self.known.lock();
        if let Some(shown) = known.by_digest.get(&digest).and_then(Weak::upgrade) {
            return shown;
        }
        let shown = Arc::new(Shown::new(chain));
        known.by_digest.insert(digest, Arc::downgrade(&shown));
        if known.by_digest.len() > known.sweep_at.max(SWEPT_MIN) {
            known.by_digest.retain(|_, shown| shown.strong_count() > 0);
            // So that sweeping costs each newcomer the same, however many there are.
            known.sweep_at = known.by_digest.len() * 2;
        }
        shown
    }
}

fn digest_of(chain: &ClientChain) -> [u8; DIGEST_BYTES] {
    let mut context = Context::new(&SHA256);
    for certificate in chain.certificates() {
        // With its length: the same bytes cut elsewhere are other certificates.
        context.update(&(certificate.len() as u64).to_be_bytes());
        context.update(certificate);
    }
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(certificates: &[&[u8]]) -> ClientChain {
        let certificates: Vec<_> = certificates.iter().map(|der| der.to_vec().into()).collect();
        ClientChain::possessed(&certificates).expect("a leaf")
    }

    #[test]
    fn a_chain_is_one_over_all_its_connections() {
        let chains = Chains::default();
        let first = chains.shown(chain(&[b"leaf", b"ca"]));
        let second = chains.shown(chain(&[b"leaf", b"ca"]));
        assert!(Arc::ptr_eq(&first, &second));
        let place = |shown: &Shown| shown.value().as_bytes().as_ptr();
        assert_eq!(place(&first), place(&second));
        let other = chains.shown(chain(&[b"leafc", b"a"]));
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn chains_that_nobody_shows_are_forgotten() {
        let chains = Chains::default();
        let kept: Vec<_> = (0..100_u32)
            .map(|n| chains.shown(chain(&[&n.to_be_bytes()])))
            .collect();
        for n in 100..10_000_u32 {
            chains.shown(chain(&[&n.to_be_bytes()]));
            assert!(chains.known.lock().by_digest.len() <= 2 * kept.len() + SWEPT_MIN);
        }
        let again = chains.shown(chain(&[&0_u32.to_be_bytes()]));
        assert!(Arc::ptr_eq(&again, &kept[0]));
    }
}
