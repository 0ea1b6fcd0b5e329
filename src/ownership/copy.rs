//! Copying a store: everything of one store into another, empty one, so that clients of the copy see
//! the same objects with the same versions and uids, and resume their watches.
//!
//! The target gets the source's state as of the revision at which the kept history begins, and then
//! what was committed since, revision after revision. Its own revisions are others, so planes' records
//! are copied with their points (`plane/copied.rs`), and the copy record says which points come next.
//! Fences, member keys and leases are not copied: no replica of the source is in the copy.
//!
//! * Nothing is written to the source. No replica may serve it: a member key is refused, and a watch
//!   over all keys ends the copy if anything is written before it is complete.
//! * Nobody serves the target before it is complete: replicas that know copies refuse because of the
//!   record (`membership/join_facts.rs`), older ones because of the level floor. A folder that a copy creates is
//!   not opened by others before it has the record ([`polyplane_storage::copy_has_begun`]).
//! * Records that the target does not take are found before anything is written.
//! * Each transaction also puts the record, so that a copy that was interrupted anywhere, even by
//!   kill -9, goes on where it was.
//!
//! Must not know which engines the stores have, nor what objects mean.

pub(crate) mod families;
pub(crate) mod record;
pub(crate) mod sizes;
pub(crate) mod source;
pub(crate) mod target;

