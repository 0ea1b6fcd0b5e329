//! What all connections of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyplane_auth::Anonymous;

use crate::backend::Backend;
use crate::body::AtomicCounter;
use crate::documents::Documents;
use crate::drain::Drain;
use crate::health::Checks;
use crate::limits::Limits;
use crate::metrics::{Exposition, Kind, Metrics};
use crate::respond::CommonHeaders;

pub(crate) struct Shared {
    pub backend: Arc<dyn Backend>,
    pub limits: Limits,
    pub metrics: Metrics,
    pub drain: Arc<Drain>,
    pub checks: Checks,
    pub documents: Documents,
    pub anonymous: Anonymous,
    pub common_headers: CommonHeaders,
    pub abandoned_answers: Arc<AtomicCounter>,
}

impl Shared {
    /// `address` is host and port as discovery names them.
    pub(crate) fn new(backend: Arc<dyn Backend>, limits: Limits, address: String) -> Arc<Self> {
        let drain = Drain::new();
        let metrics = Metrics::new(
            limits.reads_in_flight_max,
            limits.writes_in_flight_max,
            limits.connections_max,
        );
        Arc::new(Self {
            checks: Checks::new(backend.checks(), Arc::clone(&drain)),
            metrics,
            backend,
            limits,
            drain,
            documents: Documents::new(address),
            anonymous: Anonymous::public_paths(),
            common_headers: CommonHeaders::new(),
            abandoned_answers: Arc::default(),
        })
    }

    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The text behind `/metrics`.
    pub(crate) fn expose(&self) -> String {
        let mut out = Exposition::default();
        self.metrics.expose(&mut out);
        let name = "polyplane_abandoned_answers_total";
        out.family(
            name,
            Kind::Counter,
            "Answers given up because nobody fetched them.",
        );
        out.sample(name, &[], self.abandoned_answers.load(Ordering::Relaxed));
        self.backend.measure(&mut out);
        out.process();
        out.into_text()
    }
}
