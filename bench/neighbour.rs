//! A plane beside another one that takes all it can get: the latency of the modest one, alone and
//! beside each aggressor, and the same at the bare server. What the bare server does to a neighbour
//! is what the machine and its kernel do; above that is what the server does.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use polyplane_tests::programs::create_plane;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::aggressor::Aggression;
use crate::bare::Bare;
use crate::builds::orders;
use crate::load::Pace;
use crate::report::{Block, Format};
use crate::results::{Kind, Measured, Results, Samples, Side};
use crate::scenarios::{Effort, Prepared, Scenario};
use crate::servers::{Build, Plane, Server};
use crate::table;
use crate::target::{Place, Target};
use crate::verdict::Interval;

/// The plane of the aggressor.
const AGGRESSOR: &str = "bench-aggressor";
/// The neighbour's streams for each kind of request: enough that a slow answer delays no other request.
const STREAMS: u64 = 16;
/// How long the aggressor may take to begin.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// The two kinds of requests of the neighbour.
const KINDS: [Scenario; 2] = [Scenario::Get, Scenario::Create];
/// The sides of a result, in their order.
const SIDES: [&str; 4] = ["alone", "beside", "bare alone", "bare beside"];

/// The neighbour's rate, and the aggressors.
#[derive(Args)]
pub struct NeighbourArguments {
    /// Aggressors; all if none is named
    #[arg(value_enum)]
    aggressors: Vec<Aggression>,
    /// Streams of the aggressor
    #[arg(long, default_value_t = 256)]
    streams: u64,
    /// GETs a second of the neighbour
    #[arg(long, default_value_t = 100.0)]
    gets: f64,
    /// CREATEs a second of the neighbour
    #[arg(long, default_value_t = 25.0)]
    creates: f64,
    /// Seconds of one block
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Rounds of each aggressor; a round has a block of the neighbour alone and one beside the
    /// aggressor, on each server
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Name of the result file in bench/results; default: one that git ignores
    #[arg(long)]
    out: Option<String>,
}

/// Prints what each aggressor does to its neighbour, and writes the result file.
///
/// # Errors
/// Returns an error if a server does not start, or answers no request of a block.
pub async fn neighbour(arguments: &NeighbourArguments, format: Format) -> Result<()> {
    let aggressors = match arguments.aggressors.is_empty() {
        true => Aggression::value_variants().to_vec(),
        false => arguments.aggressors.clone(),
    };
    let build = Build::current(None)?;
    let recorded = json!({"aggressors": aggressors, "rounds": arguments.rounds,
        "gets": arguments.gets, "creates": arguments.creates,
        "effort": {"streams": arguments.streams, "seconds": arguments.seconds}});
    let mut sides = SIDES.map(Side::named).to_vec();
    sides[0] = build.side(SIDES[0])?;
    let out = arguments.out.as_deref();
    let mut results = Results::begin(Kind::Neighbour, recorded, sides, out)?;
    let server = Server::start("server", &build, Plane::Tenant).await?;
    let aggressor = create_plane(server.root.lane().endpoint(), AGGRESSOR).await?;
    let bare = Bare::start().await?;
    let here = Site {
        neighbour: Neighbour::prepare(&server.plane).await?,
        place: server.place().context("the server has a kubeconfig")?,
        base_path: aggressor.base_path,
    };
    let there = Site {
        neighbour: Neighbour::prepare(&bare.target(4).await?).await?,
        place: bare.place(),
        base_path: String::new(),
    };
    for aggression in aggressors {
        let blocks = rounds(&[&here, &there], aggression, arguments).await?;
        for (kind, blocks) in KINDS.iter().zip(blocks) {
            let measured = measured(aggression, *kind, arguments.rounds, &blocks)?;
            print(&measured, format)?;
            results.scenarios.push(measured);
        }
    }
    server.stop().await?;
    if format == Format::Text {
        print!("\n{}", table::markdown(&results));
    }
    eprintln!("written: {}", results.write(out)?.display());
    Ok(())
}

