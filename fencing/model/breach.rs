//! What must never happen, by invariant.

/// An invariant that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Breach {
    /// F2: an epoch fell, or did not rise with the holder.
    EpochFell,
    /// F3: the store took a write of an epoch that is not the current one.
    OldEpochWrote,
    /// F4: the store took a write of a holder whose member key is gone.
    DeadWrote,
    /// F4: an answer left long after the member key was gone.
    AnswerOfTheDead,
    /// F8: a life was ended whose member key stands.
    EndedAlive,
    /// F5: an answer misses a write acknowledged or seen before its request came.
    StaleRead,
    /// F5: a tenure began with state that misses an acknowledged write.
    StaleLoad,
    /// F5: an acknowledged write is not in the store.
    AcknowledgedButLost,
    /// F6: a write that was called not done had been done.
    DeniedButDone,
    /// F6: a write that was called not done was done later.
    DeniedThenDone,
    /// F6: a write was called not done, and then done.
    SettledTwice,
    /// F7: Released left under an open tenure.
    ReleasedUnderTenure,
    /// W1: a bookmark names a revision before which a write stands that was not told.
    BookmarkBeyondTold,
    /// A published write that no reconciler is told of.
    UntoldObservers,
    /// A write was acknowledged to its caller that is not in the store.
    NeverHappened,
}
