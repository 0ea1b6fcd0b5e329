//! A used-up quota: every reply is true, also those to the transactions that have used it up.

use std::sync::Arc;

use polyplane_storage::{CommitError, Committed, EtcdStore, Rejection, Store};

use super::cluster::Cluster;
use super::{put, txn, value};

/// Tasks that commit at the same time, so that several transactions are under way when the quota is
/// used up.
const WRITERS: usize = 16;
const VALUE_BYTES: usize = 64 << 10;
/// Commits of one task at most. All of them together are far larger than the quota.
const COMMITS_MAX: usize = 64;

type Reply = Result<Committed, CommitError>;

/// Puts one new key after the other until the store has no space.
async fn fill(store: &EtcdStore, writer: usize) -> Vec<(String, Reply)> {
    let mut replies = Vec::new();
    for number in 0..COMMITS_MAX {
        let key = format!("{writer}-{number}");
        let mut bytes = key.clone().into_bytes();
        bytes.resize(VALUE_BYTES, b'x');
        let reply = store.commit(txn(vec![put(key.clone(), bytes)])).await;
        let is_full = reply.is_err();
        replies.push((key, reply));
        if is_full {
            return replies;
        }
    }
    panic!("the quota is never used up")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_a_store_whose_quota_is_used_up_are_true() {
    let cluster = Cluster::start(1, "http", &["--quota-backend-bytes=8388608"]);
    let store = cluster.connect().await;
    let writers = (0..WRITERS).map(|writer| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { fill(&store, writer).await })
    });
    let (mut applied, mut refused, mut undisclosed) = (0, 0, 0);
    for writer in writers.collect::<Vec<_>>() {
        for (key, reply) in writer.await.expect("no panic") {
            let is_there = value(&store, &key).await.is_some();
            match reply {
                Ok(_) => {
                    assert!(is_there, "{key} was acknowledged");
                    applied += 1;
                }
                Err(CommitError::Rejected(Rejection::NoSpace(_))) => {
                    assert!(!is_there, "{key} was rejected");
                    refused += 1;
                }
                // Every value is put once, so the one that was found is the transaction's own.
                Err(CommitError::Undisclosed(Rejection::NoSpace(_), _)) => {
                    assert!(is_there, "{key} was found");
                    undisclosed += 1;
                }
                Err(error) => panic!("{key}: {error:?}"),
            }
        }
    }
    println!("{applied} applied, {refused} refused, {undisclosed} applied without saying so");
    store.close().await;
}
