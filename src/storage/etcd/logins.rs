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

/// The logins with one pair of name and password at one member: one at a time, and for all who want one.
#[derive(Default)]
pub(super) struct Logins(Mutex<Option<Login>>);

/// The last login.
struct Login {
    ended: Instant,
    outcome: Result<(), Fault>,
}

impl Login {
    /// Returns whether this login also is the answer to a request that was made at `asked`: it has ended
    /// since, or the credentials were refused just now.
    fn answers(&self, asked: Instant, now: Instant) -> bool {
        match &self.outcome {
            Ok(()) => self.ended >= asked,
            Err(Fault::LoginWrong(_)) => now.duration_since(self.ended) < REFUSED_PAUSE,
            Err(_) => false,
        }
    }
}

impl Logins {
    /// Logs in by `attempt`, unless another request has just done so.
    ///
    /// # Cancel safety
    /// A login that is cancelled is forgotten: the next request attempts one.
    pub(super) async fn log_in(
        &self,
        attempt: impl Future<Output = Result<(), Fault>>,
    ) -> Result<(), Fault> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some(login) = &*last
            && login.answers(asked, Instant::now())
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
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn requests_at_one_time_share_a_login() {
        let (logins, attempts) = (Logins::default(), AtomicUsize::new(0));
        let log_in = || {
            logins.log_in(async {
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
}
