//! Result files: what was run, where, the raw samples of each block, and what they say.
//!
//! This module owns the format, which README.md describes. A file is written by a command and read
//! by `bench table`; nobody types a figure.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use polyplane_tests::golden;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::disk;
use crate::memory_by_object::Weighed;
use crate::program::output_of;
use crate::report::{Block, Quantiles};
use crate::verdict::{Interval, Verdict};

/// The version of the format. A reader refuses any other.
const SCHEMA: u32 = 1;
/// The longest file. A longer one is a burden to every clone, so use fewer rounds.
const FILE_BYTES_MAX: usize = 200_000;

/// The command that made a file, which says what `ratio` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Operations per CPU second of side `b` over side `a`, and of a second instance of `a` over
    /// the first.
    Builds,
    /// Operations per CPU second of side `a` over side `b`.
    Compare,
    /// CPU per operation of side `server` over side `bare`.
    AgainstBare,
    /// No ratio: the memory of a server.
    MemoryByObject,
    /// The p99 of a plane beside an aggressor, over that at the bare server.
    Neighbour,
}

/// A result file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The version of the format.
    pub schema: u32,
    /// The command.
    pub command: Kind,
    /// The time at which the run began, in UTC.
    pub date: String,
    /// The commit of the tree in which `bench` ran, as `git describe` prints it.
    pub commit: String,
    /// Whether `bench` is an optimized build. If not, its bare server and its rates mean nothing.
    pub is_optimized: bool,
    /// The arguments, defaults included.
    pub arguments: Value,
    /// The machine.
    pub machine: Machine,
    /// The servers.
    pub sides: Vec<Side>,
    /// The scenarios in the order in which they ran.
    pub scenarios: Vec<Measured>,
    /// For [`Kind::MemoryByObject`]: the memory with the objects of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Weighed>,
}

/// The machine of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The number of CPUs that this process may use.
    pub cores: usize,
    /// The CPU's name.
    pub cpu: String,
    /// The kernel's release.
    pub kernel: String,
    /// The load average of the minute before the run; above 0.2 somebody else was at work.
    pub load_before: f64,
    /// Latency of a 4 KiB write and fdatasync in the folder of the stores, in microseconds.
    pub fdatasync_micros: Quantiles,
}

/// One server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The name in this file.
    pub name: String,
    /// The file name of the program, if `bench` started it.
    pub program: Option<String>,
    /// The output of `--version`, if there was one.
    pub version: Option<String>,
    /// The commit of the program, if it is known.
    pub commit: Option<String>,
    /// The store, if it is not the default one.
    pub store: Option<String>,
}

/// The samples of one scenario, and what they say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The scenario.
    pub scenario: String,
    /// The order of the sides in each round, as their places in the list of sides.
    pub order: Vec<String>,
    /// The raw samples of each side.
    pub samples: Vec<Samples>,
    /// The ratio of each round as [`Kind`] says; absent if a server's processes are unknown.
    pub ratio: Option<Interval>,
    /// For [`Kind::Builds`]: the ratio of the second instance of `a` over the first.
    pub twin: Option<Interval>,
    /// For [`Kind::Builds`]: the verdict.
    pub verdict: Option<Verdict>,
}

/// The raw samples of one side: each list has one number for each round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    /// The name of the side.
    pub side: String,
    /// Successful operations.
    pub operations: Vec<u64>,
    /// Failed operations.
    pub errors: Vec<u64>,
    /// Seconds from the first request to the last answer.
    pub seconds: Vec<f64>,
    /// The names of the server's processes, its store among them.
    pub processes: Vec<String>,
    /// CPU time of each process in microseconds.
    pub cpu_micros: Vec<Vec<u64>>,
    /// CPU time of the load generator in microseconds.
    pub client_cpu_micros: Vec<u64>,
    /// Latency in microseconds.
    pub p50_micros: Vec<f64>,
    /// Latency in microseconds.
    pub p99_micros: Vec<f64>,
    /// Latency in microseconds.
    pub max_micros: Vec<f64>,
    /// For [`Kind::Neighbour`]: the most resident memory of the server during the block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resident_bytes: Vec<u64>,
}

impl Side {
    /// Creates a side of which nothing but its name is known.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }
}

impl Samples {
    /// Creates the list of a side without samples.
    pub fn new(side: &str) -> Self {
        Self {
            side: side.to_owned(),
            ..Self::default()
        }
    }

