//! Who may use one control plane, as its directory record says.
//!
//! A plane has users of its own, whom its own CA or its own tokens prove. A user of the root plane
//! is nobody there unless the record grants otherwise. This module owns that decision; it must not
//! know where records are stored.
//!
//! Invariant: a user of one plane is nobody in any other. What proves a user of a plane is computed
//! from that plane's id, and no credential of the root is a credential of a plane by itself.

use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;

use crate::authenticator::{Authentication, Authenticator, CertificateFault, Credentials, Denied};
use crate::named_ca::NamedClients;
use crate::user::{SYSTEM_MASTERS, UserInfo};
use crate::verdict::Verdict;
use crate::x509::{Anchor, ChainIdentity, ChainJudge, ClientCa, ClientChain, OwnCertificate};

/// The beginning of the name that a user of the root has in another plane.
pub const ROOT_USER_PREFIX: &str = "root:";

/// The users of the root plane whom a grant means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grantee {
    /// The user of this name.
    User(Str),
    /// All members of this group.
    Group(Str),
}

/// Lets users of the root plane enter a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The users.
    pub to: Grantee,
    /// The groups in which they are in the plane.
    pub groups: Vec<Str>,
}

impl Grant {
    fn means(&self, user: &UserInfo) -> bool {
        match &self.to {
            Grantee::User(name) => user.name == *name,
            Grantee::Group(group) => user.in_group(group),
        }
    }
}

/// Ends the credentials that a user of the plane got before a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The user's name.
    pub user: Str,
    /// The first second of which credentials are accepted, since 1970.
    pub before: i64,
}

impl Revocation {
    /// Returns the time of the newest revocation of a user.
    pub fn newest(revoked: &[Self], user: &str) -> Option<i64> {
        let of_user = revoked.iter().filter(|one| one.user == user);
        of_user.map(|one| one.before).max()
    }
}

/// Which users of the root may enter a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The record does not say: the plane was made by a release without grants. Masters of the root
    /// are masters of the plane, and other users of the root may discover what is public.
    Unspecified,
    /// Those whom one of these means.
    Granted(Vec<Grant>),
}

/// What a plane's record says about who may use the plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    /// The users of the root who may enter.
    pub entry: Entry,
    /// The credentials that ended early.
    pub revoked: Vec<Revocation>,
}

impl AccessRecord {
    /// Returns the first second of which the credentials of a user of the plane are accepted, since
    /// 1970; `None` if none of them ended early.
    pub fn revoked_before(&self, user: &str) -> Option<i64> {
        Revocation::newest(&self.revoked, user)
    }

    /// Returns a user of the root as the plane knows him; `None` if he may not enter.
    fn enter(&self, user: &Arc<UserInfo>) -> Option<Arc<UserInfo>> {
        let grants = match &self.entry {
            Entry::Unspecified if user.in_group(SYSTEM_MASTERS) => return Some(Arc::clone(user)),
            Entry::Unspecified => {
                return Some(Arc::new(UserInfo {
                    is_foreign: true,
                    ..UserInfo::clone(user)
                }));
            }
            Entry::Granted(grants) => grants,
        };
        let mut granted = grants.iter().filter(|grant| grant.means(user)).peekable();
        granted.peek()?;
        let mut groups: Vec<Str> = Vec::new();
        for group in granted.flat_map(|grant| &grant.groups) {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        let entered = UserInfo {
            name: Str::from(format!("{ROOT_USER_PREFIX}{}", user.name)),
            groups,
            ..UserInfo::default()
        };
        Some(Arc::new(entered.authenticated()))
    }
}

/// The authenticators of the root plane's users, which all planes share.
pub struct RootAuthenticators {
    /// Verifies their certificates.
    pub clients: ClientCa,
    /// Verifies their bearer tokens.
    pub bearer: Arc<dyn Authenticator>,
}

/// The authenticators of one plane's own users.
#[derive(Default)]
pub struct OwnAuthenticators {
    /// The CAs whose client certificates are accepted, and which the server itself signs for.
    pub clients: Vec<Anchor>,
    /// The CAs that the plane names, whose client certificates are accepted too; `None` if it names none.
    pub named: Option<NamedClients>,
    /// Verifies the plane's own tokens; `None` if the plane has none.
    pub tokens: Option<Arc<dyn Authenticator>>,
    /// Judges the tokens of the issuers that the plane names; `None` if it names none.
    pub issuers: Option<Arc<dyn Authenticator>>,
}

/// A user of the root plane, and who he is in another plane; `None` if he may not enter it.
type Entered = (Arc<UserInfo>, Option<Arc<UserInfo>>);

/// The authenticators of one plane. A changed record makes another value of this type, with another
/// fingerprint, so no cached verdict outlives a change.
pub struct PlaneAccess {
    record: AccessRecord,
    root: Arc<RootAuthenticators>,
    own: OwnAuthenticators,
    fingerprint: [u8; 32],
    /// The last user of the root who came with a token, and who he is here. Requests of one client
    /// would otherwise each build the same user.
    entered: Mutex<Option<Entered>>,
}

impl PlaneAccess {
    /// Creates the authenticators of the plane with this id.
    pub fn new(
        plane: &str,
        record: AccessRecord,
        root: &Arc<RootAuthenticators>,
        own: OwnAuthenticators,
    ) -> Self {
        Self {
            fingerprint: fingerprint(plane, &record, root, &own),
            record,
            root: Arc::clone(root),
            own,
            entered: Mutex::default(),
        }
    }

