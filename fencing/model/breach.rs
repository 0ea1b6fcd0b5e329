//! The violations that must never happen, by invariant.

/// An invariant that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Breach {
    /// F2: an epoch fell, or did not rise with the holder.
    EpochFell,
    /// F3: the store applied a write of an epoch that is not the current one.
    OldEpochWrote,
    /// F4: the store applied a write of a holder whose member key is deleted.
    DeadWrote,
    /// F4: an answer was sent later than R after the member key was deleted.
    AnswerOfTheDead,
    /// F8: a life was ended whose member key still exists.
    EndedAlive,
    /// F5: an answer lacks a write that was acknowledged or seen before its request arrived.
    StaleRead,
    /// F5: a tenure began with a state that lacks an acknowledged write.
    StaleLoad,
    /// F5: an acknowledged write is not in the store.
    AcknowledgedButLost,
    /// F6: a caller got the answer that its write was not applied, although it had been.
    DeniedButDone,
    /// F6: a write was applied after its caller got the answer that it was not.
    DeniedThenDone,
    /// F6: a write was settled as not applied, and later as applied.
    SettledTwice,
    /// F7: Released was sent under an open tenure.
    ReleasedUnderTenure,
    /// W1: a bookmark names a revision, but a write before it was not delivered to the watcher.
    BookmarkBeyondTold,
    /// A write was published without notifying the observers.
    UntoldObservers,
    /// A write was acknowledged to its caller that is not in the store.
    NeverHappened,
}
