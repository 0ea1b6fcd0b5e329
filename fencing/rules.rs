//! The protocol's rules by name. In a serving binary every rule holds and [`Rules`] is empty; with
//! the feature `model` a checker can take one out and must then find the hole it closes.

/// One rule of the protocol. A number is that of the rule in PROTOCOL.md it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A commit compares the plane's fence (F3).
    CommitComparesFence,
    /// A commit compares the own member key (9).
    CommitComparesOwnMember,
    /// An acquire compares the fence it saw.
    AcquireComparesFence,
    /// An acquire compares the taker's own member key (7).
    AcquireComparesOwnMember,
    /// A takeover names the incarnation that is gone, not only the replica (5a).
    TakeoverNamesIncarnation,
    /// A member read must find the own incarnation, not only the own name (5b).
    ProofNamesIncarnation,
    /// A peer's view says that a life is over only if it is newer than that life.
    PeerViewIsNewerThanLife,
    /// A proof counts from when it was sent.
    ProofCountsFromSending,
    /// A replica that takes a fence from a dead holder serves only after R has passed.
    TakeoverWaits,
    /// ... and the margin.
    TakeoverWaitsMargin,
    /// A replica that adopts its own fence waits as after a takeover (7b).
    AdoptionWaits,
    /// A replica that finds its own incarnation in a fence without a tenure adopts it (17).
    OwnFenceIsAdopted,
    /// Released is not sent before the own wait is over (7a).
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
    /// ... and only at exactly the head it names (6).
    StreamAtReleasedHead,
    /// A plane that the store refused too often is probed, whether or not a client writes.
    ReadOnlyIsProbed,
    /// What a task has begun and not ended, the next one that wants anything of the plane drives on.
    BegunIsDrivenOn,
    /// Of a batch whose barrier was refused, the history is read first and then since when the fence
    /// is another's.
    HistoryBeforeSuperseded,
    /// Joining compares the record of the lease terms that was read (8).
    JoinComparesTerms,
    /// While terms change, answers go by the shorter read lease (8).
    ChangeAnswersByShorter,
    /// While terms change, takers wait out the longer one (8).
    ChangeWaitsByLonger,
    /// The next terms become the current ones only when every member goes by both (8).
    ChangeNeedsAll,
    /// ... as seen in a view that is not older than the change (8).
    ChangeNeedsNewView,
    /// ... and the longer wait has passed since: a replica that died before answers no more (8).
    ChangeOutwaitsTheDead,
    /// What a bookmark may name is read before the tenure is looked at.
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

/// The rules in force: all of them, unless a model checker says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    #[cfg(feature = "model")]
    without: Option<Rule>,
}

impl Rules {
    /// All rules but this one.
    #[cfg(feature = "model")]
    pub fn without(rule: Rule) -> Self {
        Self {
            without: Some(rule),
        }
    }

    /// Whether the rule is in force.
    #[cfg(feature = "model")]
    pub fn keep(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Whether the rule is in force: always.
    #[cfg(not(feature = "model"))]
    pub const fn keep(self, _rule: Rule) -> bool {
        true
    }
}
