//! The flags of the connections to nodes and pods, with the names of kube-apiserver's where it has them.
//! This module does not know how the server connects.

use crate::cli::limited_file;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use polyplane_outbound::{Network, Reach};
use polyplane_server::{KubeletIdentity, KubeletTls, NodeAccess};
use std::path::PathBuf;
use std::sync::Arc;

/// Longest file with a key or certificates, in bytes. A longer one is something else.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Options of logs, exec, attach, port-forward and proxies.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Nodes and pods")]
pub struct KubeletOptions {
    /// How control planes reach their kubelets for logs, exec, attach, port-forward and proxies: `none`
    /// of them does, with certificates of each control `plane`'s own CAs, or with the same `files` for
    /// all of them. With `files` the users of each control plane reach each kubelet that accepts the
    /// certificate.
    #[arg(
        long,
        value_name = "HOW",
        default_value = "none",
        env = "POLYPLANE_KUBELET_ACCESS"
    )]
    pub kubelet_access: KubeletAccess,
    /// Client certificate for kubelets, PEM; only with --kubelet-access=files. This file and the two
    /// below are read when the server starts.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_KUBELET_CLIENT_CERTIFICATE"
    )]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Key of the client certificate for kubelets, PEM.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_KUBELET_CLIENT_KEY")]
    pub kubelet_client_key: Option<PathBuf>,
    /// CAs of the serving certificates of kubelets, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_KUBELET_CERTIFICATE_AUTHORITY"
    )]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Types of a node's addresses, the preferred one first.
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP",
        env = "POLYPLANE_KUBELET_PREFERRED_ADDRESS_TYPES"
    )]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Networks such as 10.0.0.0/8 in which nodes and pods may be reached, beside public addresses.
    /// Users of a control plane choose the address and the port.
    #[arg(
        long,
        value_name = "NETWORK",
        value_delimiter = ',',
        env = "POLYPLANE_NODE_NETWORKS"
    )]
    pub node_networks: Vec<String>,
    /// Connections to nodes and pods, at most. One more is refused with 429.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 2000,
        env = "POLYPLANE_NODE_CONNECTIONS_MAX",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..)
    )]
    pub node_connections_max: usize,
    /// Connections of one control plane to nodes and pods, at most, at each replica. One more is refused
    /// with 429.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 100,
        env = "POLYPLANE_PLANE_NODE_CONNECTIONS_MAX",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..)
    )]
    pub plane_node_connections_max: usize,
}

/// The certificates with which control planes reach kubelets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KubeletAccess {
    /// No kubelet is reached.
    None,
    /// Those of the plane's own CAs.
    Plane,
    /// Those of the flags.
    Files,
}

impl KubeletOptions {
    /// Reads the files; returns `None` if no kubelet is to be reached.
    ///
    /// # Errors
    /// Returns an error if a flag is missing or contradicts another, or a file cannot be used.
    pub fn open(&self) -> anyhow::Result<Option<NodeAccess>> {
        let files = [
            (
                "--kubelet-client-certificate",
                &self.kubelet_client_certificate,
            ),
            ("--kubelet-client-key", &self.kubelet_client_key),
            (
                "--kubelet-certificate-authority",
                &self.kubelet_certificate_authority,
            ),
        ];
        let given = files.iter().find(|(_, file)| file.is_some());
        let networks = self.node_networks.iter().map(|text| text.parse());
        let networks: Result<Arc<[Network]>, _> = networks.collect();
        let networks = networks.context("--node-networks")?;
        let identity = match (self.kubelet_access, given) {
            (KubeletAccess::Files, _) => KubeletIdentity::Shared(Arc::new(read_all(&files)?)),
            (_, Some((flag, _))) => bail!("{flag}: it counts only with --kubelet-access=files"),
            (KubeletAccess::None, None) => return Ok(None),
            (KubeletAccess::Plane, None) => KubeletIdentity::OfPlane,
        };
        Ok(Some(NodeAccess {
            identity,
            address_types: self.kubelet_preferred_address_types.clone(),
            reach: Reach::Public(networks),
            connections_max: self.node_connections_max,
            plane_connections_max: self.plane_node_connections_max,
        }))
    }
}

fn read_all(files: &[(&str, &Option<PathBuf>); 3]) -> anyhow::Result<KubeletTls> {
    let [chain, key, roots] = files.map(|(flag, file)| {
        let file = file.as_deref();
        let file =
            file.with_context(|| format!("{flag}: --kubelet-access=files needs this flag"))?;
        limited_file::read(file, PEM_BYTES_MAX)
            .with_context(|| format!("{flag} {}", file.display()))
    });
    let tls = KubeletTls::from_pem(Some((&chain?, &key?)), Some(&roots?));
    tls.with_context(|| {
        let given = files.map(|(flag, file)| {
            let file = file.as_deref().map(|file| file.display().to_string());
            format!("{flag} {}", file.unwrap_or_default())
        });
        format!("--kubelet-access=files with {}", given.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        kubelets: KubeletOptions,
    }

    fn opened(words: &[&str]) -> Result<Option<NodeAccess>, String> {
        let words = std::iter::once("test").chain(words.iter().copied());
        let typed = Typed::try_parse_from(words).map_err(|error| error.to_string())?;
        typed.kubelets.open().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn no_kubelet_is_reached_unless_the_operator_says_how() {
        assert!(opened(&[]).expect("sound").is_none());
        let of_plane = opened(&[
            "--kubelet-access",
            "plane",
            "--node-networks",
            "10.0.0.0/8,fd00::/8",
        ]);
        let of_plane = of_plane.expect("sound").expect("reached");
        assert!(matches!(of_plane.identity, KubeletIdentity::OfPlane));
        assert_eq!(of_plane.address_types.len(), 5);
    }

    #[test]
    fn nonsense_is_refused_with_the_flag_it_stands_in() {
        for (words, flag) in [
            (
                &["--kubelet-access=files"][..],
                "--kubelet-client-certificate",
            ),
            (&["--kubelet-client-key=x"][..], "--kubelet-client-key"),
            (
                &["--kubelet-access=plane", "--node-networks=10.0.0.0"][..],
                "--node-networks",
            ),
            (&["--kubelet-access=all"][..], "--kubelet-access"),
            (&["--node-connections-max=0"][..], "--node-connections-max"),
        ] {
            let error = opened(words).expect_err("nonsense");
            assert!(error.contains(flag), "{words:?}: {error}");
        }
    }
}
