//! Every row of `judged.toml` can be run: the targets that its command names exist.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use polyplane_tests::golden::folder;
use polyplane_tests::rows::{Form, Row, Rows, SHORT_SECONDS_MAX};
use regex::Regex;
use serde_json::Value;

/// Returns the targets of the workspace as `package kind name`.
fn targets() -> Result<BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(folder())
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let mut found = BTreeSet::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        for target in package["targets"].as_array().context("no targets")? {
            for kind in target["kind"].as_array().context("no kind")? {
                let words = [&package["name"], kind, &target["name"]];
                let words = words.map(|word| word.as_str().unwrap_or_default());
                found.insert(words.join(" "));
            }
        }
    }
    Ok(found)
}

/// Returns the word that follows a flag.
fn behind<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == flag)?;
    words.get(at + 1).copied()
}

/// Returns the first target that a command names and that does not exist.
fn missing(form: &Form, targets: &BTreeSet<String>) -> Result<Option<String>> {
    let words: Vec<&str> = form.command.split_whitespace().collect();
    if words[0] != "cargo" {
        let script = folder().join("..").join(words[0]);
        return Ok((!script.is_file()).then(|| words[0].to_owned()));
    }
    let package = match words.contains(&"--workspace") {
        true => None,
        false => Some(behind(&words, "-p").context("a cargo command names its package")?),
    };
    let own_words = words.iter().skip_while(|word| **word != "--").skip(1);
    let scenario = own_words.copied().nth(1);
    if let (Some("explore"), Some(name)) = (behind(&words, "--example"), scenario) {
        // The explorer ignores a name that no scenario has, so check the name here.
        let text = std::fs::read_to_string(folder().join("../fencing/model/scenarios.rs"))?;
        return Ok((!text.contains(name)).then(|| format!("scenario {name}")));
    }
    for kind in ["test", "bin", "example"] {
        if let Some(name) = behind(&words, &format!("--{kind}")) {
            let wanted = match package {
                Some(package) => format!("{package} {kind} {name}"),
                None => format!(" {kind} {name}"),
            };
            let there = targets.iter().any(|target| match package {
                Some(_) => *target == wanted,
                None => target.ends_with(&wanted),
            });
            return Ok((!there).then_some(wanted));
        }
    }
    if let (true, Some(package)) = (words.contains(&"--lib"), package) {
        let wanted = format!("{package} lib ");
        let there = targets.iter().any(|target| target.starts_with(&wanted));
        return Ok((!there).then_some(wanted));
    }
    if package == Some("polyplane-bench") {
        let scenario = behind(&words, "--").context("bench needs a scenario")?;
        return Ok((!scenarios()?.contains(scenario)).then(|| format!("bench {scenario}")));
    }
    bail!("{:?} names no target", form.command)
}

/// Returns the commands of the load generator, as clap spells them.
fn scenarios() -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(folder().join("../bench/main.rs"))?;
    let (_, commands) = text.split_once("enum Command {").context("its commands")?;
    let (commands, _) = commands.split_once("\n}").context("their end")?;
    let variant = Regex::new(r"(?m)^    ([A-Z][A-Za-z]*)[ ,{]")?;
    let kebab = |name: &str| {
        let mut word = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !word.is_empty() {
                word.push('-');
            }
            word.push(letter.to_ascii_lowercase());
        }
        word
    };
    let found = variant
        .captures_iter(commands)
        .map(|found| kebab(&found[1]));
    Ok(found.collect())
}

fn forms(row: &Row) -> impl Iterator<Item = &Form> {
    row.short.iter().chain([&row.long])
}

#[test]
fn every_row_names_something_that_is_there() -> Result<()> {
    let (rows, targets) = (Rows::read()?, targets()?);
    let mut wrong = Vec::new();
    for row in &rows.rows {
        let mut absent = Vec::new();
        for form in forms(row) {
            absent.extend(missing(form, &targets).with_context(|| row.name.clone())?);
        }
        match &row.awaits {
            None => wrong.extend(absent.iter().map(|what| format!("{}: no {what}", row.name))),
            Some(_) if absent.is_empty() => {
                wrong.push(format!("{}: it is there now; take `awaits` away", row.name));
            }
            Some(_) => {}
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn every_row_demands_something_within_a_time() -> Result<()> {
    for row in &Rows::read()?.rows {
        for form in forms(row) {
            let (_, samples) = form.faults("")?;
            let demands = form.prints.len() + samples.len();
            ensure!(demands > 0, "{}: whatever it prints would pass", row.name);
            let passes = form.faults("")?.0.is_empty();
            ensure!(!passes, "{}: an empty output passes", row.name);
        }
        let short = row.short.as_ref().map_or(0, |short| short.seconds_max);
        ensure!(
            short <= SHORT_SECONDS_MAX,
            "{}: {short} s is not short",
            row.name
        );
    }
    Ok(())
}

#[test]
fn the_scenarios_of_the_load_generator_are_found() -> Result<()> {
    let found = scenarios()?;
    let wanted = ["compare", "hand-off", "run"];
    ensure!(wanted.iter().all(|name| found.contains(*name)), "{found:?}");
    Ok(())
}
