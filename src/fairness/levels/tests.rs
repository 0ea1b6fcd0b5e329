//! Levels in a simulated plane: requests that come, wait, end and give up at random.

use super::*;
use crate::Moment;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const MILLI: u64 = 1_000_000;

fn level(name: &str, shares: u32, lends: u32, borrows: Option<u32>, kind: LevelKind) -> Arc<Level> {
    Arc::new(Level {
        name: name.into(),
        kind,
        shares,
        lendable_percent: lends,
        borrowing_percent: borrows,
    })
}

fn queue(queues: u32, hand_size: u32, length_max: u32) -> LevelKind {
    LevelKind::Queue(Queueing {
        queues,
        hand_size,
        length_max,
    })
}

/// A plane whose requests are named by numbers.
struct Plane {
    dispatcher: Dispatcher<u64>,
    config: Arc<Levels>,
    now: u64,
    woken: Vec<u64>,
}

impl Plane {
    fn new(seats: u32, levels: Vec<Arc<Level>>) -> Self {
        Self {
            dispatcher: Dispatcher::new(seats),
            config: Arc::new(Levels::new(levels)),
            now: 0,
            woken: Vec::new(),
        }
    }

    fn enter(
        &mut self,
        level: &str,
        hash: u64,
        seats: u32,
        name: u64,
    ) -> Result<(Ticket, bool), Rejection> {
        let found = Arc::clone(self.config.get(level).expect("there is one"));
        let arrival = Arrival {
            config: &self.config,
            level: &found,
            hash,
            seats,
        };
        let woken = &mut self.woken;
        let mut wake = |name: &mut u64| woken.push(*name);
        self.dispatcher
            .enter(Moment(self.now), arrival, name, &mut wake)
    }

    /// Ends a request, and returns those that go on.
    fn finish(&mut self, ticket: Ticket) -> Vec<u64> {
        let mut woken = Vec::new();
        let mut wake = |name: &mut u64| woken.push(*name);
        self.dispatcher.finish(Moment(self.now), ticket, &mut wake);
        woken
    }

    fn executing(&self, level: &str) -> u64 {
        let mut levels = self.dispatcher.levels();
        levels
            .find(|one| &*one.name == level)
            .map_or(0, |one| one.executing)
    }
}

#[test]
fn shares_divide_the_seats_as_upstream_divides_them() {
    let levels = vec![
        level("exempt", 0, 0, None, LevelKind::Exempt),
        level("system", 30, 33, None, queue(64, 6, 50)),
        level("node-high", 40, 25, None, queue(64, 6, 50)),
        level("leader-election", 10, 0, None, queue(16, 4, 50)),
        level("workload-high", 40, 50, None, queue(128, 6, 50)),
        level("workload-low", 100, 90, None, queue(128, 6, 50)),
        level("global-default", 20, 50, None, queue(128, 6, 50)),
        level("catch-all", 5, 0, None, LevelKind::Reject),
    ];
    let levels = Levels::new(levels);
    let of = |name: &str| {
        let limits = levels.limits(levels.get(name).expect("it is there"), 600);
        (limits.nominal, limits.min)
    };
    assert_eq!(of("exempt"), (0, 0));
    assert_eq!(of("system"), (74, 50));
    assert_eq!(of("workload-low"), (245, 24));
    assert_eq!(of("global-default"), (49, 24));
    assert_eq!(of("catch-all"), (13, 13));
    let width =
        |name: &str| levels.seats_per_request_max(levels.get(name).expect("it is there"), 600);
    assert_eq!((width("workload-low"), width("global-default")), (37, 8));
    assert_eq!((width("catch-all"), width("leader-election")), (100, 4));
}

