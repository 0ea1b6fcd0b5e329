//! The stage that finds a plane and proves who the caller is, from the directory alone.
//!
//! Every replica does this before a request takes a seat, has its body read, is forwarded, or wakes
//! a plane; the owner of the plane does it again.
//!
//! Invariant: a caller that is not proven cannot tell whether a plane exists, does not exist, or is
//! being deleted, neither from the answer nor from its timing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::service_account::VerifiedToken;
use polyplane_auth::service_account::claims::Binding;
use polyplane_auth::{
    Authentication, Authenticator as _, BootstrapToken, Credentials, Denied, UserInfo, Verdict,
};
use polyplane_registry::AccessCheck;

use crate::answer::respond::{Refusal, Reply};
use crate::backend::{LocateError, PlaneApi, PlaneRecord};
use crate::connection::Connection;
use crate::documents::paths;
use crate::peer::proof::PROOF_TIME_MAX;
use crate::pipeline::Pipeline;
use crate::request::bearer;
use crate::request::plane_limits::is_root;
use crate::request::route::PlaneReference;
use crate::request::seats::too_many;
use crate::server_state::ServerState;

/// A token that proves a caller only while objects of the plane say so.
enum RestsOn {
    /// That of a service account.
    Account(Arc<VerifiedToken>),
    /// A bootstrap token.
    Bootstrap(BootstrapToken),
}

/// Proof of who the caller is. Only this file and `peer::proof` make one.
pub(crate) struct Proven {
    user: Arc<UserInfo>,
    rests_on: Option<RestsOn>,
    /// True if the caller's certificate proves the user.
    by_certificate: bool,
}

impl Proven {
    pub(crate) fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }

    /// Returns the token that proves the user, if that is a service account.
    pub(crate) fn token(&self) -> Option<&Arc<VerifiedToken>> {
        match &self.rests_on {
            Some(RestsOn::Account(token)) => Some(token),
            Some(RestsOn::Bootstrap(_)) | None => None,
        }
    }

    /// Returns the proof of a user whom the owner of the plane has proven by a bootstrap token.
    pub(crate) fn by_bootstrap_token(user: Arc<UserInfo>, token: BootstrapToken) -> Self {
        Self {
            rests_on: Some(RestsOn::Bootstrap(token)),
            ..Self::by(user)
        }
    }

    fn by_account(token: Arc<VerifiedToken>) -> Self {
        Self {
            user: Arc::clone(&token.user),
            rests_on: Some(RestsOn::Account(token)),
            by_certificate: false,
        }
    }

    fn by(user: Arc<UserInfo>) -> Self {
        Self {
            user,
            rests_on: None,
            by_certificate: false,
        }
    }
}

/// Proof that the plane exists. Only `locate_and_prove` makes one.
pub(crate) struct Located {
    record: Arc<dyn PlaneRecord>,
}

impl Located {
    pub(crate) fn record(&self) -> &Arc<dyn PlaneRecord> {
        &self.record
    }
}

