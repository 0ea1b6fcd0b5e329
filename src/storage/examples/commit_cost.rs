//! Measures the cost of a durable 1 KB put on the embedded store: CPU and wall time, by number of
//! concurrent writers.
//!
//! Usage: `cargo run --release -p polyplane-storage --example commit_cost -- <folder> [puts]`

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use polyplane_storage::{Op, RangeRequest, SledOptions, SledStore, Store, Txn};

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

fn value(seed: u64) -> Bytes {
    let mut state = seed | 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (state >> 56).to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(1_000).collect()
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let folder = args.next().expect("a folder");
    let puts: u64 = args
        .next()
        .map_or(20_000, |text| text.parse().expect("a number of puts"));
    let store = SledStore::open(Path::new(&folder), SledOptions::default()).expect("opens");
    let store = Arc::new(store);
    // Pairs of the number of writers and of operations in one transaction.
    for (writers, ops) in [(1, 1), (8, 1), (64, 1), (1, 64), (8, 64)] {
        let puts = if writers * ops < 8 { puts / 10 } else { puts };
        let (cpu_before, before) = (cpu(), Instant::now());
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..writers {
            let (store, next) = (Arc::clone(&store), Arc::clone(&next));
            tasks.push(tokio::spawn(async move {
                loop {
                    let first = next.fetch_add(ops, Ordering::Relaxed);
                    if first >= puts {
                        return;
                    }
                    let ops = (first..first + ops).map(|number| {
                        // Five of six writes replace an existing key.
                        let key = format!("{:08}", number * 7_919 % (puts / 6).max(ops));
                        Op::Put {
                            key: key.into(),
                            value: value(number),
                            lease: None,
                        }
                    });
                    let txn = Txn {
                        compares: Vec::new(),
                        ops: ops.collect(),
                    };
                    store.commit(txn).await.expect("committed");
                }
            }));
        }
        for task in tasks {
            task.await.expect("ends");
        }
        let (cpu, wall) = (cpu() - cpu_before, before.elapsed());
        let each = |time: Duration| time.as_nanos() as f64 / 1e3 / puts as f64;
        println!(
            "{writers:>3} writers × {ops:>2}: {:>7.1} µs CPU, {:>7.1} µs per put",
            each(cpu),
            each(wall)
        );
    }
    let (cpu_before, before) = (cpu(), Instant::now());
    let (mut keys, mut request) = (0, Some(RangeRequest::between("", "")));
    while let Some(page) = request {
        let reply = store.range(page.clone()).await.expect("read");
        keys += reply.items.len();
        request = page.next_page(&reply);
    }
    println!(
        "range of {keys} keys: {:?} CPU, {:?}",
        cpu() - cpu_before,
        before.elapsed()
    );
    store.close().await;
    let before = Instant::now();
    let store = SledStore::open(Path::new(&folder), SledOptions::default()).expect("opens");
    println!("opened again in {:?}", before.elapsed());
    store.close().await;
}
