//! The limits that a plane has by itself, at its owner and at a replica that forwards to it.
//!
//! The owner enforces them. A replica that forwards remembers for at most a second that the owner has
//! refused, so that a flood ends where it arrives. The root plane has no limits, because the objects
//! that say the others' limits are in it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, StatusCode};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{NODES, UserInfo};
use polyplane_fairness::{
    Asked, CountedWatch, InFlight, Moment, PlaneMeter, Refusal as Limit, TIMES_FREE,
};
use polyplane_registry::{Verb, WriteRate};

use crate::answer::respond::{Refusal, Reply, refuse};
use crate::backend::PlaneRecord;
use crate::operations::exposition::{Exposition, Kind};
use crate::peer::headers::{LIMITED, Limited};
use crate::pipeline::Pipeline;
use crate::request::prove::Proven;
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::request::route::PlaneReference;
use crate::request::seats::{Seats, too_many};
use crate::server_state::ServerState;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// Counts the requests that were refused because their plane was at a limit of its own.
#[derive(Debug, Default)]
pub(crate) struct LimitRefusals {
    requests: AtomicU64,
    writes: AtomicU64,
    watches: AtomicU64,
    share: AtomicU64,
}

impl LimitRefusals {
    fn count(&self, limit: Limit) {
        let counter = match limit {
            Limit::Requests { .. } => &self.requests,
            Limit::Writes { .. } => &self.writes,
            Limit::Watches { .. } => &self.watches,
        };
        ServerState::count(counter);
    }

    pub(crate) fn expose(&self, out: &mut Exposition) {
        let name = "polyplane_limited_requests_total";
        let help =
            "Requests refused because their control plane was at a limit of its own, by the limit.";
        out.family(name, Kind::Counter, help);
        for (limit, counter) in [
            ("requests", &self.requests),
            ("writes", &self.writes),
            ("watches", &self.watches),
            ("in_flight", &self.share),
        ] {
            out.sample(name, &[("limit", limit)], counter.load(Ordering::Relaxed));
        }
    }
}

/// The rate of writes of a plane, at its owner.
struct PlaneWrites {
    state: Arc<ServerState>,
    meter: Arc<PlaneMeter>,
    plane: Str,
}

impl fmt::Debug for PlaneWrites {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writes = out.debug_struct("PlaneWrites");
        writes.field("plane", &self.plane).finish_non_exhaustive()
    }
}

impl WriteRate for PlaneWrites {
    fn take(&self) -> Result<(), ApiError> {
        self.meter.admit_write(self.state.now()).map_err(|limit| {
            self.state.metrics.limits.count(limit);
            error(&self.plane, limit)
        })
    }
}

