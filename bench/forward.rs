//! Measures the cost of a hop: the same load on one plane through its owner and through another
//! replica, beside a bare server that receives the request and answers it.
//!
//! There are two replicas on one etcd. Blocks of load alternate.

use anyhow::Result;
use http::Method;

use crate::arguments::EffortArguments;
use crate::bare::Bare;
use crate::interleave::{Plan, run};
use crate::lane::Content;
use crate::report::{Block, Format, Spread, show_spread};
use crate::ring::Ring;
use crate::scenarios::Scenario;

const PLANE: &str = "bench-forward";

/// How much is measured: pairs of a direct and a forwarded block.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// The number of pairs of blocks of each kind.
    pub rounds: u32,
    /// The effort of a block under full load, and of the warming up.
    pub effort: EffortArguments,
}

/// Measures GET and CREATE on both ways and prints what the hop adds: CPU under full load, and
/// latency with one request at a time.
///
/// # Errors
/// Returns an error if the ring does not start, or no request was answered.
pub async fn forward(rounds: &Rounds, format: Format) -> Result<()> {
    let ring = Ring::start(2).await?;
    ring.plane_at(PLANE, 0).await?;
    let mut direct = ring.target(0, PLANE, 4).await?;
    let mut hop = ring.target(1, PLANE, 4).await?;
    "direct".clone_into(&mut direct.label);
    "forwarded".clone_into(&mut hop.label);
    let bare = Bare::start().await?;
    let bare = (bare.target(4).await?, bare);
    for scenario in [Scenario::Get, Scenario::Create] {
        let direct = direct.reconnected().await?;
        let hop = hop.reconnected().await?;
        let prepared = scenario.prepare(&direct, &rounds.effort.effort()).await?;
        let on_bare = scenario.prepare(&bare.0, &rounds.effort.effort()).await?;
        let sides = [(&prepared, &direct), (&prepared, &hop), (&on_bare, &bare.0)];
        for (prepared, target) in sides {
            prepared.block(target, &rounds.effort.warming()).await?;
        }
        let alone = EffortArguments {
            streams: 1,
            rate: None,
            ..rounds.effort
        };
        let plan = |effort| Plan {
            rounds: 0..rounds.rounds.max(1),
            effort,
        };
        let busy = run(&sides, &plan(&rounds.effort), Some(format)).await?;
        let alone = run(&sides[..2], &plan(&alone), Some(format)).await?;
        prepared.finish(&direct).await?;
        print(scenario, &busy, &alone, format);
    }
    let root = ring.lane(0, "").await?;
    let path = format!("{}/{PLANE}", crate::planes::CONTROL_PLANES);
    root.call(Method::DELETE, &path, Content::None).await?;
    drop(root);
    ring.stop().await
}

/// Prints what the hop adds, from the blocks of the owner, of the other replica, and of the bare
/// server.
fn print(scenario: Scenario, busy: &[Vec<Block>], alone: &[Vec<Block>], format: Format) {
    let name = scenario.name();
    let added = |blocks: &[Vec<Block>], of: &dyn Fn(&Block) -> Option<f64>| {
        let pairs = blocks[0].iter().zip(&blocks[1]);
        let each = pairs.map(|(direct, hop)| Some(of(hop)? - of(direct)?));
        each.collect::<Option<Vec<f64>>>().unwrap_or_default()
    };
    // Without etcd: what a commit costs there depends on how many share it, and not on the hop.
    let replicas = |block: &Block| Some(used(block, 0)? + used(block, 1)?);
    let bare = busy[2].iter().filter_map(Block::server_micros);
    let times = added(busy, &replicas).into_iter().zip(bare);
    let times = times.map(|(added, bare)| added / bare).collect();
    let figures = [
        ("CPU of all processes", added(busy, &Block::server_micros)),
        ("CPU of the owner", added(busy, &|block| used(block, 0))),
        ("CPU of the receiver", added(busy, &|block| used(block, 1))),
        ("CPU of etcd", added(busy, &|block| used(block, 2))),
        (
            "p50, one at a time",
            added(alone, &|block| Some(block.latency.p50)),
        ),
        (
            "p99, one at a time",
            added(alone, &|block| Some(block.latency.p99)),
        ),
    ];
    for (what, values) in figures {
        let what = format!("{name}: a hop adds, {what}");
        show_spread(format, &what, "µs", Spread::of(values));
    }
    let what = format!("{name}: a hop adds, CPU of both replicas against a bare server's");
    show_spread(format, &what, "x", Spread::of(times));
}

/// Returns the CPU time of one process, in the order of [`Ring::processes`].
fn used(block: &Block, process: usize) -> Option<f64> {
    let usage = block.server.get(process)?;
    Some(usage.micros_per_operation)
}
