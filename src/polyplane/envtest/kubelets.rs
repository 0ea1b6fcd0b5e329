//! The flags about kubelets: logs, exec, attach, port-forward and proxies go to them.

use crate::envtest::credentials::read_file;
use crate::envtest::flags::Flags;
use crate::envtest::settings::{Problems, path};
use polyplane_outbound::Reach;
use polyplane_server::{KubeletIdentity, KubeletTls, NodeAccess};
use std::sync::Arc;

/// The flags that [`node_access`] reads.
pub(super) const FLAGS: [&str; 4] = [
    "kubelet-certificate-authority",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "kubelet-preferred-address-types",
];
/// The types of a node's addresses if no flag says any, the preferred one first.
const ADDRESS_TYPES: [&str; 5] = [
    "Hostname",
    "InternalDNS",
    "InternalIP",
    "ExternalDNS",
    "ExternalIP",
];
/// Connections to nodes and pods, at most. The test that starts the server has them all.
const CONNECTIONS_MAX: usize = 1000;

/// Returns how nodes and pods are reached. As upstream, a kubelet may have each certificate if no flag names the
/// CA, and is shown none if no flag names one.
pub(super) fn node_access(flags: &Flags, problems: &mut Problems) -> Option<NodeAccess> {
    let [ca, certificate, key, types] = FLAGS;
    let mut file = |flag| {
        let path = path(flags, flag)?;
        problems.value(flag, read_file(&path))
    };
    let (roots, pair) = (file(ca), file(certificate).zip(file(key)));
    let client = pair.as_ref().map(|(chain, key)| (&**chain, &**key));
    let tls = KubeletTls::from_pem(client, roots.as_deref());
    let tls = problems.value(certificate, tls)?;
    let named = flags.list(types);
    Some(NodeAccess {
        identity: KubeletIdentity::Shared(Arc::new(tls)),
        address_types: match named.is_empty() {
            true => ADDRESS_TYPES.map(str::to_owned).into(),
            false => named,
        },
        reach: Reach::Anywhere,
        connections_max: CONNECTIONS_MAX,
        plane_connections_max: CONNECTIONS_MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envtest::kube_apiserver::FLAGS as TABLE;

    fn accessed(words: &[&str]) -> (Option<NodeAccess>, bool) {
        let words = words.iter().map(|word| (*word).to_owned());
        let flags = TABLE.parse(words).expect("they are flags");
        let mut problems = Problems::default();
        let access = node_access(&flags, &mut problems);
        (access, problems.is_empty())
    }

    #[test]
    fn kubelets_are_reached_without_flags_and_not_with_wrong_ones() {
        let (access, is_sound) = accessed(&[]);
        let access = access.expect("kubelets are reached");
        assert!(is_sound && access.address_types.len() == 5);
        let (access, _) = accessed(&["--kubelet-preferred-address-types=ExternalIP,Hostname"]);
        let types = access.expect("kubelets are reached").address_types;
        assert_eq!(types, ["ExternalIP", "Hostname"]);
        for flag in [
            "--kubelet-certificate-authority",
            "--kubelet-client-certificate",
        ] {
            let word = format!("{flag}=/nowhere");
            assert!(!accessed(&[&word]).1, "{flag}");
        }
    }
}
