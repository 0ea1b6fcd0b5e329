//! Watches: how one continues when its plane changes owners, and how it is sent over a WebSocket.
//!
//! `session` opens a watch and opens it again, `kept_head` says what it keeps of its request for that,
//! `watch_query` rewrites its query for another replica, `relay` passes on the events that another replica sends, `record` is the form in which
//! they arrive, `lines` the one of older replicas, `position` keeps up to which version the client has
//! them, `open_watches` ends watches whose clients lost their access, `packed` is the compressed form, and `websocket`
//! frames events for browsers. The events themselves come from the registry.

mod kept_head;
pub(crate) mod lines;
pub(crate) mod open_watches;
pub(crate) mod packed;
pub(crate) mod position;
pub(crate) mod record;
pub(crate) mod relay;
pub(crate) mod session;
pub(crate) mod watch_query;
pub(crate) mod websocket;
