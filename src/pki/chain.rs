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
    let count = intermediates.len() + 1;
    let why = format!("a chain of {count} certificates has too many of them, or they are too long");
    Err(rustls::Error::General(why))
}
