//! How often pods were evaluated, for all planes together, with upstream's labels.

use super::policy::{Level, LevelVersion, Version};
use polyplane_registry::metrics::{Family, Labels, Samples};
use polyplane_registry::plan::{Attributes, Operation};
use std::sync::atomic::{AtomicU64, Ordering};

/// The minor number of the release of Kubernetes that this server is like. Levels of later ones count as
/// `future`.
const RELEASE: u64 = 37;
const DECISIONS: [&str; 2] = ["allow", "deny"];
const LEVELS: [&str; 3] = ["privileged", "baseline", "restricted"];
const MODES: [&str; 3] = ["enforce", "audit", "warn"];
const OPERATIONS: [&str; 2] = ["create", "update"];
const FATAL: [&str; 2] = ["false", "true"];
/// Versions of a level: the latest, later ones than this server's, and 1.0 up to its own.
const VERSIONS: usize = 2 + RELEASE as usize + 1;
/// The resources with the subresources that are evaluated.
const TARGETS: [(&str, &str); 5] = [
    ("pod", ""),
    ("pod", "ephemeralcontainers"),
    ("pod", "resize"),
    ("pod", "other"),
    ("controller", ""),
];
/// The series that are shown before anything was counted, like upstream's: the most frequent evaluation.
const SHOWN_FIRST: [usize; 2] = [
    evaluation(0, 0, 0, 0, Target(0)),
    evaluation(0, 0, 0, 0, Target(TARGETS.len())),
];

/// The purpose of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Enforce,
    Audit,
    Warn,
}

/// An operation on a pod or on what makes pods, as a number below [`Target::COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target(usize);

impl Target {
    const COUNT: usize = OPERATIONS.len() * TARGETS.len();

    pub(super) fn of(what: &Attributes<'_>) -> Self {
        let place = match (what.call.row.name.as_str(), what.call.subresource()) {
            ("pods", "") => 0,
            ("pods", "ephemeralcontainers") => 1,
            ("pods", "resize") => 2,
            ("pods", _) => 3,
            _ => 4,
        };
        match what.operation {
            Operation::Create => Self(place),
            Operation::Update | Operation::Delete => Self(TARGETS.len() + place),
        }
    }

    fn labels(self) -> [(&'static str, &'static str); 3] {
        let (resource, subresource) = TARGETS[self.0 % TARGETS.len()];
        [
            ("request_operation", OPERATIONS[self.0 / TARGETS.len()]),
            ("resource", resource),
            ("subresource", subresource),
        ]
    }
}

/// Returns the place of a series of evaluations.
const fn evaluation(
    decision: usize,
    mode: usize,
    level: usize,
    version: usize,
    at: Target,
) -> usize {
    let series = ((decision * MODES.len() + mode) * LEVELS.len() + level) * VERSIONS + version;
    series * Target::COUNT + at.0
}

/// All counters.
#[derive(Debug)]
pub(super) struct Counts {
    evaluations: Box<[AtomicU64]>,
    errors: [[AtomicU64; Target::COUNT]; FATAL.len()],
    exemptions: [AtomicU64; Target::COUNT],
}

impl Default for Counts {
    fn default() -> Self {
        let last = Target(Target::COUNT - 1);
        let last = evaluation(
            DECISIONS.len() - 1,
            MODES.len() - 1,
            LEVELS.len() - 1,
            VERSIONS - 1,
            last,
        );
        Self {
            evaluations: (0..=last).map(|_| AtomicU64::new(0)).collect(),
            errors: Default::default(),
            exemptions: Default::default(),
        }
    }
}

