//! Serving certificates for some of the names that clients ask for, which the operator gives beside the one
//! for all others.
//!
//! As upstream, a name that the operator gives decides before the names in certificates, an earlier
//! certificate before a later one, and the name itself before one with `*` in the place of its first label.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::PkiError;
use crate::expiry::{CertificateUse, Expiries, ExpiryLog};
use crate::pair::{Lookout, PairFiles};
use crate::trouble::Trouble;

/// The files of a certificate and its key, and the names for which it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPair {
    /// The names; empty for those in the certificate.
    pub names: Vec<String>,
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

/// The certificates in the order in which the operator gives them.
pub(crate) struct NamedCertificates(Vec<NamedCertificate>);

struct NamedCertificate {
    /// The names that the operator gives.
    names: Vec<String>,
    files: PairFiles,
    lookout: Lookout,
    trouble: Trouble,
    current: ArcSwap<Loaded>,
    expiry: ExpiryLog,
}

struct Loaded {
    key: Arc<CertifiedKey>,
    /// The names in the certificate, unless the operator gives others.
    names: Vec<String>,
}

impl NamedCertificates {
    /// Reads all files.
    ///
    /// # Errors
    /// Returns an error about the first file that cannot be used.
    pub(crate) fn load(
        pairs: &[NamedPair],
        provider: &CryptoProvider,
        expiries: &Arc<Expiries>,
    ) -> Result<Self, PkiError> {
        let loaded = pairs.iter().enumerate().map(|(place, pair)| {
            let files = PairFiles::given(pair.certificate.clone(), pair.key.clone());
            // Before the files are read, so that no change is missed.
            let lookout = Lookout::new(files.paths());
            let names = pair.names.iter().map(|name| name.to_lowercase());
            let names: Vec<String> = names.collect();
            let first = load(&files, &names, provider)?;
            let expiry = ExpiryLog::new(CertificateUse::SniServing, place, expiries);
            expiry.look_anew(&first.key.cert);
            Ok(NamedCertificate {
                names,
                files,
                lookout,
                trouble: Trouble::default(),
                current: ArcSwap::from_pointee(first),
                expiry,
            })
        });
        loaded.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the certificate for a name, if there is one.
    pub(crate) fn find(&self, name: &str, provider: &CryptoProvider) -> Option<Arc<CertifiedKey>> {
        if self.0.is_empty() {
            return None;
        }
        for one in &self.0 {
            one.refresh(provider);
        }
        let name = name.to_lowercase();
        let any = name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let any = any.unwrap_or_else(|| "*".to_owned());
        let mut wanted = [name, any].into_iter();
        wanted.find_map(|name| {
            let by_operator = self.0.iter().find(|one| one.names.contains(&name));
            let by_operator = by_operator.map(|one| one.current.load_full());
            let by_certificate = || {
                let mut all = self.0.iter().map(|one| one.current.load_full());
                all.find(|loaded| loaded.names.contains(&name))
            };
            let found = by_operator.or_else(by_certificate)?;
            Some(Arc::clone(&found.key))
        })
    }
}

impl NamedCertificate {
    /// Reads the files again if they have changed. A pair that does not fit replaces none that does.
    fn refresh(&self, provider: &CryptoProvider) {
        let Some(sight) = self.lookout.changed() else {
            return self.expiry.look(&self.current.load().key.cert);
        };
        match load(&self.files, &self.names, provider) {
            Ok(fresh) => {
                self.trouble.end();
                self.expiry.look_anew(&fresh.key.cert);
                self.current.store(Arc::new(fresh));
                self.lookout.taken(sight);
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                if self.trouble.is_news(error) {
                    tracing::error!(error, "a serving certificate was not renewed");
                }
            }
        }
    }
}

fn load(
    files: &PairFiles,
    names: &[String],
    provider: &CryptoProvider,
) -> Result<Loaded, PkiError> {
    let key = files.load(provider)?;
    Ok(Loaded {
        names: match names {
            [] => names_in(&key),
            _ => Vec::new(),
        },
        key: Arc::new(key),
    })
}

/// Returns the host names in a certificate. Its addresses are left out, because a client cannot ask for one.
fn names_in(key: &CertifiedKey) -> Vec<String> {
    let leaf = key.cert.first();
    let parsed = leaf.and_then(|leaf| X509Certificate::from_der(leaf).ok());
    let Some((_, certificate)) = parsed else {
        return Vec::new();
    };
    let common = certificate.subject().iter_common_name();
    let common = common.filter_map(|name| name.as_str().ok());
    let common = common.filter(|name| name.parse::<std::net::IpAddr>().is_err());
    let mut names: Vec<String> = common.map(str::to_lowercase).collect();
    if let Ok(Some(others)) = certificate.subject_alternative_name() {
        names.extend(
            others
                .value
                .general_names
                .iter()
                .filter_map(|name| match name {
                    GeneralName::DNSName(name) => Some(name.to_lowercase()),
                    _ => None,
                }),
        );
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pki;
    use std::path::Path;

    fn pair(pki: &Pki, folder: &Path, stem: &str, names: &[&str], given: &[&str]) -> NamedPair {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let names: Vec<String> = owned(names);
        let issued = pki.issue_serving(&names).expect("issued");
        let (certificate, key) = (
            folder.join(format!("{stem}.crt")),
            folder.join(format!("{stem}.key")),
        );
        std::fs::write(&certificate, &issued.certificate_pem).expect("written");
        std::fs::write(&key, &issued.key_pem).expect("written");
        NamedPair {
            names: owned(given),
            certificate,
            key,
        }
    }

    #[test]
    fn a_client_gets_the_certificate_of_the_name_it_asks_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::in_memory(None).expect("made");
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let make = |stem, names, given| pair(&pki, folder.path(), stem, names, given);
        let pairs = [
            make("one", &["a.test", "*.b.test"], &[]),
            make("two", &["a.test", "c.test"], &[]),
            make("three", &["x.test"], &["C.test", "*.d.test"]),
        ];
        let expiries = Arc::<Expiries>::default();
        let certificates = NamedCertificates::load(&pairs, &provider, &expiries).expect("loaded");
        let served = |name: &str| {
            let found = certificates.find(name, &provider)?;
            let mut all = certificates.0.iter();
            all.position(|one| Arc::ptr_eq(&one.current.load().key, &found))
        };
        for (name, place) in [
            ("a.test", Some(0)),
            ("A.TEST", Some(0)),
            ("x.b.test", Some(0)),
            ("c.test", Some(2)),
            ("x.d.test", Some(2)),
            ("x.y.d.test", None),
            ("x.test", None),
            ("localhost", None),
        ] {
            assert_eq!(served(name), place, "{name}");
        }
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::in_memory(None).expect("made");
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let one = pair(&pki, folder.path(), "one", &["a.test"], &[]);
        let two = pair(&pki, folder.path(), "two", &["a.test"], &[]);
        let mixed = NamedPair {
            key: two.key,
            ..one
        };
        assert!(NamedCertificates::load(&[mixed], &provider, &Arc::default()).is_err());
    }
}
