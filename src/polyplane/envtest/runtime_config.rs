//! Which group-versions are served: what `--runtime-config` means here.

use crate::envtest::flags::Flags;
use crate::envtest::settings::Problems;
use polyplane_batteries::kind_tables;
use polyplane_registry::kinds::api_version::ApiVersion;
use polyplane_registry::{KindTable, Resource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The generation of a table that serves other kinds than those of all planes.
const GENERATION: u64 = 4;
/// Group-versions whose absence upstream refuses while it queues requests by priority, in the order in
/// which it looks for them.
const PRIORITIES: [&str; 3] = ["flowcontrol.apiserver.k8s.io/v1", "api/ga", "api/all"];

/// A word of `--runtime-config` that stands for many group-versions.
struct Wildcard {
    word: &'static str,
    covers: fn(&str) -> bool,
}

/// Upstream's words, in the order in which they count.
const WILDCARDS: [Wildcard; 4] = [
    Wildcard {
        word: "api/all",
        covers: |_| true,
    },
    Wildcard {
        word: "api/ga",
        covers: |version| !version.contains("alpha") && !version.contains("beta"),
    },
    Wildcard {
        word: "api/beta",
        covers: |version| version.contains("beta"),
    },
    Wildcard {
        word: "api/alpha",
        covers: |version| version.contains("alpha"),
    },
];

/// Returns the kinds that `--runtime-config` chooses, in upstream's terms: words for many group-versions,
/// then group-versions, then resources. Of the alpha and beta kinds, those whose feature gate is neither
/// on by default nor in `gates` are left out, and logged.
pub(super) fn kinds(
    flags: &Flags,
    gates: &BTreeSet<String>,
    problems: &mut Problems,
) -> Arc<KindTable> {
    let table = kind_tables::tenant_kinds();
    let wishes = wishes(flags);
    if wishes.is_empty() {
        return table;
    }
    if flags.switch("enable-priority-and-fairness", true) {
        let is_off = |key: &&&str| wishes.get(**key).is_some_and(|value| value == "false");
        if let Some(key) = PRIORITIES.iter().find(is_off) {
            problems.add(format!(
                "--runtime-config={key}=false conflicts with --enable-priority-and-fairness=true"
            ));
        }
    }
    match Served::of(&wishes) {
        Ok(served) => served.table(table, gates),
        Err(problem) => {
            problems.add(problem);
            table
        }
    }
}

/// Returns the pairs of the flag. As upstream, `v1` and `api/v1` are other names of `/v1`, and a
/// name without a value has an empty one.
fn wishes(flags: &Flags) -> BTreeMap<String, String> {
    let items = flags.list("runtime-config").into_iter();
    let pairs = items.map(|item| match item.split_once('=') {
        Some((key, value)) => (key.trim().to_owned(), value.trim().to_owned()),
        None => (item.trim().to_owned(), String::new()),
    });
    let is_core = |key: &str| {
        let key = key.strip_prefix("api/").unwrap_or(key);
        key == "v1" || key.starts_with("v1/")
    };
    let pairs = pairs.filter(|(key, _)| key != "api/legacy");
    let pairs = pairs.map(|(key, value)| match is_core(&key) {
        true => ("/v1".to_owned(), value),
        false => (key, value),
    });
    pairs.collect()
}

/// The choice of group-versions and resources.
struct Served {
    versions: BTreeMap<(String, String), bool>,
    resources: BTreeMap<(String, String, String), bool>,
}

impl Served {
    /// Reads the choice.
    ///
    /// # Errors
    /// Returns upstream's texts.
    fn of(wishes: &BTreeMap<String, String>) -> Result<Self, String> {
        let known = kind_tables::api_versions();
        check_groups(wishes, &known)?;
        let has = |one: &ApiVersion| Some(((one.group.clone(), one.version.clone()), one.default?));
        let mut served = Self {
            versions: known.iter().filter_map(has).collect(),
            resources: BTreeMap::new(),
        };
        for Wildcard { word, covers } in WILDCARDS {
            let on = match wishes.get(word).map(String::as_str) {
                None => continue,
                Some("true") => true,
                Some("false") => false,
                Some(value) => return Err(format!("invalid value {word}={value}")),
            };
            let covered = served.versions.iter_mut();
            for (_, is_on) in covered.filter(|((_, version), _)| covers(version)) {
                *is_on = on;
            }
        }
        for (key, value) in wishes {
            served.add(key, value, &known)?;
        }
        Ok(served)
    }

    /// Adds the wish for a group-version or a resource.
    fn add(&mut self, key: &str, value: &str, known: &[ApiVersion]) -> Result<(), String> {
        if WILDCARDS.iter().any(|wildcard| wildcard.word == key) {
            return Ok(());
        }
        let parts: Vec<&str> = key.split('/').collect();
        let (group, version) = (parts[0], parts[1]);
        let is_known = |one: &ApiVersion| one.group == group && one.version == version;
        if !known.iter().any(is_known) {
            let shown = if group.is_empty() {
                version.to_owned()
            } else {
                format!("{group}/{version}")
            };
            return Err(format!(
                "group version {shown} that has not been registered"
            ));
        }
        let on = match value {
            "" => true,
            _ => go_bool(value).ok_or_else(|| {
                format!("invalid value of {key}: {value}, err: {}", no_bool(value))
            })?,
        };
        let pair = (group.to_owned(), version.to_owned());
        match parts.get(2) {
            None => drop(self.versions.insert(pair, on)),
            Some(resource) if resource.to_lowercase() != **resource => {
                return Err(format!(
                    "invalid key {key}: group/version/resource and resource is always lowercase plural, not {resource:?}"
                ));
            }
            Some(resource) => {
                let resource = (pair.0, pair.1, (*resource).to_owned());
                self.resources.insert(resource, on);
            }
        }
        Ok(())
    }

    /// Returns whether a resource is served. What is said of itself counts more than what is said of its
    /// group-version.
    fn is_on(&self, group: &str, version: &str, resource: &str) -> bool {
        let pair = (group.to_owned(), version.to_owned());
        let one = (group.to_owned(), version.to_owned(), resource.to_owned());
        let chosen = self
            .resources
            .get(&one)
            .or_else(|| self.versions.get(&pair));
        chosen.copied().unwrap_or(false)
    }

    /// Returns a table of what is chosen. `base` has the kinds that are on by default; more are only
    /// looked for if some are chosen, because that takes time and memory.
    fn table(&self, base: Arc<KindTable>, gates: &BTreeSet<String>) -> Arc<KindTable> {
        let known = kind_tables::api_versions().into_iter();
        let mut off = known.filter(|one| one.default == Some(false));
        let on: Vec<&str> = gates.iter().map(String::as_str).collect();
        let table = match off.any(|one| self.has_any(&one)) {
            true => kind_tables::preview_kinds(&on).map_or(base, Arc::new),
            false => base,
        };
        let serves = |row: &Resource| {
            let is_chosen = self.is_on(&row.group, &row.version, &row.name);
            let gate = row.gate.as_deref();
            let closed = gate.filter(|gate| is_chosen && !row.features.enabled(gate));
            if let Some(gate) = closed {
                let kind = format!("{}/{}", row.api_version, row.name);
                tracing::warn!(
                    "--runtime-config: {kind} is not served, because the feature gate {gate} is off"
                );
            }
            is_chosen && closed.is_none()
        };
        Arc::new(table.serving(&serves, GENERATION))
    }

    /// Returns whether a group-version, or a resource of it, is chosen.
    fn has_any(&self, one: &ApiVersion) -> bool {
        let pair = (one.group.clone(), one.version.clone());
        let mut resources = self.resources.iter();
        self.versions.get(&pair) == Some(&true)
            || resources.any(|((group, version, _), on)| {
                *on && *group == one.group && *version == one.version
            })
    }
}

/// Checks that keys have the form of group-versions or resources, and that upstream has their groups.
fn check_groups(wishes: &BTreeMap<String, String>, known: &[ApiVersion]) -> Result<(), String> {
    if wishes.len() == 1 && wishes.get("api/all").is_some_and(|value| value == "false") {
        return Err("invalid runtime-config with only api/all=false".to_owned());
    }
    let mut unknown = BTreeSet::new();
    for key in wishes.keys() {
        if WILDCARDS.iter().any(|wildcard| wildcard.word == key) {
            continue;
        }
        let parts: Vec<&str> = key.split('/').collect();
        if !(2..=3).contains(&parts.len()) {
            return Err(format!("runtime-config invalid key {key}"));
        }
        if !known.iter().any(|one| one.group == parts[0]) {
            unknown.insert(format!("{}/{}", parts[0], parts[1]));
        }
    }
    match unknown.is_empty() {
        true => Ok(()),
        false => {
            let unknown: Vec<String> = unknown.into_iter().collect();
            Err(format!("unknown api groups {}", unknown.join(",")))
        }
    }
}

/// Reads a truth value as Go does.
pub(super) fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the error of Go about a text that is no truth value.
pub(super) fn no_bool(text: &str) -> String {
    format!("strconv.ParseBool: parsing {text:?}: invalid syntax")
}
