//! `kubectl plane`: control planes from the command line.
//!
//! It sends requests to the root plane of the server that the kubeconfig names, with the
//! credentials found there. Progress goes to standard error, results to standard output.

pub mod access;
pub mod client;
pub mod config;
pub mod credentials;
mod encryption;
mod list;
mod output;
mod pinned;
mod print;
mod ring;
mod root_plane;
mod terms;
mod usage;

use crate::cli::output::OutputFormat;
use crate::cli::{PluginAction, PluginCommand};
use anyhow::{Context, bail};
use client::{Client, Refusal};
use config::Kubeconfig;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_apimachinery::{Value, json};
use print::{line, progress};
use std::io::BufRead;
use std::time::{Duration, Instant, SystemTime};

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// Pause between two polls of a plane, or of terms, for which a command waits. Less would load the
/// server.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Carries out one command.
///
/// # Errors
/// Returns the error as a message for the user.
pub fn run(command: PluginCommand) -> anyhow::Result<()> {
    match carry_out(command) {
        // Not an error: `kubectl plane list | head` closes the pipe early.
        Err(error) if print::reader_left(&error) => Ok(()),
        Err(error) if is_of_another_ca(&error) => bail!(
            "{error:#}. The kubeconfig is probably of an earlier folder of the server, whose CA has been made anew \
             since: use the kubeconfig that `polyplane up` prints, or that of the present folder"
        ),
        done => done,
    }
}

fn is_of_another_ca(error: &anyhow::Error) -> bool {
    let is = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<Refusal>();
        cause.is_some_and(Refusal::is_of_another_ca)
    };
    error.chain().any(is)
}

