//! Compares the speed of this release with that of the tagged one. `bench compare` runs twice: the
//! tagged release against itself, which shows the noise of machine and instrument, and this release
//! against the tagged one. A scenario counts as slower if its median ratio of operations per CPU
//! second is below `--least` and also below the lower quartile of the run against itself.
//!
//! `cargo run --release -p polyplane-tests --bin before_after -- --rounds 24`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use polyplane_tests::golden::folder;
use polyplane_tests::process::Up;
use serde_json::Value;

/// Compares this release with the tagged one
#[derive(Parser)]
struct Arguments {
    /// Blocks on each side of each scenario
    #[arg(long, default_value_t = 24)]
    rounds: u32,
    /// Seconds of a block
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The smallest median ratio that passes whatever the run against itself shows
    #[arg(long, default_value_t = 0.97)]
    least: f64,
    /// Scenarios; all if none is named
    scenarios: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match compared(&Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn compared(arguments: &Arguments) -> Result<bool> {
    said(Command::new("cargo").args([
        "build",
        "--release",
        "-p",
        "polyplane",
        "-p",
        "polyplane-bench",
    ]))?;
    let tagged = said(Command::new(folder().join("tagged-binary")).arg("--release"))?;
    let tagged = PathBuf::from(tagged.trim());
    let release = folder().join("../target/release");
    let this = release.join("polyplane");
    let same = ratios(&release, &tagged, &tagged, arguments).await?;
    let before = ratios(&release, &this, &tagged, arguments).await?;
    ensure!(!before.is_empty(), "bench printed no block");
    let mut passed = true;
    for (scenario, after) in &before {
        let noise = same.get(scenario).context("both ran the same")?;
        let (low, high) = (quantile(noise, 0.25), quantile(noise, 0.75));
        let median = quantile(after, 0.5);
        let is_slower = median < arguments.least && median < low;
        passed &= !is_slower;
        println!(
            "{scenario}: median {median:.3} of {} rounds; against itself {low:.3} to {high:.3} around {:.3}: {}",
            after.len(),
            quantile(noise, 0.5),
            if is_slower { "SLOWER" } else { "as fast" },
        );
    }
    Ok(passed)
}

/// Returns, for each scenario and round, the operations per CPU second of `a` divided by those of
/// `b`.
async fn ratios(
    release: &Path,
    a: &Path,
    b: &Path,
    arguments: &Arguments,
) -> Result<BTreeMap<String, Vec<f64>>> {
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let mut servers = Vec::new();
    for (program, folder) in [a, b].into_iter().zip(&folders) {
        servers.push(Up::start_program(program, folder.path(), &[]).await?);
    }
    let place = |at: usize| format!("{}:root", servers[at].kubeconfig.display());
    let mut bench = Command::new(release.join("bench"));
    bench
        .args(["--json", "compare"])
        .args(&arguments.scenarios)
        .args(["--a", &place(0), "--b", &place(1)])
        .args(["--rounds", &arguments.rounds.to_string()])
        .args(["--seconds", &arguments.seconds.to_string()]);
    let output = said(&mut bench)?;
    print!("{output}");
    let mut micros: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for line in output.lines() {
        let Ok(block) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let (Some(label), Some(server)) = (block["label"].as_str(), block["server"].as_array())
        else {
            continue;
        };
        ensure!(block["errors"] == 0, "requests failed: {line}");
        let of = |usage: &Value| usage["micros_per_operation"].as_f64();
        let sum: f64 = server.iter().filter_map(of).sum();
        let scenario = block["scenario"].as_str().unwrap_or_default().to_owned();
        micros
            .entry((scenario, label.to_owned()))
            .or_default()
            .push(sum);
    }
    for server in servers {
        server.stop().await?;
    }
    let mut ratios = BTreeMap::new();
    for ((scenario, label), on_a) in &micros {
        if label == "a" {
            let on_b = micros.get(&(scenario.clone(), "b".to_owned()));
            let pairs = on_a.iter().zip(on_b.context("two sides")?);
            ratios.insert(scenario.clone(), pairs.map(|(a, b)| b / a).collect());
        }
    }
    Ok(ratios)
}

/// Returns the value below which the given share of all values lies.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Returns the standard output of a program.
fn said(command: &mut Command) -> Result<String> {
    let output = command
        .current_dir(folder().join(".."))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
