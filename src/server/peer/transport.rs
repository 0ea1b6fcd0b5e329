//! Sends messages to other replicas. Forwarded requests use [`super::pool`] directly.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use polyplane_apimachinery::error_chain;
use polyplane_ownership::{Member, PeerError, PeerReply, PeerRequest, PeerTrust, Peers};
use polyplane_pki::PeerTls;

use crate::backend::Peer;
use crate::peer::PeerLimits;
use crate::peer::channel::stream::Broken;
use crate::peer::headers::MEANT_FOR;
use crate::peer::pool::{ConnectError, ConnectFailure, Pool, PoolLoad, SendError, is_distrust};
use crate::peer::wire;

/// The path to which messages are posted.
pub(super) const MESSAGE_PATH: &str = "/peer/v1/message";
/// The header that names the sender if all replicas share one certificate.
pub(super) const SENDER: http::HeaderName = http::HeaderName::from_static("x-polyplane-sender");

/// Sends messages to other replicas over mutual TLS. It opens connections when they are needed.
pub struct PeerTransport {
    pool: Pool,
    limits: PeerLimits,
}

impl PeerTransport {
    /// Creates a transport that shows the certificate in `tls`. It opens no connection yet.
    pub fn new(tls: Arc<PeerTls>, limits: PeerLimits) -> Arc<Self> {
        Arc::new(Self {
            pool: Pool::new(tls, limits.clone()),
            limits,
        })
    }

    /// Drops the connections to peers that have left the ring. The membership calls this with each
    /// new view of the ring; requests to such a peer that may be carried out twice are sent again
    /// at once.
    pub fn retain(&self, is_member: impl Fn(&Peer) -> bool) {
        self.pool.retain(is_member);
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn tls(&self) -> &Arc<PeerTls> {
        self.pool.tls()
    }

    pub(crate) fn limits(&self) -> &PeerLimits {
        &self.limits
    }

    /// Returns how busy the connections to peers are.
    pub(crate) fn load(&self) -> PoolLoad {
        self.pool.load()
    }

    async fn send_message(
        &self,
        peer: &Peer,
        request: &PeerRequest,
    ) -> Result<PeerReply, PeerError> {
        let failed = |error: &dyn std::error::Error| PeerError::Failed(error.to_string());
        let body = wire::encode(request).map_err(|error| failed(&error))?;
        let mut http_request = Request::new(body);
        let mut headers = HeaderMap::new();
        http_request.body().announce(&mut headers);
        *http_request.method_mut() = Method::POST;
        *http_request.uri_mut() = Uri::from_static(MESSAGE_PATH);
        for (name, value) in [
            (MEANT_FOR, peer.replica.as_str()),
            (SENDER, self.tls().replica()),
        ] {
            let value = HeaderValue::try_from(value).map_err(|error| failed(&error))?;
            headers.insert(name, value);
        }
        *http_request.headers_mut() = headers;
        let link = self.pool.link(peer);
        let response = match self.pool.send(&link, &http_request).await {
            Ok(response) => response,
            Err(SendError::NotSent(ConnectError::Refused)) => return Err(PeerError::Refused),
            Err(SendError::NotSent(ConnectError::TimedOut)) => return Err(PeerError::TimedOut),
            Err(error @ SendError::NotSent(ConnectError::Gone)) => {
                return Err(PeerError::Ended(error_chain(&error)));
            }
            Err(SendError::NotSent(ConnectError::Failed(why))) if why.is_distrust() => {
                return Err(PeerError::Untrusted(error_chain(&why)));
            }
            Err(SendError::NotSent(ConnectError::Failed(
                why @ ConnectFailure::OtherReplica { .. },
            ))) => return Err(PeerError::OtherReplica(why.to_string())),
            Err(error @ SendError::NotSent(ConnectError::Failed(_))) => {
                return Err(PeerError::Failed(error_chain(&error)));
            }
            Err(SendError::TooLong(why)) => return Err(failed(&why)),
            Err(SendError::Broken(why)) => return Err(broken(&why)),
        };
        let status = response.status();
        let mut body = response.into_body();
        let read = wire::read_to_end(&mut body, PeerReply::BYTES_MAX).await;
        let bytes = read.map_err(|error| match error {
            wire::WireError::Broken(why) => broken(&why),
            _ => PeerError::Failed(error_chain(&error)),
        })?;
        if status != StatusCode::OK {
            return Err(no_reply(peer, status, &String::from_utf8_lossy(&bytes)));
        }
        serde_json::from_slice(&bytes).map_err(|error| failed(&error))
    }
}

/// Converts an answer to a message that is no reply into an error of the peer.
fn no_reply(peer: &Peer, status: StatusCode, text: &str) -> PeerError {
    let text = text.trim();
    match status {
        // If all replicas share one certificate, only this answer tells that another one has the address.
        StatusCode::MISDIRECTED_REQUEST => {
            PeerError::OtherReplica(format!("{}: {text}", peer.address))
        }
        _ => PeerError::Failed(format!("{status}: {text}")),
    }
}

/// Converts a connection that broke before the reply into an error of the peer.
fn broken(why: &Broken) -> PeerError {
    // In TLS 1.3 a client learns only from its first read that its certificate was refused.
    if let Broken::Tls(error) = why
        && is_distrust(&error.0)
    {
        return PeerError::Untrusted(error.to_string());
    }
    let text = format!(
        "the connection broke before the answer: {}",
        error_chain(why)
    );
    match why.is_end() {
        true => PeerError::Ended(text),
        false => PeerError::Failed(text),
    }
}

#[async_trait]
impl Peers for PeerTransport {
    async fn call(&self, to: &Member, request: PeerRequest) -> Result<PeerReply, PeerError> {
        let peer = Peer {
            replica: to.id.as_str().to_owned(),
            address: to.address.as_str().to_owned(),
        };
        if request.payload.len() > self.limits.payload_bytes_max {
            let bytes_max = self.limits.payload_bytes_max;
            return Err(PeerError::Failed(format!(
                "the payload is longer than {bytes_max} bytes"
            )));
        }
        let time_max = self.limits.message_time_max(request.payload.len());
        tokio::time::timeout(time_max, self.send_message(&peer, &request))
            .await
            .unwrap_or(Err(PeerError::TimedOut))
    }

