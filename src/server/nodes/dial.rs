//! From the name or the address of a server to a socket.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;

use polyplane_outbound::Reach;

/// Longest time to resolve a name, to connect and to shake hands. Without it, an address that swallows
/// packets would keep the request until its deadline.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Addresses of one name that are considered. A name with more would cost too many attempts.
const ADDRESSES_MAX: usize = 8;

/// The reason why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The name has no address.
    #[error("dial tcp: lookup {0}: no such host")]
    Unknown(String),
    /// The address may not be connected to.
    #[error("address not allowed")]
    NotAllowed,
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

/// Connects to a server. The name is resolved once, and the addresses that were checked are the ones
/// that are connected. One that is not allowed refuses the whole name, so that a name with a public and
/// a private address is of no use for an attack.
pub(super) async fn dial(host: &str, port: u16, reach: &Reach) -> Result<TcpStream, DialError> {
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => {
            let found = tokio::net::lookup_host((host, port)).await;
            let found = found.map_err(|_| DialError::Unknown(host.to_owned()))?;
            found.take(ADDRESSES_MAX).collect()
        }
    };
    if !addresses.iter().all(|address| reach.allows(address.ip())) {
        return Err(DialError::NotAllowed);
    }
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
