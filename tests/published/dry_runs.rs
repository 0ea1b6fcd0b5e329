//! Sends drawn objects to two servers as dry runs and compares what they answer.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use super::definitions::Definition;
use super::draw::Draw;
use crate::client::Client;
use crate::compare::places;
use crate::connection::Ask;
use crate::normalize::Normalizer;
use crate::symbols::Symbols;

/// What became of one object.
pub struct DryRun {
    /// The object that was sent.
    pub object: Value,
    /// Whether the reference accepted it.
    pub accepted: bool,
    /// The places in which the answers differ.
    pub places: Vec<String>,
}

/// The two servers, and the path that stands before those of the plane.
pub struct Servers<'c> {
    /// The reference.
    pub reference: &'c Client,
    /// The plane.
    pub plane: &'c Client,
    /// The path before all paths of the plane.
    pub plane_path: &'c str,
}

impl Servers<'_> {
    /// Draws an object of a version and creates it on both servers as a dry run.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached.
    pub async fn dry_run(
        &self,
        seed: u64,
        definition: &Definition,
        version: &super::definitions::Version<'_>,
    ) -> Result<DryRun> {
        let api_version = format!("{}/{}", definition.group(), version.name);
        let object = Draw::new(seed).object(&api_version, definition.kind(), version.schema);
        let text = object.to_string().replace("{name}", &format!("d{seed}"));
        let path = definition
            .collection(version.name)
            .replace("{ns}", "default");
        let path = format!("{path}?dryRun=All&fieldManager=m1");
        let expected = answer(self.reference, &path, &text, "").await?;
        let answered = answer(self.plane, &path, &text, self.plane_path).await?;
        Ok(DryRun {
            object,
            accepted: expected["status"] == 201,
            places: places(&expected, &answered),
        })
    }
}

async fn answer(client: &Client, path: &str, text: &str, base_path: &str) -> Result<Value> {
    let ask = Ask {
        method: Method::POST,
        path: path.to_owned(),
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: bytes::Bytes::copy_from_slice(text.as_bytes()),
    };
    let answer = client.raw(ask).await?;
    let warnings = answer.headers.get_all("warning").iter();
    let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let mut warnings: Vec<String> = warnings.collect();
    warnings.sort();
    let body = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut body = Normalizer {
        symbols: &mut Symbols::default(),
        step: "dry run",
        sent: text,
        base_path,
    }
    .value(body);
    sort(&mut body);
    Ok(json!({"status": answer.status.as_u16(), "warnings": warnings, "body": body}))
}

/// Sorts the complaints of an answer: the reference makes them in the random order of Go's maps.
fn sort(body: &mut Value) {
    let causes = body.pointer_mut("/details/causes");
    if let Some(causes) = causes.and_then(Value::as_array_mut) {
        causes.sort_by_key(Value::to_string);
    }
    if body["kind"] == "Status"
        && let Some(Value::String(message)) = body.get_mut("message")
    {
        let plain = message.replace(['[', ']'], "");
        let (head, complaints) = plain.split_once(" is invalid: ").unwrap_or(("", &plain));
        let mut complaints: Vec<&str> = complaints.split(", ").collect();
        complaints.sort_unstable();
        *message = format!("{head}: {}", complaints.join(", "));
    }
}
