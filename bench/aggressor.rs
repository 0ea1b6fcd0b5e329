//! A client that takes all it can get: the load beside which a neighbour is measured.
//!
//! It is a process of its own, so that the neighbour's client does not wait for it. It writes a line
//! for each block of load, and goes on until it is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Method, StatusCode};
use polyplane_tests::connection::{Ask, Connection};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::lane::{Content, Lane};
use crate::load::{Load, Maker, Pace, Turn};
use crate::scenarios::{Effort, Scenario};
use crate::target::{Place, Target};

/// Connections of an aggressor that has a credential.
const CONNECTIONS: usize = 8;
/// The time of one block of load.
const BLOCK: Duration = Duration::from_secs(1);
/// Watchers beside the writers.
const WATCHERS: u64 = 1000;
/// Bytes of a large body.
const LARGE_BYTES: usize = 512 << 10;
/// Requests that a stranger sends on one connection.
const REQUESTS_OF_STRANGER: usize = 8;
const NAMESPACES: &str = "/api/v1/namespaces";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// What an aggressor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggression {
    /// Lists of a hundred objects, 120 KB each
    Lists,
    /// Patches, one object for each stream
    Writes,
    /// A thousand watches of what the streams patch, opened anew every second
    Watches,
    /// Writes of objects of half a megabyte
    Bodies,
    /// Connections without a certificate, with tokens whose signatures are wrong
    Strangers,
}

/// The aggressor, and whom it attacks.
#[derive(Args)]
pub struct AggressorArguments {
    /// What it does
    #[arg(value_enum)]
    aggression: Aggression,
    /// The server
    #[arg(long)]
    kubeconfig: Place,
    /// The path before every request
    #[arg(long, default_value = "")]
    base_path: String,
    /// Streams over all connections
    #[arg(long)]
    streams: u64,
}

/// Sends the load until this process is killed.
///
/// # Errors
/// Returns an error if the server cannot be reached, or refuses the preparations.
pub async fn aggress(arguments: &AggressorArguments) -> Result<()> {
    let place = &arguments.kubeconfig;
    let endpoint = Endpoint::from_kubeconfig(&place.kubeconfig, place.context.as_deref())?
        .at_base_path(&arguments.base_path);
    let target = Target::connect("aggressor", &endpoint, Vec::new(), CONNECTIONS).await?;
    let effort = Effort {
        streams: arguments.streams,
        pace: Pace::Closed,
        time: BLOCK,
        watchers: WATCHERS,
    };
    let scenario = match arguments.aggression {
        Aggression::Lists => Scenario::List,
        Aggression::Writes => Scenario::Patch,
        Aggression::Watches => Scenario::WatchFanout,
        Aggression::Bodies => return large_bodies(&target, &effort).await,
        Aggression::Strangers => return strangers(&target, &endpoint, arguments.streams).await,
    };
    let prepared = scenario.prepare(&target, &effort).await?;
    loop {
        let operations = prepared.block(&target, &effort).await;
        // A server at its limits refuses; the aggressor goes on.
        report(operations.map_or(0, |block| block.operations));
    }
}

/// Writes the number of operations of a block, which also says that the load has begun.
fn report(operations: u64) {
    println!("{operations}");
}

