//! Commits, reads, compaction and leases, each of which is one call to one member.
//!
//! A commit is proposed once. It is sent again only after a member replied that it has proposed
//! nothing because it knows no leader, or after the cluster refused it for want of a valid token (the
//! etcd client retries too, with a new token). Reads are retried, at another member if there is one,
//! until their time-out.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{AlarmAction, AlarmType, Error, GetOptions, GetResponse};
use tokio::time::{Instant, sleep, timeout};

use super::Inner;
use super::feed::{EventStream, FeedUpdate, KeyRange};
use super::members::Member;
use super::reply::{self, Fault, fault};
use super::wire::{self, head, number};
use crate::error::{CommitError, LeaseError, OpenError, ReadError, Rejection};
use crate::store::{
    Committed, Fields, KeyValue, LeaseId, Op, RangeReply, RangeRequest, Revision, Txn,
};

/// Number of keys in a page if the request leaves it to the engine.
const PAGE_KEYS: usize = 1_000;
/// Number of keys in a page at most. A larger page would delay other calls to the member.
const PAGE_KEYS_MAX: usize = 10_000;
/// Time-out of a read at one member, after which another member is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(320);

/// The result of sending a transaction to one member.
enum CommitAttempt {
    /// The result for the caller.
    Answered(Result<Committed, CommitError>),
    /// Nothing was proposed, or the proposal was refused for its token, so nothing will be applied:
    /// the transaction may be sent again.
    NotProposed(String),
}

impl CommitAttempt {
    fn unknown(member: &Member, why: &str) -> Self {
        let text = format!("{}: {why}", member.endpoint);
        Self::Answered(Err(CommitError::Unknown(text)))
    }
}

/// Returns the error for a transaction that was never accepted, so that nothing will be applied.
fn not_sent(why: &str) -> CommitError {
    CommitError::Rejected(Rejection::ReadOnly(why.to_owned()))
}

