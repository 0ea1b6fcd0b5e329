//! The wait for a store that does not answer yet. This module decides for which errors a replica
//! waits, how often it tries the store, and how often it logs that.
//!
//! A replica waits for problems that pass by themselves: etcd members that do not answer, an
//! election, a full quota. A problem that somebody has to fix (an invalid address, a certificate
//! that is not trusted, a wrong password, an etcd that is too old) ends the process with an error.

use parking_lot::Mutex;
use polyplane_sealing::KmsError;
use polyplane_storage::{CommitError, ReadError, Rejection, Store};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The first pause before the replica tries the store again. Each further one is twice as long, so
/// that a store that starts is not flooded.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest pause. A replica notices at most this much later that the store is back.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// The longest time between two lines in the log. Without it, the doubling pause would make the log
/// fall silent.
const LOG_EVERY_MAX: Duration = Duration::from_secs(60);

/// The wait for a store, and then for the ring: its start, and the last reason why it continues.
pub struct StoreWait {
    since: Instant,
    /// The store, once it is opened.
    store: OnceLock<Arc<dyn Store>>,
    state: Mutex<WaitState>,
}

#[derive(Default)]
struct WaitState {
    /// The last error; `None` while nothing has failed.
    reason: Option<String>,
    /// The reason why the replica does not join the ring, although the store answers.
    held_back: Option<String>,
    /// The next time at which the reason is logged. The pause `log_every` doubles, so that a long
    /// wait does not fill the log.
    log_at: Option<Instant>,
    log_every: Duration,
}

impl Default for StoreWait {
    /// Creates a wait that begins now.
    fn default() -> Self {
        Self {
            since: Instant::now(),
            store: OnceLock::new(),
            state: Mutex::default(),
        }
    }
}

