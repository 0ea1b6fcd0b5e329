//! The scenarios: the sound protocol with small and large budgets, and the protocol without each of
//! its rules. Owns names and budgets.

use polyplane_fencing::Rule;

pub use super::changing::changing;
use super::changing::{to_longer, to_longer_at_any_pace, to_shorter};
use super::{
    Budget, Happening, MARGIN, MemberReads, PeerViews, Puts, READ_LEASE, Replies, Scenario,
    Survival,
};

/// A scenario and the name it is reported under.
pub type Named = (String, Scenario);

/// Returns scenarios whose whole spaces are small enough for every test run.
pub fn small() -> Vec<Named> {
    let none = Budget::default();
    vec![
        (
            "takeover, reads, drift".to_owned(),
            Scenario::new(Budget {
                writes: 1,
                reads: 1,
                acquires: 1,
                expiries: 1,
                ticks: 3,
                slow: 1,
                ..none
            }),
        ),
        (
            "unknown outcomes of commit, acquire and Released".to_owned(),
            Scenario {
                member_reads: MemberReads::None,
                survival: Survival::Checked,
                ..Scenario::new(Budget {
                    writes: 1,
                    acquires: 2,
                    hand_offs: 1,
                    losses: 2,
                    expiries: 1,
                    ..none
                })
            },
        ),
        (
            "hand-off, reads, a lost reply".to_owned(),
            Scenario::new(Budget {
                writes: 1,
                reads: 1,
                acquires: 1,
                hand_offs: 1,
                losses: 1,
                ..none
            }),
        ),
        (
            "two incarnations of one replica".to_owned(),
            Scenario::new(Budget {
                acquires: 1,
                ticks: 3,
                ..none
            })
            .processes(&[0, 1, 0], 2),
        ),
        (
            "peers tell their views, takeover, hand-off, reads".to_owned(),
            Scenario {
                peer_views: PeerViews::Told,
                ..Scenario::new(Budget {
                    writes: 1,
                    reads: 1,
                    acquires: 1,
                    hand_offs: 1,
                    expiries: 1,
                    ticks: 1,
                    ..none
                })
            },
        ),
        (
            "peers tell their views, two incarnations, survivors".to_owned(),
            Scenario {
                member_reads: MemberReads::None,
                peer_views: PeerViews::Told,
                survival: Survival::Checked,
                ..Scenario::new(Budget {
                    writes: 1,
                    acquires: 1,
                    losses: 1,
                    ..none
                })
            }
            .processes(&[0, 1, 0], 2),
        ),
        (
            "two incarnations, a lost reply, survivors".to_owned(),
            Scenario {
                member_reads: MemberReads::None,
                survival: Survival::Checked,
                ..Scenario::new(Budget {
                    writes: 1,
                    acquires: 2,
                    losses: 1,
                    ..none
                })
            }
            .processes(&[0, 1, 0], 2),
        ),
    ]
}

/// Returns scenarios within one tenure: refusals, probes, sleep, deletion, tasks that die,
/// bookmarks.
pub fn tenure() -> Vec<Named> {
    let none = Budget::default();
    let scenario = |budget| Scenario {
        member_reads: MemberReads::None,
        survival: Survival::Checked,
        ..Scenario::new(budget)
    };
    vec![
        (
            "refused commits, probes, sleep, wake".to_owned(),
            scenario(Budget {
                writes: 2,
                acquires: 2,
                rejections: 2,
                sleeps: 1,
                losses: 1,
                ..none
            }),
        ),
        (
            "a refused commit, a hand-off, a deletion, a task that dies".to_owned(),
            scenario(Budget {
                writes: 1,
                acquires: 1,
                rejections: 1,
                hand_offs: 1,
                deletions: 1,
                deaths: 1,
                ..none
            }),
        ),
        (
            "an unknown commit, a crash, a caller that gives up".to_owned(),
            scenario(Budget {
                writes: 1,
                acquires: 1,
                losses: 1,
                expiries: 1,
                give_ups: 1,
                ticks: 2,
                ..none
            }),
        ),
        (
            "a hand-off, bookmarks".to_owned(),
            scenario(Budget {
                writes: 1,
                acquires: 1,
                hand_offs: 1,
                bookmarks: 2,
                ..none
            }),
        ),
    ]
}

