//! Shares in a simulated replica: a few seats, planes with requests of different cost.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A plane that always has `depth` requests in flight or waiting.
struct Greedy {
    flow: Arc<PlaneMeter>,
    cost: u64,
    depth: usize,
    served: u64,
}

fn greedy(cost: u64, depth: usize) -> Greedy {
    Greedy {
        flow: Arc::default(),
        cost,
        depth,
        served: 0,
    }
}

/// Carries out a request of a plane, which costs so much.
fn request(plane: &PlaneMeter, time: &VirtualTime, cost: u64) {
    let started = plane.flow().start(time);
    plane.flow().charge_actual(started, cost);
}

/// Lets planes compete for `seats` until each unit of time up to `end` is served. Each request holds
/// its seat for as long as it costs.
fn compete(planes: &mut [Greedy], seats: usize, end: u64) {
    let time = VirtualTime::default();
    let mut turns = Turns::default();
    for (at, plane) in planes.iter().enumerate() {
        for _ in 0..plane.depth {
            turns.push(&plane.flow, at, &time);
        }
    }
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut charged: HashMap<usize, Vec<Started>> = HashMap::new();
    let mut now = 0;
    while now < end {
        while running.len() < seats {
            time.note_competing(turns.planes());
            let Some((_, at, started)) = turns.pop(&time) else {
                break;
            };
            charged.entry(at).or_default().push(started);
            running.push(Reverse((now + planes[at].cost, at)));
        }
        let Reverse((ended, at)) = running.pop().expect("greedy planes never rest");
        now = ended;
        let plane = &mut planes[at];
        let started = charged.get_mut(&at).and_then(Vec::pop).expect("it ran");
        plane.flow.flow().charge_actual(started, plane.cost);
        plane.served += plane.cost;
        turns.push(&plane.flow, at, &time);
    }
}

#[test]
fn a_thousand_busy_planes_get_shares_within_a_tenth_of_fair() {
    // Costs of 20 µs to 2 ms, one to 60 requests at a time: one plane wants a hundred times as much
    // with each request as another.
    let mut planes: Vec<Greedy> = (0..1000_u64)
        .map(|at| {
            greedy(
                20_000 + 1_980_000 * (at % 17) / 16,
                1 + (at * 7 % 60) as usize,
            )
        })
        .collect();
    let (seats, end) = (16, 60_000_000_000 / 4);
    compete(&mut planes, seats, end);
    let total: u64 = planes.iter().map(|plane| plane.served).sum();
    let fair = total / 1000;
    for plane in &planes {
        let off = plane.served.abs_diff(fair);
        assert!(
            off * 10 <= fair,
            "{} of {fair} with requests of {}",
            plane.served,
            plane.cost
        );
    }
}

#[test]
fn a_modest_plane_waits_for_no_queue_of_a_greedy_one() {
    let time = VirtualTime::default();
    let (flood, modest) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    let mut turns = Turns::default();
    for _ in 0..10_000 {
        turns.push(&flood, "flood", &time);
    }
    for _ in 0..500 {
        let (_, who, started) = turns.pop(&time).expect("one waits");
        assert_eq!(who, "flood");
        flood.flow().charge_actual(started, 1_000_000);
    }
    turns.push(&modest, "modest", &time);
    let (_, next, started) = turns.pop(&time).expect("one waits");
    modest.flow().charge_actual(started, 30_000);
    assert_eq!(next, "modest");
}

#[test]
fn of_planes_that_are_equal_the_one_that_waits_longest_goes_first() {
    let (time, mut turns) = (VirtualTime::default(), Turns::default());
    let mut planes: Vec<Arc<PlaneMeter>> = (0..32).map(|_| Arc::default()).collect();
    // Whatever their addresses are: these are in order here.
    planes.sort_by_key(|plane| Reverse(key(plane)));
    for (at, plane) in planes.iter().enumerate() {
        turns.push(plane, at, &time);
        turns.push(plane, 100 + at, &time);
    }
    let mut order = Vec::new();
    while let Some((plane, at, started)) = turns.pop(&time) {
        plane.flow().charge_actual(started, FIRST_COST);
        order.push(at);
    }
    assert_eq!(order, (0..32).chain(100..132).collect::<Vec<_>>());
}

#[test]
fn idle_time_earns_a_few_requests_and_no_more() {
    let time = VirtualTime::default();
    let (old, new) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    for _ in 0..1000 {
        request(&old, &time, FIRST_COST);
    }
    let mut turns = Turns::default();
    for _ in 0..1000 {
        turns.push(&old, "old", &time);
        turns.push(&new, "new", &time);
    }
    let mut of_new = 0;
    for _ in 0..200 {
        let (_, who, started) = turns.pop(&time).expect("one waits");
        let flow = if who == "new" { &new } else { &old };
        flow.flow().charge_actual(started, FIRST_COST);
        of_new += u64::from(who == "new");
    }
    // Of the others each plane has half.
    let most = CREDIT_REQUESTS + (200 - CREDIT_REQUESTS) / 2 + 1;
    assert!((99..=most).contains(&of_new), "{of_new} of 200");
}

