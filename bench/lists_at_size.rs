//! Lists of a plane with very many objects of a kind: when the first byte comes, what a list keeps in
//! memory while it is sent, whether pages show one state while objects come and go, and what it costs
//! to find a few among them.
//!
//! Memory is what the kernel counts as anonymous, sampled while an answer is read. Each whole list is
//! counted: an answer that lacks an object is an error, not a fast list.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::header::{ACCEPT, HeaderValue};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use polyplane_tests::programs::Server as Program;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::lane::{Content, Lane};
use crate::objects::text;
use crate::proc::Process;
use crate::report::{Format, Latencies, Spread, show_number, show_quantiles};
use crate::servers::{Build, Plane, Server};
use crate::target::{Place, Target};

const NAMESPACE: &str = "lists-at-size";
const COLLECTION: &str = "/api/v1/namespaces/lists-at-size/configmaps";
const CONNECTIONS: usize = 4;
/// Objects of which one has a certain label.
const PARTS: u64 = 1000;
/// Objects of a page.
const PAGE: usize = 500;
/// Objects that are looked up by name.
const LOOKED_UP: u64 = 500;
/// Whole lists that are read at the same time.
const AT_ONCE: usize = 8;
/// Time between two objects that come, and two that go, beside pages. The log of a plane has 4 MiB, or an
/// eighth of the bytes of its objects: changes at full speed would fill it before all pages are read, and the
/// next one would be answered with 410.
const BETWEEN_CHANGES: Duration = Duration::from_millis(10);
const BETWEEN_SAMPLES: Duration = Duration::from_millis(5);
/// The beginning of the names of objects that are created beside pages.
const LATER: &str = "later-";
/// What each object has once, and nothing else.
const MARK: &[u8] = b"\"uid\":\"";
/// What each object has once in YAML.
const YAML_MARK: &[u8] = b"    uid: ";

/// How many objects, and where.
#[derive(Args)]
pub struct SizeArguments {
    /// ConfigMaps, of about 700 bytes each
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    objects: u64,
    /// Streams while objects are created
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Whole lists of each form
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also on the reference, which needs several gigabytes for a million objects
    #[arg(long)]
    reference: bool,
    /// The store of the server: `etcd`, or a value of `up --store`
    #[arg(long)]
    store: Option<String>,
}

/// The form of a list.
#[derive(Clone, Copy, Debug)]
struct Form {
    name: &'static str,
    accept: &'static str,
    query: &'static str,
    mark: &'static [u8],
}

const FORMS: [Form; 4] = [
    Form {
        name: "json",
        accept: "application/json",
        query: "",
        mark: MARK,
    },
    Form {
        name: "indented",
        accept: "application/json",
        query: "?pretty=true",
        mark: b"\"uid\": \"",
    },
    Form {
        name: "yaml",
        accept: "application/yaml",
        query: "",
        mark: YAML_MARK,
    },
    Form {
        name: "metadata",
        accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        query: "",
        mark: MARK,
    },
];

/// One list that was read whole.
#[derive(Clone, Copy, Debug, Serialize)]
struct Read {
    first_byte_seconds: f64,
    seconds: f64,
    bytes: u64,
    cpu_seconds: f64,
    /// The most memory while it was read, beyond that before.
    memory_bytes: u64,
}

/// Prints what lists of very many objects take.
///
/// # Errors
/// Returns an error if a server does not start, refuses something, or a list lacks an object or shows
/// one that it should not.
pub async fn lists_at_size(arguments: &SizeArguments, format: Format) -> Result<()> {
    let build = Build::current(arguments.store.clone())?;
    let server = Server::start("Polyplane", &build, Plane::Tenant).await?;
    measure(&server.plane, arguments, format).await?;
    server.stop().await?;
    if arguments.reference {
        let program = Program::start_reference().await?;
        let place = Place {
            kubeconfig: program.kubeconfig.clone(),
            context: None,
        };
        let target = Target::open("reference", &place, &[], CONNECTIONS).await?;
        measure(&target, arguments, format).await?;
    }
    Ok(())
}

