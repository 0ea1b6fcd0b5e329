//! The end of a scenario: the load is finished, its numbers are printed, its history is checked.
//!
//! This module decides what is printed and what makes a scenario fail. It makes no faults.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::checker::{Allowed, check};
use crate::history::Moment;

use super::figures::{Figures, Spread};
use super::load::{Load, Mix, make_planes};
use super::setup::{Ring, ToldBy, Wish};

/// A plane whose first write took longer than this was affected by a fault.
const NOTICED: Duration = Duration::from_millis(50);

/// A named part of a run.
pub struct Phase {
    /// The action in this part.
    pub name: String,
    /// The beginning.
    pub from: Moment,
    /// The end.
    pub to: Moment,
}

/// The failures that clients may have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// No failure: every request is answered, and no watch gets 410 or another error.
    Nothing,
    /// Requests may fail while something is broken. Every answer must be right, and no watch gets
    /// 410.
    Honest,
}

/// Returns a number from the environment, or the default of a short run.
///
/// # Errors
/// Returns an error if the variable is not a number.
pub fn number<N: FromStr>(variable: &str, otherwise: N) -> Result<N> {
    match env::var(variable) {
        Ok(text) => {
            let number = text.parse().ok();
            number.with_context(|| format!("{variable} is no number that fits"))
        }
        Err(_) => Ok(otherwise),
    }
}

/// Returns the ring that the environment describes: `RING_REPLICAS`, and `RING_CHART=1` for command
/// lines from the rendered chart.
///
/// # Errors
/// Returns an error if a variable is not a number.
pub fn wished(otherwise: Wish) -> Result<Wish> {
    let chart = number("RING_CHART", 0_u8)? != 0;
    Ok(Wish {
        replicas: number("RING_REPLICAS", otherwise.replicas)?,
        told_by: if chart {
            ToldBy::Chart
        } else {
            otherwise.told_by
        },
        ..otherwise
    })
}

/// Returns the demand on a scenario with a duration: no failure if the duration is given
/// explicitly. The short form has to pass on any busy machine.
#[must_use]
pub fn demanded() -> Demand {
    match env::var_os("RING_SECONDS") {
        Some(_) => Demand::Nothing,
        None => Demand::Honest,
    }
}

/// Starts the load of a scenario: `RING_PLANES` planes, `RING_RATE` requests a second, `RING_SEED`.
///
/// # Errors
/// Returns an error if a plane cannot be created or a watch does not begin.
pub async fn loaded(ring: &Ring) -> Result<Load> {
    let mix = Mix {
        per_second: number("RING_RATE", 60.0)?,
        seed: number("RING_SEED", 1)?,
        ..Mix::default()
    };
    println!("load: {mix:?}");
    let root = ring.controller.admin()?;
    let planes = make_planes(&root, "p", number("RING_PLANES", 12)?).await;
    let planes = planes.with_context(|| ring.last_words())?;
    let load = Load::start(&root, &planes, mix).await;
    load.with_context(|| ring.last_words())
}

/// Finishes the load, prints its figures and judges its history.
///
/// # Errors
/// Returns an error if the run does not meet the demand. The faults have been printed then.
pub async fn judge(
    ring: &Ring,
    load: Load,
    demand: Demand,
    phases: &[Phase],
    gaps: Vec<Duration>,
) -> Result<()> {
    let finished = load.finish().await;
    let (history, left_out) = finished.with_context(|| ring.last_words())?;
    let figures = Figures::of(&history, left_out);
    println!("all: {figures}");
    for phase in phases {
        let part = Figures::between(&history, phase.from..phase.to);
        println!("{}: {part}", phase.name);
    }
    if !gaps.is_empty() {
        let noticed = gaps.iter().copied().filter(|gap| *gap > NOTICED);
        let noticed: Vec<Duration> = noticed.collect();
        let (count, late) = (gaps.len(), noticed.len());
        println!(
            "gap to the first write, {count} times: {}",
            Spread::of(gaps)
        );
        println!("the {late} above {NOTICED:?}: {}", Spread::of(noticed));
    }
    let allowed = Allowed {
        watch_errors: demand == Demand::Honest,
        ..Allowed::default()
    };
    let verdict = check(&history, allowed);
    println!("{verdict}");
    ensure!(
        verdict.is_right(),
        "the history is faulty\n{}",
        ring.last_words()
    );
    ensure!(left_out == 0, "the generator was too slow for its rate");
    ensure!(
        figures.answered > 0 && figures.events > 0,
        "nothing happened"
    );
    let failures = figures.failures();
    ensure!(
        demand == Demand::Honest || failures == 0,
        "{failures} requests failed\n{}",
        ring.last_words()
    );
    ring.ensure_no_panic()
}