    /// Adds a block.
    pub fn add(&mut self, block: &Block) {
        let total = |micros: f64| (micros * block.operations as f64).round() as u64;
        self.operations.push(block.operations);
        self.errors.push(block.errors);
        self.seconds
            .push(rounded(block.operations as f64 / block.per_second, 1000.0));
        if self.processes.is_empty() {
            self.processes = block
                .server
                .iter()
                .map(|usage| usage.name.clone())
                .collect();
            self.cpu_micros = vec![Vec::new(); self.processes.len()];
        }
        for (list, usage) in self.cpu_micros.iter_mut().zip(&block.server) {
            list.push(total(usage.micros_per_operation));
        }
        self.client_cpu_micros
            .push(total(block.client.micros_per_operation));
        self.p50_micros.push(rounded(block.latency.p50, 1.0));
        self.p99_micros.push(rounded(block.latency.p99, 1.0));
        self.max_micros.push(rounded(block.latency.max, 1.0));
    }

    /// Returns the CPU microseconds per operation of all processes together, round by round; empty
    /// if the processes are unknown.
    pub fn micros_per_operation(&self) -> Vec<f64> {
        if self.cpu_micros.is_empty() {
            return Vec::new();
        }
        let each = self.operations.iter().enumerate();
        let each = each.map(|(round, operations)| {
            let of_round = self.cpu_micros.iter().filter_map(|list| list.get(round));
            of_round.sum::<u64>() as f64 / (*operations).max(1) as f64
        });
        each.collect()
    }

    /// Returns whether an operation failed.
    pub fn has_errors(&self) -> bool {
        self.errors.iter().any(|errors| *errors > 0)
    }
}

fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

/// Returns, round by round, the CPU per operation of one side over that of another.
pub fn cpu_ratio(over: &Samples, under: &Samples) -> Option<Interval> {
    let pairs = over.micros_per_operation().into_iter();
    let pairs = pairs.zip(under.micros_per_operation());
    let ratios: Vec<f64> = pairs.map(|(over, under)| over / under).collect();
    let of = Interval::of(&ratios)?;
    // Digits beyond these mean nothing.
    let short = |value: f64| value.is_finite().then(|| rounded(value, 1e6));
    Some(Interval {
        median: short(of.median)?,
        low: short(of.low)?,
        high: short(of.high)?,
        min: short(of.min)?,
        max: short(of.max)?,
    })
}

impl Machine {
    /// Describes this machine, and times the disk of a folder for a second.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub fn read(folder: &Path) -> Result<Self> {
        let of = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let load = of("/proc/loadavg");
        let cpus = of("/proc/cpuinfo");
        let name = cpus.lines().find(|line| line.starts_with("model name"));
        let name = name.and_then(|line| line.split_once(':'));
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            cpu: name.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: of("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
            fdatasync_micros: disk::sync_latency(folder, Duration::from_secs(1))?.quantiles(),
        })
    }
}

impl Results {
    /// Creates results without scenarios. Call this before the load begins, because it reads the
    /// machine's load average, and because a bad name must not be found after an hour of load.
    ///
    /// # Errors
    /// Returns an error if `name` is not that of a file, git cannot name the commit, or the folder
    /// for temporary files cannot be written.
    pub fn begin(
        command: Kind,
        arguments: Value,
        sides: Vec<Side>,
        name: Option<&str>,
    ) -> Result<Self> {
        if let Some(name) = name {
            ensure!(
                is_file_name(name),
                "--out: {name:?} is not a file name of letters, digits, - and _; the ending .json is added"
            );
        }
        if cfg!(debug_assertions) {
            eprintln!("this is a debug build of bench: its bare server and its rates mean nothing");
        }
        Ok(Self {
            schema: SCHEMA,
            command,
            date: Timestamp::from_second(Timestamp::now().as_second())?.to_string(),
            commit: commit()?,
            is_optimized: !cfg!(debug_assertions),
            arguments,
            machine: Machine::read(&std::env::temp_dir())?,
            sides,
            scenarios: Vec::new(),
            memory: Vec::new(),
        })
    }

    /// Writes the file `bench/results/<name>.json`, or one that git ignores if there is no name;
    /// returns its path.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or is too long; then it has no name.
    pub fn write(&self, name: Option<&str>) -> Result<PathBuf> {
        let kind = serde_json::to_value(self.command)?;
        let unnamed = format!(
            "unnamed-{}-{}",
            kind.as_str().unwrap_or_default(),
            self.date.replace(':', "-")
        );
        let text = self.text()?;
        let fits = text.len() <= FILE_BYTES_MAX;
        let name = name.filter(|_| fits).unwrap_or(&unnamed);
        std::fs::create_dir_all(folder())?;
        let path = folder().canonicalize()?.join(format!("{name}.json"));
        std::fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        ensure!(
            fits,
            "the result has {} bytes, more than the {FILE_BYTES_MAX} that git should keep: use fewer rounds; it is in {}",
            text.len(),
            path.display()
        );
        Ok(path)
    }

