//! Random transactions against a model that is only the list of all events.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::{
    CommitError, Committed, Compare, KeyValue, Op, RangeRequest, ReadError, Revision, Store,
    StoreEvent, Txn,
};

/// Keys that are difficult to escape, to order and to nest.
const KEYS: [&[u8]; 7] = [
    b"\x00",
    b"a",
    b"a\x00",
    b"a\x00\xff",
    b"a\x01",
    b"b",
    b"\xff\xff",
];

#[derive(Debug, Clone)]
enum Step {
    /// A transaction: its compares as (kind, key, how to choose the revision), its operations as
    /// (key, value size).
    Commit {
        compares: Vec<(u8, usize, u8)>,
        ops: Vec<(usize, Option<usize>)>,
    },
    /// Compact all but this many of the newest revisions.
    Compact {
        keep: u64,
    },
    /// Read and compare everything, as of this many revisions ago.
    Check {
        ago: u64,
    },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 0..200_usize, 1 => 4_000..9_000_usize];
    let ops = vec((0..KEYS.len(), proptest::option::weighted(0.7, size)), 0..5);
    let compares = vec((0..5_u8, 0..KEYS.len(), 0..4_u8), 0..2);
    let commit = (compares, ops).prop_map(|(compares, ops)| Step::Commit { compares, ops });
    let step = prop_oneof![
        12 => commit,
        1 => (0..8_u64).prop_map(|keep| Step::Compact { keep }),
        3 => (0..10_u64).prop_map(|ago| Step::Check { ago }),
        1 => Just(Step::Reopen),
    ];
    vec(step, 1..60)
}

#[derive(Default)]
struct Model {
    /// The store's revision at the beginning, which is not zero in a store that earlier tests have
    /// used.
    start: u64,
    head: u64,
    floor: u64,
    events: Vec<StoreEvent>,
    values: u8,
}

/// A key in the model: its value, the revision that created it and the one that modified it.
type Found = (Bytes, u64, u64);

impl Model {
    fn find(&self, key: &[u8], at: u64) -> Option<Found> {
        let mut found: Option<Found> = None;
        for event in self
            .events
            .iter()
            .filter(|e| e.key == key && e.revision.0 <= at)
        {
            let created = found
                .as_ref()
                .map_or(event.revision.0, |(_, created, _)| *created);
            found = event
                .value
                .clone()
                .map(|value| (value, created, event.revision.0));
        }
        found
    }

    fn key_value(&self, key: &Bytes) -> Option<KeyValue> {
        let (value, created, modified) = self.find(key, self.head)?;
        Some(KeyValue {
            key: key.clone(),
            value,
            created: Revision(created),
            modified: Revision(modified),
            lease: None,
        })
    }

    fn compare(&self, (kind, key, choice): (u8, usize, u8)) -> (Compare, bool) {
        let found = self.find(KEYS[key], self.head);
        let key = Bytes::from_static(KEYS[key]);
        let (created, modified) = found.as_ref().map_or((0, 0), |(_, c, m)| (*c, *m));
        let chosen = [created, modified, self.head, 1][usize::from(choice)];
        let revision = Revision(chosen);
        match kind {
            0 => (Compare::Absent { key }, found.is_none()),
            1 => (Compare::Present { key }, found.is_some()),
            2 => (
                Compare::Unchanged { key, revision },
                found.is_some() && modified == chosen,
            ),
            3 => (
                Compare::CreatedAt { key, revision },
                found.is_some() && created == chosen,
            ),
            _ => (
                Compare::NotCreatedAt { key, revision },
                found.is_none() || created != chosen,
            ),
        }
    }

