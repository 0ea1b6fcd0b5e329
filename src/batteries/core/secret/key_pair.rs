//! Warnings about the certificate and the key of a Secret that no server could use together.

use crate::certificates::keys::{Certificate, Key, KeyKind};
use crate::certificates::pem::{Block, blocks};
use crate::shared::network::ca_bundle::is_certificate;

/// Most bytes of a PEM text that is read. Reading a longer one would take too long if it only begins blocks.
const PEM_BYTES_MAX: usize = 64 * 1024;
/// The first byte of all forms of private keys.
const SEQUENCE: u8 = 0x30;

/// Returns the warning about a certificate and a key, both as PEM, with upstream's text. There is none about
/// keys of kinds and sizes that cannot be read here.
pub fn warning(certificate: &[u8], key: &[u8]) -> Option<String> {
    if certificate.len().max(key.len()) > PEM_BYTES_MAX {
        return None;
    }
    let certificates = blocks(&String::from_utf8_lossy(certificate));
    let Some(leaf) = certificates
        .iter()
        .find(|block| block.label == "CERTIFICATE")
    else {
        return Some(without_certificate(&certificates));
    };
    let keys = blocks(&String::from_utf8_lossy(key));
    let Some(private) = keys.iter().find(|block| is_private(&block.label)) else {
        return Some(without_key(&keys));
    };
    mismatch(&leaf.bytes, &private.bytes).map(str::to_owned)
}

fn is_private(label: &str) -> bool {
    label == "PRIVATE KEY" || label.ends_with(" PRIVATE KEY")
}

fn mismatch(certificate: &[u8], key: &[u8]) -> Option<&'static str> {
    if !is_certificate(certificate) {
        return Some("x509: malformed certificate");
    }
    let certified = Certificate::read(certificate)?.key;
    if certified.kind == KeyKind::Other {
        return Some("tls: unknown public key algorithm");
    }
    match Key::of_private(key) {
        None if key.first() != Some(&SEQUENCE) => Some("tls: failed to parse private key"),
        None => None,
        Some(own) if !own.is_of_type(&certified) => {
            Some("tls: private key type does not match public key type")
        }
        Some(own) if !own.has_content_of(&certified) => {
            Some("tls: private key does not match public key")
        }
        Some(_) => None,
    }
}

fn labels(found: &[Block]) -> String {
    let labels: Vec<&str> = found.iter().map(|block| block.label.as_str()).collect();
    format!("[{}]", labels.join(" "))
}

fn without_certificate(found: &[Block]) -> String {
    match found {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if one.label.ends_with("PRIVATE KEY") => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".to_owned()
        }
        _ => format!(
            "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: {}",
            labels(found)
        ),
    }
}

fn without_key(found: &[Block]) -> String {
    match found {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if one.label == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        _ => format!(
            "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: {}",
            labels(found)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "MIIBbjCCARWgAwIBAgIUYu3hg7WBeSEHRhhYzl+ETyWg4QgwCgYIKoZIzj0EAwIwDDEKMAgGA1UEAwwBYTAgFw0yNjExMzAwMTE3MDJaGA8yMTI2MTEwNjAxMTcwMlowDDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABCYSkd9SGA4B0KDLjYb7DGrUwbywA3txhOucxqA39se637ZwJ4CwI3q95+lhpnI9P2LxTMV/SCrRARqWtQTZXLajUzBRMB0GA1UdDgQWBBSj1NSSjs3Mt7/IPwHLM8skboPbfTAfBgNVHSMEGDAWgBSj1NSSjs3Mt7/IPwHLM8skboPbfTAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIG5QZgsFntS4v2Y9RJDKJXfy1hZwZ8NxhgLZKIHPMnEJAiAc1gM8DWqTZikE2XLIbUFDau5FsoJP524vfB6Wjne6Wg==";
    /// The key of the certificate, in the two forms that tools write.
    const OWN_KEY: &str = "MHcCAQEEIA60BxV3UJhWQMEaK9H/lfTz2TRHAW3sIPbDMsD18cv2oAoGCCqGSM49AwEHoUQDQgAEJhKR31IYDgHQoMuNhvsMatTBvLADe3GE65zGoDf2x7rftnAngLAjer3n6WGmcj0/YvFMxX9IKtEBGpa1BNlctg==";
    const OWN_KEY_WRAPPED: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgDrQHFXdQmFZAwRor0f+V9PPZNEcBbewg9sMywPXxy/ahRANCAAQmEpHfUhgOAdCgy42G+wxq1MG8sAN7cYTrnMagN/bHut+2cCeAsCN6vefpYaZyPT9i8UzFf0gq0QEalrUE2Vy2";
    const OTHER_KEY: &str = "MHcCAQEEIAda7pPc4fUKRMlhU0v45gMfuZ1dKqN4zCN/MzzJRW6ZoAoGCCqGSM49AwEHoUQDQgAEYbmqm/IZwsm/7640Bu82fwzOTt0fsHyk10EwGHJnck0rVmnH5b9rOoReKu35WwmFc+VD7/Zdx1Vu9GCfvGBp6A==";
    const EDWARDS_KEY: &str = "MC4CAQAwBQYDK2VwBCIEIH1oWQm2JAaUSt+14C/faopB2NEWOBGW4+ZcZCl/ac1a";

    fn pem(label: &str, content: &str) -> String {
        format!("-----BEGIN {label}-----\n{content}\n-----END {label}-----\n")
    }

    #[test]
    fn what_cannot_be_used_together_is_warned_about() {
        let certificate = pem("CERTIFICATE", CERTIFICATE);
        let key = |content: &str| pem("EC PRIVATE KEY", content);
        let cases = [
            (certificate.clone(), key(OWN_KEY), ""),
            (certificate.clone(), pem("PRIVATE KEY", OWN_KEY_WRAPPED), ""),
            (
                certificate.clone(),
                key(OTHER_KEY),
                "tls: private key does not match public key",
            ),
            (
                certificate.clone(),
                pem("PRIVATE KEY", EDWARDS_KEY),
                "tls: private key type does not match public key type",
            ),
            (
                certificate.clone(),
                key("AAAA"),
                "tls: failed to parse private key",
            ),
            (
                pem("CERTIFICATE", "AAAA"),
                key(OWN_KEY),
                "x509: malformed certificate",
            ),
            (
                key(OWN_KEY),
                certificate.clone(),
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched",
            ),
            (
                certificate.clone(),
                certificate.clone(),
                "tls: found a certificate rather than a key in the PEM for the private key",
            ),
            (
                pem("A", "AAAA") + &pem("B", "AAAA"),
                String::new(),
                "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [A B]",
            ),
            (
                "-----BEGIN CERTIFICATE-----".to_owned(),
                String::new(),
                "tls: failed to find any PEM data in certificate input",
            ),
            (
                certificate,
                "x".to_owned(),
                "tls: failed to find any PEM data in key input",
            ),
        ];
        for (certificate, key, wanted) in cases {
            let found = warning(certificate.as_bytes(), key.as_bytes());
            assert_eq!(found.unwrap_or_default(), wanted, "{certificate}{key}");
        }
    }

    #[test]
    fn a_text_that_only_begins_blocks_is_not_read_for_long() {
        let text = "-----BEGIN A-----\n".repeat(PEM_BYTES_MAX);
        assert_eq!(warning(text.as_bytes(), b""), None);
    }
}
