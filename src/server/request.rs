//! The stages up to the registry: what a request names, who sends it, and what it may use.
//!
//! | file | |
//! | file | decides |
//! |---|---|
//! | `route`, `request_info` | from path and method, which plane and which resource the request
//! names |
//! | `caller` | who sends it: a client, or a replica for its client |
//! | `audit_id` | the id under which logs name the request |
//! | `audited` | what the audit log says of the request |
//! | `prove` | who the caller is: 401 |
//! | `bearer` | which token it carries |
//! | `authorize`, `impersonate` | whether the caller may do it: 403 |
//! | `deadline` | how long the request may take: 504 |
//! | `plane_limits` | what the plane may use: 429 |
//! | `seat` | how many requests are in flight: 429 |
//! | `flow` | when the request's priority level has seats for it: 429 |
//! | `beginning` | when a watch leaves these seats |
//! | `resolve` | which kind and verb the request means: 404, 405 |
//! | `body`, `inbound`, `budget` | how long a body is, and how much memory bodies use: 413, 429 |
//! | `resource_request` | what the registry gets |
//! | `limits` | the limits that options set |
//! | `charge` | what the request costs its plane |
//! | `doorway` | when unproven work goes on, and how much of it waits: 429 |
//! | `proofs` | how many proofs wait for the owner of their plane, for each source and in all: 429 |
//! | `turn` | when the request goes on, if several planes want the CPU |
//! | `heavy` | on which thread work on a large body is done, and when |
//! | `single` | what a server of one plane does otherwise |
//!
//! [`crate::pipeline`] gives the order of these stages.

pub(crate) mod audit_id;
pub(crate) mod audited;
pub(crate) mod authorize;
pub(crate) mod bearer;
pub(crate) mod beginning;
pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod caller;
pub(crate) mod charge;
pub(crate) mod deadline;
pub(crate) mod doorway;
pub(crate) mod flow;
pub(crate) mod heavy;
pub(crate) mod impersonate;
pub(crate) mod inbound;
pub(crate) mod limits;
pub(crate) mod plane_limits;
pub(crate) mod proofs;
pub(crate) mod prove;
pub(crate) mod renew;
pub(crate) mod request_info;
pub(crate) mod resolve;
pub(crate) mod resource_request;
pub(crate) mod route;
pub(crate) mod seat;
pub(crate) mod seats;
pub(crate) mod single;
pub(crate) mod turn;
