//! What a certificate says about its own renewal.
//!
//! Who issues a certificate decides whether its holder may replace it by another, and until when. The
//! certificate itself says so, in an extension that no signing request can ask for, so nothing is
//! stored for it.

use x509_parser::certificate::X509Certificate;

/// The object identifier of the extension, without tag and length: 2.25 and four random numbers. Each is
/// below 2³¹, because Go refuses certificates with larger ones.
pub const RENEWAL_EXTENSION: [u8; 21] = [
    0x69, 0x86, 0xf8, 0xee, 0x94, 0x52, 0x84, 0x83, 0xf5, 0x9c, 0x3e, 0x81, 0xea, 0x92, 0xc3, 0x77,
    0x84, 0x92, 0xec, 0xfd, 0x10,
];
const NUMBER_BYTES: usize = 8;

/// The right of a certificate's holder to replace it by another for the same user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Seconds for which the next certificate is valid.
    pub lifetime: i64,
    /// The second since 1970 at which the last of these certificates ends.
    pub until: i64,
}

impl Renewal {
    /// Returns the form in a certificate, which is the content of an octet string.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 2 * NUMBER_BYTES] {
        let mut bytes = [0; 2 * NUMBER_BYTES];
        bytes[..NUMBER_BYTES].copy_from_slice(&self.lifetime.to_be_bytes());
        bytes[NUMBER_BYTES..].copy_from_slice(&self.until.to_be_bytes());
        bytes
    }

    /// Reads what a certificate says; `None` if its holder may not replace it.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Option<Self> {
        let mut extensions = certificate.extensions().iter();
        let of_renewal =
            extensions.find(|extension| extension.oid.as_bytes() == RENEWAL_EXTENSION)?;
        let number = |bytes: &[u8]| bytes.try_into().map(i64::from_be_bytes).ok();
        match of_renewal.value {
            // The tag of an octet string and its length.
            [0x04, 0x10, bytes @ ..] if bytes.len() == 2 * NUMBER_BYTES => Some(Self {
                lifetime: number(&bytes[..NUMBER_BYTES])?,
                until: number(&bytes[NUMBER_BYTES..])?,
            }),
            _ => None,
        }
    }
}