impl Pipeline<'_> {
    /// Returns the rate by which a request that was counted as one write counts its further ones; `None` if it
    /// makes none, or its plane has no such limit.
    pub(crate) fn write_rate(
        &self,
        verb: Verb,
        record: &dyn PlaneRecord,
    ) -> Option<Arc<dyn WriteRate>> {
        let meter = record.meter();
        let is_limited = verb == Verb::DeleteCollection
            && record.id() != polyplane_ownership::ROOT
            && meter.limits().writes_per_second.is_some();
        is_limited.then(|| {
            Arc::new(PlaneWrites {
                state: Arc::clone(self.state),
                meter: Arc::clone(meter),
                plane: record.name().into(),
            }) as Arc<dyn WriteRate>
        })
    }

    /// Counts a request at its plane's owner. Returns the reply to one that is beyond a rate of the
    /// plane.
    pub(crate) fn count_at_owner(
        &self,
        record: &dyn PlaneRecord,
        plane: PlaneReference<'_>,
        proven: &Proven,
    ) -> Option<Reply> {
        let (meter, asked) = (record.meter(), self.asked(proven.user()));
        if is_root(record, plane) {
            meter.count(asked.writes());
            return None;
        }
        let limit = meter.admit(self.state.now(), asked).err()?;
        self.state.metrics.limits.count(limit);
        let mut reply = refuse(self.client, &error(record.name(), limit).into());
        if !self.is_direct() {
            let value = Limited::of(limit).to_value();
            reply.headers_mut().insert(LIMITED, value);
        }
        Some(reply)
    }

    /// Counts a request that is forwarded.
    ///
    /// # Errors
    /// Returns 429 if the owner has just refused a request of this kind.
    pub(crate) fn count_forwarded(
        &self,
        record: &dyn PlaneRecord,
        proven: &Proven,
    ) -> Result<(), Refusal> {
        let (meter, asked) = (record.meter(), self.asked(proven.user()));
        meter.remembered(self.state.now(), asked).map_err(|limit| {
            self.state.metrics.limits.count(limit);
            error(record.name(), limit)
        })?;
        meter.count(asked.writes());
        Ok(())
    }

    /// Remembers that the owner has refused a request because of the plane's limits.
    pub(crate) fn remember_limit(
        &self,
        record: &dyn PlaneRecord,
        status: StatusCode,
        headers: &HeaderMap,
    ) {
        if status != StatusCode::TOO_MANY_REQUESTS {
            return;
        }
        let Some(limited) = headers.get(LIMITED).and_then(Limited::parse) else {
            return;
        };
        let now = self.state.now();
        let wait_nanos = jittered(limited.wait_millis.saturating_mul(NANOS_PER_MILLI), now);
        let meter = record.meter();
        meter.remember_refusal(now, limited.writes_only, wait_nanos);
    }

    /// Counts a watch while it is open.
    ///
    /// # Errors
    /// Returns 429 if the plane has as many open watches as it may have.
    pub(crate) fn open_watch(&self, record: &dyn PlaneRecord) -> Result<CountedWatch, Refusal> {
        record.meter().open_watch().map_err(|limit| {
            self.state.metrics.limits.count(limit);
            error(record.name(), limit).into()
        })
    }

    /// Counts a request of a plane among those of `seats`, in which it has taken its place.
    ///
    /// # Errors
    /// Returns 429 if the plane has so many requests in flight that others would find no seat.
    pub(crate) fn share_of(
        &self,
        meter: &Arc<PlaneMeter>,
        seats: &Seats,
    ) -> Result<InFlight, Refusal> {
        // The request's own seat counts as free.
        meter.enter(seats.free() + 1, TIMES_FREE).ok_or_else(|| {
            ServerState::count(&self.state.metrics.limits.share);
            ServerState::count(&self.state.metrics.rejected);
            too_many().into()
        })
    }

    /// Returns what the request of a user does. Whom the caller impersonates does not count: only an awake plane
    /// knows whether it may.
    fn asked(&self, user: &UserInfo) -> Asked {
        let is_of_renewal = match self.info {
            RequestInfo::Resource(info) => renews(info) || is_of_node(info, user),
            RequestInfo::Path(_) => false,
        };
        match (self.writes(), is_of_renewal) {
            (true, true) => Asked::Renewal,
            (false, true) => Asked::RenewalRead,
            (true, false) => Asked::Write,
            (false, false) => Asked::Read,
        }
    }

    /// Returns whether the request changes something, as far as its head tells.
    pub(crate) fn writes(&self) -> bool {
        match self.info {
            RequestInfo::Path(_) => false,
            RequestInfo::Resource(info) => match info.verb {
                Some(Verb::Get | Verb::List | Verb::Watch | Verb::Connect) | None => false,
                Some(
                    Verb::Create
                    | Verb::Update
                    | Verb::Patch
                    | Verb::Delete
                    | Verb::DeleteCollection,
                ) => true,
            },
        }
    }
}

/// Returns whether a request renews a lease, as leaders do.
fn renews(info: &ResourceInfo<'_>) -> bool {
    (info.group, info.resource) == ("coordination.k8s.io", "leases")
        && matches!(info.verb, Some(Verb::Update | Verb::Patch))
}

/// Returns whether a request is one by which a node stays alive: one of those that upstream's flow schema
/// `system-node-high` has.
fn is_of_node(info: &ResourceInfo<'_>, user: &UserInfo) -> bool {
    let is_subject = match (info.group, info.resource, info.subresource) {
        ("", "nodes", "" | "status") => true,
        ("coordination.k8s.io", "leases", "") => !info.namespace.is_empty(),
        _ => false,
    };
    is_subject && !user.is_foreign && user.in_group(NODES)
}