    fn trust(&self) -> Option<PeerTrust> {
        let configs = self.tls().current();
        let cas = configs.cas()?;
        Some(PeerTrust {
            issuer: cas.issuer.clone(),
            trusted: cas.trusted.clone(),
        })
    }

    fn own_invalidity(&self) -> Option<String> {
        self.tls().current().invalidity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::AlertDescription;
    use std::io;

    #[test]
    fn a_refused_certificate_is_told_from_other_failures() {
        let tls = |error: rustls::Error| {
            let failed = || io::Error::new(io::ErrorKind::InvalidData, error.clone());
            let connecting = ConnectFailure::System(failed().into()).is_distrust();
            let reading = broken(&Broken::from(failed()));
            (connecting, matches!(reading, PeerError::Untrusted(_)))
        };
        let alert = rustls::Error::AlertReceived;
        for error in [
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer),
            rustls::Error::NoCertificatesPresented,
            alert(AlertDescription::UnknownCA),
            alert(AlertDescription::BadCertificate),
            alert(AlertDescription::CertificateExpired),
            alert(AlertDescription::CertificateRequired),
        ] {
            assert_eq!(tls(error.clone()), (true, true), "{error}");
        }
        for error in [
            rustls::Error::DecryptError,
            alert(AlertDescription::InternalError),
            alert(AlertDescription::NoApplicationProtocol),
        ] {
            assert_eq!(tls(error.clone()), (false, false), "{error}");
        }
    }

    #[test]
    fn an_answer_of_another_replica_is_told_from_a_refusal() {
        let peer = Peer {
            replica: "polyplane-1".to_owned(),
            address: "h:1".to_owned(),
        };
        let other = no_reply(
            &peer,
            StatusCode::MISDIRECTED_REQUEST,
            "this is replica polyplane-2\n",
        );
        let text = "h:1: this is replica polyplane-2".to_owned();
        assert_eq!(other, PeerError::OtherReplica(text));
        let refused = no_reply(&peer, StatusCode::BAD_REQUEST, "no\n");
        assert!(matches!(refused, PeerError::Failed(_)), "{refused}");
    }

    #[test]
    fn what_ends_a_connection_is_told_from_what_is_said_over_it() {
        let socket = |kind: io::ErrorKind| Broken::from(io::Error::from(kind));
        for why in [
            Broken::Closed,
            Broken::Silent,
            socket(io::ErrorKind::UnexpectedEof),
            socket(io::ErrorKind::ConnectionReset),
            socket(io::ErrorKind::BrokenPipe),
            // A connection that was established proves nothing about the process when it breaks.
            socket(io::ErrorKind::ConnectionRefused),
        ] {
            assert!(matches!(broken(&why), PeerError::Ended(_)), "{why}");
        }
        for why in [
            Broken::Reset,
            Broken::Protocol("nonsense"),
            socket(io::ErrorKind::InvalidData),
        ] {
            assert!(matches!(broken(&why), PeerError::Failed(_)), "{why}");
        }
    }
}
