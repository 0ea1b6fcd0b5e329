//! The members of the etcd cluster: the connections to each, which members are fit, and which one
//! gets the calls.
//!
//! The etcd client keeps sending to members that are dead or hang. So each member has clients of
//! its own here, and all calls go to one fit member: the leader if it is among the endpoints,
//! because it answers without another hop. A member gets no calls before its version is known,
//! because some versions return stale reads.
//!
//! Each member has two connections, for calls and for streams, so that a large history does not
//! delay a commit. When the credentials have changed, new connections replace both.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, KvClient, WatchClient};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::EtcdOptions;
use super::clients::{Clients, EndpointUrl, PROBE_TIMEOUT};
use super::credentials::Credentials;
use super::reply::Fault;
use super::space::DatabaseSize;
use super::version;
use crate::error::OpenError;

/// The time that a round of status requests waits for replies. Slower members are updated later.
const PROBE_ROUND: Duration = Duration::from_millis(300);
/// The duration beyond which a call triggers a round of status requests.
const SLOW_CALL: Duration = Duration::from_millis(250);
/// The time that a new leader may take for transactions that waited for it.
const NEW_LEADER_GRACE: Duration = Duration::from_millis(250);
/// The time after the last member became unfit for which calls wait for a fit one. It exceeds an
/// election; a longer time would only delay the error.
const NO_MEMBER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval of status requests while a call waits for a fit member.
const PROBE_REQUEST_INTERVAL: Duration = Duration::from_millis(100);

/// The answer to whether a member can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MemberStatus {
    /// Its status is not known yet.
    New,
    /// It has answered and knows a leader.
    Fit {
        /// True if it is the leader.
        leads: bool,
    },
    /// A call to it has failed since its last status.
    Suspect(String),
    /// It does not answer, or must not be used for now: it has no leader, or is a learner.
    Unfit(String),
    /// It refuses the user, or requires a user.
    Barred(String),
    /// TLS failed: one side does not trust the other, or the member does not speak TLS.
    Untrusted(String),
    /// It must not be used: its version has stale reads, or it belongs to another cluster.
    Refused(String),
}

impl MemberStatus {
    /// Returns whether the status says that the member cannot be used now.
    fn is_out(&self) -> bool {
        match self {
            Self::New | Self::Fit { .. } | Self::Suspect(_) => false,
            Self::Unfit(_) | Self::Barred(_) | Self::Untrusted(_) | Self::Refused(_) => true,
        }
    }

    fn why(&self) -> &str {
        match self {
            Self::New | Self::Fit { .. } => "",
            Self::Suspect(why)
            | Self::Unfit(why)
            | Self::Barred(why)
            | Self::Untrusted(why)
            | Self::Refused(why) => why,
        }
    }
}

/// No member can be used. The text has the endpoint and the status of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoMember(Vec<(String, MemberStatus)>);

impl fmt::Display for NoMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (endpoint, status)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{endpoint}: {}", status.why())?;
        }
        Ok(())
    }
}

/// The reason why changed credentials are not used yet.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    /// The new credentials cannot be read, or no connection can be made with them.
    #[error(transparent)]
    Unusable(#[from] OpenError),
    /// No member accepts the new credentials. The text has the answer of each, or that it gave
    /// none.
    #[error("{}", .0.join("; "))]
    NotTaken(Vec<String>),
}

/// The other content of a status reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// The size of the member's database.
    pub(super) database: DatabaseSize,
    /// The alarms and errors, as the member words them.
    pub(super) errors: Vec<String>,
}

/// One member of the cluster.
pub(super) struct Member {
    pub(super) endpoint: String,
    clients: RwLock<Arc<Clients>>,
    status: watch::Sender<MemberStatus>,
    /// The raft term in which the member last answered: the period of one leader.
    term: watch::Sender<u64>,
    /// True while a status request is in flight.
    asked: AtomicBool,
    /// The member's last report, until it is processed.
    report: Mutex<Option<Report>>,
    /// The reason why the last login failed, as it was logged; empty if it did not.
    login_trouble: Mutex<String>,
}

