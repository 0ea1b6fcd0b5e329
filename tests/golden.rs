//! The recorded answers of one scenario, as a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::scenario::{Record, Scenario};

/// All recorded steps of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Golden {
    /// The recorded steps in order.
    pub steps: Vec<Recorded>,
    /// The symbols of all versions seen, oldest first.
    pub order: Vec<String>,
}

/// One answer without the values that differ from run to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The step's name.
    pub step: String,
    /// The request as the scenario writes it.
    pub request: String,
    /// The status code; absent where a watch is joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The compared headers, with lower-case names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, or a list of events.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
}

/// Returns the folder of scenarios, golden files and differences: this crate's own folder.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

impl Golden {
    /// Returns the golden file of a scenario.
    pub fn path(scenario: &str) -> PathBuf {
        folder().join("golden").join(format!("{scenario}.json"))
    }

    /// Reads the golden file of a scenario.
    ///
    /// # Errors
    /// Returns an error if the file does not exist or is damaged.
    pub fn load(scenario: &str) -> Result<Self> {
        let path = Self::path(scenario);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("no golden file {}; run the recorder", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Writes the golden file of a scenario.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn store(&self, scenario: &str) -> Result<()> {
        let path = Self::path(scenario);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the steps that are only in the scenario or only in the recording. There are some if
    /// the scenario was changed after it was recorded.
    pub fn stale_steps(&self, scenario: &Scenario) -> Vec<String> {
        let written: Vec<(&str, String)> = scenario
            .steps
            .iter()
            .filter(|step| !matches!(step.record, Record::Nothing | Record::Cleanup))
            .map(|step| (step.name.as_str(), step.title()))
            .collect();
        let recorded: Vec<(&str, &str)> = self
            .steps
            .iter()
            .map(|step| (step.step.as_str(), step.request.as_str()))
            .collect();
        // A watch that was refused has no events to join.
        let missing = written
            .iter()
            .filter(|(_, title)| !title.starts_with("join "))
            .filter(|(name, title)| !recorded.contains(&(*name, title.as_str())));
        let extra = recorded
            .iter()
            .filter(|(name, title)| !written.contains(&(*name, (*title).to_owned())));
        let missing = missing.map(|(name, _)| (*name).to_owned());
        missing
            .chain(extra.map(|(name, _)| (*name).to_owned()))
            .collect()
    }
}

/// Returns every scenario in the folder, by name.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn scenario_files() -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder().join("scenarios"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "http") {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            files.push((name, path));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_recorded_as_it_is_written() {
        let files = scenario_files().expect("readable");
        assert!(files.len() >= 40);
        let mut steps = 0;
        for (name, path) in files {
            let text = std::fs::read_to_string(path).expect("readable");
            let scenario = Scenario::parse(&name, &text).expect("parses");
            let golden = Golden::load(&name).expect("recorded");
            assert_eq!(
                golden.stale_steps(&scenario),
                Vec::<String>::new(),
                "{name}"
            );
            steps += golden.steps.len();
        }
        assert!(steps >= 500, "{steps}");
    }

    #[test]
    fn no_recording_is_left_without_its_scenario_and_none_holds_descriptions() {
        let names: Vec<String> = scenario_files()
            .expect("readable")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        for entry in std::fs::read_dir(folder().join("golden")).expect("readable") {
            let path = entry.expect("readable").path();
            let name = path
                .file_stem()
                .expect("a file")
                .to_string_lossy()
                .into_owned();
            assert!(names.contains(&name), "{name} has no scenario");
            let text = std::fs::read_to_string(&path).expect("readable");
            let prose = text.lines().map(str::trim).find(|line| {
                // A PriorityClass that the scenario itself sends has a description with these
                // words.
                line.starts_with("\"description\": \"")
                    && !line.contains("own words")
                    && !line.contains("other words")
            });
            assert_eq!(prose, None, "{name}");
        }
    }
}
