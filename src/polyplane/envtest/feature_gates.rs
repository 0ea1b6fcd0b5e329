//! Which feature gates are on: what `--feature-gates` means here.

use crate::envtest::flags::Flags;
use crate::envtest::runtime_config::{go_bool, no_bool};
use crate::envtest::settings::Problems;
use polyplane_apimachinery::Str;
use polyplane_batteries::kind_tables;
use polyplane_registry::kinds::feature_gates::{GateNeeds, GateRow, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// Upstream's words for all gates of a stage.
const STAGES: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// The gates, and how they are to be.
struct Gates {
    rows: Vec<GateRow>,
    needs: Vec<GateNeeds>,
    wanted: BTreeMap<String, bool>,
}

/// Checks `--feature-gates` as upstream does, and returns the gates of kinds that it switches on. This
/// program is as if all other gates had their defaults: the log names those that were to be otherwise.
pub(super) fn of_kinds(flags: &Flags, problems: &mut Problems) -> BTreeSet<String> {
    match Gates::read(flags) {
        Ok(gates) => gates.switched_on(),
        Err(problem) => {
            problems.add(problem);
            BTreeSet::new()
        }
    }
}

impl Gates {
    /// Reads the flag.
    ///
    /// # Errors
    /// Returns upstream's text about the first item that is wrong.
    fn read(flags: &Flags) -> Result<Self, String> {
        let rows = kind_tables::gates();
        let (mut named, mut of_stages) = (BTreeMap::new(), BTreeMap::new());
        for item in flags.list("feature-gates") {
            let Some((name, value)) = item.split_once('=') else {
                return Err(format!("missing bool value for {}", item.trim()));
            };
            let (name, value) = (name.trim(), value.trim());
            let wanted = go_bool(value).ok_or_else(|| {
                format!("invalid value of {name}={value}, err: {}", no_bool(value))
            })?;
            if let Some((_, stage)) = STAGES.iter().find(|(word, _)| *word == name) {
                let of_stage = rows.iter().filter(|row| row.stage == *stage && !row.locked);
                of_stages.extend(of_stage.map(|row| (row.name.to_string(), wanted)));
                continue;
            }
            let row = rows.iter().find(|row| row.name == name);
            let row = row.ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
            if row.locked && row.default != wanted {
                return Err(format!(
                    "cannot set feature gate {name} to {wanted}, feature is locked to {}",
                    row.default
                ));
            }
            named.insert(name.to_owned(), wanted);
        }
        let mut wanted: BTreeMap<String, bool> = rows
            .iter()
            .map(|row| (row.name.to_string(), row.default))
            .collect();
        wanted.extend(of_stages);
        wanted.extend(named);
        let needs = kind_tables::gate_needs();
        let gates = Self {
            rows,
            needs,
            wanted,
        };
        gates.check_needs()?;
        Ok(gates)
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.wanted.get(name).copied().unwrap_or(false)
    }

    /// Checks that a gate that is on has all gates that it needs.
    fn check_needs(&self) -> Result<(), String> {
        for row in self.needs.iter().filter(|row| self.is_wanted(&row.gate)) {
            let missing = row.needs.iter().filter(|need| !self.is_wanted(need));
            let missing: Vec<&str> = missing.map(|need| need.as_str()).collect();
            if !missing.is_empty() {
                return Err(format!(
                    "{} is enabled, but depends on features that are disabled: [{}]",
                    row.gate,
                    missing.join(" ")
                ));
            }
        }
        Ok(())
    }

    /// Returns the gates that are to be on, and are off by default, among those of kinds and those that
    /// these need. Logs the others.
    fn switched_on(&self) -> BTreeSet<String> {
        let mut of_kinds = kind_tables::gates_of_kinds();
        while let Some(more) = self.needed_beside(&of_kinds) {
            of_kinds.insert(more);
        }
        let mut on = BTreeSet::new();
        for row in &self.rows {
            let (name, default) = (&row.name, row.default);
            match self.is_wanted(name) {
                wanted if wanted == default => {}
                true if of_kinds.contains(name) => drop(on.insert(name.to_string())),
                _ => tracing::warn!("--feature-gates: {name} stays {default}"),
            }
        }
        on
    }

    /// Returns a gate that one of `gates` needs and that is none of them.
    fn needed_beside(&self, gates: &BTreeSet<Str>) -> Option<Str> {
        let rows = self.needs.iter().filter(|row| gates.contains(&row.gate));
        let mut needs = rows.flat_map(|row| &row.needs);
        needs.find(|need| !gates.contains(*need)).cloned()
    }
}
