//! Custom kinds as projects publish them, in a plane as on the reference: their definitions, the
//! documents about them, dry runs of objects that are drawn from their schemas, and random sequences
//! of writes by three managers.
//!
//! `PUBLISHED_DRY_RUNS` says how many dry runs (200), `PUBLISHED_SEQUENCES` how many sequences (20),
//! `PUBLISHED_SEED` the first seed (1), `PUBLISHED_PROJECT` the only project or kind. `PUBLISHED_REFERENCE` and
//! `PUBLISHED_SERVER` name kubeconfigs of servers that run already. Without `PUBLISHED_DRY_RUNS` the
//! test does nothing if the reference is not built yet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use polyplane_tests::client::Client;
use polyplane_tests::compare::places;
use polyplane_tests::dice::Dice;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::normalize::Normalizer;
use polyplane_tests::programs::{Server, create_plane_without_controllers, has_reference};
use polyplane_tests::published::definitions::{self, Definition, Version};
use polyplane_tests::published::documents::{compared, published};
use polyplane_tests::published::dry_runs::Servers;
use polyplane_tests::sequences::kinds;
use polyplane_tests::sequences::play::Pair;
use polyplane_tests::sequences::reduce::reduce;
use polyplane_tests::sequences::sequence::Sequence;
use polyplane_tests::settings::number;
use polyplane_tests::symbols::Symbols;
use serde_json::Value;
use tokio::time::Instant;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The longest time until a definition is established.
const ESTABLISH_LIMIT: Duration = Duration::from_secs(30);
/// The time between two looks at a definition.
const POLL: Duration = Duration::from_millis(50);
/// Accepted objects of a version that sequences start from.
const EXAMPLES_MAX: usize = 8;
/// Comparisons whose differences are printed, and places of each. One defect shows in many.
const SHOWN: usize = 25;
const PLACES: usize = 4;
/// Sequences that are made shorter and printed.
const REDUCED: usize = 12;

/// Both servers.
struct Site {
    _started: Vec<Server>,
    reference: Endpoint,
    plane: Endpoint,
}

async fn site() -> Result<Site> {
    let mut started = Vec::new();
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let reference = match of("PUBLISHED_REFERENCE") {
        Some(path) => Endpoint::from_kubeconfig(&path, None)?,
        None => {
            let server = Server::start_reference_alone().await?;
            let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, None)?;
            started.push(server);
            endpoint
        }
    };
    let root = match of("PUBLISHED_SERVER") {
        Some(path) => Endpoint::from_kubeconfig(&path, Some("root"))?,
        None => {
            let server = Server::start().await?;
            let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, Some("root"))?;
            started.push(server);
            endpoint
        }
    };
    let name = format!("published-{}", std::process::id());
    let plane = create_plane_without_controllers(&root, &name).await?;
    Ok(Site {
        _started: started,
        reference,
        plane,
    })
}

/// Counts comparisons and prints the first differences.
#[derive(Default)]
struct Report {
    compared: usize,
    different: usize,
    shown: usize,
}

impl Report {
    fn add(&mut self, name: &str, differ: &[String]) {
        self.compared += 1;
        self.different += usize::from(!differ.is_empty());
        self.shown += usize::from(!differ.is_empty());
        if self.shown <= SHOWN {
            for place in differ.iter().take(PLACES) {
                println!("{name}: {}", shortened(place));
            }
        }
    }
}

fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 1500;
    text.chars().take(CHARS_MAX).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_kinds_are_answered_as_by_the_reference() -> Result<()> {
    let must_run = std::env::var_os("PUBLISHED_DRY_RUNS").is_some();
    if !must_run && !has_reference() {
        println!(
            "skipped: there is no kube-apiserver; PUBLISHED_DRY_RUNS=200 builds it once, which needs Go"
        );
        return Ok(());
    }
    let mut definitions = definitions::load()?;
    if let Ok(only) = std::env::var("PUBLISHED_PROJECT") {
        definitions.retain(|definition| definition.project == only || definition.kind() == only);
        ensure!(!definitions.is_empty(), "no project {only}");
    }
    let site = site().await?;
    let clients = (
        Client::open(&site.reference).await?,
        Client::open(&site.plane).await?,
    );
    let first = number("PUBLISHED_SEED", 1)?;
    let documents = compare_documents(&site, &clients, &mut definitions).await?;
    let (dry_runs, accepted, kinds) =
        compare_dry_runs(&site, &clients, &definitions, first).await?;
    let (played, different) = compare_sequences(&site, kinds, first).await?;
    println!(
        "documents: {} compared, {} different",
        documents.compared, documents.different
    );
    println!(
        "dry runs: {}, {accepted} accepted by the reference, {} different",
        dry_runs.compared, dry_runs.different
    );
    println!("sequences: {played}, {} different", different.len());
    let all = documents.different + dry_runs.different + different.len();
    ensure!(all == 0, "{all} differ; sequences {different:?}");
    Ok(())
}

