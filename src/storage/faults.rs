//! A store that misbehaves on request, around any other.
//!
//! A test scripts faults one by one on the [`FaultPlan`]; without any, everything passes through.
//! Nothing here is random and nothing runs by a clock unless a fault says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::error::{CommitError, LeaseError, ReadError, Rejection};
use crate::store::{
    Committed, Health, History, KeyValue, LeaseId, Limits, RangeReply, RangeRequest, Revision,
    Store, StoreStatus, Txn,
};
use crate::watch::{StoreWatch, WatchEnd, WatchSender};

/// What happens to a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitFault {
    /// It is done after this time.
    Delay(Duration),
    /// It is done, and its answer held back for this time.
    DelayAnswer(Duration),
    /// It is not done, and answered as if these compares had failed.
    Refuse(Vec<usize>),
    /// It is not done, and answered so.
    Reject(Rejection),
    /// It is done, and answered as unknown. One that would be refused is not done.
    UnknownApplied,
    /// It is not done, now or later, and answered as unknown.
    UnknownNotApplied,
    /// It is answered as unknown and waits for [`FaultyStore::apply_late`].
    UnknownLate,
    /// It is never answered; it is done.
    HangApplied,
    /// It is never answered; it is not done.
    HangNotApplied,
}

/// What happens to a read: a get, a range, a history, a revision, the start of a watch or a request
/// for progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFault {
    /// It is done after this time.
    Delay(Duration),
    /// It fails so.
    Fail(ReadError),
    /// It is never answered.
    Hang,
}

type Matches<T> = Box<dyn Fn(&T) -> bool + Send + Sync>;

struct CommitRule {
    matches: Matches<Txn>,
    fault: CommitFault,
    times: usize,
}

/// The faults to come.
#[derive(Default)]
pub struct FaultPlan {
    commits: Mutex<Vec<CommitRule>>,
    reads: Mutex<Vec<(ReadFault, usize)>>,
    lease_failures: Mutex<usize>,
    forgetful: Mutex<bool>,
    full: Mutex<bool>,
    asked: AtomicUsize,
}

impl FaultPlan {
    /// The next commit meets this fault.
    pub fn next_commit(&self, fault: CommitFault) {
        self.commits_matching(|_| true, fault, 1);
    }

    /// The next `times` commits that match meet this fault. Rules are tried in the order given.
    pub fn commits_matching(
        &self,
        matches: impl Fn(&Txn) -> bool + Send + Sync + 'static,
        fault: CommitFault,
        times: usize,
    ) {
        let matches = Box::new(matches);
        self.commits.lock().push(CommitRule {
            matches,
            fault,
            times,
        });
    }

    /// The next `times` reads meet this fault.
    pub fn next_reads(&self, fault: ReadFault, times: usize) {
        self.reads.lock().push((fault, times));
    }

    /// From now on every history is returned empty.
    pub fn forget_histories(&self) {
        *self.forgetful.lock() = true;
    }

    /// The next `times` renewals of a lease fail as unavailable.
    pub fn next_keep_alives_fail(&self, times: usize) {
        *self.lease_failures.lock() += times;
    }

    /// Number of commits so far, whatever their outcome.
    #[must_use]
    pub fn commits_asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// From now on every commit is rejected for want of space.
    pub fn fill(&self) {
        *self.full.lock() = true;
    }

    /// There is space again.
    pub fn free(&self) {
        *self.full.lock() = false;
    }

    /// Drops all faults to come.
    pub fn clear(&self) {
        self.commits.lock().clear();
        self.reads.lock().clear();
        *self.lease_failures.lock() = 0;
        *self.forgetful.lock() = false;
        self.free();
    }

    fn commit_fault(&self, txn: &Txn) -> Option<CommitFault> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if *self.full.lock() {
            let text = "the disk is full by plan".to_owned();
            return Some(CommitFault::Reject(Rejection::NoSpace(text)));
        }
        let mut rules = self.commits.lock();
        let found = rules.iter().position(|rule| (rule.matches)(txn))?;
        let rule = &mut rules[found];
        let fault = rule.fault.clone();
        rule.times = rule.times.saturating_sub(1);
        if rule.times == 0 {
            rules.remove(found);
        }
        Some(fault)
    }

    fn read_fault(&self) -> Option<ReadFault> {
        let mut rules = self.reads.lock();
        let (fault, times) = rules.first_mut()?;
        let fault = fault.clone();
        *times = times.saturating_sub(1);
        if *times == 0 {
            rules.remove(0);
        }
        Some(fault)
    }

    fn keep_alive_fails(&self) -> bool {
        let mut failures = self.lease_failures.lock();
        let fails = *failures > 0;
        *failures = failures.saturating_sub(1);
        fails
    }
}

/// A store with a [`FaultPlan`].
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Arc<FaultPlan>,
    late: Mutex<Vec<Txn>>,
    watches: Mutex<Vec<WatchSender>>,
}

