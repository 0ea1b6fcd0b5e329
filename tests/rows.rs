//! The rows of `judged.toml`: what is judged, the command that judges it, and the output that it
//! must have.
//!
//! This module owns the file's format and the verdict over an output. It starts no process.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::golden::folder;

/// The longest time of a short form, in seconds. A longer one would not fit CI.
pub const SHORT_SECONDS_MAX: u64 = 120;

/// Numbers found in an output, by the pattern of their bound.
pub type Samples = BTreeMap<String, Vec<f64>>;

/// All rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// The rows in the order of the file.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// One line of an issue's "How it is judged".
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The row's name on the command line and in results.
    pub name: String,
    /// The number of the issue.
    pub issue: u32,
    /// The property that the row shows, in one sentence.
    pub judges: String,
    /// Programs that `tests/programs` finds or builds before the command runs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The environment variable for the seed, if the command uses one.
    pub seed: Option<String>,
    /// The reason why the command cannot exist yet. Until it does, running the row fails.
    pub awaits: Option<String>,
    /// The form for every change; absent if nothing that short is meaningful.
    pub short: Option<Form>,
    /// The form for a release.
    pub long: Form,
}

/// A command and the output that it must have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// The command's words, separated by spaces; run in the root of the tree, without a shell.
    pub command: String,
    /// Environment variables beside those of the caller.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Regular expressions, each of which the output must contain.
    #[serde(default)]
    pub prints: Vec<String>,
    /// Regular expressions that the output must not contain.
    #[serde(default)]
    pub never: Vec<String>,
    /// Bounds on numbers in the output.
    #[serde(default)]
    pub numbers: Vec<Bound>,
    /// Seconds after which the command counts as hanging.
    pub seconds_max: u64,
}

/// A bound on every number that a pattern finds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// A regular expression whose first group is the number. The output must contain it.
    pub pattern: String,
    /// The smallest number that passes.
    pub least: Option<f64>,
    /// The largest number that passes.
    pub most: Option<f64>,
}

/// The stored result of a run of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The row's name.
    pub row: String,
    /// The row's issue.
    pub issue: u32,
    /// `short` or `long`.
    pub form: String,
    /// The commit that was run.
    pub commit: String,
    /// Files that differed from that commit.
    pub changed_files: Vec<String>,
    /// The command.
    pub command: String,
    /// The environment variables, the seed among them.
    pub environment: BTreeMap<String, String>,
    /// The seed, if there was one.
    pub seed: Option<u64>,
    /// The start, in seconds since 1970.
    pub began: u64,
    /// The duration in seconds.
    pub seconds: f64,
    /// The exit code; `None` if a signal or the time limit ended the command.
    pub exit: Option<i32>,
    /// True if the output and the exit code were as the row demands.
    pub passed: bool,
    /// The deviations from the row.
    pub faults: Vec<String>,
    /// The numbers that were compared with bounds, by pattern.
    pub samples: Samples,
    /// The whole output.
    pub output: String,
}

impl Rows {
    /// Reads `judged.toml`.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, has an unknown field, or has a name twice.
    pub fn read() -> Result<Self> {
        let path = folder().join("judged.toml");
        let text = std::fs::read_to_string(&path)?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let rows: Self = toml::from_str(text)?;
        for (at, row) in rows.rows.iter().enumerate() {
            let before = &rows.rows[..at];
            let twice = before.iter().any(|other| other.name == row.name);
            ensure!(!twice, "two rows are called {}", row.name);
        }
        Ok(rows)
    }

    /// Returns the rows of a name or of an issue's number.
    ///
    /// # Errors
    /// Returns an error if there are none.
    pub fn named(&self, word: &str) -> Result<Vec<&Row>> {
        let fits = |row: &&Row| row.name == word || row.issue.to_string() == word;
        let found: Vec<&Row> = self.rows.iter().filter(fits).collect();
        let names = || self.rows.iter().map(|row| row.name.as_str());
        let known = || names().collect::<Vec<_>>().join(", ");
        ensure!(
            !found.is_empty(),
            "no row or issue {word:?}; there are {}",
            known()
        );
        Ok(found)
    }
}

impl Form {
    /// Returns the faults of an output, and the numbers found in it.
    ///
    /// # Errors
    /// Returns an error if a pattern of the row is not valid.
    pub fn faults(&self, output: &str) -> Result<(Vec<String>, Samples)> {
        let mut faults = Vec::new();
        for pattern in &self.prints {
            if !Regex::new(pattern)?.is_match(output) {
                faults.push(format!("it did not print /{pattern}/"));
            }
        }
        for pattern in &self.never {
            if let Some(found) = Regex::new(pattern)?.find(output) {
                faults.push(format!("it printed {:?}", found.as_str()));
            }
        }
        let mut samples = BTreeMap::new();
        for Bound {
            pattern,
            least,
            most,
        } in &self.numbers
        {
            let found = Regex::new(pattern)?;
            let mut numbers = Vec::new();
            for captures in found.captures_iter(output) {
                let text = captures.get(1).context("a bound's pattern has a group")?;
                numbers.push(text.as_str().parse::<f64>()?);
            }
            if numbers.is_empty() {
                faults.push(format!("it printed no number for /{pattern}/"));
            }
            let outside = |number: &&f64| {
                least.is_some_and(|least| **number < least)
                    || most.is_some_and(|most| **number > most)
            };
            for number in numbers.iter().filter(outside) {
                faults.push(format!(
                    "{number} for /{pattern}/ is not in {least:?}..{most:?}"
                ));
            }
            samples.insert(pattern.clone(), numbers);
        }
        Ok((faults, samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form() -> Form {
        let text = r#"
            command = "x"
            prints = ["0 faults"]
            never = ["panicked"]
            numbers = [{ pattern = 'ratio ([0-9.]+)', least = 0.97 }]
            seconds_max = 1
        "#;
        toml::from_str(text).expect("a form")
    }

    #[test]
    fn an_output_passes_only_with_all_that_is_wanted() {
        let faults = |output: &str| form().faults(output).expect("patterns").0.len();
        assert_eq!(faults("ratio 0.98, ratio 1.2\n0 faults"), 0);
        assert_eq!(faults("ratio 0.98, ratio 0.5\n0 faults"), 1);
        assert_eq!(
            faults("0 faults"),
            1,
            "a number that is missing is no success"
        );
        assert_eq!(faults("ratio 1 panicked"), 2);
    }

    #[test]
    fn a_name_is_given_once() {
        let row = "[[row]]\nname = \"a\"\nissue = 1\njudges = \"x\"\n\
                   [row.long]\ncommand = \"x\"\nseconds_max = 1\n";
        assert!(Rows::parse(row).is_ok());
        assert!(Rows::parse(&row.repeat(2)).is_err());
    }
}
