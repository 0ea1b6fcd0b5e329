//! How often this client logs in at one member. etcd computes a slow hash of the password each time: a
//! user whose password was changed would take its CPU from everybody else if each call tried again.
//!
//! Must not know connections.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::reply::Fault;

/// The time for which a refused login is not tried again with the same credentials. With less, a few
/// replicas with an old password would take a core of etcd; with more, a password that etcd learns late
/// would be noticed later.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The time after a login in which a denied call is no reason for another: the token is new, so the
/// user may not do this. With less, a role without a permission that a replica needs would take CPU
/// from etcd at each call.
const DENIED_PAUSE: Duration = Duration::from_secs(10);

/// The logins with one pair of name and password at one member: one at a time, and for all who want one.
#[derive(Default)]
pub(super) struct Logins(Mutex<Option<Login>>);

/// The last login.
struct Login {
    ended: Instant,
    outcome: Result<(), Fault>,
}

impl Login {
    /// Returns whether this login also is the answer to a call that was sent at `sent`: it has ended
    /// since, or the credentials were refused just now.
    fn answers(&self, sent: Instant, now: Instant) -> bool {
        match &self.outcome {
            Ok(()) | Err(Fault::AuthOff) => self.ended >= sent,
            Err(Fault::LoginWrong(_)) => now.duration_since(self.ended) < REFUSED_PAUSE,
            Err(_) => false,
        }
    }

    /// Returns whether a call that was sent at `sent` had a new token from this login.
    fn is_new_for(&self, sent: Instant) -> bool {
        let age = sent.checked_duration_since(self.ended);
        self.outcome.is_ok() && age.is_some_and(|age| age < DENIED_PAUSE)
    }
}

impl Logins {
    /// Logs in by `attempt`, unless another call has done so since `sent`, when the call was sent that
    /// needs the login.
    ///
    /// # Cancel safety
    /// A login that is cancelled is forgotten: the next request attempts one.
    pub(super) async fn log_in(
        &self,
        sent: Instant,
        attempt: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let mut last = self.0.lock().await;
        if let Some(login) = &*last
            && login.answers(sent, Instant::now())
        {
            return login.outcome.clone();
        }
        let outcome = attempt.await;
        *last = Some(Login {
            ended: Instant::now(),
            outcome: outcome.clone(),
        });
        outcome
    }

    /// Returns whether a call that was sent at `sent` had a token so new that another cannot help it.
    pub(super) async fn are_new_for(&self, sent: Instant) -> bool {
        let last = self.0.lock().await;
        last.as_ref().is_some_and(|login| login.is_new_for(sent))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn requests_at_one_time_share_a_login() {
        let (logins, attempts) = (Logins::default(), AtomicUsize::new(0));
        let log_in = || {
            logins.log_in(Instant::now(), async {
                attempts.fetch_add(1, Ordering::Relaxed);
                // The other requests wait meanwhile.
                tokio::task::yield_now().await;
                Ok(())
            })
        };
        let all = tokio::join!(log_in(), log_in(), log_in());
        assert_eq!(all, (Ok(()), Ok(()), Ok(())));
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn only_a_refused_password_is_not_tried_again_at_once() {
        let ended = Instant::now();
        let answers = |outcome: Result<(), Fault>, later: Duration| {
            let now = ended + later;
            Login { ended, outcome }.answers(now, now)
        };
        let soon = REFUSED_PAUSE - Duration::from_millis(1);
        let wrong = || Err(Fault::LoginWrong("wrong".to_owned()));
        assert!(answers(wrong(), soon));
        assert!(!answers(wrong(), REFUSED_PAUSE));
        assert!(!answers(Ok(()), soon), "the token is not known any more");
        assert!(!answers(Err(Fault::Unavailable("away".to_owned())), soon));
    }

    #[tokio::test]
    async fn a_call_denied_with_a_new_token_is_no_reason_to_log_in_again() {
        let logins = Logins::default();
        let before = Instant::now();
        assert!(!logins.are_new_for(before).await, "nobody has logged in");
        let off = logins.log_in(before, async { Err(Fault::AuthOff) }).await;
        assert_eq!(off, Err(Fault::AuthOff));
        assert!(!logins.are_new_for(Instant::now()).await, "no token");
        let on = logins.log_in(Instant::now(), async { Ok(()) }).await;
        assert_eq!(on, Ok(()));
        assert!(!logins.are_new_for(before).await, "an old token");
        let after = Instant::now();
        assert!(logins.are_new_for(after).await);
        assert!(!logins.are_new_for(after + DENIED_PAUSE).await);
    }
}
