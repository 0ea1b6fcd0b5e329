//! The shared engine: etcd, for replicas that form a ring.
//!
//! * `wire`: conversion to and from etcd's messages, and the key prefix. `reply`: the meaning of
//!   its errors.
//! * `members`: a connection to each member, which members are fit, and which one gets the calls.
//! * `calls`: commits, reads and leases. `feed`: watches that reconnect by themselves, and histories.
//! * `clients` and `credentials`: connections, and the credentials they use.
//! * `version`: which etcd versions are refused. `space`: the quota.
//! * `server`: the other side, an etcd over another store, for tests of whom one process is enough.
//!
//! # Guarantees
//! * A commit is one transaction and is proposed once. Its outcome is final when etcd replies that
//!   it was applied, that a compare did not hold, or that it was refused before it was proposed.
//!   A used-up quota is final too, but may be [`CommitError::Undisclosed`], see `space`. Every other
//!   outcome is [`CommitError::Unknown`].
//! * A commit that is refused because etcd elects a leader is sent again when there is one. Once etcd
//!   has been unavailable for longer, commits are refused at once.
//! * Reads without a revision are linearizable. Members of a version whose linearizable reads may be
//!   stale are not used.
//! * The history is read only from above the compaction revision. If compaction has removed a
//!   previous value, reading it ends with [`ReadError::Compacted`].
//! * etcd has nothing at revision 1, its first one, and does not report that this revision was
//!   compacted. A store that has not compacted revision 1 itself reads from it, and misses nothing.
//! * If one of several members is dead, hangs, or has no leader, calls go to another.
//! * The TTL of a store lease is whole seconds, rounded up, and at least etcd's minimum: 2 s with its
//!   default election timeout. A new leader extends every lease by a full TTL.

mod calls;
mod clients;
mod credentials;
mod feed;
mod logins;
mod members;
mod reply;
pub mod server;
mod space;
mod version;
mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use self::credentials::Credentials;
pub use self::credentials::Secret;
use self::feed::{EventStream, Feed, FeedUpdate, KeyRange, ProgressRequest};
use self::members::{Members, Report};
use self::space::Space;
use self::wire::Keys;
use crate::error::{CommitError, LeaseError, OpenError, ReadError, Rejection};
use crate::store::{
    Committed, HISTORY_BYTES_MAX, Health, History, KeyValue, LeaseId, Limits, NewestEvents,
    RangeReply, RangeRequest, Revision, Store, StoreEvent, StoreStatus, TXN_OPS_MAX, Txn,
};
use crate::txn::check;
use crate::watch::{StoreWatch, WatchEnd, WatchSender, store_watch};

/// etcd's limits with its default flags: 128 operations, 128 compares and 1.5 MiB per request. Beside the largest
/// value there is room for other keys and records, and beside the largest transaction 28 KiB for compares,
/// the key prefix and framing: a large value has few of them, as planes send it in a transaction of its own.
const ETCD_LIMITS: Limits = Limits {
    ops_max: TXN_OPS_MAX + 8,
    compares_max: TXN_OPS_MAX + 8,
    txn_bytes_max: 1508 * 1024,
    value_bytes_max: 1500 * 1024,
    key_bytes_max: 4 * 1024,
    transactions_max: 8,
    is_serial: false,
};

/// Interval of the status requests to all members. A longer one would notice a dead member later.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval of these requests, after calls that failed. A shorter one would load a cluster
/// in trouble.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Interval of reading the files with credentials. A replica whose credentials have expired has no
/// store for at most this long after the files are replaced.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time without an event or progress while a history is read. Without this limit a hanging
/// member would block the reader for ever.
const STALL_MAX: Duration = Duration::from_secs(10);

/// The certificates for TLS to etcd, in PEM form.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// The CA of the servers' certificates; `None` for the system's root certificates.
    pub ca: Option<Secret>,
    /// The client's certificate and its key.
    pub cert_and_key: Option<(Secret, Secret)>,
    /// The name in the servers' certificates, if it is not the endpoint's host.
    pub server_name: Option<String>,
}

