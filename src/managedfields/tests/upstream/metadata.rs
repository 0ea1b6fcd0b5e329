//! Field management of requests, as the tests of apimachinery call it.

use std::path::Path as FilePath;

use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::shape::BuiltIn;
use polyplane_apimachinery::value::{Str, Value};
use polyplane_managedfields::{
    Answers, Apply, ApplyError, Conflict, Conflicts, Conversion, Entries, Filter, Force, Position,
    ReplicasPaths, Step, Versions, Writer, equal, resets,
};

use crate::vectors::{Tally, Vectors, path, same};

#[test]
fn requests_have_the_entries_that_upstream_gives_them() {
    let file = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/data/schemas.json");
    let data = std::fs::read(file).expect("the generated data file is there");
    let schemas = Schemas::parse(&data).expect("generated data loads");
    let vectors = Vectors::read("metadata.jsonl.gz");
    let mut tally = Tally::default();
    for line in &vectors.lines {
        let outcome = match line.str_at(&["op"]) {
            "decode" => decode(line),
            "identity" => identity(line),
            "cap" => {
                let max = line.int_at(&["max"]).unwrap_or_default();
                let mut entries = read(&line["in"]);
                entries.cap(max as usize);
                same_entries(entries, &line["out"])
            }
            "conflict_error" => conflicts(line),
            "update" | "apply" => request(line, &schemas),
            "to_scale" => same_entries(read(&line["parent"]).to_scale(&paths(line)), &line["out"]),
            "with_scale" => {
                let (parent, scale) = (read(&line["parent"]), read(&line["scale"]));
                let got = parent.with_scale(scale, &paths(line), line.str_at(&["version"]));
                same_entries(got, &line["out"])
            }
            other => Err(format!("unknown operation {other}")),
        };
        tally.check(line, outcome);
    }
    tally.report("metadata");
}

fn read(entries: &Value) -> Entries {
    Entries::decode(entries).expect("upstream wrote these entries")
}

fn same_entries(got: Entries, wanted: &Value) -> Result<(), String> {
    let got = got.encode().unwrap_or_default();
    if equal(&got, wanted) {
        return Ok(());
    }
    same(&json::to_string(&got), &json::to_string(wanted))
}

fn decode(line: &Value) -> Result<(), String> {
    match (Entries::decode(&line["in"]), line["error"].as_str()) {
        (Ok(entries), None) => same_entries(entries, &line["out"]),
        (Ok(entries), Some(error)) => Err(format!("got {entries:?}\n  want {error}")),
        (Err(error), wanted) => same(&error.to_string(), wanted.unwrap_or_default()),
    }
}

/// Compares the key under which an entry's manager is known.
fn identity(line: &Value) -> Result<(), String> {
    let mut entry = line["in"].clone();
    entry.set(&["fieldsType"], "FieldsV1");
    entry.set(&["fieldsV1"], polyplane_apimachinery::json!({"f:a": {}}));
    if entry.str_at(&["apiVersion"]).is_empty() {
        // Only the identities of those who apply say no version.
        assert_eq!(entry.str_at(&["operation"]), "Apply");
        entry.set(&["apiVersion"], "v1");
    }
    let entries = read(&Value::Array(vec![entry]));
    let mut keys = entries.managers().iter().map(|(key, _)| key);
    same(keys.next().unwrap_or_default(), line.str_at(&["out"]))
}

fn conflicts(line: &Value) -> Result<(), String> {
    let list = line.items_at(&["in"]).iter().map(|pair| Conflict {
        manager: pair[0].as_str().expect("a manager").into(),
        fields: [path(&pair[1]).0.as_slice()].into_iter().collect(),
    });
    let mut list: Vec<Conflict> = list.collect();
    list.sort_by(|a, b| a.manager.cmp(&b.manager));
    same(&Conflicts(list).message(), line.str_at(&["out", "message"]))
}

fn paths(line: &Value) -> ReplicasPaths {
    let all = line["paths"].as_object().expect("there are paths").iter();
    all.map(|(version, steps)| (Str::from(version), (!steps.is_null()).then(|| path(steps))))
        .collect()
}

struct Kind<'s, 'l> {
    schemas: &'s Schemas,
    line: &'l Value,
}

impl<'s> Versions<'s> for Kind<'s, '_> {
    type Shape = BuiltIn<'s>;

