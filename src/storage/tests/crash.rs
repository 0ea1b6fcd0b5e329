//! kill −9 under concurrent writers, over and over: whatever was acknowledged is there, with its
//! revision, in the history and in its order.
//!
//! Then, a file that cannot grow: the engine's own writes fail in the middle of a batch, and the store
//! comes back by itself once the file can grow again.
//!
//! `POLYPLANE_CRASH_SMALL_DISK` names a folder on a small file system of its own; with it another
//! program takes all of that disk's space while 64 writers run, and gives it back.
//!
//! A program of its own, because it starts itself as the process to be killed. Rounds:
//! `POLYPLANE_CRASH_ROUNDS`, 20 unless set. Engine, both unless set: `POLYPLANE_CRASH_ENGINE`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use polyplane_storage::{
    CommitError, Compare, FjallOptions, FjallStore, Health, Op, RangeRequest, Revision,
    SledOptions, SledStore, Store, Txn,
};

const FOLDER: &str = "POLYPLANE_CRASH_FOLDER";
const LIMIT: &str = "POLYPLANE_CRASH_LIMIT";
const ENGINE: &str = "POLYPLANE_CRASH_ENGINE";
const SMALL_DISK: &str = "POLYPLANE_CRASH_SMALL_DISK";
const WRITERS: u64 = 64;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let engines = match std::env::var(ENGINE) {
        Ok(name) => vec![Engine::named(&name)],
        Err(_) => vec![Engine::Sled, Engine::Fjall],
    };
    let (folder, limit) = (std::env::var_os(FOLDER), std::env::var_os(LIMIT));
    for engine in engines {
        match (&folder, &limit) {
            (Some(folder), None) => runtime.block_on(write_for_ever(engine, Path::new(folder))),
            (Some(folder), Some(_)) => {
                runtime.block_on(write_past_a_limit(engine, Path::new(folder)));
            }
            (None, _) => {
                println!("crash: {engine:?}");
                runtime.block_on(rounds(engine));
                limited(engine);
                if let Some(disk) = std::env::var_os(SMALL_DISK) {
                    runtime.block_on(fill_and_free(engine, Path::new(&disk)));
                }
            }
        }
    }
}

/// The engine under test.
#[derive(Debug, Clone, Copy)]
enum Engine {
    Sled,
    Fjall,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Sled => "sled",
            Self::Fjall => "fjall",
        }
    }

    fn named(name: &str) -> Self {
        let all = [Self::Sled, Self::Fjall];
        let found = all.into_iter().find(|engine| engine.name() == name);
        found.expect("an engine")
    }

    fn open(self, folder: &Path, ballast_bytes: u64) -> Arc<dyn Store> {
        match self {
            Self::Sled => {
                let options = SledOptions {
                    ballast_bytes,
                    ..SledOptions::default()
                };
                Arc::new(SledStore::open(folder, options).expect("the store opens"))
            }
            Self::Fjall => {
                let options = FjallOptions {
                    ballast_bytes,
                    // Tables are made, merged and deleted while processes are killed.
                    memtable_bytes: 512 * 1024,
                    ..FjallOptions::default()
                };
                Arc::new(FjallStore::open(folder, options).expect("the store opens"))
            }
        }
    }

    /// Bytes of the file that batches are appended to.
    fn log_bytes(self, folder: &Path) -> u64 {
        let bytes = |path: &Path| std::fs::metadata(path).expect("there").len();
        match self {
            Self::Sled => bytes(&folder.join("db")),
            Self::Fjall => {
                let files = std::fs::read_dir(folder.join("fjall")).expect("listed");
                let paths = files.map(|file| file.expect("an entry").path());
                let journals = paths.filter(|path| path.extension().is_some_and(|e| e == "jnl"));
                journals.map(|path| bytes(&path)).max().expect("a journal")
            }
        }
    }
}

fn open(engine: Engine, folder: &Path) -> Arc<dyn Store> {
    engine.open(folder, 64 * 1024)
}

