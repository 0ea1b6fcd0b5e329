//! The serving certificate, which renews itself during handshakes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::expiry::{CertificateUse, ExpiryLog};
use crate::named::NamedCertificates;
use crate::pair::Lookout;
use crate::trouble::Trouble;
use crate::{Identity, Pki, PkiError, leaf_renewal_age};

/// The reason why TLS for clients cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The serving certificate was not issued.
    #[error("cannot load or issue the serving certificate")]
    Certificate(#[source] PkiError),
    /// The TLS library refuses the key or the configuration.
    #[error("the TLS configuration is refused")]
    Config(#[source] rustls::Error),
}

/// The serving certificate. The first handshake after it has become old, or after its files have
/// changed, replaces it.
pub struct RenewingCertificate {
    pki: Arc<Pki>,
    names: Vec<String>,
    provider: Arc<CryptoProvider>,
    /// Detects changes of the files if the certificate was given as files.
    lookout: Option<Lookout>,
    trouble: Trouble,
    current: ArcSwap<Issued>,
    expiry: ExpiryLog,
    named: NamedCertificates,
}

struct Issued {
    key: Arc<CertifiedKey>,
    at: Instant,
}

impl RenewingCertificate {
    /// Reads or issues the certificate for `names`.
    ///
    /// # Errors
    /// Returns an error if no certificate can be issued for the names, or the given one cannot be
    /// used.
    pub fn new(
        pki: Arc<Pki>,
        names: Vec<String>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let lookout = pki.given_serving().map(|pair| Lookout::new(pair.paths()));
        let first = issue(&pki, &names, &provider)?;
        let named = NamedCertificates::load(pki.named_serving(), &provider, pki.expiries());
        let expiry = ExpiryLog::new(CertificateUse::Serving, 0, pki.expiries());
        expiry.look_anew(&first.key.cert);
        Ok(Self {
            lookout,
            trouble: Trouble::default(),
            pki,
            names,
            provider,
            current: ArcSwap::from_pointee(first),
            expiry,
            named: named.map_err(TlsError::Certificate)?,
        })
    }

    fn at_age(&self, age_max: Duration) -> Arc<CertifiedKey> {
        let current = self.current.load();
        self.expiry.look(&current.key.cert);
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
        // Two handshakes may both renew the certificate; either result is valid.
        match issue(&self.pki, &self.names, &self.provider) {
            Ok(fresh) => {
                let key = Arc::clone(&fresh.key);
                self.trouble.end();
                self.expiry.look_anew(&key.cert);
                self.current.store(Arc::new(fresh));
                if let (Some(lookout), Some(sight)) = (&self.lookout, sight) {
                    lookout.taken(sight);
                }
                key
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                if self.trouble.is_news(error) {
                    tracing::error!(error, "the serving certificate was not renewed");
                }
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
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        if let Some(named) = name.and_then(|name| self.named.find(name, &self.provider)) {
            return Some(named);
        }
        Some(self.at_age(leaf_renewal_age()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateEnds;

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
        // A given certificate is not renewed by age: that is its provider's task.
        assert_eq!(certificates.at_age(Duration::ZERO).cert, given.chain);
    }

    #[test]
    fn the_end_of_what_is_served_is_recorded_at_first_and_after_a_renewal() {
        let pki = Arc::new(Pki::in_memory(None).expect("made"));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let names = vec!["localhost".to_owned()];
        let certificates =
            RenewingCertificate::new(Arc::clone(&pki), names, provider).expect("issued");
        let is_recorded = || {
            let mut ends = CertificateEnds::new();
            pki.expiries().add_to(&mut ends);
            ends.contains_key(&(CertificateUse::Serving, "polyplane".to_owned()))
        };
        assert!(is_recorded());
        pki.expiries().record(CertificateUse::Serving, &[]);
        certificates.at_age(Duration::from_secs(3600));
        assert!(!is_recorded(), "nothing new was issued");
        certificates.at_age(Duration::ZERO);
        assert!(is_recorded());
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
