//! The limit on the chain of certificates in a handshake.

use polyplane_auth::ClientChain;
use rustls::pki_types::CertificateDer;

/// Refuses a chain that would take too long to verify, or is too long to forward.
///
/// # Errors
/// Returns an error if there are too many certificates, or they are too long.
pub fn check_short(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), rustls::Error> {
    if ClientChain::is_short(leaf, intermediates) {
        return Ok(());
    }
    let bytes: usize = intermediates.iter().map(|one| one.len()).sum();
    Err(rustls::Error::General(format!(
        "the chain has {} certificates and {} bytes; at most {} certificates and {} bytes are accepted",
        intermediates.len() + 1,
        leaf.len() + bytes,
        ClientChain::SHOWN_LENGTH_MAX,
        ClientChain::SHOWN_BYTES_MAX,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_chain_has_and_what_it_may_have() {
        let of = |bytes: usize| CertificateDer::from(vec![0; bytes]);
        assert_eq!(check_short(&of(11_000), &[of(1_000)]), Ok(()));
        for (chain, has) in [
            (vec![of(30_500)], "1 certificates and 30500 bytes"),
            (vec![of(100); 6], "6 certificates and 600 bytes"),
        ] {
            let refused = check_short(&chain[0], &chain[1..]).expect_err("too long");
            let why = refused.to_string();
            assert!(why.contains(has), "{why}");
            assert!(
                why.contains("at most 5 certificates and 12000 bytes"),
                "{why}"
            );
        }
    }
}
