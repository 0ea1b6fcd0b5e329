//! The connections to one member of the etcd cluster, and the endpoint and credentials for them.
//! Must not know which member is chosen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, KvClient, StatusResponse, WatchClient};
use tokio::time::Instant;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::EtcdOptions;
use super::credentials::Credentials;
use super::logins::Logins;
use super::reply::{Fault, describe, fault, is_untrusted, with_causes};
use super::server::OWN_AGENT;
use crate::error::OpenError;

/// The longest time that a member may take to answer a status request.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of one message from etcd beyond which it is refused, so that it cannot exhaust the memory.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Interval of keep-alive pings. The server treats pings that come faster than every 5 seconds as
/// an attack.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(6);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of the flow-control window of a stream: enough to use a gigabit over 10 ms of latency.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// The connections to one member, with the credentials that they use.
pub(super) struct Clients {
    pub(super) calls: Client,
    pub(super) kv: KvClient,
    streams: Client,
    pub(super) watches: WatchClient,
    user: Option<(String, String)>,
    logins: Logins,
    /// Whether calls may be sent: they have a token, or the cluster had no users at the last login.
    pub(super) logged_in: AtomicBool,
}

impl Clients {
    /// Requests a new token for both connections, unless another call has done so since `sent`.
    /// Succeeds too if the cluster has no users: it then takes calls with any token or none.
    async fn log_in(
        &self,
        user: &(String, String),
        endpoint: &str,
        sent: Instant,
    ) -> Result<(), Fault> {
        let attempt = self.try_log_in(user, endpoint);
        match self.logins.log_in(sent, attempt).await {
            Ok(()) | Err(Fault::AuthOff) => {}
            Err(fault) => return Err(fault),
        }
        self.logged_in.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn try_log_in(&self, user: &(String, String), endpoint: &str) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for client in [&self.calls, &self.streams] {
            let logged_in = client.clone().update_user(Some(user.clone())).await;
            match logged_in.map_err(|error| fault(&error)) {
                Ok(()) => {}
                // One connection without a token is enough for calls to be denied later.
                Err(Fault::AuthOff) => outcome = Err(Fault::AuthOff),
                Err(fault) => return Err(fault),
            }
        }
        if outcome.is_err() {
            tracing::warn!(%endpoint, "etcd checks no passwords");
        }
        outcome
    }

    /// Requests a new token after the member refused a call that was sent at `sent`, if the fault may
    /// be that of the call's token: authentication may have been switched on since the last login.
    /// Returns whether the call may be sent again.
    pub(super) async fn log_in_again(
        &self,
        endpoint: &str,
        refused: &Fault,
        sent: Instant,
    ) -> Result<bool, Fault> {
        let Some(user) = &self.user else {
            return Ok(false);
        };
        let may_help = match refused {
            Fault::TokenInvalid | Fault::AuthOff => true,
            Fault::Denied(_) => !self.logins.are_new_for(sent).await,
            _ => false,
        };
        if may_help {
            self.log_in(user, endpoint, sent).await?;
        }
        Ok(may_help)
    }

    /// Returns the member's status, requested over both connections. An error comes with whether
    /// TLS is its cause.
    pub(super) async fn status(&self, endpoint: &str) -> Result<StatusResponse, (Fault, bool)> {
        if let Some(user) = &self.user
            && !self.logged_in.load(Ordering::Relaxed)
        {
            match self.log_in(user, endpoint, Instant::now()).await {
                // Without a connection the calls below fail too, and show whether TLS is the cause.
                Ok(()) | Err(Fault::NotProposed(_)) => {}
                Err(fault) => return Err((fault, false)),
            }
        }
        let sent = Instant::now();
        let refused = match self.try_status().await {
            Err((fault, false)) => fault,
            answer => return answer,
        };
        match self.log_in_again(endpoint, &refused, sent).await {
            Ok(true) => self.try_status().await,
            Ok(false) | Err(Fault::NotProposed(_)) => Err((refused, false)),
            Err(fault) => Err((fault, false)),
        }
    }

    async fn try_status(&self) -> Result<StatusResponse, (Fault, bool)> {
        let mut streams = self.streams.maintenance_client();
        let mut calls = self.calls.maintenance_client();
        let (first, second) = tokio::join!(calls.status(), streams.status());
        let untrusted = [&first, &second]
            .iter()
            .any(|asked| asked.as_ref().is_err_and(is_untrusted));
        second
            .and(first)
            .map_err(|error| (fault(&error), untrusted))
    }
}

/// An endpoint for which no connection was made yet.
pub(super) struct EndpointUrl {
    name: String,
    endpoint: Endpoint,
}

impl EndpointUrl {
    pub(super) fn new(
        given: &str,
        options: &EtcdOptions,
        credentials: &Credentials,
    ) -> Result<Self, OpenError> {
        let wrong = |reason: String| OpenError::Options {
            reason: format!("the etcd endpoint {given:?}: {reason}"),
        };
        let (scheme, rest) = match given.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, given),
        };
        let scheme = match (scheme, &options.tls) {
            (Some("https"), _) | (None, Some(_)) => "https",
            (Some("http"), Some(_)) => {
                return Err(wrong("http:// with TLS options; use https://".to_owned()));
            }
            (Some("http") | None, None) => "http",
            (Some(other), _) => return Err(wrong(format!("{other}:// is not spoken by etcd"))),
        };
        let has_port = rest.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.trim_end_matches('/').parse::<u16>().is_ok()
        });
        if !has_port {
            return Err(wrong("it needs a host and a port".to_owned()));
        }
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{rest}"))
            .map_err(|error| wrong(error.to_string()))?
            .user_agent(OWN_AGENT)
            .map_err(|error| wrong(error.to_string()))?
            .connect_timeout(PROBE_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        if scheme == "https" {
            endpoint = endpoint
                .tls_config(tls_config(options, credentials))
                .map_err(|error| {
                    let cause = std::error::Error::source(&error);
                    wrong(with_causes(format!("TLS: {error}"), cause))
                })?;
        }
        Ok(Self {
            name: given.to_owned(),
            endpoint,
        })
    }

    async fn client(&self) -> Result<Client, OpenError> {
        // Every call requires a leader: a member without one returns an error instead of waiting
        // for it.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let channel = Channel::Tonic(self.endpoint.connect_lazy());
        let client = Client::from_channel(channel, Some(options)).await;
        client.map_err(|error| OpenError::Options {
            reason: format!("the etcd endpoint {:?}: {}", self.name, describe(&error)),
        })
    }

    pub(super) async fn clients(
        &self,
        credentials: &Credentials,
    ) -> Result<Arc<Clients>, OpenError> {
        let calls = self.client().await?;
        let streams = self.client().await?;
        Ok(Arc::new(Clients {
            kv: calls
                .kv_client()
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            watches: streams
                .watch_client()
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            calls,
            streams,
            user: credentials.user.clone(),
            logins: Logins::default(),
            logged_in: AtomicBool::new(false),
        }))
    }
}

fn tls_config(options: &EtcdOptions, credentials: &Credentials) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new();
    let Some(tls) = &options.tls else {
        return config.with_native_roots();
    };
    config = match &credentials.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(ca)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &credentials.cert_and_key {
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    config
}
