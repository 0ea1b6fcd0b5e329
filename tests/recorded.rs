//! What programs of upstream left behind on the reference, kept in `recorded/`.
//!
//! A test of such a program runs on a plane and compares with the recording; with `RECORD=1` it runs
//! on the reference and writes the recording. This module owns the choice of the server and the
//! files. It does not know the programs.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::compare::places;
use crate::drop_in::DropIn;
use crate::golden::folder;
use crate::kubeconfig::Endpoint;
use crate::programs::{Server, create_plane};

/// The plane in which the programs run.
const PLANE: &str = "programs";

/// A server under test, or the reference while a recording is made.
pub struct Recorded {
    server: Server,
    /// True while a recording is made.
    pub records: bool,
    /// The context of the kubeconfig.
    pub context: &'static str,
}

impl Recorded {
    /// Starts the server: a plane, or the reference if `RECORD` is set.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub async fn start() -> Result<Self> {
        let records = records();
        let server = match records {
            true => Server::start_reference().await?,
            false => Server::start().await?,
        };
        if !records {
            let root = Endpoint::from_kubeconfig(&server.kubeconfig, Some("root"))?;
            create_plane(&root, PLANE).await?;
        }
        Ok(Self {
            server,
            records,
            context: if records { "reference" } else { PLANE },
        })
    }

    /// Returns the kubeconfig with the [context](Self::context).
    ///
    /// # Errors
    /// Returns an error if the context does not appear.
    pub async fn kubeconfig(&self) -> Result<PathBuf> {
        let path = self.server.kubeconfig.clone();
        for _ in 0..500 {
            if Endpoint::from_kubeconfig(&path, Some(self.context)).is_ok() {
                return Ok(path);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        anyhow::bail!("{} has no context {}", path.display(), self.context)
    }

    /// Compares the steps of a run with the recording, or writes it. Prints how many are equal.
    ///
    /// # Errors
    /// Returns an error that lists all differing places.
    pub fn compare(&self, name: &str, steps: &Map<String, Value>) -> Result<()> {
        compare(self.records, name, steps)
    }
}

/// The drop-in with some flags, or the reference with the same while a recording is made.
pub struct PlainServer {
    /// A user who may do everything.
    pub client: Client,
    _drop_in: Option<DropIn>,
    _reference: Option<Server>,
}

impl PlainServer {
    /// Starts the server.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub async fn start(flags: Vec<String>) -> Result<Self> {
        let (endpoint, drop_in, reference) = if records() {
            let server = Server::start_reference_flagged(&flags).await?;
            let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, Some("reference"))?;
            (endpoint, None, Some(server))
        } else {
            let (drop_in, endpoint) = DropIn::start_for_admin(flags).await?;
            (endpoint, Some(drop_in), None)
        };
        Ok(Self {
            client: Client::open(&endpoint).await?,
            _drop_in: drop_in,
            _reference: reference,
        })
    }
}

/// Returns whether a recording is to be made of the reference.
pub fn records() -> bool {
    std::env::var_os("RECORD").is_some()
}

/// Compares the steps of a run with the recording, or writes it if they are `recorded` from the
/// reference. Prints how many are equal.
///
/// # Errors
/// Returns an error that lists all differing places.
pub fn compare(recorded: bool, name: &str, steps: &Map<String, Value>) -> Result<()> {
    let path = folder().join(format!("recorded/{name}.json"));
    if recorded {
        let text = lines(steps);
        return std::fs::write(&path, text).context("cannot write the recording");
    }
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("no {}: run with RECORD=1", path.display()))?;
    let recorded: Map<String, Value> = serde_json::from_str(&text)?;
    let differ = places(&Value::Object(recorded), &Value::Object(steps.clone()));
    ensure!(differ.is_empty(), "{name} differs\n{}", differ.join("\n"));
    println!("{name}: {} steps, 0 different", steps.len());
    Ok(())
}

/// Returns the steps with one object on each line.
fn lines(steps: &Map<String, Value>) -> String {
    let member = |name: &str, value: &str| format!("{}: {value}", Value::from(name));
    let one = |(name, value): (&String, &Value)| match value {
        Value::Object(objects) => {
            let objects = objects.iter();
            let objects = objects.map(|(name, object)| member(name, &object.to_string()));
            let objects: Vec<String> = objects.collect();
            member(name, &format!("{{\n{}\n}}", objects.join(",\n")))
        }
        value => member(name, &value.to_string()),
    };
    let steps: Vec<String> = steps.iter().map(one).collect();
    format!("{{\n{}\n}}\n", steps.join(",\n"))
}

/// Takes out of an object what differs between any two servers: identity, versions and times.
pub fn without_identity(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        drop(metadata.remove(field));
    }
    let owners = metadata.get_mut("managedFields");
    for entry in owners.and_then(Value::as_array_mut).into_iter().flatten() {
        // Whether an entry has a time is upstream's choice, so the mark stays.
        if let Some(time) = entry.get_mut("time") {
            *time = "<time>".into();
        }
    }
}

/// Prints on standard error why a test does nothing: a program cannot be had here. Written directly,
/// so that the test driver does not capture the line.
///
/// # Errors
/// Returns an error if standard error cannot be written.
pub fn skipped(what: &str, why: &str) -> Result<()> {
    writeln!(std::io::stderr(), "tests: {what} is not tested here: {why}").map_err(Into::into)
}
