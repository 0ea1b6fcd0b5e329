//! A decorator around any store that misbehaves on request.
//!
//! A test adds faults one by one to the [`FaultPlan`]; without any, every call passes through.
//! Nothing here is random, and nothing depends on time unless a fault has one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::error::{CommitError, LeaseError, ReadError, Rejection};
use crate::store::{
    Committed, Health, History, KeyValue, LeaseId, Limits, Op, RangeReply, RangeRequest, Revision,
    Store, StoreStatus, Txn,
};
use crate::watch::{StoreWatch, WatchEnd, WatchSender};

/// A fault of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitFault {
    /// The commit is applied after this time.
    Delay(Duration),
    /// The commit is applied, and its reply delayed by this time.
    DelayAnswer(Duration),
    /// The commit is not applied, and the reply is that these compares did not hold.
    Refuse(Vec<usize>),
    /// The commit is not applied, and the reply is this rejection.
    Reject(Rejection),
    /// The commit is applied, and the reply is that its outcome is unknown. A commit that would be
    /// refused is not applied.
    UnknownApplied,
    /// The commit is not applied, now or later, and the reply is that its outcome is unknown.
    UnknownNotApplied,
    /// The commit is applied, and the reply is this rejection, which does not say so. A commit that
    /// would be refused is not applied.
    UndisclosedApplied(Rejection),
    /// The commit is not applied, now or later, and the reply is this rejection, which does not say
    /// so.
    UndisclosedNotApplied(Rejection),
    /// The reply is that the outcome is unknown, and the commit waits for
    /// [`FaultyStore::apply_late`].
    UnknownLate,
    /// The commit is applied but never gets a reply.
    HangApplied,
    /// The commit is not applied and never gets a reply.
    HangNotApplied,
}

/// A fault of one read: a get, a range, a history, a revision, the start of a watch or a request
/// for progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFault {
    /// The read is done after this time.
    Delay(Duration),
    /// The read returns this error.
    Fail(ReadError),
    /// The read never gets a reply.
    Hang,
}

type Matches<T> = Box<dyn Fn(&T) -> bool + Send + Sync>;

struct CommitRule {
    matches: Matches<Txn>,
    fault: CommitFault,
    times: usize,
}

/// The faults of future calls.
#[derive(Default)]
pub struct FaultPlan {
    commits: Mutex<Vec<CommitRule>>,
    reads: Mutex<Vec<(ReadFault, usize)>>,
    lease_failures: Mutex<usize>,
    forgetful: Mutex<bool>,
    full: Mutex<bool>,
    alarm: Mutex<bool>,
    nearly_full: Mutex<bool>,
    asked: AtomicUsize,
}

impl FaultPlan {
    /// Makes the next commit meet this fault.
    pub fn next_commit(&self, fault: CommitFault) {
        self.commits_matching(|_| true, fault, 1);
    }

    /// Makes the next `times` commits that match meet this fault. Rules are tried in the order in
    /// which they were added.
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

    /// Makes the next `times` reads meet this fault.
    pub fn next_reads(&self, fault: ReadFault, times: usize) {
        self.reads.lock().push((fault, times));
    }

    /// Makes every history empty from now on.
    pub fn forget_histories(&self) {
        *self.forgetful.lock() = true;
    }

    /// Makes the next `times` renewals of a lease fail as unavailable.
    pub fn next_keep_alives_fail(&self, times: usize) {
        *self.lease_failures.lock() += times;
    }

    /// Returns the number of commits so far, whatever their outcome.
    #[must_use]
    pub fn commits_asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Makes every commit fail for lack of space from now on.
    pub fn fill(&self) {
        *self.full.lock() = true;
    }

    /// Makes every commit with a put, and every grant of a lease, fail for lack of space from now on, as
    /// etcd does while its NOSPACE alarm is raised. Deletions alone pass.
    pub fn raise_alarm(&self) {
        *self.alarm.lock() = true;
    }

    /// Makes the store say that it is nearly full from now on. It refuses nothing for this reason.
    pub fn nearly_fill(&self) {
        *self.nearly_full.lock() = true;
    }

    /// Ends the lack of space.
    pub fn free(&self) {
        *self.full.lock() = false;
        *self.alarm.lock() = false;
        *self.nearly_full.lock() = false;
    }

    /// Drops all planned faults.
    pub fn clear(&self) {
        self.commits.lock().clear();
        self.reads.lock().clear();
        *self.lease_failures.lock() = 0;
        *self.forgetful.lock() = false;
        self.free();
    }

    fn commit_fault(&self, txn: &Txn) -> Option<CommitFault> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let puts = txn.ops.iter().any(|op| matches!(op, Op::Put { .. }));
        if let Some(shortage) = self.shortage()
            && (puts || *self.full.lock())
        {
            let text = shortage.to_owned();
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

    /// Returns what there is no space in, if the store refuses commits for that reason.
    fn shortage(&self) -> Option<&'static str> {
        match (*self.full.lock(), *self.alarm.lock()) {
            (true, _) => Some("the disk is full by plan"),
            (false, true) => Some("the quota is used up by plan"),
            (false, false) => None,
        }
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
    /// Wraps a store; without planned faults it changes nothing.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            plan: Arc::default(),
            late: Mutex::new(Vec::new()),
            watches: Mutex::new(Vec::new()),
        }
    }

    /// Returns the planned faults.
    #[must_use]
    pub fn plan(&self) -> &Arc<FaultPlan> {
        &self.plan
    }

    /// Applies, in order, the transactions that were answered as unknown and wait for this call.
    pub async fn apply_late(&self) -> Vec<Result<Committed, CommitError>> {
        let late = std::mem::take(&mut *self.late.lock());
        let mut results = Vec::with_capacity(late.len());
        for txn in late {
            results.push(self.inner.commit(txn).await);
        }
        results
    }

    /// Ends all running watches, as a lost connection does.
    pub fn cut_watches(&self) {
        for watch in self.watches.lock().drain(..) {
            watch.end(WatchEnd::Lost("cut by plan".to_owned()));
        }
    }

    /// Returns a refusal with the present values of the keys. They are read one after the other, so
    /// the revision is that of the last read.
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
        // The memory store replies at once; behind this one callers see their writes under way.
        tokio::task::yield_now().await;
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
            Some(CommitFault::UndisclosedApplied(rejection)) => {
                let before = self.inner.revision().await.unwrap_or_default();
                let _ = self.inner.commit(txn).await;
                Err(CommitError::Undisclosed(rejection, before))
            }
            Some(CommitFault::UndisclosedNotApplied(rejection)) => {
                let before = self.inner.revision().await.unwrap_or_default();
                Err(CommitError::Undisclosed(rejection, before))
            }
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
        if *self.plan.alarm.lock() {
            return Err(LeaseError::Unavailable("no space by plan".to_owned()));
        }
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
        if let Some(shortage) = self.plan.shortage() {
            let reason = format!("no space: {shortage}");
            return StoreStatus {
                health: Health::ReadOnly { reason },
                ..status
            };
        }
        status
    }

    fn is_nearly_full(&self) -> bool {
        *self.plan.nearly_full.lock() || self.inner.is_nearly_full()
    }

    fn remedy(&self) -> Option<&'static str> {
        match *self.plan.alarm.lock() {
            true => Some("disarm the alarm by plan"),
            false => self.inner.remedy(),
        }
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