/// Returns a budget for a replica that counts as dead and whose Released the store refuses: its
/// tenure continues, but it must not answer.
fn refused_last_word(ticks: u8) -> Budget {
    Budget {
        writes: 1,
        reads: 1,
        acquires: 1,
        sleeps: 1,
        expiries: 1,
        rejections: 1,
        ticks,
        ..Budget::default()
    }
}

/// Returns a scenario with everything that can happen in a tenure: refused and unknown commits and
/// barriers, sleep and wake, deletion, hand-off, crash.
fn whole_tenure() -> Named {
    let scenario = Scenario {
        member_reads: MemberReads::None,
        survival: Survival::Checked,
        ..Scenario::new(Budget {
            writes: 2,
            acquires: 2,
            hand_offs: 1,
            sleeps: 1,
            deletions: 1,
            expiries: 1,
            // Enough to reject two commits and a barrier, and to lose a commit and a barrier.
            rejections: 3,
            losses: 2,
            ..Budget::default()
        })
    };
    ("a tenure with everything".to_owned(), scenario)
}

/// Returns the scenario of [`whole_tenure`] with time: the next owner comes to serve, and every
/// fault, sleep and wake, the hand-off and the crash may happen in one run. Lost and rejected
/// commits are counted apart from lost and rejected puts.
fn tenure_and_after() -> Named {
    let (_, whole) = whole_tenure();
    let scenario = Scenario {
        puts: Puts::Apart,
        stride: READ_LEASE + MARGIN,
        budget: Budget {
            acquires: 3,
            rejections: 2,
            losses: 1,
            rejected_puts: 1,
            lost_puts: 1,
            ticks: 1,
            ..whole.budget
        },
        ..whole
    };
    (
        "everything at once, and what comes after".to_owned(),
        scenario,
    )
}

/// [`tenure_and_after`] without one kind of event, which is a smaller space. The three scenarios
/// that `large` makes with it cover every run but those with a hand-off, a deletion and a sleep
/// together.
fn after_without(event: &str, take_out: fn(&mut Budget)) -> Named {
    let (_, mut scenario) = tenure_and_after();
    take_out(&mut scenario.budget);
    (format!("what comes after, without {event}"), scenario)
}

