//! The members of the etcd cluster: a connection to each, which are fit, and which one is asked.
//!
//! The client keeps sending to members that are dead or hang, so each member has a client of its
//! own here, and all calls go to one that is fit, the leader if it is among the endpoints: it
//! answers without asking another. A member is not asked before it has shown its version.
//!
//! Each member has two connections, for calls and for streams, so that a large history does not
//! stand in front of a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, KvClient, WatchClient};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::EtcdOptions;
use super::reply::{Fault, describe, fault, is_untrusted};
use super::version;
use crate::error::OpenError;

/// Bytes of one message from etcd beyond which it is refused.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a member may take to say how it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long members are waited for that tell how they are.
const PROBE_ROUND: Duration = Duration::from_millis(300);
/// A call that takes longer has the members asked how they are.
const IMPATIENCE: Duration = Duration::from_millis(250);
/// How long a new leader may take for what waited for it.
const NEW_LEADER_GRACE: Duration = Duration::from_millis(250);
/// How long after the last member became unfit calls wait for one that is fit: what an election
/// takes, and more.
const HOLD_MAX: Duration = Duration::from_secs(5);
/// How often whoever waits has the members asked how they are.
const HURRY_EVERY: Duration = Duration::from_millis(100);
/// The server counts pings that come faster than every 5 seconds as an attack.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(6);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Flow-control windows: enough to keep a gigabit busy over 10 ms.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// How a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not been asked yet.
    New,
    /// It answers and knows a leader.
    Fit {
        /// It is the leader.
        leads: bool,
    },
    /// A call to it failed since it was last asked.
    Suspect(String),
    /// It does not answer, or cannot: no leader, a learner.
    Unfit(String),
    /// It does not let the user in, or nobody without one.
    Barred(String),
    /// TLS found a certificate that is not trusted, on either side, or no TLS at all.
    Untrusted(String),
    /// It must not be used: a version with stale reads, another cluster.
    Refused(String),
}

impl Standing {
    /// It has been asked and cannot be used now.
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

/// What a member tells beside its standing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Bytes of its database file.
    pub(super) db_bytes: u64,
    /// Alarms and errors, as it words them.
    pub(super) errors: Vec<String>,
}

/// One member.
pub(super) struct Member {
    pub(super) endpoint: String,
    pub(super) calls: Client,
    kv: KvClient,
    streams: Client,
    watches: WatchClient,
    standing: watch::Sender<Standing>,
    /// The term in which it last answered: a leader's time.
    term: watch::Sender<u64>,
    logged_in: AtomicBool,
    /// It is being asked how it is.
    asked: AtomicBool,
    /// What it told last and nobody has taken in.
    report: Mutex<Option<Report>>,
}

impl Member {
    pub(super) fn kv(&self) -> KvClient {
        self.kv.clone()
    }

    pub(super) fn watches(&self) -> WatchClient {
        self.watches.clone()
    }

    fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Ends when the member is found not to answer.
    pub(super) async fn unfit(&self) -> String {
        let mut standing = self.standing.subscribe();
        let unfit = standing.wait_for(|now| now.is_out()).await;
        match unfit.as_deref() {
            Ok(standing) => standing.why().to_owned(),
            Err(_) => "the member is gone".to_owned(),
        }
    }

    /// The term in which it last answered.
    pub(super) fn term(&self) -> u64 {
        *self.term.borrow()
    }

