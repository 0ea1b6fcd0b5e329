//! TLS with kubelets and pods: who the server must be, and who this server is for it.

use std::fmt;
use std::sync::Arc;

use polyplane_pki::{CertificateUse, Expiries};
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// The certificates with which planes reach their kubelets.
#[derive(Clone, Debug)]
pub enum KubeletIdentity {
    /// All planes use the same. Each plane then reaches each kubelet that accepts it.
    Shared(Arc<KubeletTls>),
    /// Each plane uses a client certificate of its own CA, and its kubelets have certificates of its own
    /// CA for them.
    OfPlane,
}

/// What TLS with kubelets needs.
pub struct KubeletTls {
    /// The client certificate with its chain, and its key; `None` if kubelets are shown none.
    client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// The CAs of kubelets; `None` if each certificate will do.
    roots: Option<RootCertStore>,
    /// The certificates of these CAs.
    root_certificates: Vec<CertificateDer<'static>>,
}

/// The reason why there is no TLS with kubelets.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KubeletTlsError(
    /// The reason, as the client gets it.
    pub String,
);

impl KubeletTls {
    /// Reads the client certificate with its chain, its key, and the CAs of kubelets, all PEM. Without CAs each
    /// certificate of a kubelet will do.
    ///
    /// # Errors
    /// Returns an error if one of the texts does not contain what it should, or the key is of another
    /// certificate.
    pub fn from_pem(
        client: Option<(&[u8], &[u8])>,
        roots: Option<&[u8]>,
    ) -> Result<Self, KubeletTlsError> {
        let wrong =
            |what: &str| KubeletTlsError(format!("{what} in PEM form is missing or damaged"));
        let certificates = |pem: &[u8], what: &str| {
            let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
            all.ok()
                .filter(|all| !all.is_empty())
                .ok_or_else(|| wrong(what))
        };
        let client = client.map(|(chain, key)| {
            let chain = certificates(chain, "the client certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong("the client key"))?;
            Ok((chain, key))
        });
        let (mut store, mut root_certificates) = (RootCertStore::empty(), Vec::new());
        if let Some(roots) = roots {
            root_certificates = certificates(roots, "a certificate of the CA of kubelets")?;
            for root in &root_certificates {
                store.add(root.clone()).map_err(|error| {
                    KubeletTlsError(format!("the CA of kubelets cannot be used: {error}"))
                })?;
            }
        }
        let made = Self {
            client: client.transpose()?,
            roots: roots.map(|_| store),
            root_certificates,
        };
        made.config(true)?;
        Ok(made)
    }

    /// Records the ends of these certificates.
    pub(crate) fn record(&self, expiries: &Expiries) {
        let chain = self.client.as_ref().map(|(chain, _)| chain.as_slice());
        expiries.record(CertificateUse::KubeletClient, chain.unwrap_or_default());
        expiries.record(CertificateUse::KubeletCa, &self.root_certificates);
    }

    /// Returns the settings for a kubelet, whose certificate is verified unless the client does not want
    /// that.
    pub(super) fn config(&self, is_verified: bool) -> Result<ClientConfig, KubeletTlsError> {
        let unusable = |error| {
            KubeletTlsError(format!(
                "the client certificate for kubelets cannot be used: {error}"
            ))
        };
        let builder = match &self.roots {
            Some(roots) if is_verified => builder().with_root_certificates(roots.clone()),
            Some(_) | None => builder_for_any(),
        };
        let config = match &self.client {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()),
            None => Ok(builder.with_no_client_auth()),
        };
        config.map(of_http1).map_err(unusable)
    }
}

impl fmt::Debug for KubeletTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KubeletTls")
    }
}

/// Returns the settings for a server whose CA nobody knows, such as a pod. It gets no certificate.
pub(super) fn unverified() -> ClientConfig {
    of_http1(builder_for_any().with_no_client_auth())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
}

/// Returns the beginning of settings for which each certificate will do.
fn builder_for_any() -> rustls::ConfigBuilder<ClientConfig, WantsClientCert> {
    let verifier = Arc::new(AnyCertificate(provider()));
    builder()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
}

/// Only HTTP/1.1 connections can be upgraded.
fn of_http1(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Accepts each certificate of which the server has the key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