impl Pipeline<'_> {
    /// Returns whether the request carries no credential.
    pub(crate) fn has_no_credential(&self) -> bool {
        self.caller.connection.chain().is_none() && self.bearer().is_none()
    }

    /// Returns whether strangers may see the path.
    pub(crate) fn is_for_everybody(&self) -> bool {
        self.state.anonymous.may_see(self.path)
    }

    /// Answers a request without a credential. The server looks up nothing: the root plane shows
    /// health and version to everybody, and no other plane shows anything.
    pub(crate) async fn answer_without_credential(
        &mut self,
        plane: PlaneReference<'_>,
    ) -> Result<Reply, Refusal> {
        // Without a reading of the clock, because nothing is looked up.
        self.access.has_no_credentials();
        if plane == PlaneReference::Root {
            let credentials = self.credentials(SystemTime::now());
            let judged = self.state.anonymous.authenticate(&credentials).await;
            if let Authentication::User(user) = judged {
                self.access.proven(&user, Duration::ZERO);
                return paths::public(&self.path_request(plane), &user);
            }
        }
        Err(self.unauthorized(&Denied::Nothing))
    }

    /// Finds the plane and proves the caller, and notes for the metrics how that went. What failed for
    /// another reason than the caller is not noted.
    pub(crate) async fn locate_and_prove(
        &mut self,
        plane: PlaneReference<'_>,
    ) -> Result<(Located, Proven), Refusal> {
        let began = match self.access.has_proof() {
            false => self.started,
            // An earlier attempt was counted from there.
            true => Instant::now(),
        };
        let located = self.locate_and_prove_in_turn(plane).await;
        match &located {
            Ok((_, proven)) => {
                self.access.proven(&proven.user, began.elapsed());
                if proven.by_certificate {
                    let left = self
                        .caller
                        .connection
                        .certificate_time_left(SystemTime::now());
                    self.access.came_by_certificate(left);
                }
            }
            // Somebody who cannot be judged yet has not failed.
            Err(Refusal::Unsettled(_)) => {}
            Err(refusal) if !refusal.is_unproven() => {}
            Err(_) if self.has_no_credential() => self.access.has_no_credentials(),
            Err(_) => self.access.is_refuted(began.elapsed()),
        }
        located
    }

    /// Finds the plane and proves the caller, in the turns of unproven work if nobody vouches for
    /// the connection.
    async fn locate_and_prove_in_turn(
        &self,
        plane: PlaneReference<'_>,
    ) -> Result<(Located, Proven), Refusal> {
        let connection = &self.caller.connection;
        // A peer that asks for a proof vouches for nobody.
        if connection.is_strange() || self.caller.is_for_proof() {
            let located = self
                .among_strangers(Box::pin(self.locate_and_prove_now(plane)))
                .await;
            connection.doubt(located.is_err());
            return located;
        }
        let located = self.locate_and_prove_now(plane).await;
        if let Err(refusal) = &located
            && refusal.is_unproven()
        {
            connection.doubt(true);
        }
        located
    }

    /// Proves a caller in the turns of unproven work.
    ///
    /// # Errors
    /// Returns 429 if too much of such work of the client's address waits.
    async fn among_strangers<T>(
        &self,
        proof: Pin<Box<impl Future<Output = Result<T, Refusal>>>>,
    ) -> Result<T, Refusal> {
        let (state, from) = (self.state, self.caller.connection.doorway_entry());
        let worked = state.doorway.work(from, || state.now(), proof).await;
        let (proven, nanos) = worked.map_err(|_| {
            ServerState::count(&state.metrics.rejected);
            Refusal::from(too_many())
        })?;
        self.charge.in_turn(nanos);
        proven
    }

    /// Finds the plane and proves the caller.
    ///
    /// A record that may be outdated refuses nobody, and what it admits goes to the plane's owner,
    /// which decides again; see [`Self::await_fresh_records`].
    async fn locate_and_prove_now(
        &self,
        plane: PlaneReference<'_>,
    ) -> Result<(Located, Proven), Refusal> {
        let located = self.locate_and_prove_by_known_records(plane).await;
        let located = located.map_err(|refusal| self.unless_starting(plane, refusal));
        let refuses = match &located {
            Ok((located, _)) => located.record().is_suspended(),
            // The wait is the same for every name, so it shows a stranger nothing.
            Err(refusal) => refusal.is_unproven(),
        };
        if !refuses || self.has_fresh_records(plane) {
            return located;
        }
        match (self.await_fresh_records().await, located) {
            (Ok(()), _) => self.locate_and_prove_by_known_records(plane).await,
            (Err(error), Ok(_)) => Err(error.into()),
            // The caller stays a stranger: of those only so many have their bodies read.
            (Err(error), Err(_)) => Err(Refusal::unsettled(error)),
        }
    }

    /// Returns the refusal of a caller whom no known record proves: 503 while this replica knows no plane,
    /// if the plane that the request names could prove the caller; otherwise `refusal`. A client that gets
    /// 401 gives up, although it has a good credential.
    ///
    /// The answer is the same for every name, and costs no more than the 401, so it gives a stranger nothing.
    fn unless_starting(&self, plane: PlaneReference<'_>, refusal: Refusal) -> Refusal {
        let is_judged = !refusal.is_unproven() || !self.could_be_of_unknown_plane(plane);
        if is_judged || self.state.backend.knows_planes() {
            return refusal;
        }
        tracing::debug!("a caller cannot be judged before this replica knows the planes");
        let why =
            "this server is starting and does not know the users of control planes yet; try again";
        Refusal::unsettled(ApiError::service_unavailable(why).with_retry_after(1))
    }

    /// Returns whether somebody whom this replica does not know yet could prove the caller: by a certificate
    /// that has not expired, or by a token, whatever its form, because webhooks judge any. At the root plane
    /// only a token can be meant, because the CA of its users is known from the start.
    fn could_be_of_unknown_plane(&self, plane: PlaneReference<'_>) -> bool {
        let connection = &self.caller.connection;
        let time_left = || connection.certificate_time_left(SystemTime::now());
        let by_certificate =
            plane != PlaneReference::Root && time_left().is_some_and(|left| !left.is_zero());
        by_certificate || self.bearer().is_some()
    }

    /// Refuses the request if its plane is suspended. Called only for proven callers, so that strangers
    /// do not learn it.
    pub(crate) fn check_suspension(
        &mut self,
        located: &Located,
        proven: &Proven,
    ) -> Result<(), Refusal> {
        let record = located.record();
        if !record.is_suspended() {
            return Ok(());
        }
        // Here, because no owner will record it.
        self.audited = self.begin_audit(located, proven);
        Err(unreachable_plane(LocateError::Suspended, record.name()))
    }

    /// Returns whether the record of the plane is known to be current. The root plane has none.
    fn has_fresh_records(&self, plane: PlaneReference<'_>) -> bool {
        let is_fresh = || matches!(self.state.backend.is_fresh(), Verdict::Now(Some(true)));
        plane == PlaneReference::Root || is_fresh()
    }

    /// Returns whether the owner of the plane may answer the request, or begin to wait for an answer, now.
    ///
    /// The root plane's users are in no record, so the read lease decides. Without it only two kinds of
    /// requests go on: those about this replica, which need no store, and watches, which wait for the lease
    /// as they do when it runs out later.
    pub(crate) fn may_answer(&self, plane: PlaneReference<'_>) -> bool {
        match plane {
            PlaneReference::Root => {
                self.is_local_path() || self.is_watch() || self.state.backend.may_answer()
            }
            PlaneReference::Named(_) | PlaneReference::Id(_) => self.has_fresh_records(plane),
        }
    }

    /// Waits until the records of planes are current.
    ///
    /// # Errors
    /// Returns 503 if this replica has lost touch with the store.
    async fn await_fresh_records(&self) -> Result<(), ApiError> {
        match self.state.backend.is_fresh().await {
            true => Ok(()),
            false => Err(match self.state.backend.stale_reason() {
                Some(why) => ApiError::service_unavailable(why).with_retry_after(1),
                None => unavailable(&LocateError::Unavailable),
            }),
        }
    }

    async fn locate_and_prove_by_known_records(
        &self,
        plane: PlaneReference<'_>,
    ) -> Result<(Located, Proven), Refusal> {
        if let Some(id) = self.expected_plane {
            return self.locate_and_prove_expected(plane, id).await;
        }
        let looked_up = match self.state.backend.locate(plane) {
            Verdict::Now(Some(Ok(record))) => {
                let located = Located { record };
                let proven = self.prove(&located).await?;
                return Ok((located, proven));
            }
            looked_up => looked_up,
        };
        // No plane is known that could prove the caller, so the root plane has to. Only then wait
        // for the directory, because the wait would show a stranger that the name is unknown.
        if plane != PlaneReference::Root {
            self.prove_to_root().await?;
        }
        match looked_up.await {
            Ok(record) => {
                let located = Located { record };
                let proven = self.prove(&located).await?;
                Ok((located, proven))
            }
            Err(error) => Err(unreachable_plane(error, plane.name())),
        }
    }

    /// Finds the plane with this id, which a peer, or this replica before, has found by the name.
    ///
    /// # Errors
    /// Returns *moved* if the name means no plane or another one here. The peer then looks the name up
    /// again: one of the two replicas does not yet know what became of the plane.
    async fn locate_and_prove_expected(
        &self,
        plane: PlaneReference<'_>,
        id: &str,
    ) -> Result<(Located, Proven), Refusal> {
        // The caller was proven already, so the wait for an unknown name shows a stranger nothing.
        match self.state.backend.locate(plane).await {
            Ok(record) if record.id() == id => {
                let located = Located { record };
                let proven = self.prove(&located).await?;
                Ok((located, proven))
            }
            Ok(_) | Err(LocateError::NotFound | LocateError::Deleting) => {
                Err(ApiError::moved().into())
            }
            Err(error) => Err(unreachable_plane(error, plane.name())),
        }
    }

    /// Returns the refusal for a name that no plane can have.
    pub(crate) async fn no_such_plane(&self) -> Refusal {
        if self.has_no_credential() {
            return self.unauthorized(&Denied::Nothing);
        }
        match self.among_strangers(Box::pin(self.prove_to_root())).await {
            Ok(()) => Refusal::no_such_path(),
            Err(refusal) => refusal,
        }
    }

    /// Proves the caller by the record of the root plane.
    async fn prove_to_root(&self) -> Result<(), Refusal> {
        let root = self.state.backend.locate(PlaneReference::Root).await;
        let record = root.map_err(|_| self.unauthorized(&Denied::Nothing))?;
        self.prove(&Located { record }).await.map(drop)
    }

    /// Counts the client's connection as proven.
    ///
    /// # Errors
    /// Returns 429 if too many connections are.
    pub(crate) fn count_as_proven(
        &self,
        plane: PlaneReference<'_>,
        located: &Located,
    ) -> Result<(), Refusal> {
        let Some(open) = self.caller.connection.open() else {
            return Ok(());
        };
        let record = located.record();
        let of_plane = (!is_root(&**record, plane)).then(|| record.meter());
        if open.mark_proven(of_plane) {
            return Ok(());
        }
        if plane == PlaneReference::Root && self.is_local_path() {
            open.mark_proven_anyway();
            return Ok(());
        }
        ServerState::count(&self.state.metrics.rejected);
        let message = "Too many connections, please try again later.";
        Err(ApiError::too_many_requests(message, 1).into())
    }

    async fn prove(&self, located: &Located) -> Result<Proven, Refusal> {
        let now = SystemTime::now();
        let spoken_for = self.user_of_front_proxy(now);
        if let Some(user) = spoken_for.or_else(|| self.anonymous_user(PlaneReference::Root)) {
            return Ok(Proven::by(user));
        }
        let credentials = self.credentials(now);
        let connection = &self.caller.connection;
        let record = &**located.record();
        let open = match judge(record, connection, &credentials) {
            Judged::Proven(proven) => return Ok(proven),
            Judged::Open(open) => open,
        };
        // Before servers of others, so that they never get a good one.
        if let Some(token) = bootstrap_token(record, &credentials) {
            // Boxed, because few requests carry one.
            let proven = Box::pin(self.prove_bootstrapper(located, token, now)).await?;
            if let Some(proven) = proven {
                return Ok(proven);
            }
        }
        open.settle().await.map_err(|why| self.unauthorized(&why))
    }

    /// Checks that what the caller's token rests on exists.
    ///
    /// # Errors
    /// Returns 401 if it does not, *moved* if the caller has to be proven anew, and 503 or 504 if the plane
    /// cannot be read here.
    pub(crate) async fn prove_token(
        &mut self,
        awake: &dyn PlaneApi,
        proven: &Proven,
        access_check: &mut AccessCheck<'_>,
    ) -> Result<(), Refusal> {
        let live = match &proven.rests_on {
            None => return Ok(()),
            Some(RestsOn::Account(token)) => {
                let token = Arc::clone(token);
                access_check.prove(token, SystemTime::now()).await
            }
            Some(RestsOn::Bootstrap(token)) => {
                let now = SystemTime::now();
                let same = access_check.prove_bootstrapper(token.clone(), proven.user(), now);
                match same.await {
                    Ok(true) => Ok(()),
                    // The caller is to be proven anew: by what the Secret says now, or here and not by the
                    // owner before this one.
                    Ok(false) => Err(ApiError::moved()),
                    Err(error) => Err(error),
                }
            }
        };
        if let Err(error) = live {
            if error.code == 401 {
                self.access.is_refuted(self.started.elapsed());
            }
            return Err(error.into());
        }
        if let Some(token) = proven.token()
            && let Binding::HeldBy(secret) = &token.claims.binding
        {
            awake.held_token_used(&token.claims.namespace, secret);
        }
        Ok(())
    }

    pub(crate) fn credentials(&self, now: SystemTime) -> Credentials<'_> {
        Credentials {
            bearer: self.bearer(),
            chain: self.caller.connection.chain(),
            path: self.path,
            now,
            source: self.state.doorway.source_of(&self.caller.connection),
        }
    }

    pub(crate) fn bearer(&self) -> Option<&str> {
        bearer::token_of(&self.parts.headers)
    }

    fn unauthorized(&self, why: &Denied) -> Refusal {
        tracing::debug!(%why, "unauthorized");
        if let Some(error) = why.put_off() {
            return Refusal::unsettled(error);
        }
        let warning = bearer::warning_of(&self.parts.headers);
        let warnings = warning.into_iter().map(str::to_owned).collect();
        let refused = ApiError::unauthorized("Unauthorized");
        refused.with_warnings(warnings).into()
    }
}

