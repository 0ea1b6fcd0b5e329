//! A cache of verified tokens, so that a signature is verified once and not at every request.
//!
//! An entry says that a plane's key signed a token. That never becomes wrong, so entries have no age:
//! times, audiences and the life of objects are checked at each use. A changed set of accepted keys
//! has another [`AcceptStamp`], under which nothing is known.
//!
//! Refusals are kept apart and only for wrong signatures under one set of keys: every other refusal
//! may have another reason at the next request.
//!
//! Invariant: the key of an entry names the plane's id, the stamp and the SHA-256 of the token, and no
//! plane's entries can evict those of a plane that has fewer.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use polyplane_apimachinery::Str;

use super::issuer::{AcceptStamp, TokenIssuer};
use super::{TokenFault, VerifiedToken};
use crate::digest::digest_of;
use crate::jws::JwsError;

/// Bytes of all verified tokens together, about. A verified token takes about 1 KiB.
const VERIFIED_BYTES_MAX: usize = 16 << 20;
/// Bytes of an entry beside its claims: user, digests and their places in the tables.
const ENTRY_BYTES: usize = 768;
/// Refused signatures that are remembered. A client that repeats a token costs one verification,
/// and a client that invents tokens costs one for each of them anyway.
const REFUSED_MAX: usize = 4096;

/// The cache of one process.
#[derive(Debug)]
pub struct VerdictCache {
    verified: RwLock<Verified>,
    refused: Mutex<Refused>,
    bytes_max: usize,
}

impl Default for VerdictCache {
    fn default() -> Self {
        Self::with_bytes_max(VERIFIED_BYTES_MAX)
    }
}

impl VerdictCache {
    /// Creates a cache that keeps about `bytes_max` bytes of verified tokens.
    pub fn with_bytes_max(bytes_max: usize) -> Self {
        Self {
            verified: RwLock::default(),
            refused: Mutex::default(),
            bytes_max,
        }
    }

    /// Verifies form, signature and issuer of a token, or returns what is known of it.
    ///
    /// # Errors
    /// Returns an error if the token is not one of the issuer's plane.
    pub fn verify(
        &self,
        issuer: &TokenIssuer,
        token: &str,
    ) -> Result<Arc<VerifiedToken>, TokenFault> {
        let digest = digest_of(token);
        let stamp = issuer.stamp();
        if let Some(known) = self.verified.read().get(issuer.plane(), stamp, &digest) {
            return Ok(known);
        }
        if self.refused.lock().knows(&(stamp, digest)) {
            return Err(JwsError::Signature.into());
        }
        // Without a lock: several requests may verify the same token at once.
        match issuer.verify(token) {
            Ok(verified) => {
                let verified = Arc::new(verified);
                let bytes = ENTRY_BYTES + 2 * token.len();
                let mut cache = self.verified.write();
                cache.insert(issuer.plane(), stamp, Arc::clone(&verified), bytes);
                cache.evict(self.bytes_max);
                Ok(verified)
            }
            Err(fault) => {
                if fault == TokenFault::Jws(JwsError::Signature) {
                    self.refused.lock().insert((stamp, digest));
                }
                Err(fault)
            }
        }
    }

    /// Returns the number of verified tokens that are kept for a plane.
    pub fn verified_tokens(&self, plane: &str) -> usize {
        let verified = self.verified.read();
        verified.planes.get(plane).map_or(0, |of| of.tokens.len())
    }

    /// Returns about how many bytes the verified tokens take.
    pub fn bytes(&self) -> usize {
        self.verified.read().bytes
    }
}

#[derive(Debug, Default)]
struct Verified {
    planes: HashMap<Str, OfPlane>,
    /// The planes by the bytes of their entries.
    by_bytes: BTreeSet<(usize, Str)>,
    bytes: usize,
}

#[derive(Debug)]
struct OfPlane {
    stamp: AcceptStamp,
    tokens: HashMap<[u8; 32], Entry>,
    /// The digests in the order in which they are looked at for eviction.
    order: VecDeque<[u8; 32]>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    token: Arc<VerifiedToken>,
    bytes: usize,
    /// Whether the entry was read since it was last looked at for eviction.
    is_used: AtomicBool,
}

impl Verified {
    fn get(
        &self,
        plane: &str,
        stamp: AcceptStamp,
        digest: &[u8; 32],
    ) -> Option<Arc<VerifiedToken>> {
        let of_plane = self.planes.get(plane).filter(|of| of.stamp == stamp)?;
        let entry = of_plane.tokens.get(digest)?;
        // Read first, so that readers of one entry do not take its cache line from each other.
        if !entry.is_used.load(Ordering::Relaxed) {
            entry.is_used.store(true, Ordering::Relaxed);
        }
        Some(Arc::clone(&entry.token))
    }

    fn insert(&mut self, plane: &str, stamp: AcceptStamp, token: Arc<VerifiedToken>, bytes: usize) {
        if self.planes.get(plane).is_some_and(|of| of.stamp != stamp) {
            self.drop_plane(plane);
        }
        let plane = Str::from(plane);
        let of_plane = self.planes.entry(plane.clone()).or_insert_with(|| OfPlane {
            stamp,
            tokens: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        });
        let digest = token.digest;
        let entry = Entry {
            token,
            bytes,
            is_used: AtomicBool::new(false),
        };
        if of_plane.tokens.insert(digest, entry).is_some() {
            return;
        }
        of_plane.order.push_back(digest);
        let before = of_plane.bytes;
        of_plane.bytes += bytes;
        let after = of_plane.bytes;
        self.bytes += bytes;
        self.by_bytes.remove(&(before, plane.clone()));
        self.by_bytes.insert((after, plane));
    }

    fn drop_plane(&mut self, plane: &str) {
        if let Some(of_plane) = self.planes.remove(plane) {
            self.bytes -= of_plane.bytes;
            self.by_bytes.remove(&(of_plane.bytes, plane.into()));
        }
    }

    /// Drops entries of the plane that has most, until all fit.
    fn evict(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some((before, plane)) = self.by_bytes.pop_last() else {
                return;
            };
            let Some(of_plane) = self.planes.get_mut(&plane) else {
                continue;
            };
            let freed = of_plane.evict_one();
            self.bytes -= freed;
            if of_plane.tokens.is_empty() {
                self.planes.remove(&plane);
            } else {
                self.by_bytes.insert((before - freed, plane));
            }
        }
    }
}

impl OfPlane {
    /// Drops the entry that was not read for longest, about, and returns its bytes.
    fn evict_one(&mut self) -> usize {
        while let Some(digest) = self.order.pop_front() {
            let Some(entry) = self.tokens.get(&digest) else {
                continue;
            };
            if entry.is_used.swap(false, Ordering::Relaxed) {
                self.order.push_back(digest);
                continue;
            }
            let bytes = entry.bytes;
            self.tokens.remove(&digest);
            self.bytes -= bytes;
            return bytes;
        }
        0
    }
}

/// Remembered refusals, in two sets: when the newer one is full it replaces the older.
#[derive(Debug, Default)]
struct Refused {
    newer: HashSet<(AcceptStamp, [u8; 32])>,
    older: HashSet<(AcceptStamp, [u8; 32])>,
}

impl Refused {
    fn knows(&self, key: &(AcceptStamp, [u8; 32])) -> bool {
        self.newer.contains(key) || self.older.contains(key)
    }

    fn insert(&mut self, key: (AcceptStamp, [u8; 32])) {
        if self.newer.len() >= REFUSED_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key);
    }
}
