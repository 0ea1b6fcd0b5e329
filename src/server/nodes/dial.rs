//! From the name or the address of a server to a socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use polyplane_outbound::Reach;

/// Longest time to resolve a name and to connect, and longest time to shake hands. Without it, an address
/// that swallows packets would keep the request until its deadline.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Addresses of one name that are considered. A name with more would cost too many attempts.
const ADDRESSES_MAX: usize = 8;

/// The reason why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The name has no address.
    #[error("dial tcp: lookup {0}: no such host")]
    Unknown(String),
    /// The address, or one of those of the name, may not be connected to.
    #[error("address not allowed")]
    NotAllowed,
    /// The name was not resolved, where [`DialError::NotAllowed`] is possible too. Users of the plane must
    /// not see which of the two it is: they choose the name, and would learn which names the operator's DNS
    /// has.
    #[error("no address of {host} was found: {why}")]
    Unresolved {
        /// The name.
        host: String,
        /// What the resolver said.
        why: String,
    },
    /// Nobody accepts connections there.
    #[error("dial tcp {0}: connect: {1}")]
    Refused(SocketAddr, String),
    /// The server's TLS, or the server's certificate, is not accepted.
    #[error("tls: {0}")]
    Tls(#[source] io::Error),
    /// TLS cannot be set up for this server.
    #[error("tls: {0}")]
    Identity(#[from] super::KubeletTlsError),
    /// It took longer than [`CONNECT_TIME_MAX`].
    #[error("dial tcp: i/o timeout")]
    TimedOut,
}

/// Returns the words for a failure that clients know from Go.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        _ => error.to_string(),
    }
}

impl DialError {
    /// Returns whether users of the plane learn only that the address is not allowed.
    pub(super) fn is_hidden(&self) -> bool {
        match self {
            Self::NotAllowed | Self::Unresolved { .. } => true,
            Self::Unknown(_)
            | Self::Refused(..)
            | Self::Tls(_)
            | Self::Identity(_)
            | Self::TimedOut => false,
        }
    }
}

/// Connects to a server, in at most [`CONNECT_TIME_MAX`]. The name is resolved once, and the addresses that
/// were checked are the ones that are connected.
pub(super) async fn dial(host: &str, port: u16, reach: &Reach) -> Result<TcpStream, DialError> {
    let ends = Instant::now() + CONNECT_TIME_MAX;
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => resolve(host, port, reach, ends).await?,
    };
    if !addresses.iter().all(|address| reach.allows(address.ip())) {
        // One refuses the whole name, so that a name with a public and a private address is of no use for
        // an attack.
        return Err(DialError::NotAllowed);
    }
    let connected = timeout_at(ends, connect(host, addresses)).await;
    connected.map_err(|_| DialError::TimedOut)?
}

/// Returns the addresses of a name, at least one.
async fn resolve(
    host: &str,
    port: u16,
    reach: &Reach,
    ends: Instant,
) -> Result<Vec<SocketAddr>, DialError> {
    let failed = |why: String, seen: DialError| match reach {
        Reach::Anywhere => seen,
        Reach::Public(_) => DialError::Unresolved {
            host: host.to_owned(),
            why,
        },
    };
    let unknown = || DialError::Unknown(host.to_owned());
    let found = match timeout_at(ends, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(failed(error.to_string(), unknown())),
        Err(_) => return Err(failed("it took too long".to_owned(), DialError::TimedOut)),
    };
    let addresses: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
    match addresses.is_empty() {
        true => Err(failed("it has none".to_owned(), unknown())),
        false => Ok(addresses),
    }
}

/// Connects to the first of the addresses that accepts.
async fn connect(host: &str, addresses: Vec<SocketAddr>) -> Result<TcpStream, DialError> {
    let mut refused = DialError::Unknown(host.to_owned());
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "Nagle's algorithm could not be turned off");
                }
                return Ok(stream);
            }
            Err(error) => refused = DialError::Refused(address, words(&error)),
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no resolver looks up.
    const NO_NAME: &str = "a..b";

    #[tokio::test]
    async fn users_do_not_learn_which_names_the_operators_dns_has() {
        let public = Reach::Public([].into());
        let mut reasons = Vec::new();
        for host in ["localhost", NO_NAME] {
            let error = dial(host, 1, &public).await.expect_err(host);
            assert!(error.is_hidden(), "{error}");
            reasons.push(error.to_string());
        }
        assert_ne!(reasons[0], reasons[1], "the log has the reason");
    }

    #[tokio::test]
    async fn where_every_address_is_allowed_a_name_without_one_is_named() {
        let error = dial(NO_NAME, 1, &Reach::Anywhere).await.expect_err("none");
        assert!(matches!(&error, DialError::Unknown(_)), "{error}");
        assert!(!error.is_hidden());
    }
}
