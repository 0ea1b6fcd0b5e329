//! The load generator: named scenarios against one server, or the same load against two.
//!
//! It sends HTTPS requests to the server that a kubeconfig names and reads CPU time from /proc, so
//! a plane and the reference are measured with the same instrument. README.md says how to read the
//! results.

mod bare;
mod disk;
mod forward;
mod hand_off;
mod lane;
mod load;
mod planes;
mod proc;
mod report;
mod ring;
mod ring_planes;
mod ring_size;
mod scenarios;
mod target;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use http::{Method, StatusCode};
use serde_json::json;

use crate::bare::Bare;
use crate::forward::Rounds;
use crate::lane::{Content, Lane};
use crate::load::{Load, Pace, Turn};
use crate::report::{Block, Format, Spread, show, show_quantiles};
use crate::ring_planes::Crowd;
use crate::scenarios::{Effort, Scenario};
use crate::target::{Place, Target};

#[derive(Parser)]
#[command(about = "Measures a control plane's API: CPU per operation, latency, memory")]
struct Arguments {
    /// Print one JSON object a line
    #[arg(long, global = true)]
    json: bool,
    /// Threads of the load generator
    #[arg(long, global = true, default_value_t = 1)]
    client_threads: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run scenarios against one server
    Run {
        /// Scenarios; all if none is named
        scenarios: Vec<Scenario>,
        #[command(flatten)]
        server: ServerArguments,
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// Run scenarios against two servers in interleaved blocks and print ratios
    Compare {
        /// Scenarios; all if none is named
        scenarios: Vec<Scenario>,
        /// The measured server: kubeconfig, or kubeconfig:context
        #[arg(long)]
        a: Place,
        /// The server it is compared with: kubeconfig, or kubeconfig:context
        #[arg(long)]
        b: Place,
        /// Process ids of a; default: the pids or pid file beside its kubeconfig
        #[arg(long, value_delimiter = ',')]
        a_pids: Vec<u32>,
        /// Process ids of b; default: the pids or pid file beside its kubeconfig
        #[arg(long, value_delimiter = ',')]
        b_pids: Vec<u32>,
        /// Blocks on each side
        #[arg(long, default_value_t = 6)]
        rounds: u32,
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// Create planes one after the other, against plain durable creates
    CreatePlane {
        #[command(flatten)]
        server: ServerArguments,
        /// Planes to create
        #[arg(long, default_value_t = 200)]
        count: u64,
    },
    /// Start `polyplane up` from nothing and from an existing folder
    ColdStart {
        /// Starts of each kind
        #[arg(long, default_value_t = 10)]
        rounds: u64,
    },
    /// Create planes and measure what each weighs
    IdlePlanes {
        #[command(flatten)]
        server: ServerArguments,
        /// Planes to create
        #[arg(long, default_value_t = 1000)]
        planes: u64,
        /// Planes that get one watch
        #[arg(long, default_value_t = 100)]
        watches: u64,
        /// Seconds to let the server settle before memory is read
        #[arg(long, default_value_t = 3.0)]
        settle: f64,
    },
    /// What a hop adds: one plane through its owner and through the other replica of two
    Forward {
        /// Pairs of blocks of each kind
        #[arg(long, default_value_t = 6)]
        rounds: u32,
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// The pause while a plane that is written to moves between two replicas
    HandOff {
        /// Moves, there and back in turn
        #[arg(long, default_value_t = 50)]
        moves: u32,
        /// Writes a second, on a schedule
        #[arg(long, default_value_t = 400.0)]
        rate: f64,
    },
    /// Create very many planes, keep some awake, and drain replicas of three
    Planes {
        /// Planes
        #[arg(long, default_value_t = 10_000)]
        planes: u64,
        /// Planes that are watched and written to
        #[arg(long, default_value_t = 100)]
        awake: u64,
        /// Drains, of one replica after the other
        #[arg(long, default_value_t = 3)]
        drains: usize,
    },
    /// What a second replica gives
    RingSize {
        /// Blocks of each kind
        #[arg(long, default_value_t = 6)]
        rounds: u32,
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// Show that the load generator is not the bottleneck
    #[command(name = "self")]
    Own {
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// Time fdatasync alone
    Disk {
        /// The folder whose disk is meant
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Serve constant bytes (started by `self`)
    #[command(hide = true)]
    BareServer { folder: PathBuf, body_bytes: usize },
}

#[derive(Args)]
struct ServerArguments {
    /// The server: kubeconfig, or kubeconfig:context
    #[arg(long)]
    kubeconfig: Place,
    /// Process ids of the server and its store; default: the pids or pid file beside the kubeconfig
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    /// Connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
}

#[derive(Args, Clone, Copy)]
struct EffortArguments {
    /// Streams over all connections
    #[arg(long, default_value_t = 32)]
    streams: u64,
    /// Requests a second in an open loop; default: a closed loop
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds of one block
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Watchers in watch-fanout
    #[arg(long, default_value_t = 100)]
    watchers: u64,
    /// Seconds of warming up before the first block
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
}

impl EffortArguments {
    fn effort(&self) -> Effort {
        Effort {
            streams: self.streams.max(1),
            pace: self
                .rate
                .map_or(Pace::Closed, |per_second| Pace::Open { per_second }),
            time: Duration::from_secs_f64(self.seconds),
            watchers: self.watchers,
        }
    }

    fn rounds(&self, rounds: u32) -> Rounds {
        Rounds {
            rounds,
            effort: self.effort(),
            warm_up: Duration::from_secs_f64(self.warm_up),
        }
    }

    fn warming(&self) -> Effort {
        Effort {
            time: Duration::from_secs_f64(self.warm_up),
            ..self.effort()
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.client_threads.max(1))
        .enable_all()
        .build()?;
    let format = if arguments.json {
        Format::Json
    } else {
        Format::Text
    };
    runtime.block_on(execute(arguments.command, format))
}

async fn execute(command: Command, format: Format) -> Result<()> {
    match command {
        Command::Run {
            scenarios,
            server,
            effort,
        } => {
            let target = open(&server).await?;
            run_all(
                &target,
                &server.kubeconfig,
                &chosen(scenarios),
                &effort,
                format,
            )
            .await
        }
        Command::Compare {
            scenarios,
            a,
            b,
            a_pids,
            b_pids,
            rounds,
            effort,
        } => {
            let a = Target::open("a", &a, &a_pids, 4).await?;
            let b = Target::open("b", &b, &b_pids, 4).await?;
            for scenario in chosen(scenarios) {
                compare(&a, &b, scenario, rounds, &effort, format).await?;
            }
            Ok(())
        }
        Command::CreatePlane { server, count } => {
            planes::create_plane(&open(&server).await?, count, format).await
        }
        Command::ColdStart { rounds } => planes::cold_start(rounds, format).await,
        Command::IdlePlanes {
            server,
            planes,
            watches,
            settle,
        } => {
            let settle = Duration::from_secs_f64(settle);
            planes::idle_planes(&open(&server).await?, planes, watches, settle, format).await
        }
        Command::Forward { rounds, effort } => {
            forward::forward(&effort.rounds(rounds), format).await
        }
        Command::HandOff { moves, rate } => hand_off::hand_off(moves, rate, format).await,
        Command::Planes {
            planes,
            awake,
            drains,
        } => {
            let crowd = Crowd {
                planes,
                awake: awake.min(planes),
                drains,
            };
            ring_planes::planes(&crowd, format).await
        }
        Command::RingSize { rounds, effort } => {
            ring_size::ring_size(&effort.rounds(rounds), format).await
        }
        Command::Own { effort } => own(&effort, format).await,
        Command::Disk { folder } => sync_times(&folder, format),
        Command::BareServer { folder, body_bytes } => bare::serve(&folder, body_bytes).await,
    }
}

async fn open(server: &ServerArguments) -> Result<Target> {
    Target::open("", &server.kubeconfig, &server.pids, server.connections).await
}

fn chosen(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    match scenarios.is_empty() {
        true => clap::ValueEnum::value_variants().to_vec(),
        false => scenarios,
    }
}

async fn run_all(
    target: &Target,
    place: &Place,
    scenarios: &[Scenario],
    effort: &EffortArguments,
    format: Format,
) -> Result<()> {
    // The disk beside the server's kubeconfig counts as the disk of its store.
    let folder = place
        .kubeconfig
        .parent()
        .context("the kubeconfig is in no folder")?;
    sync_times(folder, format)?;
    for scenario in scenarios {
        let prepared = scenario.prepare(target, &effort.effort()).await?;
        prepared.block(target, &effort.warming()).await?;
        let block = prepared.block(target, &effort.effort()).await?;
        prepared.finish(target).await?;
        show(format, "", &block);
    }
    Ok(())
}

fn sync_times(folder: &std::path::Path, format: Format) -> Result<()> {
    let latencies = disk::sync_latency(folder, Duration::from_secs(1))?;
    show_quantiles(format, "raw write of 4 KiB and fdatasync", &latencies);
    Ok(())
}

/// Runs interleaved blocks. The order within a round alternates, so that a drift of the machine
/// affects both sides.
async fn compare(
    a: &Target,
    b: &Target,
    scenario: Scenario,
    rounds: u32,
    effort: &EffortArguments,
    format: Format,
) -> Result<()> {
    let on_a = scenario.prepare(a, &effort.effort()).await?;
    let on_b = scenario.prepare(b, &effort.effort()).await?;
    on_a.block(a, &effort.warming()).await?;
    on_b.block(b, &effort.warming()).await?;
    let mut blocks: Vec<(Block, Block)> = Vec::new();
    for round in 0..rounds.max(1) {
        let pair = match round % 2 {
            0 => {
                let one = on_a.block(a, &effort.effort()).await?;
                (one, on_b.block(b, &effort.effort()).await?)
            }
            _ => {
                let other = on_b.block(b, &effort.effort()).await?;
                (on_a.block(a, &effort.effort()).await?, other)
            }
        };
        show(format, "a: ", &pair.0);
        show(format, "b: ", &pair.1);
        blocks.push(pair);
    }
    on_a.finish(a).await?;
    on_b.finish(b).await?;
    print_ratios(scenario, &blocks, format);
    Ok(())
}

fn print_ratios(scenario: Scenario, blocks: &[(Block, Block)], format: Format) {
    let ratios = |of: &dyn Fn(&Block, &Block) -> Option<f64>| {
        Spread::of(blocks.iter().filter_map(|(a, b)| of(a, b)).collect())
    };
    let cpu = ratios(&|a, b| Some(b.server_micros()? / a.server_micros()?));
    let rate = ratios(&|a, b| Some(a.per_second / b.per_second));
    let median = ratios(&|a, b| Some(b.latency.p50 / a.latency.p50));
    let tail = ratios(&|a, b| Some(b.latency.p99 / a.latency.p99));
    let name = scenario.name();
    match format {
        Format::Json => println!(
            "{}",
            json!({"scenario": name, "operations per CPU second, a/b": cpu, "rate, a/b": rate,
                   "p50, b/a": median, "p99, b/a": tail})
        ),
        Format::Text => {
            let text = |spread: &Option<Spread>| match spread {
                Some(Spread { median, min, max }) => format!("{median:.2}x ({min:.2} to {max:.2})"),
                None => "unknown".to_owned(),
            };
            println!(
                "{name}: a against b, median and range of {} rounds",
                blocks.len()
            );
            println!(
                "  operations per CPU second of server and store: {}",
                text(&cpu)
            );
            println!("  operations per second: {}", text(&rate));
            println!(
                "  latency, how many times shorter: p50 {}, p99 {}",
                text(&median),
                text(&tail)
            );
        }
    }
}

/// Measures answers as small as a GET's and as large as a LIST's, from a server that does nothing
/// else.
async fn own(effort: &EffortArguments, format: Format) -> Result<()> {
    for (name, body_bytes) in [("self, 1.2 KB", 1_200), ("self, 120 KB", 120_000)] {
        let bare = Bare::start(body_bytes).await?;
        let place = Place {
            kubeconfig: bare.folder.path().join("kubeconfig"),
            context: None,
        };
        let target = Target::open("", &place, &[], 4).await?;
        let mut load = Load {
            maker: Arc::new(|lane: &Lane, turn: Turn| {
                let path = format!("/api/v1/namespaces/x/configmaps/o-{}", turn.count % 1000);
                lane.request(Method::GET, &path, Content::None)
            }),
            expected: StatusCode::OK,
            streams: effort.effort().streams,
            pace: effort.effort().pace,
            time: effort.warming().time,
        };
        target.block(name, &load).await?;
        load.time = effort.effort().time;
        show(format, "", &target.block(name, &load).await?);
    }
    Ok(())
}