/// What a plane's record says about a caller, as far as memory tells.
enum Judged<'a> {
    /// The caller is proven.
    Proven(Proven),
    /// Nothing in memory proves the caller.
    Open(Unsettled<'a>),
}

/// A judgement that may depend on servers of others.
struct Unsettled<'a> {
    /// The reason why the certificate proves nobody, if there is one.
    denied: Option<Denied>,
    by_token: Verdict<'a, Authentication>,
}

impl Unsettled<'_> {
    /// Waits for the judgement.
    ///
    /// # Errors
    /// Returns the reason why neither certificate nor token proves anybody.
    async fn settle(self) -> Result<Proven, Denied> {
        match self.by_token.await {
            Authentication::User(user) => Ok(Proven::by(user)),
            Authentication::Token(token) => Ok(Proven::by_account(token)),
            Authentication::Denied(why) => Err(why.after(self.denied)),
            Authentication::NoOpinion => Err(self.denied.unwrap_or(Denied::Nothing)),
        }
    }
}

/// Judges a caller by a plane's record: first by its certificate, then by its token.
fn judge<'a>(
    record: &'a dyn PlaneRecord,
    connection: &Connection,
    credentials: &'a Credentials<'a>,
) -> Judged<'a> {
    let mut denied = None;
    if connection.chain().is_some() {
        match connection.user_of_chain(record.clients(), credentials.now) {
            Ok(user) => {
                return Judged::Proven(Proven {
                    by_certificate: true,
                    ..Proven::by(user)
                });
            }
            Err(why) => denied = Some(why),
        }
    }
    match record.bearer().authenticate(credentials) {
        Verdict::Now(Some(Authentication::User(user))) => Judged::Proven(Proven::by(user)),
        Verdict::Now(Some(Authentication::Token(token))) => {
            Judged::Proven(Proven::by_account(token))
        }
        by_token => Judged::Open(Unsettled { denied, by_token }),
    }
}