async fn measure(target: &Target, arguments: &SizeArguments, format: Format) -> Result<()> {
    let began = Instant::now();
    load(target, arguments).await?;
    let count = existing(target).await?;
    eprintln!(
        "{}: {count} objects after {} s",
        target.label,
        began.elapsed().as_secs()
    );
    for form in FORMS {
        let mut lists = Vec::new();
        for _ in 0..arguments.rounds {
            lists.push(whole(target, form, count).await?);
        }
        print_lists(target, form.name, &lists, format);
    }
    let together = watched(target, async {
        try_join_all((0..AT_ONCE).map(|at| {
            let lane = &target.lanes[at % target.lanes.len()];
            read(lane, FORMS[0], count)
        }))
        .await
    });
    let (_, memory) = together.await?;
    let what = format!("{AT_ONCE} lists at once");
    print_number(target, &what, "bytes of memory", memory as f64, format);
    by_name(target, arguments, format).await?;
    by_label(target, arguments, format).await?;
    pages(target, count, format).await
}

async fn load(target: &Target, arguments: &SizeArguments) -> Result<()> {
    let namespace = text(&json!({"metadata": {"name": NAMESPACE}}));
    target
        .lane()
        .create("/api/v1/namespaces", namespace)
        .await?;
    let lanes = target.lanes.iter().cycle();
    let made = stream::iter((0..arguments.objects).zip(lanes))
        .map(|(number, lane)| async move { lane.create(COLLECTION, object(number)).await });
    made.buffer_unordered(arguments.streams.max(1))
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

fn name_of(number: u64) -> String {
    format!("object-{number}")
}

fn object(number: u64) -> Bytes {
    let part = (number % PARTS).to_string();
    text(
        &json!({"metadata": {"name": name_of(number), "labels": {"part": part}},
        "data": {"text": "x".repeat(200)}}),
    )
}

/// Returns the number of objects, with those that the server adds to a namespace.
async fn existing(target: &Target) -> Result<u64> {
    let path = format!("{COLLECTION}?limit=1");
    let answer = target
        .lane()
        .call(Method::GET, &path, Content::None)
        .await?;
    let list: Value = serde_json::from_slice(&answer)?;
    let listed = list["items"].as_array().map_or(0, Vec::len) as u64;
    Ok(listed + list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0))
}

/// Reads a list whole, and watches CPU time and memory.
async fn whole(target: &Target, form: Form, count: u64) -> Result<Read> {
    let before = cpu(target)?;
    let reading = watched(target, read(target.lane(), form, count));
    let (mut list, memory) = reading.await.context(form.name)?;
    list.cpu_seconds = cpu(target)? - before;
    list.memory_bytes = memory;
    Ok(list)
}

/// Reads a list, and counts its objects.
async fn read(lane: &Lane, form: Form, count: u64) -> Result<Read> {
    let path = format!("{COLLECTION}{}", form.query);
    let mut request = lane.request(Method::GET, &path, Content::None)?;
    let accept = HeaderValue::from_static(form.accept);
    request.headers_mut().insert(ACCEPT, accept);
    let began = Instant::now();
    let (status, mut body) = lane.start(request).await?;
    ensure!(status == StatusCode::OK, "{status}");
    let mut counted = Counted::new(form.mark);
    let (mut first, mut bytes) = (None, 0);
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else {
            continue;
        };
        first.get_or_insert_with(|| began.elapsed());
        bytes += piece.len() as u64;
        counted.add(&piece);
    }
    ensure!(
        counted.found == count,
        "a list has {} of {count} objects",
        counted.found
    );
    Ok(Read {
        first_byte_seconds: first.context("an empty list")?.as_secs_f64(),
        seconds: began.elapsed().as_secs_f64(),
        bytes,
        cpu_seconds: 0.0,
        memory_bytes: 0,
    })
}