#[test]
fn a_plane_that_was_charged_for_weeks_waits_for_a_bounded_part_of_the_others() {
    let time = VirtualTime::default();
    let (debtor, other) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    // While no plane takes turns, virtual time stands still.
    debtor.flow().charge(3_600_000_000_000);
    let (cost, mut turns) = (10_000_000, Turns::default());
    turns.push(&debtor, 0, &time);
    let mut served = 0;
    loop {
        turns.push(&other, 1, &time);
        let (_, at, started) = turns.pop(&time).expect("two planes wait");
        if at == 0 {
            debtor.flow().charge_actual(started, cost);
            break;
        }
        other.flow().charge_actual(started, cost);
        served += cost;
        assert!(served < 2 * DEBT_MAX, "the debtor does not get its turn");
    }
    assert!(served > DEBT_MAX / 2, "it waits for {served} only");
}

#[test]
fn what_turns_have_cost_is_not_dropped() {
    let (time, plane) = (VirtualTime::default(), Arc::<PlaneMeter>::default());
    let dear = plane.flow().start(&time);
    plane.flow().charge_actual(dear, 10 * DEBT_MAX);
    let owed = plane.flow().next_start(&time);
    let mut turns = Turns::default();
    turns.push(&plane, 0, &time);
    assert_eq!(plane.flow().next_start(&time), owed);
    // What is in flight gives back no more than it was charged.
    let (_, _, started) = turns.pop(&time).expect("it waits");
    plane.flow().charge(10 * DEBT_MAX);
    turns.push(&plane, 0, &time);
    plane.flow().charge_actual(started, 0);
    assert!(plane.flow().next_start(&time) < u64::MAX / 2);
}

#[test]
fn the_next_among_some_planes_is_the_one_that_has_used_the_least_of_them() {
    let (time, mut turns) = (VirtualTime::default(), Turns::default());
    let planes: Vec<Arc<PlaneMeter>> = (0..4).map(|_| Arc::default()).collect();
    for (at, plane) in planes.iter().enumerate() {
        turns.push(plane, at, &time);
        turns.push(plane, at, &time);
        // Known only after they have begun to wait.
        plane.flow().charge([40, 10, 30, 20][at] * CREDIT_MAX);
    }
    let may_go = |meter: &PlaneMeter| !std::ptr::eq(meter, &*planes[1]);
    let (_, next, started) = turns.pop_among(&time, may_go).expect("three may go");
    assert_eq!(next, 3);
    planes[3].flow().charge_actual(started, FIRST_COST);
    assert!(turns.pop_among(&time, |_| false).is_none());
    let mut order = Vec::new();
    while let Some((plane, at, started)) = turns.pop(&time) {
        plane.flow().charge_actual(started, FIRST_COST);
        order.push(at);
    }
    assert_eq!(order, [1, 1, 3, 2, 2, 0, 0]);
    assert!(turns.is_empty() && turns.order.is_empty() && turns.waiting.is_empty());
}

#[test]
fn a_plane_that_gives_up_in_debt_leaves_nothing() {
    let time = VirtualTime::default();
    let (debtor, other) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    debtor.flow().charge(3_600_000_000_000);
    let mut turns = Turns::default();
    let mut wanted: HashMap<usize, bool> = (0..100).map(|at| (at, true)).collect();
    for at in 0..100 {
        turns.push(&debtor, at, &time);
        turns.push(&other, 1000, &time);
    }
    for at in 0..100 {
        wanted.insert(at, false);
        turns.leave(&debtor, |at| wanted[at]);
        assert!(
            turns.len() - 100 <= 2 * (99 - at),
            "those gone are at most half"
        );
    }
    assert_eq!(
        (turns.len(), turns.waiting.len(), turns.order.len()),
        (100, 1, 1)
    );
    assert_eq!(Arc::strong_count(&debtor), 1);
    for _ in 0..100 {
        let (_, who, started) = turns.pop(&time).expect("one waits");
        other.flow().charge_actual(started, 1);
        assert_eq!(who, 1000);
    }
    assert!(turns.pop(&time).is_none());
    // Its debt is its own: it holds up nobody, and alone it does not wait.
    turns.push(&debtor, 0, &time);
    let (_, _, started) = turns.pop(&time).expect("nobody else waits");
    debtor.flow().charge_actual(started, 1);
}