/// Writes large objects over and over.
async fn large_bodies(target: &Target, effort: &Effort) -> Result<()> {
    let namespace = format!("bodies-{}", std::process::id());
    let body = format!(r#"{{"metadata":{{"name":"{namespace}"}}}}"#);
    target
        .lane()
        .call(Method::POST, NAMESPACES, Content::Json(body.into()))
        .await?;
    let collection = format!("{NAMESPACES}/{namespace}/configmaps");
    // A PUT of an object that is not there creates none, so each stream makes its object first.
    for stream in 0..effort.streams {
        let content = Content::Json(large(stream, 0));
        let made = target.lane().call(Method::POST, &collection, content);
        made.await.context("the first object of a stream")?;
    }
    let maker: Maker = Arc::new(move |lane: &Lane, turn: Turn| {
        let path = format!("{collection}/large-{}", turn.stream);
        let content = Content::Json(large(turn.stream, turn.count + 1));
        lane.request(Method::PUT, &path, content)
    });
    let load = Load {
        maker,
        expected: StatusCode::OK,
        streams: effort.streams,
        pace: effort.pace,
        time: effort.time,
    };
    loop {
        let outcome = crate::load::run(&target.lanes, &load).await;
        report(outcome.latencies.len());
    }
}

fn large(stream: u64, count: u64) -> Bytes {
    let data = "x".repeat(LARGE_BYTES);
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large-{stream}"}},"data":{{"count":"{count}","text":"{data}"}}}}"#
    );
    Bytes::from(text)
}

/// Connects without a certificate over and over, and shows tokens that anybody can make of a token
/// that was seen: all is right but the signature, and no two are alike.
async fn strangers(target: &Target, endpoint: &Endpoint, streams: u64) -> Result<()> {
    let seen = seen_token(target).await?;
    let endpoint = Arc::new(endpoint.with_token(None));
    let (made, sent) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let mut tasks = JoinSet::new();
    for _ in 0..streams {
        let (endpoint, seen) = (Arc::clone(&endpoint), seen.clone());
        let (made, sent) = (Arc::clone(&made), Arc::clone(&sent));
        tasks.spawn(async move {
            loop {
                if stranger(&endpoint, &seen, &made, &sent).await.is_err() {
                    // Connections that fail at once: pause, so as not to spin.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
    }
    let mut next = Instant::now();
    loop {
        next += BLOCK;
        tokio::time::sleep_until(next).await;
        report(sent.swap(0, Ordering::Relaxed));
    }
}

/// One connection of a stranger.
async fn stranger(
    endpoint: &Endpoint,
    seen: &str,
    made: &AtomicU64,
    sent: &AtomicU64,
) -> Result<()> {
    let connection = Connection::open(endpoint, Caller::Anonymous, Protocol::Http2).await?;
    for _ in 0..REQUESTS_OF_STRANGER {
        let forged = forged(seen, made.fetch_add(1, Ordering::Relaxed));
        let ask = Ask {
            method: Method::GET,
            path: NAMESPACES.to_owned(),
            headers: vec![("authorization".to_owned(), format!("Bearer {forged}"))],
            body: Bytes::new(),
        };
        connection.send(ask).await?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns a token of the plane, or something like it if the server gives none.
async fn seen_token(target: &Target) -> Result<String> {
    let lane = target.lane();
    let path = format!("{ACCOUNTS}/default/token");
    let asked = Content::Json(Bytes::from_static(br#"{"spec":{}}"#));
    let answer = lane.call(Method::POST, &path, asked).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let token = answer["status"]["token"].as_str();
    Ok(token.unwrap_or("e30.e30.AAAAAAAAAAAAAAAA").to_owned())
}

/// Returns the token with another signature, a different one for each number.
fn forged(token: &str, number: u64) -> String {
    let signed = token.rfind('.').map_or(token.len(), |at| at + 1);
    let (signed, signature) = token.split_at(signed);
    let mark = format!("{number:012}");
    let rest = signature.get(mark.len()..).unwrap_or_default();
    format!("{signed}{mark}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_s_stranger_shows_a_new_signature_each_time() {
        let token = "head.claims.0123456789abcdefgh";
        assert_eq!(forged(token, 7), "head.claims.000000000007cdefgh");
        assert_ne!(forged(token, 7), forged(token, 8));
        assert_eq!(forged(token, 7).len(), token.len());
    }

    #[test]
    fn a_large_body_is_an_object() {
        let value: Value = serde_json::from_slice(&large(3, 1)).expect("JSON");
        assert_eq!(value["metadata"]["name"], "large-3");
        assert!(large(3, 1).len() > LARGE_BYTES);
    }
}