/// Returns scenarios with larger budgets, which take hours rather than seconds.
pub fn large() -> Vec<Named> {
    let none = Budget::default();
    vec![
        whole_tenure(),
        tenure_and_after(),
        after_without("hand-off", |budget| budget.hand_offs = 0),
        after_without("deletion", |budget| budget.deletions = 0),
        after_without("sleep", |budget| budget.sleeps = 0),
        (
            "a crash, a refused last word, reads".to_owned(),
            Scenario {
                member_reads: MemberReads::AtOnce,
                stride: READ_LEASE + MARGIN,
                ..Scenario::new(refused_last_word(1))
            },
        ),
        (
            "a crash, a refused last word, reads, tick by tick".to_owned(),
            Scenario::new(refused_last_word(3)),
        ),
        (
            "a crash while terms become longer, at any pace".to_owned(),
            to_longer_at_any_pace(),
        ),
        (
            "a join while terms become shorter".to_owned(),
            to_shorter().processes(&[0, 1], 1),
        ),
        (
            "takeover, reads, drift, lagging replies".to_owned(),
            Scenario {
                replies: Replies::Lagging,
                ..Scenario::new(Budget {
                    writes: 2,
                    reads: 2,
                    acquires: 2,
                    expiries: 2,
                    ticks: 5,
                    slow: 1,
                    ..none
                })
            },
        ),
        (
            "takeover, member reads in steps".to_owned(),
            Scenario {
                member_reads: MemberReads::InSteps,
                ..Scenario::new(Budget {
                    writes: 1,
                    reads: 1,
                    acquires: 1,
                    expiries: 1,
                    ticks: 5,
                    slow: 1,
                    ..none
                })
            },
        ),
        (
            "unknown outcomes, lagging replies".to_owned(),
            Scenario {
                member_reads: MemberReads::None,
                replies: Replies::Lagging,
                survival: Survival::Checked,
                ..Scenario::new(Budget {
                    writes: 3,
                    acquires: 3,
                    hand_offs: 1,
                    losses: 3,
                    expiries: 1,
                    ..none
                })
            },
        ),
        (
            "two hand-offs, reads, two lost replies".to_owned(),
            Scenario::new(Budget {
                writes: 2,
                reads: 1,
                acquires: 2,
                hand_offs: 2,
                losses: 2,
                ticks: 2,
                ..none
            }),
        ),
        (
            "hand-off, crash, reads, drift, a lost reply".to_owned(),
            Scenario::new(Budget {
                writes: 2,
                reads: 1,
                acquires: 2,
                hand_offs: 1,
                losses: 1,
                expiries: 1,
                ticks: 4,
                slow: 1,
                ..none
            }),
        ),
        (
            "two incarnations, hand-off, a lost reply".to_owned(),
            Scenario {
                survival: Survival::Checked,
                ..Scenario::new(Budget {
                    writes: 1,
                    reads: 1,
                    acquires: 2,
                    hand_offs: 1,
                    losses: 1,
                    ticks: 4,
                    ..none
                })
                .processes(&[0, 1, 0], 2)
            },
        ),
        (
            "three replicas, two expiries, hand-off".to_owned(),
            Scenario::new(Budget {
                writes: 1,
                reads: 1,
                acquires: 2,
                hand_offs: 1,
                expiries: 2,
                ticks: 4,
                ..none
            })
            .processes(&[0, 1, 2], 3),
        ),
    ]
}

/// Returns a scenario of three replicas with wide budgets, for random walks.
pub fn wide() -> Scenario {
    Scenario {
        replies: Replies::Lagging,
        member_reads: MemberReads::InSteps,
        peer_views: PeerViews::Told,
        ..Scenario::new(Budget {
            writes: 12,
            reads: 20,
            acquires: 12,
            hand_offs: 6,
            losses: 8,
            expiries: 3,
            ticks: 60,
            slow: 4,
            rejections: 8,
            sleeps: 4,
            deletions: 0,
            deaths: 4,
            give_ups: 4,
            bookmarks: 6,
            ..Budget::default()
        })
        .processes(&[0, 1, 2, 0, 1], 3)
    }
}

/// Returns the scenario of [`wide`] in which lease terms become longer at some time.
pub fn wide_changing() -> Scenario {
    let to_longer = to_longer();
    Scenario {
        first: to_longer.first,
        then: to_longer.then,
        ..wide()
    }
}