#[test]
fn a_dear_answer_is_paid_for_by_waiting() {
    let time = VirtualTime::default();
    let (dear, cheap) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    request(&dear, &time, FIRST_COST);
    dear.flow().charge(100 * FIRST_COST);
    let mut turns = Turns::default();
    for _ in 0..50 {
        turns.push(&dear, "dear", &time);
        turns.push(&cheap, "cheap", &time);
    }
    for _ in 0..50 {
        let (_, who, started) = turns.pop(&time).expect("one waits");
        assert_eq!(who, "cheap");
        cheap.flow().charge_actual(started, FIRST_COST);
    }
}

/// A plane whose clients send their next request some time after they have read an answer.
struct Loops {
    flow: Arc<PlaneMeter>,
    streams: usize,
    answered: u64,
}

/// What the clients of all planes do between an answer and the next request.
#[derive(Clone, Copy)]
struct Away {
    /// The mean time between them.
    mean: u64,
    /// All clients stand still for this time...
    stall: u64,
    /// ...after each time as long as this; 0 for never.
    every: u64,
}

impl Away {
    /// Returns when a client is back that would be back at `at`.
    fn back(self, at: u64) -> u64 {
        match at.checked_rem(self.every) {
            Some(into) if into < self.stall => at - into + self.stall,
            Some(_) | None => at,
        }
    }
}

/// Lets planes with requests of `cost`, more or less, compete for `seats` until `end`.
fn loops(planes: &mut [Loops], seats: usize, (cost, away): (u64, Away), end: u64) {
    let mut random = 1_u64;
    let mut around = move |mean: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        mean / 2 + (random >> 33) % mean.max(1)
    };
    let (time, mut turns) = (VirtualTime::default(), Turns::default());
    // What ends next: the absence of a client, or a request with its turn.
    let mut ends: BinaryHeap<Reverse<(u64, usize, Option<u64>)>> = BinaryHeap::new();
    let mut started: HashMap<usize, Vec<Started>> = HashMap::new();
    for (at, plane) in planes.iter().enumerate() {
        ends.extend((0..plane.streams).map(|_| Reverse((around(away.mean), at, None))));
    }
    let mut running = 0;
    while let Some(Reverse((now, at, cost_of))) = ends.pop() {
        if now > end {
            return;
        }
        let plane = &mut planes[at];
        if let Some(cost) = cost_of {
            running -= 1;
            plane.answered += 1;
            let started = started.get_mut(&at).and_then(Vec::pop).expect("it ran");
            plane.flow.flow().charge_actual(started, cost);
            ends.push(Reverse((away.back(now + around(away.mean)), at, None)));
        } else {
            turns.push(&plane.flow, at, &time);
        }
        while running < seats {
            let Some((_, at, turn)) = turns.pop(&time) else {
                break;
            };
            running += 1;
            started.entry(at).or_default().push(turn);
            let cost = around(cost);
            ends.push(Reverse((now + cost, at, Some(cost))));
        }
    }
}

/// Lets a hundred planes compete, one of which has ten times the clients. A plane that has its fair share
/// gets an answer each `every`; `away` is made from that. Asserts that each gets its share.
fn assert_fair(seats: usize, cost: u64, away: impl Fn(u64) -> Away) {
    const PLANES: u64 = 100;
    let every = cost * PLANES / seats as u64;
    let mut planes: Vec<Loops> = (0..PLANES)
        .map(|at| Loops {
            flow: Arc::default(),
            streams: if at == 0 { 20 } else { 2 },
            answered: 0,
        })
        .collect();
    loops(&mut planes, seats, (cost, away(every)), every * 300);
    let all: u64 = planes.iter().map(|plane| plane.answered).sum();
    let fair = all as f64 / PLANES as f64;
    for (at, plane) in planes.iter().enumerate() {
        let share = plane.answered as f64 / fair;
        assert!(
            (0.9..1.1).contains(&share),
            "plane {at}: {share} with {seats} seats"
        );
    }
}

#[test]
fn a_plane_with_ten_times_the_loops_gets_no_more_than_its_share() {
    for (seats, cost, tenths) in [
        (1, 50_000, 1),
        (2, 50_000, 5),
        (2, 1_000_000, 10),
        (8, 300_000, 9),
    ] {
        assert_fair(seats, cost, |every| Away {
            mean: every * tenths / 10,
            stall: 0,
            every: 0,
        });
    }
}

