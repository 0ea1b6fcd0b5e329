//! Interns the certificate chains that connected clients have shown.
//!
//! Each chain is stored once, however many connections show it. So each CA judges it once, and its
//! header value is sent once over a connection to another replica, which compares values by
//! address.
//!
//! Invariant: a chain is dropped with its last connection. Every client has proven in a handshake
//! of its own that it holds the key; only the chain is shared, not the proof.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use http::HeaderValue;
use parking_lot::Mutex;
use polyplane_auth::{ChainJudge, ClientChain, Denied, UserInfo};

use crate::connection::verdicts::Verdicts;
use crate::peer::headers::encode_chain;

const DIGEST_BYTES: usize = 32;
/// Number of chains up to which the cache is not swept of dropped ones. With a lower number, small
/// caches would be swept for nearly every new chain.
const SWEPT_MIN: usize = 64;

/// A chain that clients have shown, with the planes' verdicts on it.
#[derive(Debug)]
pub(crate) struct InternedChain {
    chain: ClientChain,
    /// The chain's header value for peers; made for the first request that is forwarded.
    value: OnceLock<HeaderValue>,
    /// When the leaf expires; read for the first request that it proves.
    leaf_ends: OnceLock<Option<SystemTime>>,
    verdicts: Verdicts,
}

impl InternedChain {
    fn new(chain: ClientChain) -> Self {
        Self {
            chain,
            value: OnceLock::new(),
            leaf_ends: OnceLock::new(),
            verdicts: Verdicts::default(),
        }
    }

    /// Returns the certificates.
    pub(crate) fn chain(&self) -> &ClientChain {
        &self.chain
    }

    /// Returns the chain's header value for peers, always at the same address.
    pub(crate) fn value(&self) -> HeaderValue {
        self.value.get_or_init(|| encode_chain(&self.chain)).clone()
    }

    /// Returns for how much longer the leaf is valid; nothing if it has expired.
    pub(crate) fn leaf_time_left(&self, now: SystemTime) -> Option<Duration> {
        let ends = (*self.leaf_ends.get_or_init(|| self.chain.leaf_ends()))?;
        Some(ends.duration_since(now).unwrap_or_default())
    }

    /// Returns the user that the chain proves to a plane. Verdicts are cached for as long as they
    /// hold.
    pub(crate) fn user(
        &self,
        by: &dyn ChainJudge,
        now: SystemTime,
    ) -> Result<Arc<UserInfo>, Denied> {
        let identify = || by.identify(&self.chain, now);
        self.verdicts.of(by.fingerprint(), now, identify).user
    }
}

/// The chains of all connected clients.
#[derive(Debug, Default)]
pub(crate) struct ClientChains {
    known: Mutex<KnownChains>,
}

#[derive(Debug, Default)]
struct KnownChains {
    by_digest: HashMap<[u8; DIGEST_BYTES], Weak<InternedChain>>,
    /// Number of chains above which dropped ones are swept out.
    sweep_at: usize,
}

impl ClientChains {
    /// Returns the one shared copy of a chain.
    pub(crate) fn intern(&self, chain: ClientChain) -> Arc<InternedChain> {
        let digest = digest_of(&chain);
        let mut known = self.known.lock();
        if let Some(interned) = known.by_digest.get(&digest).and_then(Weak::upgrade) {
            return interned;
        }
        let interned = Arc::new(InternedChain::new(chain));
        known.by_digest.insert(digest, Arc::downgrade(&interned));
        if known.by_digest.len() > known.sweep_at.max(SWEPT_MIN) {
            known
                .by_digest
                .retain(|_, interned| interned.strong_count() > 0);
            // Doubled, so that the cost of sweeps per new chain stays constant on average.
            known.sweep_at = known.by_digest.len() * 2;
        }
        interned
    }
}

fn digest_of(chain: &ClientChain) -> [u8; DIGEST_BYTES] {
    let mut context = Context::new(&SHA256);
    for certificate in chain.certificates() {
        // The length is part of the digest, because the same bytes divided elsewhere are other
        // certificates.
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
        let chains = ClientChains::default();
        let first = chains.intern(chain(&[b"leaf", b"ca"]));
        let second = chains.intern(chain(&[b"leaf", b"ca"]));
        assert!(Arc::ptr_eq(&first, &second));
        let address = |interned: &InternedChain| interned.value().as_bytes().as_ptr();
        assert_eq!(address(&first), address(&second));
        let other = chains.intern(chain(&[b"leafc", b"a"]));
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn chains_that_nobody_shows_are_forgotten() {
        let chains = ClientChains::default();
        let kept: Vec<_> = (0..100_u32)
            .map(|n| chains.intern(chain(&[&n.to_be_bytes()])))
            .collect();
        for n in 100..10_000_u32 {
            chains.intern(chain(&[&n.to_be_bytes()]));
            assert!(chains.known.lock().by_digest.len() <= 2 * kept.len() + SWEPT_MIN);
        }
        let again = chains.intern(chain(&[&0_u32.to_be_bytes()]));
        assert!(Arc::ptr_eq(&again, &kept[0]));
    }
}