    async fn commit(
        &mut self,
        store: &dyn Store,
        compares: &[(u8, usize, u8)],
        ops: &[(usize, Option<usize>)],
    ) {
        let compares: Vec<(Compare, bool)> = compares.iter().map(|c| self.compare(*c)).collect();
        let mut seen = [false; KEYS.len()];
        let mut txn = Txn::default();
        let mut events = Vec::new();
        let revision = Revision(self.head + 1);
        for (key, size) in ops {
            if std::mem::replace(&mut seen[*key], true) {
                continue;
            }
            let previous = self.find(KEYS[*key], self.head).map(|(value, ..)| value);
            let key = Bytes::from_static(KEYS[*key]);
            self.values = self.values.wrapping_add(1);
            let value = size.map(|size| Bytes::from(vec![self.values; size]));
            txn.ops.push(match value.clone() {
                Some(value) => Op::Put {
                    key: key.clone(),
                    value,
                    lease: None,
                },
                None => Op::Delete { key: key.clone() },
            });
            if value.is_some() || previous.is_some() {
                events.push(StoreEvent {
                    revision,
                    key,
                    value,
                    previous,
                });
            }
        }
        let holding = compares.iter().enumerate().filter(|(_, (_, holds))| !holds);
        let failed: Vec<usize> = holding.map(|(index, _)| index).collect();
        let compared: Vec<Bytes> = compares.iter().map(|(c, _)| c.key().clone()).collect();
        txn.compares = compares.into_iter().map(|(compare, _)| compare).collect();
        let result = store.commit(txn).await;
        if !failed.is_empty() {
            let found = compared.iter().map(|key| self.key_value(key)).collect();
            let at = Revision(self.head);
            assert_eq!(result, Err(CommitError::Refused { failed, at, found }));
            return;
        }
        self.head += u64::from(!events.is_empty());
        self.events.extend(events);
        assert_eq!(
            result,
            Ok(Committed {
                revision: Revision(self.head)
            })
        );
    }

    async fn check(&self, store: &dyn Store, ago: u64) {
        let at = self.head.saturating_sub(ago).max(self.start);
        let (start, end) = (Bytes::new(), Bytes::new());
        let history = store
            .history(start.clone(), end.clone(), Revision(at))
            .await;
        let request = RangeRequest {
            at: Some(Revision(at)),
            ..RangeRequest::between(start, end)
        };
        let range = store.range(request).await;
        if at < self.floor {
            let floor = Revision(self.floor);
            assert_eq!(history, Err(ReadError::Compacted { floor }));
            assert_eq!(range, Err(ReadError::Compacted { floor }));
            return;
        }
        let events = self.events.iter().filter(|event| event.revision.0 > at);
        let history = history.expect("inside the history");
        assert!(
            history.events == events.cloned().collect::<Vec<_>>(),
            "history after {at}"
        );
        assert_eq!(history.revision.0, self.head);
        let found = range.expect("inside the history").items.into_iter();
        let found: Vec<(Bytes, Found)> = found
            .map(|kv| (kv.key, (kv.value, kv.created.0, kv.modified.0)))
            .collect();
        let mut keys = KEYS;
        keys.sort_unstable();
        let wanted = keys
            .iter()
            .filter_map(|key| Some((Bytes::from_static(key), self.find(key, at)?)));
        assert!(found == wanted.collect::<Vec<_>>(), "range at {at}");
    }
}

/// Runs random transactions against the model. `open` is called with `None` for a fresh store.
/// Called with a store, it closes and reopens that store, or returns it unchanged if the engine
/// cannot do this.
///
/// # Panics
/// Panics if the engine and the model differ. The message has the shortest sequence found.
pub fn model<F: Future<Output = Arc<dyn Store>>>(
    cases: u32,
    open: impl Fn(Option<Arc<dyn Store>>) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&steps(), |steps| {
        runtime.block_on(async {
            let mut store = open(None).await;
            let start = store.revision().await.expect("read").0;
            let mut model = Model {
                start,
                head: start,
                floor: start,
                ..Model::default()
            };
            for step in &steps {
                match step {
                    Step::Commit { compares, ops } => model.commit(&*store, compares, ops).await,
                    Step::Compact { keep } => {
                        let below = model.head.saturating_sub(*keep).max(model.start);
                        store.compact(Revision(below)).await.expect("compacted");
                        model.floor = model.floor.max(below);
                    }
                    Step::Check { ago } => model.check(&*store, *ago).await,
                    Step::Reopen => store = open(Some(store)).await,
                }
            }
            for ago in 0..=model.head - model.floor + 1 {
                model.check(&*store, ago).await;
            }
            store.close().await;
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
