//! The checks of each level and version, and what they find about a pod.

use super::checks::{containers, host, profiles, users, volumes};
use super::policy::{Level, LevelVersion, Version};
use polyplane_apimachinery::Value;

/// A pod or a template of pods, as checks see it.
pub(super) struct Pod<'a> {
    pub(super) annotations: &'a Value,
    pub(super) spec: &'a Value,
}

impl<'a> Pod<'a> {
    pub(super) fn of(pod: &'a Value) -> Self {
        Self {
            annotations: &pod["metadata"]["annotations"],
            spec: &pod["spec"],
        }
    }

    /// Returns all containers, in the order in which messages name them.
    pub(super) fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| spec.items_at(&[list]))
    }

    /// Returns whether root in the pod is nobody on the node.
    pub(super) fn has_own_users(&self) -> bool {
        self.spec.at(&["hostUsers"]).and_then(Value::as_bool) == Some(false)
    }

    /// Returns whether the pod runs on Windows, where some fields do not exist.
    pub(super) fn is_windows(&self) -> bool {
        self.spec.str_at(&["os", "name"]) == "windows"
    }
}

/// What a check has found.
pub(super) struct Violation {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

type CheckPod = fn(&Pod<'_>) -> Option<Violation>;

/// A check, for the versions from `since` on and before `until`.
struct Check {
    level: Level,
    since: u64,
    until: u64,
    check: CheckPod,
    /// The check of the level `baseline` that this stricter one takes the place of.
    replaces: Option<CheckId>,
    id: CheckId,
}

/// The checks that others replace, and all others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckId {
    Capabilities,
    HostPathVolumes,
    ProcMount,
    Seccomp,
    Other,
}

const NEVER: u64 = u64::MAX;

const fn baseline(id: CheckId, (since, until): (u64, u64), check: CheckPod) -> Check {
    let (level, replaces) = (Level::Baseline, None);
    Check {
        level,
        since,
        until,
        check,
        replaces,
        id,
    }
}

const fn restricted(
    replaces: Option<CheckId>,
    (since, until): (u64, u64),
    check: CheckPod,
) -> Check {
    let (level, id) = (Level::Restricted, CheckId::Other);
    Check {
        level,
        since,
        until,
        check,
        replaces,
        id,
    }
}

/// The newest release that has changed a check. Later versions mean the same.
const NEWEST: u64 = 37;

/// All checks, in the order in which messages name what they find.
const CHECKS: &[Check] = &[
    baseline(CheckId::Other, (0, NEVER), profiles::app_armor),
    baseline(
        CheckId::Capabilities,
        (0, NEVER),
        containers::capabilities_baseline,
    ),
    baseline(CheckId::Other, (0, NEVER), host::namespaces),
    baseline(CheckId::HostPathVolumes, (0, NEVER), volumes::host_paths),
    baseline(CheckId::Other, (0, NEVER), host::ports),
    baseline(CheckId::Other, (34, NEVER), host::probes_and_lifecycle),
    baseline(CheckId::Other, (0, NEVER), containers::privileged),
    baseline(CheckId::ProcMount, (0, 35), containers::proc_mount),
    baseline(
        CheckId::ProcMount,
        (35, NEVER),
        containers::proc_mount_unless_own_users,
    ),
    baseline(CheckId::Other, (0, 31), profiles::se_linux_0),
    baseline(CheckId::Other, (31, NEVER), profiles::se_linux_31),
    baseline(CheckId::Seccomp, (0, 19), profiles::seccomp_annotations),
    baseline(CheckId::Seccomp, (19, NEVER), profiles::seccomp_baseline),
    baseline(CheckId::Other, (0, 27), host::sysctls_0),
    baseline(CheckId::Other, (27, 29), host::sysctls_27),
    baseline(CheckId::Other, (29, 32), host::sysctls_29),
    baseline(CheckId::Other, (32, 37), host::sysctls_32),
    baseline(CheckId::Other, (37, NEVER), host::sysctls_37),
    baseline(CheckId::Other, (0, NEVER), host::windows_process),
    restricted(None, (8, 25), containers::escalation),
    restricted(None, (25, NEVER), containers::escalation_unless_windows),
    restricted(
        Some(CheckId::Capabilities),
        (22, 25),
        containers::capabilities_restricted,
    ),
    restricted(
        Some(CheckId::Capabilities),
        (25, NEVER),
        containers::capabilities_restricted_unless_windows,
    ),
    restricted(
        Some(CheckId::ProcMount),
        (35, NEVER),
        containers::proc_mount,
    ),
    restricted(
        Some(CheckId::HostPathVolumes),
        (0, NEVER),
        volumes::restricted,
    ),
    restricted(None, (0, 35), users::non_root),
    restricted(None, (35, NEVER), users::non_root_unless_own_users),
    restricted(None, (23, 35), users::user),
    restricted(None, (35, NEVER), users::user_unless_own_users),
    restricted(
        Some(CheckId::Seccomp),
        (19, 25),
        profiles::seccomp_restricted,
    ),
    restricted(
        Some(CheckId::Seccomp),
        (25, NEVER),
        profiles::seccomp_restricted_unless_windows,
    ),
];

/// Returns what violates a level.
pub(super) fn violations(wanted: LevelVersion, pod: &Pod<'_>) -> Vec<Violation> {
    let minor = match wanted.version {
        Version::Minor(minor) => minor.min(NEWEST),
        Version::Latest => NEWEST,
    };
    let active =
        |check: &&Check| check.level <= wanted.level && check.since <= minor && minor < check.until;
    let is_replaced = |id: CheckId| {
        id != CheckId::Other
            && CHECKS
                .iter()
                .filter(active)
                .any(|check| check.replaces == Some(id))
    };
    CHECKS
        .iter()
        .filter(active)
        .filter(|check| !is_replaced(check.id))
        .filter_map(|check| (check.check)(pod))
        .collect()
}

/// Returns the reasons of violations, for a message about several pods.
pub(super) fn reasons(found: &[Violation]) -> String {
    let reasons: Vec<&str> = found.iter().map(|violation| violation.reason).collect();
    reasons.join(", ")
}

/// Returns the reasons of violations with details, for a message about one pod.
pub(super) fn details(found: &[Violation]) -> String {
    let texts = found.iter().map(|violation| {
        let Violation { reason, detail } = violation;
        format!("{reason} ({detail})")
    });
    texts.collect::<Vec<_>>().join(", ")
}
