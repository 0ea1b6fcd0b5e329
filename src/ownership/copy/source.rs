//! The store that a copy reads. Owns what must be true of it: it is whole, no replica serves it, and
//! nothing is written to it while it is copied.
//!
//! A store that only one process can have open deletes the member keys of earlier processes itself, once it can
//! write. On a full disk they are still there, and nobody serves it: it can be copied to where there is room.

use crate::copy::families::is_copied;
use crate::copy::record::{CopyFigures, CopyRecordError, SourceId, StoreNumbering, read_numbering};
use crate::copy::{CopyError, patiently};
use crate::membership::member_record::members_store_prefix;
use crate::planes::{ROOT_KEY, SECRET_KEY};
use crate::records::{CANDIDATES, FLOOR_KEY, Floor, decode_floor};
use bytes::Bytes;
use polyplane_plane::Version;
use polyplane_storage::{
    Backoff, Fields, KeyValue, RangeReply, RangeRequest, ReadError, Revision, Store, StoreEvent,
    StoreWatch, WatchBatch, WatchEnd,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Revisions of the source whose changes are copied one by one; older ones are copied as state. An etcd
/// that nobody compacts has all of its history, and repeating it would never end. A store keeps five
/// minutes for watches, which is less even with a thousand commits a second.
const HISTORY_REVISIONS_MAX: u64 = 300_000;
/// Keys of a page of the count.
const COUNTED_PAGE: usize = 10_000;
/// How long the source may take to report that nothing was written. Without the limit a copy would
/// hang at an etcd that does not answer.
const PROGRESS_PATIENCE: Duration = Duration::from_secs(20);

/// The source of a copy.
pub(crate) struct Source {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) id: SourceId,
    pub(crate) numbering: StoreNumbering,
    pub(crate) root: KeyValue,
    pub(crate) secret: KeyValue,
    pub(crate) floor: Floor,
    /// Delivers whatever is written after the newest revision that is copied.
    written: StoreWatch,
    /// The revision up to which it has delivered nothing that is copied.
    seen: Revision,
}

impl Source {
    /// Reads what identifies the source. `known` is the source of the copy that is to continue.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        known: Option<&SourceId>,
    ) -> Result<Self, CopyError> {
        let numbering = patiently(|| read_numbering(&store)).await?;
        let (numbering, copied_at) = numbering.map_err(|error| match error {
            CopyRecordError::Unfinished(from) => CopyError::SourceUnfinished(from),
            CopyRecordError::Damaged(damaged) => damaged.into(),
        })?;
        let get = async |key: &'static [u8]| patiently(|| store.get(key)).await;
        let (Some(root), Some(secret)) = (
            get(ROOT_KEY.as_bytes()).await?.1,
            get(SECRET_KEY.as_bytes()).await?.1,
        ) else {
            return Err(CopyError::NoStore);
        };
        let floor = get(FLOOR_KEY).await?.1;
        let floor = floor.map(|found| decode_floor(&found.value)).transpose()?;
        let members = RangeRequest::prefix(members_store_prefix());
        let members = patiently(|| store.range(members.clone())).await?;
        let opened_at = store.opened_at();
        let is_alive = |member: &&KeyValue| opened_at.is_none_or(|at| member.created > at);
        if let Some(member) = members.items.iter().find(is_alive) {
            return Err(CopyError::Served(name_of(&member.key)));
        }
        let own = (root.created.0, copied_at.0);
        let known = known.filter(|known| own == (known.root_created, known.copied_at));
        let id = match known {
            Some(known) => known.clone(),
            None => SourceId {
                root_created: own.0,
                copied_at: own.1,
                begins: oldest(&store, &numbering, members.revision).await?.0,
                ends: members.revision.0,
            },
        };
        let written = match store
            .watch(Bytes::new(), Bytes::new(), Revision(id.ends))
            .await
        {
            Ok(watch) => watch,
            Err(ReadError::Compacted { .. } | ReadError::Future { .. }) => {
                return Err(CopyError::SourceWritten);
            }
            Err(error) => return Err(error.into()),
        };
        let seen = Revision(id.ends);
        let source = Self {
            store,
            id,
            numbering,
            root,
            secret,
            floor: floor.unwrap_or_default(),
            written,
            seen,
        };
        Ok(source)
    }

    /// Returns the version after everything that is copied.
    pub(crate) fn ends(&self) -> Version {
        self.numbering.planes.version_after(Revision(self.id.ends))
    }

    /// Returns the version at which the copied history begins.
    pub(crate) fn begins(&self) -> Version {
        self.numbering
            .planes
            .version_after(Revision(self.id.begins))
    }

    /// Returns the version of the root plane's birth.
    pub(crate) fn root_born(&self) -> Version {
        let own = || Version::new(self.numbering.planes.base, self.root.created, 0);
        self.numbering.root_born.unwrap_or_else(own)
    }

    /// Counts what is copied of the records as they were at a revision, and the revisions of history.
    pub(crate) async fn count(&self, at: u64, rows: &[u8]) -> Result<CopyFigures, CopyError> {
        let mut figures = CopyFigures {
            revisions: self.id.ends - self.id.begins,
            ..CopyFigures::default()
        };
        let mut request = Some(RangeRequest {
            fields: Fields::KeysOnly,
            limit: COUNTED_PAGE,
            at: Some(Revision(at)),
            ..RangeRequest::default()
        });
        while let Some(page) = request {
            let reply = self.page(&page).await?;
            for item in &reply.items {
                figures.objects += u64::from(is_copied(&item.key));
                figures.planes += u64::from(item.key.starts_with(rows));
            }
            request = page.next_page(&reply);
        }
        Ok(figures)
    }

    /// Returns the request for the records from a key on, as they were when the history begins.
    pub(crate) fn all_from(&self, start: Bytes) -> RangeRequest {
        RangeRequest {
            start,
            at: Some(Revision(self.id.begins)),
            ..RangeRequest::default()
        }
    }

    /// Reads a page of the state.
    pub(crate) async fn page(&self, request: &RangeRequest) -> Result<RangeReply, CopyError> {
        match patiently(|| self.store.range(request.clone())).await {
            Err(CopyError::Read(ReadError::Compacted { .. })) => Err(CopyError::Compacted),
            read => read,
        }
    }

    /// Returns the changes after a revision.
    pub(crate) fn changes_after(&self, reached: Revision) -> Changes {
        Changes {
            store: Arc::clone(&self.store),
            reached,
            ends: Revision(self.id.ends),
            watch: None,
            backoff: Backoff::default(),
        }
    }

    /// Checks, without waiting, that nothing is known to have been written.
    pub(crate) async fn check(&mut self) -> Result<(), CopyError> {
        while let Some(next) = self.written.try_next() {
            self.judge(next).await?;
        }
        Ok(())
    }

    /// Checks that nothing has been written up to this call.
    pub(crate) async fn check_all(&mut self) -> Result<(), CopyError> {
        let newest = patiently(|| self.store.revision()).await?;
        while self.seen < newest {
            self.store.request_progress().await?;
            let next = timeout(PROGRESS_PATIENCE, self.written.next()).await;
            let next = next.map_err(|_| CopyError::Silent)?;
            self.judge(next).await?;
        }
        Ok(())
    }

    /// Notes up to which revision nothing was written. If the watch was lost, it is opened again.
    async fn judge(&mut self, next: Result<WatchBatch, WatchEnd>) -> Result<(), CopyError> {
        match next {
            Ok(batch) if batch.events.iter().all(|event| self.is_own(event)) => {
                self.seen = batch.revision;
                Ok(())
            }
            Ok(_) | Err(WatchEnd::Slow | WatchEnd::Compacted { .. }) => {
                Err(CopyError::SourceWritten)
            }
            Err(WatchEnd::Lost(_)) => {
                let ends = Revision(self.id.ends);
                let watch = || self.store.watch(Bytes::new(), Bytes::new(), ends);
                self.written = patiently(watch).await?;
                self.seen = ends;
                Ok(())
            }
            Err(WatchEnd::Closed) => Err(ReadError::Closed.into()),
        }
    }

    /// Returns whether the store itself has made a change: it has deleted the member key of an earlier process,
    /// or the record of a replica that waited outside the ring until it ended.
    fn is_own(&self, event: &StoreEvent) -> bool {
        let of_member =
            self.store.opened_at().is_some() && event.key.starts_with(&members_store_prefix());
        event.value.is_none() && (of_member || event.key.starts_with(CANDIDATES))
    }
}

