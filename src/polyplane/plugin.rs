//! `kubectl plane`: control planes from the command line.
//!
//! Talks to the root plane of the server that the kubeconfig names, with the credentials found
//! there. Progress goes to standard error, results to standard output.

pub mod client;
pub mod config;
mod ring;

use crate::cli::{PluginAction, PluginCommand};
use anyhow::{Context, bail};
use client::{Client, Refusal};
use config::Kubeconfig;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_apimachinery::{Value, json};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant, SystemTime};

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// Between two looks at a plane that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Carries out one command.
///
/// # Errors
/// What went wrong, for a person.
pub fn run(command: PluginCommand) -> anyhow::Result<()> {
    let mut config = Kubeconfig::load(command.kubeconfig.as_deref())?;
    let target = config.target(command.context.as_deref())?;
    crate::process::once(async {
        let client = Client::new(&target)?;
        match command.action {
            PluginAction::Create {
                name,
                protect,
                timeout,
            } => create(&client, &name, protect, Duration::from_secs(timeout)).await,
            PluginAction::List => list(&client).await,
            PluginAction::Get { name } => get(&client, &name).await,
            PluginAction::Kubeconfig { name } => {
                exists(&client, &name).await?;
                print!("{}", config.for_plane(&target, &name)?);
                Ok(())
            }
            PluginAction::Use { name } => {
                if name != "root" {
                    exists(&client, &name).await?;
                }
                let file = config.switch(&target, &name)?;
                println!("now using control plane {name:?} ({})", file.display());
                Ok(())
            }
            PluginAction::Ring { raise_floor } => {
                if raise_floor {
                    ring::raise_floor(&client).await?;
                }
                ring::show(&client).await
            }
            PluginAction::Locate { name } => ring::locate(&client, &name).await,
            PluginAction::Delete { name, yes, timeout } => {
                delete(&client, &name, yes, Duration::from_secs(timeout)).await
            }
        }
    })
}

fn path_of(name: &str) -> String {
    format!("{PLANES}/{}", path_segment(name))
}

fn path_segment(name: &str) -> String {
    let safe = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    // What cannot be a name cannot be a path either; the server refuses it in its own words.
    if safe {
        name.to_owned()
    } else {
        name.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }
}

