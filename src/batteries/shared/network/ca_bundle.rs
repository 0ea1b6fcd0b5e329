//! The certificates by which a webhook's server is known.

use crate::certificates::pem::blocks;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const INTRO: &str = "unable to load root certificates: ";

/// Returns what is wrong with a bundle: none of it is a certificate. An empty one stands for the
/// certificates of the system.
pub fn complaint(bundle: &str) -> Option<String> {
    if bundle.is_empty() {
        return None;
    }
    let blocks = blocks(bundle);
    let certificates: Vec<_> = blocks
        .iter()
        .filter(|block| block.label == "CERTIFICATE" && !block.has_headers)
        .collect();
    if certificates
        .iter()
        .any(|block| is_certificate(&block.bytes))
    {
        return None;
    }
    let why = match (blocks.is_empty(), certificates.is_empty()) {
        (true, _) => "unable to parse bytes as PEM block",
        (false, true) => "no valid certificate authority data seen",
        (false, false) => "failed to parse certificate: x509: malformed certificate",
    };
    Some(format!("{INTRO}{why}"))
}

/// Returns whether these bytes are one certificate.
pub fn is_certificate(der: &[u8]) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(rest, _)| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_without_a_certificate_are_refused() {
        let block = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
        for (bundle, wanted) in [
            (String::new(), None),
            ("\n".to_owned(), Some("unable to parse bytes as PEM block")),
            (
                block("PRIVATE KEY"),
                Some("no valid certificate authority data seen"),
            ),
            (
                block("CERTIFICATE"),
                Some("failed to parse certificate: x509: malformed certificate"),
            ),
        ] {
            let wanted = wanted.map(|why| format!("{INTRO}{why}"));
            assert_eq!(complaint(&bundle), wanted, "{bundle}");
        }
    }
}