/// What a writer puts: derived from the name, so that the reader can tell it.
fn value(writer: u64, write: u64) -> Bytes {
    let size = match (writer + write) % 40 {
        0 => 40_000,
        n => n * 30,
    };
    let mut state = writer << 32 | write;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (state >> 56).to_le_bytes()[0]
    };
    let size = usize::try_from(size).expect("small");
    std::iter::repeat_with(next).take(size).collect()
}

async fn write_for_ever(engine: Engine, folder: &Path) {
    let store = open(engine, folder);
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.push(tokio::spawn(async move {
            let own = format!("own/{writer}");
            let mut last = store
                .get(own.as_bytes())
                .await
                .expect("read")
                .1
                .map(|kv| kv.modified);
            let start = store.revision().await.expect("read").0 << 16;
            for write in start.. {
                let own = Bytes::from(own.clone());
                let compare = match last {
                    Some(revision) => Compare::Unchanged {
                        key: own.clone(),
                        revision,
                    },
                    None => Compare::Absent { key: own.clone() },
                };
                let put = |key: Bytes, value| Op::Put {
                    key,
                    value,
                    lease: None,
                };
                let value = value(writer, write);
                let mut ops = vec![put(own, value.clone())];
                ops.push(put(format!("new/{writer}/{write}").into(), value));
                if write % 5 == 4 {
                    ops.push(Op::Delete {
                        key: format!("new/{writer}/{}", write - 2).into(),
                    });
                }
                let done = store
                    .commit(Txn {
                        compares: vec![compare],
                        ops,
                    })
                    .await;
                let revision = done.expect("committed").revision;
                last = Some(revision);
                let line = format!("{writer} {write} {revision}\n");
                std::io::stdout()
                    .lock()
                    .write_all(line.as_bytes())
                    .expect("told");
            }
        }));
    }
    for writer in writers {
        writer.await.expect("never");
    }
}

async fn rounds(engine: Engine) {
    let rounds = std::env::var("POLYPLANE_CRASH_ROUNDS").ok();
    let rounds: u64 = rounds.map_or(20, |text| text.parse().expect("a number of rounds"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut total = 0;
    let mut before = Revision(0);
    for round in 0..rounds {
        let acked = run_and_kill(
            engine,
            folder.path(),
            Duration::from_millis(60 + round * 37 % 200),
        );
        let started = Instant::now();
        let store = open(engine, folder.path());
        let took = started.elapsed();
        let head = check(&*store, before, &acked).await;
        store.close().await;
        total += acked.len();
        println!(
            "round {round}: {} acknowledged, head {head}, opened in {took:?}",
            acked.len()
        );
        before = head;
    }
    assert!(total > 0, "nothing was written");
    println!("crash: {rounds} rounds, {total} acknowledged, all there");
}

/// Starts a writer process, kills it some time after its first acknowledgement, and returns what
/// it was told: by revision, who wrote what.
fn run_and_kill(engine: Engine, folder: &Path, after: Duration) -> BTreeMap<u64, (u64, u64)> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .env(FOLDER, folder)
        .env(ENGINE, engine.name())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the writer process starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).split(b'\n');
    let mut acked = BTreeMap::new();
    let mut deadline = None;
    let mut killed = false;
    // After the kill, what is left in the pipe was acknowledged, too. A torn line was not told.
    while let Some(Ok(line)) = lines.next() {
        let text = String::from_utf8(line).expect("text");
        let numbers: Vec<u64> = text
            .split(' ')
            .filter_map(|number| number.parse().ok())
            .collect();
        if let [writer, write, revision] = numbers[..] {
            let twice = acked.insert(revision, (writer, write));
            assert_eq!(twice, None, "revision {revision} was acknowledged twice");
        }
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + after);
        if !killed && Instant::now() >= deadline {
            child.kill().expect("killed");
            killed = true;
        }
    }
    child.wait().expect("gone");
    assert!(killed, "the writer process ended by itself");
    acked
}

