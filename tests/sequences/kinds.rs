//! The built-in kinds that sequences write, with their example objects.
//!
//! Owns the reading of the generated rows and of the examples that the generator keeps, and the
//! list of kinds that are left out.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Kinds that are not compared. Controllers inside kube-apiserver write these objects at times of
/// their own, so two runs of the reference differ too.
pub const LEFT_OUT: [(&str, &str); 6] = [
    ("APIService", "its availability is written by a controller"),
    (
        "CustomResourceDefinition",
        "its status is written by controllers",
    ),
    (
        "FlowSchema",
        "a controller writes whether its priority level exists",
    ),
    (
        "IPAddress",
        "a controller deletes those that belong to no Service",
    ),
    (
        "Namespace",
        "it stays Terminating without the namespace controller",
    ),
    ("ServiceCIDR", "a controller writes status and finalizers"),
];

/// One kind in all its served versions.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The kind's name.
    pub name: String,
    /// The versions; at least one has examples.
    pub versions: Vec<Version>,
}

/// One served version of a kind.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// The API version.
    pub api_version: String,
    /// The path of the collection, with `{ns}` for the namespace.
    pub collection: String,
    /// Whether there is a status subresource.
    pub status: bool,
    /// Whether there is a scale subresource.
    pub scale: bool,
    /// Whether an update must name the version that it replaces.
    pub needs_version: bool,
    /// The example objects, without namespaces and with `{name}` as their names.
    pub examples: Vec<Value>,
}

/// Reads the kinds that sequences write.
///
/// # Errors
/// Returns an error if the rows or the examples cannot be read.
pub fn load() -> Result<Vec<Kind>> {
    let batteries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/batteries");
    let mut examples = examples(&batteries.join("generate/seeds"))?;
    let rows = std::fs::read_to_string(batteries.join("data/rows.json"))?;
    let rows: Value = serde_json::from_str(&rows).context("rows.json is damaged")?;
    let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
    for group in rows["groups"].as_array().into_iter().flatten() {
        for version in group["versions"].as_array().into_iter().flatten() {
            for row in version["resources"].as_array().into_iter().flatten() {
                let name = row["kind"].as_str().unwrap_or_default();
                let is_left_out = LEFT_OUT.iter().any(|(left_out, _)| *left_out == name);
                if row["storage"].is_null() || row["verbs"].as_array().is_none() || is_left_out {
                    continue;
                }
                let mut served = served(&group["name"], &version["version"], row);
                let key = (served.api_version.clone(), name.to_owned());
                served.examples = examples.remove(&key).unwrap_or_default();
                let kind = kinds
                    .entry(row["storage"]["resource"].to_string())
                    .or_insert_with(|| Kind {
                        name: name.to_owned(),
                        versions: Vec::new(),
                    });
                kind.versions.push(served);
            }
        }
    }
    let mut kinds: Vec<Kind> = kinds.into_values().collect();
    for kind in &mut kinds {
        kind.versions.retain(|version| !version.examples.is_empty());
    }
    kinds.retain(|kind| !kind.versions.is_empty());
    Ok(kinds)
}

fn served(group: &Value, version: &Value, row: &Value) -> Version {
    let (group, version) = (
        group.as_str().unwrap_or_default(),
        version.as_str().unwrap_or_default(),
    );
    let (api_version, prefix) = match group {
        "" => (version.to_owned(), "/api"),
        group => (format!("{group}/{version}"), "/apis"),
    };
    let namespace = match row["namespaced"].as_bool() {
        Some(true) => "/namespaces/{ns}",
        _ => "",
    };
    let resource = row["name"].as_str().unwrap_or_default();
    let has = |name: &str| {
        let subresources = row["subresources"].as_array().into_iter().flatten();
        subresources.into_iter().any(|sub| sub["name"] == name)
    };
    Version {
        collection: format!("{prefix}/{api_version}{namespace}/{resource}"),
        api_version,
        status: has("status"),
        scale: has("scale"),
        needs_version: row["strategy"]["unconditionalUpdate"] != true,
        examples: Vec::new(),
    }
}

/// Reads the example objects, by version and kind.
fn examples(folder: &Path) -> Result<BTreeMap<(String, String), Vec<Value>>> {
    let mut found: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    let marks = marks()?;
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        let text = std::fs::read_to_string(file.path())?;
        for document in text.split("\n---\n") {
            let mut object: Value = serde_saphyr::from_str(document)
                .with_context(|| format!("{} is not YAML", file.path().display()))?;
            tame(&mut object, &marks);
            let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            let key = (text("apiVersion"), text("kind"));
            found.entry(key).or_default().push(object);
        }
    }
    Ok(found)
}

/// The values for marks such as `${CSR}` in the examples.
fn marks() -> Result<Vec<(&'static str, String)>> {
    let key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(Vec::new())?;
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let request = parameters.serialize_request(&key)?;
    let certificate = parameters.self_signed(&key)?.pem();
    Ok(vec![
        ("${CERTIFICATE}", STANDARD.encode(&certificate)),
        ("${CERTIFICATE_PEM}", certificate),
        ("${CSR}", STANDARD.encode(request.pem()?)),
        ("${CSR_DER}", STANDARD.encode(request.der())),
    ])
}

/// Takes from an example what would act on other objects than itself, and its name and namespace.
fn tame(object: &mut Value, marks: &[(&'static str, String)]) {
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    walk(object, &mut |key, value| {
        if let Some((_, known)) = marks.iter().find(|(mark, _)| value.as_str() == Some(mark)) {
            *value = json!(known);
        }
        if key == "namespace" && value == "default" {
            *value = json!("{ns}");
        }
    });
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    metadata.remove("namespace");
    metadata.remove("uid");
    // Some kinds prescribe the beginning of a name.
    let name = match name.contains(':') {
        true => json!(format!("{name}-{{name}}")),
        false => json!("{name}"),
    };
    metadata.insert("name".to_owned(), name);
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.retain(|name, _| !name.contains("is-default-class"));
    }
    let nobody = json!({"matchLabels": {"sequences": "none"}});
    let hooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
    for hook in hooks.into_iter().flatten() {
        hook["objectSelector"] = nobody.clone();
    }
    if object["spec"]["policyName"].is_string() {
        object["spec"]["policyName"] = json!("no-such-policy");
    }
    if let Some(members) = object.as_object_mut() {
        members.remove("globalDefault");
    }
    // An address and a port can belong to one Service only.
    if object["kind"] == "Service" && object["spec"]["clusterIP"] != "None" {
        walk(object, &mut |_, value| {
            if let Some(members) = value.as_object_mut() {
                members.retain(|name, _| {
                    !["clusterIP", "clusterIPs", "nodePort"].contains(&name.as_str())
                });
            }
        });
    }
    if object["kind"] == "Pod"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        // Plug-ins compute from other objects what these mean.
        for name in [
            "priority",
            "priorityClassName",
            "runtimeClassName",
            "overhead",
        ] {
            spec.remove(name);
        }
    }
}

fn walk(value: &mut Value, visit: &mut impl FnMut(&str, &mut Value)) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                visit(name, member);
                walk(member, visit);
            }
        }
        Value::Array(items) => {
            for item in items {
                visit("", item);
                walk(item, visit);
            }
        }
        _ => {}
    }
}
