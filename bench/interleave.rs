//! Runs a scenario on several servers in alternating blocks, so that a noisy neighbour or a
//! throttled CPU falls on all of them.

use std::ops::Range;

use anyhow::Result;

use crate::arguments::EffortArguments;
use crate::report::{Block, Format, show};
use crate::scenarios::{Prepared, Scenario};
use crate::target::Target;

/// The blocks of an interleaved run.
pub struct Plan<'a> {
    /// The rounds, each of which has one block of every server. The numbers decide the order.
    pub rounds: Range<u32>,
    /// The effort of a block, and of the warming up.
    pub effort: &'a EffortArguments,
}

/// Returns the order in which `sides` servers have their blocks in a round. Each server has every
/// place equally often, and after `sides` rounds the direction changes, so that each one follows
/// every other one.
pub fn order(sides: usize, round: u32) -> Vec<usize> {
    let round = round as usize;
    let mut order: Vec<usize> = (0..sides).map(|place| (place + round) % sides).collect();
    if (round / sides) % 2 == 1 {
        order.reverse();
    }
    order
}

/// Prepares the scenario on each server, warms them up, runs the blocks, and removes what was
/// prepared. Returns the blocks of each server in the order of the rounds, and prints them if
/// `shown` says how.
///
/// # Errors
/// Returns an error if a server refuses the preparation, or answers no request.
pub async fn prepare_and_run(
    scenario: Scenario,
    targets: &[&Target],
    plan: &Plan<'_>,
    shown: Option<Format>,
) -> Result<Vec<Vec<Block>>> {
    let mut connected = Vec::new();
    for target in targets {
        let mut target = target.reconnected().await?;
        if plan.effort.account {
            target = target.as_account().await?;
        }
        let prepared = scenario.prepare(&target, &plan.effort.effort()).await?;
        connected.push((prepared, target));
    }
    let sides = connected
        .iter()
        .map(|(prepared, target)| (prepared, target));
    let sides: Vec<(&Prepared, &Target)> = sides.collect();
    for (prepared, target) in &sides {
        prepared.block(target, &plan.effort.warming()).await?;
    }
    let blocks = run(&sides, plan, shown).await?;
    for (prepared, target) in connected {
        prepared.finish(&target).await?;
    }
    Ok(blocks)
}

/// Runs the blocks alone.
///
/// # Errors
/// Returns an error if a server answers no request.
pub async fn run(
    sides: &[(&Prepared, &Target)],
    plan: &Plan<'_>,
    shown: Option<Format>,
) -> Result<Vec<Vec<Block>>> {
    let mut blocks = vec![Vec::new(); sides.len()];
    for round in plan.rounds.clone() {
        for side in order(sides.len(), round) {
            let (prepared, target) = sides[side];
            let block = prepared.block(target, &plan.effort.effort()).await?;
            blocks[side].push(block);
        }
        for ((_, target), blocks) in sides.iter().zip(&blocks) {
            if let (Some(format), Some(block)) = (shown, blocks.last()) {
                show(format, &format!("{}: ", target.label), block);
            }
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_every_place_and_every_predecessor_equally_often() {
        for sides in [2, 3] {
            let rounds = 2 * sides;
            let mut places = vec![vec![0; sides]; sides];
            let mut follows = vec![vec![0; sides]; sides];
            for round in 0..rounds {
                let order = order(sides, u32::try_from(round).expect("small"));
                for (place, side) in order.iter().enumerate() {
                    places[*side][place] += 1;
                }
                for pair in order.windows(2) {
                    follows[pair[0]][pair[1]] += 1;
                }
            }
            assert!(
                places.iter().flatten().all(|count| *count == 2),
                "{places:?}"
            );
            for (one, of_one) in follows.iter().enumerate() {
                for (other, count) in of_one.iter().enumerate() {
                    assert_eq!(*count, if one == other { 0 } else { 2 }, "{follows:?}");
                }
            }
        }
    }
}