/// Counts a mark in text that comes in pieces.
struct Counted {
    mark: &'static [u8],
    found: u64,
    /// The end of the text so far, shorter than the mark.
    end: Vec<u8>,
}

impl Counted {
    fn new(mark: &'static [u8]) -> Self {
        Self {
            mark,
            found: 0,
            end: Vec::new(),
        }
    }

    fn add(&mut self, piece: &[u8]) {
        let shorter = self.mark.len() - 1;
        self.end
            .extend_from_slice(&piece[..piece.len().min(shorter)]);
        let marks = |text: &[u8]| {
            text.windows(self.mark.len())
                .filter(|w| *w == self.mark)
                .count()
        };
        self.found += (marks(&self.end) + marks(piece)) as u64;
        self.end
            .extend_from_slice(&piece[piece.len().min(shorter)..]);
        let kept = self.end.len().saturating_sub(shorter);
        self.end.drain(..kept);
    }
}

/// Returns a result with the most memory until it was there, beyond that at the beginning.
async fn watched<T>(target: &Target, work: impl Future<Output = Result<T>>) -> Result<(T, u64)> {
    let before = memory(&target.processes)?;
    let mut most = before;
    let mut samples = tokio::time::interval(BETWEEN_SAMPLES);
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok((done?, most - before)),
            _ = samples.tick() => most = most.max(memory(&target.processes)?),
        }
    }
}

fn memory(processes: &[Process]) -> Result<u64> {
    processes.iter().map(Process::anonymous).sum()
}

fn cpu(target: &Target) -> Result<f64> {
    let times = target.processes.iter().map(|process| {
        let time = process.cpu()?;
        anyhow::Ok(time.total().as_secs_f64())
    });
    times.sum()
}

/// Finds single objects by a selector of their name.
async fn by_name(target: &Target, arguments: &SizeArguments, format: Format) -> Result<()> {
    let mut latencies = Latencies::default();
    let before = cpu(target)?;
    for at in 0..LOOKED_UP {
        let name = name_of(at * (arguments.objects / LOOKED_UP));
        let path = format!("{COLLECTION}?fieldSelector=metadata.name%3D{name}");
        let began = Instant::now();
        let found = items(target, &path).await?;
        latencies.add(began.elapsed());
        ensure!(
            found.len() == 1,
            "{} objects have the name {name}",
            found.len()
        );
    }
    let micros = (cpu(target)? - before) * 1e6 / LOOKED_UP as f64;
    print_number(target, "by name", "µs of CPU", micros, format);
    print_latencies(target, "by name", &latencies, format);
    Ok(())
}

/// Finds one object of a thousand by a label.
async fn by_label(target: &Target, arguments: &SizeArguments, format: Format) -> Result<()> {
    let path = format!("{COLLECTION}?labelSelector=part%3D7");
    let mut latencies = Latencies::default();
    let before = cpu(target)?;
    for _ in 0..arguments.rounds {
        let began = Instant::now();
        let found = items(target, &path).await?.len() as u64;
        latencies.add(began.elapsed());
        let wanted = (arguments.objects - 7).div_ceil(PARTS);
        ensure!(
            found == wanted,
            "{found} of {wanted} objects have the label"
        );
    }
    let seconds = (cpu(target)? - before) / f64::from(arguments.rounds);
    print_number(target, "by label", "seconds of CPU", seconds, format);
    print_latencies(target, "by label", &latencies, format);
    Ok(())
}