impl Counts {
    /// Counts an evaluation of a pod or of a template of pods.
    pub(super) fn evaluated(&self, at: Target, mode: Mode, policy: LevelVersion, is_denied: bool) {
        let version = match policy.version {
            Version::Latest => 0,
            // Means the same in each release.
            Version::Minor(_) if policy.level == Level::Privileged => 0,
            Version::Minor(minor) if minor > RELEASE => 1,
            Version::Minor(minor) => 2 + minor as usize,
        };
        let decision = usize::from(is_denied);
        let place = evaluation(decision, mode as usize, policy.level as usize, version, at);
        self.evaluations[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an error. A fatal one has prevented the evaluation; without the others it would have
    /// been another one.
    pub(super) fn failed(&self, at: Target, is_fatal: bool) {
        self.errors[usize::from(is_fatal)][at.0].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was not evaluated because a configuration exempts it.
    pub(super) fn exempted(&self, at: Target) {
        self.exemptions[at.0].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the metrics.
    pub(super) fn families(&self) -> Vec<Family> {
        let family = |name, help, samples| Family {
            name,
            help,
            samples: Samples::Counters(samples),
        };
        vec![
            family(
                "pod_security_errors_total",
                "Errors because of which a pod was not evaluated, or against a stricter level.",
                self.shown_errors(),
            ),
            family(
                "pod_security_evaluations_total",
                "Evaluations of pods and of templates of pods against a level.",
                self.shown_evaluations(),
            ),
            family(
                "pod_security_exemptions_total",
                "Requests that were not evaluated because the configuration exempts them.",
                self.shown_exemptions(),
            ),
        ]
    }

    fn shown_evaluations(&self) -> Vec<(Labels, u64)> {
        let counts = self.evaluations.iter().enumerate();
        let counts = counts.map(|(at, count)| (at, count.load(Ordering::Relaxed)));
        let shown = counts.filter(|(at, count)| *count > 0 || SHOWN_FIRST.contains(at));
        shown
            .map(|(at, count)| {
                let (series, target) = (at / Target::COUNT, Target(at % Target::COUNT));
                let (series, version) = (series / VERSIONS, series % VERSIONS);
                let (series, level) = (series / LEVELS.len(), series % LEVELS.len());
                let version = match version {
                    0 => "latest".into(),
                    1 => "future".into(),
                    minor => format!("v1.{}", minor - 2).into(),
                };
                let mut labels: Labels = vec![
                    ("decision", DECISIONS[series / MODES.len()].into()),
                    ("mode", MODES[series % MODES.len()].into()),
                    ("policy_level", LEVELS[level].into()),
                    ("policy_version", version),
                ];
                labels.extend(target.labels().map(|(name, value)| (name, value.into())));
                (labels, count)
            })
            .collect()
    }

    fn shown_errors(&self) -> Vec<(Labels, u64)> {
        let mut shown = Vec::new();
        for (fatal, of_targets) in FATAL.into_iter().zip(&self.errors) {
            for (at, count) in of_targets.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let mut labels: Labels = vec![("fatal", fatal.into())];
                    let target = Target(at).labels();
                    labels.extend(target.map(|(name, value)| (name, value.into())));
                    shown.push((labels, count));
                }
            }
        }
        shown
    }

    /// Returns the exemptions; the series of whole objects before anything was counted too, like upstream's.
    fn shown_exemptions(&self) -> Vec<(Labels, u64)> {
        let counts = self.exemptions.iter().enumerate();
        let counts = counts.map(|(at, count)| (Target(at).labels(), count.load(Ordering::Relaxed)));
        let shown =
            counts.filter(|([_, _, (_, subresource)], count)| *count > 0 || subresource.is_empty());
        shown
            .map(|(labels, count)| {
                (
                    labels.map(|(name, value)| (name, value.into())).into(),
                    count,
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(counts: &Counts) -> Vec<(String, u64)> {
        let shown = counts.shown_evaluations().into_iter();
        let text = |labels: Labels| {
            let values = labels.iter().map(|(_, value)| value.as_ref());
            values.collect::<Vec<&str>>().join(" ")
        };
        shown.map(|(labels, count)| (text(labels), count)).collect()
    }

    #[test]
    fn each_series_is_shown_with_its_own_labels() {
        let counts = Counts::default();
        let baseline = |version| LevelVersion {
            level: Level::Baseline,
            version,
        };
        let privileged = LevelVersion {
            level: Level::Privileged,
            version: Version::Minor(3),
        };
        let restricted = LevelVersion {
            level: Level::Restricted,
            version: Version::Minor(RELEASE),
        };
        let update_of_controller = Target(Target::COUNT - 1);
        counts.evaluated(Target(0), Mode::Enforce, privileged, false);
        counts.evaluated(Target(1), Mode::Enforce, baseline(Version::Minor(0)), true);
        counts.evaluated(
            Target(1),
            Mode::Audit,
            baseline(Version::Minor(RELEASE + 1)),
            true,
        );
        counts.evaluated(
            Target(0),
            Mode::Warn,
            baseline(Version::Minor(u64::MAX)),
            true,
        );
        counts.evaluated(update_of_controller, Mode::Warn, restricted, true);
        let mut expected = [
            ("allow enforce privileged latest create pod ", 1),
            ("allow enforce privileged latest update pod ", 0),
            (
                "deny enforce baseline v1.0 create pod ephemeralcontainers",
                1,
            ),
            (
                "deny audit baseline future create pod ephemeralcontainers",
                1,
            ),
            ("deny warn baseline future create pod ", 1),
            ("deny warn restricted v1.37 update controller ", 1),
        ]
        .map(|(text, count)| (text.to_owned(), count));
        expected.sort();
        let mut shown = shown(&counts);
        shown.sort();
        assert_eq!(shown, expected);
    }

    #[test]
    fn errors_are_counted_by_what_they_prevented() {
        let counts = Counts::default();
        counts.failed(Target(0), true);
        counts.failed(Target(TARGETS.len() + 4), false);
        let shown = counts.shown_errors();
        let first = |at: usize| {
            (
                shown[at].0[0].1.as_ref(),
                shown[at].0[2].1.as_ref(),
                shown[at].1,
            )
        };
        assert_eq!(shown.len(), 2);
        assert_eq!(first(0), ("false", "controller", 1));
        assert_eq!(first(1), ("true", "pod", 1));
    }

    #[test]
    fn exemptions_are_counted_by_what_was_not_evaluated() {
        let counts = Counts::default();
        counts.exempted(Target(0));
        counts.exempted(Target(0));
        counts.exempted(Target(1));
        let shown = counts.shown_exemptions().into_iter();
        let shown: Vec<(String, u64)> = shown
            .map(|(labels, count)| {
                let values: Vec<&str> = labels.iter().map(|(_, value)| value.as_ref()).collect();
                (values.join(" "), count)
            })
            .collect();
        let expected = [
            ("create pod ", 2),
            ("create pod ephemeralcontainers", 1),
            ("create controller ", 0),
            ("update pod ", 0),
            ("update controller ", 0),
        ];
        assert_eq!(
            shown,
            expected.map(|(text, count)| (text.to_owned(), count))
        );
    }
}