    /// Returns what judges the tokens of the issuers that the plane names, if it names any.
    pub fn issuers(&self) -> Option<&Arc<dyn Authenticator>> {
        self.own.issuers.as_ref()
    }

    /// Returns what the plane's record says.
    pub fn record(&self) -> &AccessRecord {
        &self.record
    }

    /// Returns what a chain says that one of the plane's own CAs has signed.
    ///
    /// # Errors
    /// Returns [`Denied::Nothing`] if the certificate is of none of these CAs, and otherwise the reason
    /// why it proves nobody.
    pub fn own_certificate(
        &self,
        chain: &ClientChain,
        now: SystemTime,
    ) -> Result<OwnCertificate, Denied> {
        // Not one of the CAs that the plane names: what it signed would become a certificate that
        // outlives it.
        self.signed_here_until(chain, now, &mut None)
    }

    /// Finds the CA of a chain among those that the server itself signs for. Their signer refuses the
    /// names of users of the root; a certificate of an earlier release may have one, and would be taken
    /// for such a user in the audit log and in bindings.
    fn signed_here_until(
        &self,
        chain: &ClientChain,
        now: SystemTime,
        until: &mut Option<SystemTime>,
    ) -> Result<OwnCertificate, Denied> {
        let own = self.own_until(&self.own.clients, chain, now, until)?;
        match own.user.name.starts_with(ROOT_USER_PREFIX) {
            true => Err(Denied::Reserved(format!(
                "a name that begins with {ROOT_USER_PREFIX:?}"
            ))),
            false => Ok(own),
        }
    }

    /// Finds the CA of a chain among `anchors`. `until` becomes the time from which the chain has to be
    /// judged again, if that is earlier.
    fn own_until(
        &self,
        anchors: &[Anchor],
        chain: &ClientChain,
        now: SystemTime,
        until: &mut Option<SystemTime>,
    ) -> Result<OwnCertificate, Denied> {
        for anchor in anchors {
            *until = earlier(*until, anchor.next_change(now));
            if !anchor.is_accepted(now) {
                continue;
            }
            let own = match anchor.verify(chain, now) {
                Ok(own) => own,
                // This CA has signed the leaf, so the log gets the true reason and not that the last
                // CA, that of the root, has not.
                Err(why @ Denied::Certificate(CertificateFault::NotForClients)) => return Err(why),
                Err(_) => continue,
            };
            let revoked = self.record.revoked_before(&own.user.name);
            return match revoked.is_some_and(|before| own.begins < before) {
                true => Err(Denied::Revoked),
                false => Ok(own),
            };
        }
        Err(Denied::Nothing)
    }

    /// Finds the CA of a chain among those that the plane names.
    fn named_until(
        &self,
        chain: &ClientChain,
        now: SystemTime,
        until: &mut Option<SystemTime>,
    ) -> Result<OwnCertificate, Denied> {
        let named = self.own.named.as_ref().ok_or(Denied::Nothing)?;
        let own = self.own_until(&named.anchors, chain, now, until)?;
        match (named.reserved)(&own.user) {
            Some(why) => Err(Denied::Reserved(why)),
            None => Ok(own),
        }
    }

    fn enter(&self, user: &Arc<UserInfo>) -> Authentication {
        let mut entered = self.entered.lock();
        let known = entered
            .as_ref()
            .filter(|(known, _)| Arc::ptr_eq(known, user));
        let found = match known {
            Some((_, found)) => found.clone(),
            None => {
                let found = self.record.enter(user);
                *entered = Some((Arc::clone(user), found.clone()));
                found
            }
        };
        found.map_or(Authentication::Denied(Denied::NotGranted), |user| {
            Authentication::User(user)
        })
    }