/// A server, the neighbour that is measured there, and where the aggressor goes.
struct Site {
    neighbour: Neighbour,
    place: Place,
    base_path: String,
}

/// The modest plane.
struct Neighbour {
    target: Target,
    kinds: [Prepared; 2],
}

/// A block, with the most memory that the server had meanwhile.
#[derive(Debug)]
struct Seen {
    block: Block,
    resident: u64,
}

impl Neighbour {
    async fn prepare(target: &Target) -> Result<Self> {
        let target = target.reconnected().await?;
        let effort = effort(1.0, 1.0);
        let [get, create] = KINDS;
        let kinds = [
            get.prepare(&target, &effort).await?,
            create.prepare(&target, &effort).await?,
        ];
        Ok(Self { target, kinds })
    }

    /// Sends both kinds of requests for the time of a block.
    async fn block(&self, arguments: &NeighbourArguments) -> Result<[Seen; 2]> {
        let resident = Arc::<AtomicU64>::default();
        let looking = tokio::spawn(look(self.target.processes.clone(), Arc::clone(&resident)));
        let (gets, creates) = (
            effort(arguments.gets, arguments.seconds),
            effort(arguments.creates, arguments.seconds),
        );
        let blocks = tokio::join!(
            self.kinds[0].block(&self.target, &gets),
            self.kinds[1].block(&self.target, &creates)
        );
        looking.abort();
        let resident = resident.load(Ordering::Relaxed);
        let seen = |block| Seen { block, resident };
        Ok([seen(blocks.0?), seen(blocks.1?)])
    }
}

fn effort(per_second: f64, seconds: f64) -> Effort {
    Effort {
        streams: STREAMS,
        pace: Pace::Open { per_second },
        time: Duration::from_secs_f64(seconds),
        watchers: 0,
    }
}

/// Keeps the most memory that the processes have had.
async fn look(processes: Vec<crate::proc::Process>, most: Arc<AtomicU64>) {
    loop {
        let now = processes.iter().filter_map(|one| one.resident().ok()).sum();
        most.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs the blocks of one aggressor. Returns them for each kind of request and each of [`SIDES`].
async fn rounds(
    sites: &[&Site; 2],
    aggression: Aggression,
    arguments: &NeighbourArguments,
) -> Result<[[Vec<Seen>; 4]; 2]> {
    let mut seen: [[Vec<Seen>; 4]; 2] = Default::default();
    for order in orders(sites.len(), arguments.rounds) {
        for digit in order.bytes() {
            let at = usize::from(digit - b'0');
            let site = sites[at];
            let alone = site.neighbour.block(arguments).await?;
            let aggressor = Aggressor::begin(site, aggression, arguments.streams).await?;
            let beside = site.neighbour.block(arguments).await?;
            let name = aggression.to_possible_value();
            let name = name.as_ref().map_or("", |value| value.get_name());
            eprintln!(
                "{name} at {}: {} operations in each block of the aggressor",
                site.neighbour.target.label,
                aggressor.end().await?
            );
            for (place, blocks) in [(2 * at, alone), (2 * at + 1, beside)] {
                for (kind, block) in blocks.into_iter().enumerate() {
                    seen[kind][place].push(block);
                }
            }
        }
    }
    Ok(seen)
}

/// The aggressor's process, which ends when this is dropped.
struct Aggressor {
    child: Child,
    blocks: Arc<AtomicU64>,
    operations: Arc<AtomicU64>,
}

impl Aggressor {
    /// Starts the aggressor, and returns once it has sent a block of its load.
    async fn begin(site: &Site, aggression: Aggression, streams: u64) -> Result<Self> {
        let name = aggression.to_possible_value();
        let name = name.as_ref().map_or("", |value| value.get_name());
        let mut kubeconfig = site.place.kubeconfig.display().to_string();
        if let Some(context) = &site.place.context {
            kubeconfig = format!("{kubeconfig}:{context}");
        }
        // Large bodies of all streams would fill the aggressor's own memory.
        let streams = match aggression {
            Aggression::Bodies | Aggression::Strangers => streams.div_ceil(4),
            Aggression::Lists | Aggression::Writes | Aggression::Watches => streams,
        };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["aggressor", name, "--kubeconfig", &kubeconfig])
            .args(["--streams", &streams.to_string()])
            .arg(format!("--base-path={}", site.base_path))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the aggressor")?;
        let output = child.stdout.take().context("the aggressor has no output")?;
        let mut lines = BufReader::new(output).lines();
        let first = tokio::time::timeout(BEGIN_LIMIT, lines.next_line()).await;
        let first = first.context("the aggressor does not begin")??;
        let first = first.context("the aggressor has ended")?.parse()?;
        let (blocks, operations) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(first)));
        let (counted, summed) = (Arc::clone(&blocks), Arc::clone(&operations));
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                counted.fetch_add(1, Ordering::Relaxed);
                summed.fetch_add(line.parse().unwrap_or(0), Ordering::Relaxed);
            }
        });
        Ok(Self {
            child,
            blocks,
            operations,
        })
    }

    /// Kills the aggressor. Returns how many operations a block of it had.
    async fn end(mut self) -> Result<u64> {
        let ended = self.child.try_wait()?;
        ensure!(
            ended.is_none(),
            "the aggressor has ended before the neighbour"
        );
        self.child.kill().await?;
        let blocks = self.blocks.load(Ordering::Relaxed);
        Ok(self.operations.load(Ordering::Relaxed) / blocks)
    }
}

