//! The end of a plane in this process, and the pause before it: hand-off, sleep, loss, deletion.
//!
//! Invariant: every caller of a write gets a true answer. `Lost` means that nothing of the write
//! was applied, and nothing will be.

use std::sync::Arc;

use polyplane_storage::Revision;
use tokio::time::{Instant, timeout_at};

use crate::history::watch::Ended;
use crate::plane::Plane;
use crate::write::prepared_write::SubmitError;
use crate::write::settle::answer_all;

/// The reason why a plane is not paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    /// A commit was not settled before the deadline. The pause is called off.
    #[error("a write is still under way")]
    Deadline,
    /// The plane has ended.
    #[error("the control plane has ended here")]
    Ended(Ended),
}

impl Plane {
    /// Returns the revision of the newest published commit, external writes included. Released
    /// names it if the plane is paused.
    #[must_use]
    pub fn head(&self) -> Revision {
        self.published().head.revision(self.base())
    }

    /// Stops sending to the store, and waits until every part that was sent is settled. Queued and
    /// new writes wait for [`Self::resume`]. Reads continue. Returns the head, which does not
    /// change before the resume.
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

    /// Ends a pause: sends the writes that have waited, and accepts new ones. Does nothing if the
    /// plane is not paused.
    pub fn resume(self: &Arc<Self>) {
        self.guard().resume();
        self.permits_changed();
    }

    /// Resumes everything that waits for permission of the fence's machine. Call this after every
    /// step of the machine that may have granted a permission; an unnecessary call does no harm.
    pub fn permits_changed(self: &Arc<Self>) {
        let wakeup = self.sequencer().lock().permits_changed();
        self.resume_following();
        self.changed();
        self.wake_committer(wakeup);
        self.wait_for_store();
    }

    /// Ends the plane at once, without waiting for the store. Writes that were not sent get `Lost`.
    /// Writes under way get the result of the store's reply, or `Deadline` if the store does not
    /// reply. Watches end after the last published event. The caller ends the guard first, so that
    /// nothing more is sent. A second call does nothing.
    pub fn end(self: &Arc<Self>, ended: Ended) {
        let unsent = self.sequencer().lock().end(ended, || self.published());
        answer_all(unsent, &SubmitError::Lost);
        if let Some((part, revision)) = self.follow().and_then(|follow| follow.stop()) {
            self.acknowledge(part, revision);
        }
        self.log().end(ended);
        self.changed();
    }

    /// Returns whether external writes must wait as well, because [`Self::pause`] has returned the
    /// head.
    pub(crate) fn is_held(&self) -> bool {
        self.guard().is_quiescent()
    }
}
