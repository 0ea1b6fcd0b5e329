//! A watch over one collection of a plane that continues from its last version whenever it ends,
//! and all its events.
//!
//! This module owns the watch. [`Told::replayed`] checks that the events are consistent; only the
//! scenario knows which ones are expected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::Value as Json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::client::pool::{Pool, SendError};
use super::client::watching::Lines;

/// Pause before a watch that ended is opened again.
const PAUSE: Duration = Duration::from_millis(20);
/// The time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// ADDED, MODIFIED or DELETED.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// The object's version.
    pub version: u64,
    /// The object's uid.
    pub uid: String,
}

/// The list and the events of a watch.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Names and versions of the list that it began with.
    pub first: BTreeMap<String, u64>,
    /// The events after that list.
    pub events: Vec<Event>,
    /// The version up to which the watch has delivered everything.
    pub version: u64,
    /// The number of times that the watch was opened again.
    pub resumed: usize,
    /// The errors that the watch got, above all 410.
    pub errors: Vec<String>,
}

/// A running watch. Ends when it is dropped.
pub struct Collection {
    told: Arc<Mutex<Told>>,
    task: JoinHandle<()>,
    pool: Arc<Pool>,
    path: String,
}

/// Sends a request and reads the whole answer.
///
/// # Errors
/// Returns an error if there is no answer, or one that is not JSON.
pub async fn ask(pool: &Pool, method: Method, path: &str, body: &Json) -> Result<(u16, Json)> {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = pool.request(method, path)?.header("content-type", kind);
    let bytes = match body {
        Json::Null => Bytes::new(),
        body => body.to_string().into(),
    };
    let answer = timeout(PATIENCE, pool.send(request.body(Full::new(bytes))?)).await?;
    let answer = answer.map_err(|error| match error {
        SendError::Unsent(error) | SendError::Broken(error) => error,
    })?;
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await?.to_bytes();
    let body = serde_json::from_slice(&bytes);
    Ok((
        status,
        body.with_context(|| format!("{path} answers no JSON"))?,
    ))
}

impl Collection {
    /// Lists the collection at an absolute path and watches it from there.
    ///
    /// # Errors
    /// Returns an error if the list fails.
    pub async fn start(pool: &Arc<Pool>, path: &str) -> Result<Self> {
        let (first, version) = list(pool, path).await?;
        let told = Arc::new(Mutex::new(Told {
            first,
            version,
            ..Told::default()
        }));
        let (known, from) = (Arc::clone(&told), Arc::clone(pool));
        let whole = path.to_owned();
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = session(&from, &whole, &known).await {
                    println!("{whole}: {error:#}");
                }
                locked(&known).resumed += 1;
                sleep(PAUSE).await;
            }
        });
        Ok(Self {
            told,
            task,
            pool: Arc::clone(pool),
            path: path.to_owned(),
        })
    }

    /// Returns what the watch got so far.
    pub fn told(&self) -> Told {
        locked(&self.told).clone()
    }

    /// Waits until the watch has everything that a list shows now, and ends it.
    ///
    /// # Errors
    /// Returns an error if that takes too long, or the events lead to another state.
    pub async fn finish(self) -> Result<Told> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (now, _) = list(&self.pool, &self.path).await?;
            let told = self.told();
            let replayed = told.replayed()?;
            if replayed == now {
                return Ok(told);
            }
            ensure!(
                Instant::now() < deadline,
                "{}: the watch has {} objects, the list {}",
                self.path,
                replayed.len(),
                now.len()
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    /// Returns names and versions in the state to which the events lead.
    ///
    /// # Errors
    /// Returns an error for an impossible event: one that arrived twice or out of order, adds an
    /// object that exists, or changes or deletes one that does not.
    pub fn replayed(&self) -> Result<BTreeMap<String, u64>> {
        let mut state = self.first.clone();
        let mut last = 0;
        for event in &self.events {
            let Event {
                kind,
                name,
                version,
                ..
            } = event;
            ensure!(*version > last, "{kind} {name} at {version} after {last}");
            last = *version;
            let known = state.get(name).copied();
            ensure!(
                known.is_none_or(|known| known < *version),
                "{name} at {version} again"
            );
            ensure!(
                (kind == "ADDED") == known.is_none(),
                "{kind} {name} at {version}"
            );
            match kind.as_str() {
                "DELETED" => drop(state.remove(name)),
                _ => drop(state.insert(name.clone(), *version)),
            }
        }
        Ok(state)
    }

    /// Returns the kinds of the events of one object, in order.
    pub fn of(&self, name: &str) -> Vec<&str> {
        let events = self.events.iter().filter(|event| event.name == name);
        events.map(|event| event.kind.as_str()).collect()
    }
}

fn locked(told: &Mutex<Told>) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn list(pool: &Pool, path: &str) -> Result<(BTreeMap<String, u64>, u64)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask(pool, Method::GET, path, &Json::Null).await {
            Ok((200, list)) => {
                let items = list["items"].as_array().into_iter().flatten();
                let items = items.map(|item| (text(item, "name"), version(item)));
                return Ok((items.collect(), version(&list)));
            }
            other if Instant::now() > deadline => {
                anyhow::bail!("{path} is not listed: {other:?}");
            }
            _ => sleep(PAUSE).await,
        }
    }
}

async fn session(pool: &Pool, path: &str, told: &Mutex<Told>) -> Result<()> {
    let from = locked(told).version;
    let query = format!("{path}?watch=1&allowWatchBookmarks=true&resourceVersion={from}");
    let request = pool.request(Method::GET, &query)?.body(Full::default())?;
    let Ok(Ok(answer)) = timeout(PATIENCE, pool.send(request)).await else {
        return Ok(());
    };
    if answer.status() != StatusCode::OK {
        if answer.status() == StatusCode::GONE {
            locked(told).errors.push(format!("410 at {from}"));
        }
        return Ok(());
    }
    let mut lines = Lines::of(answer.into_body());
    while let Ok(Some(line)) = lines.next().await {
        let event: Json = serde_json::from_slice(&line).context("an event is no JSON")?;
        let (kind, object) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
        let mut told = locked(told);
        match kind {
            "ERROR" => {
                told.errors.push(object.to_string());
                return Ok(());
            }
            "BOOKMARK" => {}
            kind => told.events.push(Event {
                kind: kind.to_owned(),
                name: text(object, "name"),
                version: version(object),
                uid: text(object, "uid"),
            }),
        }
        told.version = told.version.max(version(object));
    }
    Ok(())
}

fn text(object: &Json, field: &str) -> String {
    let text = object["metadata"][field].as_str();
    text.unwrap_or_default().to_owned()
}

fn version(object: &Json) -> u64 {
    text(object, "resourceVersion").parse().unwrap_or_default()
}
