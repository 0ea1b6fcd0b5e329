//! Authentication and authorization of callers: which credentials the server accepts at which plane.
//! This module does not know requests.

use crate::replica::authorizers_file::AuthorizersFile;
use crate::replica::issuers_file::IssuersFile;
use crate::replica::plain_root::PlainRoot;
use crate::replica::plane_issuers::AllPlaneIssuers;
use crate::replica::plane_tokens::PlaneTokens;
use crate::replica::root_secret::SharedSecret;
use crate::replica::token_file::ServerTokens;
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::{
    AllowAll, AlwaysDeny, Anchor, Authenticator, Authorizer, ClientCa, ForForeigners, HealthRules,
    KeyGeneration, Masters, MetricsRules, NamedClients, OwnAuthenticators, PlaneAccess,
    PublicRules, Purpose, RootAuthenticators, RootSecret, UnionAuthenticator,
};
use polyplane_batteries::node_access::NodeAuthorizer;
use polyplane_batteries::polyplane::access::PlaneAccessSpec;
use polyplane_batteries::polyplane::authentication;
use polyplane_delegated::oidc::OperatorIssuers;
use polyplane_outbound::Caller;
use polyplane_ownership::ROOT;
use polyplane_pki::{Pki, PlaneCa, pem_of};
use polyplane_registry::{
    Authority, ChainedAuthorizer, ReplaceableAuthorizers, Roles, TokenIssuers as _,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Returns the authorizers: administrators may do everything, everybody may ask for the health,
/// metrics readers may read metrics, kubelets what belongs to their node, and a plane's roles decide on
/// the rest. A user whom no role can
/// mean may discover what every authenticated user may.
///
/// In the root plane those of the operator decide in the place of nodes and roles, if there are any.
pub fn authority(of_root: Option<&Arc<ReplaceableAuthorizers>>) -> Authority {
    let of_planes = Authority::new([first_authorizers(), own_authorizers()].concat());
    match of_root {
        Some(of_root) => of_planes.with_plane(ROOT, Arc::clone(of_root)),
        None => of_planes,
    }
}

/// Returns the authorizers that decide first, whatever an operator says.
pub fn first_authorizers() -> Vec<ChainedAuthorizer> {
    vec![
        ChainedAuthorizer::fixed(Arc::new(Masters)),
        ChainedAuthorizer::fixed(Arc::new(HealthRules)),
        ChainedAuthorizer::fixed(Arc::new(MetricsRules)),
        ChainedAuthorizer::fixed(Arc::new(ForForeigners(PublicRules))),
    ]
}

/// Returns the authorizers of a plane after those that ask for no object.
pub fn own_authorizers() -> Vec<ChainedAuthorizer> {
    vec![node(), rbac()]
}

/// Returns the authorizer of what belongs to a node.
pub fn node() -> ChainedAuthorizer {
    ChainedAuthorizer::of_cut(Arc::new(NodeAuthorizer::default())).counted_as("Node", "node")
}

/// Returns the authorizer by the roles of a plane.
pub fn rbac() -> ChainedAuthorizer {
    ChainedAuthorizer::of_cut(Arc::new(Roles)).counted_as("RBAC", "rbac")
}

/// Returns the authorizer that allows everything.
pub fn always_allow() -> ChainedAuthorizer {
    ChainedAuthorizer::fixed(Arc::new(AllowAll)).counted_as("AlwaysAllow", "alwaysallow")
}

/// Returns the authorizer that allows nothing.
pub fn always_deny() -> ChainedAuthorizer {
    ChainedAuthorizer::fixed(Arc::new(AlwaysDeny)).counted_as("AlwaysDeny", "alwaysdeny")
}

/// Returns the authorizer that flags name, and not a configuration. As upstream it is called `default`.
pub fn webhook_of_flags(webhook: Arc<dyn Authorizer>) -> ChainedAuthorizer {
    ChainedAuthorizer::fixed(webhook).counted_as("Webhook", "default")
}

/// What servers of others decide about the root's users.
#[derive(Clone)]
pub struct Delegated {
    /// The authenticators of bearer tokens, after the server's own.
    pub bearer: Vec<Arc<dyn Authenticator>>,
    /// The file with the issuers among these, if there is one.
    pub issuers_file: Option<Arc<IssuersFile>>,
    /// The issuers among these that the operator names.
    pub issuers: Option<Arc<OperatorIssuers>>,
    /// What decides in the root plane in the place of nodes and roles alone.
    pub access: Option<Arc<ReplaceableAuthorizers>>,
    /// The file that names the authorizers, if there is one.
    pub authorizers_file: Option<Arc<AuthorizersFile>>,
    /// The caller of these servers.
    pub outbound: Arc<Caller>,
}

impl Default for Delegated {
    fn default() -> Self {
        Self {
            bearer: Vec::new(),
            issuers_file: None,
            issuers: None,
            access: None,
            authorizers_file: None,
            outbound: Caller::new(Vec::new()),
        }
    }
}

/// The authenticators of callers.
pub struct Access {
    /// Those of the root plane's users. A plane's record says which of these users may enter it.
    root: Arc<RootAuthenticators>,
    /// Checks bearer tokens at the root plane.
    root_bearer: Arc<dyn Authenticator>,
    /// The secret from which the keys of planes derive.
    secret: Arc<SharedSecret>,
    /// The issuers of the planes' tokens, if this installation has any.
    tokens: Option<Arc<PlaneTokens>>,
    /// The issuer of a server with a plain root plane.
    plain_issuer: Option<Arc<TokenIssuer>>,
    /// The caller of servers of others.
    outbound: Arc<Caller>,
    /// The issuers that planes name.
    issuers: AllPlaneIssuers,
    /// What the operator says about the root's users.
    delegated: Delegated,
    /// The name of a plain kube-apiserver in upstream's metrics.
    plain_identity: Option<String>,
    /// Whether bootstrap tokens prove users of the root: those of a plain kube-apiserver may.
    root_takes_bootstrap_tokens: bool,
    /// Those among the authenticators of the root's users that are not the server's own.
    others: Vec<Arc<dyn Authenticator>>,
}

impl Access {
    /// Returns the authenticators for the keys and the tokens of a server.
    ///
    /// # Errors
    /// Returns an error if the CA certificate cannot be used.
    pub fn new(
        pki: &Pki,
        tokens: &ServerTokens,
        secret: Arc<SharedSecret>,
    ) -> anyhow::Result<Self> {
        let outbound = Caller::new(Vec::new());
        let admin: Arc<dyn Authenticator> = Arc::clone(&tokens.admin) as _;
        Ok(Self {
            root_bearer: match &tokens.metrics {
                Some(metrics) => Arc::new(UnionAuthenticator::new(vec![
                    Arc::clone(metrics) as _,
                    Arc::clone(&admin),
                ])),
                None => Arc::clone(&admin),
            },
            root: Arc::new(RootAuthenticators {
                clients: ClientCa::new(std::slice::from_ref(pki.root()))?,
                bearer: admin,
            }),
            secret,
            tokens: None,
            plain_issuer: None,
            issuers: AllPlaneIssuers::new(Arc::clone(&outbound)),
            outbound,
            delegated: Delegated::default(),
            plain_identity: None,
            root_takes_bootstrap_tokens: false,
            others: Vec::new(),
        })
    }

    /// Makes planes accept the users of a plain root plane, or else those whom `tokens` prove.
    #[must_use]
    pub fn with_users(
        self,
        plain: Option<&Arc<PlainRoot>>,
        tokens: Option<Arc<PlaneTokens>>,
        delegated: &Delegated,
    ) -> Self {
        let access = match (plain, tokens) {
            (Some(plain), _) => self.of_plain_root(plain),
            (None, Some(tokens)) => self.with_tokens(tokens),
            (None, None) => self,
        };
        access.with_delegated(delegated)
    }

    /// Makes the root plane accept also whom servers of others prove. The server's own authenticators come
    /// first, so no token of theirs has to leave it.
    #[must_use]
    fn with_delegated(self, delegated: &Delegated) -> Self {
        let outbound = Arc::clone(&delegated.outbound);
        let issuers = AllPlaneIssuers::new(Arc::clone(&outbound));
        if delegated.bearer.is_empty() {
            return Self {
                outbound,
                issuers,
                delegated: delegated.clone(),
                ..self
            };
        }
        let after = |own: &Arc<dyn Authenticator>| -> Arc<dyn Authenticator> {
            let others = delegated.bearer.iter().cloned();
            let members = std::iter::once(Arc::clone(own)).chain(others);
            Arc::new(UnionAuthenticator::new(members.collect()))
        };
        Self {
            root: Arc::new(RootAuthenticators {
                clients: self.root.clients.clone(),
                bearer: after(&self.root.bearer),
            }),
            root_bearer: after(&self.root_bearer),
            outbound,
            issuers,
            delegated: delegated.clone(),
            others: [self.others, delegated.bearer.clone()].concat(),
            ..self
        }
    }

    /// Returns what judges the tokens of the root's users that the server has not made, for reviews.
    pub fn root_reviewer(&self) -> Option<Arc<dyn Authenticator>> {
        match self.others.as_slice() {
            [] => None,
            others => Some(Arc::new(UnionAuthenticator::new(others.to_vec()))),
        }
    }

    /// Returns what the operator says about the root's users.
    pub fn delegated(&self) -> &Delegated {
        &self.delegated
    }

    /// Returns the name of a plain kube-apiserver in upstream's metrics.
    pub fn plain_identity(&self) -> Option<&str> {
        self.plain_identity.as_deref()
    }

    /// Returns the caller of servers of others.
    pub fn outbound(&self) -> &Caller {
        &self.outbound
    }

    /// Makes the root plane accept the users of a plain kube-apiserver, and nobody else.
    #[must_use]
    fn of_plain_root(self, plain: &Arc<PlainRoot>) -> Self {
        let (root, root_bearer) = plain.authenticators();
        Self {
            root,
            root_bearer,
            plain_issuer: plain.issuer.clone(),
            others: plain.bearer.clone(),
            plain_identity: Some(plain.identity.clone()),
            root_takes_bootstrap_tokens: plain.takes_bootstrap_tokens,
            ..self
        }
    }

    /// Makes each plane accept the tokens that it issues.
    #[must_use]
    fn with_tokens(self, tokens: Arc<PlaneTokens>) -> Self {
        let of_root = Arc::new(tokens.authenticator(ROOT));
        Self {
            root_bearer: Arc::new(UnionAuthenticator::new(vec![of_root, self.root_bearer])),
            tokens: Some(tokens),
            ..self
        }
    }

    /// Returns the issuer of a plane's tokens, if it issues any.
    pub fn token_issuer(&self, plane: &str) -> Option<Arc<TokenIssuer>> {
        let issued = self.tokens.as_ref().and_then(|tokens| tokens.issuer(plane));
        issued.or_else(|| self.plain_issuer.clone())
    }

    /// Returns the authenticators of the root plane's users.
    pub fn root(&self) -> &RootAuthenticators {
        &self.root
    }

    /// Returns the authenticator of bearer tokens at the root plane.
    pub fn root_bearer(&self) -> &dyn Authenticator {
        &*self.root_bearer
    }

    /// Returns whether bootstrap tokens prove users of the root.
    pub fn root_takes_bootstrap_tokens(&self) -> bool {
        self.root_takes_bootstrap_tokens
    }

    /// Returns the root secret of this replica.
    pub fn secret(&self) -> &Arc<SharedSecret> {
        &self.secret
    }

    /// Returns the authenticators of the plane with this id, of which the directory says `access`.
    /// The keys of its own users derive from the root secret.
    pub fn of_plane(&self, id: &str, access: &[u8]) -> PlaneAccess {
        let spec = PlaneAccessSpec::read(access);
        let secret = self.secret.secret();
        let tokens = self.tokens.as_ref();
        let own = OwnAuthenticators {
            issuers: self.issuers.of_plane(id, access, &spec.record.revoked),
            clients: secret.map_or_else(Vec::new, |secret| client_cas(secret, id, &spec)),
            named: named_clients(access),
            tokens: tokens
                .map(|tokens| Arc::new(tokens.authenticator(id)) as Arc<dyn Authenticator>),
        };
        PlaneAccess::new(id, spec.record, &self.root, own)
    }
}

/// Returns the client CAs that a plane names, of which the directory says `access`.
fn named_clients(access: &[u8]) -> Option<NamedClients> {
    let named = authentication::client_cas(authentication::raw(access)?);
    let anchors: Vec<Anchor> = named.iter().filter_map(|ca| ca.anchor().ok()).collect();
    (!anchors.is_empty()).then_some(NamedClients {
        anchors,
        reserved: authentication::reserved_to_cas,
    })
}

/// Returns the certificates of the client CAs that a plane names and that are valid now, PEM.
pub fn named_pem(access: &[u8]) -> String {
    let named = authentication::raw(access).map_or_else(Vec::new, authentication::client_cas);
    let now = SystemTime::now();
    let valid = named.iter().filter(|ca| ca.is_valid(now));
    valid.map(|ca| pem_of(ca.certificate())).collect()
}

/// Returns the CAs of a plane's own clients.
fn client_cas(secret: &RootSecret, plane: &str, spec: &PlaneAccessSpec) -> Vec<Anchor> {
    let anchors = accepted(spec).into_iter().map(|(generation, until)| {
        let ca = PlaneCa::derive(secret, Purpose::ClientCa, plane, generation);
        Anchor::new(ca.certificate(), until).expect("a CA that was computed here is one")
    });
    anchors.collect()
}

/// Returns the generations of keys that a plane accepts, the one that signs first, and until when.
pub fn accepted(spec: &PlaneAccessSpec) -> Vec<(KeyGeneration, Option<SystemTime>)> {
    let mut accepted = vec![(spec.generation, None)];
    let previous = spec.generation.0.checked_sub(1).map(KeyGeneration);
    if let (Some(previous), Some(until)) = (previous, spec.previous_until) {
        let until = Duration::from_secs(u64::try_from(until).unwrap_or_default());
        accepted.push((previous, Some(SystemTime::UNIX_EPOCH + until)));
    }
    accepted
}

/// Returns the certificates of the CAs of one purpose that a plane accepts now, PEM.
pub fn accepted_pem(
    secret: &RootSecret,
    purpose: Purpose,
    plane: &str,
    spec: &PlaneAccessSpec,
) -> String {
    let now = SystemTime::now();
    let accepted = accepted(spec).into_iter();
    accepted
        .filter(|(_, until)| until.is_none_or(|until| now < until))
        .map(|(generation, _)| PlaneCa::derive(secret, purpose, plane, generation).pem())
        .collect()
}