pub(crate) fn is_root(record: &dyn PlaneRecord, plane: PlaneReference<'_>) -> bool {
    plane == PlaneReference::Root || record.id() == polyplane_ownership::ROOT
}

/// Returns the answer to a request that is beyond a limit of its plane.
fn error(plane: &str, limit: Limit) -> ApiError {
    let rate = |what: &str, field: &str, per_second: Option<u64>| match per_second {
        Some(per_second) => format!(
            "control plane {plane:?} is at its limit of {per_second} {what} a second (spec.limits.{field}), please \
             try again later"
        ),
        None => format!(
            "control plane {plane:?} is at its limit of {what} a second (spec.limits.{field}), please try again later"
        ),
    };
    let (message, wait_nanos) = match limit {
        Limit::Requests {
            per_second,
            wait_nanos,
        } => (
            rate("requests", "requestsPerSecond", per_second),
            wait_nanos,
        ),
        Limit::Writes {
            per_second,
            wait_nanos,
        } => (
            rate("changing requests", "writesPerSecond", per_second),
            wait_nanos,
        ),
        Limit::Watches { watches } => (
            format!(
                "control plane {plane:?} is at its limit of {watches} open watches (spec.limits.watches), please \
                 try again later"
            ),
            NANOS_PER_SECOND,
        ),
    };
    let seconds = wait_nanos.div_ceil(NANOS_PER_SECOND).max(1);
    ApiError::too_many_requests(&message, u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// Shortens a wait by up to a quarter, so that the replicas that have heard of one refusal do not
/// all send again in the same moment.
fn jittered(wait_nanos: u64, now: Moment) -> u64 {
    let part = now.0 % 256;
    wait_nanos - wait_nanos / 4 * part / 256
}

impl Limited {
    /// Returns what a peer is told of a limit.
    fn of(limit: Limit) -> Self {
        let (writes_only, wait_nanos) = match limit {
            Limit::Requests { wait_nanos, .. } => (false, wait_nanos),
            Limit::Writes { wait_nanos, .. } => (true, wait_nanos),
            // Another watch may end at any moment, so there is nothing to remember.
            Limit::Watches { .. } => (false, 0),
        };
        Self {
            writes_only,
            wait_millis: wait_nanos.div_ceil(NANOS_PER_MILLI),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_renew_by_the_requests_that_upstream_lets_go_before_others() {
        let node = UserInfo::new("system:node:a", &[NODES]);
        let stranger = UserInfo {
            is_foreign: true,
            ..node.clone()
        };
        let jane = UserInfo::new("jane", &["system:authenticated"]);
        let request = |group, namespace, resource, subresource| ResourceInfo {
            group,
            namespace,
            resource,
            subresource,
            ..ResourceInfo::default()
        };
        let leases = "coordination.k8s.io";
        for (info, expected) in [
            (request("", "", "nodes", ""), true),
            (request("", "", "nodes", "status"), true),
            (request(leases, "kube-node-lease", "leases", ""), true),
            // As upstream: the schema has none of no namespace.
            (request(leases, "", "leases", ""), false),
            (request("", "", "nodes", "proxy"), false),
            (request("example.com", "", "nodes", "status"), false),
            (request("", "default", "pods", "status"), false),
            (request("", "default", "events", ""), false),
        ] {
            assert_eq!(is_of_node(&info, &node), expected, "{info:?}");
            for other in [&stranger, &jane] {
                assert!(!is_of_node(&info, other), "{info:?} of {other:?}");
            }
        }
    }

    #[test]
    fn whoever_changes_a_lease_renews_it() {
        let lease = |verb, resource| ResourceInfo {
            verb: Some(verb),
            group: "coordination.k8s.io",
            namespace: "kube-system",
            resource,
            ..ResourceInfo::default()
        };
        assert!(renews(&lease(Verb::Update, "leases")));
        assert!(renews(&lease(Verb::Patch, "leases")));
        assert!(!renews(&lease(Verb::Get, "leases")));
        assert!(!renews(&lease(Verb::Create, "leases")));
        assert!(!renews(&lease(Verb::Update, "leasecandidates")));
    }
}
