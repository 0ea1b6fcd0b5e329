//! The load generator: named scenarios against one server, or the same load against two.
//!
//! It sends HTTPS requests to the server that a kubeconfig names and reads CPU time from /proc, so
//! a plane and the reference are measured with the same instrument. README.md says how to read the
//! results.

mod account;
mod against_bare;
mod against_etcd;
mod aggressor;
mod arguments;
mod audit;
mod bare;
mod builds;
mod busy_planes;
mod cold_start;
mod compare;
mod custom;
mod disk;
mod forward;
mod hand_off;
mod interleave;
mod lane;
mod lists_at_size;
mod load;
mod mass_deletion;
mod mass_objects;
mod memory_by_object;
mod neighbour;
mod objects;
mod owned;
mod planes;
mod proc;
mod program;
mod report;
mod results;
mod ring;
mod ring_planes;
mod ring_size;
mod scenarios;
mod servers;
mod table;
mod target;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::against_bare::AgainstBareArguments;
use crate::aggressor::AggressorArguments;
use crate::arguments::{EffortArguments, ServerArguments};
use crate::builds::BuildsArguments;
use crate::busy_planes::BusyArguments;
use crate::compare::CompareArguments;
use crate::lists_at_size::SizeArguments;
use crate::mass_deletion::MassArguments;
use crate::memory_by_object::MemoryArguments;
use crate::neighbour::NeighbourArguments;
use crate::report::{Format, show, show_quantiles};
use crate::ring_planes::Crowd;
use crate::scenarios::Scenario;
use crate::table::TableArguments;
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
        #[command(flatten)]
        arguments: CompareArguments,
    },
    /// Compare two builds, and the old one with itself; ends with 1 if a scenario is slower
    Builds {
        #[command(flatten)]
        arguments: BuildsArguments,
    },
    /// Run scenarios against a server and a bare one in interleaved blocks and print ratios
    AgainstBare {
        #[command(flatten)]
        arguments: AgainstBareArguments,
    },
    /// What a create costs the server on etcd, beyond a bare client of etcd and an embedded store
    AgainstEtcd {
        /// Blocks on each side
        #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// What a line of the audit log adds to a request
    Audit {
        /// Blocks on each side
        #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        #[command(flatten)]
        effort: EffortArguments,
    },
    /// Print the tables of result files, or write them into documents
    Table {
        #[command(flatten)]
        arguments: TableArguments,
    },
    /// Create planes one after the other, against plain durable creates
    CreatePlane {
        #[command(flatten)]
        server: ServerArguments,
        /// Planes to create
        #[arg(long, default_value_t = 200)]
        count: u64,
    },
    /// Start `polyplane up` from nothing, from an existing folder, and from one with many planes
    ColdStart {
        /// Starts of each kind
        #[arg(long, default_value_t = 10)]
        rounds: u64,
        /// Planes in the store of the third kind of start; 0 leaves it out
        #[arg(long, default_value_t = 100_000)]
        planes: u64,
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
    /// Create very many objects in a plane and measure what each takes beyond its own bytes
    MemoryByObject {
        #[command(flatten)]
        arguments: MemoryArguments,
    },
    /// The latency of a modest plane beside one that takes all it can get, here and at a bare server
    Neighbour {
        #[command(flatten)]
        arguments: NeighbourArguments,
    },
    /// What each of very many planes gets that are busy at once, some greedier than the others
    BusyPlanes {
        #[command(flatten)]
        arguments: BusyArguments,
    },
    /// Lists of very many objects: first byte, memory, pages of one state, selectors
    ListsAtSize {
        #[command(flatten)]
        arguments: SizeArguments,
    },
    /// Deletions of very many objects at once, here and on the reference
    MassDeletion {
        #[command(flatten)]
        arguments: MassArguments,
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
    /// Take all one can get (started by other commands)
    #[command(hide = true)]
    Aggressor {
        #[command(flatten)]
        arguments: AggressorArguments,
    },
    /// Serve constant bytes (started by other commands)
    #[command(hide = true)]
    BareServer { folder: PathBuf },
}

fn main() -> Result<ExitCode> {
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
    runtime.block_on(async {
        tokio::select! {
            biased;
            // Whatever the command started ends with it, because its future is dropped.
            interrupted = interrupted() => interrupted,
            done = execute(arguments.command, format) => done,
        }
    })
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> Result<ExitCode> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        _ = terminated.recv() => {}
    }
    bail!("interrupted")
}

async fn execute(command: Command, format: Format) -> Result<ExitCode> {
    let done = match command {
        Command::Run {
            scenarios,
            server,
            effort,
        } => {
            let (target, chosen) = (open(&server).await?, chosen(scenarios));
            run_all(&target, &server.kubeconfig, &chosen, &effort, format).await
        }
        Command::Compare { arguments } => compare::compare(&arguments, format).await,
        Command::Builds { arguments } => {
            let is_no_slower = builds::builds(&arguments, format).await?;
            return Ok(ExitCode::from(u8::from(!is_no_slower)));
        }
        Command::AgainstBare { arguments } => against_bare::against_bare(&arguments, format).await,
        Command::AgainstEtcd { rounds, effort } => {
            against_etcd::against_etcd(rounds, &effort).await
        }
        Command::Audit { rounds, effort } => audit::audit(rounds, &effort).await,
        Command::Table { arguments } => table::table(&arguments),
        Command::CreatePlane { server, count } => {
            planes::create_plane(&open(&server).await?, count, format).await
        }
        Command::ColdStart { rounds, planes } => cold_start::measure(rounds, planes, format).await,
        Command::IdlePlanes {
            server,
            planes,
            watches,
            settle,
        } => {
            let settle = Duration::from_secs_f64(settle);
            planes::idle_planes(&open(&server).await?, planes, watches, settle, format).await
        }
        Command::MemoryByObject { arguments } => memory_by_object::run(&arguments, format).await,
        Command::Neighbour { arguments } => neighbour::neighbour(&arguments, format).await,
        Command::BusyPlanes { arguments } => busy_planes::busy_planes(&arguments, format).await,
        Command::ListsAtSize { arguments } => {
            lists_at_size::lists_at_size(&arguments, format).await
        }
        Command::MassDeletion { arguments } => {
            mass_deletion::mass_deletion(&arguments, format).await
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
        Command::Own { effort } => against_bare::bare_alone(&effort, format).await,
        Command::Disk { folder } => sync_times(&folder, format),
        Command::Aggressor { arguments } => aggressor::aggress(&arguments).await,
        Command::BareServer { folder } => bare::serve(&folder).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}

async fn open(server: &ServerArguments) -> Result<Target> {
    Target::open("", &server.kubeconfig, &server.pids, server.connections).await
}

fn chosen(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    match scenarios.is_empty() {
        true => Scenario::of_one_plane(),
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
        let target = target.reconnected().await?;
        let prepared = scenario.prepare(&target, &effort.effort()).await?;
        prepared.block(&target, &effort.warming()).await?;
        let block = prepared.block(&target, &effort.effort()).await?;
        prepared.finish(&target).await?;
        show(format, "", &block);
    }
    Ok(())
}

fn sync_times(folder: &std::path::Path, format: Format) -> Result<()> {
    let latencies = disk::sync_latency(folder, Duration::from_secs(1))?;
    show_quantiles(format, "raw write of 4 KiB and fdatasync", &latencies);
    Ok(())
}
