//! Decides which certificates are peer certificates, and which certificates of a file are the peer
//! CA.
//!
//! A peer names the client for whom it forwards a request, so it can act as every user of every
//! plane. The peer CA's signature alone is not enough, because some rings share that CA with other
//! programs. A peer certificate
//!
//! - names server *and* client authentication as its usages. The certificates of a plane's users
//!   and of operators name client authentication only;
//! - has the DNS name [`PEER_ROLE`], which no other certificate gets.
//!
//! All releases issue peer certificates with [`PEER_ROLE`]. The charts of the first release
//! requested certificates from cert-manager with [`SHARED_NAME`] instead, as the common name and as
//! the only DNS name. They are accepted, because replicas of both releases share one such
//! certificate during an update. Other certificates for both usages need [`Unmarked::Accepted`].

use polyplane_ring::ReplicaId;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::peer::SHARED_NAME;

/// The DNS name that only peer certificates have.
pub(crate) const PEER_ROLE: &str = "peer.polyplane";

/// The treatment of certificates that are for both usages and lack the name `peer.polyplane`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmarked {
    /// Refuse them.
    #[default]
    Refused,
    /// Accept them, while certificates that were made by hand for the first release are replaced.
    Accepted,
}

/// The reason why a certificate is not that of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// The certificate is not X.509.
    #[error("the peer certificate cannot be read")]
    Unreadable,
    /// The certificate does not name both usages.
    #[error("the peer certificate is not for both server and client authentication")]
    Usages,
    /// The certificate lacks the DNS name of the role.
    #[error(
        "the peer certificate lacks the DNS name {PEER_ROLE}; issue it with that name, or accept \
         such certificates for a while with --accept-unmarked-peers"
    )]
    Unmarked,
    /// The common name cannot be that of a replica.
    #[error("the peer certificate's common name {0:?} is not the id of a replica")]
    Name(String),
}

/// Returns the replica that a peer's certificate names, which may be [`SHARED_NAME`]. Does not
/// check who signed the certificate.
///
/// # Errors
/// Returns an error if the certificate is not a peer's.
pub(crate) fn replica_of(
    leaf: &CertificateDer<'_>,
    unmarked: Unmarked,
) -> Result<ReplicaId, RoleError> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| RoleError::Unreadable)?;
    let usages = parsed.extended_key_usage().ok().flatten();
    if !usages.is_some_and(|usages| usages.value.server_auth && usages.value.client_auth) {
        return Err(RoleError::Usages);
    }
    let mut names = parsed.subject().iter_common_name();
    let name = match (names.next(), names.next()) {
        (Some(only), None) => only.as_str().unwrap_or(""),
        _ => "",
    };
    let replica: ReplicaId = name.parse().map_err(|_| RoleError::Name(name.to_owned()))?;
    let alternatives = parsed.subject_alternative_name().ok().flatten();
    let alternatives = alternatives
        .iter()
        .flat_map(|names| &names.value.general_names);
    let is_marked = alternatives
        .into_iter()
        .any(|alternative| match alternative {
            GeneralName::DNSName(dns) => {
                *dns == PEER_ROLE || name == SHARED_NAME && *dns == SHARED_NAME
            }
            _ => false,
        });
    if !is_marked && unmarked == Unmarked::Refused {
        return Err(RoleError::Unmarked);
    }
    Ok(replica)
}

