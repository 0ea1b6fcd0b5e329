//! The verdicts of CAs on the chain of a client, cached while they hold.
//!
//! Each CA judges a chain once, whether it accepts or refuses the chain: verifying a hostile chain
//! is expensive, and a refused client may send any number of requests.
//!
//! Invariant: no chain is verified under the lock, so other requests do not wait.

use std::time::SystemTime;

use parking_lot::Mutex;
use polyplane_auth::ChainIdentity;

/// Verdicts kept for one chain. A client rarely uses planes of more CAs; if it does, the oldest
/// verdict is dropped and judged again.
const VERDICTS_MAX: usize = 64;

/// The verdicts on one chain.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    known: Mutex<Vec<Verdict>>,
}

#[derive(Debug)]
struct Verdict {
    /// The CA's fingerprint.
    ca: [u8; 32],
    identity: ChainIdentity,
}

impl Verdicts {
    /// Returns the verdict of a CA at `now`: the cached one if it still holds, or that of `identify`.
    pub(crate) fn of(
        &self,
        ca: &[u8; 32],
        now: SystemTime,
        identify: impl FnOnce() -> ChainIdentity,
    ) -> ChainIdentity {
        {
            let known = self.known.lock();
            let mut known = known.iter().filter(|verdict| verdict.ca == *ca);
            if let Some(verdict) = known.find(|verdict| verdict.identity.holds_at(now)) {
                return verdict.identity.clone();
            }
        }
        // Concurrent requests may each verify the chain, at most one per thread of the process.
        let identity = identify();
        let mut known = self.known.lock();
        known.retain(|verdict| verdict.ca != *ca);
        if known.len() >= VERDICTS_MAX {
            known.remove(0);
        }
        known.push(Verdict {
            ca: *ca,
            identity: identity.clone(),
        });
        identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::{CertificateFault, Denied, UserInfo};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn denied(until: Option<SystemTime>) -> ChainIdentity {
        ChainIdentity {
            user: Err(Denied::Certificate(CertificateFault::NoCommonName)),
            until,
        }
    }

    fn known() -> ChainIdentity {
        panic!("the verdict is known")
    }

    #[test]
    fn a_denial_is_kept_like_a_proof_until_a_date_in_the_chain() {
        let verdicts = Verdicts::default();
        let user = ChainIdentity {
            user: Ok(Arc::new(UserInfo::new("jane", &["dev"]))),
            until: Some(at(100)),
        };
        assert_eq!(verdicts.of(&[1; 32], at(5), || user.clone()), user);
        let no = denied(Some(at(50)));
        assert_eq!(verdicts.of(&[2; 32], at(5), || no.clone()), no);
        assert_eq!(verdicts.of(&[1; 32], at(99), known), user);
        assert_eq!(verdicts.of(&[2; 32], at(49), known), no);
        // From then on a CA may find otherwise.
        let never = denied(None);
        assert_eq!(verdicts.of(&[2; 32], at(50), || user.clone()), user);
        assert_eq!(verdicts.of(&[1; 32], at(100), || never.clone()), never);
        assert_eq!(verdicts.of(&[1; 32], at(1 << 40), known), never);
    }

    #[test]
    fn a_verdict_is_asked_for_while_another_is_found() {
        let verdicts = Arc::new(Verdicts::default());
        verdicts.of(&[1; 32], at(5), || denied(None));
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let judging = {
            let verdicts = Arc::clone(&verdicts);
            std::thread::spawn(move || {
                verdicts.of(&[2; 32], at(5), || {
                    begun.send(()).expect("somebody waits");
                    ends.recv().expect("somebody ends it");
                    denied(None)
                })
            })
        };
        begins.recv().expect("it begins");
        // The lock is free while a CA judges: otherwise other requests would wait.
        assert!(verdicts.known.try_lock().is_some());
        verdicts.of(&[1; 32], at(5), known);
        end.send(()).expect("it waits");
        judging.join().expect("no panic");
        verdicts.of(&[2; 32], at(5), known);
    }

    #[test]
    fn verdicts_are_bounded() {
        let verdicts = Verdicts::default();
        for ca in 0..=u8::MAX {
            verdicts.of(&[ca; 32], at(5), || denied(None));
        }
        assert_eq!(verdicts.known.lock().len(), VERDICTS_MAX);
        verdicts.of(&[u8::MAX; 32], at(5), known);
    }
}
