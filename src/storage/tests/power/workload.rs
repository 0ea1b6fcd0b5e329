//! The recorded program, and what must be true of any disk that it leaves.
//!
//! One task commits transactions that their revision determines, so what a store must hold follows
//! from its revision alone.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use polyplane_storage::{
    CommitError, FjallOptions, FjallStore, Health, Op, OpenError, RangeRequest, ReadError,
    Revision, SledOptions, SledStore, Store, Txn,
};
use tokio::runtime::Runtime;

use crate::disk::{Disk, Image};
use crate::random::Random;

pub(crate) const FOLDER: &str = "POLYPLANE_POWER_FOLDER";
pub(crate) const PLAN: &str = "POLYPLANE_POWER_PLAN";
pub(crate) const KIND: &str = "POLYPLANE_POWER_KIND";
pub(crate) const ENGINE: &str = "POLYPLANE_POWER_ENGINE";
/// Set if syncs of the program fail.
pub(crate) const FAILS: &str = "POLYPLANE_POWER_FAILS";

/// Commits between two syncs of the acknowledged bound, as the store has it.
const BOUND_COMMITS: u64 = 256;
/// Commits between two compactions of the kind that has them.
const COMPACT_COMMITS: u64 = 5;
/// Longest time that a store takes to write again after a sync that failed.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

/// What is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Values from nothing to 20 kB.
    Mixed,
    /// Values of some bytes.
    Small,
    /// Puts to four keys with values of 40 kB to 60 kB, and compactions, so that the engine reuses
    /// space.
    Churn,
    /// Now and then a value that fills several segments of the engine's log.
    Bulk,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Small => "small",
            Self::Churn => "churn",
            Self::Bulk => "bulk",
        }
    }

    fn named(name: &str) -> Self {
        let all = [Self::Mixed, Self::Small, Self::Churn, Self::Bulk];
        let found = all.into_iter().find(|kind| kind.name() == name);
        found.expect("a kind")
    }

    fn value(self, revision: u64) -> Bytes {
        let sizes = match self {
            Self::Mixed => [90, 3_000, 0, 20_000, 700],
            Self::Small => [20, 30, 40, 50, 60],
            Self::Churn => [50_000, 45_000, 55_000, 40_000, 60_000],
            Self::Bulk => [1_400_000, 100, 300_000, 200, 1_500_000],
        };
        let size = sizes[usize::try_from(revision % 5).expect("small")];
        let mut random = Random::new(revision);
        let mut bytes = Vec::with_capacity(size + 8);
        while bytes.len() < size {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        bytes.truncate(size);
        bytes.into()
    }

    /// Keys that a revision puts, and those that it deletes.
    fn keys(self, revision: u64) -> (Vec<String>, Vec<String>) {
        match self {
            Self::Churn | Self::Bulk => (vec![format!("{}", revision % 4)], vec![]),
            Self::Small => (vec![format!("{}", revision % 7)], vec![]),
            Self::Mixed => {
                let old = revision.is_multiple_of(3).then(|| revision - 2);
                let old = old.map(|old| format!("new/{old}"));
                let new = vec!["own".to_owned(), format!("new/{revision}")];
                (new, old.into_iter().collect())
            }
        }
    }

    fn txn(self, revision: u64) -> Txn {
        let (put, deleted) = self.keys(revision);
        let puts = put.into_iter().map(|key| Op::Put {
            key: key.into(),
            value: self.value(revision),
            lease: None,
        });
        let deletes = deleted
            .into_iter()
            .map(|key| Op::Delete { key: key.into() });
        Txn {
            compares: vec![],
            ops: puts.chain(deletes).collect(),
        }
    }

    /// All keys as of a revision.
    fn state(self, revision: u64) -> BTreeMap<Bytes, (Revision, Bytes)> {
        let mut modified = BTreeMap::new();
        for at in 1..=revision {
            let (put, deleted) = self.keys(at);
            modified.extend(put.into_iter().map(|key| (key, at)));
            for key in deleted {
                modified.remove(&key);
            }
        }
        let state = modified.into_iter();
        state
            .map(|(key, at)| (key.into(), (Revision(at), self.value(at))))
            .collect()
    }
}

