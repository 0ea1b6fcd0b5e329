//! The end of a plane's time here, and the pause before it: hand-off, sleep, loss, deletion.
//!
//! Invariant: whoever waits for a write is told the truth. `Lost` means that nothing of it was done
//! and nothing will be.

use std::sync::Arc;

use polyplane_storage::Revision;
use tokio::time::{Instant, timeout_at};

use crate::history::watch::Ended;
use crate::plane::Plane;
use crate::write::claim::SubmitError;
use crate::write::settle::answer_all;

/// Why a plane is not paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    /// What was under way is not settled yet. The plane goes on.
    #[error("a write is still under way")]
    Deadline,
    /// The plane has ended.
    #[error("the control plane has ended here")]
    Ended(Ended),
}

impl Plane {
    /// The revision of the newest commit that is published; of a plane that follows external writes
    /// the revision up to which they are. What Released names, if the plane is paused.
    #[must_use]
    pub fn head(&self) -> Revision {
        self.published().head.revision(self.base())
    }

    /// Sends nothing to the store any more, and waits until what was sent is settled. Writes that
    /// are queued or come later wait for [`Self::resume`]. Answers from memory go on. Returns the
    /// head, which stays until then.
    ///
    /// # Errors
    /// See [`PauseError`].
    ///
    /// # Cancel safety
    /// A dropped call leaves the plane paused; [`Self::resume`] is safe at any time.
    pub async fn pause(self: &Arc<Self>, deadline: Instant) -> Result<Revision, PauseError> {
        self.guard().pause();
        loop {
            let changed = self.change();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let sequencer = self.sequencer().lock();
                if let Some(ended) = sequencer.ended() {
                    return Err(PauseError::Ended(ended));
                }
                if sequencer.is_settled() {
                    break;
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                self.resume();
                return Err(PauseError::Deadline);
            }
        }
        if let Some(follow) = self.follow() {
            follow.wait_for_publisher();
        }
        Ok(self.head())
    }

    /// Ends a pause: writes are taken again, those that have waited first. Does nothing if the plane
    /// is not paused.
    pub fn resume(self: &Arc<Self>) {
        self.guard().resume();
        self.go_on();
    }

    /// Looks again at what waits for the fence's machine: call it whenever a step may have allowed
    /// what it had forbidden. Too often does no harm.
    pub fn go_on(self: &Arc<Self>) {
        let wakeup = self.sequencer().lock().go_on();
        self.resume_following();
        self.changed();
        self.wake(wakeup);
        self.wait_for_store();
    }

    /// Ends the plane at once, without waiting for the store. Writes that were not sent are told
    /// `Lost`; those under way hear what the store says of them, or `Deadline` where it does not.
    /// Watches end behind the last published event. The caller ends the guard first, so that
    /// nothing more is sent. The first end counts.
    pub fn end(self: &Arc<Self>, ended: Ended) {
        let unsent = self.sequencer().lock().end(ended, || self.published());
        answer_all(unsent, &SubmitError::Lost);
        if let Some((part, revision)) = self.follow().and_then(|follow| follow.stop()) {
            self.acknowledge(part, revision);
        }
        self.log().end(ended);
        self.changed();
    }

    /// Whether external writes wait too: the head has been told to somebody.
    pub(crate) fn is_held(&self) -> bool {
        self.guard().stands_still()
    }
}