#[test]
fn a_level_that_rejects_has_so_many_seats_and_no_more() {
    let levels = vec![
        level("small", 1, 0, Some(0), LevelKind::Reject),
        level("other", 9, 0, Some(0), LevelKind::Reject),
    ];
    let mut plane = Plane::new(20, levels);
    let (first, goes_on) = plane.enter("small", 0, 1, 1).expect("a seat");
    assert!(goes_on);
    plane.enter("small", 0, 1, 2).expect("the second seat");
    let refused = plane.enter("small", 0, 1, 3).expect_err("there are two");
    assert_eq!(refused.reason, RejectionReason::ConcurrencyLimit);
    assert_eq!(refused.retry_after_seconds, 1);
    plane.enter("other", 0, 1, 4).expect("another level");
    plane.finish(first);
    plane.enter("small", 0, 1, 5).expect("a seat is free again");
}

#[test]
fn idle_seats_are_lent_and_come_back_as_they_are_needed() {
    let levels = vec![
        level("lender", 10, 50, Some(0), queue(8, 2, 10)),
        level("borrower", 10, 0, None, queue(8, 2, 100)),
    ];
    let mut plane = Plane::new(20, levels);
    let mut borrowed = Vec::new();
    for name in 0..30 {
        let (ticket, goes_on) = plane.enter("borrower", 1, 1, name).expect("room");
        if goes_on {
            borrowed.push(ticket);
        }
    }
    assert_eq!(borrowed.len(), 15, "its own ten and the five that are lent");
    let mut waits = 0;
    for name in 100..110 {
        let (_, goes_on) = plane.enter("lender", 1, 1, name).expect("room");
        waits += usize::from(!goes_on);
    }
    assert_eq!(waits, 5, "what the lender keeps, it has at once");
    // The seats that the borrower gives back go to the lender, until it has its own.
    for ticket in borrowed.drain(..5) {
        let woken = plane.finish(ticket);
        assert!(woken.iter().all(|name| *name >= 100), "{woken:?}");
        assert_eq!(woken.len(), 1);
    }
    assert_eq!(
        (plane.executing("lender"), plane.executing("borrower")),
        (10, 10)
    );
}

#[test]
fn a_flow_that_floods_does_not_delay_one_that_does_not() {
    let mut plane = Plane::new(4, vec![level("shared", 1, 0, None, queue(64, 6, 50))]);
    let mut running = BTreeMap::new();
    let (mut name, mut refused) = (0, 0);
    // Fifty at a time of the flood.
    let mut flood = |plane: &mut Plane, running: &mut BTreeMap<u64, Ticket>| {
        name += 1;
        match plane.enter("shared", 0xF100D, 1, name) {
            Ok((ticket, _)) => drop(running.insert(name, ticket)),
            Err(_) => refused += 1,
        }
    };
    for _ in 0..50 {
        flood(&mut plane, &mut running);
    }
    let mut order: Vec<u64> = (1..=4).collect();
    let mut longest = 0;
    for calm in 0..100 {
        let calm = 1_000_000 + calm;
        let (ticket, goes_on) = plane
            .enter("shared", 7, 1, calm)
            .expect("its queue is empty");
        running.insert(calm, ticket);
        let mut steps = 0;
        let mut is_done = goes_on;
        while !is_done {
            // The oldest that runs ends after 3 ms, and the flood sends the next.
            plane.now += 3 * MILLI / 4;
            let ended = order.remove(0);
            let woken = plane.finish(running.remove(&ended).expect("it runs"));
            steps += 1;
            is_done = woken.contains(&calm);
            order.extend(woken);
            flood(&mut plane, &mut running);
        }
        longest = longest.max(steps);
        plane.now += MILLI;
        let place = order.iter().position(|one| *one == calm);
        if let Some(place) = place {
            order.remove(place);
        }
        order.extend(plane.finish(running.remove(&calm).expect("it runs")));
    }
    assert!(longest <= 8, "a calm request waited for {longest} others");
}

