//! Certificate signing requests: what a certificate that answers one says.
//!
//! This module does not know who may have the certificate, and does not check the request's
//! signature.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::leaf::{AlternativeName, COMMON_NAME, ORGANIZATION};

/// The attributes of a subject that a certificate takes over, in the order in which Go writes them,
/// with the form in which the parser names them. Any other, such as a user's uid, is dropped, as
/// upstream drops it.
const ATTRIBUTES: [(&str, &[u64]); 9] = [
    ("2.5.4.6", &[2, 5, 4, 6]),
    ("2.5.4.10", ORGANIZATION),
    ("2.5.4.11", &[2, 5, 4, 11]),
    ("2.5.4.7", &[2, 5, 4, 7]),
    ("2.5.4.8", &[2, 5, 4, 8]),
    ("2.5.4.9", &[2, 5, 4, 9]),
    ("2.5.4.17", &[2, 5, 4, 17]),
    ("2.5.4.3", COMMON_NAME),
    ("2.5.4.5", &[2, 5, 4, 5]),
];
/// The attributes of which the last one counts; of the others each.
const SINGLE: [&str; 2] = ["2.5.4.3", "2.5.4.5"];

/// A certificate signing request.
#[derive(Clone, Debug)]
pub struct SigningRequest {
    public_key: Vec<u8>,
    /// Positions in [`ATTRIBUTES`] with the values.
    subject: Vec<(usize, String)>,
    names: Vec<AlternativeName>,
}

impl SigningRequest {
    /// Reads a request in DER form; returns `None` if it is damaged.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let info = &request.certification_request_info;
        let mut subject = Vec::new();
        for (at, (id, _)) in ATTRIBUTES.iter().enumerate() {
            let of_kind = info.subject.iter_attributes();
            let of_kind = of_kind.filter(|one| one.attr_type().to_id_string() == *id);
            let values = of_kind.filter_map(|one| one.as_str().ok());
            let mut values: Vec<_> = values.map(|value| (at, value.to_owned())).collect();
            if SINGLE.contains(id) {
                values.drain(..values.len().saturating_sub(1));
            }
            values.retain(|(_, value)| !(SINGLE.contains(id) && value.is_empty()));
            subject.append(&mut values);
        }
        let mut names = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(found) = extension else {
                continue;
            };
            for name in &found.general_names {
                names.extend(alternative_name(name)?);
            }
        }
        names.sort_by_key(position);
        Some(Self {
            public_key: info.subject_pki.raw.to_vec(),
            subject,
            names,
        })
    }

    /// Returns the requested name, or an empty text.
    pub fn common_name(&self) -> &str {
        let mut names = self.values(COMMON_NAME);
        names.next().unwrap_or("")
    }

    /// Returns the requested organisations, which are the groups of a user.
    pub fn organizations(&self) -> impl Iterator<Item = &str> {
        self.values(ORGANIZATION)
    }

    /// Returns the requested alternative names.
    pub fn names(&self) -> &[AlternativeName] {
        &self.names
    }

    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    pub(crate) fn subject(&self) -> Vec<(&'static [u64], &str)> {
        let attributes = self.subject.iter();
        attributes
            .map(|(at, value)| (ATTRIBUTES[*at].1, value.as_str()))
            .collect()
    }

    fn values(&self, id: &'static [u64]) -> impl Iterator<Item = &str> {
        let found = self.subject.iter();
        found
            .filter(move |(at, _)| ATTRIBUTES[*at].1 == id)
            .map(|(_, value)| value.as_str())
    }
}

/// Returns a name of a kind that certificates take over, nothing for one of another kind, and `None`
/// if it is damaged.
fn alternative_name(name: &GeneralName<'_>) -> Option<Option<AlternativeName>> {
    let text = |text: &str| text.is_ascii().then(|| text.to_owned());
    Some(Some(match name {
        GeneralName::DNSName(name) => AlternativeName::Dns(text(name)?),
        GeneralName::RFC822Name(name) => AlternativeName::Email(text(name)?),
        GeneralName::URI(name) => AlternativeName::Uri(text(name)?),
        GeneralName::IPAddress(bytes) if matches!(bytes.len(), 4 | 16) => {
            AlternativeName::Address(bytes.to_vec())
        }
        GeneralName::IPAddress(_) | GeneralName::Invalid(..) => return None,
        _ => return Some(None),
    }))
}

/// Returns the position of a kind of names in a certificate that Go writes.
const fn position(name: &AlternativeName) -> u8 {
    match name {
        AlternativeName::Dns(_) => 0,
        AlternativeName::Email(_) => 1,
        AlternativeName::Address(_) => 2,
        AlternativeName::Uri(_) => 3,
    }
}
