//! The steps from options as an operator types them to a server.
//!
//! [`Options::complete`] checks all options and reports every problem at once;
//! [`CompletedOptions::configure`] reads or creates keys on disk; [`Config::build`] adds the
//! backend and the listeners. Each step consumes the result of the step before, which callers may
//! change.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polyplane_audit::Auditor;
use polyplane_pki::{Expiries, Pki, PkiError, TlsError};
use rustls::{DistinguishedName, ServerConfig};
use tokio::net::TcpListener;

use crate::answer::browsers::{BrowserOptions, Browsers};
use crate::backend::Backend;
use crate::connection::goaway::Goaway;
use crate::connection::tls::server_config;
use crate::nodes::{KubeletIdentity, NodeAccess, Nodes};
use crate::operations::local::{DrainOnce, DrainRequested};
use crate::operations::status_pages::FlagValues;
use crate::option_problems::{OptionProblem, OptionProblems};
use crate::peer::Peering;
use crate::peer::listener::PeerSide;
use crate::request::limits::Limits;
use crate::request::single::SinglePlane;
use crate::server::Server;
use crate::server_state::{Extras, ServerState};

/// Options as an operator types them, unchecked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of all files that the server keeps.
    pub data_folder: PathBuf,
    /// The folder of keys and certificates; `pki` in the data folder if absent.
    pub certs_folder: Option<PathBuf>,
    /// The addresses to listen on, such as `127.0.0.1:6443`. With port 0 the system chooses a free
    /// port.
    pub listen: Vec<String>,
    /// Host names and addresses under which clients reach the server, beside the loopback ones.
    pub host_names: Vec<String>,
    /// Host and port that discovery and kubeconfigs name; the first listener's if absent.
    pub advertise: Option<String>,
    /// Limits on requests.
    pub limits: Limits,
    /// What browsers get.
    pub browsers: BrowserOptions,
    /// The times that the server has for the steps of a stop.
    pub stop: StopPolicy,
}

/// The times that a server has for the steps of a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopPolicy {
    /// How long the server still serves everything while `/readyz` already fails.
    pub ready_delay: Duration,
    /// How long requests in flight may take to finish. Watches end as soon as the last one has
    /// finished.
    pub grace: Duration,
}

impl Default for StopPolicy {
    fn default() -> Self {
        Self {
            ready_delay: Duration::ZERO,
            grace: Duration::from_secs(60),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data_folder: PathBuf::from(".polyplane"),
            certs_folder: None,
            listen: vec!["127.0.0.1:6443".to_owned()],
            host_names: Vec::new(),
            advertise: None,
            limits: Limits::default(),
            browsers: BrowserOptions::default(),
            stop: StopPolicy::default(),
        }
    }
}

impl Options {
    /// Checks all options and derives the absent ones from the others.
    ///
    /// # Errors
    /// Returns all problems with the options.
    pub fn complete(self) -> Result<CompletedOptions, OptionProblems> {
        let mut problems = Vec::new();
        let mut listen = Vec::new();
        if self.listen.is_empty() {
            problems.push(OptionProblem::NoListener);
        }
        for text in self.listen {
            match text.parse::<SocketAddr>() {
                Ok(address) => listen.push(address),
                Err(_) => problems.push(OptionProblem::Listen(text)),
            }
        }
        let mut host_names: Vec<String> =
            ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        host_names.extend(
            listen
                .iter()
                .map(|address| address.ip())
                .filter_map(servable),
        );
        host_names.extend(self.host_names);
        let advertised = self.advertise.as_deref().map(|text| (text, host_of(text)));
        match advertised {
            Some((_, Some(host))) => host_names.push(host.to_owned()),
            Some((text, None)) => problems.push(OptionProblem::Advertise(text.to_owned())),
            None => {}
        }
        host_names.sort_unstable();
        host_names.dedup();
        let bad = host_names.iter().filter(|name| !may_be_served(name));
        problems.extend(bad.map(|name| OptionProblem::HostName(name.clone())));
        problems.extend(self.limits.problems());
        let browsers = self.browsers.complete().unwrap_or_else(|found| {
            problems.extend(found.into_iter().map(OptionProblem::Browser));
            Browsers::default()
        });
        if !problems.is_empty() {
            return Err(OptionProblems(problems));
        }
        let certs_folder = self
            .certs_folder
            .unwrap_or_else(|| self.data_folder.join("pki"));
        Ok(CompletedOptions {
            data_folder: self.data_folder,
            certs_folder,
            listen,
            host_names,
            advertise: self.advertise,
            limits: self.limits,
            browsers,
            stop: self.stop,
        })
    }
}

fn servable(address: IpAddr) -> Option<String> {
    (!address.is_unspecified()).then(|| address.to_string())
}

