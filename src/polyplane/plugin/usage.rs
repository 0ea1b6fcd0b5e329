//! `kubectl plane limits` and `kubectl plane top`: what control planes may use, and what they use.

use super::access::update;
use super::client::Client;
use super::exists;
use super::print::{Table, line, progress};
use crate::cli::usage::{Limit, SpecLimitOptions, TopOptions};
use polyplane_apimachinery::Value;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// The limits, each with its name in the spec, in the order in which they are shown.
const FIELDS: [&str; 5] = [
    "requestsPerSecond",
    "writesPerSecond",
    "watches",
    "objects",
    "bytes",
];

/// Sets the limits that are given, and prints all limits of the control plane.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn limits(client: &Client, options: &SpecLimitOptions) -> anyhow::Result<()> {
    let given = [
        options.requests,
        options.writes,
        options.watches,
        options.objects,
        options.bytes,
    ];
    let given: Vec<(&str, i64)> = FIELDS
        .iter()
        .zip(given)
        .filter_map(|(field, limit)| match limit? {
            // No limit is written as no number.
            Limit::None => Some((*field, -1)),
            Limit::Most(limit) => Some((*field, i64::try_from(limit).unwrap_or(i64::MAX))),
        })
        .collect();
    let plane = match given.is_empty() {
        true => exists(client, &options.name).await?,
        false => update(client, &options.name, |plane| set(plane, &given)).await?,
    };
    for field in FIELDS {
        let limit = plane.int_at(&["spec", "limits", field]);
        let shown = limit.map_or("-".to_owned(), |limit| limit.to_string());
        line(&format!("{:<19}{shown}", format!("{field}:")))?;
    }
    Ok(())
}

fn set(plane: &mut Value, given: &[(&str, i64)]) {
    for (field, limit) in given {
        let path = ["spec", "limits", field];
        match limit {
            -1 => drop(plane.remove(&path)),
            limit => plane.set(&path, *limit),
        }
    }
    let is_empty = |limits: &Value| FIELDS.iter().all(|field| limits.get(field).is_none());
    if plane.at(&["spec", "limits"]).is_some_and(is_empty) {
        plane.remove(&["spec", "limits"]);
    }
}

/// Prints the control planes that have used the most CPU time while this command measured.
///
/// # Errors
/// Returns the error as a message for the user.
pub async fn top(client: &Client, options: &TopOptions) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut before = None;
    if !options.over.is_zero() {
        before = Some(report(client).await?);
        tokio::time::sleep(options.over).await;
    }
    let report = report(client).await?;
    let seconds = began.elapsed().as_secs_f64();
    let silent: BTreeSet<&str> = before.iter().chain([&report]).flat_map(silent).collect();
    if !silent.is_empty() {
        let names: Vec<&str> = silent.into_iter().collect();
        progress(&format!(
            "without control planes of replicas that did not answer: {}\n",
            names.join(", ")
        ));
    }
    let mut rows = rows(before.as_ref(), &report);
    rows.sort_by_key(|(used, _)| std::cmp::Reverse((used.cpu_millis, used.requests)));
    rows.truncate(options.limit);
    if rows.is_empty() {
        progress("no control plane is in use\n");
        return Ok(());
    }
    match options.over.is_zero() {
        true => print_totals(&rows)?,
        false => print_rates(&rows, seconds)?,
    }
    Ok(())
}

fn print_totals(rows: &[(Used, &Value)]) -> std::io::Result<()> {
    let headings = [
        "NAME", "CPU(s)", "REQUESTS", "WRITES", "REFUSED", "WATCHES", "OBJECTS", "BYTES",
    ];
    let rows: Vec<[String; 8]> = rows
        .iter()
        .map(|(used, plane)| {
            [
                plane.str_at(&["name"]).to_owned(),
                format!("{}.{:03}", used.cpu_millis / 1000, used.cpu_millis % 1000),
                used.requests.to_string(),
                used.writes.to_string(),
                used.refused.to_string(),
                number(plane, "watches").to_string(),
                number(plane, "objects").to_string(),
                number(plane, "bytes").to_string(),
            ]
        })
        .collect();
    Table::new(headings).print(&rows)
}

fn print_rates(rows: &[(Used, &Value)], seconds: f64) -> std::io::Result<()> {
    let headings = [
        "NAME",
        "CPU(m)",
        "REQUESTS/S",
        "WRITES/S",
        "REFUSED/S",
        "WATCHES",
        "OBJECTS",
        "BYTES",
    ];
    let rate = |count: i64| format!("{:.0}", count as f64 / seconds);
    let rows: Vec<[String; 8]> = rows
        .iter()
        .map(|(used, plane)| {
            [
                plane.str_at(&["name"]).to_owned(),
                rate(used.cpu_millis),
                rate(used.requests),
                rate(used.writes),
                rate(used.refused),
                number(plane, "watches").to_string(),
                number(plane, "objects").to_string(),
                number(plane, "bytes").to_string(),
            ]
        })
        .collect();
    Table::new(headings).print(&rows)
}

