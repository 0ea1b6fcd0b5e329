//! The conformance suite: everything that every engine must do.
//!
//! [`run`] takes a function that returns fresh stores and runs all [`CASES`]; [`model`] runs random
//! transactions against a simple model. Both panic with the case's name.

mod changes;
mod model;
mod transactions;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use crate::{CommitError, Committed, Compare, LeaseId, Op, RangeRequest, Revision, Store, Txn};

pub use model::model;

type Test = fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// One case: a name, which is the property, and the test of it on a fresh store.
pub struct Case {
    /// The property that the case tests.
    pub name: &'static str,
    run: Test,
}

macro_rules! cases {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        /// All cases.
        pub const CASES: &[Case] = &[
            $($(Case { name: stringify!($name), run: |store| Box::pin($module::$name(store)) }),+),+
        ];
    };
}

cases! {
    transactions:
        revisions_count_transactions_that_change_something,
        each_compare_holds_when_it_says,
        refusal_names_all_failed_compares_and_does_nothing,
        refusal_tells_what_the_compared_keys_hold,
        refusal_tells_of_commits_made_at_the_same_time,
        created_survives_puts_and_ends_with_delete,
        keys_are_bytes_in_byte_order,
        ranges_come_in_pages_of_one_cut,
        ranges_filter_by_modification_and_leave_values_out,
        reads_at_a_revision_see_that_revision,
        large_values_come_back,
        limits_are_enforced_and_are_final,
        transactions_of_the_largest_size_are_taken,
        concurrent_commits_get_dense_unique_revisions,
        concurrent_compares_let_one_win;
    changes:
        history_tells_operations_in_order_with_previous_values,
        history_is_cut_by_range_and_revision,
        history_that_is_too_long_tells_where_to_begin,
        compaction_ends_history_exactly_at_its_floor,
        compaction_keeps_what_is_there,
        watch_resumes_where_it_ended,
        watch_tells_progress_without_events,
        watch_misses_nothing_under_load,
        watch_of_the_future_or_the_compacted_is_refused,
        lease_takes_its_keys_with_it,
        lease_kept_alive_stays,
        lease_lets_go_of_keys_put_without_it,
        closed_store_says_so;
}

/// Runs every case on a store of its own.
///
/// # Panics
/// Panics if the engine does not conform.
pub async fn run<F: Future<Output = Arc<dyn Store>>>(mut fresh: impl FnMut() -> F) {
    for case in CASES {
        println!("conformance: {}", case.name);
        let store = fresh().await;
        (case.run)(Arc::clone(&store)).await;
        store.close().await;
    }
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
    Op::Put {
        key: key.into(),
        value: value.into(),
        lease: None,
    }
}

fn put_leased(key: &'static str, lease: LeaseId) -> Op {
    Op::Put {
        key: key.into(),
        value: "leased".into(),
        lease: Some(lease),
    }
}

fn delete(key: &'static str) -> Op {
    Op::Delete { key: key.into() }
}

fn txn(compares: Vec<Compare>, ops: Vec<Op>) -> Txn {
    Txn { compares, ops }
}

/// Commits operations that the store must apply.
async fn done(store: &Arc<dyn Store>, ops: Vec<Op>) -> Revision {
    let Committed { revision } = store.commit(txn(Vec::new(), ops)).await.expect("committed");
    revision
}

/// Returns the failed compares of a commit that must have been refused.
fn refused(result: Result<Committed, CommitError>) -> Vec<usize> {
    match result {
        Err(CommitError::Refused { failed, .. }) => failed,
        other => panic!("not refused: {other:?}"),
    }
}

/// Returns all keys and values of a store, as texts, read at one revision.
async fn all(store: &Arc<dyn Store>) -> Vec<(String, String)> {
    let request = RangeRequest::between("", "");
    let reply = store.range(request).await.expect("read");
    assert!(!reply.more, "the store is small");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    reply
        .items
        .iter()
        .map(|item| (text(&item.key), text(&item.value)))
        .collect()
}
