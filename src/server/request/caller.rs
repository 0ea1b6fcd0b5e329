//! Who sends a request: a client, or a replica to which the client is connected.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::connection::Connection;
use crate::watch::record::WatchForm;

/// The sender of a request.
pub(crate) struct Caller {
    pub connection: Arc<Connection>,
    pub origin: Origin,
    /// The id of the plane that the peer means, unless its release is too old to name it.
    pub plane: Option<HeaderValue>,
}

/// The way by which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The request came from the client itself.
    Client,
    /// The request came from a peer to which the client is connected.
    Peer {
        /// The time until the deadline that the replica which received the request has set.
        time_left: Option<Duration>,
        /// The form in which that replica expects a watch.
        watch_form: WatchForm,
        /// True if another replica has answered a part of the watch.
        resumed: bool,
        /// True if that replica connects the client to a node or pod by itself.
        connects: bool,
        /// True if that replica asks only whether the caller is proven.
        proves: bool,
    },
}

impl Caller {
    /// Returns whether a peer asks only whether the caller is proven.
    pub(crate) fn is_for_proof(&self) -> bool {
        matches!(self.origin, Origin::Peer { proves: true, .. })
    }
}