/// Makes the result of one aggressor and one kind of request.
fn measured(
    aggression: Aggression,
    kind: Scenario,
    rounds: u32,
    seen: &[Vec<Seen>; 4],
) -> Result<Measured> {
    let name = aggression.to_possible_value().context("it has a name")?;
    let mut samples = SIDES.map(Samples::new);
    for (samples, seen) in samples.iter_mut().zip(seen) {
        for Seen { block, resident } in seen {
            samples.add(block);
            samples.resident_bytes.push(*resident);
        }
    }
    let [_, beside, _, bare] = &samples;
    let pairs = beside.p99_micros.iter().zip(&bare.p99_micros);
    let ratios: Vec<f64> = pairs.map(|(here, there)| here / there.max(1.0)).collect();
    Ok(Measured {
        scenario: format!("{} beside {}", kind.name(), name.get_name()),
        order: orders(2, rounds),
        ratio: Interval::of(&ratios),
        samples: samples.to_vec(),
        twin: None,
        verdict: None,
    })
}

fn print(measured: &Measured, format: Format) -> Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string(measured)?);
        return Ok(());
    }
    let ratio = measured.ratio.context("there are rounds")?;
    let errors: u64 = measured.samples.iter().flat_map(|one| &one.errors).sum();
    let resident = measured.samples[1].resident_bytes.iter().max();
    println!(
        "{}: p99 {:.2} times that at the bare server, {errors} errors, {} MiB",
        measured.scenario,
        ratio.median,
        resident.map_or(0, |bytes| bytes >> 20)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::block;

    /// Returns a block whose p99 is this.
    fn seen(p99: f64) -> Seen {
        let mut block = block(100, 10.0);
        block.latency.p99 = p99;
        let resident = 5 << 20;
        Seen { block, resident }
    }

    #[test]
    fn a_neighbour_s_ratio_compares_the_two_servers_beside_the_aggressor() {
        let of = |values: [f64; 3]| values.map(seen).into_iter().collect::<Vec<_>>();
        let alone = || of([1.0, 1.0, 1.0]);
        let (beside, bare) = (of([30.0, 60.0, 20.0]), of([20.0, 20.0, 20.0]));
        let all = [alone(), beside, alone(), bare];
        let measured = measured(Aggression::Lists, Scenario::Get, 3, &all).expect("a result");
        assert_eq!(measured.scenario, "get beside lists");
        let ratio = measured.ratio.expect("three rounds");
        assert!((ratio.median - 1.5).abs() < 1e-9 && (ratio.max - 3.0).abs() < 1e-9);
        assert_eq!(measured.samples[1].resident_bytes, [5 << 20; 3]);
    }
}
