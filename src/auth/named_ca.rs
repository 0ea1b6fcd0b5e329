//! The client CAs that a plane names, as opposed to those whose keys the server derives.
//!
//! Whoever may give credentials of a plane decides which CAs it names, so such a CA may put its users into
//! any group, `system:masters` included: that means something in this plane alone. The names that the
//! server itself gives stay its own.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::user::UserInfo;
use crate::x509::{Anchor, X509Error};

/// Returns why the server alone gives a user's name or one of its groups; `None` if it does not.
pub type ReservedUser = fn(&UserInfo) -> Option<String>;

/// The reason why a text is no client CA.
#[derive(Debug, thiserror::Error)]
pub enum NamedCaError {
    /// The text is not one certificate in PEM form.
    #[error("must be one certificate in PEM form, {0}")]
    NotOne(&'static str),
    /// The certificate cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// The certificate is not that of a CA.
    #[error("the certificate is not that of a CA: it lacks the basic constraint CA:TRUE")]
    NotCa,
    /// The certificate's key may not sign certificates.
    #[error("the certificate's key usage does not include the signing of certificates")]
    MayNotSign,
    /// The certificate cannot be a root of trust.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[source] X509Error),
}

/// A client CA that a plane names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCa {
    certificate: CertificateDer<'static>,
    begins: SystemTime,
    ends: SystemTime,
}

impl NamedCa {
    /// Reads a CA's certificate in PEM form.
    ///
    /// # Errors
    /// Returns an error if the text is anything else.
    pub fn read(pem: &str) -> Result<Self, NamedCaError> {
        let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.as_bytes());
        let found = match (sections.next(), sections.next()) {
            (Some(Ok((SectionKind::Certificate, der))), None) => der,
            (Some(Ok((SectionKind::Certificate, _))), Some(_)) => {
                return Err(NamedCaError::NotOne(
                    "and holds more; name each CA by itself",
                ));
            }
            (Some(Ok(_)), _) => return Err(NamedCaError::NotOne("and holds something else")),
            (Some(Err(_)) | None, _) => return Err(NamedCaError::NotOne("and holds none")),
        };
        let (rest, parsed) =
            X509Certificate::from_der(&found).map_err(|_| NamedCaError::Unreadable)?;
        if !rest.is_empty() {
            return Err(NamedCaError::Unreadable);
        }
        let constraints = parsed.basic_constraints().ok().flatten();
        if !constraints.is_some_and(|constraints| constraints.value.ca) {
            return Err(NamedCaError::NotCa);
        }
        let usage = parsed.key_usage().map_err(|_| NamedCaError::Unreadable)?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(NamedCaError::MayNotSign);
        }
        let validity = parsed.validity();
        let named = Self {
            begins: time(validity.not_before.timestamp()),
            ends: time(validity.not_after.timestamp().saturating_add(1)),
            certificate: CertificateDer::from(found),
        };
        named.anchor().map_err(NamedCaError::Unusable)?;
        Ok(named)
    }

    /// Returns the certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns whether the certificate is valid at `now`.
    pub fn is_valid(&self, now: SystemTime) -> bool {
        self.begins <= now && now < self.ends
    }

    /// Returns the first second of the certificate's validity, and the first one after it.
    pub fn dates(&self) -> (SystemTime, SystemTime) {
        (self.begins, self.ends)
    }

    /// Returns the CA as a root of trust, which is accepted while its certificate is valid.
    ///
    /// # Errors
    /// Returns an error if the TLS library cannot use the certificate. [`Self::read`] has checked that.
    pub fn anchor(&self) -> Result<Anchor, X509Error> {
        let anchor = Anchor::new(&self.certificate, Some(self.ends))?;
        Ok(anchor.accepted_from(self.begins))
    }
}

fn time(seconds: i64) -> SystemTime {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    // A date beyond what the clock can show never comes.
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The client CAs that one plane names.
pub struct NamedClients {
    /// The CAs.
    pub anchors: Vec<Anchor>,
    /// Finds the users whom no such CA proves.
    pub reserved: ReservedUser,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};

    fn pem(change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::new(Vec::new()).expect("no names to reject");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().expect("keys are generated");
        params.self_signed(&key).expect("signed").pem()
    }

    #[test]
    fn a_ca_is_one_certificate_that_may_sign() {
        let good = pem(|_| {});
        let named = NamedCa::read(&good).expect("a CA");
        assert!(named.is_valid(SystemTime::now()));
        assert!(NamedCa::read(&format!("a comment\n{good}\n")).is_ok());
        let leaf = pem(|params| params.is_ca = IsCa::NoCa);
        let explicit = pem(|params| params.is_ca = IsCa::ExplicitNoCa);
        let signs_not = pem(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
        let key = KeyPair::generate().expect("a key").serialize_pem();
        let cut = good.replacen("MI", "MA", 1);
        for (text, words) in [
            ("", "and holds none"),
            ("nonsense", "and holds none"),
            (key.as_str(), "and holds something else"),
            (&format!("{good}{good}"), "and holds more"),
            (&format!("{good}{key}"), "and holds more"),
            (&leaf, "CA:TRUE"),
            (&explicit, "CA:TRUE"),
            (&signs_not, "signing of certificates"),
            (&cut, "cannot be read"),
        ] {
            let said = NamedCa::read(text).expect_err("refused").to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn a_ca_is_accepted_while_its_certificate_is_valid() {
        let named = NamedCa::read(&pem(|params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        }));
        let named = named.expect("a CA");
        let (begins, ends) = named.dates();
        let anchor = named.anchor().expect("usable");
        let second = Duration::from_secs(1);
        for (now, accepted) in [
            (begins - second, false),
            (begins, true),
            (ends - second, true),
            (ends, false),
        ] {
            assert_eq!(named.is_valid(now), accepted);
            assert_eq!(anchor.is_accepted(now), accepted);
        }
    }
}