use crate::copy::families::{copied, is_copied};
use crate::copy::record::{COPY_LEVEL, CopyFigures, CopyProgress, CopyRecord};
use crate::copy::source::Source;
use crate::copy::target::{Batch, Target, put};
use crate::records::{Damaged, Floor};
use bytes::Bytes;
use polyplane_plane::{Layer, LayerStoreError, RecordError, save_layer};
use polyplane_storage::{
    Backoff, CommitError, KeyValue, Op, ReadError, Revision, Store, StoreEvent, WatchEnd,
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Attempts at a read that a store does not answer. With the longest pause of [`Backoff`], about half a
/// minute: an etcd elects a leader meanwhile.
const READS_MAX: usize = 30;

/// The reason why a store is not copied. Nothing of the source was changed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The source has no planes.
    #[error("the source is no store of control planes")]
    NoStore,
    /// The source is itself a copy that is not complete.
    #[error("the source is a copy from {0} that is not complete; complete that one first")]
    SourceUnfinished(String),
    /// The source is at a level that this program does not know.
    #[error("the source is at level {0}, which this program does not know; use a newer release")]
    Newer(u32),
    /// A replica serves the source.
    #[error("the source is served by replica {0}; stop it and wait until its lease has ended")]
    Served(String),
    /// The source was written after the copy began.
    #[error(
        "the source was written since the copy began; stop its replicas, empty the target, and copy again"
    )]
    SourceWritten,
    /// The source no longer has the history that the copy began with.
    #[error(
        "the source no longer has the revision that the copy began with; empty the target, and copy again"
    )]
    Compacted,
    /// The source does not report that it is unchanged.
    #[error("the source does not report whether it was written; try again")]
    Silent,
    /// The target has keys, and none of a copy that could go on.
    #[error("the target is not empty, it has the key {0:?}; give an empty one")]
    TargetUsed(String),
    /// The target is a complete copy.
    #[error("the target holds a complete copy from {0}; give an empty one")]
    TargetComplete(String),
    /// The target holds the beginning of another copy.
    #[error(
        "the target holds the beginning of a copy from {0}, which is another store than the source or has \
         been written since; give an empty one"
    )]
    OtherCopy(String),
    /// Another process writes the target.
    #[error("the target was written by another process; is the same copy running twice?")]
    TargetWritten,
    /// The caller stopped the copy before anything was written.
    #[error("the copy was stopped before it began")]
    Stopped,
    /// The target does not take records of the source.
    #[error(
        "the target takes records of at most {bytes_max} bytes, and the source has larger ones, as stored: {named}; \
         make these objects smaller or delete them, let a server run on the source for six more minutes, until \
         its history no longer has them, stop it, and copy again into an empty target"
    )]
    TooLarge {
        /// The records with their sizes.
        named: String,
        /// The limit of the target.
        bytes_max: usize,
    },
    /// A record of the source cannot be decoded.
    #[error("cannot decode the record {key:?} of the source")]
    Record {
        /// The record's key.
        key: String,
        /// The error in its value.
        #[source]
        source: RecordError,
    },
    /// A record beside planes was not written by this program.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A store does not answer, or its data is damaged.
    #[error("cannot read")]
    Read(#[from] ReadError),
    /// The target takes no writes.
    #[error("cannot write the target")]
    Commit(#[source] CommitError),
    /// The layer of this program cannot be written.
    #[error("cannot write the layer of bootstrap objects to the target")]
    Layer(#[from] LayerStoreError),
    /// The watch over the source's history ended.
    #[error("cannot read the history of the source")]
    Watch(#[source] WatchEnd),
}

/// What a copy is to do.
pub struct CopyOptions {
    /// The source as the user named it. The target keeps it for messages.
    pub from: String,
    /// The level of this program.
    pub level: u32,
    /// The layer of that level.
    pub layer: Arc<Layer>,
    /// The store's prefix of the directory's rows, one for each plane, to count planes.
    pub rows: Bytes,
    /// If cancelled, a copy does not begin.
    pub stop: CancellationToken,
    /// Called when it begins to check that the target takes all records of the source, which reads all of it.
    pub say_checking: fn(),
}

/// How a copy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyEnd {
    /// Everything is in the target.
    Complete,
    /// The copy was stopped and can go on.
    Stopped,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyState {
    /// What is in the target.
    pub done: CopyFigures,
    /// What will be done. Bytes are zero, because they are not counted before.
    pub total: CopyFigures,
    /// The planes and objects of the source, as they are now.
    pub content: CopyFigures,
}

/// A copy of a store, begun or to be continued.
pub struct StoreCopy {
    source: Source,
    target: Target,
    resumed: bool,
    rows: Bytes,
}

impl StoreCopy {
    /// Begins a copy, or opens the one that the target holds to continue it.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn open(
        source: Arc<dyn Store>,
        target: Arc<dyn Store>,
        options: CopyOptions,
    ) -> Result<Self, CopyError> {
        let found = Target::found(&target).await?;
        let known = found
            .as_ref()
            .map(|found| CopyRecord::decode(&found.value))
            .transpose()?;
        if let Some(known) = known.as_ref().filter(|known| known.is_complete()) {
            return Err(CopyError::TargetComplete(known.from.clone()));
        }
        let Some((found, known)) = found.zip(known) else {
            Target::check_empty(&target).await?;
            return Self::begin(source, target, options).await;
        };
        // Compared first: what another store has written since says nothing.
        if Target::secret(&target).await? != Target::secret(&source).await? {
            return Err(CopyError::OtherCopy(known.from));
        }
        let mut source = Source::open(source, Some(&known.source)).await?;
        if source.id != known.source {
            return Err(CopyError::OtherCopy(known.from));
        }
        source.check_all().await?;
        save_layer(&target, &options.layer).await?;
        Ok(Self {
            source,
            target: Target::resume(target, known, found.modified),
            resumed: true,
            rows: options.rows,
        })
    }

    async fn begin(
        source: Arc<dyn Store>,
        target: Arc<dyn Store>,
        options: CopyOptions,
    ) -> Result<Self, CopyError> {
        let source = Source::open(source, None).await?;
        if source.floor.to_join() > options.level {
            return Err(CopyError::Newer(source.floor.to_join()));
        }
        let bytes_max = target.limits().value_bytes_max;
        // Otherwise nothing is too large, and need not be read twice.
        if bytes_max < source.store.limits().value_bytes_max {
            (options.say_checking)();
            sizes::check(&source, bytes_max, &options.stop).await?;
        }
        let floor = match source.floor.level >= COPY_LEVEL {
            true => Floor {
                raising: None,
                ..source.floor.clone()
            },
            false => Floor {
                level: options.level,
                layer: Some(options.layer.hash().clone()),
                raising: None,
            },
        };
        let point = |version: polyplane_plane::Version| version.raw() >> 8;
        let record = CopyRecord {
            source: source.id.clone(),
            from: options.from,
            root_born: source.root_born(),
            begins: point(source.begins()),
            ends: point(source.ends()),
            content: source.count(source.id.ends, &options.rows).await?,
            total: source.count(source.id.begins, &options.rows).await?,
            done: CopyFigures::default(),
            progress: CopyProgress::State {
                after: String::new(),
            },
        };
        let begun = Target::begin(Arc::clone(&target), record, &source, &floor).await?;
        save_layer(&target, &options.layer).await?;
        Ok(Self {
            source,
            target: begun,
            resumed: false,
            rows: options.rows,
        })
    }

    /// Returns whether the copy goes on where another process left it.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Returns how far the copy is.
    #[must_use]
    pub fn state(&self) -> CopyState {
        CopyState {
            done: self.target.record.done,
            total: self.target.record.total,
            content: self.target.record.content,
        }
    }

    /// Copies until everything is there or `stop` is cancelled. Calls `report` after each transaction.
    ///
    /// # Errors
    /// See [`CopyError`]. The copy can go on after the cause is gone, unless the error says otherwise.
    pub async fn run(
        &mut self,
        stop: &CancellationToken,
        mut report: impl FnMut(CopyState),
    ) -> Result<CopyEnd, CopyError> {
        loop {
            let end = match self.target.record.progress.clone() {
                CopyProgress::State { after } => self.copy_state(after, stop, &mut report).await?,
                CopyProgress::History { begins_at, through } => {
                    let begins_at = begins_at.map_or(self.target.at(), Revision);
                    let through = Revision(through);
                    self.copy_history(begins_at, through, stop, &mut report)
                        .await?
                }
                CopyProgress::Complete { .. } => return Ok(CopyEnd::Complete),
            };
            if end == CopyEnd::Stopped {
                return Ok(end);
            }
        }
    }

    /// Copies the records as they were when the history begins.
    async fn copy_state(
        &mut self,
        after: String,
        stop: &CancellationToken,
        report: &mut impl FnMut(CopyState),
    ) -> Result<CopyEnd, CopyError> {
        let mut start = after.into_bytes();
        if !start.is_empty() {
            start.push(0);
        }
        let mut request = Some(self.source.all_from(start.into()));
        while let Some(page) = request {
            let reply = self.source.page(&page).await?;
            let mut batch = Batch::default();
            for item in &reply.items {
                let Some(op) = self.copied(item)? else {
                    continue;
                };
                let op = [op];
                if !batch.has_room_for(&op) && !batch.is_empty() {
                    self.write(std::mem::take(&mut batch), report).await?;
                    if stop.is_cancelled() {
                        return Ok(CopyEnd::Stopped);
                    }
                }
                self.count(item);
                batch.add(op.into());
            }
            if !batch.is_empty() {
                self.write(batch, report).await?;
            }
            if stop.is_cancelled() {
                return Ok(CopyEnd::Stopped);
            }
            request = page.next_page(&reply);
        }
        let through = self.source.id.begins;
        self.target.record.progress = CopyProgress::History {
            begins_at: None,
            through,
        };
        self.write(Batch::default(), report).await?;
        Ok(CopyEnd::Complete)
    }

    fn copied(&self, item: &KeyValue) -> Result<Option<Op>, CopyError> {
        let base = self.source.numbering.planes.base;
        let value = copied(base, &item.key, item.modified, &item.value);
        let value = value.map_err(|source| undecodable(&item.key, source))?;
        Ok(value.map(|value| put(&item.key, value)))
    }

    /// Counts a record that the next transaction has.
    fn count(&mut self, item: &KeyValue) {
        let record = &mut self.target.record;
        record.done.objects += 1;
        record.done.bytes += (item.key.len() + item.value.len()) as u64;
        record.done.planes += u64::from(item.key.starts_with(&self.rows));
        record.progress = CopyProgress::State {
            after: String::from_utf8_lossy(&item.key).into_owned(),
        };
    }

    /// Repeats what was committed after the state, and completes the copy.
    async fn copy_history(
        &mut self,
        begins_at: Revision,
        through: Revision,
        stop: &CancellationToken,
        report: &mut impl FnMut(CopyState),
    ) -> Result<CopyEnd, CopyError> {
        let ends = Revision(self.source.id.ends);
        let mut reached = through;
        let mut batch = Batch::default();
        let mut changes = self.source.changes_after(through);
        loop {
            let next = tokio::select! {
                // The stop first: a store that does not answer must not hide it.
                biased;
                () = stop.cancelled() => return Ok(CopyEnd::Stopped),
                next = changes.next() => next?,
            };
            let Some(next) = next else {
                break;
            };
            let ops = self.repeated(&next.events)?;
            let alone = ops.iter().any(|op| matches!(op, Op::Delete { .. }));
            if !batch.is_empty() && (alone || !batch.has_room_for(&ops)) {
                self.advance(begins_at, reached, std::mem::take(&mut batch), report)
                    .await?;
            }
            batch.add(ops);
            reached = next.revision;
            if alone {
                self.advance(begins_at, reached, std::mem::take(&mut batch), report)
                    .await?;
            }
        }
        self.advance(begins_at, ends, batch, report).await?;
        self.source.check_all().await?;
        self.target.record.progress = CopyProgress::Complete {
            begins_at: begins_at.0,
            ends_at: self.target.at().0,
        };
        self.write(Batch::default(), report).await?;
        Ok(CopyEnd::Complete)
    }

    /// Returns the operations that repeat a transaction of the source.
    fn repeated(&self, events: &[StoreEvent]) -> Result<Vec<Op>, CopyError> {
        let base = self.source.numbering.planes.base;
        let mut ops = Vec::with_capacity(events.len());
        for event in events {
            let key = &event.key;
            match &event.value {
                Some(value) => {
                    let value = copied(base, key, event.revision, value);
                    let value = value.map_err(|source| undecodable(key, source))?;
                    ops.extend(value.map(|value| put(key, value)));
                }
                None if is_copied(key) => ops.push(Op::Delete { key: key.clone() }),
                None => {}
            }
        }
        Ok(ops)
    }

    /// Writes a part of the history, with which the target has everything up to a revision.
    async fn advance(
        &mut self,
        begins_at: Revision,
        through: Revision,
        batch: Batch,
        report: &mut impl FnMut(CopyState),
    ) -> Result<(), CopyError> {
        let record = &mut self.target.record;
        record.done.bytes += batch.bytes() as u64;
        record.done.revisions = through.0 - self.source.id.begins;
        record.progress = CopyProgress::History {
            begins_at: Some(begins_at.0),
            through: through.0,
        };
        self.write(batch, report).await
    }

    async fn write(
        &mut self,
        batch: Batch,
        report: &mut impl FnMut(CopyState),
    ) -> Result<(), CopyError> {
        self.source.check().await?;
        self.target.write(batch).await?;
        report(self.state());
        Ok(())
    }
}

fn undecodable(key: &[u8], source: RecordError) -> CopyError {
    CopyError::Record {
        key: String::from_utf8_lossy(key).into_owned(),
        source,
    }
}

/// Repeats a read while the store does not answer.
pub(crate) async fn patiently<T>(
    read: impl AsyncFn() -> Result<T, ReadError>,
) -> Result<T, CopyError> {
    let mut backoff = Backoff::default();
    for _ in 1..READS_MAX {
        match read().await {
            Err(ReadError::Unavailable(_)) => backoff.wait().await,
            done => return Ok(done?),
        }
    }
    Ok(read().await?)
}
