//! The HTTP server: from a socket to a request that the registry understands, and back.
//!
//! Start reading at `pipeline`, which follows one request from top to bottom.
//!
//! | folder | open it if |
//! |---|---|
//! | `connection` | connections are refused, closed or slow; TLS of clients |
//! | `request` | a request gets 401, 403, 404, 413, 429 or 504 too early or too late |
//! | `answer` | status, form, headers or length of an answer are wrong |
//! | `watch` | a watch ends, does not resume, or breaks over a WebSocket |
//! | `nodes` | a log, a tunnel or a proxy to a node or pod does not work |
//! | `documents` | discovery, OpenAPI or `/version` are wrong |
//! | `peer` | a forwarded request or a message between replicas goes wrong |
//! | `operations` | health, metrics, reports, drain |
//!
//! If a plane does not wake, look behind [`Backend`]: in `planes` of the crate `ownership` (its fence)
//! and in `lifecycle` of the crate `plane` (its state).
//!
//! The certificates are `polyplane_pki`'s. The server is built from `options`, runs in `server`,
//! and gets planes from the [`Backend`].
//!
//! Two groups of files use each other in circles, because their types do. An answer has a body, a body
//! may be a watch that is relayed from a peer, and messages of peers carry answers: `answer::{body,
//! guard, respond}`, `watch::{record, relay}` and most of `peer`. The pipeline calls its stages, and
//! stages need the pipeline or the server's state: `pipeline`, `server_state`, `connection`,
//! `peer::{forward, listener}` and some files of `request`, `documents` and `operations`.
//!
//! Invariant: the server knows no kind, no key and no store; kinds come as a table, planes as trait
//! objects.

mod answer;
mod backend;
mod connection;
mod documents;
mod nodes;
mod operations;
mod option_problems;
mod options;
mod peer;
mod pipeline;
mod request;
mod server;
mod server_state;
mod watch;

pub use answer::browsers::{BrowserOptions, BrowserProblem, Browsers};
pub use backend::{
    Backend, BoxFuture, CheckScope, HealthCheck, LocateError, Location, NotJudged, Peer, PlaneApi,
    PlaneRecord,
};
pub use connection::goaway::GOAWAY_CHANCE_MAX;
pub use nodes::{KubeletIdentity, KubeletTls, KubeletTlsError, NodeAccess};
pub use operations::exposition::{Exposition, Kind};
pub use operations::local::DrainRequested;
pub use operations::plane_metrics::{CustomNames, expose_objects};
pub use operations::status_pages::FlagValues;
pub use options::{CompletedOptions, Config, Options, StopPolicy};
pub use peer::transport::PeerTransport;
pub use peer::{PeerLimits, Peering};
pub use request::limits::Limits;
pub use request::route::PlaneReference;
pub use request::single::SinglePlane;
pub use server::{PeerService, Server, StopHandle, Stopped};
pub use watch::open_watches::WatchGuard;