/// The engine under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Engine {
    Sled,
    Fjall,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sled => "sled",
            Self::Fjall => "fjall",
        }
    }

    pub(crate) fn named(name: &str) -> Self {
        let all = [Self::Sled, Self::Fjall];
        let found = all.into_iter().find(|engine| engine.name() == name);
        found.expect("an engine")
    }

    fn open(self, folder: &Path) -> Result<Arc<dyn Store>, OpenError> {
        let (ballast_bytes, cache_bytes, reader_threads) = (64 * 1024, 8 * 1024 * 1024, 1);
        match self {
            Self::Sled => {
                let options = SledOptions {
                    ballast_bytes,
                    cache_bytes,
                    reader_threads,
                    ..SledOptions::default()
                };
                Ok(Arc::new(SledStore::open(folder, options)?))
            }
            Self::Fjall => {
                let options = FjallOptions {
                    ballast_bytes,
                    cache_bytes,
                    reader_threads,
                    // Tables are made, merged and deleted while a program runs.
                    memtable_bytes: 96 * 1024,
                    ..FjallOptions::default()
                };
                Ok(Arc::new(FjallStore::open(folder, options)?))
            }
        }
    }
}

fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime")
}

fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    let written = writeln!(output, "{text}").and_then(|()| output.flush());
    written.expect("the output takes it");
}

/// The recorded program.
pub(crate) fn program(folder: &Path) {
    let plan = std::env::var(PLAN).expect("a plan");
    let kind = Kind::named(&std::env::var(KIND).expect("a kind"));
    let engine = Engine::named(&std::env::var(ENGINE).expect("an engine"));
    let fails = std::env::var_os(FAILS).is_some();
    let runtime = runtime();
    let mut open: Option<Arc<dyn Store>> = None;
    for word in plan.split(' ') {
        match (word.split_once(':'), open.take()) {
            (None, None) if word == "open" => {
                say("step opening");
                match engine.open(folder) {
                    Ok(store) => {
                        let head = runtime.block_on(store.revision()).expect("open");
                        say(&format!("shown {head}"));
                        open = Some(store);
                    }
                    // An operator starts the program again, which is the next one in the recording.
                    Err(OpenError::Io { .. } | OpenError::Damaged { .. }) if fails => return,
                    Err(OpenError::Damaged { .. }) => say("refused"),
                    Err(error) => panic!("{error}"),
                }
                say("loop serving");
            }
            (None, Some(store)) if word == "close" => {
                let head = runtime.block_on(store.revision()).expect("open");
                say("step closing");
                runtime.block_on(store.close());
                // The bound is only a lower one if it cannot be synced.
                if !fails {
                    say(&format!("kept {head}"));
                }
                say("step ended");
            }
            (Some(("commit", count)), Some(store)) => {
                let count = count.parse().expect("a count");
                match fails {
                    true => runtime.block_on(commit_and_recover(&*store, kind, count)),
                    false => runtime.block_on(commit(&*store, kind, count)),
                }
                open = Some(store);
            }
            _ => panic!("{word} is not possible now"),
        }
    }
}

async fn commit(store: &dyn Store, kind: Kind, count: u64) {
    let first = store.revision().await.expect("open").0 + 1;
    for revision in first..first + count {
        say(&format!("trying {revision}"));
        let committed = store.commit(kind.txn(revision)).await.expect("committed");
        assert_eq!(committed.revision.0, revision);
        say(&format!("shown {revision}"));
        if matches!(kind, Kind::Churn | Kind::Bulk) && revision.is_multiple_of(COMPACT_COMMITS) {
            let below = Revision(revision - 1);
            store.compact(below).await.expect("compacted");
        }
        if (revision + 1 - first).is_multiple_of(BOUND_COMMITS) {
            say(&format!("kept {revision}"));
        }
    }
}

/// As [`commit`], with a disk whose syncs fail now and then.
async fn commit_and_recover(store: &dyn Store, kind: Kind, count: u64) {
    let mut next = store.revision().await.expect("open").0 + 1;
    let end = next + count;
    while next < end {
        let revision = next;
        say(&format!("trying {revision}"));
        match store.commit(kind.txn(revision)).await {
            Ok(committed) => {
                assert_eq!(committed.revision.0, revision);
                say(&format!("shown {revision}"));
                next += 1;
            }
            Err(error) => {
                let is_rejected = matches!(error, CommitError::Rejected(_));
                if is_rejected {
                    say(&format!("rejected {revision}"));
                }
                let head = recovered(store).await;
                assert!(!is_rejected || head < revision, "rejected is final");
                next = head + 1;
            }
        }
        if matches!(kind, Kind::Churn | Kind::Bulk) && revision.is_multiple_of(COMPACT_COMMITS) {
            match store.compact(Revision(next - 1)).await {
                Ok(()) => {}
                Err(ReadError::Unavailable(_)) => next = recovered(store).await + 1,
                Err(error) => panic!("not compacted: {error}"),
            }
        }
    }
}

