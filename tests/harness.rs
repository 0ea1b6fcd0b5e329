//! Replays every scenario against a plane of its own and compares the answers with the reference's.
//!
//! A difference that tests/differences.toml does not list fails the test, and so does an entry
//! there that no answer needs any more. Steps in tests/open.txt are known to differ, and it is not
//! decided whether they may: they are counted separately and do not fail the test. `RECORD_OPEN=1`
//! writes that file again. `cargo test -p polyplane-tests --test harness -- NAME…`
//! runs the scenarios whose names contain one of the words.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result};
use polyplane_tests::compare::{AcceptedList, Difference, differences};
use polyplane_tests::golden::{Golden, folder, scenario_files};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{Server, create_plane, delete_plane};
use polyplane_tests::run::run;
use polyplane_tests::scenario::Scenario;

#[derive(Default)]
struct Tally {
    replayed: Vec<String>,
    steps: usize,
    equal: usize,
    accepted: usize,
    different: usize,
    open: usize,
    /// Steps with differences that are not accepted, as `scenario / step`.
    unaccepted: BTreeSet<String>,
}

/// Steps that are known to differ and wait for a decision.
struct Open {
    steps: BTreeSet<String>,
    recording: bool,
}

impl Open {
    fn load() -> Result<Self> {
        let text = std::fs::read_to_string(folder().join("open.txt")).unwrap_or_default();
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        let recording = std::env::var_os("RECORD_OPEN").is_some();
        Ok(Self {
            steps: lines.map(str::to_owned).collect(),
            recording,
        })
    }

    fn holds(&self, scenario: &str, step: &str) -> bool {
        self.recording || self.steps.contains(&format!("{scenario} / {step}"))
    }

    fn record(&self, tally: &Tally) -> Result<()> {
        if !self.recording {
            return Ok(());
        }
        let mut text = String::from(
            "# Steps whose answers differ from the reference's and wait for a decision; see harness.rs.\n",
        );
        for step in &tally.unaccepted {
            text.push_str(step);
            text.push('\n');
        }
        std::fs::write(folder().join("open.txt"), text).context("open.txt cannot be written")
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("the system gives a runtime its threads");
    match runtime.block_on(replay_all(&words)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("harness: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Replays scenarios and reports; returns true if there is no unaccepted difference.
async fn replay_all(words: &[String]) -> Result<bool> {
    let accepted = AcceptedList::load(&folder().join("differences.toml"))?;
    let server = Server::start().await?;
    let root = Endpoint::from_kubeconfig(&server.kubeconfig, Some("root"))?;
    let open = Open::load()?;
    let mut tally = Tally::default();
    for (name, path) in scenario_files()? {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let scenario = Scenario::parse(&name, &text).with_context(|| format!("scenario {name}"))?;
        let golden = Golden::load(&name)?;
        tally.replayed.push(name.clone());
        tally.steps += golden.steps.len();
        let stale = golden.stale_steps(&scenario);
        if !stale.is_empty() {
            println!("{name}: recorded from another version of the scenario: {stale:?}");
            tally.different += stale.len();
            continue;
        }
        match replay(&scenario, &root).await {
            Ok(answered) => report(&name, &golden, &answered, &accepted, &open, &mut tally),
            Err(error) => {
                println!("{name}: {error:#}");
                tally.different += golden.steps.len();
            }
        }
    }
    let mut unused = 0;
    for entry in accepted.unused(&tally.replayed) {
        unused += 1;
        let (scenario, step, path) = (&entry.scenario, &entry.step, &entry.path);
        println!("differences.toml: {scenario} / {step} / {path} accepted nothing; remove it");
    }
    let share = tally.accepted * 10_000 / tally.steps.max(1);
    println!(
        "harness: {} scenarios, {} steps recorded, {} equal, {} different in accepted ways ({}.{:02} %), {} open, {} different",
        tally.replayed.len(),
        tally.steps,
        tally.equal,
        tally.accepted,
        share / 100,
        share % 100,
        tally.open,
        tally.different
    );
    open.record(&tally)?;
    Ok(tally.different == 0 && unused == 0 && !tally.replayed.is_empty())
}

async fn replay(scenario: &Scenario, root: &Endpoint) -> Result<Golden> {
    let plane = create_plane(root, &scenario.name).await?;
    let answered = run(scenario, &plane).await;
    delete_plane(root, &scenario.name).await?;
    answered
}

fn report(
    name: &str,
    golden: &Golden,
    answered: &Golden,
    accepted: &AcceptedList,
    open: &Open,
    tally: &mut Tally,
) {
    let found = differences(golden, answered);
    let (known, new): (Vec<Difference>, Vec<Difference>) = found
        .into_iter()
        .partition(|difference| accepted.accepts(name, difference));
    for step in &golden.steps {
        let of_step = |list: &[Difference]| list.iter().any(|found| found.step == step.step);
        match (of_step(&new), of_step(&known)) {
            (true, _) => {
                tally.unaccepted.insert(format!("{name} / {}", step.step));
                if open.holds(name, &step.step) {
                    tally.open += 1;
                } else {
                    tally.different += 1;
                }
            }
            (false, true) => tally.accepted += 1,
            (false, false) => tally.equal += 1,
        }
    }
    let of_all = new.iter().filter(|found| found.step == "(all)");
    if of_all.clone().count() > 0 {
        tally.unaccepted.insert(format!("{name} / (all)"));
    }
    if !open.holds(name, "(all)") {
        tally.different += of_all.count();
    }
    let mut last = "";
    for difference in new
        .iter()
        .filter(|found| open.recording || !open.holds(name, &found.step))
    {
        if difference.step != last {
            let step = golden
                .steps
                .iter()
                .find(|step| step.step == difference.step);
            let request = step.map_or("", |step| step.request.as_str());
            println!("{name} / {} ({request})", difference.step);
            last = &difference.step;
        }
        println!("{difference}");
    }
}
