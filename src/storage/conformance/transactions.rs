//! Cases about compares, revisions, ranges, limits and concurrency.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{all, delete, done, key, put, put_leased, refused, txn};
use crate::{
    CommitError, Committed, Compare, Fields, KeyValue, RangeRequest, ReadError, Rejection,
    Revision, Store, TXN_OPS_MAX, prefix_end,
};

pub(super) async fn revisions_count_transactions_that_change_something(store: Arc<dyn Store>) {
    let start = store.revision().await.expect("read");
    let first = done(&store, vec![put("a", "1"), put("b", "1")]).await;
    assert_eq!(first.0, start.0 + 1, "two operations, one revision");
    assert_eq!(done(&store, vec![]).await, first, "nothing was changed");
    assert_eq!(
        done(&store, vec![delete("nothing")]).await,
        first,
        "an absent key was deleted"
    );
    let (at, found) = store.get(b"a").await.expect("read");
    assert_eq!(at, first);
    let found = found.expect("a is there");
    assert_eq!((found.created, found.modified), (first, first));
    assert_eq!(
        done(&store, vec![put("a", "1")]).await.0,
        first.0 + 1,
        "same value, new revision"
    );
    assert_eq!(store.revision().await.expect("read").0, first.0 + 1);
}

pub(super) async fn each_compare_holds_when_it_says(store: Arc<dyn Store>) {
    let created = done(&store, vec![put("k", "1")]).await;
    let modified = done(&store, vec![put("k", "2")]).await;
    let other = Revision(modified.0 + 100);
    let k = || key("k");
    let none = || key("none");
    let table = [
        (Compare::Absent { key: k() }, false),
        (Compare::Absent { key: none() }, true),
        (Compare::Present { key: k() }, true),
        (Compare::Present { key: none() }, false),
        (
            Compare::Unchanged {
                key: k(),
                revision: modified,
            },
            true,
        ),
        (
            Compare::Unchanged {
                key: k(),
                revision: created,
            },
            false,
        ),
        (
            Compare::Unchanged {
                key: none(),
                revision: Revision(0),
            },
            false,
        ),
        (
            Compare::CreatedAt {
                key: k(),
                revision: created,
            },
            true,
        ),
        (
            Compare::CreatedAt {
                key: k(),
                revision: modified,
            },
            false,
        ),
        (
            Compare::CreatedAt {
                key: none(),
                revision: created,
            },
            false,
        ),
        (
            Compare::NotCreatedAt {
                key: k(),
                revision: created,
            },
            false,
        ),
        (
            Compare::NotCreatedAt {
                key: k(),
                revision: other,
            },
            true,
        ),
        (
            Compare::NotCreatedAt {
                key: none(),
                revision: created,
            },
            true,
        ),
    ];
    for (compare, expected) in table {
        let result = store.commit(txn(vec![compare.clone()], vec![])).await;
        match expected {
            true => assert_eq!(result, Ok(Committed { revision: modified }), "{compare:?}"),
            false => assert_eq!(refused(result), [0], "{compare:?}"),
        }
    }
}

pub(super) async fn refusal_names_all_failed_compares_and_does_nothing(store: Arc<dyn Store>) {
    let at = done(&store, vec![put("a", "1"), put("b", "1")]).await;
    let compares = vec![
        Compare::Absent { key: key("a") },
        Compare::Present { key: key("a") },
        Compare::Unchanged {
            key: key("b"),
            revision: Revision(at.0 + 1),
        },
        // The same key may be compared more than once.
        Compare::CreatedAt {
            key: key("a"),
            revision: at,
        },
    ];
    let result = store
        .commit(txn(compares, vec![put("a", "2"), delete("b")]))
        .await;
    assert_eq!(refused(result), [0, 2]);
    assert_eq!(
        all(&store).await,
        [("a".into(), "1".into()), ("b".into(), "1".into())]
    );
    assert_eq!(store.revision().await.expect("read"), at);
}