    /// Takes a new token for both connections.
    pub(super) async fn log_in(&self, options: &EtcdOptions) -> Result<(), Fault> {
        let Some(user) = &options.user else {
            return Ok(());
        };
        for client in [&self.calls, &self.streams] {
            let logged_in = client.clone().update_user(Some(user.clone())).await;
            match logged_in {
                Ok(()) => {}
                Err(error) => match fault(&error) {
                    Fault::AuthOff => {
                        tracing::warn!(endpoint = %self.endpoint, "etcd checks no passwords");
                    }
                    fault => return Err(fault),
                },
            }
        }
        self.logged_in.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Asks the member how it is, on both connections.
    async fn probe(&self, cluster: &AtomicU64, options: &EtcdOptions) -> (Standing, Report) {
        let asked = timeout(PROBE_TIMEOUT, async {
            if options.user.is_some() && !self.logged_in.load(Ordering::Relaxed) {
                match self.log_in(options).await {
                    // Without a connection the calls below fail too, and say whether TLS is why.
                    Ok(()) | Err(Fault::NotProposed(_)) => {}
                    Err(fault) => return Err((fault, false)),
                }
            }
            let mut streams = self.streams.maintenance_client();
            let mut calls = self.calls.maintenance_client();
            let (first, second) = tokio::join!(calls.status(), streams.status());
            let untrusted = [&first, &second]
                .iter()
                .any(|asked| asked.as_ref().is_err_and(is_untrusted));
            second
                .and(first)
                .map_err(|error| (fault(&error), untrusted))
        });
        let status = match asked.await {
            Err(_) => {
                let text = "it does not answer".to_owned();
                return (Standing::Unfit(text), Report::default());
            }
            Ok(Err((fault, untrusted))) => {
                let why = fault.to_string();
                let standing = match fault {
                    _ if untrusted => Standing::Untrusted(why),
                    Fault::TokenInvalid => {
                        self.logged_in.store(false, Ordering::Relaxed);
                        Standing::Unfit(why)
                    }
                    Fault::LoginWrong(_) | Fault::Denied(_) => Standing::Barred(why),
                    _ => Standing::Unfit(why),
                };
                return (standing, Report::default());
            }
            Ok(Ok(status)) => status,
        };
        self.term.send_if_modified(|term| {
            let before = std::mem::replace(term, status.raft_term());
            before != *term
        });
        let (cluster_id, member_id) = status
            .header()
            .map_or((0, 0), |header| (header.cluster_id(), header.member_id()));
        let standing = if let Some(refusal) = version::refusal(status.version()) {
            Standing::Refused(refusal)
        } else if !is_of(cluster, cluster_id) {
            Standing::Refused("it belongs to another cluster than the endpoints before".to_owned())
        } else if status.is_learner() {
            Standing::Unfit("it is a learner".to_owned())
        } else if status.leader() == 0 {
            Standing::Unfit("it knows no leader".to_owned())
        } else {
            Standing::Fit {
                leads: status.leader() == member_id,
            }
        };
        let report = Report {
            db_bytes: u64::try_from(status.db_size()).unwrap_or(0),
            errors: status.errors().to_vec(),
        };
        (standing, report)
    }
}

/// Whether a member belongs to the cluster, which the first that answers names. One step: probes
/// run at the same time, and of two clusters both would pass between a look and a claim.
fn is_of(cluster: &AtomicU64, id: u64) -> bool {
    match cluster.compare_exchange(0, id, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        Err(known) => known == id,
    }
}

/// An endpoint before anything was sent to it.
struct EndpointUrl {
    name: String,
    endpoint: Endpoint,
}

impl EndpointUrl {
    fn new(given: &str, options: &EtcdOptions) -> Result<Self, OpenError> {
        let wrong = |reason: String| OpenError::Options {
            reason: format!("the etcd endpoint {given:?}: {reason}"),
        };
        let (scheme, rest) = match given.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, given),
        };
        let scheme = match (scheme, &options.tls) {
            (Some("https"), _) | (None, Some(_)) => "https",
            (Some("http"), Some(_)) => {
                return Err(wrong("http:// with TLS options; use https://".to_owned()));
            }
            (Some("http") | None, None) => "http",
            (Some(other), _) => return Err(wrong(format!("{other}:// is not spoken by etcd"))),
        };
        let has_port = rest.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.trim_end_matches('/').parse::<u16>().is_ok()
        });
        if !has_port {
            return Err(wrong("it needs a host and a port".to_owned()));
        }
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{rest}"))
            .map_err(|error| wrong(error.to_string()))?
            .connect_timeout(PROBE_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        if scheme == "https" {
            endpoint = endpoint
                .tls_config(tls_config(options))
                .map_err(|error| wrong(format!("TLS: {}", chain(&error))))?;
        }
        Ok(Self {
            name: given.to_owned(),
            endpoint,
        })
    }

    async fn client(&self) -> Result<Client, OpenError> {
        // Every call wants a leader: a member without one says so instead of waiting for it.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let channel = Channel::Tonic(self.endpoint.connect_lazy());
        let client = Client::from_channel(channel, Some(options)).await;
        client.map_err(|error| OpenError::Options {
            reason: format!("the etcd endpoint {:?}: {}", self.name, describe(&error)),
        })
    }

    async fn member(self) -> Result<Member, OpenError> {
        let calls = self.client().await?;
        let streams = self.client().await?;
        Ok(Member {
            kv: calls
                .kv_client()
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            watches: streams
                .watch_client()
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            endpoint: self.name,
            calls,
            streams,
            standing: watch::Sender::new(Standing::New),
            term: watch::Sender::new(0),
            logged_in: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            report: Mutex::default(),
        })
    }
}

