//! Whole requests to subresources that are not just another view of the object: scale, binding
//! and eviction.
//!
//! `golden/subresources/` has the answers of upstream's own storages, and the objects stored
//! afterwards, for one object and its disruption budgets (see `generate/README.md`). Each request
//! is sent to a plane that has the same objects. `SHOW=5` prints the first differences.

use crate::shared::recorded::{cases, parse};
use crate::site::{Site, on_paused_clock, request};
use bytes::Bytes;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::Key;
use polyplane_registry::{AnswerBody, Resource, ResourceRequest, Verb};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The creation time of the recorded objects.
const TIME: &str = "2024-05-06T07:08:09Z";
/// The uid of the recorded objects.
const UID: &str = "6b1e0b6c-4c55-4a5c-8a39-0f4d3f1d7e10";
/// Seconds within which a time counts as the time of the request.
const RECENT_SECONDS: i64 = 48 * 3600;

#[test]
fn scales_are_read_and_written_as_upstream_does() {
    on_paused_clock(all_agree("scale"));
}

#[test]
fn pods_are_bound_as_upstream_does() {
    on_paused_clock(all_agree("binding"));
}

#[test]
fn pods_are_evicted_as_upstream_does() {
    on_paused_clock(all_agree("eviction"));
}

async fn all_agree(file: &str) {
    let mut shown: usize = std::env::var("SHOW").map_or(1, |text| text.parse().expect("a number"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/subresources");
    let cases = cases(&folder.join(format!("{file}.jsonl.gz")));
    let (mut different, all) = (0, cases.len());
    for case in &cases {
        let (ours, theirs) = (answer(case).await, expected(case));
        if ours == theirs {
            continue;
        }
        different += 1;
        if shown > 0 {
            shown -= 1;
            println!("--- {}", json::to_string(case));
            println!("ours:   {}", json::to_string(&ours));
            println!("theirs: {}", json::to_string(&theirs));
        }
    }
    println!("{file}: {} of {all} agree", all - different);
    assert!(all > 100, "only {all} cases");
    assert_eq!(different, 0, "of {all} cases of {file}");
}

/// Sends a request to a subresource of an object in the default namespace.
async fn ask(
    site: &Site,
    verb: Verb,
    row: &Resource,
    name: &str,
    subresource: &str,
    body: String,
) -> Result<Vec<u8>, ApiError> {
    let request = ResourceRequest {
        group: row.group.clone(),
        version: row.version.clone(),
        name: Some(name.into()),
        subresource: Some(subresource.into()),
        body: Bytes::from(body),
        ..request(verb, &row.name)
    };
    let answer = site.registry.handle(&site.tenant, &request).await?;
    match answer.body {
        AnswerBody::Slices(slices) => Ok(slices.concat()),
        AnswerBody::Stream(_) | AnswerBody::Watch(_) | AnswerBody::Connect(_) => {
            panic!("a subresource does not stream")
        }
    }
}

/// Returns the plane's answer and the objects that it stores afterwards.
async fn answer(case: &Value) -> Value {
    let site = Site::open().await;
    let kinds = &site.tenant.base;
    let row = kinds
        .resources()
        .iter()
        .find(|row| {
            format!("{}.{}.{}", group_of(row), row.version, row.kind) == case.str_at(&["kind"])
        })
        .expect("the kind is served");
    let budgets = kinds
        .stored("policy", "poddisruptionbudgets")
        .expect("they are served");
    let namespaces = kinds.stored("", "namespaces").expect("they are served");
    for budget in case.items_at(&["with"]) {
        site.put_whole(budgets, budget.clone()).await;
    }
    let mut old = case["old"].clone();
    old.set(&["metadata", "uid"], UID);
    site.put_whole(row, old.clone()).await;
    let namespace = json!({"metadata": {"name": "default"}});
    site.put_whole(namespaces, namespace).await;
    let name = Str::from(old.str_at(&["metadata", "name"]));
    let key = |row: &Resource, name: &str| {
        Key::new(
            &row.storage.group,
            &row.storage.resource,
            Some("default"),
            name,
        )
    };
    let stored = site
        .tenant
        .plane
        .snapshot()
        .get(&key(row, &name))
        .expect("it was put");
    let version = stored.version().expect("it is durable").to_string();

    let mut body = case["in"].clone();
    for path in [
        &["metadata", "resourceVersion"][..],
        &["deleteOptions", "preconditions", "resourceVersion"],
    ] {
        if body.str_at(path) == "1" {
            body.set(path, version.as_str());
        }
    }
    let (verb, subresource) = match case.str_at(&["op"]) {
        "scaleget" => (Verb::Get, "scale"),
        "scale" => (Verb::Update, "scale"),
        other => (Verb::Create, other),
    };
    let body = if body.is_null() {
        String::new()
    } else {
        json::to_string(&body)
    };
    let answered = ask(&site, verb, row, &name, subresource, body).await;

    let mut out = Value::object();
    match answered {
        Err(error) => out.set(&["status"], status(&error, &version)),
        Ok(text) => {
            let answer = parse(&text);
            if subresource == "scale" {
                out.set(&["answer"], comparable(answer));
            }
        }
    }
    let now = |row: &Resource, name: &str| {
        let object = site.tenant.plane.snapshot().get(&key(row, name))?;
        Some(comparable(parse(object.body())))
    };
    if verb != Verb::Get
        && let Some(object) = now(row, &name)
    {
        out.set(&["object"], object);
    }
    if case["out"].bool_at(&["accepted"]) {
        let names = case
            .items_at(&["with"])
            .iter()
            .map(|budget| budget.str_at(&["metadata", "name"]));
        out.set(
            &["with"],
            names
                .filter_map(|name| now(budgets, name))
                .collect::<Vec<_>>(),
        );
    }
    out
}

fn group_of(row: &Resource) -> &str {
    if row.group.is_empty() {
        "core"
    } else {
        &row.group
    }
}

fn expected(case: &Value) -> Value {
    let theirs = &case["out"];
    let mut out = Value::object();
    let error = theirs.str_at(&["error"]);
    if !error.is_empty() {
        out.set(&["status", "message"], error);
        out.set(&["status", "code"], 500i64);
        out.set(&["status", "status"], "Failure");
        out.set(&["status", "metadata"], Value::object());
    }
    for field in ["status", "answer", "object"] {
        if !theirs[field].is_null() {
            out.set(&[field], comparable(theirs[field].clone()));
        }
    }
    if theirs.bool_at(&["accepted"]) {
        let with = theirs.items_at(&["with"]).iter().cloned();
        out.set(&["with"], with.map(comparable).collect::<Vec<_>>());
    }
    out
}

/// Returns a Status in which the object has the version of the recording.
fn status(error: &ApiError, version: &str) -> Value {
    let text = String::from_utf8(error.to_json()).expect("JSON is UTF-8");
    let text = text
        .replace(version, "1")
        .replace("Key: /registry/", "Key: /");
    comparable(parse(text))
}

/// Returns a tree without the values that depend on randomness or the time.
fn comparable(mut tree: Value) -> Value {
    for path in [
        &["kind"][..],
        &["apiVersion"],
        &["metadata", "resourceVersion"],
        &["metadata", "managedFields"],
    ] {
        drop(tree.remove(path));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    blank(
        &mut tree,
        i64::try_from(now.as_secs()).expect("before the sun burns out"),
    );
    tree
}

fn blank(tree: &mut Value, now: i64) {
    match tree {
        Value::String(text) => {
            let time = Timestamp::parse(text);
            let recent = time.is_ok_and(|time| (time.seconds - now).abs() < RECENT_SECONDS);
            if recent || *text == TIME {
                *text = "<time>".into();
            } else if *text == UID {
                *text = "<uid>".into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blank(item, now)),
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members
                .iter_mut()
                .for_each(|(_, member)| blank(member, now));
        }
        _ => {}
    }
}
