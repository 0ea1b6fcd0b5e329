//! What durable puts of 1 KB cost on the embedded engines: CPU, time, bytes written, disk, memory.
//!
//! `cargo run --release -p polyplane-storage --example commit_cost -- <folder> [rounds] [puts] [keys]`
//!
//! Each engine runs in a process and a folder of its own, by turns: `rounds` times commits by one and
//! by many writers, `puts` each, then once a store of `keys` keys (0 for none), which is opened again. Each
//! line is what one process measured; compare the lines of one round.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use polyplane_storage::{
    FjallOptions, FjallStore, Op, RangeRequest, SledOptions, SledStore, Store, Txn,
};

const ENGINES: [&str; 2] = ["sled", "fjall"];
/// Set for a process that measures: the engine and what to measure.
const PART: &str = "POLYPLANE_COST_PART";
/// (writers, operations in one transaction)
const SHAPES: [(u64, u64); 5] = [(1, 1), (8, 1), (64, 1), (1, 64), (8, 64)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = PathBuf::from(arguments.first().expect("a folder"));
    let number = |at: usize, otherwise| {
        let text = arguments.get(at);
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (rounds, puts, keys) = (number(1, 3), number(2, 20_000), number(3, 0));
    if let Ok(part) = std::env::var(PART) {
        let (engine, part) = part.split_once(' ').expect("an engine and a part");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        return runtime.block_on(async {
            match part {
                "commits" => commits(engine, &folder, puts).await,
                "fill" => fill(engine, &folder, keys).await,
                _ => open_again(engine, &folder).await,
            }
        });
    }
    let run = |engine: &str, part: &str| {
        let status = Command::new(std::env::current_exe().expect("this program"))
            .arg(folder.join(engine))
            .args([rounds, puts, keys].map(|number| number.to_string()))
            .env(PART, format!("{engine} {part}"))
            .status();
        assert!(status.expect("it starts").success(), "{engine} {part}");
    };
    let clear = |engine: &str| _ = std::fs::remove_dir_all(folder.join(engine));
    for round in 0..rounds {
        println!("round {round}");
        // Each engine goes first in turn: a disk may be fast until it has had a number of writes.
        let mut engines = ENGINES;
        engines.rotate_left(usize::try_from(round).expect("small") % ENGINES.len());
        for engine in engines {
            clear(engine);
            run(engine, "commits");
            clear(engine);
        }
    }
    for engine in ENGINES.iter().filter(|_| keys > 0) {
        run(engine, "fill");
        run(engine, "open");
        run(engine, "open");
        clear(engine);
    }
}

fn open(engine: &str, folder: &Path) -> Arc<dyn Store> {
    match engine {
        "sled" => Arc::new(SledStore::open(folder, SledOptions::default()).expect("opens")),
        _ => Arc::new(FjallStore::open(folder, FjallOptions::default()).expect("opens")),
    }
}

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// A number of a line of a file of this process, by the word that the line begins with.
fn counter(file: &str, word: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).expect("there is one");
    let line = text.lines().find(|line| line.starts_with(word));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.map_or(0, |number| number.parse().expect("a number"))
}

fn written() -> u64 {
    counter("io", "write_bytes:")
}

fn memory_mb() -> f64 {
    counter("status", "RssAnon:") as f64 / 1024.0
}

fn disk_mb(folder: &Path) -> f64 {
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // Deleted meanwhile.
                Err(_) => {}
            }
        }
    }
    bytes as f64 / 1e6
}

/// Letters at random, which hardly compress.
fn value(seed: u64) -> Bytes {
    let mut state = seed | 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let byte = (state >> 56).to_le_bytes()[0];
        b'a' + byte % 23
    };
    std::iter::repeat_with(next).take(1_000).collect()
}

/// Puts `puts` values to keys below `keys`, and returns how long each transaction took.
async fn put_all(
    store: &Arc<dyn Store>,
    (writers, ops): (u64, u64),
    puts: u64,
    key: fn(u64, u64) -> u64,
    keys: u64,
) -> Vec<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..writers {
        let (store, next) = (Arc::clone(store), Arc::clone(&next));
        tasks.push(tokio::spawn(async move {
            let mut took = Vec::new();
            loop {
                let first = next.fetch_add(ops, Ordering::Relaxed);
                if first >= puts {
                    return took;
                }
                let ops = (first..first + ops).map(|number| Op::Put {
                    key: format!(
                        "group/kind/space-{:04}/{:08}",
                        key(number, keys) % 1_000,
                        key(number, keys)
                    )
                    .into(),
                    value: value(number),
                    lease: None,
                });
                let txn = Txn {
                    compares: Vec::new(),
                    ops: ops.collect(),
                };
                let began = Instant::now();
                store.commit(txn).await.expect("committed");
                took.push(began.elapsed());
            }
        }));
    }
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("ends"));
    }
    took.sort();
    took
}