/// Returns the certificates of a CA file that may sign peers. Other certificates in the file only
/// complete a chain: CAs above another CA of the file, which cert-manager writes after it, sign no
/// peers. A file with several independent CAs, as during a change of the CA, has
/// several such certificates.
pub(crate) fn anchors(found: &[CertificateDer<'static>]) -> Vec<CertificateDer<'static>> {
    let parsed: Vec<_> = found
        .iter()
        .filter_map(|der| {
            X509Certificate::from_der(der)
                .ok()
                .map(|(_, one)| (der, one))
        })
        .filter(|(_, one)| is_ca(one))
        .collect();
    let stands_above = |above: &X509Certificate<'_>| {
        let is_below = |(_, one): &(_, X509Certificate<'_>)| {
            one.issuer() == above.subject() && one.subject() != one.issuer()
        };
        parsed.iter().any(is_below)
    };
    let anchors = parsed.iter().filter(|(_, one)| !stands_above(one));
    anchors.map(|(der, _)| (*der).clone()).collect()
}

fn is_ca(certificate: &X509Certificate<'_>) -> bool {
    let may_sign = match certificate.key_usage() {
        Ok(Some(usage)) => usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    certificate.is_ca() && may_sign
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base_params, new_key};
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    use rcgen::{
        BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
        KeyPair, SanType,
    };
    use std::time::Duration;

    fn params(name: &str) -> CertificateParams {
        base_params(name, Duration::from_secs(3600))
    }

    fn leaf(
        name: &str,
        usages: &[ExtendedKeyUsagePurpose],
        names: &[&str],
    ) -> CertificateDer<'static> {
        let mut params = params(name);
        params.extended_key_usages = usages.to_vec();
        for name in names {
            let name = (*name).try_into().expect("a name");
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let key = new_key().expect("made");
        params.self_signed(&key).expect("signed").der().clone()
    }

    #[test]
    fn a_peer_says_what_no_client_certificate_says() {
        let both = [ServerAuth, ClientAuth];
        let refused = |leaf: &CertificateDer<'_>| replica_of(leaf, Unmarked::Refused);
        let accepted = |leaf: &CertificateDer<'_>| replica_of(leaf, Unmarked::Accepted);
        let id = |name: &str| Ok::<ReplicaId, RoleError>(name.parse().expect("a replica id"));
        // Two valid forms: the one that every release issues, and the one that the first release's
        // charts requested.
        let issued = leaf("polyplane-3", &both, &["polyplane-3", PEER_ROLE]);
        assert_eq!(refused(&issued), id("polyplane-3"));
        let charts = leaf(SHARED_NAME, &both, &[SHARED_NAME]);
        assert_eq!(refused(&charts), id(SHARED_NAME));
        // A certificate made by hand for the first release is accepted only if unmarked peers are.
        let by_hand = leaf("polyplane-3", &both, &["polyplane-3"]);
        assert_eq!(refused(&by_hand), Err(RoleError::Unmarked));
        assert_eq!(accepted(&by_hand), id("polyplane-3"));
        let pretends = leaf("polyplane-3", &both, &[SHARED_NAME]);
        assert_eq!(refused(&pretends), Err(RoleError::Unmarked));
        // A certificate for clients only, for servers only, or for no usage is never accepted.
        for usages in [&[ClientAuth][..], &[ServerAuth], &[]] {
            let client = leaf("polyplane-3", usages, &["polyplane-3", PEER_ROLE]);
            assert_eq!(accepted(&client), Err(RoleError::Usages), "{usages:?}");
        }
        let somebody = leaf("system:admin", &both, &[PEER_ROLE]);
        assert!(matches!(accepted(&somebody), Err(RoleError::Name(_))));
        let nonsense = CertificateDer::from(vec![1, 2, 3]);
        assert_eq!(accepted(&nonsense), Err(RoleError::Unreadable));
    }

    fn ca(
        name: &str,
        by: Option<&Issuer<'static, KeyPair>>,
    ) -> (Certificate, Issuer<'static, KeyPair>) {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = new_key().expect("made");
        let signed = match by {
            Some(by) => params.signed_by(&key, by),
            None => params.self_signed(&key),
        };
        (signed.expect("signed"), Issuer::new(params, key))
    }

    #[test]
    fn of_a_chain_only_the_ca_below_all_others_vouches_for_peers() {
        let (root, by_root) = ca("org-root", None);
        let (middle, by_middle) = ca("org-middle", Some(&by_root));
        let (peers, _) = ca("polyplane-peer-ca", Some(&by_middle));
        let (next, _) = ca("polyplane-peer-ca", None);
        let (older, _) = ca("polyplane-peer-ca", None);
        let leaf = leaf("polyplane-3", &[ServerAuth, ClientAuth], &[PEER_ROLE]);
        let der = |one: &Certificate| one.der().clone();
        let chain = [der(&peers), der(&middle), der(&root)];
        assert_eq!(anchors(&chain), [der(&peers)]);
        let change = [der(&older), der(&next)];
        assert_eq!(anchors(&change), change);
        assert_eq!(anchors(&[leaf.clone(), der(&next)]), [der(&next)]);
        assert_eq!(anchors(&[leaf]), []);
    }
}