/// Returns the caller's token if it is one that may be a bootstrap token of the plane.
fn bootstrap_token(
    record: &dyn PlaneRecord,
    credentials: &Credentials<'_>,
) -> Option<BootstrapToken> {
    let token = credentials.bearer.and_then(BootstrapToken::read)?;
    record.takes_bootstrap_tokens().then_some(token)
}

/// Returns whether the caller of a watch is proven by a new record of its plane, which is owned here.
pub(crate) async fn is_still_proven(
    record: &dyn PlaneRecord,
    connection: &Connection,
    credentials: &Credentials<'_>,
) -> bool {
    let open = match judge(record, connection, credentials) {
        Judged::Proven(_) => return true,
        Judged::Open(open) => open,
    };
    if let Some(token) = bootstrap_token(record, credentials) {
        let deadline = tokio::time::Instant::now() + PROOF_TIME_MAX;
        let judged = record.bootstrapper(&token, credentials, deadline);
        if matches!(judged.await, Ok(Some(_))) {
            return true;
        }
    }
    open.settle().await.is_ok()
}

/// Returns the refusal for a proven caller whose plane cannot be served.
pub(crate) fn unreachable_plane(error: LocateError, name: &str) -> Refusal {
    let what = Qualified::new("polyplane.dev", "controlplanes");
    match error {
        LocateError::NotFound | LocateError::Deleting => ApiError::not_found(what, name),
        LocateError::Moved(_) => ApiError::moved(),
        LocateError::Forbidden | LocateError::Suspended => ApiError::forbidden(what, name, error),
        LocateError::Unavailable
        | LocateError::StoreAway
        | LocateError::Sealed
        | LocateError::StoreReadOnly(_)
        | LocateError::NotJoined(_) => unavailable(&error),
    }
    .into()
}

pub(crate) fn unavailable(error: &LocateError) -> ApiError {
    ApiError::service_unavailable(error.to_string()).with_retry_after(1)
}
