//! The one caller of servers that are not this installation's: issuers of tokens, and webhooks.
//!
//! A [`Caller`] is one of a process. It gives each plane a [`PlaneCaller`], which makes a [`Target`]
//! for each server that the plane's configuration names. A [`Call`] to a target has a deadline, a
//! bounded body and a bounded answer; it follows no redirect and uses no proxy.
//!
//! What a plane names is not trusted: the addresses of its targets are checked after each look-up,
//! and the connection goes to the very addresses that were checked. Places are bounded for each
//! target, each plane and the process, and a target that fails is left alone for a while, so a server
//! that hangs takes the places of no other plane.
//!
//! Invariant: this crate does not know what is asked, nor keeps any answer.

mod address;
mod caller;
mod circuit;
mod log_pause;
mod resolver;
mod target;
mod trust;

pub use address::{Allowed, AllowedError, Network, NetworkError, Reach, is_global_unicast};
pub use caller::{Caller, OutboundMetrics, PlaneCaller};
pub use circuit::Circuit;
pub use log_pause::LogPause;
pub use target::{Answer, Call, CallError, Target, TargetError};
pub use trust::{ClientIdentity, Trust, TrustError};