#[test]
fn a_level_that_is_gone_serves_what_it_has() {
    let own = level("own", 1, 0, Some(0), queue(1, 1, 10));
    let other = level("other", 1, 0, Some(0), LevelKind::Reject);
    let mut plane = Plane::new(2, vec![Arc::clone(&own), Arc::clone(&other)]);
    let (first, _) = plane.enter("own", 0, 1, 1).expect("a seat");
    let (second, goes_on) = plane.enter("own", 0, 1, 2).expect("room");
    assert!(!goes_on);
    plane.config = Arc::new(Levels::new(vec![other]));
    let (third, _) = plane.enter("other", 0, 1, 3).expect("a seat");
    let leaving: Vec<_> = plane
        .dispatcher
        .levels()
        .map(|one| one.is_leaving)
        .collect();
    assert!(leaving.contains(&true), "{leaving:?}");
    let mut woken = plane.finish(first);
    woken.append(&mut plane.woken);
    assert_eq!(woken, [2]);
    assert!(plane.finish(second).is_empty());
    plane.finish(third);
    assert!(plane.dispatcher.is_idle());
}

#[test]
fn who_stands_leaves_the_seat_to_another() {
    let mut plane = Plane::new(1, vec![level("one", 1, 0, Some(0), queue(1, 1, 10))]);
    let (first, _) = plane.enter("one", 0, 1, 1).expect("the seat");
    let (second, goes_on) = plane.enter("one", 0, 1, 2).expect("room");
    assert!(!goes_on);
    let mut woken = Vec::new();
    plane
        .dispatcher
        .stand(Moment(1), first, &mut |name| woken.push(*name));
    assert_eq!(woken, [2]);
    plane.dispatcher.sit(Moment(2), first);
    let (third, goes_on) = plane.enter("one", 0, 1, 3).expect("room");
    assert!(!goes_on);
    assert!(
        plane.finish(first).is_empty(),
        "the second still has the seat"
    );
    assert_eq!(plane.finish(second), [3]);
    plane.finish(third);
    assert!(plane.dispatcher.is_idle());
}

