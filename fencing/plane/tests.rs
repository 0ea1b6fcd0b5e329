//! The transitions one by one: which transactions are sent, in which order, and the effect of their
//! outcomes.

use alloc::vec;

use polyplane_ring::Incarnation;

use super::*;
use crate::record::{Fence, FenceState, Observed};
use crate::time::Duration;
use crate::transaction::{Directory, Transaction, Write};
use crate::witness::Witness;
use crate::{Proof, ViewNumber};

const R: u64 = 10;
const MARGIN: u64 = 3;

fn terms() -> LeaseTerms {
    LeaseTerms::new(Duration::from_nanos(R), Duration::from_nanos(MARGIN)).expect("good terms")
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn rev(number: u64) -> Revision {
    Revision::new(number)
}

fn holder(replica: &str, incarnation: u64) -> Holder {
    let replica = replica.parse().expect("a replica id");
    Holder {
        replica,
        incarnation: Incarnation::new(incarnation),
    }
}

fn me() -> Holder {
    holder("me", 5)
}

fn record(holder: Holder, epoch: u64, state: FenceState, revision: u64) -> Observed<Fence> {
    let value = Fence {
        holder,
        epoch: Epoch::new(epoch),
        state,
    };
    Observed {
        value,
        revision: rev(revision),
    }
}

fn witness() -> Witness {
    let mut witness = Witness::shared_store(terms());
    witness.observe(at(100), ViewNumber::new(9), [me(), holder("peer", 4)]);
    witness
}

fn fresh() -> PlaneFence {
    PlaneFence::new(me(), PlaneKind::Tenant, Rules::default())
}

fn acquire(fence: Option<Observed<Fence>>) -> Event {
    Event::Acquire(witness().sighting(fence))
}

fn sent(actions: &[Action]) -> (Attempt, &Transaction) {
    match actions {
        [
            ..,
            Action::Transact {
                attempt,
                transaction,
            },
        ] => (*attempt, transaction),
        other => panic!("a transaction was expected, not {other:?}"),
    }
}

fn done(actions: &[Action], outcome: Outcome) -> Event {
    Event::Done {
        attempt: sent(actions).0,
        outcome,
    }
}

fn refusal(fence: Option<Observed<Fence>>) -> Outcome {
    Outcome::Refused(Refusal {
        at: rev(90),
        fence,
        own_incarnation: Some(me().incarnation),
        directory: Directory::Present,
    })
}

/// Returns a plane that is held since revision 20 with head 15, and its tenure.
fn held() -> (PlaneFence, Tenure) {
    let mut fence = fresh();
    let actions = fence.step(at(200), acquire(None));
    fence.step(at(201), done(&actions, Outcome::Applied(rev(20))));
    fence.step(at(202), Event::Loaded { head: rev(15) });
    let tenure = fence.tenure().expect("it was taken");
    (fence, tenure)
}

fn lease(sent: u64) -> ReadLease {
    let mut lease = ReadLease::new(terms().read_lease(), Rules::default());
    lease.prove(at(sent), Proof { sent: at(sent) });
    lease
}

#[test]
fn released_names_what_was_published_past_the_commits_too() {
    for (published, named) in [(9, 15), (40, 40)] {
        let (mut fence, _) = held();
        let head = rev(published);
        assert_eq!(fence.step(at(203), Event::Published { head }), []);
        let successor = Some("b".parse().expect("a replica id"));
        let streaming = Streaming::To("b".parse().expect("a replica id"));
        let hand_off = Event::HandOff {
            successor,
            streaming,
        };
        let actions = fence.step(at(204), hand_off);
        let streamed = actions.iter().find_map(|action| match action {
            Action::Stream { head, .. } => Some(*head),
            _ => None,
        });
        assert_eq!(streamed, Some(rev(named)));
        // A write that is published while the stream runs is not in the streamed state, which
        // therefore no longer fits.
        fence.step(at(205), Event::Published { head: rev(50) });
        let actions = fence.step(at(206), Event::StreamEnded);
        let [Write::PutFence(put)] = sent(&actions).1.writes.as_slice() else {
            panic!("the last word puts the fence");
        };
        let FenceState::Released { head, .. } = &put.state else {
            panic!("it says Released");
        };
        assert_eq!(*head, rev(50));
    }
    let mut fence = fresh();
    fence.step(at(200), Event::Published { head: rev(9) });
    assert_eq!(fence.tenure(), None, "nothing is held");
}

#[test]
fn rule_1_an_absent_or_released_fence_is_taken_without_a_wait() {
    let mut fence = fresh();
    let actions = fence.step(at(200), acquire(None));
    let compares = vec![
        Compare::FenceAbsent,
        Compare::MemberIs(me()),
        Compare::DirectoryPresent,
    ];
    assert_eq!(sent(&actions).1.compares, compares);

    let state = FenceState::Released {
        head: rev(6),
        successor: None,
    };
    let mut fence = fresh();
    let actions = fence.step(at(200), acquire(Some(record(holder("x", 2), 7, state, 8))));
    let (_, transaction) = sent(&actions);
    assert_eq!(transaction.compares[0], Compare::FenceAt(rev(8)));
    let held = Fence {
        holder: me(),
        epoch: Epoch::new(8),
        state: FenceState::Held,
    };
    assert_eq!(transaction.writes, [Write::PutFence(held)]);
    let actions = fence.step(at(205), done(&actions, Outcome::Applied(rev(21))));
    let [
        Action::OpenTenure {
            serve_from, load, ..
        },
    ] = actions[..]
    else {
        panic!("a tenure was expected");
    };
    assert_eq!(serve_from, at(200));
    assert_eq!(
        load,
        Load::Store {
            not_before: rev(21)
        }
    );
}

#[test]
fn rule_2_a_dead_holders_lease_is_waited_out_from_when_it_was_seen_gone() {
    let mut fence = fresh();
    let dead = holder("x", 2);
    let gone = record(dead.clone(), 7, FenceState::Held, 8);
    let actions = fence.step(at(105), acquire(Some(gone)));
    assert!(
        sent(&actions)
            .1
            .compares
            .contains(&Compare::MemberIsNot(dead))
    );
    fence.step(at(106), done(&actions, Outcome::Applied(rev(21))));
    fence.step(at(107), Event::Loaded { head: rev(6) });
    let tenure = fence.tenure().expect("it was taken");
    let over = 100 + R + MARGIN;
    assert_eq!(
        fence.answer(at(over - 1), &lease(over - 1), tenure),
        Verdict::Wait
    );
    assert_eq!(
        fence.commit_permit(at(over - 1), tenure),
        CommitPermit::Wait
    );
    let early = Event::HandOff {
        successor: None,
        streaming: Streaming::Nothing,
    };
    assert_eq!(
        fence.step(at(over - 1), early),
        [Action::NotYet {
            serve_from: at(over)
        }]
    );
    assert_eq!(
        fence.answer(at(over), &lease(over), tenure),
        Verdict::Answer
    );
    assert!(matches!(
        fence.commit_permit(at(over), tenure),
        CommitPermit::Granted(_)
    ));
}

#[test]
fn rule_3_the_living_are_asked_and_the_unknown_are_looked_up() {
    let peer = record(holder("peer", 4), 7, FenceState::Held, 8);
    let actions = fresh().step(at(200), acquire(Some(peer)));
    assert_eq!(actions, [Action::AskHolder(holder("peer", 4))]);
    let newer = record(holder("peer", 11), 7, FenceState::Held, 12);
    let actions = fresh().step(at(200), acquire(Some(newer)));
    assert_eq!(actions, [Action::NotTaken(NotTaken::ViewTooOld)]);
    let deleted = record(holder("peer", 4), 7, FenceState::Deleted, 8);
    let actions = fresh().step(at(200), acquire(Some(deleted)));
    assert_eq!(
        actions,
        [Action::NotTaken(NotTaken::Deleted { fence: rev(8) })]
    );
}

#[test]
fn rule_4_an_own_forgotten_fence_is_adopted_and_waits_from_the_adoption() {
    let mut fence = fresh();
    let actions = fence.step(at(200), acquire(None));
    assert_eq!(
        fence.step(at(210), done(&actions, Outcome::Unknown)),
        [Action::ReadFence]
    );
    let late = done(&actions, Outcome::Applied(rev(20)));
    assert_eq!(fence.step(at(211), late), [], "given up is given up");
    let own = record(me(), 1, FenceState::Held, 20);
    let actions = fence.step(at(220), Event::Looked(witness().sighting(Some(own))));
    let actions = fence.step(at(230), done(&actions, Outcome::Applied(rev(22))));
    let [
        Action::OpenTenure {
            serve_from, tenure, ..
        },
    ] = actions[..]
    else {
        panic!("a tenure was expected");
    };
    assert_eq!(serve_from, at(220 + R + MARGIN));
    assert_eq!(tenure.epoch(), Epoch::new(2));
}

#[test]
fn an_acquire_that_met_its_own_late_copy_adopts_it() {
    let mut fence = fresh();
    let actions = fence.step(at(200), acquire(None));
    fence.step(at(201), done(&actions, Outcome::Unknown));
    let actions = fence.step(at(202), acquire(None));
    let own = record(me(), 1, FenceState::Held, 20);
    let actions = fence.step(at(203), done(&actions, refusal(Some(own))));
    assert_eq!(sent(&actions).1.compares[0], Compare::FenceAt(rev(20)));
}

#[test]
fn an_unknown_commit_is_settled_by_putting_the_own_fence_again() {
    let (mut fence, tenure) = held();
    fence.step(at(300), Event::CommitSent);
    let actions = fence.step(at(301), Event::CommitDone(Outcome::Unknown));
    assert_eq!(sent(&actions).1.compares[0], Compare::FenceAt(rev(20)));
    assert_eq!(fence.commit_permit(at(301), tenure), CommitPermit::Wait);
    // The first barrier's outcome is unknown too. The second one finds it applied.
    let actions = fence.step(at(302), done(&actions, Outcome::Unknown));
    let own = record(me(), 1, FenceState::Held, 33);
    let actions = fence.step(at(303), done(&actions, refusal(Some(own))));
    assert_eq!(actions, [Action::Settle { through: rev(33) }]);
    fence.step(at(304), Event::Replayed { head: rev(31) });
    let CommitPermit::Granted(guard) = fence.commit_permit(at(305), tenure) else {
        panic!("the plane writes on");
    };
    assert_eq!(guard.fence(), Some(Compare::FenceAt(rev(33))));
}

#[test]
fn a_refused_commit_ends_the_tenure_unless_another_plane_was_meant() {
    let (mut fence, tenure) = held();
    fence.step(at(300), Event::CommitSent);
    let own = record(me(), 1, FenceState::Held, 20);
    assert_eq!(
        fence.step(at(301), Event::CommitDone(refusal(Some(own)))),
        []
    );
    assert!(matches!(
        fence.commit_permit(at(301), tenure),
        CommitPermit::Granted(_)
    ));
    fence.step(at(302), Event::CommitSent);
    let taken = record(holder("peer", 4), 2, FenceState::Held, 40);
    let actions = fence.step(at(303), Event::CommitDone(refusal(Some(taken))));
    let end = TenureEnd::Lost {
        settled_through: Some(rev(90)),
    };
    assert_eq!(actions, [Action::EndTenure { tenure, end }]);
    assert_eq!(fence.answer(at(303), &lease(303), tenure), Verdict::Moved);
    assert_eq!(fence.commit_permit(at(303), tenure), CommitPermit::Moved);
}

#[test]
fn f7_a_hand_off_settles_streams_ends_the_tenure_and_only_then_releases() {
    let (mut fence, tenure) = held();
    fence.step(at(300), Event::CommitSent);
    let to: ReplicaId = "peer".parse().expect("a replica id");
    let hand_off = Event::HandOff {
        successor: Some(to.clone()),
        streaming: Streaming::To(to.clone()),
    };
    assert_eq!(fence.step(at(301), hand_off), [Action::StopAccepting]);
    assert_eq!(fence.answer(at(301), &lease(301), tenure), Verdict::Answer);
    let actions = fence.step(at(302), Event::CommitDone(Outcome::Applied(rev(30))));
    assert_eq!(
        actions,
        [Action::Stream {
            to: to.clone(),
            head: rev(30)
        }]
    );
    let actions = fence.step(at(303), Event::StreamEnded);
    let [
        Action::EndTenure { .. },
        Action::Transact { transaction, .. },
    ] = actions.as_slice()
    else {
        panic!("the tenure ends first, not {actions:?}");
    };
    let state = FenceState::Released {
        head: rev(30),
        successor: Some(to),
    };
    let released = Fence {
        holder: me(),
        epoch: Epoch::new(1),
        state,
    };
    assert_eq!(transaction.writes, [Write::PutFence(released.clone())]);
    assert_eq!(fence.answer(at(303), &lease(303), tenure), Verdict::Moved);
    // The outcome of Released is unknown, so it is sent again until a final reply shows that it was
    // applied.
    let actions = fence.step(at(304), done(&actions, Outcome::Unknown));
    assert_eq!(sent(&actions).1.compares[0], Compare::FenceAt(rev(20)));
    let stands = Observed {
        value: released,
        revision: rev(50),
    };
    let actions = fence.step(at(305), done(&actions, refusal(Some(stands.clone()))));
    assert_eq!(
        actions,
        [Action::Released {
            fence: Some(stands)
        }]
    );
}

#[test]
fn a_hand_off_is_called_off_freely_before_released_and_by_a_write_after() {
    let (mut fence, tenure) = held();
    let to: ReplicaId = "peer".parse().expect("a replica id");
    let hand_off = Event::HandOff {
        successor: None,
        streaming: Streaming::To(to),
    };
    fence.step(at(300), hand_off.clone());
    assert_eq!(
        fence.step(at(301), Event::CallOff),
        [Action::ResumeAccepting]
    );
    assert!(matches!(
        fence.commit_permit(at(302), tenure),
        CommitPermit::Granted(_)
    ));

    fence.step(at(303), hand_off);
    let released = fence.step(at(304), Event::StreamEnded);
    let actions = fence.step(at(305), Event::CallOff);
    assert_eq!(sent(&actions).1.compares[0], Compare::FenceAt(rev(20)));
    let late = done(&released, Outcome::Applied(rev(60)));
    assert_eq!(
        fence.step(at(306), late),
        [],
        "the reclaim's outcome decides"
    );
    let actions = fence.step(at(307), done(&actions, Outcome::Applied(rev(61))));
    assert_eq!(actions, goes_on(tenure, 307));
    assert_eq!(fence.answer(at(309), &lease(309), tenure), Verdict::Answer);
}

/// Returns the actions with which the suspended tenure continues, with the state in memory.
fn goes_on(tenure: Tenure, now: u64) -> [Action; 2] {
    [
        Action::OpenTenure {
            tenure,
            serve_from: at(now),
            load: Load::Kept { head: rev(15) },
        },
        Action::ResumeAccepting,
    ]
}

#[test]
fn a_last_word_that_the_store_refuses_was_not_said_unless_an_earlier_one_may_land() {
    let release = || Event::HandOff {
        successor: None,
        streaming: Streaming::Nothing,
    };
    for last_word in [release(), Event::Delete] {
        let (mut fence, tenure) = held();
        let word = fence.step(at(300), last_word.clone());
        assert_eq!(fence.answer(at(301), &lease(301), tenure), Verdict::Moved);
        assert_eq!(fence.intake(tenure), Intake::Wait);
        let actions = fence.step(at(302), done(&word, Outcome::Rejected));
        assert_eq!(actions, goes_on(tenure, 302));
        assert_eq!(fence.intake(tenure), Intake::Open);

        let word = fence.step(at(303), last_word);
        let again = fence.step(at(304), done(&word, Outcome::Unknown));
        let again = fence.step(at(305), done(&again, Outcome::Rejected));
        assert!(fence.is_relinquishing(), "the first one may still land");
        sent(&again);
    }
}

#[test]
fn refusals_in_a_row_make_it_read_only_and_one_write_that_is_taken_ends_that() {
    let (mut fence, tenure) = held();
    for _ in 0..REJECTIONS_MAX {
        assert_eq!(fence.intake(tenure), Intake::Open);
        fence.step(at(300), Event::CommitSent);
        fence.step(at(300), Event::CommitDone(Outcome::Rejected));
    }
    assert_eq!(fence.intake(tenure), Intake::ReadOnly);
    assert_eq!(fence.commit_permit(at(301), tenure), CommitPermit::Wait);
    assert_eq!(fence.answer(at(301), &lease(301), tenure), Verdict::Answer);
    // A refused probe needs no settling; one without a reply is settled by the next probe.
    let probe = fence.step(at(302), Event::Probe);
    assert_eq!(fence.step(at(303), done(&probe, Outcome::Rejected)), []);
    let unanswered = fence.step(at(304), Event::Probe);
    assert_eq!(fence.step(at(305), done(&unanswered, Outcome::Unknown)), []);
    assert_eq!(fence.step(at(306), Event::StoreWritable), []);
    assert_eq!(fence.intake(tenure), Intake::ReadOnly);
    let probe = fence.step(at(307), Event::Probe);
    let landed = refusal(Some(record(me(), 1, FenceState::Held, 30)));
    let actions = fence.step(at(308), done(&probe, landed));
    assert_eq!(actions, [Action::ResumeAccepting]);
    let CommitPermit::Granted(guard) = fence.commit_permit(at(309), tenure) else {
        panic!("it takes writes");
    };
    assert_eq!(guard.fence(), Some(Compare::FenceAt(rev(30))));
}

#[test]
fn streamed_state_is_used_only_at_exactly_the_released_head() {
    for (streamed, state, used) in [
        (
            6,
            FenceState::Released {
                head: rev(6),
                successor: None,
            },
            true,
        ),
        (
            5,
            FenceState::Released {
                head: rev(6),
                successor: None,
            },
            false,
        ),
        (6, FenceState::Held, false),
    ] {
        let mut fence = fresh();
        fence.step(
            at(200),
            Event::StreamReceived {
                head: rev(streamed),
            },
        );
        let actions = fence.step(at(201), acquire(Some(record(holder("x", 2), 7, state, 8))));
        let actions = fence.step(at(202), done(&actions, Outcome::Applied(rev(21))));
        let [Action::OpenTenure { load, .. }] = actions[..] else {
            panic!("a tenure was expected");
        };
        assert_eq!(load == Load::Streamed { head: rev(6) }, used);
    }
}

#[test]
fn a_lost_member_key_ends_everything_for_good() {
    let (mut fence, tenure) = held();
    let end = TenureEnd::Lost {
        settled_through: None,
    };
    assert_eq!(
        fence.step(at(300), Event::MemberLost),
        [Action::EndTenure { tenure, end }]
    );
    assert_eq!(fence.step(at(301), acquire(None)), []);
    assert_eq!(fence.answer(at(301), &lease(301), tenure), Verdict::Moved);
}

#[test]
fn deleting_overtakes_a_hand_off_and_names_the_fence_to_compare() {
    let (mut fence, _) = held();
    let to: ReplicaId = "peer".parse().expect("a replica id");
    fence.step(
        at(300),
        Event::HandOff {
            successor: None,
            streaming: Streaming::To(to),
        },
    );
    let actions = fence.step(at(301), Event::Delete);
    let actions = fence.step(at(302), done(&actions, Outcome::Unknown));
    let deleted = record(me(), 1, FenceState::Deleted, 70);
    let actions = fence.step(at(303), done(&actions, refusal(Some(deleted))));
    assert_eq!(actions, [Action::RemoveRange { fence: rev(70) }]);
    assert_eq!(
        fence.step(at(304), acquire(None)),
        [],
        "nothing follows Deleted"
    );
}
