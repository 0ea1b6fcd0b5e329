//! The names of the CAs of peer certificates, by which replicas compare whom they trust before they connect.
//!
//! A CA is named by the SHA-256 of its public key, because that and its subject are what a certificate is
//! verified by: a CA certificate that was renewed with its key has the same name. The command
//! `openssl x509 -in peer-ca.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum` shows it.

use aws_lc_rs::digest::{SHA256, digest};
use rustls::crypto::CryptoProvider;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::peer::is_signed_by;

/// Bytes of the hash in a name. With fewer, two CAs could have one name by chance.
const NAME_BYTES: usize = 8;
/// The CAs that are named at most. With more, the record of a replica would become long.
const NAMED_MAX: usize = 32;

/// The CAs of a replica's peer certificates, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCas {
    /// The CA that has signed the replica's own certificate; `None` if it is not among the trusted ones.
    pub issuer: Option<String>,
    /// The CAs whose certificates the replica accepts.
    pub trusted: Vec<String>,
}

impl PeerCas {
    /// Names the CAs by which `chain` and the certificates of others are verified; `None` if there are too
    /// many, or one cannot be read.
    pub(crate) fn of(
        chain: &[CertificateDer<'static>],
        roots: &[CertificateDer<'static>],
        provider: &CryptoProvider,
    ) -> Option<Self> {
        if roots.len() > NAMED_MAX {
            return None;
        }
        let names = roots.iter().map(name);
        let trusted: Vec<String> = names.collect::<Option<_>>()?;
        let signs =
            |root: &&CertificateDer<'static>| is_signed_by(chain, vec![(*root).clone()], provider);
        let issuer = roots.iter().find(signs).and_then(name);
        Some(Self { issuer, trusted })
    }
}

fn name(certificate: &CertificateDer<'static>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let hash = digest(&SHA256, parsed.public_key().raw);
    let bytes = hash.as_ref().iter().take(NAME_BYTES);
    Some(bytes.map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, PeerTls};

    #[test]
    fn replicas_name_the_cas_of_their_files() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let cas = |folder: &tempfile::TempDir| {
            let tls = PeerTls::load_or_create(folder.path(), "polyplane-0").expect("usable");
            tls.current().cas().cloned().expect("they can be named")
        };
        let (first, second) = (cas(&one), cas(&other));
        assert_eq!(first.trusted.len(), 1);
        assert_eq!(first.issuer.as_ref(), first.trusted.first());
        assert_eq!(first.trusted[0].len(), 2 * NAME_BYTES);
        assert_ne!(first, second);
        assert_eq!(cas(&one), first, "another certificate of the CA");
    }

    #[test]
    fn the_issuer_is_the_ca_of_a_bundle_that_has_signed_the_certificate() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [one, other] = [&one, &other].map(|folder| {
            Authority::load_or_create(folder.path(), "peer-ca", "polyplane-peer-ca").expect("made")
        });
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let chain = crate::peer::issue(&one, "polyplane-0")
            .expect("issued")
            .chain;
        let of = |roots: &[&Authority]| {
            let roots: Vec<_> = roots.iter().map(|ca| ca.root.clone()).collect();
            PeerCas::of(&chain, &roots, &provider).expect("they can be named")
        };
        let both = of(&[&other, &one]);
        assert_eq!(both.trusted.len(), 2);
        assert_eq!(both.issuer.as_ref(), both.trusted.last());
        assert_eq!(of(&[&other]).issuer, None);
    }
}
