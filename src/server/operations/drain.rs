//! The four steps in which a server stops.
//!
//! 1. *Unready*: `/readyz` fails so that load balancers use other replicas; everything is served. Answers over
//!    HTTP/1.1 close their connections, so that few are open when the server closes.
//! 2. *Closing*: the server accepts no new connections and requests, on connections of HTTP/1.1 after a moment;
//!    requests in flight finish.
//! 3. *Ending*: watches end cleanly, so that clients resume at other replicas.
//! 4. *Aborting*: the server aborts connections that are still open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// The steps that a stopping server has taken. Tasks of the server wait for those that concern
/// them.
#[derive(Debug)]
pub(crate) struct Drain {
    ready: AtomicBool,
    closing: CancellationToken,
    ending: CancellationToken,
    aborting: CancellationToken,
}

impl Drain {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            ready: AtomicBool::new(true),
            closing: CancellationToken::new(),
            ending: CancellationToken::new(),
            aborting: CancellationToken::new(),
        })
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    pub(crate) fn unready(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.unready();
        self.closing.cancel();
    }

    pub(crate) fn end_watches(&self) {
        self.close();
        self.ending.cancel();
    }

    pub(crate) fn abort(&self) {
        self.end_watches();
        self.aborting.cancel();
    }

    /// Returns the token that is cancelled when connections may accept no more requests.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Returns the token that is cancelled when watches have to end.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    /// Returns the token that is cancelled when open connections have to be aborted.
    pub(crate) fn aborting(&self) -> &CancellationToken {
        &self.aborting
    }
}