    /// Judges a result of the root's authenticator: its users have to enter, and what it refuses may
    /// be a token of the plane.
    async fn judge<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
        by_root: Authentication,
    ) -> Authentication {
        match self.after_root(by_root) {
            Ok(judged) => judged,
            Err((denied, tokens)) => after_token(denied, tokens.authenticate(credentials).await),
        }
    }

    /// Returns the judgement if the root's authenticator decides it alone; otherwise what it
    /// answered, and the authenticator of the plane's own tokens.
    fn after_root(
        &self,
        by_root: Authentication,
    ) -> Result<Authentication, (Authentication, &dyn Authenticator)> {
        match (by_root, &self.own.tokens) {
            (Authentication::User(user), _) => Ok(self.enter(&user)),
            (Authentication::Token(_), _) => Ok(Authentication::Denied(Denied::NotGranted)),
            (denied, None) => Ok(denied),
            (denied, Some(tokens)) => Err((denied, &**tokens)),
        }
    }
}

impl ChainJudge for PlaneAccess {
    fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    fn identify(&self, chain: &ClientChain, now: SystemTime) -> ChainIdentity {
        let mut until = chain.next_date(now);
        let mut own = self.signed_here_until(chain, now, &mut until);
        if own == Err(Denied::Nothing) {
            own = self.named_until(chain, now, &mut until);
        }
        let user = match own {
            Err(Denied::Nothing) => None,
            judged => Some(judged.map(|own| own.user)),
        };
        if let Some(user) = user {
            return ChainIdentity { user, until };
        }
        let by_root = self.root.clients.identify(chain, now);
        let user = by_root
            .user
            .and_then(|user| self.record.enter(&user).ok_or(Denied::NotGranted));
        ChainIdentity { user, until }
    }
}

impl Authenticator for PlaneAccess {
    /// Judges bearer tokens: first those of the issuers that the plane names, so that a webhook of the
    /// root never gets a good one, then those of the root's users, which cost a comparison, then the
    /// plane's own.
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some(issuers) = &self.own.issuers else {
            return self.of_others(credentials);
        };
        match issuers.authenticate(credentials) {
            Verdict::Now(Some(Authentication::NoOpinion)) => self.of_others(credentials),
            Verdict::Now(Some(user @ Authentication::User(_))) => Verdict::now(user),
            by_issuer => Verdict::later(async move {
                match by_issuer.await {
                    user @ Authentication::User(_) => user,
                    refused => after_token(refused, self.of_others(credentials).await),
                }
            }),
        }
    }
}

impl PlaneAccess {
    /// Judges bearer tokens that are of none of the issuers that the plane names.
    fn of_others<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let by_root = match self.root.bearer.authenticate(credentials) {
            Verdict::Now(Some(by_root)) => by_root,
            later => {
                return Verdict::later(async move {
                    let by_root = later.await;
                    self.judge(credentials, by_root).await
                });
            }
        };
        match self.after_root(by_root) {
            Ok(judged) => Verdict::now(judged),
            Err((denied, tokens)) => match tokens.authenticate(credentials) {
                Verdict::Now(Some(by_token)) => Verdict::now(after_token(denied, by_token)),
                later => Verdict::later(async move { after_token(denied, later.await) }),
            },
        }
    }
}

/// Returns what the authenticator of the plane's own tokens answered, or the root's refusal if that one has
/// no opinion, or if the root leaves open whether the token is good.
fn after_token(denied: Authentication, by_token: Authentication) -> Authentication {
    let is_open = matches!(&denied, Authentication::Denied(why) if why.is_open());
    match by_token {
        Authentication::NoOpinion => denied,
        Authentication::Denied(_) if is_open => denied,
        judged => judged,
    }
}

fn earlier(one: Option<SystemTime>, other: Option<SystemTime>) -> Option<SystemTime> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns a digest of everything that [`PlaneAccess::identify`] depends on but the chain and the
/// time.
fn fingerprint(
    plane: &str,
    record: &AccessRecord,
    root: &RootAuthenticators,
    own: &OwnAuthenticators,
) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut add = |field: &[u8]| {
        hash.update(&(field.len() as u64).to_be_bytes());
        hash.update(field);
    };
    add(plane.as_bytes());
    add(root.clients.fingerprint());
    // The form for debugging names each field, and quotes texts.
    add(format!("{record:?}").as_bytes());
    for anchor in &own.clients {
        add(anchor.fingerprint());
        add(format!("{:?}", anchor.accepted_until()).as_bytes());
    }
    if let Some(named) = &own.named {
        add(b"named");
        for anchor in &named.anchors {
            // Their dates are in the certificates.
            add(anchor.fingerprint());
        }
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(hash.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests;