fn carry_out(command: PluginCommand) -> anyhow::Result<()> {
    let PluginCommand {
        kubeconfig,
        context,
        action,
    } = command;
    root_plane::check(&action)?;
    let mut config = Kubeconfig::load(kubeconfig.as_deref())?;
    let target = config.target(context.as_deref())?;
    crate::process::once(async {
        let client = Client::new(&target)?;
        match action {
            PluginAction::Create {
                name,
                protect,
                timeout,
            } => create(&client, &name, protect, Duration::from_secs(timeout)).await,
            PluginAction::List { output } => list::list(&client, output).await,
            PluginAction::Get { name, output } => get(&client, &name, output).await,
            PluginAction::Kubeconfig(options) => {
                access::kubeconfig(&client, &config, &target, &options).await
            }
            PluginAction::Revoke(options) => access::revoke(&client, &options).await,
            PluginAction::Rotate(options) if options.data_key => {
                let patience = Duration::from_secs(options.timeout);
                encryption::rotate(&client, &options.name, patience).await
            }
            PluginAction::Rotate(options) => access::rotate(&client, &options).await,
            PluginAction::Suspend { name } => access::suspend(&client, &name).await,
            PluginAction::Resume { name } => access::resume(&client, &name).await,
            PluginAction::Limits(options) => usage::limits(&client, &options).await,
            PluginAction::Top(options) => usage::top(&client, &options).await,
            PluginAction::Use { name } => {
                if name != "root" {
                    exists(&client, &name).await?;
                }
                let file = config.switch(&target, &name)?;
                let said = format!("now using control plane {name:?} ({})", file.display());
                Ok(line(&said)?)
            }
            PluginAction::Ring { raise_floor } => {
                if raise_floor {
                    ring::raise_floor(&client).await?;
                }
                ring::show(&client).await
            }
            PluginAction::Terms {
                read_lease,
                margin,
                timeout,
            } => match read_lease.zip(margin) {
                Some(wanted) => terms::change(&client, wanted, Duration::from_secs(timeout)).await,
                None => terms::show(&client).await,
            },
            PluginAction::Locate { name } => ring::locate(&client, &name).await,
            PluginAction::Delete { name, yes, timeout } => {
                let current = config.current_of(&target, &name);
                delete(&client, &name, yes, Duration::from_secs(timeout)).await?;
                match current {
                    Some(context) => leave(&mut Kubeconfig::load(kubeconfig.as_deref())?, &context),
                    None => Ok(()),
                }
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
    // A text that cannot be a name is escaped, so that the server refuses it in its own words.
    if safe { name.to_owned() } else { escape(name) }
}

/// Escapes a text for use in a URL.
fn escape(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
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
    progress(&format!("creating control plane {name:?} ... "));
    let mut plane = match client.send("POST", PLANES, Some(&object)).await {
        Ok(plane) => plane,
        Err(error) => {
            progress("failed\n");
            return Err(error.into());
        }
    };
    while !is_ready(&plane) {
        if began.elapsed() > patience {
            progress("not ready\n");
            bail!(
                "control plane {name:?} was created but is not ready after {} s; `kubectl plane get {name}` shows why",
                patience.as_secs()
            );
        }
        tokio::time::sleep(POLL_EVERY).await;
        plane = client.send("GET", &path_of(name), None).await?;
    }
    progress(&format!("ready after {} ms\n", began.elapsed().as_millis()));
    line(&format!("controlplane.polyplane.dev/{name} created"))?;
    // Only `up` keeps contexts itself, and who has created a plane on a ring might look for one.
    progress(&format!(
        "work in it after `kubectl plane use {name}`, or with the kubeconfig that `kubectl plane kubeconfig {name} \
         --admin` prints\n"
    ));
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

fn row(plane: &Value) -> [String; 5] {
    let deleting = !plane.str_at(&["metadata", "deletionTimestamp"]).is_empty();
    let ready = match (deleting, is_ready(plane)) {
        (true, _) => "Deleting",
        (false, _) if plane.bool_at(&["spec", "suspended"]) => "Suspended",
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

async fn get(client: &Client, name: &str, format: Option<OutputFormat>) -> anyhow::Result<()> {
    let plane = exists(client, name).await?;
    if let Some(format) = format {
        return Ok(print::bytes(&output::one(&plane, format))?);
    }
    let [_, ready, objects, age, id] = row(&plane);
    let bytes = plane
        .int_at(&["status", "bytes"])
        .map_or("-".to_owned(), |bytes| bytes.to_string());
    let protected = if plane.bool_at(&["spec", "deletionProtection"]) {
        "yes"
    } else {
        "no"
    };
    let mut lines = vec![
        format!("Name:        {name}"),
        format!("Ready:       {ready}"),
        format!("Id:          {id}"),
        // Not that of the status, which is as old as the last write.
        format!("Url:         {}/clusters/{name}", client.server()),
        format!("Objects:     {objects}"),
        format!("Bytes:       {bytes}"),
        format!("Protected:   {protected}"),
        format!("Age:         {age}"),
        format!("Encryption:  {}", encryption::of(client, name).await),
    ];
    for condition in plane.items_at(&["status", "conditions"]) {
        let text = |name: &str| condition.str_at(&[name]);
        lines.push(format!(
            "Condition:   {}={} ({}: {})",
            text("type"),
            text("status"),
            text("reason"),
            text("message")
        ));
    }
    Ok(line(&lines.join("\n"))?)
}

async fn delete(client: &Client, name: &str, yes: bool, patience: Duration) -> anyhow::Result<()> {
    let plane = exists(client, name).await?;
    if !yes {
        let objects = plane.int_at(&["status", "objects"]);
        let holds = objects.map_or(String::new(), |count| format!(" with its {count} objects"));
        progress(&format!(
            "delete control plane {name:?}{holds}? This cannot be undone. Type its name to go on: "
        ));
        let mut answer = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut answer)
            .context("cannot read the answer; in a script use --yes")?;
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
                    "control plane {name:?} is still being deleted after {} s; `kubectl plane get {name}` shows why",
                    patience.as_secs()
                );
            }
            Ok(_) => tokio::time::sleep(POLL_EVERY).await,
        }
    }
    Ok(line(&format!("controlplane.polyplane.dev/{name} deleted"))?)
}

/// Unsets the current context, whose plane has been deleted, and says so. `config` is as the files are after the
/// deletion, because `polyplane up` has changed its own meanwhile.
fn leave(config: &mut Kubeconfig, context: &str) -> anyhow::Result<()> {
    let left = config.unset(context);
    let now =
        left.context("the control plane is deleted, but its context is still the current one")?;
    let choose = "choose one with `kubectl config use-context NAME`";
    progress(&match now {
        "" => format!(
            "no context is current any more, because the control plane of {context:?} is deleted; {choose}\n"
        ),
        other => format!(
            "the current context is {other:?} now, because the control plane of {context:?} is deleted\n"
        ),
    });
    Ok(())
}