async fn check(store: &dyn Store, before: Revision, acked: &BTreeMap<u64, (u64, u64)>) -> Revision {
    let history = store
        .history("".into(), "".into(), before)
        .await
        .expect("the history is there");
    let mut by_revision: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for event in history.events {
        by_revision.entry(event.revision.0).or_default().push(event);
    }
    let head = history.revision;
    let dense: Vec<u64> = (before.0 + 1..=head.0).collect();
    assert!(
        by_revision.keys().copied().eq(dense),
        "every revision has its events, once"
    );
    let mut owned: BTreeMap<u64, Bytes> = BTreeMap::new();
    for (revision, (writer, write)) in acked {
        let events = by_revision
            .get(revision)
            .expect("an acknowledged revision is there");
        let wanted = value(*writer, *write);
        let [own, new, ..] = &events[..] else {
            panic!("revision {revision} lacks events")
        };
        assert_eq!(own.key, format!("own/{writer}"));
        assert_eq!(new.key, format!("new/{writer}/{write}"));
        assert!(own.value.as_ref() == Some(&wanted) && new.value.as_ref() == Some(&wanted));
        if let Some(previous) = owned.insert(*writer, wanted) {
            assert!(
                own.previous == Some(previous),
                "the previous value is that of its last write"
            );
        }
        let events = events.len();
        assert_eq!(
            events,
            if write % 5 == 4 && deleted(write, before) {
                3
            } else {
                events
            }
        );
    }
    head
}

/// Whether the write two before this one was one of the same process, so that its key was there.
fn deleted(write: &u64, before: Revision) -> bool {
    write & 0xFFFF >= 2 && write >> 16 == before.0
}

/// Starts the process whose files cannot grow, without the signal that would kill it for trying.
fn limited(engine: Engine) {
    let folder = tempfile::tempdir().expect("a folder");
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\""])
        .arg(std::env::current_exe().expect("this program"))
        .env(FOLDER, folder.path())
        .env(LIMIT, "1")
        .env(ENGINE, engine.name())
        .status()
        .expect("the process starts");
    assert!(status.success(), "writing past a limit: {status}");
}

fn limit_files(bytes: Option<u64>) {
    let resource = rustix::process::Resource::Fsize;
    let old = rustix::process::getrlimit(resource);
    let limit = rustix::process::Rlimit {
        current: bytes,
        maximum: old.maximum,
    };
    rustix::process::setrlimit(resource, limit).expect("a soft limit may always be moved");
}