impl StoreWait {
    /// Repeats `attempt` until it succeeds or fails for good.
    ///
    /// # Errors
    /// Returns the first error that does not pass by itself.
    pub async fn out<T>(&self, attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut pause = PAUSE_FIRST;
        loop {
            match attempt().await {
                Err(error) => match passes(&error) {
                    Some(awaited) => self.note(awaited, format!("{error:#}")),
                    None => return Err(error),
                },
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Records that the store is opened, so that its state can be reported before the replica serves.
    pub fn record_store(&self, store: &Arc<dyn Store>) {
        // A second store would be a mistake of the caller, and does no harm.
        let _ = self.store.set(Arc::clone(store));
    }

    /// Returns the store, if it is opened.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.get()
    }

    /// Returns why the replica waits; `None` while nothing has failed.
    pub fn reason(&self) -> Option<String> {
        self.state.lock().reason.clone()
    }

    /// Records why the replica does not join the ring although the store answers, or that nothing
    /// keeps it from joining.
    pub fn record_join_problem(&self, reason: Option<String>) {
        self.state.lock().held_back = reason;
    }

    /// Returns why the replica does not join the ring although the store answers.
    pub fn join_problem(&self) -> Option<String> {
        self.state.lock().held_back.clone()
    }

    fn note(&self, awaited: &str, reason: String) {
        let remedy = self.store().and_then(|store| store.remedy());
        let reason = match remedy {
            Some(remedy) => format!("{reason}; {remedy}"),
            None => reason,
        };
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.log_at.is_none_or(|at| at <= now) {
            state.log_every = (state.log_every * 2).clamp(Duration::from_secs(1), LOG_EVERY_MAX);
            state.log_at = Some(now + state.log_every);
            tracing::warn!(
                seconds = self.since.elapsed().as_secs(),
                "waiting for {awaited}; /livez succeeds, /readyz fails: {reason}"
            );
        }
        state.reason = Some(reason);
    }
}

/// Returns what to wait for if an error passes by itself.
fn passes(error: &anyhow::Error) -> Option<&'static str> {
    let of_service = error.chain().any(|cause| {
        let failed = cause.downcast_ref();
        failed.is_some_and(|failed| matches!(failed, KmsError::Unavailable { .. }))
    });
    if of_service {
        return Some("the key management service");
    }
    let of_store = error.chain().any(|cause| {
        let opened = cause
            .downcast_ref()
            .map(|open| matches!(open, polyplane_storage::OpenError::Unreachable { .. }));
        let read = cause
            .downcast_ref()
            .map(|read| matches!(read, ReadError::Unavailable(_)));
        let committed = cause.downcast_ref().map(|commit| {
            matches!(
                commit,
                CommitError::Unknown(_)
                    | CommitError::Undisclosed(..)
                    | CommitError::Rejected(Rejection::NoSpace(_) | Rejection::ReadOnly(_))
            )
        });
        opened.or(read).or(committed).unwrap_or(false)
    });
    of_store.then_some("the store")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use polyplane_storage::{FaultyStore, MemoryOptions, MemoryStore, Op, OpenError, Txn};
    use std::cell::Cell;

    #[test]
    fn what_somebody_has_to_set_right_is_not_waited_for() {
        let reason = || "why".to_owned();
        let refused = OpenError::Refused {
            endpoint: reason(),
            reason: reason(),
        };
        for (error, waits) in [
            (
                anyhow::Error::from(OpenError::Unreachable { reason: reason() }),
                true,
            ),
            (OpenError::Untrusted { reason: reason() }.into(), false),
            (OpenError::Login { reason: reason() }.into(), false),
            (OpenError::Options { reason: reason() }.into(), false),
            (refused.into(), false),
            (ReadError::Unavailable(reason()).into(), true),
            (ReadError::Corrupt(reason()).into(), false),
            (CommitError::Unknown(reason()).into(), true),
            (
                CommitError::Rejected(Rejection::NoSpace(reason())).into(),
                true,
            ),
            (CommitError::Rejected(Rejection::Closed).into(), false),
            (anyhow::anyhow!("--store is none"), false),
            (
                KmsError::Unavailable {
                    name: reason(),
                    reason: reason(),
                }
                .into(),
                true,
            ),
            (
                KmsError::Wrong {
                    name: reason(),
                    reason: reason(),
                }
                .into(),
                false,
            ),
        ] {
            let error = error.context("the store cannot be used");
            assert_eq!(passes(&error).is_some(), waits, "{error:#}");
        }
    }

    #[tokio::test]
    async fn the_reason_names_what_to_do_if_the_store_knows_it() {
        let memory = MemoryStore::new(MemoryOptions::default());
        let faulty = Arc::new(FaultyStore::new(Arc::new(memory)));
        let store: Arc<dyn Store> = faulty.clone();
        let wait = StoreWait::default();
        assert!(wait.store().is_none());
        wait.record_store(&store);
        faulty.plan().raise_alarm();
        let tries = Cell::new(0);
        let step = async || {
            tries.set(tries.get() + 1);
            if tries.get() > 1 {
                faulty.plan().free();
            }
            let put = Op::Put {
                key: "k".into(),
                value: "v".into(),
                lease: None,
            };
            let txn = Txn {
                compares: Vec::new(),
                ops: vec![put],
            };
            store.commit(txn).await.context("cannot put")
        };
        wait.out(step).await.expect("there is space");
        let reason = wait.reason().expect("it waited");
        assert!(
            reason.contains("no space") && reason.ends_with("; disarm the alarm by plan"),
            "{reason}"
        );
    }

    #[tokio::test]
    async fn a_step_is_repeated_until_the_store_answers_or_never_will() {
        let wait = StoreWait::default();
        let tries = Cell::new(0);
        let away = || ReadError::Unavailable("no leader".to_owned());
        let step = async || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 => Err(away()).context("cannot read"),
                _ => Ok("here"),
            }
        };
        assert!(wait.reason().is_none());
        assert_eq!(wait.out(step).await.expect("it comes"), "here");
        let reason = wait.reason().expect("it waited");
        assert!(
            reason.contains("cannot read") && reason.contains("no leader"),
            "{reason}"
        );
        let never: anyhow::Result<()> = wait.out(async || anyhow::bail!("a wrong password")).await;
        assert_eq!(never.expect_err("it ends").to_string(), "a wrong password");
    }
}