async fn items(target: &Target, path: &str) -> Result<Vec<Value>> {
    let answer = target.lane().call(Method::GET, path, Content::None);
    let mut list: Value = serde_json::from_slice(&answer.await?)?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

/// Reads all pages of a list. Behind the first one, objects are deleted and created beside it; all
/// pages show the state of the first.
async fn pages(target: &Target, count: u64, format: Format) -> Result<()> {
    let mut latencies = Latencies::default();
    let (mut names, mut token) = (BTreeSet::new(), String::new());
    let (mut version, mut changes) = (None, None);
    loop {
        let path = format!("{COLLECTION}?limit={PAGE}&continue={token}");
        let began = Instant::now();
        let answer = target.lane().call(Method::GET, &path, Content::None);
        let page: Value = serde_json::from_slice(&answer.await?)?;
        latencies.add(began.elapsed());
        let shown = page["metadata"]["resourceVersion"].clone();
        let first = version.get_or_insert_with(|| shown.clone());
        ensure!(
            *first == shown,
            "pages of one list show {first} and {shown}"
        );
        for item in page["items"].as_array().context("a page has items")? {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            ensure!(names.insert(name.to_owned()), "{name} is on two pages");
        }
        changes.get_or_insert_with(|| Changes::begin(target));
        let next = page["metadata"]["continue"].as_str().unwrap_or_default();
        if next.is_empty() {
            break;
        }
        next.clone_into(&mut token);
    }
    let changed = match changes {
        Some(changes) => changes.end().await?,
        None => 0,
    };
    let later = names.iter().filter(|name| name.starts_with(LATER)).count();
    ensure!(
        later == 0 && names.len() as u64 == count,
        "the pages have {} of {count} objects, {later} of them are newer",
        names.len()
    );
    print_number(target, "beside pages", "changes", changed as f64, format);
    print_latencies(target, "a page", &latencies, format);
    Ok(())
}

/// Objects that come and go beside pages.
struct Changes {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Result<u64>>,
}

impl Changes {
    /// In turn creates an object and deletes one of those that were there.
    fn begin(target: &Target) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (lane, over) = (Arc::clone(&target.lanes[1]), Arc::clone(&is_over));
        let task = tokio::spawn(async move {
            let mut changed = 0;
            let mut turns = tokio::time::interval(BETWEEN_CHANGES);
            turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !over.load(Ordering::Relaxed) {
                turns.tick().await;
                let body = text(&json!({"metadata": {"name": format!("{LATER}{changed}")}}));
                lane.create(COLLECTION, body).await?;
                let path = format!("{COLLECTION}/{}", name_of(changed));
                lane.call(Method::DELETE, &path, Content::None).await?;
                changed += 1;
            }
            Ok(2 * changed)
        });
        Self { is_over, task }
    }

    async fn end(self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

fn print_lists(target: &Target, form: &str, lists: &[Read], format: Format) {
    if format == Format::Json {
        let line = json!({"side": target.label, "what": "list", "form": form, "rounds": lists});
        println!("{line}");
        return;
    }
    let median = |of: fn(&Read) -> f64| {
        let spread = Spread::of(lists.iter().map(of).collect());
        spread.map_or(0.0, |spread| spread.median)
    };
    println!(
        "{}, whole list, {form}: first byte after {:.1} ms, {:.2} s, {:.0} MB, {:.2} s of CPU, {:.1} MiB of memory at most",
        target.label,
        median(|list| list.first_byte_seconds) * 1e3,
        median(|list| list.seconds),
        median(|list| list.bytes as f64) / 1e6,
        median(|list| list.cpu_seconds),
        lists
            .iter()
            .map(|list| list.memory_bytes)
            .max()
            .unwrap_or(0) as f64
            / f64::from(1 << 20),
    );
}

fn print_number(target: &Target, what: &str, unit: &str, value: f64, format: Format) {
    show_number(format, &format!("{}, {what}", target.label), unit, value);
}

fn print_latencies(target: &Target, what: &str, latencies: &Latencies, format: Format) {
    show_quantiles(format, &format!("{}, {what}", target.label), latencies);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_counted_wherever_a_piece_ends() {
        let text = b"{\"uid\":\"1\",\"uid\":\"2\"}\"uid\":\"";
        for length in 1..text.len() {
            let mut counted = Counted::new(MARK);
            text.chunks(length).for_each(|piece| counted.add(piece));
            assert_eq!(counted.found, 3, "pieces of {length}");
        }
    }
}