async fn commits(engine: &str, folder: &Path, puts: u64) {
    let store = open(engine, folder);
    for shape in SHAPES {
        let (writers, ops) = shape;
        let puts = if writers * ops < 8 { puts / 4 } else { puts };
        let (cpu_before, written_before, before) = (cpu(), written(), Instant::now());
        // Five of six writes replace.
        let scatter = |number: u64, keys: u64| number * 7_919 % keys;
        let took = put_all(&store, shape, puts, scatter, (puts / 6).max(ops)).await;
        let (cpu, wall) = (cpu() - cpu_before, before.elapsed());
        let each = |time: Duration| time.as_nanos() as f64 / 1e3 / puts as f64;
        let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_micros();
        println!(
            "{engine:>5} {writers:>3} writers × {ops:>2}: {:>6.1} µs CPU {:>6.1} µs a put, \
             commit p50 {:>5} p99 {:>6} µs, {:>5.0} bytes a put written",
            each(cpu),
            each(wall),
            at(50),
            at(99),
            (written() - written_before) as f64 / puts as f64,
        );
    }
    println!(
        "{engine:>5} memory {:.0} MB, disk {:.0} MB",
        memory_mb(),
        disk_mb(folder)
    );
    store.close().await;
    let before = Instant::now();
    let store = open(engine, folder);
    println!("{engine:>5} opened again in {:.1?}", before.elapsed());
    store.close().await;
}

async fn fill(engine: &str, folder: &Path, keys: u64) {
    let store = open(engine, folder);
    let report = |what: &str, began: (Duration, u64, Instant), puts: u64| {
        println!(
            "{engine:>5} {what} {puts} keys: {:.1?}, {:.1} µs CPU and {:.0} bytes written a put, \
             memory {:.0} MB, disk {:.0} MB",
            began.2.elapsed(),
            (cpu() - began.0).as_nanos() as f64 / 1e3 / puts as f64,
            (written() - began.1) as f64 / puts as f64,
            memory_mb(),
            disk_mb(folder),
        );
    };
    let began = (cpu(), written(), Instant::now());
    let scatter = |number: u64, keys: u64| number * 7_919 % keys;
    put_all(&store, (8, 64), keys, scatter, keys).await;
    report("filled", began, keys);
    let began = (cpu(), written(), Instant::now());
    let again = |number: u64, keys: u64| number * 104_729 % keys;
    put_all(&store, (8, 64), keys / 2, again, keys).await;
    report("replaced", began, keys / 2);
    let (cpu_before, before, reads) = (cpu(), Instant::now(), 20_000);
    for number in 0..reads {
        let number = number * 49_999 % keys;
        let key = format!("group/kind/space-{:04}/{number:08}", number % 1_000);
        let (_, found) = store.get(key.as_bytes()).await.expect("read");
        found.expect("it was put");
    }
    println!(
        "{engine:>5} read a key in {:.1} µs, {:.1} µs CPU",
        before.elapsed().as_nanos() as f64 / 1e3 / reads as f64,
        (cpu() - cpu_before).as_nanos() as f64 / 1e3 / reads as f64,
    );
    store.close().await;
    println!("{engine:>5} closed: disk {:.0} MB", disk_mb(folder));
}

async fn open_again(engine: &str, folder: &Path) {
    let (cpu_before, before) = (cpu(), Instant::now());
    let store = open(engine, folder);
    println!(
        "{engine:>5} opened in {:.1?}, {:.1?} CPU, memory {:.0} MB",
        before.elapsed(),
        cpu() - cpu_before,
        memory_mb(),
    );
    let (cpu_before, before) = (cpu(), Instant::now());
    let (mut keys, mut request) = (0, Some(RangeRequest::between("", "")));
    while let Some(page) = request {
        let reply = store.range(page.clone()).await.expect("read");
        keys += reply.items.len();
        request = page.next_page(&reply);
    }
    println!(
        "{engine:>5} range of {keys} keys: {:.1?}, {:.1?} CPU, memory {:.0} MB",
        before.elapsed(),
        cpu() - cpu_before,
        memory_mb(),
    );
    store.close().await;
}