pub(super) async fn refusal_tells_what_the_compared_keys_hold(store: Arc<dyn Store>) {
    let lease = store
        .lease_grant(Duration::from_secs(600))
        .await
        .expect("a lease");
    let created = done(&store, vec![put("a", "1"), put("gone", "1")]).await;
    let modified = done(&store, vec![put("a", "2"), delete("gone")]).await;
    let leased = done(&store, vec![put_leased("b", lease)]).await;
    let at = done(&store, vec![put("large", vec![b'x'; 100_000])]).await;
    let compares = vec![
        Compare::Present { key: key("a") },
        Compare::Present { key: key("gone") },
        Compare::Absent { key: key("b") },
        Compare::Absent { key: key("never") },
        Compare::Absent { key: key("large") },
        Compare::Present { key: key("a") },
    ];
    let result = store.commit(txn(compares, vec![put("c", "1")])).await;
    let Err(CommitError::Refused {
        failed,
        at: newest,
        found,
    }) = result
    else {
        panic!("not refused: {result:?}");
    };
    assert_eq!(failed, [1, 2, 4]);
    assert_eq!(newest, at);
    let a = KeyValue {
        key: key("a"),
        value: key("2"),
        created,
        modified,
        lease: None,
    };
    let b = KeyValue {
        key: key("b"),
        value: key("leased"),
        created: leased,
        modified: leased,
        lease: Some(lease),
    };
    let large = KeyValue {
        key: key("large"),
        value: vec![b'x'; 100_000].into(),
        created: at,
        modified: at,
        lease: None,
    };
    let wanted = [Some(a.clone()), None, Some(b), None, Some(large), Some(a)];
    assert_eq!(found, wanted);
}

pub(super) async fn refusal_tells_of_commits_made_at_the_same_time(store: Arc<dyn Store>) {
    done(&store, vec![put("k", "")]).await;
    let mut racers = Vec::new();
    for racer in 0..32 {
        let store = Arc::clone(&store);
        racers.push(tokio::spawn(async move {
            let compare = Compare::Absent { key: key("k") };
            let lost = store.commit(txn(vec![compare], vec![])).await;
            let won = done(&store, vec![put("k", format!("{racer}"))]).await;
            (racer, lost, won)
        }));
    }
    let mut puts = Vec::new();
    let mut reads = Vec::new();
    for racer in racers {
        let (racer, lost, won) = racer.await.expect("the racer ends");
        puts.push((won, format!("{racer}")));
        let Err(CommitError::Refused { at, mut found, .. }) = lost else {
            panic!("not refused: {lost:?}");
        };
        reads.push((at, found.remove(0).expect("k is always there")));
    }
    for (at, found) in reads {
        assert!(at >= found.modified);
        let newer = |revision| revision > found.modified && revision <= at;
        assert!(
            !puts.iter().any(|(revision, _)| newer(*revision)),
            "the newest at {at} is reported"
        );
        let put = puts
            .iter()
            .find(|(revision, _)| *revision == found.modified);
        assert_eq!(put.map_or("", |(_, value)| value), found.value);
    }
}

pub(super) async fn created_survives_puts_and_ends_with_delete(store: Arc<dyn Store>) {
    let created = done(&store, vec![put("k", "1")]).await;
    let modified = done(&store, vec![put("k", "2")]).await;
    let found = store.get(b"k").await.expect("read").1.expect("there");
    assert_eq!((found.created, found.modified), (created, modified));
    done(&store, vec![delete("k")]).await;
    assert_eq!(store.get(b"k").await.expect("read").1, None);
    let again = done(&store, vec![put("k", "3")]).await;
    let found = store.get(b"k").await.expect("read").1.expect("there");
    assert_eq!((found.created, found.modified), (again, again));
}

