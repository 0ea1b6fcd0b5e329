//! The TLS settings of this server.
//!
//! The server requests a client certificate without naming CAs, unless it has one plane, and checks only that the client
//! holds its key. Which CA counts is known when the request names its plane.

use std::sync::Arc;

use polyplane_pki::{Pki, RenewingCertificate, TlsError, check_short};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

/// The protocol name of HTTP/2 in the handshake.
pub(crate) const ALPN_H2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Returns the configuration for listeners that serve `names` under the server's own CA.
///
/// # Errors
/// Returns an error if no certificate can be issued for the names.
pub(crate) fn server_config(
    pki: Arc<Pki>,
    names: Vec<String>,
    client_cas: Vec<DistinguishedName>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = RenewingCertificate::new(pki, names, Arc::clone(&provider))?;
    let verifier = PossessionOnly {
        algorithms: provider.signature_verification_algorithms,
        client_cas,
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

/// Accepts any short client chain whose key the client holds; the chain is judged per plane.
#[derive(Debug)]
struct PossessionOnly {
    algorithms: WebPkiSupportedAlgorithms,
    /// The CAs that the server names; none of many planes.
    client_cas: Vec<DistinguishedName>,
}

impl ClientCertVerifier for PossessionOnly {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.client_cas
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
