//! The protocol's rules by name. In a serving binary every rule holds and [`Rules`] is empty. With
//! the feature `model` a checker can take one rule out, and must then find the violation that the
//! rule prevents.

/// One rule of the protocol. The number behind each is that of the rule in PROTOCOL.md to which it
/// belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A commit compares the plane's fence (F3).
    CommitComparesFence,
    /// A commit compares this replica's member key (9).
    CommitComparesOwnMember,
    /// An acquire compares the fence that was read.
    AcquireComparesFence,
    /// An acquire compares the taker's own member key (7).
    AcquireComparesOwnMember,
    /// A takeover names the incarnation that is gone, not only the replica (5a).
    TakeoverNamesIncarnation,
    /// A member read must find this incarnation, not only this replica's name (5b).
    ProofNamesIncarnation,
    /// A peer's view proves the end of a life only if it is newer than that life.
    PeerViewIsNewerThanLife,
    /// A proof counts from the time at which it was sent.
    ProofCountsFromSending,
    /// A replica that takes a fence from a dead holder serves only after R has passed.
    TakeoverWaits,
    /// A replica that takes a fence from a dead holder also waits out the margin.
    TakeoverWaitsMargin,
    /// A replica that adopts its own fence waits as after a takeover (7b).
    AdoptionWaits,
    /// A replica that finds its own incarnation in a fence without a tenure adopts it (17).
    OwnFenceIsAdopted,
    /// Released is not sent before this replica's own wait is over (7a).
    ReleaseAfterWait,
    /// The tenure ends before Released is sent (3, F7).
    TenureEndsBeforeReleased,
    /// An answer needs the plane's tenure (3).
    AnswerNeedsTenure,
    /// An answer needs the replica's read lease.
    AnswerNeedsLease,
    /// An unknown commit is settled by a write (1, F6).
    CommitSettledByWrite,
    /// An unknown Released is settled by a write (2).
    ReleaseSettledByWrite,
    /// Streamed state is used only when the fence was taken from Released (6).
    StreamOnlyFromReleased,
    /// Streamed state is used only at exactly the head that Released names (6).
    StreamAtReleasedHead,
    /// A plane that the store has refused too often is probed, whether or not a client writes.
    ReadOnlyIsProbed,
    /// If a task has begun something and died, the next task that needs the plane completes it.
    BegunIsDrivenOn,
    /// For a batch whose barrier was refused, the history is read first, and then the revision
    /// since which another replica has held the fence.
    HistoryBeforeSuperseded,
    /// Joining compares the record of the lease terms that the newcomer has read (8).
    JoinComparesTerms,
    /// While terms change, answers use the shorter read lease (8).
    ChangeAnswersByShorter,
    /// While terms change, takers wait out the longer one (8).
    ChangeWaitsByLonger,
    /// The next terms become the current ones only when every member follows both (8).
    ChangeNeedsAll,
    /// That every member follows both must be seen in a view that is not older than the change (8).
    ChangeNeedsNewView,
    /// The longer wait must have passed since: a replica that died before then answers no more (8).
    ChangeOutwaitsTheDead,
    /// The revision that a bookmark may name is read before the tenure is checked.
    BookmarkBeforeTenure,
    /// The publisher of a write notifies its observers, whether or not the caller still waits.
    PublisherTellsObservers,
}

impl Rule {
    /// Every rule, for a test that takes each of them out.
    pub const ALL: [Rule; 31] = [
        Rule::CommitComparesFence,
        Rule::CommitComparesOwnMember,
        Rule::AcquireComparesFence,
        Rule::AcquireComparesOwnMember,
        Rule::TakeoverNamesIncarnation,
        Rule::ProofNamesIncarnation,
        Rule::PeerViewIsNewerThanLife,
        Rule::ProofCountsFromSending,
        Rule::TakeoverWaits,
        Rule::TakeoverWaitsMargin,
        Rule::AdoptionWaits,
        Rule::OwnFenceIsAdopted,
        Rule::ReleaseAfterWait,
        Rule::TenureEndsBeforeReleased,
        Rule::AnswerNeedsTenure,
        Rule::AnswerNeedsLease,
        Rule::CommitSettledByWrite,
        Rule::ReleaseSettledByWrite,
        Rule::StreamOnlyFromReleased,
        Rule::StreamAtReleasedHead,
        Rule::ReadOnlyIsProbed,
        Rule::BegunIsDrivenOn,
        Rule::HistoryBeforeSuperseded,
        Rule::JoinComparesTerms,
        Rule::ChangeAnswersByShorter,
        Rule::ChangeWaitsByLonger,
        Rule::ChangeNeedsAll,
        Rule::ChangeNeedsNewView,
        Rule::ChangeOutwaitsTheDead,
        Rule::BookmarkBeforeTenure,
        Rule::PublisherTellsObservers,
    ];
}

/// The rules in force: all of them, unless a model checker takes one out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    #[cfg(feature = "model")]
    without: Option<Rule>,
}

impl Rules {
    /// Returns all rules but this one.
    #[cfg(feature = "model")]
    pub fn without(rule: Rule) -> Self {
        Self {
            without: Some(rule),
        }
    }

    /// Returns whether the rule is in force.
    #[cfg(feature = "model")]
    pub fn keep(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Returns true: in this build every rule is in force.
    #[cfg(not(feature = "model"))]
    pub const fn keep(self, _rule: Rule) -> bool {
        true
    }
}
