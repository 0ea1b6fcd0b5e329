//! The state that all connections of a server share.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use polyplane_apimachinery::schema::Schemas;
use polyplane_audit::{Auditor, LEVELS};
use polyplane_auth::{Anonymous, AnonymousAccess};
use polyplane_fairness::{Moment, PlaneMeter};
use polyplane_outbound::LogPause;
use polyplane_pki::Expiries;

use crate::answer::body::AtomicCounter;
use crate::answer::browsers::Browsers;
use crate::answer::guard::ReadLimits;
use crate::backend::Backend;
use crate::connection::chains::ClientChains;
use crate::connection::goaway::Goaway;
use crate::documents::Documents;
use crate::nodes::Nodes;
use crate::operations::certificate_metrics;
use crate::operations::drain::Drain;
use crate::operations::exposition::{Exposition, Kind};
use crate::operations::health::Checks;
use crate::operations::local::DrainOnce;
use crate::operations::metrics::Metrics;
use crate::operations::status_pages::{FlagValues, ProcessStatus};
use crate::peer::listener::PeerSide;
use crate::request::charge::LongPolls;
use crate::request::doorway::Doorway;
use crate::request::flow::Flows;
use crate::request::heavy::HeavyWork;
use crate::request::impersonate::memory::ModeMemory;
use crate::request::limits::Limits;
use crate::request::proofs::Proofs;
use crate::request::single::SinglePlane;
use crate::request::turn::Gate;
use crate::watch::open_watches::OpenWatches;

pub(crate) struct ServerState {
    pub backend: Arc<dyn Backend>,
    /// The schemas of the built-in types.
    pub schemas: Arc<Schemas>,
    pub limits: Limits,
    pub metrics: Metrics,
    /// What requests cost whose callers were not proven, so that no plane is known to charge.
    pub unproven: Arc<PlaneMeter>,
    /// Gives planes their turns at the CPU.
    pub gate: Arc<Gate>,
    /// Does the work on large bodies aside.
    pub heavy: HeavyWork,
    /// The polls of requests that held up a worker thread.
    pub long_polls: LongPolls,
    /// Lets unproven work in, as one plane among the others.
    pub doorway: Arc<Doorway>,
    /// The proofs that wait for the owner of their plane.
    pub proofs: Arc<Proofs>,
    /// The requests of each plane by its priority levels.
    pub flows: Flows,
    /// The time from which [`Self::now`] counts.
    started: Instant,
    pub drain: Arc<Drain>,
    pub checks: Checks,
    pub documents: Documents,
    pub anonymous: Anonymous,
    /// The modes by which callers last became others.
    pub impersonation_modes: ModeMemory,
    /// Set if the root plane is the only one.
    pub single: Option<SinglePlane>,
    pub abandoned_answers: Arc<AtomicCounter>,
    /// The certificate chains of connected clients.
    pub chains: ClientChains,
    /// When a certificate was last logged that ended a handshake.
    pub refused_certificates: Mutex<LogPause>,
    /// The watches that this replica answers.
    pub watches: OpenWatches,
    /// The connections to peers; `None` if this server is the only replica.
    pub peers: Option<Arc<PeerSide>>,
    /// The drain that `POST /drain` starts; `None` if the planes of this server cannot be handed
    /// over.
    pub drain_once: Option<DrainOnce>,
    /// Records requests; `None` if nothing is recorded.
    pub audit: Option<Arc<Auditor>>,
    /// The connections to nodes and pods; `None` if there are none.
    pub nodes: Option<Arc<Nodes>>,
    /// When the process started, and with which flags.
    pub process: ProcessStatus,
    /// What browsers get.
    pub browsers: Browsers,
    /// Makes clients open new connections.
    pub goaway: Goaway,
    /// The ends of the certificates that this server presents and trusts.
    expiries: Vec<Arc<Expiries>>,
}

/// What a server may have, and need not.
pub(crate) struct Extras {
    pub audit: Option<Arc<Auditor>>,
    pub single: Option<SinglePlane>,
    pub nodes: Option<Arc<Nodes>>,
    pub flags: FlagValues,
    pub browsers: Browsers,
    pub goaway: Goaway,
    pub expiries: Vec<Arc<Expiries>>,
}

