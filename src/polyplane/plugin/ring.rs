//! `kubectl plane ring` and `kubectl plane locate`: prints the reports of `/polyplane/ring` and
//! `/polyplane/locate`.

use super::client::Client;
use super::path_segment;
use super::print::{Table, excerpt, line, progress};
use polyplane_apimachinery::Value;

/// Prints the replicas and how many planes each of them owns.
pub async fn show(client: &Client) -> anyhow::Result<()> {
    let ring = client.send("GET", "/polyplane/ring", None).await?;
    let replicas = ring.items_at(&["replicas"]);
    let rows: Vec<[String; 10]> = replicas.iter().map(row).collect();
    let headings = [
        "REPLICA",
        "STATE",
        "ZONE",
        "LEVEL",
        "WEIGHT",
        "OWNED",
        "AWAKE",
        "HAND-OFFS",
        "INCARNATION",
        "ADDRESS",
    ];
    Table::new(headings).print(&rows)?;
    line(&format!(
        "\nview {}, level floor {}, control planes: {}",
        number(&ring, "view"),
        number(&ring, "floor"),
        number(&ring, "planes")
    ))?;
    show_candidates(&ring)
}

/// Prints the replicas that wait outside the ring, if there are any.
fn show_candidates(ring: &Value) -> anyhow::Result<()> {
    let candidates = ring.items_at(&["candidates"]);
    if candidates.is_empty() {
        return Ok(());
    }
    line("\nwaiting outside the ring, because of their certificates or their address:")?;
    let rows: Vec<[String; 4]> = candidates.iter().map(candidate_row).collect();
    Table::new(["CANDIDATE", "SINCE", "ISSUED BY", "TRUSTS"]).print(&rows)?;
    for candidate in candidates {
        let why = candidate.str_at(&["why"]);
        if !why.is_empty() {
            let id = candidate.str_at(&["id"]);
            line(&excerpt(&format!("{id}: {why}")))?;
        }
    }
    let outvoted = ring.str_at(&["outvoted"]);
    if !outvoted.is_empty() {
        line(&format!("\n{}", excerpt(outvoted)))?;
    }
    Ok(())
}

/// Raises the store's floor to the lowest level of all replicas.
pub async fn raise_floor(client: &Client) -> anyhow::Result<()> {
    let path = "/polyplane/ring/raise-floor";
    let raised = client.send("POST", path, None).await?;
    progress(&format!(
        "the store's level floor is {}\n",
        number(&raised, "floor")
    ));
    Ok(())
}

/// Prints which replica owns a plane and which one is designated to own it.
pub async fn locate(client: &Client, name: &str) -> anyhow::Result<()> {
    let path = format!("/polyplane/locate/{}", path_segment(name));
    let found = client.send("GET", &path, None).await?;
    let text = |field: &str| text(&found, field);
    let lines = [
        format!("Name:         {name}"),
        format!("Id:           {}", text("id")),
        format!("Designated:   {}", text("designated")),
        format!("Owner:        {}", text("owner")),
        format!("Epoch:        {}", number(&found, "epoch")),
        format!("Fence:        {}", text("fence")),
        format!("State:        {}", text("state")),
        format!("Pinned to:    {}", text("pin")),
    ];
    Ok(line(&lines.join("\n"))?)
}

fn row(replica: &Value) -> [String; 10] {
    let text = |field: &str| text(replica, field);
    [
        text("id"),
        text("state"),
        text("zone"),
        number(replica, "level"),
        number(replica, "weight"),
        number(replica, "owned"),
        number(replica, "awake"),
        number(replica, "handOffs"),
        number(replica, "incarnation"),
        text("address"),
    ]
}

fn candidate_row(candidate: &Value) -> [String; 4] {
    ["id", "since", "issuer", "trusts"].map(|field| excerpt(&text(candidate, field)))
}

/// Returns a text, or a dash if it is absent.
fn text(value: &Value, field: &str) -> String {
    match value.str_at(&[field]) {
        "" => "-".to_owned(),
        text => text.to_owned(),
    }
}

/// Returns a number, or a dash if the replica did not report it.
fn number(value: &Value, field: &str) -> String {
    value
        .int_at(&[field])
        .map_or("-".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_candidate_is_shown_with_dashes_for_what_it_does_not_say() {
        let since = "2026-01-01T00:00:00Z";
        let named = json!({"id": "a", "since": since, "issuer": "0a1b", "trusts": "0a1b,2c3d"});
        assert_eq!(candidate_row(&named), ["a", since, "0a1b", "0a1b,2c3d"]);
        let unnamed = json!({"id": "b", "since": since});
        assert_eq!(candidate_row(&unnamed), ["b", since, "-", "-"]);
    }
}