impl Member {
    fn new(endpoint: &str, clients: Arc<Clients>) -> Self {
        Self {
            clients: RwLock::new(clients),
            endpoint: endpoint.to_owned(),
            status: watch::Sender::new(MemberStatus::New),
            term: watch::Sender::new(0),
            asked: AtomicBool::new(false),
            report: Mutex::default(),
            login_trouble: Mutex::default(),
        }
    }

    fn clients(&self) -> Arc<Clients> {
        Arc::clone(&self.clients.read())
    }

    pub(super) fn calls(&self) -> Client {
        self.clients.read().calls.clone()
    }

    pub(super) fn kv(&self) -> KvClient {
        self.clients.read().kv.clone()
    }

    pub(super) fn watches(&self) -> WatchClient {
        self.clients.read().watches.clone()
    }

    fn status(&self) -> MemberStatus {
        self.status.borrow().clone()
    }

    /// Completes with the reason when the member becomes unfit.
    pub(super) async fn unfit(&self) -> String {
        let mut status = self.status.subscribe();
        let unfit = status.wait_for(|now| now.is_out()).await;
        match unfit.as_deref() {
            Ok(status) => status.why().to_owned(),
            Err(_) => "the member is gone".to_owned(),
        }
    }

    /// Returns the raft term in which the member last answered.
    pub(super) fn term(&self) -> u64 {
        *self.term.borrow()
    }

    async fn log_in_again(&self, refused: &Fault, sent: Instant) -> Result<bool, Fault> {
        let clients = self.clients();
        let login = clients.log_in_again(&self.endpoint, refused, sent);
        let login = timeout(PROBE_TIMEOUT, login).await;
        login.unwrap_or_else(|_| Err(Fault::Unavailable("it does not answer".to_owned())))
    }

    /// Requests the member's status on both connections.
    async fn probe(&self, cluster: &AtomicU64) -> (MemberStatus, Report) {
        let clients = self.clients();
        let reply = match timeout(PROBE_TIMEOUT, clients.status(&self.endpoint)).await {
            Err(_) => {
                let text = "it does not answer".to_owned();
                return (MemberStatus::Unfit(text), Report::default());
            }
            Ok(Err((fault, untrusted))) => {
                let why = fault.to_string();
                let status = match fault {
                    _ if untrusted => MemberStatus::Untrusted(why),
                    Fault::TokenInvalid => {
                        clients.logged_in.store(false, Ordering::Relaxed);
                        MemberStatus::Unfit(why)
                    }
                    Fault::LoginWrong(_) | Fault::Denied(_) => MemberStatus::Barred(why),
                    _ => MemberStatus::Unfit(why),
                };
                return (status, Report::default());
            }
            Ok(Ok(reply)) => reply,
        };
        self.term.send_if_modified(|term| {
            let before = std::mem::replace(term, reply.raft_term());
            before != *term
        });
        let (cluster_id, member_id) = reply
            .header()
            .map_or((0, 0), |header| (header.cluster_id(), header.member_id()));
        let status = if let Some(refusal) = version::refusal(reply.version()) {
            MemberStatus::Refused(refusal)
        } else if !is_of(cluster, cluster_id) {
            MemberStatus::Refused(
                "it belongs to another cluster than the endpoints before".to_owned(),
            )
        } else if reply.is_learner() {
            MemberStatus::Unfit("it is a learner".to_owned())
        } else if reply.leader() == 0 {
            MemberStatus::Unfit("it knows no leader".to_owned())
        } else {
            MemberStatus::Fit {
                leads: reply.leader() == member_id,
            }
        };
        let report = Report {
            database: DatabaseSize {
                file_bytes: u64::try_from(reply.db_size()).unwrap_or(0),
                in_use_bytes: u64::try_from(reply.raft_used_db_size()).unwrap_or(0),
                // Not positive if there is no quota, or if the member is older than 3.6.
                quota_bytes: u64::try_from(reply.db_size_quota()).unwrap_or(0),
            },
            errors: reply.errors().to_vec(),
        };
        (status, report)
    }
}