fn host_of(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    (!host.is_empty()).then_some(host)
}

fn may_be_served(name: &str) -> bool {
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

/// Checked options.
#[derive(Clone, Debug)]
pub struct CompletedOptions {
    /// The folder of all files that the server keeps.
    pub data_folder: PathBuf,
    /// The folder of keys and certificates.
    pub certs_folder: PathBuf,
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// The names in the serving certificate.
    pub host_names: Vec<String>,
    /// Host and port that discovery and kubeconfigs name.
    pub advertise: Option<String>,
    /// Limits on requests.
    pub limits: Limits,
    /// What browsers get.
    pub browsers: Browsers,
    /// The times that the server has for the steps of a stop.
    pub stop: StopPolicy,
}

/// The reason why keys and TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Keys and certificates could not be read or created.
    #[error("cannot read or create the keys and certificates of the server")]
    Pki(#[source] PkiError),
    /// The TLS settings could not be made from them.
    #[error("cannot set up TLS")]
    Tls(#[source] TlsError),
}

/// An error about an address on which the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The error of the system.
    #[source]
    pub source: io::Error,
}

impl CompletedOptions {
    /// Opens the listeners. They accept no connection until the server runs.
    ///
    /// # Errors
    /// Returns an error for the first address that another process uses or that this machine does
    /// not have.
    pub async fn listen(&self) -> Result<Vec<TcpListener>, ListenError> {
        let mut listeners = Vec::new();
        for &address in &self.listen {
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.map_err(|source| ListenError { address, source })?);
        }
        Ok(listeners)
    }

    /// Reads or creates keys and builds the TLS configuration.
    ///
    /// # Errors
    /// Returns an error if the data folder cannot be used.
    pub fn configure(self) -> Result<Config, ConfigError> {
        let pki = Pki::load_or_create(&self.certs_folder).map_err(ConfigError::Pki)?;
        self.configure_with(Arc::new(pki), Vec::new())
    }

    /// Builds the TLS configuration from keys that are there. The server tells clients that it accepts
    /// certificates of `client_cas`, if there are any; which of them counts is decided later.
    ///
    /// # Errors
    /// Returns an error if no certificate can be issued for the names, or the given one cannot be used.
    pub fn configure_with(
        self,
        pki: Arc<Pki>,
        client_cas: Vec<DistinguishedName>,
    ) -> Result<Config, ConfigError> {
        let tls = server_config(Arc::clone(&pki), self.host_names, client_cas);
        let tls = tls.map_err(ConfigError::Tls)?;
        Ok(Config {
            expiries: vec![Arc::clone(pki.expiries())],
            pki,
            tls,
            advertise: self.advertise,
            limits: self.limits,
            browsers: self.browsers,
            stop: self.stop,
            peering: None,
            drain_requested: None,
            audit: None,
            single: None,
            nodes: None,
            flags: FlagValues::default(),
            goaway_chance: 0.0,
        })
    }
}

/// Everything that a server needs besides its backend and listeners.
pub struct Config {
    /// The server's CA and administrator's token.
    pub pki: Arc<Pki>,
    /// The TLS settings of the listeners.
    pub tls: Arc<ServerConfig>,
    /// Host and port that discovery names; the first listener's if absent.
    pub advertise: Option<String>,
    /// Limits on requests.
    pub limits: Limits,
    /// What browsers get.
    pub browsers: Browsers,
    /// The times that the server has for the steps of a stop.
    pub stop: StopPolicy,
    /// The connections to other replicas, if this server is one of several.
    pub peering: Option<Peering>,
    /// The function that `POST /drain` calls; if absent, the path does not exist.
    pub drain_requested: Option<DrainRequested>,
    /// Records requests; `None` to record nothing.
    pub audit: Option<Arc<Auditor>>,
    /// Set if the server has the root plane alone and looks as a plain kube-apiserver does.
    pub single: Option<SinglePlane>,
    /// The way to nodes and pods; `None` if the server connects to none.
    pub nodes: Option<NodeAccess>,
    /// The flags of the process, which `/flagz` shows.
    pub flags: FlagValues,
    /// The share of HTTP/2 requests after which the client has to open a new connection.
    pub goaway_chance: f64,
    /// The ends of certificates that the metrics show: at first of those of [`Self::pki`].
    pub expiries: Vec<Arc<Expiries>>,
}

impl Config {
    /// Adds the way to nodes and pods, and records the ends of the certificates for kubelets that all planes
    /// share.
    #[must_use]
    pub fn with_nodes(self, nodes: Option<NodeAccess>) -> Self {
        if let Some(access) = &nodes
            && let KubeletIdentity::Shared(tls) = &access.identity
        {
            tls.record(self.pki.expiries());
        }
        Self { nodes, ..self }
    }