async fn create(
    client: &Client,
    name: &str,
    protect: bool,
    patience: Duration,
) -> anyhow::Result<()> {
    let mut object = json!({
        "apiVersion": "polyplane.dev/v1alpha1",
        "kind": "ControlPlane",
        "metadata": {"name": name}
    });
    if protect {
        object.set(&["spec", "deletionProtection"], true);
    }
    let began = Instant::now();
    eprint!("creating control plane {name:?} ... ");
    let mut plane = match client.send("POST", PLANES, Some(&object)).await {
        Ok(plane) => plane,
        Err(error) => {
            eprintln!("failed");
            return Err(error.into());
        }
    };
    while !is_ready(&plane) {
        if began.elapsed() > patience {
            eprintln!("not ready");
            bail!(
                "control plane {name:?} was created but is not ready after {} s",
                patience.as_secs()
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
        plane = client.send("GET", &path_of(name), None).await?;
    }
    eprintln!("ready after {} ms", began.elapsed().as_millis());
    println!("controlplane.polyplane.dev/{name} created");
    Ok(())
}

fn is_ready(plane: &Value) -> bool {
    let conditions = plane.items_at(&["status", "conditions"]);
    conditions
        .iter()
        .any(|known| known.str_at(&["type"]) == "Ready" && known.str_at(&["status"]) == "True")
}

async fn exists(client: &Client, name: &str) -> anyhow::Result<Value> {
    Ok(client.send("GET", &path_of(name), None).await?)
}

async fn list(client: &Client) -> anyhow::Result<()> {
    let list = client.send("GET", PLANES, None).await?;
    let planes = list.items_at(&["items"]);
    if planes.is_empty() {
        eprintln!("there are no control planes; make one with `kubectl plane create NAME`");
        return Ok(());
    }
    let rows: Vec<[String; 5]> = planes.iter().map(row).collect();
    table(["NAME", "READY", "OBJECTS", "AGE", "ID"], &rows);
    Ok(())
}

/// Prints rows under headings, in columns.
fn table<const COLUMNS: usize>(headings: [&str; COLUMNS], rows: &[[String; COLUMNS]]) {
    let headings = headings.map(str::to_owned);
    let mut widths = [0; COLUMNS];
    for row in std::iter::once(&headings).chain(rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    for row in std::iter::once(&headings).chain(rows) {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        println!("{}", cells.join("   ").trim_end());
    }
}

fn row(plane: &Value) -> [String; 5] {
    let deleting = !plane.str_at(&["metadata", "deletionTimestamp"]).is_empty();
    let ready = match (deleting, is_ready(plane)) {
        (true, _) => "Deleting",
        (false, true) => "True",
        (false, false) => "False",
    };
    let objects = plane
        .int_at(&["status", "objects"])
        .map_or("-".to_owned(), |count| count.to_string());
    [
        plane.str_at(&["metadata", "name"]).to_owned(),
        ready.to_owned(),
        objects,
        age(plane),
        plane.str_at(&["status", "id"]).to_owned(),
    ]
}

fn age(plane: &Value) -> String {
    let Ok(then) = Timestamp::parse(plane.str_at(&["metadata", "creationTimestamp"])) else {
        return "<unknown>".to_owned();
    };
    human_duration(Timestamp::from(SystemTime::now()).nanoseconds_since(then))
}

async fn get(client: &Client, name: &str) -> anyhow::Result<()> {
    let plane = exists(client, name).await?;
    let [_, ready, objects, age, id] = row(&plane);
    let bytes = plane
        .int_at(&["status", "bytes"])
        .map_or("-".to_owned(), |bytes| bytes.to_string());
    let protected = if plane.bool_at(&["spec", "deletionProtection"]) {
        "yes"
    } else {
        "no"
    };
    println!("Name:        {name}");
    println!("Ready:       {ready}");
    println!("Id:          {id}");
    println!("Url:         {}", plane.str_at(&["status", "url"]));
    println!("Objects:     {objects}");
    println!("Bytes:       {bytes}");
    println!("Protected:   {protected}");
    println!("Age:         {age}");
    for condition in plane.items_at(&["status", "conditions"]) {
        let text = |name: &str| condition.str_at(&[name]).to_owned();
        println!(
            "Condition:   {}={} ({}: {})",
            text("type"),
            text("status"),
            text("reason"),
            text("message")
        );
    }
    Ok(())
}

async fn delete(client: &Client, name: &str, yes: bool, patience: Duration) -> anyhow::Result<()> {
    let plane = exists(client, name).await?;
    if !yes {
        let objects = plane.int_at(&["status", "objects"]);
        let holds = objects.map_or(String::new(), |count| format!(" with its {count} objects"));
        eprint!(
            "delete control plane {name:?}{holds}? This cannot be undone. Type its name to go on: "
        );
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut answer)
            .context("cannot read the answer; use --yes in scripts")?;
        if answer.trim() != name {
            bail!("not deleted: the answer was not {name:?}");
        }
    }
    client.send("DELETE", &path_of(name), None).await?;
    let began = Instant::now();
    loop {
        match client.send("GET", &path_of(name), None).await {
            Err(Refusal::Status { code: 404, .. }) => break,
            Err(error) => return Err(error.into()),
            Ok(found)
                if found.str_at(&["metadata", "uid"]) != plane.str_at(&["metadata", "uid"]) =>
            {
                break;
            }
            Ok(_) if began.elapsed() > patience => {
                bail!(
                    "control plane {name:?} is still being deleted after {} s",
                    patience.as_secs()
                );
            }
            Ok(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
    println!("controlplane.polyplane.dev/{name} deleted");
    Ok(())
}
