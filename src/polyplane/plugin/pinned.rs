//! A TLS verifier that trusts one given certificate, whatever names it has and whoever signed it.
//!
//! `polyplane drain` needs it to reach the replica of its own machine at 127.0.0.1: an operator's
//! serving certificate has only the names by which clients reach the server, and any CA may have
//! signed it, so neither its names nor the ring's CA prove it. The replica's folder contains the
//! same certificate.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;

/// Trusts the chains that end in `roots`, and the certificate `own`.
///
/// # Errors
/// Returns an error if no verifier can be built from the roots.
pub fn verifier(
    roots: RootCertStore,
    own: CertificateDer<'static>,
) -> anyhow::Result<Arc<dyn ServerCertVerifier>> {
    let by_roots = WebPkiServerVerifier::builder(Arc::new(roots)).build()?;
    Ok(Arc::new(Pinned { own, by_roots }))
}

#[derive(Debug)]
struct Pinned {
    own: CertificateDer<'static>,
    by_roots: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The handshake's signature, checked below, shows that the server has the key.
        if *end_entity == self.own {
            return Ok(ServerCertVerified::assertion());
        }
        self.by_roots
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_roots
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_roots
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_roots.supported_verify_schemes()
    }
}
