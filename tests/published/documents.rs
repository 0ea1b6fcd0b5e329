//! What two servers publish about the same definitions: discovery and OpenAPI.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use http::Method;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::definitions::Definition;
use crate::client::Client;
use crate::compare::places;
use crate::connection::Ask;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The longest time until the reference has published all definitions.
const PUBLISH_LIMIT: Duration = Duration::from_secs(90);
/// The time between two looks at what is published.
const POLL: Duration = Duration::from_millis(500);

/// A part of a document, by name.
pub type Parts = Vec<(String, Value)>;

/// One comparison and the places that differ.
pub struct Compared {
    /// The document.
    pub name: String,
    /// The places that differ, as lines.
    pub places: Vec<String>,
}

/// Compares the documents of two servers part by part.
pub fn compared(reference: &Parts, plane: &Parts) -> Vec<Compared> {
    let both = reference.iter().map(|(name, expected)| {
        let found = plane.iter().find(|(other, _)| other == name);
        let answered = found.map_or(Value::Null, |(_, answered)| answered.clone());
        Compared {
            name: name.clone(),
            places: places(expected, &answered),
        }
    });
    both.collect()
}

/// Returns everything that a server publishes about the definitions.
///
/// # Errors
/// Returns an error if the server cannot be reached, or does not publish all of them in time.
pub async fn published(client: &Client, definitions: &[Definition]) -> Result<Parts> {
    let open_api = whole(client, definitions).await?;
    let groups: BTreeSet<&str> = definitions.iter().map(Definition::group).collect();
    let versions: BTreeSet<(&str, &str)> = definitions
        .iter()
        .flat_map(|definition| {
            let versions = definition.served();
            versions.map(|version| (definition.group(), version.name))
        })
        .collect();
    let index = get(client, "/openapi/v3", "application/json").await?;
    let aggregated = get(client, "/apis", AGGREGATED).await?;
    let mut parts = Parts::new();
    for group in groups {
        let path = format!("/apis/{group}");
        let legacy = get(client, &path, "application/json").await?;
        parts.push((format!("discovery {group}"), legacy));
        let items = aggregated["items"].as_array().into_iter().flatten();
        let mut items = items.filter(|item| item["metadata"]["name"] == group);
        let item = items.next().cloned().unwrap_or_default();
        parts.push((format!("aggregated discovery {group}"), item));
        let own =
            |name: &&String| name.starts_with(&format!("apis/{group}/")) || **name == path[1..];
        let names = index["paths"].as_object().into_iter().flat_map(Map::keys);
        let names: Vec<&String> = names.filter(own).collect();
        parts.push((format!("index of version 3 {group}"), json!(names)));
    }
    for (group, version) in versions {
        let path = format!("/apis/{group}/{version}");
        let mut legacy = get(client, &path, "application/json").await?;
        // The reference lists the kinds in the random order of a Go map.
        if let Some(resources) = legacy["resources"].as_array_mut() {
            resources.sort_by_key(|resource| resource["name"].to_string());
        }
        parts.push((format!("discovery {group}/{version}"), legacy));
        let name = format!("/openapi/v3{path}");
        let mut document = get(client, &name, "application/json").await?;
        bare(&mut document);
        parts.push((format!("version 3 {group}/{version}"), document));
        parts.push((
            format!("version 2 {group}/{version}"),
            part_of(&open_api, group, version),
        ));
    }
    Ok(parts)
}

/// Returns the document of version 2 once it has all definitions.
async fn whole(client: &Client, definitions: &[Definition]) -> Result<Value> {
    let deadline = Instant::now() + PUBLISH_LIMIT;
    loop {
        let mut document = get(client, "/openapi/v2", "application/json").await?;
        let index = get(client, "/openapi/v3", "application/json").await?;
        let missing = definitions.iter().find(|definition| {
            definition.served().any(|version| {
                let prefix = package(definition.group(), version.name);
                let name = format!("{prefix}{}", definition.kind());
                let path = format!("apis/{}/{}", definition.group(), version.name);
                document["definitions"].get(&name).is_none() || index["paths"].get(&path).is_none()
            })
        });
        let Some(missing) = missing else {
            bare(&mut document);
            let shared = document["parameters"].take();
            inline(&mut document["paths"], &shared);
            return Ok(document);
        };
        if Instant::now() >= deadline {
            bail!("{} is not in OpenAPI", missing.name());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Returns the beginning of the names of a version's definitions.
fn package(group: &str, version: &str) -> String {
    let group: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.", group.join("."))
}

fn part_of(document: &Value, group: &str, version: &str) -> Value {
    let pick = |name: &str, prefix: &str| -> Map<String, Value> {
        let members = document[name].as_object().into_iter().flatten();
        let own = members.filter(|(name, _)| name.starts_with(prefix));
        own.map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    json!({
        "definitions": pick("definitions", &package(group, version)),
        "paths": pick("paths", &format!("/apis/{group}/{version}/")),
        "groupPath": document["paths"].get(format!("/apis/{group}/")),
    })
}

async fn get(client: &Client, path: &str, accept: &str) -> Result<Value> {
    let ask = Ask {
        method: Method::GET,
        path: path.to_owned(),
        headers: vec![("accept".to_owned(), accept.to_owned())],
        body: bytes::Bytes::new(),
    };
    let answer = client.raw(ask).await?;
    let text = || json!(String::from_utf8_lossy(&answer.body));
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|_| text());
    Ok(match answer.status.as_u16() {
        200 => body,
        status => json!({"status": status, "body": body}),
    })
}

/// Puts shared parameters where they are referred to, and sorts parameters by name. The reference
/// names each by a hash that covers its prose.
fn inline(value: &mut Value, shared: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(place)) = members.get("$ref")
                && let Some(name) = place.strip_prefix("#/parameters/")
            {
                *value = shared[name].clone();
                return;
            }
            for (name, member) in members.iter_mut() {
                inline(member, shared);
                if name == "parameters"
                    && let Some(list) = member.as_array_mut()
                {
                    list.sort_by_key(|parameter| parameter["name"].to_string());
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| inline(item, shared)),
        _ => {}
    }
}

/// Removes prose. A property that is called `description` is an object and stays.
fn bare(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, member| name != "description" || !member.is_string());
            members.values_mut().for_each(bare);
        }
        Value::Array(items) => items.iter_mut().for_each(bare),
        _ => {}
    }
}
