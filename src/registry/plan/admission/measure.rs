//! How long admission takes, by plug-in and phase.
//!
//! The clock is read once between two plug-ins, and not at all in a phase in which none of them is
//! measured.

use super::{Admission, AdmissionChain, Interrupted, Operation};
use crate::metrics::{Durations, Family, Labels, Samples, Sharded};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The plug-in that is part of every plan of a write, and not of the chain.
const LIFECYCLE: &str = "NamespaceLifecycle";
/// Upper bounds of the buckets.
const BOUNDS: [Duration; 6] = [
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_millis(1000),
    Duration::from_millis(2500),
];
const PHASES: [&str; 2] = ["admit", "validate"];
const OPERATIONS: [&str; 3] = ["CREATE", "UPDATE", "DELETE"];
const REJECTED: [&str; 2] = ["false", "true"];

/// A phase of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Admit,
    Validate,
}

/// The calls of a plug-in that the metrics count: those that upstream makes of the plug-in of this
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// A bit for each phase and operation.
    calls: u8,
}

impl Measured {
    /// No call is counted. Upstream has no such plug-in.
    pub const NEVER: Self = Self { calls: 0 };

    /// Calls of [`Admission::mutate`] for these operations are counted.
    pub const fn mutating(operations: &[Operation]) -> Self {
        Self::of(Phase::Admit, operations)
    }

    /// Calls of [`Admission::validate`] for these operations are counted.
    pub const fn validating(operations: &[Operation]) -> Self {
        Self::of(Phase::Validate, operations)
    }

    /// Calls of both methods for these operations are counted.
    pub const fn both(operations: &[Operation]) -> Self {
        Self {
            calls: Self::mutating(operations).calls | Self::validating(operations).calls,
        }
    }

    const fn of(phase: Phase, operations: &[Operation]) -> Self {
        let (mut calls, mut at) = (0, 0);
        while at < operations.len() {
            calls |= Self::bit(phase, operations[at]);
            at += 1;
        }
        Self { calls }
    }

    const fn bit(phase: Phase, operation: Operation) -> u8 {
        1 << (phase as u8 * OPERATIONS.len() as u8 + operation as u8)
    }

    fn has(self, phase: Phase, operation: Operation) -> bool {
        self.calls & Self::bit(phase, operation) != 0
    }
}

type DurationsOfCall = Durations<{ BOUNDS.len() + 1 }>;
/// Durations by phase, operation, and whether the write was refused.
type Numbers = [[[DurationsOfCall; REJECTED.len()]; OPERATIONS.len()]; PHASES.len()];

/// The numbers of all plug-ins of a chain.
#[derive(Debug, Default)]
pub(super) struct AdmissionMetrics {
    /// Names, in the order of the chain; `NamespaceLifecycle` is the last.
    names: Vec<&'static str>,
    measured: Vec<Measured>,
    numbers: Sharded<ChainNumbers>,
}

#[derive(Debug, Default)]
struct ChainNumbers {
    steps: Numbers,
    plugins: Box<[Numbers]>,
}

impl AdmissionMetrics {
    /// Creates the numbers of a chain of these plug-ins.
    pub(super) fn of(plugins: &[Arc<dyn Admission>]) -> Self {
        let names = plugins.iter().map(|plugin| plugin.name());
        let measured = plugins.iter().map(|plugin| plugin.measured());
        let lifecycle = Measured::mutating(&[Operation::Create]);
        let count = plugins.len() + 1;
        Self {
            names: names.chain([LIFECYCLE]).collect(),
            measured: measured.chain([lifecycle]).collect(),
            numbers: Sharded::new(|| ChainNumbers {
                steps: Numbers::default(),
                plugins: (0..count).map(|_| Numbers::default()).collect(),
            }),
        }
    }

    fn families(&self) -> [Family; 2] {
        let (mut steps, mut plugins) = (Vec::new(), Vec::new());
        for series in all_series() {
            let observed = self.numbers.observed(|of| series.of(&of.steps));
            if observed.count() > 0 {
                steps.push((series.labels(None), observed));
            }
            for (at, name) in self.names.iter().enumerate() {
                let observed = self.numbers.observed(|of| series.of(&of.plugins[at]));
                if observed.count() > 0 {
                    plugins.push((series.labels(Some(name)), observed));
                }
            }
        }
        let family = |name, help, samples| Family {
            name,
            help,
            samples: Samples::Histograms {
                bounds: &BOUNDS,
                samples,
            },
        };
        [
            family(
                "apiserver_admission_controller_admission_duration_seconds",
                "How long a built-in admission plug-in has taken for a write.",
                plugins,
            ),
            family(
                "apiserver_admission_step_admission_duration_seconds",
                "How long all admission plug-ins have taken in one phase of a write.",
                steps,
            ),
        ]
    }
}