/// Returns the protocol without a rule, in the smallest scenario in which that breaks an invariant.
pub fn without(rule: Rule) -> Scenario {
    let none = Budget::default();
    let unread = |budget| Scenario {
        member_reads: MemberReads::None,
        ..Scenario::new(budget)
    };
    let survival = |scenario| Scenario {
        survival: Survival::Checked,
        ..scenario
    };
    let takeover = Budget {
        writes: 1,
        reads: 1,
        acquires: 1,
        expiries: 1,
        ..none
    };
    let scenario = match rule {
        Rule::CommitComparesFence | Rule::CommitSettledByWrite => unread(Budget {
            writes: 1,
            losses: 1,
            ..none
        }),
        Rule::CommitComparesOwnMember => unread(Budget {
            writes: 1,
            expiries: 1,
            ..none
        }),
        Rule::AcquireComparesFence => unread(Budget {
            acquires: 2,
            hand_offs: 1,
            ..none
        }),
        // B's key is deleted, which C saw long ago. Then A's key is deleted, B takes the plane, and
        // C takes it from B.
        Rule::AcquireComparesOwnMember => Scenario {
            focus: Some(|world, happening| match (happening, world.spent()) {
                (Happening::Expire(process), spent) => process + spent.expiries as usize == 1,
                (Happening::See(process), spent) => process + spent.expiries as usize == 3,
                (Happening::ReadMember(process), spent) => process != 1 && spent.ticks > 0,
                (Happening::Acquire(process), _) => process > 0,
                _ => true,
            }),
            ..Scenario::new(Budget {
                acquires: 2,
                expiries: 2,
                ticks: 3,
                ..none
            })
        }
        .processes(&[0, 1, 2], 3),
        Rule::TakeoverNamesIncarnation => survival(unread(none).processes(&[0, 1, 0], 2)),
        Rule::ProofNamesIncarnation => Scenario::new(Budget {
            acquires: 1,
            ticks: 4,
            ..none
        })
        .processes(&[0, 1, 0], 2),
        // A third process joins and is not in the others' views yet.
        Rule::PeerViewIsNewerThanLife => Scenario {
            peer_views: PeerViews::Told,
            ..unread(none).processes(&[0, 1, 2], 2)
        },
        Rule::ProofCountsFromSending => Scenario {
            member_reads: MemberReads::InSteps,
            ..Scenario::new(Budget {
                reads: 1,
                expiries: 1,
                ticks: 3,
                ..none
            })
        }
        .processes(&[0], 1),
        Rule::TakeoverWaits => Scenario::new(takeover),
        Rule::TakeoverWaitsMargin => Scenario::new(Budget {
            ticks: 3,
            slow: 1,
            ..takeover
        }),
        Rule::AdoptionWaits => Scenario::new(Budget {
            acquires: 2,
            losses: 1,
            ticks: 1,
            ..takeover
        }),
        Rule::OwnFenceIsAdopted => survival(unread(Budget {
            acquires: 1,
            expiries: 1,
            losses: 1,
            ..none
        })),
        Rule::ReleaseAfterWait => Scenario::new(Budget {
            acquires: 2,
            hand_offs: 1,
            expiries: 1,
            ..none
        })
        .processes(&[0, 1, 2], 3),
        Rule::TenureEndsBeforeReleased => unread(Budget {
            hand_offs: 1,
            ..none
        }),
        Rule::AnswerNeedsTenure => Scenario::new(Budget {
            writes: 1,
            reads: 1,
            acquires: 1,
            hand_offs: 1,
            ..none
        }),
        Rule::AnswerNeedsLease => Scenario::new(Budget {
            ticks: 3,
            ..takeover
        }),
        Rule::ReleaseSettledByWrite => Scenario::new(Budget {
            acquires: 1,
            hand_offs: 1,
            losses: 1,
            ..none
        }),
        Rule::StreamOnlyFromReleased => unread(Budget {
            hand_offs: 1,
            reads: 0,
            ..takeover
        }),
        Rule::ReadOnlyIsProbed => survival(unread(Budget {
            writes: 1,
            rejections: 1,
            ..none
        })),
        Rule::BegunIsDrivenOn => survival(unread(Budget {
            sleeps: 1,
            deaths: 1,
            ..none
        })),
        Rule::HistoryBeforeSuperseded => unread(Budget {
            writes: 2,
            acquires: 1,
            expiries: 1,
            losses: 1,
            ticks: 3,
            ..none
        }),
        Rule::ChangeWaitsByLonger | Rule::ChangeNeedsAll => to_longer(),
        Rule::JoinComparesTerms | Rule::ChangeNeedsNewView => to_longer().processes(&[0, 1], 1),
        Rule::ChangeAnswersByShorter | Rule::ChangeOutwaitsTheDead => to_shorter(),
        Rule::BookmarkBeforeTenure => unread(Budget {
            writes: 1,
            acquires: 1,
            hand_offs: 1,
            bookmarks: 2,
            ..none
        }),
        Rule::PublisherTellsObservers => unread(Budget {
            writes: 1,
            give_ups: 1,
            ..none
        }),
        Rule::StreamAtReleasedHead => unread(Budget {
            writes: 1,
            acquires: 1,
            hand_offs: 2,
            ..none
        }),
    };
    scenario.without(rule)
}
