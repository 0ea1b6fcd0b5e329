//! Watches: how one goes on when its plane changes hands, and how it is shown over a WebSocket.
//!
//! `session` opens a watch and opens it again, `watch_query` rewrites its query for another
//! replica, `relay` passes on what another replica sends, and `websocket` frames events for
//! browsers. The events themselves come from the registry.

pub(crate) mod relay;
pub(crate) mod session;
pub(crate) mod watch_query;
pub(crate) mod websocket;
