//! How often authorizers have decided, for the metrics.

use crate::metrics::{Family, Labels, Samples, Sharded};
use polyplane_apimachinery::Str;
use polyplane_auth::Decision;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The decisions of one authorizer that end a chain.
#[derive(Debug)]
pub(super) struct DecisionCount {
    /// The type of the authorizer, as a configuration names it: `RBAC`.
    kind: &'static str,
    /// The name that the operator gives it.
    name: Str,
    counts: Sharded<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl DecisionCount {
    pub(super) fn new(kind: &'static str, name: &str) -> Self {
        Self {
            kind,
            name: name.into(),
            counts: Sharded::default(),
        }
    }

    /// Returns the name that the operator gives the authorizer.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether both count for one authorizer.
    pub(super) fn is_of_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name
    }

    /// Counts a decision, unless it is none.
    pub(super) fn count(&self, decision: &Decision) {
        let counts = self.counts.own();
        match decision {
            Decision::Allow => counts.allowed.fetch_add(1, Ordering::Relaxed),
            Decision::Deny(_) => counts.denied.fetch_add(1, Ordering::Relaxed),
            Decision::NoOpinion(_) => return,
        };
    }
}

/// Returns the decisions of authorizers, those of one type and name added up.
pub(super) fn family<'a>(counts: impl Iterator<Item = &'a DecisionCount>) -> Family {
    let mut sums: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for DecisionCount { kind, name, counts } in counts {
        let allowed = counts.sum(|counts| &counts.allowed);
        let denied = counts.sum(|counts| &counts.denied);
        for (decision, count) in [("allowed", allowed), ("denied", denied)] {
            if count > 0 {
                *sums.entry((decision, name.as_str(), *kind)).or_default() += count;
            }
        }
    }
    let samples = sums.into_iter().map(|((decision, name, kind), count)| {
        let labels: Labels = vec![
            ("decision", decision.to_owned().into()),
            ("name", name.to_owned().into()),
            ("type", kind.to_owned().into()),
        ];
        (labels, count)
    });
    Family {
        name: "apiserver_authorization_decisions_total",
        help: "Decisions of authorizers after which no other was asked.",
        samples: Samples::Counters(samples.collect()),
    }
}