/// Waits until a store takes writes again, and returns the revision that it shows.
async fn recovered(store: &dyn Store) -> u64 {
    let deadline = Instant::now() + RECOVERY_MAX;
    while store.health() != Health::Ok {
        let health = store.health();
        assert!(Instant::now() < deadline, "never recovered: {health:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let head = store.revision().await.expect("open").0;
    say(&format!("shown {head}"));
    head
}

/// What must be true of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Expected {
    pub(crate) engine: Engine,
    pub(crate) kind: Kind,
    /// The newest revision that the program acknowledged or showed.
    pub(crate) shown: u64,
    /// The newest one it asked for.
    pub(crate) tried: u64,
    /// The bound below which a store is refused must be durable up to here.
    pub(crate) kept: u64,
    /// Set for a damaged store: it must be refused, with these files as they were.
    pub(crate) damaged: Option<Image>,
}

impl Expected {
    pub(crate) fn new(engine: Engine, kind: Kind) -> Self {
        Self {
            engine,
            kind,
            shown: 0,
            tried: 0,
            kept: 0,
            damaged: None,
        }
    }

    /// With what the program had said before a moment.
    pub(crate) fn at(&self, disk: &Disk, moment: u64) -> Self {
        let mut expected = self.clone();
        for said in disk.said.iter().filter(|said| said.at < moment) {
            let Some((word, number)) = said.text.split_once(' ') else {
                continue;
            };
            let counter = match word {
                "shown" => &mut expected.shown,
                "trying" => &mut expected.tried,
                "kept" => &mut expected.kept,
                "rejected" => {
                    expected.tried = number.parse::<u64>().expect("a number") - 1;
                    continue;
                }
                _ => continue,
            };
            *counter = number.parse::<u64>().expect("a number").max(*counter);
        }
        expected.tried = expected.tried.max(expected.shown);
        expected
    }

    /// Opens a store as it would be opened after the cut, and says what is lost or broken.
    pub(crate) fn check(&self, folder: &Path, again: bool) -> Result<(), String> {
        if self.kept > 0 {
            let bound = std::fs::read(folder.join("acked")).unwrap_or_default();
            let bound = bound
                .first_chunk()
                .map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if bound < self.kept {
                return Err(format!("the bound is {bound} and was {}", self.kept));
            }
        }
        let opened = self.engine.open(folder);
        if let Some(files) = &self.damaged {
            return match opened {
                Err(OpenError::Damaged { .. }) if stored(folder) == *files => Ok(()),
                Err(OpenError::Damaged { .. }) => Err("refused, but altered".to_owned()),
                Err(error) => Err(format!("not refused as damaged: {error}")),
                Ok(_) => Err("not refused".to_owned()),
            };
        }
        let store = opened.map_err(|error| format!("refused: {error}"))?;
        let runtime = runtime();
        let result = runtime.block_on(self.check_open(&*store));
        runtime.block_on(store.close());
        let head = result?;
        if again {
            let after = Self {
                shown: head,
                tried: head,
                kept: head,
                ..self.clone()
            };
            let result = after.check(folder, false);
            return result.map_err(|lost| format!("opened again: {lost}"));
        }
        Ok(())
    }

    async fn check_open(&self, store: &dyn Store) -> Result<u64, String> {
        let range = store.range(RangeRequest::between("", "")).await;
        let range = range.map_err(|error| error.to_string())?;
        let head = range.revision.0;
        if head < self.shown || head > self.tried {
            let (shown, tried) = (self.shown, self.tried);
            return Err(format!("at revision {head}, not in {shown}..={tried}"));
        }
        let found = range.items.into_iter();
        let found = found.map(|item| (item.key, (item.modified, item.value)));
        if found.collect::<BTreeMap<_, _>>() != self.kind.state(head) {
            return Err(format!("at revision {head}, with another content"));
        }
        match store.commit(self.kind.txn(head + 1)).await {
            Ok(committed) if committed.revision.0 == head + 1 => Ok(head + 1),
            other => Err(format!("after revision {head}: {other:?}")),
        }
    }
}

/// What a store consists of, without what each opening writes again.
pub(crate) fn stored(folder: &Path) -> Image {
    let mut image = Image::read_from(folder);
    let rewritten = ["lock", "ballast"].map(PathBuf::from);
    image.files.retain(|name, _| !rewritten.contains(name));
    image.folders.clear();
    image
}