/// Everything that waits is answered while the clients stand still, of the greedy plane ten times as
/// much. That must not be its share for good.
#[test]
fn clients_that_stall_now_and_then_lose_nothing_to_one_with_many_requests() {
    for (seats, cost) in [(1, 50_000), (2, 300_000)] {
        assert_fair(seats, cost, |every| Away {
            mean: every / 10,
            stall: every * 3,
            every: every * 60,
        });
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_stays(steps in proptest::collection::vec((0_usize..5, 0..4), 1..300)) {
        let time = VirtualTime::default();
        let flows: Vec<Arc<PlaneMeter>> = (0..5).map(|_| Arc::default()).collect();
        let mut turns = Turns::default();
        let (mut pushed, mut taken) = (0_usize, 0_usize);
        for (flow, step) in steps {
            if step < 2 {
                turns.push(&flows[flow], flow, &time);
                pushed += 1;
            } else if step == 2 {
                let before = turns.len();
                turns.leave(&flows[flow], |_| false);
                taken += before - turns.len();
            } else if let Some((meter, flow, started)) = turns.pop(&time) {
                prop_assert!(Arc::ptr_eq(&meter, &flows[flow]));
                meter.flow().charge_actual(started, 1000 * flow as u64);
                taken += 1;
            }
            prop_assert_eq!(turns.len(), pushed - taken);
        }
        while let Some((meter, _, started)) = turns.pop(&time) {
            meter.flow().charge_actual(started, 1);
            taken += 1;
        }
        prop_assert_eq!(pushed, taken);
        prop_assert!(turns.waiting.is_empty() && turns.order.is_empty());
    }

    #[test]
    fn two_planes_share_equally_whatever_their_requests_cost(
        first in 1_000_u64..2_000_000, second in 1_000_u64..2_000_000,
        depths in (1_usize..100, 1_usize..100), seats in 1_usize..8,
    ) {
        // A plane with fewer requests than seats cannot take half of them.
        let depths = (depths.0.max(seats), depths.1.max(seats));
        let mut planes = [greedy(first, depths.0), greedy(second, depths.1)];
        compete(&mut planes, seats, 2_000_000_000);
        let (a, b) = (planes[0].served, planes[1].served);
        let slack = (a + b) / 20 + 2 * seats as u64 * first.max(second);
        prop_assert!(a.abs_diff(b) <= slack, "{a} and {b}");
    }
}

#[test]
fn work_that_is_charged_as_it_arises_is_not_charged_in_advance_too() {
    let time = VirtualTime::default();
    let (worker, other) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    // The plane's few requests were dear, as those of a new plane are.
    for _ in 0..100 {
        request(&worker, &time, 100 * FIRST_COST);
    }
    let (finish, expected) = (
        worker.flow().next_start(&time),
        worker.flow().expected.load(Ordering::Relaxed),
    );
    for _ in 0..1000 {
        let started = worker.flow().start(&time);
        worker.flow().charge(FIRST_COST / 10);
        worker.flow().give_back(started);
    }
    let paid = worker.flow().next_start(&time) - finish;
    assert_eq!(paid, 1000 * (FIRST_COST / 10), "what the work cost");
    let now_expected = worker.flow().expected.load(Ordering::Relaxed);
    assert_eq!(now_expected, expected, "of a request");
    // Another plane waits no longer for it than for the last of that work.
    request(&other, &time, FIRST_COST);
    assert!(worker.flow().next_start(&time) <= other.flow().next_start(&time) + CREDIT_MAX);
}

#[test]
fn what_all_planes_need_has_a_part_of_the_time_beside_any_number_of_planes() {
    for (count, least, most) in [(3, 0.2, 0.3), (1000, 0.11, 0.14)] {
        let mut planes: Vec<Greedy> = (0..count).map(|_| greedy(200_000, 3)).collect();
        planes.push(greedy(100_000, 4));
        let reserved = planes.len() - 1;
        planes[reserved].flow.flow().reserve();
        compete(&mut planes, 4, 4_000_000_000);
        let all: u64 = planes.iter().map(|plane| plane.served).sum();
        let part = planes[reserved].served as f64 / all as f64;
        assert!((least..most).contains(&part), "{part} beside {count}");
    }
}

#[test]
fn a_request_that_cost_less_than_expected_does_not_hold_up_the_next() {
    let time = VirtualTime::default();
    let (plane, other) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
    // So far its requests were dear.
    for _ in 0..100 {
        request(&plane, &time, 1000 * FIRST_COST);
    }
    let mut turns = Turns::default();
    let dear = plane.flow().start(&time);
    turns.push(&plane, "waits meanwhile", &time);
    plane.flow().charge_actual(dear, 1);
    turns.push(&plane, "asks again", &time);
    request(&other, &time, 50 * FIRST_COST + CREDIT_MAX);
    turns.push(&other, "other", &time);
    let (_, first, started) = turns.pop(&time).expect("one waits");
    plane.flow().charge_actual(started, 1);
    assert_eq!(first, "waits meanwhile");
}
