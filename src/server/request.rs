//! What a request asks for, who asks, and what it may take, up to the registry.
//!
//! | file | |
//! |---|---|
//! | `route`, `request_info` | the path and the method: which plane, which resource |
//! | `audit_id` | the id under which logs name the request |
//! | `prove` | who the caller is: 401 |
//! | `authorize`, `impersonate` | whether the caller may: 403 |
//! | `deadline` | how long it may take: 504 |
//! | `seat` | how many requests are in flight: 429 |
//! | `resolve` | which kind and verb is meant: 404, 405 |
//! | `body`, `inbound`, `budget` | the body, and the memory that bodies take: 413, 429 |
//! | `resource_request` | what the registry gets |
//! | `limits` | the limits that options set |
//!
//! The order in which a request passes them is [`crate::pipeline`]'s.

pub(crate) mod audit_id;
pub(crate) mod authorize;
pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod deadline;
pub(crate) mod impersonate;
pub(crate) mod inbound;
pub(crate) mod limits;
pub(crate) mod prove;
pub(crate) mod request_info;
pub(crate) mod resolve;
pub(crate) mod resource_request;
pub(crate) mod route;
pub(crate) mod seat;
