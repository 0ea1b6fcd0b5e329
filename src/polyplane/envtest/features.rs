//! Which group-versions are served, and which feature gates are known: what `--runtime-config` and
//! `--feature-gates` mean here.

use crate::envtest::flags::Flags;
use crate::envtest::settings::Problems;
use polyplane_batteries::kind_tables;
use polyplane_registry::KindTable;
use polyplane_registry::kinds::api_version::ApiVersion;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The generation of a table that serves other kinds than those of all planes.
const GENERATION: u64 = 3;
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

/// Checks `--feature-gates` as upstream does. This program is as if all gates had their defaults: the log
/// names those that were to be otherwise.
pub(super) fn check_gates(flags: &Flags, problems: &mut Problems) {
    let features = kind_tables::features();
    for item in flags.list("feature-gates") {
        let Some((name, value)) = item.split_once('=') else {
            return problems.add(format!("missing bool value for {}", item.trim()));
        };
        let (name, value) = (name.trim(), value.trim());
        let Some(wanted) = go_bool(value) else {
            return problems.add(format!(
                "invalid value of {name}={value}, err: {}",
                no_bool(value)
            ));
        };
        match features.known(name, "--feature-gates") {
            Err(_) if matches!(name, "AllAlpha" | "AllBeta") => {
                tracing::info!("--feature-gates: {name} has no effect here");
            }
            Err(_) => return problems.add(format!("unrecognized feature gate: {name}")),
            Ok(has) if has == wanted => {}
            Ok(has) if features.is_locked(name) => problems.add(format!(
                "cannot set feature gate {name} to {wanted}, feature is locked to {has}"
            )),
            Ok(has) => tracing::warn!("--feature-gates: {name} stays {has}"),
        }
    }
}

/// Returns the kinds that `--runtime-config` leaves, in upstream's terms: words for many group-versions,
/// then group-versions, then resources. A group-version that this program has no kinds of is refused if
/// it is named, and logged if a word for many covers it.
pub(super) fn kinds(flags: &Flags, problems: &mut Problems) -> Arc<KindTable> {
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
    let served = Served::of(&wishes).and_then(|served| {
        let missing: Vec<String> = served.missing(&table).collect();
        match missing[..] {
            [] => Ok(served),
            _ => Err(format!(
                "--runtime-config: {} cannot be served: this program has the group-versions that are on by default",
                missing.join(", ")
            )),
        }
    });
    match served {
        Ok(served) => {
            let is_on = |group: &str, version: &str, name: &str| served.is_on(group, version, name);
            Arc::new(table.serving(
                &|row| is_on(&row.group, &row.version, &row.name),
                GENERATION,
            ))
        }
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
    /// The group-versions that were named as on, themselves or by a resource.
    named: BTreeSet<(String, String)>,
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
            named: BTreeSet::new(),
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
        if on {
            self.named.insert(pair.clone());
        }
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

    /// Returns the group-versions that were named as on and of which `table` has nothing. Those that a word
    /// for many has put on are logged.
    fn missing(&self, table: &KindTable) -> impl Iterator<Item = String> {
        let off = kind_tables::api_versions().into_iter();
        let off = off.filter(|one| one.default == Some(false));
        let off = off.filter(|one| {
            let group = table.group(&one.group);
            !group.is_some_and(|group| group.versions.iter().any(|own| own.version == *one.version))
        });
        off.filter_map(|one| {
            let shown = format!("{}/{}", one.group, one.version);
            let pair = (one.group, one.version);
            if self.named.contains(&pair) {
                return Some(shown);
            }
            if self.versions.get(&pair) == Some(&true) {
                tracing::warn!("--runtime-config: {shown} is not served by this program");
            }
            None
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
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the error of Go about a text that is no truth value.
fn no_bool(text: &str) -> String {
    format!("strconv.ParseBool: parsing {text:?}: invalid syntax")
}
