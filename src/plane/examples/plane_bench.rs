//! Measures how many microseconds of CPU a put, a get, a list and a watched event cost in one plane
//! over a store in memory: `cargo run --release -p polyplane-plane --example plane_bench`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use polyplane_plane::{
    Committer, Flags, Key, NewObject, Next, Operation, Plane, Prefix, SoleHolder, Start, WatchFrom,
    WatchScope, Write,
};
use polyplane_storage::{MemoryOptions, MemoryStore, Store};

const OBJECTS: usize = 20_000;
const WRITERS: usize = 64;

fn object(name: &str, value: &str) -> NewObject {
    let head = format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","#);
    let body =
        format!(r#"{head}"creationTimestamp":"2026-01-01T00:00:00Z"}},"data":{{"k":"{value}"}}}}"#);
    NewObject {
        version_slot: head.len(),
        body: body.into(),
        labels: None,
        storage_version: "v1".into(),
        expires: None,
        flags: Flags::NONE,
    }
}

fn key(at: usize) -> Key {
    Key::new("", "configmaps", Some("ns"), &format!("object-{at:06}"))
}

async fn open() -> Arc<Plane> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let guard = SoleHolder::take(store.clone(), "f/a", "bench").await;
    let guard = guard.expect("a new store takes a fence");
    let params = guard.empty_plane(Committer::new(store));
    Plane::open(params).await.expect("a new store can be read")
}

/// Runs `work` for `count` items and prints the CPU time of the process per item.
async fn measure<F: Future>(what: &str, count: usize, work: F) -> F::Output {
    let (cpu, wall) = (cpu_micros(), Instant::now());
    let output = work.await;
    let per_item = (cpu_micros() - cpu) / count as f64;
    println!("{what:<28} {per_item:>8.2} µs CPU  {:>8.2} µs wall", {
        wall.elapsed().as_secs_f64() * 1e6 / count as f64
    });
    output
}

fn cpu_micros() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let own = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    own.unwrap_or_default() / 1e3
}

async fn put_all(plane: &Arc<Plane>, value: &str) {
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let plane = Arc::clone(plane);
        let value = value.to_owned();
        tasks.push(tokio::spawn(async move {
            for at in (writer..OBJECTS).step_by(WRITERS) {
                let name = format!("object-{at:06}");
                let put = Operation::Put {
                    key: key(at),
                    object: object(&name, &value),
                };
                let write = Write {
                    operations: vec![put],
                    ..Write::default()
                };
                plane.submit(write).await.expect("nothing refuses it");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no writer panics");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let plane = open().await;
    let value = "x".repeat(1000);
    measure("create, 64 writers", OBJECTS, put_all(&plane, &value)).await;
    measure("update, 64 writers", OBJECTS, put_all(&plane, &value)).await;

    let cut = plane.snapshot();
    measure("snapshot and get", OBJECTS, async {
        for at in 0..OBJECTS {
            let found = plane.snapshot().get(&key(at * 7919 % OBJECTS));
            black_box(found.map(|object| object.body()));
        }
    })
    .await;
    let prefix = Prefix::resource("", "configmaps");
    measure("list of 100", OBJECTS / 10, async {
        for at in 0..OBJECTS / 10 {
            let from = key(at);
            let page = cut.range(&prefix, Start::At(from.as_bytes())).take(100);
            for object in page {
                black_box(object.body());
            }
        }
    })
    .await;

    let mut watchers = Vec::new();
    for _ in 0..100 {
        let scope = WatchScope::Prefix(prefix.clone());
        let watcher = plane.watch(scope, WatchFrom::Now).await;
        watchers.push(watcher.expect("now is inside the log"));
    }
    let tasks: Vec<_> = watchers
        .into_iter()
        .map(|mut watcher| {
            tokio::spawn(async move {
                let mut seen = 0;
                while seen < OBJECTS {
                    match watcher.next().await {
                        Next::Events(events) => seen += events.len(),
                        Next::Bookmark(_) => {}
                        Next::Lagged | Next::Closed(_) => break,
                    }
                }
                seen
            })
        })
        .collect();
    let seen = measure("update, 100 watchers", OBJECTS, async {
        put_all(&plane, &value).await;
        let mut seen = 0;
        for task in tasks {
            seen += task.await.expect("no watcher panics");
        }
        seen
    })
    .await;
    println!("{seen} events were seen; {:?}", plane.stats());
}
