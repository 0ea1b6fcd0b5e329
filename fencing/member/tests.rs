//! Joining, living, draining and losing the key, under any order of events.

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
        terms: Some(observed(Terms::settled(terms()), 3)),
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

/// Returns a member that joined at revision 9, time 100.
fn living() -> Member {
    let mut member = newcomer();
    let actions = member.step(at(90), facts(None));
    let actions = member.step(at(100), done(&actions, applied(9)));
    let [Action::WaitBy(wait), Action::Joined(me), Action::ReadMember] = actions.as_slice() else {
        panic!("it joined, not {actions:?}");
    };
    assert_eq!(me.incarnation, Incarnation::new(9));
    assert_eq!(*wait, terms());
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
fn a_newcomer_goes_by_the_stores_terms_and_absent_ones_are_put() {
    let stored = Terms {
        current: LeaseTerms::default(),
        next: Some(terms()),
    };
    let facts = |terms: Option<Observed<Terms>>| {
        Event::Facts(JoinFacts {
            predecessor: None,
            level_floor: None,
            terms,
        })
    };
    let mut member = newcomer();
    let actions = member.step(at(90), facts(Some(observed(stored, 3))));
    assert!(compares(
        &actions,
        &Compare::LeaseTermsAt(Some(Revision::new(3)))
    ));
    let joined = member.step(at(100), done(&actions, applied(9)));
    assert_eq!(joined[0], Action::WaitBy(stored.current), "the longer wait");
    assert_eq!(member.lease().length(), terms().read_lease());
    let seen = Event::Terms(observed(stored, 3));
    assert_eq!(member.step(at(101), seen), [], "it joined by this record");

    let mut founder = newcomer();
    let actions = founder.step(at(90), facts(None));
    assert!(compares(&actions, &Compare::LeaseTermsAt(None)));
    let put = Write::PutTerms(Terms::settled(terms()));
    assert!(sent(&actions).1.writes.contains(&put));
    let joined = founder.step(at(100), done(&actions, applied(9)));
    assert_eq!(joined[0], Action::WaitBy(terms()));
    let seen = Event::Terms(observed(Terms::settled(terms()), 9));
    assert_eq!(founder.step(at(101), seen), [], "it wrote this record");
}

fn observed<T>(value: T, revision: u64) -> Observed<T> {
    let revision = Revision::new(revision);
    Observed { value, revision }
}

fn compares(actions: &[Action], compare: &Compare) -> bool {
    sent(actions).1.compares.contains(compare)
}

/// Returns the event that lists members, all of which joined at revision 3, each with whether it
/// has confirmed the record of revision 20.
fn adopters(at: u64, members: &[(&str, bool)]) -> Event {
    let members = members.iter().map(|(name, adopted)| Adopter {
        holder: Holder {
            replica: name.parse().expect("a replica id"),
            incarnation: Incarnation::new(3),
        },
        adopted: adopted.then(|| Revision::new(20)),
    });
    Event::Adopters {
        at: ViewNumber::new(at),
        members: members.collect(),
    }
}

/// Checks PROTOCOL 8.
#[test]
fn terms_change_once_all_go_by_both_and_the_longer_wait_is_over() {
    let long = LeaseTerms::new(Duration::from_nanos(50), Duration::from_nanos(10));
    let next = long.expect("good terms");
    let changing = Terms {
        current: terms(),
        next: Some(next),
    };
    let tick = || Event::Tick(Progress::Stuck);
    let mut member = living();
    assert_eq!(member.step(at(110), tick()), [Action::ReadMember]);
    let actions = member.step(at(111), Event::Terms(observed(changing, 20)));
    assert_eq!(actions[0], Action::WaitBy(next));
    assert_eq!(member.lease().length(), terms().read_lease());
    let me = member.holder().cloned().expect("it lives");
    let adoption = Write::PutAdoption {
        holder: me.clone(),
        terms: Revision::new(20),
    };
    let (_, transaction) = sent(&actions);
    assert_eq!(transaction.writes, [adoption]);
    let record = Compare::LeaseTermsAt(Some(Revision::new(20)));
    assert_eq!(
        transaction.compares,
        [Compare::MemberIs(me), record.clone()]
    );

    // Without a reply the confirmation is sent again, at the intervals of the member reads.
    assert_eq!(member.step(at(115), done(&actions, Outcome::Unknown)), []);
    assert_eq!(member.step(at(119), tick()), []);
    let again = member.step(at(120), tick());
    assert_eq!(sent(&again).1, transaction);
    assert_eq!(member.step(at(121), done(&again, applied(21))), []);
    assert_eq!(member.step(at(130), tick()), [Action::ReadMember]);

    for (at_revision, members) in [
        (19, vec![("r0", true)]),
        (25, vec![("r0", true), ("r1", false)]),
    ] {
        assert_eq!(member.step(at(141), adopters(at_revision, &members)), []);
    }
    let all = || adopters(25, &[("r0", true), ("r1", true)]);
    assert_eq!(member.step(at(150), all()), []);
    assert_eq!(member.step(at(209), all()), [], "the dead are outwaited");
    let mut second = member.clone();
    let others = adopters(25, &[("a", true), ("r0", true)]);
    assert_eq!(second.step(at(300), others), [], "a is the one to do it");
    let finish = member.step(at(210), all());
    let (_, transaction) = sent(&finish);
    assert_eq!(transaction.writes, [Write::PutTerms(Terms::settled(next))]);
    assert!(transaction.compares.contains(&record));
    assert_eq!(member.step(at(211), all()), [], "it is under way");
    assert_eq!(member.step(at(212), done(&finish, Outcome::Unknown)), []);
    let finish = member.step(at(213), all());
    assert_eq!(member.step(at(214), done(&finish, applied(30))), []);
    assert_eq!(member.step(at(300), all()), [], "it is done");

    let settled = Event::Terms(observed(Terms::settled(next), 30));
    assert_eq!(
        member.step(at(301), settled.clone()),
        [Action::WaitBy(next)]
    );
    assert_eq!(member.lease().length(), next.read_lease());
    assert_eq!(member.step(at(302), settled), [], "nothing more happens");
    assert_eq!(member.step(at(303), all()), []);
    let older = Event::Terms(observed(changing, 20));
    assert_eq!(member.step(at(304), older), [], "it is older");
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
        (1_u64..99, any::<bool>()).prop_map(|(revision, changing)| {
            let next = changing.then(LeaseTerms::default);
            let current = terms();
            Event::Terms(observed(Terms { current, next }, revision))
        }),
        (1_u64..99, any::<bool>()).prop_map(|(at, all)| adopters(at, &[("r0", true), ("r1", all)])),
        Just(Event::Drain),
        Just(Event::Tick(Progress::Made)),
    ]
}

proptest! {
    /// F4: in whatever order events arrive, a replica has at most one life per machine, each put of
    /// its key has a condition, and nothing is answered once the life is over.
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
                    Action::ReadJoinFacts | Action::WaitBy(_) | Action::ReadMember
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