async fn write_past_a_limit(engine: Engine, folder: &Path) {
    let store = open(engine, folder);
    let mut acked: BTreeMap<String, (Revision, Bytes)> = BTreeMap::new();
    for round in 0..4_u64 {
        limit_files(Some(engine.log_bytes(folder) + 700_000));
        let mut failed = None;
        for number in 0..100 {
            let (key, value) = (format!("{round}/{number}"), value(0, number * 40));
            let op = Op::Put {
                key: key.clone().into(),
                value: value.clone(),
                lease: None,
            };
            match store
                .commit(Txn {
                    compares: vec![],
                    ops: vec![op],
                })
                .await
            {
                Ok(committed) => _ = acked.insert(key, (committed.revision, value)),
                Err(error) => {
                    failed.get_or_insert((key, value, error));
                    break;
                }
            }
        }
        let (key, failed_value, error) = failed.expect("the limit is reached");
        assert_ne!(store.health(), Health::Ok, "after {error:?}");
        limit_files(None);
        // The store looks for itself, once a second.
        let deadline = Instant::now() + Duration::from_secs(30);
        while store.health() != Health::Ok {
            assert!(
                Instant::now() < deadline,
                "never recovered: {:?}",
                store.health()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let found = store.get(key.as_bytes()).await.expect("read").1;
        match error {
            CommitError::Rejected(_) => assert_eq!(found, None, "rejected is final"),
            CommitError::Unknown(_) => {
                assert!(
                    found.is_none_or(|found| found.value == failed_value),
                    "all or nothing"
                );
            }
            CommitError::Refused { .. } => panic!("nothing was compared"),
            CommitError::Undisclosed(..) => panic!("an embedded store says what it did"),
        }
        for (key, (revision, value)) in &acked {
            let found = store
                .get(key.as_bytes())
                .await
                .expect("read")
                .1
                .expect("acknowledged");
            assert!(
                found.modified == *revision && found.value == *value,
                "{key} is as it was"
            );
        }
        println!(
            "limit {round}: {} acknowledged, then {error:?}",
            acked.len()
        );
    }
    let range = RangeRequest::between("", "");
    let before = store.range(range.clone()).await.expect("read");
    store.close().await;
    let store = open(engine, folder);
    assert!(
        store.range(range).await.expect("read").items == before.items,
        "opened as it was"
    );
    store.close().await;
}

/// Waits for the store to notice that its disk is well; it looks once a second.
async fn recovered(store: &dyn Store) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.health() != Health::Ok {
        assert!(
            Instant::now() < deadline,
            "never recovered: {:?}",
            store.health()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn fill_and_free(engine: Engine, disk: &Path) {
    let store = engine.open(&disk.join(engine.name()), 4 * 1024 * 1024);
    let mut all = BTreeMap::new();
    for round in 0..3 {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let store = Arc::clone(&store);
            writers.push(tokio::spawn(async move {
                let mut acked = Vec::new();
                for write in 0.. {
                    let (key, value) = (
                        format!("{round}/{writer}/{}", write % 3),
                        value(writer, write),
                    );
                    let op = Op::Put {
                        key: key.clone().into(),
                        value: value.clone(),
                        lease: None,
                    };
                    match store
                        .commit(Txn {
                            compares: vec![],
                            ops: vec![op],
                        })
                        .await
                    {
                        Ok(committed) => acked.push((key, committed.revision, value)),
                        Err(error) => return (acked, error),
                    }
                }
                unreachable!("writes until it fails")
            }));
        }
        let filler = disk.join("filler");
        let mut file = std::fs::File::create(&filler).expect("created");
        while file.write_all(&[7; 64 * 1024]).is_ok() {}
        // Its space is given back when the last handle goes, too.
        drop(file);
        let mut unknown = 0;
        let mut newest = BTreeMap::new();
        for writer in writers {
            let (acked, error) = writer.await.expect("the writer ends");
            newest.extend(
                acked
                    .into_iter()
                    .map(|(key, revision, value)| (key, (revision, value))),
            );
            unknown += u64::from(matches!(error, CommitError::Unknown(_)));
        }
        assert_ne!(store.health(), Health::Ok);
        println!(
            "full disk {round}: {} keys, {unknown} unknown, {:?}",
            newest.len(),
            store.health()
        );
        all.extend(newest);
        check_all(&*store, &all).await;
        std::fs::remove_file(&filler).expect("removed");
        recovered(&*store).await;
        let op = Op::Put {
            key: "after".into(),
            value: "x".into(),
            lease: None,
        };
        store
            .commit(Txn {
                compares: vec![],
                ops: vec![op],
            })
            .await
            .expect("writes go again");
        check_all(&*store, &all).await;
    }
    store.close().await;
    let store = engine.open(&disk.join(engine.name()), 4 * 1024 * 1024);
    check_all(&*store, &all).await;
    store.close().await;
}

/// Every acknowledged value is there, or a newer one whose writer was not told.
async fn check_all(store: &dyn Store, all: &BTreeMap<String, (Revision, Bytes)>) {
    for (key, (revision, value)) in all {
        let found = store
            .get(key.as_bytes())
            .await
            .expect("reads go on")
            .1
            .expect("there");
        assert!(found.modified >= *revision, "{key} fell back");
        assert!(
            found.modified > *revision || found.value == *value,
            "{key} is another"
        );
    }
}
