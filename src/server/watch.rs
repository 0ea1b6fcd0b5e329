//! Watches: how one goes on when its plane changes hands, and how it is shown over a WebSocket.
//!
//! `session` opens a watch and opens it again, `watch_query` rewrites its query for another
//! replica, `relay` passes on what another replica sends, `record` is the form in which it arrives,
//! `position` is how far the client is, and `websocket` frames events for browsers. The events
//! themselves come from the registry.

pub(crate) mod position;
pub(crate) mod record;
pub(crate) mod relay;
pub(crate) mod session;
pub(crate) mod watch_query;
pub(crate) mod websocket;
