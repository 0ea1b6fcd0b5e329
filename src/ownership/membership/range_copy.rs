//! A copy in memory of a range of the store: read once, then followed by a watch, and read again
//! whenever the watch ends. Owns that loop; must not know what the records mean.

use bytes::Bytes;
use polyplane_storage::{
    Backoff, KeyValue, RangeRequest, ReadError, Revision, Store, WatchBatch, WatchEnd, prefix_end,
};
use std::sync::Arc;

/// A copy of a range in memory.
pub(crate) trait RangeCopy: Send {
    /// Replaces the copy by all records of the range as of `at`. If a record of the copy is missing
    /// among them, it was deleted while no watch ran.
    fn replace(&mut self, items: Vec<KeyValue>, at: Revision);

    /// Applies the changes of one batch. A batch without events only reports how far the watch has
    /// come.
    fn apply(&mut self, batch: WatchBatch);
}

/// Keeps `copy` up to date with all keys under `prefix`, for ever. `name` is the name of the copy
/// in log messages.
pub(crate) async fn follow(
    store: &Arc<dyn Store>,
    prefix: Bytes,
    name: &str,
    copy: &mut impl RangeCopy,
) {
    let mut backoff = Backoff::default();
    loop {
        match follow_once(store, &prefix, copy, &mut backoff).await {
            Ok(end) => tracing::debug!(%end, "the watch on {name} ended"),
            Err(error) => tracing::debug!(%error, "{name} cannot be read"),
        }
        backoff.wait().await;
    }
}

async fn follow_once(
    store: &Arc<dyn Store>,
    prefix: &Bytes,
    copy: &mut impl RangeCopy,
    backoff: &mut Backoff,
) -> Result<WatchEnd, ReadError> {
    let (mut items, mut read_at) = (Vec::new(), None);
    let mut request = Some(RangeRequest::prefix(prefix.clone()));
    while let Some(page) = request {
        let reply = store.range(page.clone()).await?;
        request = page.next_page(&reply);
        read_at.get_or_insert(reply.revision);
        items.extend(reply.items);
    }
    let read_at = read_at.unwrap_or_default();
    copy.replace(items, read_at);
    let mut watch = store
        .watch(prefix.clone(), prefix_end(prefix), read_at)
        .await?;
    // The store answers again: the next failure is retried soon.
    *backoff = Backoff::default();
    loop {
        match watch.next().await {
            Ok(batch) => copy.apply(batch),
            Err(end) => return Ok(end),
        }
    }
}
