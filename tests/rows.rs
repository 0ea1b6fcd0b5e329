//! The rows of `judged.toml`: what is judged, the command that judges it, and what it must print.
//!
//! Owns the file's format and the verdict over an output. Must not start anything.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::golden::folder;

/// The longest that a short form may take.
pub const SHORT_SECONDS_MAX: u64 = 120;

/// Numbers that were found in an output, by the pattern of their bound.
pub type Samples = BTreeMap<String, Vec<f64>>;

/// All rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// In the order of the file.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// One line of an issue's "How it is judged".
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Names the row on the command line and in results.
    pub name: String,
    /// The issue it is a line of.
    pub issue: u32,
    /// What it shows, in one sentence.
    pub judges: String,
    /// Programs that `tests/programs` finds or builds before the command runs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The variable that the seed is given in, where the command takes one.
    pub seed: Option<String>,
    /// Why the command cannot be there yet. Running the row fails until it is.
    pub awaits: Option<String>,
    /// For every change; absent where nothing that short says anything.
    pub short: Option<Form>,
    /// For a release.
    pub long: Form,
}

/// A command and what it must print.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// Words, split at spaces; run in the root of the tree, without a shell.
    pub command: String,
    /// Variables beside those of the caller.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Regular expressions that the output must contain, each.
    #[serde(default)]
    pub prints: Vec<String>,
    /// Regular expressions that it must not contain.
    #[serde(default)]
    pub never: Vec<String>,
    /// Numbers within bounds.
    #[serde(default)]
    pub numbers: Vec<Bound>,
    /// After how many seconds it has hung.
    pub seconds_max: u64,
}

/// A bound on every number that a pattern finds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// A regular expression whose first group is the number. It must be found.
    pub pattern: String,
    /// The smallest that passes.
    pub least: Option<f64>,
    /// The largest that passes.
    pub most: Option<f64>,
}

/// What a run of a row left, as it is kept.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The row's name.
    pub row: String,
    /// Its issue.
    pub issue: u32,
    /// `short` or `long`.
    pub form: String,
    /// The commit that was run.
    pub commit: String,
    /// Files that differed from that commit.
    pub changed_files: Vec<String>,
    /// The command.
    pub command: String,
    /// Its variables, the seed among them.
    pub environment: BTreeMap<String, String>,
    /// The seed, where there is one.
    pub seed: Option<u64>,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// How long it took.
    pub seconds: f64,
    /// The exit code; `None` where a signal or the time limit ended it.
    pub exit: Option<i32>,
    /// Whether all was as the row wants it.
    pub passed: bool,
    /// What was not.
    pub faults: Vec<String>,
    /// Numbers that bounds were checked against, by pattern.
    pub samples: Samples,
    /// All it printed.
    pub output: String,
}

impl Rows {
    /// Reads `judged.toml`.
    ///
    /// # Errors
    /// When it is not there, has an unknown field, or a name twice.
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
    /// When there are none.
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
    /// What is wrong with an output, and the numbers found in it.
    ///
    /// # Errors
    /// When a pattern of the row is none.
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
