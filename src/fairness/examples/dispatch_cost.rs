//! Measures what a request pays at its priority level, coming and going:
//! `cargo run --release -p polyplane-fairness --example dispatch_cost`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use polyplane_fairness::Moment;
use polyplane_fairness::levels::{Arrival, Dispatcher, Level, LevelKind, Levels, Queueing, Ticket};

const ROUNDS: u32 = 200_000;
/// Each figure is the smallest of so many.
const SAMPLES: usize = 7;
const SEATS: u32 = 600;

fn level(name: &str, shares: u32, lends: u32, kind: LevelKind) -> Arc<Level> {
    Arc::new(Level {
        name: name.into(),
        kind,
        shares,
        lendable_percent: lends,
        borrowing_percent: None,
    })
}

fn queue(queues: u32, hand_size: u32) -> LevelKind {
    LevelKind::Queue(Queueing {
        queues,
        hand_size,
        length_max: 50,
    })
}

struct Bench {
    plane: Dispatcher<u64>,
    config: Arc<Levels>,
    now: u64,
}

impl Bench {
    fn enter(&mut self, level: &Arc<Level>, hash: u64) -> Option<Ticket> {
        self.now += 1000;
        let arrival = Arrival {
            config: &self.config,
            level,
            hash,
            seats: 1,
        };
        let mut wake = |name: &mut u64| *name = black_box(*name);
        let entered = self.plane.enter(Moment(self.now), arrival, hash, &mut wake);
        entered.ok().map(|(ticket, _)| ticket)
    }

    fn finish(&mut self, ticket: Ticket) {
        self.now += 1000;
        let mut wake = |name: &mut u64| *name = black_box(*name);
        self.plane.finish(Moment(self.now), ticket, &mut wake);
    }
}

fn main() {
    let levels = vec![
        level("exempt", 0, 0, LevelKind::Exempt),
        level("system", 30, 33, queue(64, 6)),
        level("node-high", 40, 25, queue(64, 6)),
        level("leader-election", 10, 0, queue(16, 4)),
        level("workload-high", 40, 50, queue(128, 6)),
        level("workload-low", 100, 90, queue(128, 6)),
        level("global-default", 20, 50, queue(128, 6)),
        level("catch-all", 5, 0, LevelKind::Reject),
    ];
    let config = Arc::new(Levels::new(levels));
    for (name, beside) in [
        ("exempt", 0_u32),
        ("exempt", 20),
        ("catch-all", 0),
        ("global-default", 0),
        ("global-default", 20),
        ("global-default", 2000),
    ] {
        let level = Arc::clone(config.get(name).expect("it is there"));
        let mut nanos = f64::MAX;
        for _ in 0..SAMPLES {
            let mut bench = Bench {
                plane: Dispatcher::new(SEATS),
                config: Arc::clone(&config),
                now: 0,
            };
            for other in 0..beside {
                // Of many flows, so that many queues have requests.
                let hash = u64::from(other).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                bench.enter(&level, hash);
            }
            let began = Instant::now();
            for round in 0..ROUNDS {
                let hash = u64::from(round % 64).wrapping_mul(0xD134_2543_DE82_EF95);
                if let Some(ticket) = bench.enter(&level, hash) {
                    bench.finish(ticket);
                }
            }
            nanos = nanos.min(began.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
        println!("{name}, beside {beside} others: {nanos:.0} ns for coming and going");
    }
}
