//! The keys of service account tokens in the PEM files that kube-apiserver's flags name: private
//! keys, public keys, and certificates for the keys in them.
//!
//! Invariant: a file is read as a whole or refused. A key of another kind than RSA and P-256 is an
//! error and not left out, because tokens that it has signed would be refused later without a reason.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RsaKeyPair,
};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::jws::{SigningKey, VerifyingKey};

/// The reason why a text holds no usable keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// There is no key in it.
    #[error("data does not contain any valid RSA or ECDSA public keys")]
    NoKey,
    /// There is no private key in it.
    #[error("data does not contain a valid RSA or ECDSA private key")]
    NoPrivateKey,
    /// A key is neither RSA with 2048 to 8192 bits nor ECDSA on P-256.
    #[error("it holds a key that is neither RSA with 2048 to 8192 bits nor ECDSA on P-256")]
    Unsupported,
}

/// Returns the private key of a text in PEM form.
///
/// # Errors
/// Returns an error if there is none, or it is of another kind than tokens are signed with.
pub fn signing_key(pem: &[u8]) -> Result<SigningKey, KeyFileError> {
    for section in sections(pem) {
        if let Some(key) = private(&section)? {
            return Ok(key);
        }
    }
    Err(KeyFileError::NoPrivateKey)
}

/// Returns all public keys of a text in PEM form, those of private keys and certificates included.
///
/// # Errors
/// Returns an error if there is none, or one is of another kind than tokens are signed with.
pub fn verifying_keys(pem: &[u8]) -> Result<Vec<VerifyingKey>, KeyFileError> {
    let mut keys = Vec::new();
    for section in sections(pem) {
        if let Some(key) = private(&section)? {
            keys.push(key.into_public());
        } else if let Some(key) = public(&section)? {
            keys.push(key);
        }
    }
    match keys.is_empty() {
        true => Err(KeyFileError::NoKey),
        false => Ok(keys),
    }
}

type Section = (SectionKind, Vec<u8>);

fn sections(pem: &[u8]) -> impl Iterator<Item = Section> {
    // What is no section, such as the parameters of a curve, stands beside keys in some files.
    Section::pem_slice_iter(pem).filter_map(Result::ok)
}

fn private((kind, der): &Section) -> Result<Option<SigningKey>, KeyFileError> {
    if !matches!(
        kind,
        SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey
    ) {
        return Ok(None);
    }
    let rsa = RsaKeyPair::from_pkcs8(der).or_else(|_| RsaKeyPair::from_der(der));
    if let Ok(pair) = rsa {
        return SigningKey::rs256(pair)
            .map(Some)
            .map_err(|_| KeyFileError::Unsupported);
    }
    let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der);
    let pair = pair.map_err(|_| KeyFileError::Unsupported)?;
    let point = pair.public_key().as_ref().to_vec();
    let key = SigningKey::new(pair, &point).map_err(|_| KeyFileError::Unsupported)?;
    Ok(Some(key))
}

fn public((kind, der): &Section) -> Result<Option<VerifyingKey>, KeyFileError> {
    match kind {
        SectionKind::Certificate => {
            let (_, certificate) =
                X509Certificate::from_der(der).map_err(|_| KeyFileError::Unsupported)?;
            of_info(certificate.public_key()).map(Some)
        }
        SectionKind::PublicKey => {
            let (_, info) =
                SubjectPublicKeyInfo::from_der(der).map_err(|_| KeyFileError::Unsupported)?;
            of_info(&info).map(Some)
        }
        _ => Ok(None),
    }
}

fn of_info(info: &SubjectPublicKeyInfo<'_>) -> Result<VerifyingKey, KeyFileError> {
    let key = match info.parsed() {
        Ok(PublicKey::RSA(key)) => VerifyingKey::rs256(key.modulus, key.exponent),
        Ok(PublicKey::EC(point)) => VerifyingKey::es256(point.data()),
        Ok(_) | Err(_) => return Err(KeyFileError::Unsupported),
    };
    key.map_err(|_| KeyFileError::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jws::CompactJws;

    #[test]
    fn what_a_file_signs_the_public_half_of_another_verifies() {
        let p256 = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec!["x".to_owned()])
            .and_then(|params| params.self_signed(&p256))
            .expect("a certificate");
        let rsa = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("a key");
        let p256_pem = p256.serialize_pem();
        for (private, public, algorithm) in [
            (&p256_pem, certificate.pem(), "ES256"),
            (&rsa.serialize_pem(), rsa.public_key_pem(), "RS256"),
        ] {
            let key = signing_key(private.as_bytes()).expect("a private key");
            let token = key.sign(br#"{"sub":"x"}"#).expect("signed");
            let jws = CompactJws::parse(&token).expect("a token");
            for pem in [private, &public] {
                let keys = verifying_keys(pem.as_bytes()).expect("public keys");
                assert_eq!(keys.len(), 1);
                assert_eq!(keys[0].algorithm().name(), algorithm);
                assert_eq!(jws.key_id(), Some(keys[0].id()));
                jws.verify(&keys[0]).expect("its key");
            }
            let both = format!("{public}{p256_pem}");
            assert_eq!(verifying_keys(both.as_bytes()).expect("two keys").len(), 2);
        }
    }

    #[test]
    fn a_file_without_a_usable_key_is_refused() {
        for text in [
            &b""[..],
            b"nonsense",
            b"-----BEGIN JUNK-----\nAAAA\n-----END JUNK-----\n",
        ] {
            assert_eq!(verifying_keys(text).err(), Some(KeyFileError::NoKey));
            assert_eq!(signing_key(text).err(), Some(KeyFileError::NoPrivateKey));
        }
        let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        for pem in [other.serialize_pem(), other.public_key_pem()] {
            let refused = verifying_keys(pem.as_bytes()).err();
            assert_eq!(refused, Some(KeyFileError::Unsupported));
        }
    }
}
