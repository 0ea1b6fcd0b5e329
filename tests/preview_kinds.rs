//! Alpha and beta group-versions that `--runtime-config` switches on: what the test drop-in serves of them
//! is what the reference serves with the same flags. `RECORD=1` records the reference.

use anyhow::{Context, Result};
use base64::Engine as _;
use bytes::Bytes;
use http::{Method, StatusCode};
use polyplane_tests::connection::{Answer, Ask};
use polyplane_tests::golden::folder;
use polyplane_tests::normalize::is_age;
use polyplane_tests::recorded::{PlainServer, compare, records, without_identity};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, KeyPair};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// All group-versions, and the gates of kinds that are off by default.
const ALL: [&str; 2] = [
    "--runtime-config=api/all=true",
    "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true,CompositePodGroup=true,EvictionRequestAPI=true",
];
/// All group-versions while all gates are as by default: kinds with a gate that is off are not there.
const WITHOUT_GATES: [&str; 1] = ["--runtime-config=api/all=true"];
/// A choice of beta versions, of one resource, and without a version that has nothing else.
const CHOSEN: [&str; 1] = [
    "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2/resourceslices=true,\
     coordination.k8s.io/v1beta1=true,storage.k8s.io/v1beta1=true,storagemigration.k8s.io/v1=false,\
     storagemigration.k8s.io/v1beta1=true",
];

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A server: the drop-in, or the reference while a recording is made.
struct Site(PlainServer);

impl Site {
    async fn start(flags: &[&str]) -> Result<Self> {
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        Ok(Self(PlainServer::start(flags.collect()).await?))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        (accept, content_type): (&str, &str),
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let ask = Ask {
            method,
            path: path.to_owned(),
            headers: vec![
                header("accept", accept),
                header("content-type", content_type),
                header("user-agent", "preview-test/1"),
            ],
            body: body.into(),
        };
        self.0.client.raw(ask).await
    }