    fn text(&self) -> Result<String> {
        let mut bytes = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut bytes, Lines::default());
        self.serialize(&mut serializer)?;
        bytes.push(b'\n');
        Ok(String::from_utf8(bytes)?)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if it is no result of this version of `bench`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result of bench", path.display()))?;
        if results.schema != SCHEMA {
            bail!(
                "{} has schema {}; this program reads {SCHEMA}",
                path.display(),
                results.schema
            );
        }
        Ok(results)
    }
}

fn is_file_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    !name.is_empty() && name.chars().all(fits)
}

/// Returns the folder of results.
pub fn folder() -> PathBuf {
    golden::folder().join("../bench/results")
}

/// Returns the commit of the tree; `-dirty` at its end means that files differ from it.
fn commit() -> Result<String> {
    let text = output_of(
        Command::new("git")
            .args(["describe", "--always", "--dirty", "--abbrev=12"])
            .current_dir(golden::folder()),
    )?;
    Ok(text.trim().to_owned())
}

/// JSON with a line for each field, and a list in one line: one number a line would make the file
/// ten times as long.
#[derive(Default)]
struct Lines<'a>(PrettyFormatter<'a>);

impl Formatter for Lines<'_> {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object(to)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object(to)
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(to, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object_value(to)
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object_value(to)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::{Quantiles, Usage};

    /// Returns a block with this CPU time per operation.
    pub fn block(operations: u64, micros: f64) -> Block {
        let usage = |name: &str, micros_per_operation: f64| Usage {
            name: name.to_owned(),
            micros_per_operation,
        };
        Block {
            scenario: "get".to_owned(),
            operations,
            errors: 0,
            first_error: None,
            per_second: operations as f64 / 3.0,
            megabytes_per_second: 1.0,
            latency: Quantiles {
                p50: 100.0,
                p90: 200.0,
                p99: 300.4,
                max: 1e5,
            },
            server: vec![usage("server", micros * 0.75), usage("etcd", micros * 0.25)],
            client: usage("bench", 20.0),
        }
    }

    /// Returns results of three scenarios, with the CPU times of `a`, `b` and the twin.
    pub fn results(rounds: usize) -> Results {
        let machine = Machine {
            cores: 2,
            cpu: "a CPU".to_owned(),
            kernel: "6".to_owned(),
            load_before: 0.0,
            fdatasync_micros: block(1, 1.0).latency,
        };
        let mut results = Results {
            schema: SCHEMA,
            command: Kind::Builds,
            date: "2026-01-01T00:00:00Z".to_owned(),
            commit: "abc".to_owned(),
            is_optimized: false,
            arguments: Value::Null,
            machine,
            sides: ["a", "b", "twin"].map(Side::named).to_vec(),
            scenarios: Vec::new(),
            memory: Vec::new(),
        };
        for (scenario, times) in [
            ("get", [30.0, 30.0, 30.0]),
            ("create", [100.0, 200.0, 101.0]),
            ("watch-fanout", [3.25, 3.0, 3.25]),
        ] {
            let samples = ["a", "b", "twin"].iter().zip(times).map(|(side, micros)| {
                let mut samples = Samples::new(side);
                for _ in 0..rounds {
                    samples.add(&block(123_456, micros));
                }
                samples
            });
            let samples: Vec<Samples> = samples.collect();
            results.scenarios.push(crate::builds::judge(
                scenario,
                vec!["012".to_owned(); rounds],
                samples,
                0.02,
            ));
        }
        results
    }

    #[test]
    fn a_file_can_be_read_again_and_has_room_for_48_rounds_of_ten_scenarios() {
        let mut results = results(48);
        let text = results.text().expect("JSON");
        let read: Results = serde_json::from_str(&text).expect("the format is JSON");
        assert_eq!(read.scenarios[1].verdict, Some(Verdict::Slower));
        assert!(read.text().expect("JSON") == text, "another text");
        results.schema = 0;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("x.json");
        std::fs::write(&path, results.text().expect("JSON")).expect("write");
        let error = Results::read(&path).expect_err("another schema");
        assert!(error.to_string().contains("schema 0"), "{error}");
        assert!(text.len() / 3 * 10 < FILE_BYTES_MAX, "{}", text.len());
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        assert!(is_file_name("no-slower_2"));
        for bad in ["", "a.json", "../a", "a b"] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_server_counts_with_its_store() {
        let mut samples = Samples::new("a");
        samples.add(&block(1000, 40.0));
        assert_eq!(samples.cpu_micros, [[30_000], [10_000]]);
        assert_eq!(samples.micros_per_operation(), [40.0]);
        assert!(Samples::new("a").micros_per_operation().is_empty());
        assert!(cpu_ratio(&samples, &Samples::new("b")).is_none());
    }
}
