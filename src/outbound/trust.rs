//! Whom a call trusts, and as whom it comes: TLS.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// A client certificate with its key.
pub struct ClientIdentity {
    /// The chain, the leaf first, PEM.
    pub certificate_pem: Vec<u8>,
    /// The key, PEM.
    pub key_pem: Vec<u8>,
}

/// The certificates or the key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The bundle has no certificate.
    #[error("the CA bundle has no certificate that can be used")]
    Bundle,
    /// The client certificate and its key are no pair.
    #[error("the client certificate and its key cannot be used: {0}")]
    Identity(String),
    /// The server name is no name.
    #[error("{0:?} is no name of a server")]
    ServerName(String),
}

/// The settings of TLS for some targets.
#[derive(Clone)]
pub struct Trust {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server_name: Option<ServerName<'static>>,
}

impl Trust {
    /// Trusts the CAs of a bundle, PEM, or those of the system without one, and comes with a client
    /// certificate if there is one.
    ///
    /// # Errors
    /// Returns an error if the bundle has no certificate, or the identity is no pair.
    pub fn new(
        bundle: Option<&[u8]>,
        identity: Option<&ClientIdentity>,
    ) -> Result<Self, TrustError> {
        let roots = match bundle {
            Some(pem) => Arc::new(bundle_roots(pem)?),
            None => system_roots(),
        };
        // A provider that is named: the process may have none by default.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has the versions of TLS");
        // The system may have no roots: then every server is refused, and not the configuration.
        let builder =
            match WebPkiServerVerifier::builder_with_provider(roots.clone(), provider).build() {
                Ok(verifier) => builder.with_webpki_verifier(verifier),
                Err(_) => builder.with_root_certificates(roots),
            };
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let wrong = |why: &dyn std::fmt::Display| TrustError::Identity(why.to_string());
                let chain: Result<Vec<_>, _> =
                    CertificateDer::pem_slice_iter(&identity.certificate_pem).collect();
                let chain = chain.map_err(|error| wrong(&error))?;
                let key = PrivateKeyDer::from_pem_slice(&identity.key_pem);
                let key = key.map_err(|error| wrong(&error))?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| wrong(&error))?
            }
        };
        Ok(Self {
            config: Arc::new(config),
            server_name: None,
        })
    }

    /// Expects a name in the server's certificate other than the one in the URL.
    ///
    /// # Errors
    /// Returns an error if it is no name.
    pub fn expecting(mut self, name: &str) -> Result<Self, TrustError> {
        let parsed = ServerName::try_from(name.to_owned());
        self.server_name = Some(parsed.map_err(|_| TrustError::ServerName(name.to_owned()))?);
        Ok(self)
    }
}

fn bundle_roots(pem: &[u8]) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| TrustError::Bundle)?;
        roots.add(certificate).map_err(|_| TrustError::Bundle)?;
    }
    match roots.is_empty() {
        true => Err(TrustError::Bundle),
        false => Ok(roots),
    }
}

/// Returns the CAs of the system, which are read once.
fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    Arc::clone(roots)
}
