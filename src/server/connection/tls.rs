//! TLS as this server speaks it.
//!
//! Clients are asked for a certificate without naming CAs, and only possession of its key is
//! checked: whose CA counts is known when the request names its plane.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use polyplane_auth::ClientChain;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use crate::pki::pair::Lookout;
use crate::pki::{Identity, Pki, PkiError, leaf_renewal_age};

/// The protocol name of HTTP/2 in the handshake.
pub(crate) const ALPN_H2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Why there is no TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The serving certificate was not issued.
    #[error("no serving certificate")]
    Certificate(#[source] PkiError),
    /// The library refuses key or configuration.
    #[error("the TLS configuration is refused")]
    Config(#[source] rustls::Error),
}

/// The configuration for listeners that serve `names` under the server's own CA.
///
/// # Errors
/// If no certificate can be issued for the names.
pub fn server_config(pki: Arc<Pki>, names: Vec<String>) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = RenewingCertificate::new(pki, names, Arc::clone(&provider))?;
    let verifier = PossessionOnly {
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}

/// The serving certificate; replaced by the first handshake after it has grown old, or after the
/// files it was read from changed.
struct RenewingCertificate {
    pki: Arc<Pki>,
    names: Vec<String>,
    provider: Arc<CryptoProvider>,
    /// There if the certificate was given as files.
    lookout: Option<Lookout>,
    current: ArcSwap<Issued>,
}

struct Issued {
    key: Arc<CertifiedKey>,
    at: Instant,
}

impl RenewingCertificate {
    fn new(
        pki: Arc<Pki>,
        names: Vec<String>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let lookout = pki.given_serving().map(|pair| Lookout::new(pair.paths()));
        let first = issue(&pki, &names, &provider)?;
        Ok(Self {
            lookout,
            pki,
            names,
            provider,
            current: ArcSwap::from_pointee(first),
        })
    }

    fn at_age(&self, age_max: Duration) -> Arc<CertifiedKey> {
        let current = self.current.load();
        let mut sight = None;
        match &self.lookout {
            Some(lookout) => {
                sight = lookout.changed();
                if sight.is_none() {
                    return Arc::clone(&current.key);
                }
            }
            None if current.at.elapsed() < age_max => return Arc::clone(&current.key),
            None => {}
        }
        // Two handshakes may both renew; either result serves.
        match issue(&self.pki, &self.names, &self.provider) {
            Ok(fresh) => {
                let key = Arc::clone(&fresh.key);
                self.current.store(Arc::new(fresh));
                if let (Some(lookout), Some(sight)) = (&self.lookout, sight) {
                    lookout.taken(sight);
                }
                key
            }
            Err(error) => {
                tracing::error!(%error, "the serving certificate was not renewed");
                Arc::clone(&current.key)
            }
        }
    }
}

fn issue(pki: &Pki, names: &[String], provider: &CryptoProvider) -> Result<Issued, TlsError> {
    let key = match pki.given_serving() {
        Some(pair) => pair.load(provider).map_err(TlsError::Certificate)?,
        None => {
            let issued = pki.issue_serving(names).map_err(TlsError::Certificate)?;
            let Identity { chain, key, .. } = issued;
            CertifiedKey::from_der(chain, key, provider).map_err(TlsError::Config)?
        }
    };
    Ok(Issued {
        key: Arc::new(key),
        at: Instant::now(),
    })
}

impl fmt::Debug for RenewingCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RenewingCertificate")
    }
}

impl ResolvesServerCert for RenewingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.at_age(leaf_renewal_age()))
    }
}

/// Refuses a chain that would be too much work for whoever judges it, or for those it is sent to.
///
/// # Errors
/// If there are too many certificates, or they are too long.
pub(crate) fn check_short(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), rustls::Error> {
    if ClientChain::is_short(leaf, intermediates) {
        return Ok(());
    }
    let count = intermediates.len() + 1;
    let why = format!("a chain of {count} certificates has too many of them, or they are too long");
    Err(rustls::Error::General(why))
}

/// Accepts any short client chain whose key the client holds; the chain is judged per plane.
#[derive(Debug)]
struct PossessionOnly {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for PossessionOnly {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_short(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_certificate_is_served_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let issuer = Pki::load_or_create(folder.path()).expect("created");
        let given = issuer
            .issue_serving(&["api.example.com".to_owned()])
            .expect("issued");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("serving.crt", &given.certificate_pem);
        write("serving.key", &given.key_pem);
        let pki = Arc::new(Pki::load_or_create(folder.path()).expect("loaded"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let names = vec!["localhost".to_owned()];
        let certificates = RenewingCertificate::new(pki, names, provider).expect("loaded");
        // Its age is the business of whoever gave it.
        assert_eq!(certificates.at_age(Duration::ZERO).cert, given.chain);
    }

    #[test]
    fn an_old_certificate_is_replaced_by_a_handshake() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Arc::new(Pki::load_or_create(folder.path()).expect("created"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let certificates =
            RenewingCertificate::new(pki, vec!["localhost".to_owned()], provider).expect("issued");
        let young = certificates.at_age(Duration::from_secs(3600));
        let again = certificates.at_age(Duration::from_secs(3600));
        assert!(Arc::ptr_eq(&young, &again));
        let renewed = certificates.at_age(Duration::ZERO);
        assert_ne!(young.cert, renewed.cert);
    }
}