/// The place of one distribution among the [`Numbers`].
#[derive(Clone, Copy)]
struct Series {
    phase: usize,
    operation: usize,
    rejected: usize,
}

impl Series {
    fn of(self, numbers: &Numbers) -> &DurationsOfCall {
        &numbers[self.phase][self.operation][self.rejected]
    }

    fn labels(self, name: Option<&'static str>) -> Labels {
        let name = name.map(|name| ("name", name));
        let others = [
            ("operation", OPERATIONS[self.operation]),
            ("rejected", REJECTED[self.rejected]),
            ("type", PHASES[self.phase]),
        ];
        let labels = name.into_iter().chain(others);
        labels.map(|(name, value)| (name, value.into())).collect()
    }
}

fn all_series() -> impl Iterator<Item = Series> {
    let phases = 0..PHASES.len();
    phases.flat_map(|phase| {
        (0..OPERATIONS.len()).flat_map(move |operation| {
            (0..REJECTED.len()).map(move |rejected| Series {
                phase,
                operation,
                rejected,
            })
        })
    })
}

impl AdmissionChain {
    /// Returns the metrics of admission, and those of the plug-ins themselves.
    pub(crate) fn families(&self) -> Vec<Family> {
        let own = self.plugins.iter().flat_map(|plugin| plugin.families());
        self.metrics.families().into_iter().chain(own).collect()
    }
}

/// One phase of one write while it is measured.
pub(super) struct Step<'a> {
    metrics: &'a AdmissionMetrics,
    phase: Phase,
    /// The first reading of the clock.
    began: Option<Instant>,
    /// The last reading, unless work that is not measured has been done since.
    last: Option<Instant>,
    /// The end of what was measured.
    ended: Option<Instant>,
}

impl<'a> Step<'a> {
    pub(super) fn begin(chain: &'a AdmissionChain, phase: Phase) -> Self {
        Self {
            metrics: &chain.metrics,
            phase,
            began: None,
            last: None,
            ended: None,
        }
    }

    /// Runs `NamespaceLifecycle` for a new object.
    ///
    /// # Errors
    /// Returns its error, after which the phase has ended.
    pub(super) fn lifecycle<T>(
        &mut self,
        admit: impl FnOnce() -> Result<T, Interrupted>,
    ) -> Result<T, Interrupted> {
        let at = self.metrics.names.len().saturating_sub(1);
        self.run(at, Operation::Create, admit)
    }

    /// Runs the plug-in at a position of the chain.
    ///
    /// # Errors
    /// Returns its error, after which the phase has ended.
    #[inline]
    pub(super) fn run<T>(
        &mut self,
        at: usize,
        operation: Operation,
        plugin: impl FnOnce() -> Result<T, Interrupted>,
    ) -> Result<T, Interrupted> {
        let measured = self.metrics.measured.get(at).copied();
        let measured = measured.unwrap_or(Measured::NEVER);
        if !measured.has(self.phase, operation) {
            // What upstream would not call returns at once, so it may count as its successor's time.
            if measured == Measured::NEVER {
                self.last = None;
            }
            return plugin().inspect_err(|error| self.fail(operation, error));
        }
        let began = *self.last.get_or_insert_with(Instant::now);
        self.began.get_or_insert(began);
        let outcome = plugin();
        let ended = Instant::now();
        (self.last, self.ended) = (Some(ended), Some(ended));
        let took = ended.saturating_duration_since(began);
        match &outcome {
            Ok(_) => self.observe(at, operation, false, took),
            Err(Interrupted::Failed(_)) => self.observe(at, operation, true, took),
            // It has not decided: the plan runs again.
            Err(Interrupted::NeedsReplies | Interrupted::VersionUnsettled) => {}
        }
        outcome.inspect_err(|error| self.fail(operation, error))
    }

    /// Counts a phase in which no plug-in has refused the write.
    pub(super) fn pass(self, operation: Operation) {
        self.count(operation, false);
    }

    fn fail(&self, operation: Operation, error: &Interrupted) {
        if let Interrupted::Failed(_) = error {
            self.count(operation, true);
        }
    }

    fn count(&self, operation: Operation, rejected: bool) {
        let steps = &self.metrics.numbers.own().steps;
        let durations = &steps[self.phase as usize][operation as usize][usize::from(rejected)];
        match self.began.zip(self.ended) {
            Some((began, ended)) => {
                durations.observe(&BOUNDS, ended.saturating_duration_since(began));
            }
            None => durations.observe_nothing(),
        }
    }

    fn observe(&self, at: usize, operation: Operation, rejected: bool, took: Duration) {
        let plugins = &self.metrics.numbers.own().plugins;
        if let Some(plugin) = plugins.get(at) {
            let durations = &plugin[self.phase as usize][operation as usize];
            durations[usize::from(rejected)].observe(&BOUNDS, took);
        }
    }
}