pub(super) async fn keys_are_bytes_in_byte_order(store: Arc<dyn Store>) {
    let mut keys: Vec<&'static [u8]> = vec![
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"\x00\xff",
        b"\x01",
        b"a",
        b"a\x00",
        b"a\x00\x00b",
        b"a\x00\x01",
        b"a\x00b",
        b"a\x00\xff",
        b"a\x01",
        b"a b",
        b"a-b/x",
        b"a/x",
        b"ab",
        b"a\xff",
        b"a\xff\x00",
        b"a\xff\xff",
        b"\xff",
        b"\xff\x00",
        b"\xff\xff",
    ];
    for key in keys.iter().rev() {
        done(&store, vec![put(*key, *key)]).await;
    }
    keys.sort_unstable();
    let reply = store
        .range(RangeRequest::between("", ""))
        .await
        .expect("read");
    let found: Vec<&[u8]> = reply.items.iter().map(|item| &item.key[..]).collect();
    assert_eq!(found, keys);
    for low in &keys {
        assert_eq!(
            store.get(low).await.expect("read").1.expect("there").value,
            *low
        );
        for high in &keys {
            let request = RangeRequest::between(*low, *high);
            let reply = store.range(request).await.expect("read");
            let found: Vec<&[u8]> = reply.items.iter().map(|item| &item.key[..]).collect();
            let wanted: Vec<&[u8]> = keys
                .iter()
                .copied()
                .filter(|key| key >= low && key < high)
                .collect();
            assert_eq!(found, wanted, "from {low:?} to {high:?}");
        }
        let found = store
            .range(RangeRequest::prefix(*low))
            .await
            .expect("read")
            .items;
        let wanted = keys.iter().filter(|key| key.starts_with(low)).count();
        assert_eq!(found.len(), wanted, "with prefix {low:?}");
    }
    assert_eq!(prefix_end(b"a\xff\xff"), "b");
}

pub(super) async fn ranges_come_in_pages_of_one_cut(store: Arc<dyn Store>) {
    let keys: Vec<String> = (0..50).map(|number| format!("k/{number:03}")).collect();
    for key in &keys {
        done(&store, vec![put(key.clone(), "1")]).await;
    }
    let cut = store.revision().await.expect("read");
    let mut request = Some(RangeRequest {
        limit: 7,
        ..RangeRequest::prefix("k/")
    });
    let mut found = Vec::new();
    while let Some(page) = request {
        let reply = store.range(page.clone()).await.expect("read");
        assert_eq!(reply.revision, cut, "every page is of the same cut");
        assert!(reply.items.len() <= 7);
        assert!(
            !reply.more || !reply.items.is_empty(),
            "a page with more has items"
        );
        found.extend(reply.items.iter().map(|item| item.key.clone()));
        // Changes behind, before and in the page: none of them is part of the cut.
        done(
            &store,
            vec![put("k/000x", "2"), delete("k/049"), put("k/020", "3")],
        )
        .await;
        request = page.next_page(&reply);
    }
    assert_eq!(found, keys);
}

pub(super) async fn ranges_filter_by_modification_and_leave_values_out(store: Arc<dyn Store>) {
    done(&store, vec![put("a", "1"), put("b", "1")]).await;
    let mark = store.revision().await.expect("read");
    done(&store, vec![put("b", "2"), put("c", "1")]).await;
    let request = RangeRequest {
        modified_after: Some(mark),
        fields: Fields::KeysOnly,
        limit: 1,
        ..RangeRequest::between("", "")
    };
    let first = store.range(request.clone()).await.expect("read");
    assert_eq!(
        (&first.items[0].key[..], &first.items[0].value[..]),
        (&b"b"[..], &b""[..])
    );
    assert!(first.more);
    let next = request.next_page(&first).expect("there is more");
    let second = store.range(next).await.expect("read");
    assert_eq!(
        (second.items.len(), &second.items[0].key[..]),
        (1, &b"c"[..])
    );
    assert!(!second.more);
}

