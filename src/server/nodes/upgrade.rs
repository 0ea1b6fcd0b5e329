//! The offer of a client to replace HTTP on its connection by another protocol.
//!
//! The request passes the pipeline as if the client had made no offer, except that a stage can see the
//! offer. If the reply then is a tunnel or, for a WebSocket, a watch, the connection is upgraded.

use std::sync::Arc;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;

use crate::answer::respond::Reply;
use crate::nodes::tunnel::Tunnel;
use crate::watch::websocket;

/// The offer of a client, which the request carries as an extension.
#[derive(Clone)]
pub(crate) struct UpgradeOffer {
    /// The header `Upgrade`.
    pub protocol: HeaderValue,
    /// The headers of the WebSocket handshake, without a token.
    pub handshake: HeaderMap,
}

/// A connection that can be upgraded.
pub(crate) struct ClientUpgrade {
    connection: OnUpgrade,
    websocket: Option<websocket::Handshake>,
}

/// The use of a connection after its upgrade.
pub(crate) enum Session {
    /// A watch over a WebSocket.
    Watch(websocket::Session),
    /// A tunnel to a node or pod.
    Tunnel(OnUpgrade, Tunnel),
}

/// The tunnel of a reply, which the reply carries as an extension.
#[derive(Clone)]
pub(super) struct TunnelOfReply(Arc<Mutex<Option<Tunnel>>>);

impl TunnelOfReply {
    pub(super) fn new(tunnel: Tunnel) -> Self {
        Self(Arc::new(Mutex::new(Some(tunnel))))
    }
}

impl ClientUpgrade {
    /// Takes the offer out of a request; returns `None` if the client makes none.
    pub(crate) fn take(request: &mut Request<Incoming>) -> Option<Self> {
        if request.version() != Version::HTTP_11 || !wants_upgrade(request.headers()) {
            return None;
        }
        let protocol = request.headers().get(UPGRADE)?.clone();
        let connection = hyper::upgrade::on(&mut *request);
        let (websocket, handshake) = match websocket::Handshake::take(request.headers_mut()) {
            Some((websocket, handshake)) => (Some(websocket), handshake),
            None => (None, HeaderMap::new()),
        };
        request.extensions_mut().insert(UpgradeOffer {
            protocol,
            handshake,
        });
        Some(Self {
            connection,
            websocket,
        })
    }

    /// Returns the reply for the client, and the session that then uses the connection.
    pub(crate) fn answer(self, mut reply: Reply) -> (Reply, Option<Session>) {
        if let Some(TunnelOfReply(tunnel)) = reply.extensions_mut().remove() {
            let tunnel = tunnel.lock().take();
            return (
                reply,
                tunnel.map(|tunnel| Session::Tunnel(self.connection, tunnel)),
            );
        }
        match self.websocket {
            Some(websocket) => {
                let (reply, session) = websocket.answer(self.connection, reply);
                (reply, session.map(Session::Watch))
            }
            None => (reply, None),
        }
    }
}

impl Session {
    /// Serves until one side ends it. Must be called after HTTP has ended on the connection. Dropping
    /// the future aborts the connection.
    pub(crate) async fn serve(self) {
        match self {
            Self::Watch(session) => session.serve().await,
            Self::Tunnel(connection, tunnel) => tunnel.serve(connection).await,
        }
    }
}

/// Returns whether the client wants another protocol, as upstream decides it.
pub(crate) fn wants_upgrade(headers: &HeaderMap) -> bool {
    let says_upgrade = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or("");
        text.to_ascii_lowercase().contains("upgrade")
    };
    headers.contains_key(UPGRADE) && headers.get_all(CONNECTION).iter().any(says_upgrade)
}
