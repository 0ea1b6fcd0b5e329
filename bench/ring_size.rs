//! Measures what a second replica adds: the same load on four planes in a ring of one and in a ring
//! of two.
//!
//! The two rings have an etcd each and run in turn; one is idle while the other is measured.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use bytes::Bytes;
use http::{Method, StatusCode};

use crate::forward::Rounds;
use crate::lane::{Content, Lane};
use crate::load::{Load, Maker, Turn};
use crate::report::{Block, Format, Spread, show, show_spread};
use crate::ring::Ring;
use crate::target::Target;

const PLANES: u64 = 4;
const CONNECTIONS: usize = 4;
const CONFIG_MAPS: &str = "api/v1/namespaces/default/configmaps";

/// The replica that gets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// The owner of the plane.
    Owner,
    /// Half of the requests go to the owner and half to the other replica, as behind a balancer.
    Anywhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Get,
    Create,
}

/// Runs the blocks and prints rates and CPU relative to the ring of one.
///
/// # Errors
/// Returns an error if a ring does not start, or no request was answered.
pub async fn ring_size(rounds: &Rounds, format: Format) -> Result<()> {
    let (one, two) = (Ring::start(1).await?, Ring::start(2).await?);
    let one = open(&one, 1).await.map(|target| (one, target))?;
    let two = open(&two, 2).await.map(|target| (two, target))?;
    for verb in [Verb::Get, Verb::Create] {
        let mut blocks = Vec::new();
        for round in 0..=rounds.rounds.max(1) {
            let turns = [
                (&one.1, Aim::Owner),
                (&two.1, Aim::Owner),
                (&two.1, Aim::Anywhere),
            ];
            let mut of_round = Vec::new();
            for turn in 0..turns.len() {
                let (target, aim) = turns[(turn + round as usize) % turns.len()];
                let load = load(verb, aim, rounds);
                of_round.push((turn_of(target, aim), target.block(name(verb), &load).await?));
            }
            of_round.sort_by_key(|(turn, _)| *turn);
            // The first round warms up.
            if round > 0 {
                for (turn, block) in &of_round {
                    show(format, &format!("{}: ", LABELS[*turn]), block);
                }
                blocks.push(of_round.into_iter().map(|(_, block)| block).collect());
            }
        }
        print(verb, &blocks, format);
    }
    Ok(())
}

const LABELS: [&str; 3] = ["one replica", "two, at the owner", "two, anywhere"];

fn turn_of(target: &Target, aim: Aim) -> usize {
    match (target.label.as_str(), aim) {
        ("one", _) => 0,
        (_, Aim::Owner) => 1,
        (_, Aim::Anywhere) => 2,
    }
}

fn name(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::Create => "create",
    }
}

/// Creates the planes, spread evenly over the replicas, and opens connections to each replica in
/// turn.
async fn open(ring: &Ring, replicas: usize) -> Result<Target> {
    for plane in 0..PLANES {
        let name = format!("bench-{plane}");
        ring.plane_at(&name, plane as usize % replicas).await?;
        let path = format!("/clusters/{name}/{CONFIG_MAPS}");
        let body = Bytes::from(format!(
            r#"{{"metadata":{{"name":"o"}},"data":{{"text":"{}"}}}}"#,
            "x".repeat(900)
        ));
        let root = ring.lane(0, "").await?;
        root.call(Method::POST, &path, Content::Json(body)).await?;
    }
    let mut lanes = Vec::new();
    for connection in 0..CONNECTIONS {
        lanes.push(ring.lane(connection % replicas, "").await?);
    }
    let label = if replicas == 1 { "one" } else { "two" };
    Ok(Target {
        label: label.to_owned(),
        processes: ring.processes(),
        lanes,
    })
}

/// Returns the load of a block. Stream `s` uses connection `s mod 4`, and so replica `s mod 2`, as
/// planes do.
fn load(verb: Verb, aim: Aim, rounds: &Rounds) -> Load {
    let run = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let run = run.as_nanos() % 1_000_000_000_000;
    let maker: Maker = Arc::new(move |lane: &Lane, turn: Turn| {
        let plane = match aim {
            Aim::Owner => turn.stream % PLANES,
            Aim::Anywhere => (turn.stream + turn.stream / PLANES) % PLANES,
        };
        let path = format!("/clusters/bench-{plane}/{CONFIG_MAPS}");
        match verb {
            Verb::Get => lane.request(Method::GET, &format!("{path}/o"), Content::None),
            Verb::Create => {
                let (stream, count) = (turn.stream, turn.count);
                let text = "x".repeat(900);
                let body = format!(
                    r#"{{"metadata":{{"name":"c-{run}-{stream}-{count}"}},"data":{{"text":"{text}"}}}}"#
                );
                lane.request(Method::POST, &path, Content::Json(body.into()))
            }
        }
    });
    let effort = rounds.effort.effort();
    Load {
        maker,
        expected: match verb {
            Verb::Get => StatusCode::OK,
            Verb::Create => StatusCode::CREATED,
        },
        streams: effort.streams,
        pace: effort.pace,
        time: effort.time,
    }
}

fn print(verb: Verb, blocks: &[Vec<Block>], format: Format) {
    let name = name(verb);
    let ratios = |turn: usize, of: &dyn Fn(&Block, &Block) -> Option<f64>| {
        let rounds = blocks.iter();
        Spread::of(
            rounds
                .filter_map(|round| of(&round[0], &round[turn]))
                .collect(),
        )
    };
    for (turn, label) in LABELS.iter().enumerate().skip(1) {
        let rate = ratios(turn, &|one, two| Some(two.per_second / one.per_second));
        let cpu = ratios(turn, &|one, two| {
            Some(one.server_micros()? / two.server_micros()?)
        });
        let what = format!("{name}: {label}, against one replica");
        show_spread(format, &format!("{what}, rate"), "x", rate);
        show_spread(
            format,
            &format!("{what}, operations per CPU second"),
            "x",
            cpu,
        );
    }
}
