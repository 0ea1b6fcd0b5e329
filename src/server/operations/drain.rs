//! The four steps in which a server stops.
//!
//! 1. *Unready*: `/readyz` fails so that load balancers use other replicas; everything is served.
//! 2. *Closing*: no new connections and requests are accepted, requests in flight finish.
//! 3. *Ending*: watches end cleanly, so that clients resume at other replicas.
//! 4. *Aborting*: connections that are still open are aborted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// How far a server has stopped, for all tasks that have to notice.
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

    /// Cancelled when connections are to accept no more requests.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Watches end from here on.
    pub(crate) fn ending(&self) -> &CancellationToken {
        &self.ending
    }

    /// Connections are aborted from here on.
    pub(crate) fn aborting(&self) -> &CancellationToken {
        &self.aborting
    }
}