/// Returns whether a member belongs to the cluster of the first member that answered. This is one
/// atomic step, because probes run concurrently: with a separate check and store, members of two
/// clusters could both pass.
fn is_of(cluster: &AtomicU64, id: u64) -> bool {
    match cluster.compare_exchange(0, id, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        Err(known) => known == id,
    }
}

/// Reads the credentials on a thread where blocking is allowed.
async fn read_credentials(options: &Arc<EtcdOptions>) -> Result<Credentials, OpenError> {
    let options = Arc::clone(options);
    let read = tokio::task::spawn_blocking(move || Credentials::read(&options)).await;
    read.unwrap_or_else(|error| {
        let reason = error.to_string();
        Err(OpenError::Options { reason })
    })
}

/// The credentials in use, and the trouble with newer ones.
struct Renewal {
    /// The credentials that the connections use.
    current: Credentials,
    /// The reason why newer ones are not used, as it was last logged.
    trouble: String,
}

/// All members of the cluster.
pub(super) struct Members {
    all: Vec<Arc<Member>>,
    current: RwLock<Arc<Member>>,
    cluster: Arc<AtomicU64>,
    options: Arc<EtcdOptions>,
    renewal: Mutex<Renewal>,
    /// The time since which no member has been fit.
    out: watch::Sender<Option<Instant>>,
    /// Triggers a round of status requests.
    pub(super) probe_now: Notify,
}

impl Members {
    /// Creates the members without connecting to them.
    pub(super) async fn new(options: Arc<EtcdOptions>) -> Result<Self, OpenError> {
        let credentials = read_credentials(&options).await?;
        let mut all = Vec::with_capacity(options.endpoints.len());
        for endpoint in &options.endpoints {
            let url = EndpointUrl::new(endpoint, &options, &credentials)?;
            let clients = url.clients(&credentials).await?;
            all.push(Arc::new(Member::new(endpoint, clients)));
        }
        let Some(first) = all.first() else {
            return Err(OpenError::Options {
                reason: "no etcd endpoint is given".to_owned(),
            });
        };
        Ok(Self {
            current: RwLock::new(Arc::clone(first)),
            all,
            cluster: Arc::new(AtomicU64::new(0)),
            options,
            renewal: Mutex::new(Renewal {
                current: credentials,
                trouble: String::new(),
            }),
            out: watch::Sender::new(None),
            probe_now: Notify::new(),
        })
    }

    /// Returns the member that gets the calls.
    pub(super) fn current(&self) -> Arc<Member> {
        Arc::clone(&self.current.read())
    }

    /// Returns the reason why no member can be used; `None` if one can, or if the status of one is
    /// not known.
    pub(super) fn no_member(&self) -> Option<NoMember> {
        // The usual case, answered without reading the other members.
        if !self.current.read().status.borrow().is_out() {
            return None;
        }
        let mut statuses = Vec::with_capacity(self.all.len());
        for member in &self.all {
            let status = member.status();
            if !status.is_out() {
                return None;
            }
            statuses.push((member.endpoint.clone(), status));
        }
        Some(NoMember(statuses))
    }

    /// Waits until a member can be used. Returns the reason as an error at the deadline, or once no
    /// member has been fit for [`NO_MEMBER_WAIT_MAX`].
    pub(super) async fn fit_by(&self, deadline: Instant) -> Result<(), NoMember> {
        let mut out = self.out.subscribe();
        loop {
            let since = *out.borrow_and_update();
            let Some(why) = self.no_member() else {
                return Ok(());
            };
            let until = since.map_or(deadline, |since| deadline.min(since + NO_MEMBER_WAIT_MAX));
            tokio::select! {
                // A member that is fit again is polled first, so that it counts however late.
                biased;
                changed = out.changed() => if changed.is_err() { return Err(why) },
                () = sleep_until(until) => return Err(why),
                () = sleep(PROBE_REQUEST_INTERVAL) => self.probe_now.notify_one(),
            }
        }
    }

