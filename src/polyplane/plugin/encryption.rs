//! Encryption at rest of a control plane: `kubectl plane rotate --data-key`, and what `kubectl plane get`
//! says of it.

use super::access::update;
use super::client::Client;
use super::print::{line, progress};
use super::{POLL_EVERY, path_segment};
use anyhow::bail;
use polyplane_apimachinery::Value;
use polyplane_batteries::polyplane::control_plane::DATA_KEY_GENERATION;
use std::time::{Duration, Instant};

/// Lets the owner of a control plane seal its records by a new data key, and waits until all are.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn rotate(client: &Client, name: &str, patience: Duration) -> anyhow::Result<()> {
    let before = report(client, name).await?;
    if before.int_at(&["dataKey"]).is_none() {
        bail!(
            "control plane {name:?} has no data key: nothing of it is encrypted in the store \
             (--encryption-provider-config)"
        );
    }
    // Reports of replicas of an earlier release do not say it.
    if before.at(&["encrypts"]).and_then(Value::as_bool) == Some(false) {
        bail!(
            "control plane {name:?} gets no new data key: the first provider of the server's \
             --encryption-provider-config is `identity`, so nothing new is encrypted and no key wraps \
             it. Put a provider with a key first, restart all replicas, and repeat this"
        );
    }
    let plane = update(client, name, |plane| {
        let path = ["metadata", "annotations", DATA_KEY_GENERATION];
        let known = plane.str_at(&path).parse::<u32>().unwrap_or_default();
        let next = known.saturating_add(1).to_string();
        plane.set(&path, next.as_str());
    })
    .await?;
    let wanted = plane.str_at(&["metadata", "annotations", DATA_KEY_GENERATION]);
    let wanted: i64 = wanted.parse().unwrap_or_default();
    progress(&format!(
        "replacing the data key of control plane {name:?} ... "
    ));
    // A request wakes the control plane: one that sleeps gets its new key when it is used next.
    let path = format!("/clusters/{}/api/v1/namespaces?limit=1", path_segment(name));
    client.send("GET", &path, None).await?;
    let began = Instant::now();
    loop {
        let now = report(client, name).await?;
        let is_new = now.int_at(&["generation"]) >= Some(wanted);
        if is_new && now.bool_at(&["settled"]) {
            let number = now.int_at(&["dataKey"]).unwrap_or_default();
            progress("done\n");
            return Ok(line(&format!(
                "control plane {name:?} is encrypted by data key {number}; no object is stored under \
                 an earlier one. Copies of the store from before have the earlier one, wrapped"
            ))?);
        }
        if began.elapsed() > patience {
            progress("not yet\n");
            bail!(
                "after {} s some objects of control plane {name:?} are still stored under an earlier \
                 data key; `kubectl plane get {name}` says when none is left",
                patience.as_secs()
            );
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Returns in words how a control plane is encrypted in the store.
pub async fn of(client: &Client, name: &str) -> String {
    let Ok(report) = report(client, name).await else {
        return "unknown".to_owned();
    };
    let Some(number) = report.int_at(&["dataKey"]) else {
        return "none".to_owned();
    };
    let is_new = report.int_at(&["generation"]) >= report.int_at(&["requestedGeneration"]);
    let rest = match report.bool_at(&["settled"]) && is_new {
        true => "no object is stored otherwise",
        false => "some objects are stored otherwise",
    };
    let by = report.str_at(&["wrappedBy"]);
    format!("data key {number}, wrapped by {by}; {rest}")
}

async fn report(client: &Client, name: &str) -> anyhow::Result<Value> {
    let path = format!("/polyplane/encryption/{}", path_segment(name));
    Ok(client.send("GET", &path, None).await?)
}