impl ServerState {
    /// Creates the state. `address` is the host and port that discovery shows.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        limits: Limits,
        address: String,
        peers: Option<Arc<PeerSide>>,
        drain_once: Option<DrainOnce>,
        extras: Extras,
    ) -> Arc<Self> {
        let Extras {
            audit,
            single,
            nodes,
            flags,
            browsers,
            goaway,
            expiries,
        } = extras;
        let drain = Drain::new();
        let forwards_max = peers
            .as_ref()
            .map_or(0, |side| side.transport.limits().forwards_in_flight_max);
        if let Some(side) = &peers {
            side.transport.pool().answers().count_in(backend.memory());
        }
        let metrics = Metrics::new(&limits, forwards_max, backend.memory());
        let documents = Documents::new(address, &backend.memory());
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let (unproven, gate) = (Arc::default(), Gate::new(workers, backend.virtual_time()));
        Arc::new(Self {
            checks: Checks::new(backend.checks(), Arc::clone(&drain)),
            metrics,
            doorway: Doorway::new(&gate, &unproven, workers),
            proofs: Arc::default(),
            heavy: HeavyWork::new(gate.time(), workers),
            long_polls: LongPolls::default(),
            unproven,
            gate,
            flows: Flows::new(limits.plane_seats.map(NonZeroU32::get), single.is_some()),
            started: Instant::now(),
            schemas: backend.schemas(),
            backend,
            limits,
            drain,
            documents,
            anonymous: match &single {
                Some(single) if single.anonymous != AnonymousAccess::Everywhere => {
                    Anonymous::nowhere()
                }
                Some(_) | None => Anonymous::public_paths(),
            },
            impersonation_modes: ModeMemory::default(),
            single,
            abandoned_answers: Arc::default(),
            chains: ClientChains::default(),
            refused_certificates: Mutex::default(),
            watches: OpenWatches::default(),
            peers,
            drain_once,
            audit,
            nodes,
            process: ProcessStatus {
                started: SystemTime::now(),
                flags,
            },
            browsers,
            goaway,
            expiries,
        })
    }

    /// Returns the time that clients may take to read a finite answer.
    pub(crate) fn answer_read_limits(&self) -> ReadLimits {
        ReadLimits {
            total_max: self.limits.answer_time_max,
            stall_max: self.limits.answer_stall_max,
        }
    }

    /// Returns the time since the server started, for the rates of planes.
    pub(crate) fn now(&self) -> Moment {
        let elapsed = self.started.elapsed().as_nanos();
        Moment(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the text that `/metrics` shows.
    pub(crate) fn expose(&self) -> String {
        let mut out = Exposition::default();
        self.metrics.expose(&mut out);
        self.gate.expose(&mut out);
        self.heavy.expose(&mut out);
        self.long_polls.expose(&mut out);
        self.flows.expose(&mut out);
        let name = "polyplane_abandoned_answers_total";
        out.family(
            name,
            Kind::Counter,
            "Answers given up because nobody fetched them.",
        );
        out.sample(name, &[], self.abandoned_answers.load(Ordering::Relaxed));
        let name = "polyplane_waiting_proofs";
        let help = "Bootstrap tokens that wait for the owner of their control plane to judge them.";
        out.family(name, Kind::Gauge, help);
        out.sample(name, &[], self.proofs.waiting());
        if let Some(side) = &self.peers {
            self.expose_peers(side, &mut out);
        }
        if let Some(nodes) = &self.nodes {
            nodes.expose(&mut out);
        }
        if let Some(auditor) = &self.audit {
            expose_audit(auditor, &mut out);
        }
        certificate_metrics::expose(&self.expiries, &mut out);
        self.documents.expose(&mut out);
        self.backend.expose_metrics(&mut out);
        out.process();
        out.into_text()
    }

    fn expose_peers(&self, side: &PeerSide, out: &mut Exposition) {
        self.metrics.forwarding.expose(out);
        let load = side.transport.load();
        let inbound = side.connections.taken();
        for (name, help, value) in [
            (
                "polyplane_peer_connections",
                "Open connections to peers.",
                load.open,
            ),
            (
                "polyplane_peer_streams",
                "Requests and messages to peers that are being sent or answered.",
                load.streams,
            ),
            (
                "polyplane_peer_waiting_bytes",
                "Bytes that wait to be sent on connections to peers.",
                load.waiting_bytes,
            ),
            (
                "polyplane_peer_inbound_connections",
                "Open connections of peers to this replica.",
                inbound,
            ),
            (
                "polyplane_forwarded_requests_in_flight",
                "Requests that wait for another replica's answer.",
                self.metrics.forwards.taken(),
            ),
            (
                "polyplane_forwarded_watches",
                "Watches that another replica answers.",
                self.metrics.forwarded_watches.taken(),
            ),
        ] {
            out.family(name, Kind::Gauge, help);
            out.sample(name, &[], value);
        }
        let name = "polyplane_peer_connections_opened_total";
        out.family(name, Kind::Counter, "Connections opened to peers.");
        out.sample(name, &[], load.opened);
    }
}

fn expose_audit(auditor: &Auditor, out: &mut Exposition) {
    let metrics = auditor.metrics();
    let name = "apiserver_audit_event_total";
    out.family(name, Kind::Counter, "Audit events made.");
    out.sample(name, &[], metrics.events);
    let name = "apiserver_audit_level_total";
    out.family(name, Kind::Counter, "Requests by the level of their audit.");
    for (level, count) in LEVELS.iter().zip(metrics.requests) {
        out.sample(name, &[("level", level)], count);
    }
    let name = "apiserver_audit_requests_rejected_total";
    let help = "Requests that failed because their audit event could not be recorded.";
    out.family(name, Kind::Counter, help);
    out.sample(name, &[], metrics.rejected);
    let name = "apiserver_audit_error_total";
    out.family(name, Kind::Counter, "Audit events that were lost.");
    out.sample(name, &[("plugin", "buffered")], metrics.lost);
    out.sample(name, &[("plugin", "truncate")], metrics.too_long);
    for (backend, failed, _) in &metrics.backends {
        out.sample(name, &[("plugin", backend)], *failed);
    }
    let name = "polyplane_audit_waiting_events";
    out.family(name, Kind::Gauge, "Audit events that wait for a backend.");
    for (backend, _, waiting) in &metrics.backends {
        out.sample(name, &[("backend", backend)], *waiting as u64);
    }
}