    /// Creates a server on `listeners` in front of `backend`.
    pub fn build(self, backend: Arc<dyn Backend>, listeners: Vec<TcpListener>) -> Server {
        let local = listeners
            .first()
            .and_then(|listener| listener.local_addr().ok());
        let address = self
            .advertise
            .or_else(|| local.map(|address| address.to_string()))
            .unwrap_or_default();
        let (side, peer_listeners) = match self.peering {
            Some(peering) => {
                let side = PeerSide::new(peering.transport, peering.handler);
                (Some(Arc::new(side)), peering.listeners)
            }
            None => (None, Vec::new()),
        };
        let drain_once = self.drain_requested.map(DrainOnce::new);
        let state = ServerState::new(
            backend,
            self.limits,
            address,
            side,
            drain_once,
            Extras {
                audit: self.audit,
                single: self.single,
                nodes: self.nodes.map(Nodes::new),
                flags: self.flags,
                browsers: self.browsers,
                goaway: Goaway::new(self.goaway_chance),
                expiries: self.expiries,
            },
        );
        Server::new(state, self.tls, self.stop, listeners, peer_listeners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::KubeletTls;
    use polyplane_outbound::Reach;
    use polyplane_pki::CertificateEnds;

    #[test]
    fn the_certificates_for_kubelets_are_among_those_whose_ends_are_shown() {
        let pki = Arc::new(Pki::in_memory(None).expect("made"));
        let client = pki.issue_client("kubelet-client", &[]).expect("issued");
        let pair = (client.certificate_pem.as_bytes(), client.key_pem.as_bytes());
        let tls = KubeletTls::from_pem(Some(pair), Some(pki.root_pem().as_bytes()));
        let access = NodeAccess {
            identity: KubeletIdentity::Shared(Arc::new(tls.expect("they fit"))),
            address_types: Vec::new(),
            reach: Reach::Anywhere,
            connections_max: 1,
            plane_connections_max: 1,
        };
        let completed = Options::default().complete().expect("all is well");
        let config = completed.configure_with(Arc::clone(&pki), Vec::new());
        let config = config.expect("issued").with_nodes(Some(access));
        let mut ends = CertificateEnds::new();
        for recorded in &config.expiries {
            recorded.add_to(&mut ends);
        }
        let uses: Vec<_> = ends
            .into_keys()
            .map(|(used_as, _)| used_as.as_str())
            .collect();
        assert_eq!(uses, ["ca", "kubelet-ca", "kubelet-client", "serving"]);
    }

    #[test]
    fn all_problems_are_reported_together() {
        let options = Options {
            listen: vec!["localhost".to_owned(), "1.2.3.4".to_owned()],
            host_names: vec!["bad name".to_owned()],
            advertise: Some("api.example.com".to_owned()),
            limits: Limits {
                body_bytes_max: 0,
                answer_stall_max: Duration::from_secs(61),
                request_time_max: Duration::MAX,
                ..Limits::default()
            },
            ..Options::default()
        };
        let problems = options.complete().expect_err("much is wrong");
        assert_eq!(
            problems.0,
            [
                OptionProblem::Listen("localhost".to_owned()),
                OptionProblem::Listen("1.2.3.4".to_owned()),
                OptionProblem::Advertise("api.example.com".to_owned()),
                OptionProblem::HostName("bad name".to_owned()),
                OptionProblem::Zero("body_bytes_max"),
                OptionProblem::TooLong("request_time_max"),
                OptionProblem::Above("answer_stall_max", "answer_time_max"),
            ]
        );
        assert_eq!(problems.to_string().matches("; ").count(), 6);
        let last = "the limit --answer-stall-max must not be above --answer-time-max";
        assert!(problems.to_string().ends_with(last), "{problems}");
    }

    #[test]
    fn names_follow_from_listeners_and_advertised_address() {
        let options = Options {
            listen: vec!["0.0.0.0:1".to_owned(), "10.0.0.7:2".to_owned()],
            host_names: vec!["api.internal".to_owned()],
            advertise: Some("[fd00::1]:443".to_owned()),
            ..Options::default()
        };
        let completed = options.complete().expect("all is well");
        let names = [
            "10.0.0.7",
            "127.0.0.1",
            "::1",
            "api.internal",
            "fd00::1",
            "localhost",
        ];
        assert_eq!(completed.host_names, names);
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = taken.local_addr().expect("bound");
        let options = Options {
            listen: vec![address.to_string()],
            ..Options::default()
        };
        let refused = options.complete().expect("well formed").listen().await;
        let error = refused.expect_err("the port is taken");
        assert_eq!(error.to_string(), format!("cannot listen on {address}"));
    }
}