/// The changes of a source up to the newest revision that is copied.
pub(crate) struct Changes {
    store: Arc<dyn Store>,
    /// The revision up to which they were returned.
    reached: Revision,
    ends: Revision,
    watch: Option<StoreWatch>,
    backoff: Backoff,
}

impl Changes {
    /// Returns the next transactions; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchBatch>, CopyError> {
        while self.reached < self.ends {
            let mut watch = match self.watch.take() {
                Some(watch) => watch,
                None => self.open().await?,
            };
            match watch.next().await {
                // Other keys of a shared etcd go on; the check at the end finds the source's own.
                Ok(next) if next.revision > self.ends => self.reached = self.ends,
                Ok(next) => {
                    self.reached = next.revision;
                    self.watch = Some(watch);
                    return Ok(Some(next));
                }
                // The rest is read by another watch.
                Err(WatchEnd::Slow | WatchEnd::Lost(_)) => self.backoff.wait().await,
                Err(WatchEnd::Compacted { .. }) => return Err(CopyError::Compacted),
                Err(end @ WatchEnd::Closed) => return Err(CopyError::Watch(end)),
            }
        }
        Ok(None)
    }

    async fn open(&self) -> Result<StoreWatch, CopyError> {
        let (store, after) = (&self.store, self.reached);
        let watch = patiently(|| store.watch(Bytes::new(), Bytes::new(), after)).await;
        let watch = watch.map_err(|error| match error {
            CopyError::Read(ReadError::Compacted { .. }) => CopyError::Compacted,
            error => error,
        })?;
        self.store.request_progress().await?;
        Ok(watch)
    }
}

/// Returns the oldest revision after which the history of planes can be copied.
async fn oldest(
    store: &Arc<dyn Store>,
    numbering: &StoreNumbering,
    newest: Revision,
) -> Result<Revision, CopyError> {
    // A copy has no history from before its own source's state was written.
    let first = numbering.planes.copied.map(|copied| copied.begins_at);
    let bound = Revision(newest.0.saturating_sub(HISTORY_REVISIONS_MAX));
    let mut oldest = first
        .unwrap_or_default()
        .max(bound)
        .max(store.status().floor);
    loop {
        let probe = RangeRequest {
            at: Some(oldest),
            fields: Fields::KeysOnly,
            limit: 1,
            ..RangeRequest::default()
        };
        match patiently(|| store.range(probe.clone())).await {
            Ok(_) => return Ok(oldest),
            Err(CopyError::Read(ReadError::Compacted { floor })) if floor > oldest => {
                oldest = floor;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the name of the replica with this member key.
fn name_of(key: &[u8]) -> String {
    let name = key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
