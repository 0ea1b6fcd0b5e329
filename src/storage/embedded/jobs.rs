//! The requests of callers to the writer of an embedded store, and the answers to them.

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::embedded::space::Shortage;
use crate::embedded::state::StoreState;
use crate::error::{CommitError, OpenError, ReadError, Rejection};
use crate::store::{Committed, Health, LeaseId, Revision, Txn};
use crate::watch::{StoreWatch, WatchSender};

/// The channel on which a transaction's caller waits for its result.
pub(crate) type CommitReply = oneshot::Sender<Result<Committed, CommitError>>;

/// The work of a job.
pub(crate) enum Work {
    Txn(Txn),
    EndLease(LeaseId),
}

/// One transaction in the queue.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) reply: Option<CommitReply>,
    /// Its share of the queue's limit, which is freed when the job is answered.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// A watch with its sender and the revision from which on the sender gets events.
pub(crate) type Registered = (StoreWatch, WatchSender, Revision);

/// A request to the writer.
pub(crate) enum Command {
    Commit(Job),
    Compact {
        below: Revision,
        reply: oneshot::Sender<Result<(), ReadError>>,
    },
    Watch {
        start: Bytes,
        end: Bytes,
        after: Revision,
        reply: oneshot::Sender<Result<Registered, ReadError>>,
    },
    /// A read has found the engine broken.
    Broken {
        opening: u64,
        why: String,
        reply: oneshot::Sender<Result<(), ReadError>>,
    },
    /// Every watch is to report its progress.
    Progress,
    /// A lease was granted, so the next deadline must be computed again.
    Wake,
    Close(oneshot::Sender<()>),
}

/// The results of a group's jobs, kept until it is known what became of the group.
#[derive(Default)]
pub(crate) struct Answers(Vec<(Job, Result<Committed, CommitError>)>);

impl Answers {
    pub(crate) fn push(&mut self, job: Job, result: Result<Committed, CommitError>) {
        self.0.push((job, result));
    }

    /// Answers every caller with the result of its own job.
    pub(crate) fn send(self) {
        for (job, result) in self.0 {
            send(job, result);
        }
    }

    /// Answers every caller that nothing was applied.
    pub(crate) fn reject(self, rejection: &Rejection) {
        reject(self.0.into_iter().map(|(job, _)| job), rejection);
    }

    /// Answers every caller that the outcome is unknown.
    pub(crate) fn unknown(self, text: &str) {
        for (job, _) in self.0 {
            send(job, Err(CommitError::Unknown(text.to_owned())));
        }
    }
}

/// Answers the callers of a group whose write failed and which is not in what opening the engine again has
/// found, and notes the store's health. `is_as_before` says whether that is what was there before the group;
/// `full` is the shortage of space that was found.
pub(crate) fn answer_failed<E>(
    shared: &StoreState<E>,
    answers: Answers,
    error: &str,
    opened: Result<bool, OpenError>,
    full: Option<&Shortage>,
) {
    match opened {
        Ok(is_as_before) if is_as_before => {
            let rejection = match full {
                Some(shortage) => Rejection::NoSpace(shortage.to_string()),
                None => Rejection::ReadOnly(error.to_owned()),
            };
            let reason = rejection.to_string();
            shared.set_health(Health::ReadOnly { reason });
            answers.reject(&rejection);
        }
        Ok(_) => answers.unknown(error),
        Err(open_error) => {
            let reason = format!("{error}; opening again: {open_error}");
            shared.set_health(Health::Failed {
                reason: reason.clone(),
            });
            answers.unknown(&reason);
        }
    }
}

/// Answers the callers of jobs that nothing was applied.
pub(crate) fn reject(jobs: impl IntoIterator<Item = Job>, rejection: &Rejection) {
    for job in jobs {
        send(job, Err(CommitError::Rejected(rejection.clone())));
    }
}

/// Answers the caller of a job.
fn send(job: Job, result: Result<Committed, CommitError>) {
    let Some(reply) = job.reply else { return };
    // The room in the queue is freed before the answer, because the caller may send its next
    // transaction at once.
    drop(job.permit);
    let _ = reply.send(result);
}
