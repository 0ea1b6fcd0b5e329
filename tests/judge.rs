//! Runs rows of `judged.toml` and stores their results in `results/`, one file for each row and
//! form: `tests/judge disk-full`, `tests/judge 8`, `tests/judge 8 --long`.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::Parser;
use polyplane_tests::golden::folder;
use polyplane_tests::rows::{Form, Outcome, Row, Rows};
use rustix::process::{Pid, Signal, kill_process_group};

/// Interval at which the judge checks whether a command has ended.
const POLL: Duration = Duration::from_millis(100);

/// Judges by rows of judged.toml
#[derive(Parser)]
struct Arguments {
    /// Names of rows, or numbers of issues
    #[arg(required = true)]
    rows: Vec<String>,
    /// Run the long form
    #[arg(long)]
    long: bool,
    /// The seed of rows that take one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where results are kept
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    match judged(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Judges the rows; returns whether all passed.
fn judged(arguments: &Arguments) -> Result<bool> {
    let rows = Rows::read()?;
    let mut chosen: Vec<&Row> = Vec::new();
    for word in &arguments.rows {
        chosen.extend(rows.named(word)?);
    }
    let kept = arguments.results.clone();
    let kept = kept.unwrap_or_else(|| folder().join("results"));
    std::fs::create_dir_all(&kept)?;
    let mut passed = true;
    for row in chosen {
        let (name, form) = match (arguments.long, &row.short) {
            (false, None) => {
                println!("{}: has no short form", row.name);
                continue;
            }
            (false, Some(short)) => ("short", short),
            (true, _) => ("long", &row.long),
        };
        let outcome = run(row, name, form, arguments.seed)?;
        let path = kept.join(format!("{}.{name}.json", row.name));
        let mut text = serde_json::to_string_pretty(&outcome)?;
        text.push('\n');
        std::fs::write(&path, text)?;
        passed &= outcome.passed;
        show(&outcome, &path);
    }
    Ok(passed)
}

fn show(outcome: &Outcome, path: &Path) {
    let verdict = if outcome.passed { "passed" } else { "FAILED" };
    let (row, form, seconds) = (&outcome.row, &outcome.form, outcome.seconds);
    println!(
        "{row} ({form}): {verdict} in {seconds:.1} s, see {}",
        path.display()
    );
    for fault in &outcome.faults {
        println!("    {fault}");
    }
}

fn run(row: &Row, name: &str, form: &Form, seed: u64) -> Result<Outcome> {
    let mut environment = form.environment.clone();
    if let Some(variable) = &row.seed {
        environment.insert(variable.clone(), seed.to_string());
    }
    let mut outcome = Outcome {
        row: row.name.clone(),
        issue: row.issue,
        form: name.to_owned(),
        commit: git(&["rev-parse", "HEAD"])?.trim().to_owned(),
        changed_files: git(&["status", "--porcelain"])?
            .lines()
            .map(str::to_owned)
            .collect(),
        command: form.command.clone(),
        environment,
        seed: row.seed.as_ref().map(|_| seed),
        began: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_secs(),
        seconds: 0.0,
        exit: None,
        passed: false,
        faults: row
            .awaits
            .iter()
            .map(|why| format!("not there yet: {why}"))
            .collect(),
        samples: BTreeMap::new(),
        output: String::new(),
    };
    let ready = match row.awaits {
        None => programs(&row.needs).and_then(|()| build(&form.command)),
        Some(_) => Ok(()),
    };
    if let Err(error) = ready {
        // A row that cannot be run has not passed.
        outcome.faults.push(format!("{error:#}"));
    }
    let began = Instant::now();
    if outcome.faults.is_empty() {
        println!("{} ({name}): {}", row.name, form.command);
        let limit = Duration::from_secs(form.seconds_max);
        let ran = ran(&form.command, &outcome.environment, limit);
        match ran {
            Ok((exit, output)) => {
                outcome.exit = exit;
                outcome.output = output;
                let (faults, samples) = form.faults(&outcome.output)?;
                (outcome.faults, outcome.samples) = (faults, samples);
                if exit != Some(0) {
                    outcome.faults.insert(0, format!("exit code {exit:?}"));
                }
            }
            Err(error) => outcome.faults.push(format!("{error:#}")),
        }
    }
    outcome.passed = outcome.faults.is_empty();
    outcome.seconds = began.elapsed().as_secs_f64();
    Ok(outcome)
}

/// Finds or builds the programs that the command needs.
fn programs(names: &[String]) -> Result<()> {
    for name in names {
        let output = match name.as_str() {
            "tagged-binary" => Command::new(folder().join("tagged-binary")).output()?,
            name => Command::new(folder().join("programs")).arg(name).output()?,
        };
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(())
}

/// Compiles what a cargo command runs, so that compiling does not count in its time.
fn build(command: &str) -> Result<()> {
    let words = command.split_whitespace().take_while(|word| *word != "--");
    let words: Vec<&str> = words.collect();
    let (words, flag) = match &words[..] {
        ["cargo", "test", rest @ ..] => ([&["test"], rest].concat(), Some("--no-run")),
        ["cargo", "run", rest @ ..] => ([&["build"], rest].concat(), None),
        _ => return Ok(()),
    };
    cargo(words.into_iter().chain(flag))?;
    // The servers that tests start.
    cargo([
        "build",
        "--workspace",
        "--bin",
        "polyplane",
        "--example",
        "next_release",
    ])
}

fn cargo<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(words).current_dir(folder().join(".."));
    let output = cargo.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{cargo:?}: {}", said.trim());
    }
    Ok(())
}

/// Runs a command in a process group of its own, to its end or to the time limit. Returns its exit
/// code and both outputs in the order in which they were written.
fn ran(
    command: &str,
    environment: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<(Option<i32>, String)> {
    use std::os::unix::process::CommandExt as _;
    let mut words = command.split(' ').filter(|word| !word.is_empty());
    let program = words.next().context("no command")?;
    let (mut reader, writer) = std::io::pipe()?;
    let mut running = Command::new(program);
    running
        .args(words)
        .envs(environment)
        .current_dir(folder().join(".."))
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0);
    let mut child = running
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    // The command's copies of the pipe's end would make the reader wait forever.
    drop(running);
    let reading = std::thread::spawn(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).map(|_| output)
    });
    let deadline = Instant::now() + limit;
    let mut hung = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline && !hung {
            hung = true;
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            kill_process_group(group.context("a process has an id")?, Signal::KILL)?;
        }
        std::thread::sleep(POLL);
    };
    let output = reading.join().ok().context("the reader ended")??;
    let mut output = String::from_utf8_lossy(&output).into_owned();
    if hung {
        output += &format!("\nended after {} s\n", limit.as_secs());
    }
    Ok((status.code(), output))
}

fn git(words: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .current_dir(folder())
        .args(words)
        .output()?;
    if !output.status.success() {
        bail!(
            "git {words:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