#[test]
fn each_hand_is_dealt_without_a_card_twice() {
    for hash in 0..1000_u64 {
        let hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for (queues, size) in [(1, 1), (8, 8), (128, 6), (10_000_000, 4), (3, 9)] {
            let hand = super::hand::Hand::deal(hash, queues, size);
            let mut cards = hand.cards().to_vec();
            assert!(cards.iter().all(|card| *card < queues));
            cards.sort_unstable();
            cards.dedup();
            assert_eq!(cards.len(), size.min(queues) as usize);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enter { level: usize, flow: u64, seats: u32 },
    Finish(usize),
    GiveUp(usize),
    Sleep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let enter = (0..5_usize, 0..4_u64, 1..4_u32);
    let step = prop_oneof![
        5 => enter.prop_map(|(level, flow, seats)| Step::Enter { level, flow, seats }),
        4 => any::<prop::sample::Index>().prop_map(|at| Step::Finish(at.index(1 << 20))),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::GiveUp(at.index(1 << 20))),
        1 => (0..20 * MILLI).prop_map(Step::Sleep),
    ];
    prop::collection::vec(step, 1..200)
}

fn kinds() -> impl Strategy<Value = Vec<Arc<Level>>> {
    let kind = prop_oneof![
        Just(LevelKind::Exempt),
        Just(LevelKind::Reject),
        (1..6_u32, 1..3_u32, 1..5_u32)
            .prop_map(|(queues, hand, length)| queue(queues, hand, length)),
    ];
    let one = (0..20_u32, 0..=100_u32, prop::option::of(0..300_u32), kind);
    prop::collection::vec(one, 5).prop_map(|levels| {
        let levels = levels.into_iter().enumerate();
        let named = levels.map(|(at, (shares, lends, borrows, kind))| {
            level(&at.to_string(), shares, lends, borrows, kind)
        });
        named.collect()
    })
}

proptest! {
    /// Whatever comes and goes: nobody is lost, nobody goes on twice, seats and queues keep to their
    /// limits, what a level does not lend it has at once, and nothing is left of an idle plane.
    #[test]
    fn seats_and_queues_keep_to_their_limits(levels in kinds(), steps in steps(), seats in 1..40_u32) {
        let mut plane = Plane::new(seats, levels.clone());
        let (mut waiting, mut running) = (BTreeMap::new(), BTreeMap::new());
        for (name, step) in steps.into_iter().enumerate() {
            let name = name as u64;
            match step {
                Step::Sleep(nanos) => plane.now += nanos,
                Step::Enter { level, flow, seats: wide } => {
                    let of = &levels[level];
                    let limits = plane.config.limits(of, seats);
                    let wide = wide.min(plane.config.seats_per_request_max(of, seats));
                    let in_use: u64 = running.values().filter(|(_, at, _)| *at == level)
                        .map(|(_, _, seats)| u64::from(*seats)).sum();
                    let nobody_waits = waiting.values().all(|(_, at, _)| *at != level);
                    match plane.enter(&of.name, flow, wide, name) {
                        Ok((ticket, true)) => {
                            running.insert(name, (ticket, level, wide));
                        }
                        Ok((ticket, false)) => {
                            prop_assert!(matches!(of.kind, LevelKind::Queue(_)));
                            let has = in_use + u64::from(wide) <= limits.min;
                            prop_assert!(!(has && nobody_waits), "what is not lent is there at once");
                            waiting.insert(name, (ticket, level, wide));
                        }
                        Err(_) => {
                            prop_assert!(of.kind != LevelKind::Exempt);
                            let no_seats = in_use + u64::from(wide) > limits.min;
                            prop_assert!(no_seats || !nobody_waits);
                        }
                    }
                }
                Step::Finish(at) if !running.is_empty() => {
                    let name = *running.keys().nth(at % running.len()).expect("there is one");
                    let (ticket, ..) = running.remove(&name).expect("there is one");
                    for name in plane.finish(ticket) {
                        let woken = waiting.remove(&name);
                        prop_assert!(woken.is_some(), "who goes on has waited");
                        running.extend(woken.map(|one| (name, one)));
                    }
                }
                Step::GiveUp(at) if !waiting.is_empty() => {
                    let name = *waiting.keys().nth(at % waiting.len()).expect("there is one");
                    let (ticket, ..) = waiting.remove(&name).expect("there is one");
                    for name in plane.finish(ticket) {
                        running.extend(waiting.remove(&name).map(|one| (name, one)));
                    }
                }
                Step::Finish(_) | Step::GiveUp(_) => {}
            }
            for name in std::mem::take(&mut plane.woken) {
                // The request itself may be woken before it is told that it goes on.
                if let Some(one) = waiting.remove(&name) {
                    running.insert(name, one);
                }
            }
            let (mut total, mut alone) = (0, 0);
            for (at, of) in levels.iter().enumerate() {
                let of_level = running.values().filter(|(_, level, _)| *level == at);
                let in_use: Vec<u64> = of_level.map(|(_, _, seats)| u64::from(*seats)).collect();
                let sum: u64 = in_use.iter().sum();
                let limits = plane.config.limits(of, seats);
                if of.kind != LevelKind::Exempt {
                    prop_assert!(sum <= limits.max.max(limits.min) || in_use.len() == 1, "{of:?}");
                    // A request that is alone in its level goes on, even if the others have borrowed
                    // all its seats or it is wider than the level. It counts as one seat here.
                    let is_alone = in_use.len() == 1;
                    alone += u64::from(is_alone);
                    total += if is_alone { 1 } else { sum };
                }
                for (_, queue) in plane.dispatcher.queues(&of.name) {
                    let LevelKind::Queue(queueing) = of.kind else { continue };
                    prop_assert!(queue.waiting <= queueing.length_max as usize);
                }
            }
            if levels.iter().all(|of| of.kind != LevelKind::Exempt) {
                let all: u64 = levels.iter().map(|of| plane.config.limits(of, seats).nominal).sum();
                prop_assert!(total <= all + alone, "{total} of {all} seats");
            }
            let dumped: usize = levels.iter().map(|of| plane.dispatcher.requests(&of.name).len()).sum();
            prop_assert_eq!(dumped, running.len() + waiting.len());
        }
        while let Some((_, (ticket, ..))) = running.pop_first() {
            for name in plane.finish(ticket) {
                running.extend(waiting.remove(&name).map(|one| (name, one)));
            }
        }
        for (ticket, ..) in waiting.into_values() {
            plane.finish(ticket);
        }
        prop_assert!(plane.dispatcher.is_idle());
    }
}