/// The options of an [`EtcdStore`].
#[derive(Clone)]
pub struct EtcdOptions {
    /// The endpoints: `host:port`, `http://host:port` or `https://host:port`, if possible of all
    /// members.
    pub endpoints: Vec<String>,
    /// The prefix of every key. Stores can share an etcd without seeing each other's keys if
    /// neither of their prefixes begins with the other.
    pub prefix: Bytes,
    /// User and password.
    pub user: Option<(String, Secret)>,
    /// The certificates for TLS. If they are set, endpoints without a scheme use TLS.
    pub tls: Option<EtcdTls>,
    /// The longest time that a call may take. The outcome of a commit that takes longer is unknown.
    pub call_timeout: Duration,
    /// The longest time that opening waits until a member is fit.
    pub open_timeout: Duration,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: Bytes::from_static(b"/polyplane/"),
            user: None,
            tls: None,
            call_timeout: Duration::from_secs(5),
            open_timeout: Duration::from_secs(10),
        }
    }
}

impl EtcdOptions {
    /// Reads the files that the options name, so that a missing one is reported before connecting.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or a password is not text.
    pub fn check(&self) -> Result<(), OpenError> {
        Credentials::read(self).map(drop)
    }
}

struct Inner {
    options: Arc<EtcdOptions>,
    keys: Keys,
    members: Arc<Members>,
    space: Space,
    /// The newest revision that any reply has shown.
    seen: AtomicU64,
    floor: AtomicU64,
    used_bytes: AtomicU64,
    feeds: Mutex<Vec<(WatchSender, Arc<ProgressRequest>)>>,
    closed: watch::Sender<bool>,
}

/// A store in an etcd cluster. Dropping it ends its watches.
pub struct EtcdStore {
    inner: Arc<Inner>,
}

impl EtcdStore {
    /// Connects to the cluster, and waits until a member is fit.
    ///
    /// # Errors
    /// See [`OpenError`]; a member with a version that must not be used, a wrong password, a
    /// certificate that is not trusted or an invalid endpoint is reported at once; unreachable
    /// members are reported after [`EtcdOptions::open_timeout`].
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect(options: EtcdOptions) -> Result<Arc<Self>, OpenError> {
        let options = Arc::new(options);
        let members = Arc::new(Members::new(Arc::clone(&options)).await?);
        let deadline = Instant::now() + options.open_timeout;
        let mut pause = PROBE_PAUSE;
        let report = loop {
            let report = members.probe().await;
            if let Some(refusal) = members.refusal() {
                return Err(refusal);
            }
            match (report, members.no_member()) {
                (Some(report), None) => break report,
                (_, Some(why)) if members.any_untrusted() => {
                    let reason = why.to_string();
                    return Err(OpenError::Untrusted { reason });
                }
                (_, why) if Instant::now() >= deadline => {
                    let reason =
                        why.map_or_else(|| "no member is fit".to_owned(), |why| why.to_string());
                    return Err(OpenError::Unreachable { reason });
                }
                _ => tokio::time::sleep(pause).await,
            }
            // The pause grows up to the interval of an open store.
            pause = (pause * 2).min(PROBE_INTERVAL);
        };
        let inner = Arc::new(Inner {
            keys: Keys::new(options.prefix.clone()),
            options,
            members,
            space: Space::default(),
            seen: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            used_bytes: AtomicU64::new(0),
            feeds: Mutex::default(),
            closed: watch::Sender::new(false),
        });
        inner.note(report);
        inner.check_access().await?;
        // Both tasks end by themselves when the store is closed or dropped.
        tokio::spawn(keep_probing(
            Arc::downgrade(&inner),
            inner.closed.subscribe(),
        ));
        if inner.members.may_change() {
            tokio::spawn(keep_renewing(
                Arc::downgrade(&inner.members),
                inner.closed.subscribe(),
            ));
        }
        Ok(Arc::new(Self { inner }))
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.inner.end();
    }
}

