//! Bounds of a chain of certificates that somebody shows.

use polyplane_auth::ClientChain;
use rustls::pki_types::CertificateDer;

/// Refuses a chain that would be too much work for whoever judges it, or for those it is sent to.
///
/// # Errors
/// If there are too many certificates, or they are too long.
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
