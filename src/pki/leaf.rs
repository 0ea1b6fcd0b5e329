//! Encodes the certificates that a plane's CAs sign.
//!
//! The library that encodes all other certificates here allows one attribute of a kind in a subject,
//! and a user has any number of groups. This module knows the form of a certificate alone: what
//! goes into it and who may have it is decided elsewhere.

use std::time::SystemTime;

use polyplane_auth::{RENEWAL_EXTENSION, Renewal};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;
use yasna::models::{GeneralizedTime, ObjectIdentifier, UTCTime};
use yasna::{DERWriter, DERWriterSeq, Tag};

/// The year from which on RFC 5280 wants dates with four digits of the year.
const LONG_DATES_FROM: u64 = 2_524_608_000;
/// The attribute of a subject that contains the name.
pub(crate) const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
/// The attribute of a subject that contains an organisation.
pub(crate) const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
/// The attribute of a subject that contains the user's uid.
pub(crate) const UID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];
/// The tag of an object identifier.
const OID_TAG: u8 = 0x06;
const ED25519: &[u64] = &[1, 3, 101, 112];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];

/// What a certified key may be used for. No certificate here may sign others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usages {
    /// To sign, as in a handshake.
    pub digital_signature: bool,
    /// To encrypt a key, which only RSA does.
    pub key_encipherment: bool,
    /// To prove a client.
    pub client_auth: bool,
    /// To prove a server.
    pub server_auth: bool,
}

impl Usages {
    /// Those of a client.
    pub(crate) const CLIENT: Self = Self {
        digital_signature: true,
        key_encipherment: false,
        client_auth: true,
        server_auth: false,
    };
}

/// Another name of whom a certificate proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlternativeName {
    /// A host name.
    Dns(String),
    /// An address of electronic mail.
    Email(String),
    /// The 4 or 16 bytes of an address.
    Address(Vec<u8>),
    /// A URI.
    Uri(String),
}

impl AlternativeName {
    /// Returns the tag and the bytes of the name, which are ASCII or an address.
    fn encoded(&self) -> (u64, &[u8]) {
        match self {
            Self::Email(text) => (1, text.as_bytes()),
            Self::Dns(text) => (2, text.as_bytes()),
            Self::Uri(text) => (6, text.as_bytes()),
            Self::Address(bytes) => (7, bytes),
        }
    }
}

/// What a certificate says about its issuer.
pub(crate) struct IssuerName {
    /// The issuer's subject, DER.
    name: Vec<u8>,
    key_id: Vec<u8>,
}

impl IssuerName {
    /// Reads the name and the key's id from a CA certificate; `None` if it has none.
    pub(crate) fn of(certificate: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let key_id =
            parsed
                .extensions()
                .iter()
                .find_map(|extension| match extension.parsed_extension() {
                    ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                    _ => None,
                });
        Some(Self {
            name: parsed.subject().as_raw().to_vec(),
            key_id: key_id?,
        })
    }
}

/// The content of a certificate that signs nothing.
pub(crate) struct Leaf<'a> {
    pub(crate) issuer: &'a IssuerName,
    /// A positive number, highest byte first.
    pub(crate) serial: &'a [u8],
    /// The public key with its algorithm, DER.
    pub(crate) public_key: &'a [u8],
    /// The attributes of the subject with their values, in order.
    pub(crate) subject: &'a [(&'static [u64], &'a str)],
    pub(crate) names: &'a [AlternativeName],
    pub(crate) usages: Usages,
    /// How the holder may replace the certificate.
    pub(crate) renewal: Option<Renewal>,
    pub(crate) begins: SystemTime,
    pub(crate) ends: SystemTime,
}