    fn position(&self, version: &str) -> Option<Position<BuiltIn<'s>>> {
        let (group, kind) = (self.line.str_at(&["group"]), self.line.str_at(&["kind"]));
        let version = version.rsplit('/').next()?;
        let id = self.schemas.kind(group, version, kind)?;
        Some(Position::root(BuiltIn::root(self.schemas, id)))
    }

    fn filter(&self, _version: &str) -> Option<&Filter> {
        None
    }

    fn convert(&self, _object: &Value, _from: &str, _to: &str) -> Conversion {
        Conversion::Same
    }
}

fn request(line: &Value, schemas: &Schemas) -> Result<(), String> {
    let error = line.str_at(&["error"]);
    let refused_before = ["invalid object type", "metadata.managedFields must be nil"];
    if refused_before.iter().any(|text| error.starts_with(text)) {
        return Ok(()); // The caller refuses these before anything is applied.
    }
    let kind = Kind { schemas, line };
    let version = match line.str_at(&["group"]) {
        "" => line.str_at(&["version"]).to_owned(),
        group => format!("{group}/{}", line.str_at(&["version"])),
    };
    let (mut live, mut object) = (line["live"].clone(), line["object"].clone());
    let stored = live.remove(&["metadata", "managedFields"]);
    let sent = object.remove(&["metadata", "managedFields"]);
    let empty = polyplane_apimachinery::json!({
        "apiVersion": (version.as_str()), "kind": (line.str_at(&["kind"]))
    });
    let writer = Writer {
        name: line.str_at(&["manager"]),
        subresource: line.str_at(&["subresource"]),
        now: "2100-01-01T00:00:00Z",
    };
    let answers = Answers::default();
    let wanted = &line["out"];
    let stored = read(stored.as_ref().unwrap_or(&Value::Null));
    if line.str_at(&["op"]) == "update" {
        let mut entries = started(stored, sent, writer.subresource);
        let is_stored = !live.str_at(&["metadata", "uid"]).is_empty();
        if !(entries.is_empty() && is_stored) {
            let objects = (&live, &object);
            match entries.update(&kind, &version, writer, objects, &answers) {
                Ok(Step::Done(())) => {}
                other => return Err(format!("{other:?}")),
            }
        }
        return outcome(&object, entries, wanted);
    }
    let request = Apply {
        versions: &kind,
        version: &version,
        writer,
        empty: &empty,
        live: &live,
        wanted: &object,
        force: match line.bool_at(&["force"]) {
            true => Force::Yes,
            false => Force::No,
        },
    };
    let mut entries = stored;
    match entries.apply(request, &answers) {
        Ok(Step::Done(merged)) => {
            let mut result = merged.unwrap_or_else(|| live.clone());
            request.sync_last_applied(&mut result, &object, 256 << 10);
            outcome(&result, entries, wanted)
        }
        Err(ApplyError::Conflicts(conflicts)) => same(&conflicts.message(), error),
        other => Err(format!("{other:?}")),
    }
}

/// Returns the entries that an update starts with: those that the client sent, if they say anything
/// and it may send them.
fn started(stored: Entries, sent: Option<Value>, subresource: &str) -> Entries {
    let Some(sent) = sent.filter(|_| subresource.is_empty()) else {
        return stored;
    };
    if resets(&sent) {
        return Entries::default();
    }
    match Entries::decode(&sent) {
        Ok(entries) if !entries.is_empty() => entries,
        Ok(_) | Err(_) => stored,
    }
}

/// Compares an object and its entries, of which times only as far as they are there.
fn outcome(object: &Value, entries: Entries, wanted: &Value) -> Result<(), String> {
    let mut wanted = wanted.clone();
    let wanted_entries = wanted.remove(&["metadata", "managedFields"]);
    let comparable = |entries: Option<Value>| {
        let mut list = entries.and_then(|mut list| list.as_array_mut().map(std::mem::take));
        let list = list.as_mut().map(std::mem::take).unwrap_or_default();
        let mut lines: Vec<String> = list
            .into_iter()
            .map(|mut entry| {
                if let Some(time) = entry.get_mut("time") {
                    *time = Value::string("now");
                }
                json::to_string(&entry)
            })
            .collect();
        lines.sort();
        lines.join("\n       ")
    };
    same(&comparable(entries.encode()), &comparable(wanted_entries))?;
    let mut object = object.clone();
    for tree in [&mut object, &mut wanted] {
        if tree
            .at(&["metadata"])
            .and_then(Value::as_object)
            .is_some_and(|map| map.is_empty())
        {
            tree.remove(&["metadata"]);
        }
    }
    if equal(&object, &wanted) {
        return Ok(());
    }
    same(&json::to_string(&object), &json::to_string(&wanted))
}