impl Inner {
    /// Commits a transaction. While no member is fit, or members refuse the transaction before they
    /// propose it, it is sent again until the time-out of a call. If no member has been fit for
    /// longer than that, the commit fails at once, because the cluster is down rather than electing
    /// a leader.
    pub(super) async fn commit(&self, txn: Txn) -> Result<Committed, CommitError> {
        let deadline = Instant::now() + self.options.call_timeout;
        let mut wait = RETRY_FIRST;
        loop {
            let why = match self.members.fit_by(deadline).await {
                Ok(()) => match self.commit_once(&txn).await {
                    CommitAttempt::Answered(answer) => return answer,
                    CommitAttempt::NotProposed(why) => why,
                },
                Err(why) => return Err(not_sent(&format!("no etcd member is fit: {why}"))),
            };
            if Instant::now() + wait >= deadline {
                return Err(not_sent(&why));
            }
            tracing::debug!(why, "a transaction was not proposed and is sent again");
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    async fn commit_once(&self, txn: &Txn) -> CommitAttempt {
        let puts = txn.ops.iter().any(|op| matches!(op, Op::Put { .. }));
        if puts && let Some(why) = self.space.full() {
            return CommitAttempt::Answered(Err(CommitError::Rejected(Rejection::NoSpace(why))));
        }
        let before = Revision(self.seen.load(std::sync::atomic::Ordering::SeqCst));
        let member = self.members.current();
        let term = member.term();
        let request = self.keys.txn(txn);
        let sent = Instant::now();
        let mut kv = member.kv();
        let reply = tokio::select! {
            // The reply is polled first: one that has arrived counts, even from a member that has
            // become unfit.
            biased;
            reply = timeout(self.options.call_timeout, kv.txn(request)) => reply,
            why = member.unfit() => {
                return CommitAttempt::unknown(&member, &why);
            }
            why = self.members.new_term(&member, term) => {
                return CommitAttempt::unknown(&member, &why);
            }
        };
        let fault = match reply {
            Ok(Ok(reply)) => {
                self.note_revision(head(reply.header()));
                return CommitAttempt::Answered(self.keys.answer(txn, reply));
            }
            Ok(Err(error)) => fault(&error),
            Err(_) => {
                let text = format!("no answer in {:?}", self.options.call_timeout);
                Fault::Unavailable(text)
            }
        };
        if self.members.log_in_again(&member, &fault, sent).await {
            return CommitAttempt::NotProposed(format!("{}: {fault}", member.endpoint));
        }
        CommitAttempt::Answered(Err(match fault {
            Fault::NotProposed(text) => {
                self.members.suspect(&member, &text);
                return CommitAttempt::NotProposed(format!("{}: {text}", member.endpoint));
            }
            Fault::TooManyOps(text) => CommitError::Rejected(Rejection::TooManyOps(text)),
            Fault::TooLarge(text) => CommitError::Rejected(Rejection::TooLarge(text)),
            Fault::Malformed(text) => CommitError::Rejected(Rejection::Malformed(text)),
            Fault::NoLease(text) => CommitError::Rejected(Rejection::NoLease(text)),
            Fault::Denied(text) => CommitError::Rejected(Rejection::ReadOnly(text)),
            Fault::NoSpace(text) => {
                self.space.fill(&text);
                self.settle_full(txn, before, text).await
            }
            fault @ (Fault::Compacted
            | Fault::Future
            | Fault::ReplyTooLarge
            | Fault::TokenInvalid
            | Fault::LoginWrong(_)
            | Fault::AuthOff
            | Fault::Corrupt(_)
            | Fault::Unavailable(_)) => {
                let why = fault.to_string();
                self.members.suspect(&member, &why);
                return CommitAttempt::unknown(&member, &why);
            }
        }))
    }

    /// Finds out whether a transaction was applied to which etcd replied that the quota is used up;
    /// see `space`. Whoever knows what else may have put the same can find out more.
    async fn settle_full(&self, txn: &Txn, before: Revision, text: String) -> CommitError {
        let full = CommitError::Rejected(Rejection::NoSpace(text.clone()));
        let undisclosed = |why: &str| {
            tracing::debug!(why, "etcd's quota is used up, a transaction may be applied");
            CommitError::Undisclosed(Rejection::NoSpace(text), before)
        };
        let put = txn.ops.iter().find_map(|op| match op {
            Op::Put { key, value, .. } => Some((key, value)),
            Op::Delete { .. } => None,
        });
        let Some((key, value)) = put else {
            return undisclosed("it puts nothing");
        };
        let range = KeyRange {
            start: key.clone(),
            end: [&key[..], &[0]].concat().into(),
        };
        match self.history(range, before).await {
            Ok(history) => {
                let ours = |found: &Bytes| found == value;
                let mut values = history.events.iter().filter_map(|e| e.value.as_ref());
                match values.any(ours) {
                    true => undisclosed("one like it was applied"),
                    false => full,
                }
            }
            Err(error) => undisclosed(&error.to_string()),
        }
    }

    /// Checks whether the alarm is still raised, with a request to the cluster and not to one
    /// member.
    pub(super) async fn check_space(&self) {
        let member = self.members.current();
        let mut maintenance = member.calls().maintenance_client();
        let asked = maintenance.alarm(AlarmAction::Get, AlarmType::Nospace, None);
        match timeout(ATTEMPT_TIMEOUT, asked).await {
            Ok(Ok(reply)) if reply.alarms().is_empty() => self.space.free(),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                let text = reply::describe(&error);
                tracing::debug!(text, "cannot read etcd's alarms");
            }
            Err(_) => tracing::debug!("etcd did not return its alarms in time"),
        }
    }

    /// Sends a read to one member after the other until one answers or the call times out.
    async fn read<T, F>(&self, call: impl Fn(Arc<Member>) -> F + Send) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let deadline = Instant::now() + self.options.call_timeout;
        let mut wait = RETRY_FIRST;
        loop {
            let fault = match self.members.no_member() {
                Some(why) => Fault::Unavailable(why.to_string()),
                None => {
                    let member = self.members.current();
                    let sent = Instant::now();
                    let left = deadline.saturating_duration_since(sent);
                    let answer = timeout(ATTEMPT_TIMEOUT.min(left), call(Arc::clone(&member)));
                    let fault = match answer.await {
                        Ok(Ok(answer)) => return Ok(answer),
                        Ok(Err(error)) => fault(&error),
                        Err(_) => Fault::Unavailable("it does not answer".to_owned()),
                    };
                    if matches!(fault, Fault::Unavailable(_) | Fault::NotProposed(_)) {
                        self.members.suspect(&member, &fault.to_string());
                    } else if !self.members.log_in_again(&member, &fault, sent).await {
                        return Err(fault);
                    }
                    fault
                }
            };
            if Instant::now() + wait >= deadline {
                return Err(fault);
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    fn open(&self) -> Result<(), ReadError> {
        match self.is_closed() {
            true => Err(ReadError::Closed),
            false => Ok(()),
        }
    }

    async fn read_error(&self, fault: Fault, at: Revision) -> ReadError {
        match fault {
            Fault::Compacted => {
                self.learn_floor(at).await;
                self.compacted()
            }
            Fault::Future => match self.head().await {
                Ok(head) => ReadError::Future { head },
                Err(error) => error,
            },
            Fault::Corrupt(text) => ReadError::Corrupt(text),
            other => ReadError::Unavailable(other.to_string()),
        }
    }

    /// Raises the floor after a revision was found to be compacted. It opens a watch for that,
    /// because only a watch returns the compaction revision.
    async fn learn_floor(&self, at: Revision) {
        let range = KeyRange {
            start: Bytes::from_static(b"\0"),
            end: Bytes::from_static(b"\0\0"),
        };
        let member = self.members.current();
        let update = timeout(ATTEMPT_TIMEOUT, async {
            let after = Revision(at.0.saturating_sub(1));
            let mut stream = EventStream::open(&member, &self.keys, &range, after).await?;
            stream.next().await
        });
        let floor = match update.await {
            Ok(Ok(FeedUpdate::Compacted(floor))) => floor,
            Ok(Ok(FeedUpdate::Events(_) | FeedUpdate::Progress(_)) | Err(_)) | Err(_) => {
                Revision(at.0 + 1)
            }
        };
        self.raise_floor(floor);
    }

    /// Reads a page. While its reply is larger than the client accepts, requests a smaller page.
    async fn page(&self, request: &RangeRequest) -> Result<GetResponse, Fault> {
        let range = self.keys.outer_range(&request.start, &request.end);
        let mut keys = match (request.limit, request.fields) {
            (0, Fields::All) => PAGE_KEYS,
            (0, Fields::KeysOnly) => PAGE_KEYS_MAX,
            (limit, _) => limit.min(PAGE_KEYS_MAX),
        };
        loop {
            let reply = self.read(|member| {
                let (key, end) = (range.key.clone(), range.end.clone());
                let options = wire::page_options(request, end, keys);
                async move { member.kv().get(key, Some(options)).await }
            });
            match reply.await {
                Err(Fault::ReplyTooLarge) if keys > 1 => keys = (keys / 8).max(1),
                reply => {
                    let reply = reply?;
                    self.note_revision(head(reply.header()));
                    return Ok(reply);
                }
            }
        }
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError> {
        self.open()?;
        let empty = |revision| RangeReply {
            revision,
            items: Vec::new(),
            more: false,
        };
        if let Some(at) = request.at {
            if at < self.floor() {
                return Err(self.compacted());
            }
            if at == Revision(0) {
                // A read before the first commit finds nothing. It needs an answer of its own,
                // because etcd takes revision 0 for the newest one.
                return Ok(empty(at));
            }
        }
        if !request.end.is_empty() && request.start >= request.end {
            let head = self.head().await?;
            return match request.at {
                Some(at) if at > head => Err(ReadError::Future { head }),
                at => Ok(empty(at.unwrap_or(head))),
            };
        }
        let mut reply = match self.page(&request).await {
            Ok(reply) => reply,
            Err(fault) => {
                let at = request.at.unwrap_or_default();
                return Err(self.read_error(fault, at).await);
            }
        };
        let items = reply.take_kvs().into_iter();
        Ok(RangeReply {
            revision: request.at.unwrap_or_else(|| head(reply.header())),
            items: items.map(|found| self.keys.key_value(found.0)).collect(),
            more: reply.more(),
        })
    }

    pub(super) async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError> {
        self.open()?;
        if key.is_empty() {
            return Ok((self.head().await?, None));
        }
        let outer = self.keys.outer(key);
        let reply = self.read(|member| {
            let key = outer.clone();
            async move { member.kv().get(key, None).await }
        });
        let mut reply = match reply.await {
            Ok(reply) => reply,
            Err(fault) => return Err(self.read_error(fault, Revision(0)).await),
        };
        let at = head(reply.header());
        self.note_revision(at);
        let found = reply.take_kvs().into_iter().next();
        Ok((at, found.map(|found| self.keys.key_value(found.0))))
    }

    /// Returns the newest revision by a linearizable read. With `at`, returns an error if that
    /// revision is compacted.
    async fn read_head(&self, at: Option<Revision>) -> Result<Revision, Fault> {
        let key = self.keys.outer(b"\0");
        let reply = self.read(|member| {
            let mut options = GetOptions::new().with_count_only();
            if let Some(at) = at {
                options = options.with_revision(number(at));
            }
            let key = key.clone();
            async move { member.kv().get(key, Some(options)).await }
        });
        let reply = reply.await?;
        let head = head(reply.header());
        self.note_revision(head);
        Ok(head)
    }

    /// Makes the first read: it checks that the user may read here, and returns a revision that is
    /// older than all later transactions.
    pub(super) async fn check_access(&self) -> Result<(), OpenError> {
        match self.read_head(None).await {
            Ok(_) => Ok(()),
            Err(fault @ Fault::Denied(_)) => Err(OpenError::Login {
                reason: fault.to_string(),
            }),
            Err(fault) => Err(OpenError::Unreachable {
                reason: fault.to_string(),
            }),
        }
    }

    pub(super) async fn head(&self) -> Result<Revision, ReadError> {
        self.open()?;
        let head = self.read_head(None).await;
        head.map_err(|fault| ReadError::Unavailable(fault.to_string()))
    }

    /// Checks whether the history after a revision can be read, and returns the newest revision.
    pub(super) async fn check_history(&self, after: Revision) -> Result<Revision, ReadError> {
        self.open()?;
        if after < self.floor() {
            return Err(self.compacted());
        }
        // This revision can be read only if `after` is above the compaction revision.
        let probed = Revision(after.0.saturating_sub(1).max(1));
        match self.read_head(Some(probed)).await {
            Ok(head) if after > head => Err(ReadError::Future { head }),
            Ok(head) => Ok(head),
            Err(fault) => Err(self.read_error(fault, probed).await),
        }
    }

    pub(super) async fn compact(&self, below: Revision) -> Result<(), ReadError> {
        let head = self.head().await?;
        if below > head {
            return Err(ReadError::Future { head });
        }
        if below <= self.floor() {
            return Ok(());
        }
        if below.0 > 1 {
            // The floor must be above etcd's compaction revision.
            let revision = number(below) - 1;
            let done = self.read(|member| async move {
                member.calls().kv_client().compact(revision, None).await
            });
            match done.await {
                Ok(_) => {}
                Err(Fault::Compacted) => {
                    // Another process has compacted that revision or a later one.
                    self.learn_floor(Revision(below.0 - 2)).await;
                }
                Err(fault) => return Err(ReadError::Unavailable(fault.to_string())),
            }
        }
        self.raise_floor(below);
        Ok(())
    }
}

/// Leases, which the cluster keeps and whose keys it deletes.
impl Inner {
    fn open_lease(&self) -> Result<(), LeaseError> {
        match self.is_closed() {
            true => Err(LeaseError::Closed),
            false => Ok(()),
        }
    }

    pub(super) async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        self.open_lease()?;
        let up = u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from((ttl.as_secs() + up).max(1)).unwrap_or(i64::MAX);
        // If the reply to a grant is lost, its lease gets no renewals and ends by itself.
        let granted = self
            .read(|member| async move { member.calls().lease_client().grant(seconds, None).await });
        match granted.await {
            Ok(lease) => Ok(LeaseId(lease.id())),
            Err(fault) => {
                // etcd grants no lease while the alarm is raised.
                if let Fault::NoSpace(text) = &fault {
                    self.space.fill(text);
                }
                Err(LeaseError::Unavailable(fault.to_string()))
            }
        }
    }

    pub(super) async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError> {
        self.open_lease()?;
        let kept = self.read(|member| async move {
            match member.calls().lease_client().keep_alive(lease.0).await {
                Ok(_) => Ok(true),
                // This is the client's error for a reply without a TTL, that is for an ended lease.
                Err(Error::LeaseKeepAliveError(_)) => Ok(false),
                Err(error) => Err(error),
            }
        });
        match kept.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(Fault::NoLease(_)) => Err(LeaseError::NotFound),
            Err(fault) => Err(LeaseError::Unavailable(fault.to_string())),
        }
    }

    pub(super) async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        self.open_lease()?;
        let revoked =
            self.read(|member| async move { member.calls().lease_client().revoke(lease.0).await });
        match revoked.await {
            Ok(reply) => {
                self.note_revision(head(reply.header()));
                Ok(())
            }
            Err(Fault::NoLease(_)) => Err(LeaseError::NotFound),
            Err(fault) => Err(LeaseError::Unavailable(fault.to_string())),
        }
    }
}
