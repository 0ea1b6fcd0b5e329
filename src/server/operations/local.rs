//! Paths about this replica: health, metrics, reports and drain. It answers them itself, even if
//! another replica owns the root plane or the plane cannot wake.

use std::sync::OnceLock;

use futures_util::FutureExt as _;
use futures_util::future::Shared as SharedFuture;
use http::{Method, StatusCode};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::{
    Attributes, METRICS_PATH, METRICS_READERS, SYSTEM_MASTERS, Subject, UserInfo, Verdict,
};
use polyplane_registry::authority::forbidden;

use crate::answer::respond::{Refusal, Reply, raw_json, text};
use crate::backend::{BoxFuture, Location, PlaneRecord};
use crate::documents::paths;
use crate::operations::health::Endpoint;
use crate::operations::status_pages::Page;
use crate::pipeline::Pipeline;
use crate::request::prove::Proven;
use crate::request::route::PlaneReference;

/// The path on which an operator makes a replica hand over its planes.
pub(crate) const DRAIN_PATH: &str = "/drain";

/// The path of the metrics by which the health of a component is judged, as upstream names it.
pub(crate) const SLIS_PATH: &str = "/metrics/slis";

/// The prefix of reports about the ring.
pub(crate) const REPORTS: &str = "/polyplane/";

/// Hands over all planes of this replica. The future resolves to `Ok` once the replica has handed
/// over all of them, or to the reason why it failed. The server calls this at most once.
pub type DrainRequested = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// The drain of a server. The first request starts it; every request waits for its end.
pub(crate) struct DrainOnce {
    hook: DrainRequested,
    begun: OnceLock<SharedFuture<BoxFuture<'static, Result<(), String>>>>,
}

impl DrainOnce {
    pub(crate) fn new(hook: DrainRequested) -> Self {
        Self {
            hook,
            begun: OnceLock::new(),
        }
    }

    /// Starts the drain, unless it has started, and waits for its end. If the caller is dropped,
    /// the drain continues.
    async fn wait(&self) -> Result<(), String> {
        let drained = self.begun.get_or_init(|| {
            let drained = (self.hook)().shared();
            tokio::spawn(drained.clone());
            drained
        });
        drained.clone().await
    }
}

impl Pipeline<'_> {
    /// Returns whether this replica answers the path without the root plane: another replica owns it, or it
    /// is not awake here. Health and metrics do not wait until it is, because it may be what is amiss.
    pub(crate) fn is_answered_by_any_replica(&self, record: &dyn PlaneRecord) -> bool {
        // A verdict that is not polled wakes nothing.
        let is_awake = || matches!(record.wake(), Verdict::Now(Some(Ok(_))));
        let is_here = || record.location() == Location::Here && is_awake();
        self.is_local_path() && self.is_direct() && !is_here()
    }

    /// Returns whether the path, in the root plane, is about this replica and not about the plane.
    pub(crate) fn is_local_path(&self) -> bool {
        matches!(
            self.path,
            METRICS_PATH | SLIS_PATH | "/version" | "/version/" | DRAIN_PATH
        ) || Page::of(self.path).is_some()
            || Endpoint::of(self.path).is_some()
            || self.path.starts_with(REPORTS)
    }

    /// Answers without the root plane, which has the roles. So here members of `system:masters` may do
    /// everything, and every proven caller may read what is public. What else a role allows is decided once the
    /// root plane is awake.
    pub(crate) async fn answer_about_this_replica(
        &self,
        located: &dyn PlaneRecord,
        proven: &Proven,
        plane: PlaneReference<'_>,
    ) -> Result<Reply, Refusal> {
        let user = proven.user();
        let request = self.path_request(plane);
        if self.path == DRAIN_PATH {
            return self.drain(user).await;
        }
        if self.path.starts_with(REPORTS) {
            return self.report(user).await;
        }
        let is_awaited = located.location() == Location::Here;
        let is_refused = match self.path {
            METRICS_PATH | SLIS_PATH => !self.may_read_metrics(user),
            path => Page::of(path).is_some() && !user.in_group(SYSTEM_MASTERS),
        };
        if is_refused && is_awaited {
            let why = "the root plane is not awake yet, and its roles decide on this path";
            return Err(ApiError::service_unavailable(why)
                .with_retry_after(1)
                .into());
        }
        if is_refused {
            return Err(self.for_masters_only(user));
        }
        paths::of_this_replica(&request).unwrap_or_else(|| Err(Refusal::no_such_path()))
    }

    /// Makes `/readyz` fail, hands over all planes, and answers when that has ended.
    pub(crate) async fn drain(&self, user: &UserInfo) -> Result<Reply, Refusal> {
        if !user.in_group(SYSTEM_MASTERS) {
            return Err(self.for_masters_only(user));
        }
        let Some(drain) = &self.state.drain_once else {
            return Err(Refusal::no_such_path());
        };
        if self.parts.method != Method::POST {
            return Err(ApiError::generic(405, "", Qualified::new("", ""), "", "").into());
        }
        self.state.drain.unready();
        match drain.wait().await {
            Ok(()) => Ok(text(StatusCode::OK, "drained\n")),
            // Nothing is broken here. No Retry-After: a drain is not tried again.
            Err(why) => Err(ApiError::service_unavailable(why).into()),
        }
    }

    /// Answers reports and commands of the layers behind the server.
    pub(crate) async fn report(&self, user: &UserInfo) -> Result<Reply, Refusal> {
        if !user.in_group(SYSTEM_MASTERS) {
            return Err(self.for_masters_only(user));
        }
        let backend = &self.state.backend;
        let answer = match self.parts.method {
            Method::GET => backend.report(self.path),
            Method::POST => backend.command(self.path),
            _ => return Err(ApiError::generic(405, "", Qualified::new("", ""), "", "").into()),
        };
        match answer {
            Some(answer) => Ok(raw_json(StatusCode::OK, &answer.await?)),
            None => Err(Refusal::no_such_path()),
        }
    }

    fn may_read_metrics(&self, user: &UserInfo) -> bool {
        let reads = user.in_group(METRICS_READERS) && self.parts.method == Method::GET;
        reads || user.in_group(SYSTEM_MASTERS)
    }

    fn for_masters_only(&self, user: &UserInfo) -> Refusal {
        let verb = self.parts.method.as_str().to_ascii_lowercase();
        let attributes = Attributes {
            user,
            verb: &verb,
            subject: Subject::Path(self.path),
        };
        forbidden(&attributes, "").into()
    }
}