/// Completes when the store is closed.
async fn closing(closed: &mut watch::Receiver<bool>) {
    // The sender lives in the store: an error also means that the store is gone.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// Requests the status of all members again and again, and checks whether the quota is free again.
async fn keep_probing(store: Weak<Inner>, mut closed: watch::Receiver<bool>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let probe_now = inner.members.probe_now.notified();
        tokio::select! {
            biased;
            () = closing(&mut closed) => return,
            () = probe_now => tokio::time::sleep(PROBE_PAUSE).await,
            () = tokio::time::sleep(PROBE_INTERVAL) => {}
        }
        if let Some(report) = inner.members.probe().await {
            inner.note(report);
        }
        if inner.space.is_full() {
            inner.check_space().await;
        }
    }
}

/// Checks again and again whether the files hold other credentials.
async fn keep_renewing(members: Weak<Members>, mut closed: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            biased;
            () = closing(&mut closed) => return,
            () = tokio::time::sleep(RENEWAL_INTERVAL) => {}
        }
        let Some(members) = members.upgrade() else {
            return;
        };
        members.renew().await;
    }
}

impl Inner {
    fn note(&self, report: Report) {
        let used_bytes = report.database.file_bytes;
        self.used_bytes.store(used_bytes, Ordering::Relaxed);
        self.space.note(&report.errors);
        self.space.note_size(report.database);
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    fn note_revision(&self, revision: Revision) {
        self.seen.fetch_max(revision.0, Ordering::SeqCst);
    }

    fn floor(&self) -> Revision {
        Revision(self.floor.load(Ordering::SeqCst))
    }

    fn raise_floor(&self, floor: Revision) {
        self.floor.fetch_max(floor.0, Ordering::SeqCst);
    }

    fn compacted(&self) -> ReadError {
        ReadError::Compacted {
            floor: self.floor(),
        }
    }

    /// Ends all tasks and watches.
    fn end(&self) {
        self.closed.send_replace(true);
        for (sender, _) in self.feeds.lock().drain(..) {
            sender.end(WatchEnd::Closed);
        }
    }

    /// Reads the events after a revision up to another, from a watch that ends there.
    async fn read_history(
        &self,
        range: &KeyRange,
        after: Revision,
        through: Revision,
    ) -> Result<Vec<StoreEvent>, ReadError> {
        let unavailable = |text: String| ReadError::Unavailable(text);
        let member = self.members.current();
        let sent = Instant::now();
        let stream = EventStream::open(&member, &self.keys, range, after).await;
        let mut stream = stream.map_err(|fault| unavailable(fault.to_string()))?;
        let mut events = NewestEvents::new(HISTORY_BYTES_MAX);
        let mut stalled = Instant::now() + STALL_MAX;
        loop {
            let update = tokio::select! {
                biased;
                update = stream.next() => update,
                why = member.unfit() => return Err(unavailable(why)),
                () = tokio::time::sleep_until(stalled) => {
                    self.members.suspect(&member, "a history made no progress");
                    return Err(unavailable("the history made no progress".to_owned()));
                }
                () = tokio::time::sleep(feed::PROGRESS_RETRY) => {
                    match stream.request_progress().await {
                        Ok(()) => continue,
                        Err(fault) => Err(fault),
                    }
                }
            };
            match update {
                Ok(FeedUpdate::Events(more)) => {
                    stalled = Instant::now() + STALL_MAX;
                    let last = more.last().map_or(after, |event| event.revision);
                    for event in more {
                        if event.revision <= through {
                            events.push(event);
                        }
                    }
                    if last >= through {
                        return events.all();
                    }
                }
                Ok(FeedUpdate::Progress(at)) if at >= through => return events.all(),
                Ok(FeedUpdate::Progress(_)) => {}
                Ok(FeedUpdate::Compacted(floor)) => {
                    self.raise_floor(floor);
                    return Err(self.compacted());
                }
                Err(fault) => {
                    if !self.members.log_in_again(&member, &fault, sent).await {
                        self.members.suspect(&member, &fault.to_string());
                    }
                    return Err(unavailable(fault.to_string()));
                }
            }
        }
    }

    async fn history(&self, range: KeyRange, after: Revision) -> Result<History, ReadError> {
        let through = self.check_history(after).await?;
        if through <= after {
            return Ok(History {
                revision: through,
                events: Vec::new(),
            });
        }
        let deadline = Instant::now() + STALL_MAX;
        loop {
            match self.read_history(&range, after, through).await {
                Ok(events) => {
                    return Ok(History {
                        revision: through,
                        events,
                    });
                }
                Err(ReadError::Unavailable(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(PROBE_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn watch(
        self: &Arc<Self>,
        range: KeyRange,
        after: Revision,
    ) -> Result<StoreWatch, ReadError> {
        self.check_history(after).await?;
        let (sender, watch) = store_watch(after);
        let asked = Arc::new(ProgressRequest::default());
        let mut feeds = self.feeds.lock();
        if self.is_closed() {
            return Err(ReadError::Closed);
        }
        feeds.retain(|(sender, _)| !sender.is_gone());
        feeds.push((sender.clone(), Arc::clone(&asked)));
        drop(feeds);
        let store = Arc::downgrade(self);
        let feed = Feed {
            members: Arc::clone(&self.members),
            keys: self.keys.clone(),
            range,
            sender,
            asked,
            closed: self.closed.subscribe(),
            delivered: after,
            raise_floor: Arc::new(move |floor| {
                if let Some(store) = store.upgrade() {
                    store.raise_floor(floor);
                }
            }),
        };
        // The task ends by itself with the watch or the store.
        tokio::spawn(feed.run());
        Ok(watch)
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError> {
        check(&txn, &ETCD_LIMITS).map_err(CommitError::Rejected)?;
        if self.inner.is_closed() {
            return Err(CommitError::Rejected(Rejection::Closed));
        }
        self.inner.commit(txn).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError> {
        self.inner.range(request).await
    }

    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError> {
        self.inner.get(key).await
    }

    async fn history(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<History, ReadError> {
        self.inner.history(KeyRange { start, end }, after).await
    }

    async fn watch(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<StoreWatch, ReadError> {
        self.inner.watch(KeyRange { start, end }, after).await
    }

    async fn request_progress(&self) -> Result<(), ReadError> {
        if self.inner.is_closed() {
            return Err(ReadError::Closed);
        }
        let seen = Revision(self.inner.seen.load(Ordering::SeqCst));
        for (_, asked) in &*self.inner.feeds.lock() {
            asked.progress(seen);
        }
        Ok(())
    }

    async fn revision(&self) -> Result<Revision, ReadError> {
        self.inner.head().await
    }

    async fn compact(&self, below: Revision) -> Result<(), ReadError> {
        self.inner.compact(below).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        self.inner.lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError> {
        self.inner.lease_keep_alive(lease).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        self.inner.lease_revoke(lease).await
    }

    fn opened_at(&self) -> Option<Revision> {
        None
    }

    fn limits(&self) -> Limits {
        ETCD_LIMITS
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            health: self.health(),
            used_bytes: self.inner.used_bytes.load(Ordering::Relaxed),
            floor: self.inner.floor(),
        }
    }

    fn health(&self) -> Health {
        if self.inner.is_closed() {
            let reason = "the store is closed".to_owned();
            return Health::Failed { reason };
        }
        match self.inner.members.no_member() {
            Some(why) => Health::Failed {
                reason: why.to_string(),
            },
            None => self.inner.space.health(),
        }
    }

    fn is_nearly_full(&self) -> bool {
        self.inner.space.is_nearly_full()
    }

    fn remedy(&self) -> Option<&'static str> {
        self.inner.space.remedy()
    }

    async fn close(&self) {
        self.inner.end();
    }
}
