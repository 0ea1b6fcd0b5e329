//! Watches the store while a server starts. A server starts with writes, so one whose store refuses
//! them ends with the reason instead of waiting in silence. Must not decide what happens to a server
//! that has started: it keeps serving reads.

use anyhow::anyhow;
use polyplane_storage::{Health, Store};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the store may refuse writes before the start ends. Less would end it while somebody makes
/// room on the disk; with more, nobody would learn why the server does not come up.
const REFUSES_MAX: Duration = Duration::from_secs(5);
/// How long ago the last refusal must be for the earlier ones to count no more. An embedded store
/// looks for room every second: it may call itself writable and then refuse the next write again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3);
/// Pause between two looks at the store. With a longer one, such a short refusal could be missed.
const LOOK: Duration = Duration::from_millis(100);

/// Carries out a step of the start.
///
/// # Errors
/// Returns the error of the step, or the reason of the store if it refuses writes for so long that
/// the step cannot be expected to end.
pub async fn while_writable<T>(
    store: &dyn Store,
    step: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        // The step first: one that has ended needs no further write.
        biased;
        done = step => done,
        reason = refused_for_long(store) => Err(anyhow!(
            "the server cannot start, because the store takes no writes: {reason}; free some space on its \
             disk and start again"
        )),
    }
}

/// Returns the reason once the store has refused writes for [`REFUSES_MAX`].
async fn refused_for_long(store: &dyn Store) -> String {
    let mut refusals = Refusals::default();
    loop {
        if let Some(reason) = refusals.note(Instant::now(), store.health()) {
            return reason;
        }
        sleep(LOOK).await;
    }
}

/// For how long a store has refused writes.
#[derive(Default)]
struct Refusals {
    /// The times of the first and of the last refusal; `None` if the store takes writes.
    seen: Option<(Instant, Instant)>,
}

impl Refusals {
    /// Notes the health of the store. Returns the reason if it has refused writes for too long.
    fn note(&mut self, now: Instant, health: Health) -> Option<String> {
        self.seen = self
            .seen
            .filter(|(_, last)| now.duration_since(*last) < FORGOTTEN_AFTER);
        let (Health::ReadOnly { reason } | Health::Failed { reason }) = health else {
            return None;
        };
        let (first, _) = self.seen.unwrap_or((now, now));
        self.seen = Some((first, now));
        (now.duration_since(first) >= REFUSES_MAX).then_some(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the second in which the start ends, if the store refuses writes in these seconds of ten.
    fn ends_at(refuses: impl Fn(u64) -> bool) -> Option<u64> {
        let mut refusals = Refusals::default();
        let began = Instant::now();
        (0..10).find(|second| {
            let health = match refuses(*second) {
                true => Health::ReadOnly {
                    reason: "no space".to_owned(),
                },
                false => Health::Ok,
            };
            let ended = refusals.note(began + Duration::from_secs(*second), health);
            ended.is_some_and(|reason| reason == "no space")
        })
    }

    #[test]
    fn a_start_ends_once_its_store_has_refused_writes_for_long() {
        assert_eq!(ends_at(|_| false), None);
        assert_eq!(ends_at(|_| true), Some(5));
        assert_eq!(ends_at(|second| second >= 2), Some(7));
        // It calls itself writable in between.
        assert_eq!(ends_at(|second| second % 2 == 0), Some(6));
        // Somebody has made room.
        assert_eq!(ends_at(|second| second < 4), None);
        assert_eq!(ends_at(|second| second < 4 || second == 8), None);
    }
}
