//! A replica's right, on its own clock, to answer from memory. Owns the end of that right; must not
//! know planes: an answer also needs a plane's tenure, see [`crate::PlaneFence::answer`].

use crate::rules::{Rule, Rules};
use crate::time::{Duration, Time};

/// A proof that this incarnation lived: a linearizable read that found its member key, or an
/// acknowledged commit that compared the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Proof {
    /// The time at which the request was handed to the store's client, not that of its reply.
    pub sent: Time,
}

/// The answer to whether the replica may answer from memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseStatus {
    /// It may.
    Open,
    /// It is not certain: answers wait, planes stay, and the next proof resumes them (PROTOCOL 16).
    Lapsed,
    /// Never again: the replica's member key is lost.
    Over,
}

/// The read lease of one incarnation.
///
/// Safety: a replica that takes a fence from this incarnation waits R and a margin after it saw
/// that the member key is gone. The key was there when a proof was sent or later, so the lease ends
/// before that wait does, as long as clocks differ by less than the margin over R.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadLease {
    /// R, the length of the lease.
    length: Duration,
    rules: Rules,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Unproven,
    /// Running since this time, because of a proof that counts from it.
    From(Time),
    Over,
}

impl ReadLease {
    /// Creates a lease that still waits for its first proof.
    pub fn new(length: Duration, rules: Rules) -> Self {
        Self {
            length,
            rules,
            state: State::Unproven,
        }
    }

    /// Applies a proof. One that was sent earlier than the best known proof changes nothing.
    ///
    /// # Panics
    /// Panics if the proof claims to have been sent in the future.
    pub fn prove(&mut self, now: Time, proof: Proof) {
        assert!(
            proof.sent <= now,
            "F4: a proof cannot have been sent in the future"
        );
        let counted = match self.rules.keep(Rule::ProofCountsFromSending) {
            true => proof.sent,
            false => now,
        };
        self.state = match self.state {
            State::Unproven => State::From(counted),
            State::From(known) => State::From(known.max(counted)),
            State::Over => State::Over,
        };
    }

    /// Changes R, also for proofs that are already known: a shorter R may end the lease at once.
    pub fn set_length(&mut self, length: Duration) {
        self.length = length;
    }

    /// Returns R.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Ends the lease for good, because the member key was found deleted or another life's.
    pub fn end(&mut self) {
        self.state = State::Over;
    }

    /// Returns whether answers are allowed at the time `now`, which the caller reads from the clock
    /// for this very call.
    pub fn status(&self, now: Time) -> LeaseStatus {
        match self.state {
            State::Over => LeaseStatus::Over,
            State::From(sent) if now < sent + self.length => LeaseStatus::Open,
            State::From(_) if !self.rules.keep(Rule::AnswerNeedsLease) => LeaseStatus::Open,
            State::From(_) | State::Unproven => LeaseStatus::Lapsed,
        }
    }

    #[cfg(feature = "model")]
    pub(crate) fn proven_mut(&mut self) -> Option<&mut Time> {
        match &mut self.state {
            State::From(sent) => Some(sent),
            State::Unproven | State::Over => None,
        }
    }

    /// Returns the time at which the lease runs out without a further proof, for a metric or a
    /// lock-free copy.
    pub fn until(&self) -> Option<Time> {
        match self.state {
            State::From(sent) => Some(sent + self.length),
            State::Unproven | State::Over => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const R: Duration = Duration::from_nanos(10);

    #[test]
    fn a_lapsed_lease_resumes_and_an_ended_one_does_not() {
        let mut lease = ReadLease::new(R, Rules::default());
        let at = Time::from_nanos;
        assert_eq!(lease.status(at(0)), LeaseStatus::Lapsed);
        lease.prove(at(7), Proof { sent: at(5) });
        assert_eq!(lease.status(at(14)), LeaseStatus::Open);
        assert_eq!(lease.status(at(15)), LeaseStatus::Lapsed);
        lease.prove(at(30), Proof { sent: at(29) });
        assert_eq!(lease.status(at(30)), LeaseStatus::Open);
        lease.end();
        lease.prove(at(31), Proof { sent: at(31) });
        assert_eq!(lease.status(at(31)), LeaseStatus::Over);
    }

    #[test]
    fn a_shorter_length_cuts_the_lease_that_is_proven() {
        let mut lease = ReadLease::new(R, Rules::default());
        let at = Time::from_nanos;
        lease.prove(at(5), Proof { sent: at(5) });
        lease.set_length(Duration::from_nanos(4));
        assert_eq!(lease.status(at(8)), LeaseStatus::Open);
        assert_eq!(lease.status(at(9)), LeaseStatus::Lapsed);
        assert_eq!(lease.until(), Some(at(9)));
    }

    proptest! {
        #[test]
        fn f4_no_order_of_proofs_answers_beyond_the_last_sending_plus_r(
            proofs in proptest::collection::vec((0_u64..100, 0_u64..50), 1..20), probe in 0_u64..300
        ) {
            let mut lease = ReadLease::new(R, Rules::default());
            let mut newest = 0;
            for (sent, delay) in proofs {
                newest = newest.max(sent);
                let sent = Time::from_nanos(sent);
                lease.prove(sent + Duration::from_nanos(delay), Proof { sent });
            }
            let open = lease.status(Time::from_nanos(probe)) == LeaseStatus::Open;
            prop_assert_eq!(open, probe < newest + 10);
        }
    }
}