    /// Returns the reason why the store must not be opened, whatever other members answer.
    pub(super) fn refusal(&self) -> Option<OpenError> {
        self.all.iter().find_map(|member| {
            let endpoint = member.endpoint.clone();
            match member.status() {
                MemberStatus::Refused(reason) => Some(OpenError::Refused { endpoint, reason }),
                MemberStatus::Barred(why) => {
                    let reason = format!("{endpoint}: {why}");
                    Some(OpenError::Login { reason })
                }
                MemberStatus::New
                | MemberStatus::Fit { .. }
                | MemberStatus::Suspect(_)
                | MemberStatus::Untrusted(_)
                | MemberStatus::Unfit(_) => None,
            }
        })
    }

    /// Returns whether TLS failed at some member. Another member may be fit nevertheless: one
    /// expired certificate must not keep a replica from starting.
    pub(super) fn any_untrusted(&self) -> bool {
        let mut standings = self.all.iter().map(|member| member.status());
        standings.any(|status| matches!(status, MemberStatus::Untrusted(_)))
    }

    /// Requests a new token after a member refused a call that was sent at `sent`, if that may help.
    /// Returns whether the call may be sent again.
    pub(super) async fn log_in_again(
        &self,
        member: &Member,
        refused: &Fault,
        sent: Instant,
    ) -> bool {
        let (may_send, trouble) = match member.log_in_again(refused, sent).await {
            Ok(false) => return false,
            Ok(true) => (true, String::new()),
            Err(fault) => (false, fault.to_string()),
        };
        let before = std::mem::replace(&mut *member.login_trouble.lock(), trouble.clone());
        // Calls and watches log in again and again until the password is right.
        if !trouble.is_empty() && trouble != before {
            tracing::warn!(endpoint = %member.endpoint, fault = trouble, "cannot log in to etcd");
        }
        may_send
    }

    /// Records that a call to a member failed: calls use other members until it answers a status
    /// request.
    pub(super) fn suspect(&self, member: &Arc<Member>, why: &str) {
        let changed = member.status.send_if_modified(|status| {
            let fit = matches!(status, MemberStatus::Fit { .. });
            if fit {
                *status = MemberStatus::Suspect(why.to_owned());
            }
            fit
        });
        if changed {
            tracing::warn!(endpoint = %member.endpoint, why, "an etcd member failed");
        }
        self.choose();
        self.probe_now.notify_one();
    }

    /// Completes once the member has answered in another term than `than` for a while. Requests
    /// that it had forwarded to the leader of that term are lost, or their outcome stays unknown;
    /// requests that still wait at the member itself go to the new leader within that while.
    /// Without this a caller would wait the whole time of a call for a reply that cannot come any
    /// more.
    pub(super) async fn new_term(&self, member: &Member, than: u64) -> String {
        let mut term = member.term.subscribe();
        loop {
            tokio::select! {
                changed = term.wait_for(|now| *now != than) => {
                    if changed.is_err() {
                        return "the member is gone".to_owned();
                    }
                    break;
                }
                () = sleep(SLOW_CALL) => self.probe_now.notify_one(),
            }
        }
        sleep(NEW_LEADER_GRACE).await;
        "another leader was elected meanwhile".to_owned()
    }

    /// Returns whether the credentials may change while the store is open.
    pub(super) fn may_change(&self) -> bool {
        Credentials::may_change(&self.options)
    }