fn tls_config(options: &EtcdOptions) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new();
    let Some(tls) = &options.tls else {
        return config.with_native_roots();
    };
    config = match &tls.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(ca)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &tls.cert_and_key {
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    config
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// All members.
pub(super) struct Members {
    all: Vec<Arc<Member>>,
    current: RwLock<Arc<Member>>,
    cluster: Arc<AtomicU64>,
    options: Arc<EtcdOptions>,
    /// Since when no member has been fit.
    out: watch::Sender<Option<Instant>>,
    /// Have all members asked how they are at once.
    pub(super) hurry: Notify,
}

impl Members {
    /// Connects to nothing yet.
    pub(super) async fn new(options: Arc<EtcdOptions>) -> Result<Self, OpenError> {
        let mut all = Vec::with_capacity(options.endpoints.len());
        for endpoint in &options.endpoints {
            all.push(Arc::new(
                EndpointUrl::new(endpoint, &options)?.member().await?,
            ));
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
            out: watch::Sender::new(None),
            hurry: Notify::new(),
        })
    }

    /// The member to ask.
    pub(super) fn current(&self) -> Arc<Member> {
        Arc::clone(&self.current.read())
    }

    /// Why no member can be asked, if that is what was last found out about all of them.
    pub(super) fn none_fit(&self) -> Option<String> {
        // The usual case, without looking further.
        if !self.current.read().standing.borrow().is_out() {
            return None;
        }
        let mut reasons = Vec::with_capacity(self.all.len());
        for member in &self.all {
            let standing = member.standing();
            if !standing.is_out() {
                return None;
            }
            reasons.push(format!("{}: {}", member.endpoint, standing.why()));
        }
        Some(reasons.join("; "))
    }

    /// Waits until a member can be asked, or says why none can: at the deadline, or once that has
    /// been so for too long.
    pub(super) async fn fit_by(&self, deadline: Instant) -> Result<(), String> {
        let mut out = self.out.subscribe();
        loop {
            let since = *out.borrow_and_update();
            let Some(why) = self.none_fit() else {
                return Ok(());
            };
            let until = since.map_or(deadline, |since| deadline.min(since + HOLD_MAX));
            tokio::select! {
                // A member that is fit again counts, however late.
                biased;
                changed = out.changed() => if changed.is_err() { return Err(why) },
                () = sleep_until(until) => return Err(why),
                () = sleep(HURRY_EVERY) => self.hurry.notify_one(),
            }
        }
    }

    /// Why the store must not be opened, whatever other members say.
    pub(super) fn refusal(&self) -> Option<OpenError> {
        self.all.iter().find_map(|member| {
            let endpoint = member.endpoint.clone();
            match member.standing() {
                Standing::Refused(reason) => Some(OpenError::Refused { endpoint, reason }),
                Standing::Barred(why) => {
                    let reason = format!("{endpoint}: {why}");
                    Some(OpenError::Login { reason })
                }
                Standing::New
                | Standing::Fit { .. }
                | Standing::Suspect(_)
                | Standing::Untrusted(_)
                | Standing::Unfit(_) => None,
            }
        })
    }

    /// Whether TLS is in the way of some member. Another may be fit all the same: one expired
    /// certificate must not keep a replica from starting.
    pub(super) fn any_untrusted(&self) -> bool {
        let mut standings = self.all.iter().map(|member| member.standing());
        standings.any(|standing| matches!(standing, Standing::Untrusted(_)))
    }

    /// Takes a new token at a member that does not know the old one.
    pub(super) async fn log_in(&self, member: &Member) {
        if let Err(fault) = member.log_in(&self.options).await {
            tracing::warn!(endpoint = %member.endpoint, %fault, "cannot log in to etcd");
        }
    }

    /// A call to a member failed: others are asked from now on, until it has answered again.
    pub(super) fn suspect(&self, member: &Arc<Member>, why: &str) {
        let changed = member.standing.send_if_modified(|standing| {
            let fit = matches!(standing, Standing::Fit { .. });
            if fit {
                *standing = Standing::Suspect(why.to_owned());
            }
            fit
        });
        if changed {
            tracing::warn!(endpoint = %member.endpoint, why, "an etcd member failed");
        }
        self.choose();
        self.hurry.notify_one();
    }

    /// Ends once the member has answered in another term than this for a while. What it had passed
    /// on to the leader of that term is lost or will be settled by nobody else; what still waits at
    /// the member itself goes to the new leader within that while. Without this a caller waits the
    /// whole time of a call for what cannot be answered any more.
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
                () = sleep(IMPATIENCE) => self.hurry.notify_one(),
            }
        }
        sleep(NEW_LEADER_GRACE).await;
        "another leader was elected meanwhile".to_owned()
    }

    /// Asks all members how they are, at the same time, and chooses. One that is slow to tell is
    /// not waited for, nor asked once more. Gives the report of the one that is chosen.
    pub(super) async fn probe(self: &Arc<Self>) -> Option<Report> {
        let mut asked = JoinSet::new();
        for member in &self.all {
            if !member.asked.swap(true, Ordering::AcqRel) {
                let (members, member) = (Arc::clone(self), Arc::clone(member));
                asked.spawn(async move { members.probe_one(&member).await });
            }
        }
        let round = async { while asked.join_next().await.is_some() {} };
        // The rest ends by itself, each with what it was told.
        let _ = timeout(PROBE_ROUND, round).await;
        asked.detach_all();
        self.current().report.lock().take()
    }

    async fn probe_one(&self, member: &Member) {
        let (standing, report) = member.probe(&self.cluster, &self.options).await;
        if matches!(standing, Standing::Fit { .. }) {
            *member.report.lock() = Some(report);
        }
        self.note(member, standing);
        member.asked.store(false, Ordering::Release);
        // The first that answers is better than one that does not.
        self.choose();
    }

    fn note(&self, member: &Member, standing: Standing) {
        let before = member.standing.send_replace(standing.clone());
        match (&before, &standing) {
            (Standing::Fit { .. }, Standing::Fit { .. }) => {}
            (_, Standing::Fit { .. }) => {
                tracing::info!(endpoint = %member.endpoint, "the etcd member is fit");
            }
            (before, now) if before != now => {
                tracing::warn!(endpoint = %member.endpoint, ?now, "the etcd member is not fit");
            }
            _ => {}
        }
        let none_fit = self.none_fit().is_some();
        self.out.send_if_modified(|since| {
            let changed = since.is_some() != none_fit;
            if changed {
                *since = none_fit.then(Instant::now);
            }
            changed
        });
    }

    /// The leader, else the current one if it is fit, else any that is.
    fn choose(&self) {
        let mut current = self.current.write();
        let rank = |member: &Arc<Member>| match &*member.standing.borrow() {
            Standing::Fit { leads: true } => 0,
            Standing::Fit { leads: false } => 1,
            Standing::New | Standing::Suspect(_) => 2,
            Standing::Unfit(_) | Standing::Untrusted(_) => 3,
            Standing::Barred(_) => 4,
            Standing::Refused(_) => 5,
        };
        let best = self.all.iter().min_by_key(|member| rank(member));
        if let Some(best) = best
            && rank(best) < rank(&current)
        {
            tracing::debug!(endpoint = %best.endpoint, "asking this etcd member from now on");
            *current = Arc::clone(best);
        }
    }
}