impl Leaf<'_> {
    /// Returns the certificate, DER. `sign` makes a signature of Ed25519.
    pub(crate) fn signed(&self, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let content = yasna::construct_der(|writer| self.write(writer));
        let signature = sign(&content);
        yasna::construct_der(|writer| {
            writer.write_sequence(|parts| {
                parts.next().write_der(&content);
                write_algorithm(parts.next());
                let bits = signature.len() * 8;
                parts.next().write_bitvec_bytes(&signature, bits);
            });
        })
    }

    fn write(&self, writer: DERWriter<'_>) {
        writer.write_sequence(|parts| {
            // Version 3.
            parts
                .next()
                .write_tagged(Tag::context(0), |writer| writer.write_u8(2));
            parts.next().write_bigint_bytes(self.serial, true);
            write_algorithm(parts.next());
            parts.next().write_der(&self.issuer.name);
            parts.next().write_sequence(|dates| {
                write_date(dates.next(), self.begins);
                write_date(dates.next(), self.ends);
            });
            parts
                .next()
                .write_sequence(|attributes| self.write_subject(attributes));
            parts.next().write_der(self.public_key);
            parts.next().write_tagged(Tag::context(3), |writer| {
                writer.write_sequence(|extensions| self.write_extensions(extensions));
            });
        });
    }

    fn write_subject(&self, attributes: &mut DERWriterSeq<'_>) {
        for (id, value) in self.subject {
            write_attribute(attributes.next(), id, value);
        }
    }

    fn write_extensions(&self, extensions: &mut DERWriterSeq<'_>) {
        // In a bit string the first bit is the highest: digital signature is bit 0, key
        // encipherment bit 2. DER leaves out the zeros at the end.
        let (bits, count) = match (self.usages.digital_signature, self.usages.key_encipherment) {
            (true, true) => (0xa0, 3),
            (true, false) => (0x80, 1),
            (false, true) => (0x20, 3),
            (false, false) => (0, 0),
        };
        if count > 0 {
            write_extension(extensions.next(), KEY_USAGE, true, |writer| {
                writer.write_bitvec_bytes(&[bits], count);
            });
        }
        let usages = [
            (self.usages.server_auth, SERVER_AUTH),
            (self.usages.client_auth, CLIENT_AUTH),
        ];
        if usages.iter().any(|(is_meant, _)| *is_meant) {
            write_extension(extensions.next(), EXTENDED_KEY_USAGE, false, |writer| {
                writer.write_sequence(|list| {
                    for (_, id) in usages.iter().filter(|(is_meant, _)| *is_meant) {
                        write_oid(list.next(), id);
                    }
                });
            });
        }
        // An empty sequence: the certificate is no CA.
        write_extension(extensions.next(), BASIC_CONSTRAINTS, true, |writer| {
            writer.write_sequence(|_| {});
        });
        write_extension(extensions.next(), AUTHORITY_KEY_ID, false, |writer| {
            writer.write_sequence(|parts| {
                parts
                    .next()
                    .write_tagged_implicit(Tag::context(0), |writer| {
                        writer.write_bytes(&self.issuer.key_id);
                    });
            });
        });
        if let Some(renewal) = self.renewal {
            write_renewal(extensions.next(), renewal);
        }
        if !self.names.is_empty() {
            // Without a subject the names are all that says whom the certificate proves.
            let is_critical = self.subject.is_empty();
            write_extension(
                extensions.next(),
                ALTERNATIVE_NAMES,
                is_critical,
                |writer| {
                    writer.write_sequence(|list| {
                        for name in self.names {
                            let (tag, bytes) = name.encoded();
                            list.next()
                                .write_tagged_implicit(Tag::context(tag), |writer| {
                                    writer.write_bytes(bytes);
                                });
                        }
                    });
                },
            );
        }
    }
}

fn write_oid(writer: DERWriter<'_>, id: &[u64]) {
    writer.write_oid(&ObjectIdentifier::from_slice(id));
}

fn write_algorithm(writer: DERWriter<'_>) {
    writer.write_sequence(|parts| write_oid(parts.next(), ED25519));
}

fn write_attribute(writer: DERWriter<'_>, id: &[u64], value: &str) {
    writer.write_set(|attributes| {
        attributes.next().write_sequence(|parts| {
            write_oid(parts.next(), id);
            parts.next().write_utf8_string(value);
        });
    });
}

fn write_extension(
    writer: DERWriter<'_>,
    id: &[u64],
    is_critical: bool,
    write: impl FnOnce(DERWriter<'_>),
) {
    writer.write_sequence(|parts| {
        write_oid(parts.next(), id);
        if is_critical {
            parts.next().write_bool(true);
        }
        let value = yasna::construct_der(write);
        parts.next().write_bytes(&value);
    });
}

/// Writes the extension for renewal.
fn write_renewal(writer: DERWriter<'_>, renewal: Renewal) {
    writer.write_sequence(|parts| {
        let mut id = vec![OID_TAG, RENEWAL_EXTENSION.len() as u8];
        id.extend_from_slice(&RENEWAL_EXTENSION);
        parts.next().write_der(&id);
        let value = yasna::construct_der(|writer| writer.write_bytes(&renewal.to_bytes()));
        parts.next().write_bytes(&value);
    });
}

/// Writes a date in whole seconds.
fn write_date(writer: DERWriter<'_>, date: SystemTime) {
    let since = date.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let whole = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    if seconds < LONG_DATES_FROM {
        writer.write_utctime(&UTCTime::from_datetime(whole.into()));
    } else {
        writer.write_generalized_time(&GeneralizedTime::from_datetime(whole.into()));
    }
}
