//! What makes the root plane that of a plain kube-apiserver: who may use it and how it is run comes
//! from flags, and not from keys of Polyplane's own. This module does not know the flags.

use crate::replica::plane_tokens::PlaneTokens;
use polyplane_auth::service_account::authenticator::AccountTokens;
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::service_account::verdicts::VerdictCache;
use polyplane_auth::service_account::{TokenFault, VerifiedToken};
use polyplane_auth::{Authenticator, ClientCa, RootAuthenticators, UnionAuthenticator};
use polyplane_batteries::bootstrap::params;
use polyplane_ownership::DeriveParams;
use polyplane_registry::service_ranges::ServiceRanges;
use polyplane_registry::settings::Privileged;
use polyplane_registry::{KindTable, Registry, TokenIssuers};
use std::sync::Arc;

/// The settings of a plain root plane.
pub struct PlainRoot {
    /// The name of the server in upstream's metrics.
    pub identity: String,
    /// The CA of client certificates.
    pub clients: ClientCa,
    /// The certificates of that CA, PEM, as bootstrap objects show them; empty for none.
    pub client_ca_pem: String,
    /// The certificates of front proxies' CA, PEM; empty for none.
    pub front_proxy_ca_pem: String,
    /// The authenticators of bearer tokens before those of service accounts.
    pub bearer: Vec<Arc<dyn Authenticator>>,
    /// Whether nodes may use bootstrap tokens.
    pub takes_bootstrap_tokens: bool,
    /// The issuer of service account tokens; `None` if there is no key.
    pub issuer: Option<Arc<TokenIssuer>>,
    /// The kinds.
    pub kinds: Arc<KindTable>,
    /// The ranges of service addresses.
    pub service_ranges: ServiceRanges,
    /// The first and the last port of services on nodes.
    pub node_ports: (u16, u16),
    /// The seconds after which a watch without a time-out of its own ends at the earliest.
    pub watch_seconds_min: u32,
    /// Whether containers may be privileged.
    pub privileged: Privileged,
}

impl PlainRoot {
    /// Returns the authenticators of a plane's users, and the one of bearer tokens.
    pub fn authenticators(self: &Arc<Self>) -> (Arc<RootAuthenticators>, Arc<dyn Authenticator>) {
        let mut members = self.bearer.clone();
        if let Some(issuer) = &self.issuer {
            let tokens = AccountTokens::new(Arc::clone(issuer), Arc::default());
            members.push(Arc::new(tokens));
        }
        let bearer: Arc<dyn Authenticator> = Arc::new(UnionAuthenticator::new(members));
        let root = RootAuthenticators {
            clients: self.clients.clone(),
            bearer: Arc::clone(&bearer),
        };
        (Arc::new(root), bearer)
    }

    /// Returns the issuer for the registry.
    fn token_issuers(&self) -> Option<Arc<dyn TokenIssuers>> {
        let issuer = Arc::clone(self.issuer.as_ref()?);
        let verdicts = VerdictCache::default();
        Some(Arc::new(OneIssuer { issuer, verdicts }))
    }

    /// Returns what fills in the certificates in bootstrap objects.
    pub fn derived_params(&self) -> DeriveParams {
        let cas = [
            (params::PLANE_CLIENT_CA, self.client_ca_pem.clone()),
            (
                params::PLANE_FRONT_PROXY_CA,
                self.front_proxy_ca_pem.clone(),
            ),
        ];
        let cas: Vec<(String, String)> = cas
            .into_iter()
            .map(|(name, pem)| (name.to_owned(), pem))
            .collect();
        Arc::new(move |_: &str| cas.clone())
    }
}

/// Gives the registry the issuer of a plain root plane, or else those of all planes.
pub fn with_issuers(
    registry: Registry,
    plain: Option<&Arc<PlainRoot>>,
    tokens: Option<&Arc<PlaneTokens>>,
) -> Registry {
    let issuers = match plain {
        Some(plain) => plain.token_issuers(),
        None => tokens.map(|tokens| Arc::clone(tokens) as _),
    };
    match issuers {
        Some(issuers) => registry.with_tokens(issuers),
        None => registry,
    }
}

/// The issuer of a server with one plane.
struct OneIssuer {
    issuer: Arc<TokenIssuer>,
    verdicts: VerdictCache,
}

impl TokenIssuers for OneIssuer {
    fn issuer(&self, plane: &str) -> Option<Arc<TokenIssuer>> {
        (plane == polyplane_ownership::ROOT).then(|| Arc::clone(&self.issuer))
    }

    fn verify(&self, issuer: &TokenIssuer, token: &str) -> Result<Arc<VerifiedToken>, TokenFault> {
        self.verdicts.verify(issuer, token)
    }
}