    /// Returns discovery of the groups, by path.
    async fn discovery(&self) -> Result<Map<String, Value>> {
        let mut found = Map::new();
        let aggregated = self
            .ask(Method::GET, "/apis", (AGGREGATED, JSON), "")
            .await?;
        found.insert(
            "aggregated".to_owned(),
            serde_json::from_slice(&aggregated.body)?,
        );
        let groups = self.0.client.get("/apis").await?.expect(200)?;
        for group in groups["groups"].as_array().into_iter().flatten() {
            for version in group["versions"].as_array().into_iter().flatten() {
                let version = version["groupVersion"].as_str().context("a version")?;
                let path = format!("/apis/{version}");
                let list = self.0.client.get(&path).await?.expect(200)?;
                found.insert(path, list);
            }
        }
        found.insert("/apis".to_owned(), groups);
        Ok(found)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_of_everything_is_that_of_the_reference() -> Result<()> {
    let site = Site::start(&ALL).await?;
    let mut found = site.discovery().await?;
    let previews: Vec<String> = found
        .keys()
        .filter(|path| is_preview(path))
        .cloned()
        .collect();
    for path in previews {
        let document = site
            .0
            .client
            .get(&format!("/openapi/v3{path}"))
            .await?
            .expect(200)?;
        found.insert(format!("openapi {path}"), outline(&document));
    }
    let versions = found.keys().filter(|path| is_preview(path)).count();
    println!(
        "preview_kinds: {} parts of discovery, {versions} of them alpha or beta",
        found.len()
    );
    compare(records(), "preview-discovery", &found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_is_not_served_while_its_gate_is_off() -> Result<()> {
    let found = Site::start(&WITHOUT_GATES).await?.discovery().await?;
    assert!(!found.contains_key("/apis/lifecycle.k8s.io/v1alpha1"));
    compare(records(), "preview-discovery-without-gates", &found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_versions_and_resources_can_be_chosen() -> Result<()> {
    let found = Site::start(&CHOSEN).await?.discovery().await?;
    compare(records(), "preview-discovery-chosen", &found)
}

/// Each seed is created, read in all forms and versions, changed in all ways, watched and deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_those_of_the_reference() -> Result<()> {
    let site = Site::start(&ALL).await?;
    let mut steps = Map::new();
    let (seeds, names) = seeds()?;
    for (at, seed) in seeds.iter().enumerate() {
        let (version, kind) = (text(seed, "apiVersion"), text(seed, "kind"));
        let lived = live(&site, seed).await;
        let lived = lived.with_context(|| format!("{version} {kind}"))?;
        let name = format!("{at:02} {version} {kind}");
        let shown = names
            .iter()
            .fold(Value::Object(lived).to_string(), |text, (value, name)| {
                text.replace(value.trim_matches('"'), name)
            });
        steps.insert(name, serde_json::from_str(&shown)?);
    }
    println!("preview_kinds: {} objects", seeds.len());
    compare(records(), "preview-objects", &steps)
}

/// Claims whose managers apply in different versions, of which one has another form: who owns what, conflicts,
/// and patches in the other version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_have_the_same_owners_in_all_versions() -> Result<()> {
    const PAIRS: [[&str; 2]; 4] = [
        ["v1", "v1beta1"],
        ["v1beta1", "v1"],
        ["v1beta2", "v1beta1"],
        ["v1beta1", "v1beta2"],
    ];
    let site = Site::start(&ALL).await?;
    let mut steps = Map::new();
    for [first, second] in PAIRS {
        let name = format!("{first}-{second}");
        steps.insert(name.clone(), owners(&site, &name, first, second).await?);
    }
    println!("preview_kinds: owners in {} pairs of versions", PAIRS.len());
    compare(records(), "preview-owners", &steps)
}

async fn owners(site: &Site, name: &str, first: &str, second: &str) -> Result<Value> {
    const APPLY: &str = "application/apply-patch+yaml";
    let path = |version: &str| {
        format!("/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims/{name}")
    };
    let (one, other) = (path(first), path(second));
    let labelled = |version: &str, label: &str| {
        let mut claim = claim(version, name);
        claim["metadata"]["labels"] = json!({"z": label});
        claim
    };
    let alone = json!({"apiVersion": format!("resource.k8s.io/{first}"), "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": {"z": "2"}}});
    let noted = json!({"metadata": {"annotations": {"q": "1"}}});
    let counted = json!({"spec": {"devices": {"requests": [{"name": "gpu", "count": 5}]}}});
    let asks = [
        (format!("{one}?fieldManager=a"), APPLY, claim(first, name)),
        (
            format!("{other}?fieldManager=b"),
            APPLY,
            claim(second, name),
        ),
        (
            format!("{other}?fieldManager=a"),
            APPLY,
            claim(second, name),
        ),
        (format!("{one}?fieldManager=c"), APPLY, alone),
        (
            format!("{other}?fieldManager=b"),
            APPLY,
            labelled(second, "1"),
        ),
        (
            format!("{other}?fieldManager=b&force=true"),
            APPLY,
            labelled(second, "1"),
        ),
        (other.clone(), "application/merge-patch+json", noted),
        (
            one.clone(),
            "application/strategic-merge-patch+json",
            counted,
        ),
    ];
    let mut answers = Map::new();
    for (at, (path, form, body)) in asks.into_iter().enumerate() {
        let answer = site
            .ask(Method::PATCH, &path, (JSON, form), body.to_string())
            .await?;
        answers.insert(format!("{at} {form}"), shown(&answer));
    }
    let last = site.ask(Method::GET, &path("v1"), (JSON, JSON), "").await?;
    answers.insert("get as v1".to_owned(), shown(&last));
    Ok(Value::Object(answers))
}

/// Returns a claim in the form of a version.
fn claim(version: &str, name: &str) -> Value {
    let mut device = json!({"deviceClassName": "x", "allocationMode": "ExactCount", "count": 2});
    let request = match version {
        "v1beta1" => {
            device["name"] = "gpu".into();
            device
        }
        _ => json!({"name": "gpu", "exactly": device}),
    };
    json!({"apiVersion": format!("resource.k8s.io/{version}"), "kind": "ResourceClaim",
        "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
}

/// Returns the objects that the golden files of these kinds are made from, and what differs in them from run
/// to run, as JSON shows it, each with its name.
fn seeds() -> Result<(Vec<Value>, BTreeMap<String, String>)> {
    let key = KeyPair::generate()?;
    let mut certificate = CertificateParams::new(Vec::new())?;
    certificate.distinguished_name = DistinguishedName::new();
    let request = certificate.serialize_request(&key)?;
    certificate.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let request = base64::engine::general_purpose::STANDARD.encode(request.der());
    let pem = certificate.self_signed(&key)?.pem();
    let path = folder().join("../src/batteries/generate/seeds/previews.yaml");
    let file = std::fs::read_to_string(path)?;
    let mut seeds = Vec::new();
    for document in file.split("\n---\n") {
        let document = document.replace("\"${CERTIFICATE_PEM}\"", &json!(pem).to_string());
        let document = document.replace("${CSR_DER}", &request);
        seeds.push(serde_saphyr::from_str(&document)?);
    }
    let names = [
        (json!(pem).to_string(), "<certificate>".to_owned()),
        (request, "<request>".to_owned()),
    ];
    Ok((seeds, names.into()))
}

/// Takes one object through its life, and returns the answers.
async fn live(site: &Site, seed: &Value) -> Result<Map<String, Value>> {
    let (version, name) = (text(seed, "apiVersion"), text(&seed["metadata"], "name"));
    let group = version.split('/').next().unwrap_or_default();
    let served = site
        .0
        .client
        .get(&format!("/apis/{version}"))
        .await?
        .expect(200)?;
    let mut resources = served["resources"].as_array().into_iter().flatten();
    let is_kind = |row: &&Value| row["kind"] == seed["kind"] && !text(row, "name").contains('/');
    let resource = resources.find(is_kind).context("the kind is not served")?;
    let plural = text(resource, "name");
    let place = match resource["namespaced"] == true {
        true => format!("namespaces/default/{plural}"),
        false => plural.to_owned(),
    };
    let list = format!("/apis/{version}/{place}");
    let one = format!("{list}/{name}");
    let mut steps = Map::new();
    let mut note = |name: &str, answer: &Answer| {
        steps.insert(name.to_owned(), shown(answer));
    };
    let json = (JSON, JSON);

    let made = site
        .ask(Method::POST, &list, json, seed.to_string())
        .await?;
    note("create", &made);
    if made.status != StatusCode::CREATED {
        return Ok(steps);
    }
    note("get", &site.ask(Method::GET, &one, json, "").await?);
    note(
        "table",
        &site.ask(Method::GET, &one, (TABLE, JSON), "").await?,
    );
    let groups = site
        .0
        .client
        .get(&format!("/apis/{group}"))
        .await?
        .expect(200)?;
    for other in groups["versions"].as_array().into_iter().flatten() {
        let other = text(other, "groupVersion");
        let path = format!("/apis/{other}/{place}/{name}");
        note(
            &format!("get as {other}"),
            &site.ask(Method::GET, &path, json, "").await?,
        );
    }
    let bytes = site.ask(Method::GET, &one, (PROTOBUF, JSON), "").await?;
    let same = site
        .ask(Method::PUT, &one, (JSON, PROTOBUF), bytes.body)
        .await?;
    note("put what protobuf shows", &same);
    let mut changed: Value = serde_json::from_slice(&same.body)?;
    changed["metadata"]["labels"]["changed"] = "by-put".into();
    note(
        "put",
        &site
            .ask(Method::PUT, &one, json, changed.to_string())
            .await?,
    );
    let merge = json!({"metadata": {"annotations": {"a": "b"}}}).to_string();
    for patch in ["merge-patch", "strategic-merge-patch"] {
        let form = format!("application/{patch}+json");
        note(
            patch,
            &site
                .ask(Method::PATCH, &one, (JSON, &form), merge.clone())
                .await?,
        );
    }
    let applied = json!({"apiVersion": version, "kind": seed["kind"],
        "metadata": {"name": name, "labels": {"applied": "yes"}}});
    let apply = format!("{one}?fieldManager=other&force=true");
    let form = (JSON, "application/apply-patch+yaml");
    note(
        "apply",
        &site
            .ask(Method::PATCH, &apply, form, applied.to_string())
            .await?,
    );
    let has_status = site
        .ask(Method::GET, &format!("{one}/status"), json, "")
        .await?;
    note("status", &has_status);
    if has_status.status == StatusCode::OK && !seed["status"].is_null() {
        let path = format!("{one}/status");
        let body = json!({"status": seed["status"]}).to_string();
        let form = (JSON, "application/merge-patch+json");
        note(
            "patch status",
            &site.ask(Method::PATCH, &path, form, body).await?,
        );
    }
    let all = format!("{list}?fieldSelector=metadata.name%3D{name}");
    note("list", &site.ask(Method::GET, &all, json, "").await?);
    let mut events = site.0.client.watch(&format!("{all}&watch=1")).await?;
    let (event, object) = events.change().await?;
    note("delete", &site.ask(Method::DELETE, &one, json, "").await?);
    let (last, _) = events.change().await?;
    let mut object = object;
    blank(&mut object);
    let watched = json!({"first": event, "object": object, "last": last});
    steps.insert("watch".to_owned(), watched);
    Ok(steps)
}

/// Returns what is compared of an answer.
fn shown(answer: &Answer) -> Value {
    let read = serde_json::from_slice(&answer.body);
    let mut body = read.unwrap_or_else(|_| String::from_utf8_lossy(&answer.body).into());
    blank(&mut body);
    let warnings = answer.headers.get_all("warning").iter();
    let warnings: Vec<&str> = warnings.filter_map(|text| text.to_str().ok()).collect();
    json!({"code": answer.status.as_u16(), "warnings": warnings, "body": body})
}

/// Takes out what differs between any two servers or runs.
fn blank(body: &mut Value) {
    without_identity(body);
    for item in items_mut(body, "items") {
        without_identity(item);
    }
    if body["kind"] == "Table" {
        drop(
            body.as_object_mut()
                .and_then(|table| table.remove("columnDefinitions")),
        );
    }
    for row in items_mut(body, "rows") {
        without_identity(&mut row["object"]);
        for cell in items_mut(row, "cells") {
            let is_age = cell.as_str().is_some_and(is_age);
            if is_age {
                *cell = "<age>".into();
            }
        }
    }
    if body["kind"] == "Status" {
        drop(
            body["details"]
                .as_object_mut()
                .and_then(|details| details.remove("uid")),
        );
    }
    blank_times(body);
}

fn items_mut<'a>(of: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = of.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// Blanks the times that the server has set.
fn blank_times(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match name.as_str() {
                    "timeAdded" | "deletionTimestamp" if member.is_string() => {
                        *member = "<time>".into()
                    }
                    _ => blank_times(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank_times),
        _ => {}
    }
}

/// Returns the shape of an OpenAPI document: its operations, and the fields of the types of its kinds.
fn outline(document: &Value) -> Value {
    let mut operations = Map::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            if let Some(id) = operation["operationId"].as_str() {
                operations.insert(format!("{method} {path}"), id.into());
            }
        }
    }
    let schemas = document["components"]["schemas"].as_object();
    let own = schemas.into_iter().flatten().filter(|(name, _)| {
        name.starts_with("io.k8s.api.") && (name.contains("alpha") || name.contains("beta"))
    });
    let mut types = Map::new();
    for (name, schema) in own {
        let mut schema = schema.clone();
        without_prose(&mut schema);
        types.insert(name.clone(), schema);
    }
    json!({"operations": operations, "types": types})
}

/// Takes the descriptions out of a schema. Upstream's texts are not kept here.
fn without_prose(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.get("description").is_some_and(Value::is_string) {
                drop(members.remove("description"));
            }
            members.values_mut().for_each(without_prose);
        }
        Value::Array(items) => items.iter_mut().for_each(without_prose),
        _ => {}
    }
}

fn is_preview(path: &str) -> bool {
    path.starts_with("/apis/") && (path.contains("alpha") || path.contains("beta"))
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}