pub(super) async fn reads_at_a_revision_see_that_revision(store: Arc<dyn Store>) {
    let first = done(&store, vec![put("a", "1"), put("b", "1")]).await;
    let second = done(&store, vec![put("a", "2"), delete("b"), put("c", "2")]).await;
    done(&store, vec![delete("a"), put("b", "3")]).await;
    let at = async |revision| {
        let request = RangeRequest {
            at: Some(revision),
            ..RangeRequest::between("", "")
        };
        let items = store.range(request).await.expect("read").items;
        let text = items
            .iter()
            .map(|kv| [&kv.key[..], b"=", &kv.value[..]].concat());
        text.map(|text| String::from_utf8(text).expect("text"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(at(first).await, "a=1 b=1");
    assert_eq!(at(second).await, "a=2 c=2");
    let head = store.revision().await.expect("read");
    let future = RangeRequest {
        at: Some(Revision(head.0 + 1)),
        ..RangeRequest::between("", "")
    };
    assert_eq!(store.range(future).await, Err(ReadError::Future { head }));
}

pub(super) async fn large_values_come_back(store: Arc<dyn Store>) {
    let largest = store.limits().value_bytes_max;
    let mut state = 1_u64;
    let mut noise = |bytes: usize| -> Bytes {
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56).to_le_bytes()[0]
        };
        std::iter::repeat_with(next).take(bytes).collect()
    };
    let sizes = [
        0, 1, 4_095, 4_096, 6_143, 6_144, 6_145, 12_288, 131_072, largest,
    ];
    let values = sizes.map(&mut noise);
    for round in 0..2 {
        for (index, value) in values.iter().enumerate() {
            done(&store, vec![put(format!("{round}/{index}"), value.clone())]).await;
            let zeros = Bytes::from(vec![0; value.len()]);
            done(&store, vec![put(format!("zeros/{index}"), zeros)]).await;
        }
    }
    for (index, value) in values.iter().enumerate() {
        let found = store
            .get(format!("1/{index}").as_bytes())
            .await
            .expect("read")
            .1;
        assert!(
            found.expect("there").value == *value,
            "size {}",
            value.len()
        );
        let found = store
            .get(format!("zeros/{index}").as_bytes())
            .await
            .expect("read")
            .1;
        let found = found.expect("there").value;
        assert!(found.len() == value.len() && found.iter().all(|byte| *byte == 0));
    }
    let mut request = Some(RangeRequest::prefix("0/"));
    let mut found = Vec::new();
    while let Some(page) = request {
        let reply = store.range(page.clone()).await.expect("read");
        request = page.next_page(&reply);
        found.extend(reply.items.into_iter().map(|item| item.value));
    }
    assert!(found == values, "the range has the same values");
}

pub(super) async fn limits_are_enforced_and_are_final(store: Arc<dyn Store>) {
    let limits = store.limits();
    let before = store.revision().await.expect("read");
    let rejected = async |compares: Vec<Compare>, ops| match store.commit(txn(compares, ops)).await
    {
        Err(CommitError::Rejected(rejection)) => rejection,
        other => panic!("not rejected: {other:?}"),
    };
    let many = |count: usize| {
        (0..count)
            .map(|n| put(format!("{n}"), ""))
            .collect::<Vec<_>>()
    };
    let compares = |count: usize| vec![Compare::Absent { key: key("absent") }; count];
    let result = rejected(vec![], many(limits.ops_max + 1)).await;
    assert!(matches!(result, Rejection::TooManyOps(_)), "{result:?}");
    let result = rejected(compares(limits.compares_max + 1), vec![]).await;
    assert!(matches!(result, Rejection::TooManyOps(_)), "{result:?}");
    let large = Bytes::from(vec![7; limits.value_bytes_max + 1]);
    let result = rejected(vec![], vec![put("large", large)]).await;
    assert!(matches!(result, Rejection::TooLarge(_)), "{result:?}");
    let half = Bytes::from(vec![7; limits.txn_bytes_max / 2 + 1]);
    let result = rejected(vec![], vec![put("a", half.clone()), put("b", half)]).await;
    assert!(matches!(result, Rejection::TooLarge(_)), "{result:?}");
    let result = rejected(vec![], vec![put(vec![1; limits.key_bytes_max + 1], "")]).await;
    assert!(matches!(result, Rejection::TooLarge(_)), "{result:?}");
    for twice in [
        vec![put("k", "1"), put("k", "2")],
        vec![put("k", "1"), delete("k")],
    ] {
        let result = rejected(vec![], twice).await;
        assert!(matches!(result, Rejection::Malformed(_)), "{result:?}");
    }
    let result = rejected(vec![], vec![put("", "1")]).await;
    assert!(matches!(result, Rejection::Malformed(_)), "{result:?}");
    assert_eq!(
        store.revision().await.expect("read"),
        before,
        "nothing was done"
    );
    let full = txn(compares(limits.compares_max), many(limits.ops_max));
    assert!(
        store.commit(full).await.is_ok(),
        "the limits themselves are allowed"
    );
}

/// With the most operations of a write and the compares that a plane has.
pub(super) async fn transactions_of_the_largest_size_are_taken(store: Arc<dyn Store>) {
    const COMPARES: usize = 8;
    let limits = store.limits();
    let mut ops = vec![put("0", vec![7; limits.value_bytes_max])];
    let others: Vec<String> = (1..TXN_OPS_MAX).map(|n| format!("{n:08}")).collect();
    let left = limits.txn_bytes_max - limits.value_bytes_max - 1;
    let each = left / others.len() - others[0].len();
    ops.extend(others.into_iter().map(|key| put(key, vec![7; each])));
    let compares = (0..COMPARES).map(|n| Compare::Absent {
        key: format!("{n:0300}").into(),
    });
    let done = store.commit(txn(compares.collect(), ops)).await;
    assert!(done.is_ok(), "{done:?}");
}

pub(super) async fn concurrent_commits_get_dense_unique_revisions(store: Arc<dyn Store>) {
    const WRITERS: usize = 32;
    const WRITES: usize = 25;
    let before = store.revision().await.expect("read");
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.push(tokio::spawn(async move {
            let mut revisions = Vec::new();
            for write in 0..WRITES {
                let ops = vec![
                    put(format!("w{writer}"), format!("{write}")),
                    put("shared", "x"),
                ];
                revisions.push(done(&store, ops).await);
                let (at, found) = store
                    .get(format!("w{writer}").as_bytes())
                    .await
                    .expect("read");
                assert!(
                    at >= revisions[write],
                    "a read sees what was acknowledged before it"
                );
                assert_eq!(found.expect("there").modified, revisions[write]);
            }
            revisions
        }));
    }
    let mut seen = BTreeSet::new();
    for writer in writers {
        let revisions = writer.await.expect("the writer ends");
        assert!(revisions.is_sorted(), "one after the other");
        seen.extend(revisions);
    }
    let count = u64::try_from(WRITERS * WRITES).expect("small");
    let wanted: BTreeSet<Revision> = (1..=count).map(|n| Revision(before.0 + n)).collect();
    assert_eq!(seen, wanted);
    let history = store
        .history(Bytes::new(), Bytes::new(), before)
        .await
        .expect("read");
    let shared = history.events.iter().filter(|event| event.key == "shared");
    assert_eq!(
        shared.map(|event| event.revision).collect::<BTreeSet<_>>(),
        wanted
    );
}

pub(super) async fn concurrent_compares_let_one_win(store: Arc<dyn Store>) {
    let mut last = done(&store, vec![put("counter", "0")]).await;
    for round in 0..10 {
        let mut racers = Vec::new();
        for racer in 0..16 {
            let store = Arc::clone(&store);
            racers.push(tokio::spawn(async move {
                let compare = Compare::Unchanged {
                    key: key("counter"),
                    revision: last,
                };
                let op = put("counter", format!("{round}/{racer}"));
                (racer, store.commit(txn(vec![compare], vec![op])).await)
            }));
        }
        let mut winners = Vec::new();
        for racer in racers {
            match racer.await.expect("the racer ends") {
                (racer, Ok(committed)) => winners.push((racer, committed.revision)),
                (_, refusal) => assert_eq!(refused(refusal), [0]),
            }
        }
        assert_eq!(winners.len(), 1, "one wins");
        let found = store.get(b"counter").await.expect("read").1.expect("there");
        assert_eq!(found.value, format!("{round}/{}", winners[0].0));
        assert_eq!(found.modified, winners[0].1);
        last = found.modified;
    }
}