impl FaultyStore {
    /// Wraps a store; without a plan it changes nothing.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            plan: Arc::default(),
            late: Mutex::new(Vec::new()),
            watches: Mutex::new(Vec::new()),
        }
    }

    /// The faults to come.
    #[must_use]
    pub fn plan(&self) -> &Arc<FaultPlan> {
        &self.plan
    }

    /// Does, in order, the transactions that were answered as unknown to be done late.
    pub async fn apply_late(&self) -> Vec<Result<Committed, CommitError>> {
        let late = std::mem::take(&mut *self.late.lock());
        let mut results = Vec::with_capacity(late.len());
        for txn in late {
            results.push(self.inner.commit(txn).await);
        }
        results
    }

    /// Cuts all running watches off, as a lost connection does.
    pub fn cut_watches(&self) {
        for watch in self.watches.lock().drain(..) {
            watch.end(WatchEnd::Lost("cut by plan".to_owned()));
        }
    }

    /// Refuses with what the keys hold now. They are read one after the other, so the revision is
    /// that of the last read.
    async fn refuse(&self, txn: &Txn, failed: Vec<usize>) -> Result<Committed, CommitError> {
        let unread =
            |error| CommitError::Unknown(format!("refused by plan, but a read failed: {error}"));
        let mut at = self.inner.revision().await.map_err(unread)?;
        let mut found = Vec::with_capacity(txn.compares.len());
        for compare in &txn.compares {
            let read = self.inner.get(compare.key()).await;
            let (read_at, key_value) = read.map_err(unread)?;
            at = read_at;
            found.push(key_value);
        }
        Err(CommitError::Refused { failed, at, found })
    }

    async fn before_read(&self) -> Result<(), ReadError> {
        match self.plan.read_fault() {
            None => Ok(()),
            Some(ReadFault::Delay(by)) => {
                tokio::time::sleep(by).await;
                Ok(())
            }
            Some(ReadFault::Fail(error)) => Err(error),
            Some(ReadFault::Hang) => std::future::pending().await,
        }
    }
}

fn unknown() -> CommitError {
    CommitError::Unknown("unknown by plan".to_owned())
}

#[async_trait]
impl Store for FaultyStore {
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError> {
        match self.plan.commit_fault(&txn) {
            None => self.inner.commit(txn).await,
            Some(CommitFault::Delay(by)) => {
                tokio::time::sleep(by).await;
                self.inner.commit(txn).await
            }
            Some(CommitFault::DelayAnswer(by)) => {
                let result = self.inner.commit(txn).await;
                tokio::time::sleep(by).await;
                result
            }
            Some(CommitFault::Refuse(failed)) => self.refuse(&txn, failed).await,
            Some(CommitFault::Reject(rejection)) => Err(CommitError::Rejected(rejection)),
            Some(CommitFault::UnknownApplied) => {
                let _ = self.inner.commit(txn).await;
                Err(unknown())
            }
            Some(CommitFault::UnknownNotApplied) => Err(unknown()),
            Some(CommitFault::UnknownLate) => {
                self.late.lock().push(txn);
                Err(unknown())
            }
            Some(CommitFault::HangApplied) => {
                let _ = self.inner.commit(txn).await;
                std::future::pending().await
            }
            Some(CommitFault::HangNotApplied) => std::future::pending().await,
        }
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError> {
        self.before_read().await?;
        self.inner.range(request).await
    }

    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError> {
        self.before_read().await?;
        self.inner.get(key).await
    }

    async fn history(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<History, ReadError> {
        self.before_read().await?;
        let mut history = self.inner.history(start, end, after).await?;
        if *self.plan.forgetful.lock() {
            history.events.clear();
        }
        Ok(history)
    }

    async fn watch(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<StoreWatch, ReadError> {
        self.before_read().await?;
        let watch = self.inner.watch(start, end, after).await?;
        let mut watches = self.watches.lock();
        watches.retain(|watch| !watch.is_gone());
        watches.push(watch.sender());
        Ok(watch)
    }

    async fn request_progress(&self) -> Result<(), ReadError> {
        self.before_read().await?;
        self.inner.request_progress().await
    }

    async fn revision(&self) -> Result<Revision, ReadError> {
        self.before_read().await?;
        self.inner.revision().await
    }

    async fn compact(&self, below: Revision) -> Result<(), ReadError> {
        self.inner.compact(below).await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        self.inner.lease_grant(ttl).await
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError> {
        if self.plan.keep_alive_fails() {
            return Err(LeaseError::Unavailable("unavailable by plan".to_owned()));
        }
        self.inner.lease_keep_alive(lease).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        self.inner.lease_revoke(lease).await
    }

    fn opened_at(&self) -> Option<Revision> {
        self.inner.opened_at()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn status(&self) -> StoreStatus {
        let status = self.inner.status();
        if *self.plan.full.lock() {
            let reason = "no space: the disk is full by plan".to_owned();
            return StoreStatus {
                health: Health::ReadOnly { reason },
                ..status
            };
        }
        status
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
