//! Joining, living, draining and losing, and any order of what the store may say to it.

use alloc::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::read_lease::LeaseStatus;
use crate::transaction::{Directory, Refusal};

fn terms() -> LeaseTerms {
    LeaseTerms::new(Duration::from_nanos(30), Duration::from_nanos(10)).expect("good terms")
}

fn newcomer() -> Member {
    let replica = "r0".parse().expect("a replica id");
    let cadence = Cadence {
        read_every: Duration::from_nanos(10),
        renew_every: Duration::from_nanos(100),
    };
    let (member, actions) = Member::new(replica, terms(), cadence, Rules::default());
    assert_eq!(actions, [Action::ReadJoinFacts]);
    member
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn facts(predecessor: Option<u64>) -> Event {
    Event::Facts(JoinFacts {
        predecessor: predecessor.map(Incarnation::new),
        level_floor: Some(Revision::new(2)),
        terms: Some(Observed {
            value: terms(),
            revision: Revision::new(3),
        }),
    })
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

fn applied(revision: u64) -> Outcome {
    Outcome::Applied(Revision::new(revision))
}

fn refused() -> Outcome {
    Outcome::Refused(Refusal {
        at: Revision::new(50),
        fence: None,
        own_incarnation: None,
        directory: Directory::Present,
    })
}

/// A member that joined at revision 9, time 100.
fn living() -> Member {
    let mut member = newcomer();
    let actions = member.step(at(90), facts(None));
    let actions = member.step(at(100), done(&actions, applied(9)));
    let [Action::Joined(me), Action::ReadMember] = actions.as_slice() else {
        panic!("it joined, not {actions:?}");
    };
    assert_eq!(me.incarnation, Incarnation::new(9));
    member
}

fn read(sent: u64, found: Option<u64>) -> Event {
    Event::MemberRead {
        sent: at(sent),
        found: found.map(Incarnation::new),
    }
}

fn peer_view(number: u64, found: Option<u64>) -> Event {
    Event::PeerView {
        number: ViewNumber::new(number),
        found: found.map(Incarnation::new),
    }
}

#[test]
fn a_newcomer_puts_its_key_against_absence_and_compares_floor_and_terms() {
    let actions = newcomer().step(at(90), facts(None));
    let (_, transaction) = sent(&actions);
    let replica: ReplicaId = "r0".parse().expect("a replica id");
    let compares = [
        Compare::MemberAbsent(replica.clone()),
        Compare::LevelFloorAt(Some(Revision::new(2))),
        Compare::LeaseTermsAt(Some(Revision::new(3))),
    ];
    assert_eq!(transaction.compares, compares);
    let standing = Standing::Serving;
    assert_eq!(transaction.writes, [Write::PutMember { replica, standing }]);
}

#[test]
fn a_predecessor_is_removed_first_and_by_its_incarnation() {
    let mut member = newcomer();
    let actions = member.step(at(90), facts(Some(5)));
    let replica: ReplicaId = "r0".parse().expect("a replica id");
    let predecessor = Holder {
        replica: replica.clone(),
        incarnation: Incarnation::new(5),
    };
    assert_eq!(sent(&actions).1.compares, [Compare::MemberIs(predecessor)]);
    assert_eq!(sent(&actions).1.writes, [Write::DeleteMember(replica)]);
    assert_eq!(
        member.step(at(91), done(&actions, applied(8))),
        [Action::ReadJoinFacts]
    );
    assert_eq!(member.holder(), None);
}

#[test]
fn a_join_of_unknown_outcome_starts_over_and_its_late_reply_means_nothing() {
    let mut member = newcomer();
    let first = member.step(at(90), facts(None));
    assert_eq!(
        member.step(at(91), done(&first, Outcome::Unknown)),
        [Action::ReadJoinFacts]
    );
    assert_eq!(member.step(at(92), done(&first, applied(8))), []);
    assert_eq!(
        member.holder(),
        None,
        "a life nobody waits for is a predecessor's"
    );
}

#[test]
fn other_lease_terms_bar_the_replica_and_absent_ones_are_put() {
    let mut member = newcomer();
    let stored = LeaseTerms::default();
    let terms = Some(Observed {
        value: stored,
        revision: Revision::new(3),
    });
    let others = JoinFacts {
        predecessor: None,
        level_floor: None,
        terms,
    };
    let actions = member.step(at(90), Event::Facts(others));
    assert_eq!(actions, [Action::RefuseTerms { stored }]);
    assert_eq!(member.step(at(91), facts(None)), []);

    let none = JoinFacts {
        predecessor: None,
        level_floor: None,
        terms: None,
    };
    let actions = newcomer().step(at(90), Event::Facts(none));
    assert!(
        sent(&actions)
            .1
            .compares
            .contains(&Compare::LeaseTermsAt(None))
    );
    assert!(
        sent(&actions)
            .1
            .writes
            .contains(&Write::PutLeaseTerms(self::terms()))
    );
}

#[test]
fn only_the_own_incarnation_proves_life() {
    let mut member = living();
    assert_eq!(member.step(at(110), read(105, Some(9))), []);
    assert_eq!(member.lease().status(at(134)), LeaseStatus::Open);
    assert_eq!(member.lease().status(at(135)), LeaseStatus::Lapsed);
    assert_eq!(
        member.step(at(140), read(99, None)),
        [],
        "sent before the life was known"
    );
    assert_eq!(
        member.step(at(141), read(136, Some(12))),
        [Action::CloseAllPlanes]
    );
    assert_eq!(member.lease().status(at(141)), LeaseStatus::Over);
    assert_eq!(
        member.step(at(142), read(141, Some(9))),
        [],
        "there is no way back"
    );
}

#[test]
fn a_peers_view_ends_a_life_only_if_it_is_newer_and_does_not_show_it() {
    let mut member = living();
    for (number, found, why) in [
        (8, None, "it is older than the life"),
        (8, Some(5), "it shows the predecessor"),
        (
            9,
            None,
            "of the life's own revision, so no view of the store's",
        ),
        (30, Some(9), "it shows the life"),
    ] {
        assert_eq!(member.step(at(110), peer_view(number, found)), [], "{why}");
    }
    assert_eq!(
        member.lease().status(at(111)),
        LeaseStatus::Lapsed,
        "none of them proves life"
    );
    for found in [None, Some(12)] {
        let mut member = living();
        let over = member.step(at(120), peer_view(12, found));
        assert_eq!(over, [Action::CloseAllPlanes]);
        assert_eq!(member.lease().status(at(120)), LeaseStatus::Over);
    }
}

#[test]
fn a_stuck_replica_reads_on_but_renews_no_more() {
    let mut member = living();
    let both = [Action::ReadMember, Action::Renew];
    assert_eq!(member.step(at(200), Event::Tick(Progress::Made)), both);
    assert_eq!(member.step(at(205), Event::Tick(Progress::Made)), []);
    assert_eq!(
        member.step(at(300), Event::Tick(Progress::Stuck)),
        [Action::ReadMember]
    );
    assert_eq!(
        member.step(at(301), Event::Tick(Progress::Made)),
        [Action::Renew]
    );
}

#[test]
fn draining_compares_the_life_is_repeated_until_final_and_never_puts_a_lost_key_back() {
    let mut member = living();
    let actions = member.step(at(110), Event::Drain);
    let me = member.holder().cloned().expect("it lives");
    assert_eq!(sent(&actions).1.compares, [Compare::MemberIs(me)]);
    assert_eq!(member.step(at(111), Event::Drain), []);
    let again = member.step(at(112), done(&actions, Outcome::Unknown));
    assert_eq!(sent(&again).1, sent(&actions).1);
    assert_eq!(
        member.step(at(113), done(&again, applied(20))),
        [Action::DrainAnnounced]
    );
    assert_eq!(member.step(at(114), Event::Drain), []);

    let mut member = living();
    let actions = member.step(at(110), Event::Drain);
    assert_eq!(
        member.step(at(111), done(&actions, refused())),
        [Action::CloseAllPlanes]
    );
}

fn any_event() -> impl Strategy<Value = Event> {
    let outcome = prop_oneof![
        (1_u64..99).prop_map(applied),
        Just(refused()),
        Just(Outcome::Rejected),
        Just(Outcome::Unknown),
    ];
    let incarnation = || proptest::option::of(prop_oneof![Just(9_u64), 1_u64..99]);
    prop_oneof![
        incarnation().prop_map(facts),
        (1_u32..6, outcome).prop_map(|(attempt, outcome)| Event::Done {
            attempt: Attempt(attempt),
            outcome
        }),
        (0_u64..100, incarnation()).prop_map(|(sent, found)| read(sent, found)),
        (0_u64..100).prop_map(|sent| Event::Proven(Proof { sent: at(sent) })),
        Just(Event::LossProven),
        (1_u64..99, incarnation()).prop_map(|(number, found)| peer_view(number, found)),
        Just(Event::Drain),
        Just(Event::Tick(Progress::Made)),
    ]
}

proptest! {
    /// F4: whatever comes in whatever order, a replica has at most one life per machine, each key
    /// put names its condition, and nothing is answered once the life is over.
    #[test]
    fn f4_no_order_of_events_gives_two_lives_or_revives_one(
        events in proptest::collection::vec(any_event(), 1..60)
    ) {
        let mut member = newcomer();
        let mut lives = BTreeSet::new();
        let mut over = false;
        for (step, event) in events.into_iter().enumerate() {
            let now = at(100 + step as u64);
            for action in member.step(now, event) {
                match action {
                    Action::Joined(me) => { lives.insert(me); }
                    Action::CloseAllPlanes => over = true,
                    Action::Transact { transaction, .. } => {
                        prop_assert!(!over, "the dead write nothing");
                        prop_assert!(transaction.compares.iter().any(|compare| matches!(
                            compare, Compare::MemberAbsent(_) | Compare::MemberIs(_)
                        )));
                    }
                    Action::ReadJoinFacts | Action::RefuseTerms { .. } | Action::ReadMember
                    | Action::Renew | Action::DrainAnnounced => {}
                }
            }
            prop_assert!(lives.len() <= 1);
            if over {
                prop_assert_eq!(member.lease().status(now), LeaseStatus::Over);
                prop_assert_eq!(member.holder(), None);
            }
        }
    }
}
