//! The verbs: what each one does with a kind and an object. Those that write pass a plan to
//! [`crate::write`].
pub mod apply;
pub mod components;
pub mod connect;
pub mod create;
pub mod credential;
pub mod delete;
pub mod evict;
pub mod external;
pub mod list;
pub mod patch;
pub mod review;
pub mod scale_and_binding;
pub mod token_request;
pub mod update;
pub mod watch;
