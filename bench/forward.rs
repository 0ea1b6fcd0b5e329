//! Measures the cost of a hop: the same load on one plane through its owner and through another
//! replica.
//!
//! There are two replicas on one etcd. Blocks of load alternate, and their order is reversed every
//! round.

use std::time::Duration;

use anyhow::Result;
use http::Method;

use crate::lane::Content;
use crate::load::Pace;
use crate::report::{Block, Format, Spread, show, show_spread};
use crate::ring::Ring;
use crate::scenarios::{Effort, Prepared, Scenario};
use crate::target::Target;

const PLANE: &str = "bench-forward";

/// The effort and the number of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// The number of pairs of blocks of each kind.
    pub rounds: u32,
    /// Effort of a block under full load.
    pub effort: Effort,
    /// The time of warming up.
    pub warm_up: Duration,
}

/// Measures GET and CREATE on both ways and prints what the hop adds: CPU under full load, and
/// latency with one request at a time.
///
/// # Errors
/// Returns an error if the ring does not start, or no request was answered.
pub async fn forward(rounds: &Rounds, format: Format) -> Result<()> {
    let ring = Ring::start(2).await?;
    ring.plane_at(PLANE, 0).await?;
    let direct = ring.target(0, PLANE, 4).await?;
    let hop = ring.target(1, PLANE, 4).await?;
    for scenario in [Scenario::Get, Scenario::Create] {
        let prepared = scenario.prepare(&direct, &rounds.effort).await?;
        let warming = Effort {
            time: rounds.warm_up,
            ..rounds.effort
        };
        prepared.block(&direct, &warming).await?;
        prepared.block(&hop, &warming).await?;
        let busy = pairs(
            &prepared,
            &direct,
            &hop,
            rounds.rounds,
            &rounds.effort,
            format,
        )
        .await?;
        let alone = Effort {
            streams: 1,
            pace: Pace::Closed,
            ..rounds.effort
        };
        let alone = pairs(&prepared, &direct, &hop, rounds.rounds, &alone, format).await?;
        prepared.finish(&direct).await?;
        print(scenario, &busy, &alone, format);
    }
    let root = ring.lane(0, "").await?;
    let path = format!("{}/{PLANE}", crate::ring::CONTROL_PLANES);
    root.call(Method::DELETE, &path, Content::None).await?;
    Ok(())
}

async fn pairs(
    prepared: &Prepared,
    direct: &Target,
    hop: &Target,
    rounds: u32,
    effort: &Effort,
    format: Format,
) -> Result<Vec<(Block, Block)>> {
    let mut blocks = Vec::new();
    for round in 0..rounds.max(1) {
        let pair = match round % 2 {
            0 => {
                let one = prepared.block(direct, effort).await?;
                (one, prepared.block(hop, effort).await?)
            }
            _ => {
                let other = prepared.block(hop, effort).await?;
                (prepared.block(direct, effort).await?, other)
            }
        };
        show(format, "direct: ", &pair.0);
        show(format, "forwarded: ", &pair.1);
        blocks.push(pair);
    }
    Ok(blocks)
}

fn print(scenario: Scenario, busy: &[(Block, Block)], alone: &[(Block, Block)], format: Format) {
    let name = scenario.name();
    let added = |blocks: &[(Block, Block)], of: &dyn Fn(&Block) -> Option<f64>| {
        let each = blocks.iter();
        Spread::of(
            each.filter_map(|(direct, hop)| Some(of(hop)? - of(direct)?))
                .collect(),
        )
    };
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
    for (what, spread) in figures {
        show_spread(format, &format!("{name}: a hop adds, {what}"), "µs", spread);
    }
}

/// Returns the CPU time of one process, in the order of [`Ring::processes`].
fn used(block: &Block, process: usize) -> Option<f64> {
    let usage = block.server.get(process)?;
    Some(usage.micros_per_operation)
}
