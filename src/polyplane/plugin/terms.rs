//! `kubectl plane terms`: the terms of the read lease, and their change on a ring in use.

use super::POLL_EVERY;
use super::client::Client;
use super::print::{line, progress};
use anyhow::bail;
use polyplane_apimachinery::Value;
use std::time::{Duration, Instant};

const TERMS: &str = "/polyplane/ring/terms";

/// Prints the terms.
pub async fn show(client: &Client) -> anyhow::Result<()> {
    let terms = client.send("GET", TERMS, None).await?;
    line(&format!(
        "read lease  {}",
        millis(&terms, "readLeaseMillis")
    ))?;
    line(&format!("margin      {}", millis(&terms, "marginMillis")))?;
    if let Some(change) = change_of(&terms) {
        line(&format!("changing    {change}"))?;
    }
    Ok(())
}

/// Starts a change and waits until every replica follows the new terms.
pub async fn change(
    client: &Client,
    (read_lease, margin): (u64, u64),
    patience: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    let path = format!("{TERMS}/{read_lease}/{margin}");
    let mut terms = client.send("POST", &path, None).await?;
    let mut shown = None;
    while let Some(change) = change_of(&terms) {
        if shown.as_ref() != Some(&change) {
            progress(&format!("{change}\n"));
        }
        if Instant::now() >= deadline {
            bail!(
                "the terms are still changing {change}; the replicas go on by themselves, run this command again to wait"
            );
        }
        shown = Some(change);
        tokio::time::sleep(POLL_EVERY).await;
        terms = client.send("GET", TERMS, None).await?;
    }
    let wanted = [("readLeaseMillis", read_lease), ("marginMillis", margin)];
    let reached = |(field, wanted): (&str, u64)| {
        let found = terms.int_at(&[field]);
        found.and_then(|found| u64::try_from(found).ok()) == Some(wanted)
    };
    if !wanted.into_iter().all(reached) {
        bail!("the terms were changed to others meanwhile; `kubectl plane terms` shows them");
    }
    show(client).await
}

/// Describes a change in progress: the new terms, and the replicas for which it waits.
fn change_of(terms: &Value) -> Option<String> {
    terms.at(&["next"])?;
    let next = |field: &str| {
        let found = terms.int_at(&["next", field]);
        found.map_or("-".to_owned(), |found| format!("{found} ms"))
    };
    let awaited: Vec<&str> = terms
        .items_at(&["awaited"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let (read_lease, margin) = (next("readLeaseMillis"), next("marginMillis"));
    let waits = match awaited.is_empty() {
        true => "all replicas follow both; the longer of the two waits has to pass".to_owned(),
        false => format!("waiting for {}", awaited.join(", ")),
    };
    Some(format!(
        "to read lease {read_lease}, margin {margin}: {waits}"
    ))
}

fn millis(terms: &Value, field: &str) -> String {
    let found = terms.int_at(&[field]);
    found.map_or("-".to_owned(), |found| format!("{found} ms"))
}