    /// Reads the credentials again. If they have changed and a member accepts them, new calls use
    /// connections made with them; calls under way stay on their connections. Until then the old
    /// credentials are used, as long as they work.
    pub(super) async fn renew(&self) {
        let trouble = match self.try_renew().await {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        let mut renewal = self.renewal.lock();
        if !trouble.is_empty() && trouble != renewal.trouble {
            tracing::warn!(why = trouble, "changed etcd credentials are not used yet");
        }
        renewal.trouble = trouble;
    }

    async fn try_renew(&self) -> Result<(), RenewError> {
        let fresh = read_credentials(&self.options).await?;
        if fresh == self.renewal.lock().current {
            return Ok(());
        }
        let mut all = Vec::with_capacity(self.all.len());
        let mut asked = JoinSet::new();
        for member in &self.all {
            let endpoint = member.endpoint.clone();
            let url = EndpointUrl::new(&endpoint, &self.options, &fresh)?;
            let clients = url.clients(&fresh).await?;
            all.push(Arc::clone(&clients));
            asked.spawn(async move {
                let status = timeout(PROBE_TIMEOUT, clients.status(&endpoint)).await;
                let status = status.unwrap_or(Err((
                    Fault::Unavailable("it does not answer".to_owned()),
                    false,
                )));
                status.map_err(|(fault, _)| format!("{endpoint}: {fault}"))
            });
        }
        let mut reasons = Vec::new();
        let is_taken = loop {
            match asked.join_next().await {
                Some(Ok(Ok(_))) => break true,
                Some(Ok(Err(why))) => reasons.push(why),
                Some(Err(error)) => reasons.push(error.to_string()),
                None => break false,
            }
        };
        // The other requests continue, because their connections will be used.
        asked.detach_all();
        if !is_taken {
            return Err(RenewError::NotTaken(reasons));
        }
        for (member, clients) in self.all.iter().zip(all) {
            *member.clients.write() = clients;
        }
        self.renewal.lock().current = fresh;
        self.probe_now.notify_one();
        tracing::info!("the credentials for etcd were read again");
        Ok(())
    }

    /// Requests the status of all members concurrently, and chooses one of them. Does not wait for
    /// a slow member, and does not send it a second request. Returns the report of the chosen
    /// member.
    pub(super) async fn probe(self: &Arc<Self>) -> Option<Report> {
        let mut asked = JoinSet::new();
        for member in &self.all {
            if !member.asked.swap(true, Ordering::AcqRel) {
                let (members, member) = (Arc::clone(self), Arc::clone(member));
                asked.spawn(async move { members.probe_one(&member).await });
            }
        }
        let round = async { while asked.join_next().await.is_some() {} };
        // Slower requests continue, and update their members when the replies arrive.
        let _ = timeout(PROBE_ROUND, round).await;
        asked.detach_all();
        self.current().report.lock().take()
    }

    async fn probe_one(&self, member: &Member) {
        let (status, report) = member.probe(&self.cluster).await;
        if matches!(status, MemberStatus::Fit { .. }) {
            *member.report.lock() = Some(report);
        }
        self.note(member, status);
        member.asked.store(false, Ordering::Release);
        // The first member that answers is chosen at once: it is better than one that does not.
        self.choose();
    }

    fn note(&self, member: &Member, status: MemberStatus) {
        let before = member.status.send_replace(status.clone());
        match (&before, &status) {
            (MemberStatus::Fit { .. }, MemberStatus::Fit { .. }) => {}
            (_, MemberStatus::Fit { .. }) => {
                tracing::info!(endpoint = %member.endpoint, "the etcd member is fit");
            }
            (before, now) if before != now => {
                tracing::warn!(endpoint = %member.endpoint, ?now, "the etcd member is not fit");
            }
            _ => {}
        }
        let no_member = self.no_member().is_some();
        self.out.send_if_modified(|since| {
            let changed = since.is_some() != no_member;
            if changed {
                *since = no_member.then(Instant::now);
            }
            changed
        });
    }

    /// Chooses the leader, else the current member if it is fit, else any fit one.
    fn choose(&self) {
        let mut current = self.current.write();
        let rank = |member: &Arc<Member>| match &*member.status.borrow() {
            MemberStatus::Fit { leads: true } => 0,
            MemberStatus::Fit { leads: false } => 1,
            MemberStatus::New | MemberStatus::Suspect(_) => 2,
            MemberStatus::Unfit(_) | MemberStatus::Untrusted(_) => 3,
            MemberStatus::Barred(_) => 4,
            MemberStatus::Refused(_) => 5,
        };
        let best = self.all.iter().min_by_key(|member| rank(member));
        if let Some(best) = best
            && rank(best) < rank(&current)
        {
            tracing::debug!(endpoint = %best.endpoint, "calls go to this etcd member from now on");
            *current = Arc::clone(best);
        }
    }
}