/// Returns the planes of a report with what they have used since the one before. While a replica did not
/// answer the one before, planes that are new in this one are left out: they may be that replica's, with
/// all that they have used since they woke.
fn rows<'a>(before: Option<&Value>, report: &'a Value) -> Vec<(Used, &'a Value)> {
    let known: HashMap<&str, Used> = before
        .into_iter()
        .flat_map(|before| before.items_at(&["planes"]))
        .map(|plane| (plane.str_at(&["id"]), Used::of(plane)))
        .collect();
    let all_answered = before.is_none_or(|before| silent(before).next().is_none());
    let row = |plane: &'a Value| match known.get(plane.str_at(&["id"])) {
        Some(known) => Some((Used::of(plane).since(*known), plane)),
        None => all_answered.then(|| (Used::of(plane), plane)),
    };
    report
        .items_at(&["planes"])
        .iter()
        .filter_map(row)
        .collect()
}

/// Returns the replicas that did not answer. A server of an earlier release names none.
fn silent(report: &Value) -> impl Iterator<Item = &str> {
    report
        .items_at(&["silent"])
        .iter()
        .filter_map(Value::as_str)
}

async fn report(client: &Client) -> anyhow::Result<Value> {
    Ok(client.send("GET", "/polyplane/top", None).await?)
}

/// What a control plane has used since it woke, or since it was asked before.
#[derive(Clone, Copy, Default)]
struct Used {
    cpu_millis: i64,
    requests: i64,
    writes: i64,
    refused: i64,
}

impl Used {
    fn of(plane: &Value) -> Self {
        Self {
            cpu_millis: number(plane, "cpuMillis"),
            requests: number(plane, "requests"),
            writes: number(plane, "writes"),
            refused: number(plane, "refused"),
        }
    }

    /// Returns what was used since `before`. A plane that has moved or slept counts from zero again.
    fn since(self, before: Self) -> Self {
        if self.requests < before.requests || self.cpu_millis < before.cpu_millis {
            return self;
        }
        Self {
            cpu_millis: self.cpu_millis - before.cpu_millis,
            requests: self.requests - before.requests,
            writes: self.writes - before.writes,
            refused: (self.refused - before.refused).max(0),
        }
    }
}

fn number(plane: &Value, field: &str) -> i64 {
    plane.int_at(&[field]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn limits_are_set_one_by_one_and_taken_away() {
        let mut plane = json!({"spec": {}});
        set(&mut plane, &[("objects", 5), ("watches", 0)]);
        set(&mut plane, &[("objects", -1), ("bytes", 7)]);
        let expected = json!({"spec": {"limits": {"watches": 0i64, "bytes": 7i64}}});
        assert_eq!(plane, expected);
        set(&mut plane, &[("watches", -1), ("bytes", -1)]);
        assert!(plane.at(&["spec", "limits"]).is_none());
    }

    #[test]
    fn a_plane_that_a_silent_replica_may_have_owned_is_not_shown_with_all_that_it_used() {
        let plane = |id: &str, requests: i64| json!({"id": (id), "requests": (requests)});
        let now = json!({"planes": [(plane("a", 7)), (plane("b", 900))]});
        let shown = |before: Option<&Value>| {
            let rows = rows(before, &now);
            let shown = rows
                .iter()
                .map(|(used, plane)| (plane.str_at(&["id"]), used.requests));
            shown
                .map(|(id, requests)| (id.to_owned(), requests))
                .collect::<Vec<_>>()
        };
        let all = json!({"planes": [(plane("a", 5))]});
        let some = json!({"planes": [(plane("a", 5))], "silent": ["r1"]});
        let (a, b) = (("a".to_owned(), 2), ("b".to_owned(), 900));
        assert_eq!(
            shown(Some(&all)),
            [a.clone(), b.clone()],
            "b woke meanwhile"
        );
        assert_eq!(shown(Some(&some)), [a]);
        assert_eq!(shown(None), [("a".to_owned(), 7), b], "totals");
    }

    #[test]
    fn a_plane_that_has_moved_counts_from_zero() {
        let used = |cpu_millis, requests| Used {
            cpu_millis,
            requests,
            ..Used::default()
        };
        assert_eq!(used(10, 20).since(used(4, 5)).requests, 15);
        assert_eq!(used(10, 3).since(used(4, 5)).requests, 3);
    }
}