/// Creates the definitions on both servers, and compares them and what is published about them. Those
/// that the reference refuses are taken out.
async fn compare_documents(
    site: &Site,
    (reference, plane): &(Client, Client),
    definitions: &mut Vec<Definition>,
) -> Result<Report> {
    let mut report = Report::default();
    let mut served = Vec::new();
    for definition in definitions.drain(..) {
        let expected = established(reference, &definition, "").await?;
        let answered = established(plane, &definition, &site.plane.base_path).await?;
        report.add(definition.name(), &places(&expected, &answered));
        match expected["kind"] == "Status" {
            true => println!("refused: {}: {}", definition.name(), expected["message"]),
            false => served.push(definition),
        }
    }
    *definitions = served;
    let expected = published(reference, definitions).await?;
    let answered = published(plane, definitions).await?;
    for document in compared(&expected, &answered) {
        report.add(&document.name, &document.places);
    }
    Ok(report)
}

/// Creates a definition, and returns it once it is established, or the answer if it is refused.
async fn established(client: &Client, definition: &Definition, base_path: &str) -> Result<Value> {
    let path = format!("{DEFINITIONS}?fieldManager=m1");
    let made = client.post(&path, &definition.object).await?;
    if made.status == 422 {
        return Ok(made.body);
    }
    if made.status != 409 {
        made.expect(201)
            .with_context(|| definition.name().to_owned())?;
    }
    let path = format!("{DEFINITIONS}/{}", definition.name());
    let deadline = Instant::now() + ESTABLISH_LIMIT;
    loop {
        let found = client.get(&path).await?.expect(200)?;
        let conditions = found["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let mut conditions = conditions.into_iter();
        let is_established =
            |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        // A group of the project has to be approved, which another controller says.
        let is_protected = definition.is_protected();
        let is_judged = found["status"].to_string().contains("ApprovalPolicy");
        if conditions.any(is_established) && (is_judged || !is_protected) {
            let mut found = Normalizer {
                symbols: &mut Symbols::default(),
                step: "definition",
                sent: "",
                base_path,
            }
            .value(found);
            // The reference's controllers write the conditions in any order.
            let conditions = found["status"]["conditions"].as_array_mut();
            let name = |condition: &Value| condition["type"].to_string();
            conditions
                .into_iter()
                .for_each(|conditions| conditions.sort_by_key(name));
            // The order of the versions says nothing between two servers.
            if let Some(metadata) = found["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("{} is not established: {found}", definition.name());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Sends dry runs, and returns how many the reference accepted and the kinds with accepted objects.
async fn compare_dry_runs(
    site: &Site,
    clients: &(Client, Client),
    definitions: &[Definition],
    first: u64,
) -> Result<(Report, usize, Vec<kinds::Kind>)> {
    let (mut report, mut accepted) = (Report::default(), 0);
    let mut examples: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let servers = Servers {
        reference: &clients.0,
        plane: &clients.1,
        plane_path: &site.plane.base_path,
    };
    let all: Vec<(&Definition, Version<'_>)> = definitions
        .iter()
        .flat_map(|definition| {
            definition
                .served()
                .map(move |version| (definition, version))
        })
        .collect();
    for seed in first..first + number("PUBLISHED_DRY_RUNS", 200)? {
        let at = usize::try_from(seed).unwrap_or_default() % all.len();
        let (definition, version) = &all[at];
        let run = servers.dry_run(seed, definition, version).await?;
        let collection = definition.collection(version.name);
        report.add(
            &format!("dry run {seed} {collection} {}", run.object),
            &run.places,
        );
        accepted += usize::from(run.accepted);
        let known = examples.entry(collection).or_default();
        if run.accepted && known.len() < EXAMPLES_MAX {
            known.push(run.object);
        }
    }
    let mut found = Vec::new();
    for definition in definitions {
        let versions = definition.served().map(|version| {
            let collection = definition.collection(version.name);
            kinds::Version {
                api_version: format!("{}/{}", definition.group(), version.name),
                status: version.has_status,
                scale: version.has_scale,
                needs_version: true,
                examples: examples.remove(&collection).unwrap_or_default(),
                collection,
            }
        });
        let versions: Vec<_> = versions
            .filter(|version| !version.examples.is_empty())
            .collect();
        if !versions.is_empty() {
            found.push(kinds::Kind {
                name: definition.kind().to_owned(),
                versions,
            });
        }
    }
    Ok((report, accepted, found))
}

/// Plays sequences of writes, and returns how many and the seeds of those that differ.
async fn compare_sequences(
    site: &Site,
    kinds: Vec<kinds::Kind>,
    first: u64,
) -> Result<(u64, Vec<u64>)> {
    let count = number("PUBLISHED_SEQUENCES", 20)?;
    if count == 0 {
        return Ok((0, Vec::new()));
    }
    ensure!(!kinds.is_empty(), "no object was accepted");
    let pair = Pair::open(&site.reference, &site.plane, "published").await?;
    let pair = pair.naming_kinds();
    let mut different = Vec::new();
    for seed in first..first + count {
        // Neighbouring seeds would draw related sequences of one kind.
        let sequence = Sequence::of(Dice::new(seed).next_number(), &kinds);
        let outcome = pair.play(&sequence).await;
        let outcome = outcome.with_context(|| format!("seed {seed}, {}", sequence.kind))?;
        if outcome.differences.is_empty() {
            continue;
        }
        println!("sequence {seed} differs: {}", sequence.kind);
        different.push(seed);
        if different.len() <= REDUCED {
            let (shorter, outcome) = reduce(&pair, sequence, outcome).await?;
            for (at, step) in shorter.steps.iter().enumerate() {
                println!("### step {at}\n{step}");
            }
            for difference in &outcome.differences {
                println!("{difference}");
            }
        }
    }
    Ok((count, different))
}
