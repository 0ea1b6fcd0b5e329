//! Whole writes, with conversions.

use std::collections::BTreeMap;

use polyplane_apimachinery::json;
use polyplane_apimachinery::value::{Map, Str, Value};
use polyplane_managedfields::{
    Answers, ApplyError, Conversion, Filter, Force, Need, Position, Step, Versions, Write, apply,
    equal, update,
};

use crate::schema;
use crate::vectors::{Tally, Vectors, managers, pattern, same, set, show_managers};

/// Rounds of conversions that one write may need.
const ROUNDS_MAX: usize = 5;

#[test]
fn writes_have_the_outcome_that_upstream_gives_them() {
    let vectors = Vectors::read("operations.jsonl.gz");
    let mut tally = Tally::default();
    let mut rounds = [0; ROUNDS_MAX + 1];
    for line in &vectors.lines {
        tally.check(line, write(line, &vectors, &mut rounds));
    }
    println!("writes by rounds of conversions: {rounds:?}");
    tally.report("operations");
}

/// The versions of a test of upstream.
struct Kinds<'s, 'l> {
    line: &'l Value,
    schema: &'s schema::Schema,
    /// The positions of versions; none for those that are missing.
    roots: BTreeMap<Str, Option<usize>>,
    request: usize,
    filters: BTreeMap<Str, Filter>,
}

impl<'s> Versions<'s> for Kinds<'s, '_> {
    type Shape = schema::Position<'s>;

    fn position(&self, version: &str) -> Option<Position<Self::Shape>> {
        let root = self.roots.get(version).copied();
        let root = root.unwrap_or_else(|| (!self.is_selective()).then_some(self.request))?;
        Some(Position::root(self.schema.at(root)))
    }

    fn filter(&self, version: &str) -> Option<&Filter> {
        self.filters.get(version)
    }

    /// Leaves all conversions to calls, as webhooks do.
    fn convert(&self, _object: &Value, _from: &str, _to: &str) -> Conversion {
        Conversion::Ask
    }
}

impl Kinds<'_, '_> {
    fn is_selective(&self) -> bool {
        self.line.str_at(&["converter"]).contains("specificVersion")
    }

    /// Converts as the converter of the test does.
    fn call(&self, need: &Need, version: &str) -> Option<Value> {
        if self.roots.get(version) == Some(&None) {
            return None;
        }
        let converter = self.line.str_at(&["converter"]);
        let converter = converter.rsplit('.').next().unwrap_or_default();
        match converter {
            "dummyConverter" | "specificVersionConverter" => Some(need.object.clone()),
            "renamingConverter" => Some(rename(&need.object, &|name| match name
                .strip_suffix(need.from.as_str())
            {
                Some(stem) => format!("{stem}{version}"),
                None => name.to_owned(),
            })),
            "reliantFieldsConverter" | "versionDoesntMatchTypenameConverter" => {
                let names = ["required_field_bar", "field_foo_rely_on_bar"];
                let (from, to) = match version {
                    "v1" => (names[0], names[1]),
                    _ => (names[1], names[0]),
                };
                let is_there = need.object.get(from).is_some();
                assert!(
                    is_there || version != "v1",
                    "the conversion fails: {need:?}"
                );
                Some(rename(&need.object, &|name| name.replace(from, to)))
            }
            "repeatingConverter" => {
                let times: usize = version[1..].parse().expect("a version has a number");
                let is_root = |name: &str| need.object.get(name).is_some();
                Some(rename(&need.object, &|name| match is_root(name) {
                    true => name.to_owned(),
                    false => name[..1].repeat(times),
                }))
            }
            other => panic!("unknown converter {other}"),
        }
    }
}

fn rename(value: &Value, name: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::Object(map) => {
            let members = map
                .iter()
                .map(|(key, value)| (name(key), rename(value, name)));
            Value::Object(members.collect::<Map>())
        }
        Value::Array(items) => items
            .iter()
            .map(|item| rename(item, name))
            .collect::<Vec<_>>()
            .into(),
        other => other.clone(),
    }
}

fn write(line: &Value, vectors: &Vectors, rounds: &mut [usize]) -> Result<(), String> {
    let mut schema = vectors.schema(line);
    let versions = line["versions"].as_object().expect("there are versions");
    let roots: BTreeMap<Str, Option<usize>> = versions
        .iter()
        .map(|(version, reference)| {
            let root = (!reference.is_null()).then(|| schema.resolve(reference));
            (version.into(), root)
        })
        .collect();
    let request = roots[line.str_at(&["version"])].expect("the version of the request exists");
    let filters = line["filters"].as_object().expect("there are filters");
    let filters = filters.iter().map(|(version, filter)| {
        let filter = match filter.get("exclude") {
            Some(excluded) => Filter::Exclude(set(excluded)),
            None => Filter::Include(pattern(&filter["include"])),
        };
        (Str::from(version), filter)
    });
    let kinds = Kinds {
        line,
        schema: &schema,
        roots,
        request,
        filters: filters.collect(),
    };
    let owned = managers(&line["managers"]);
    let write = Write {
        versions: &kinds,
        version: line.str_at(&["version"]),
        manager: line.str_at(&["manager"]),
        live: &line["live"],
        managers: &owned,
    };
    let mut answers = Answers::default();
    for count in rounds {
        let needs = match line.str_at(&["op"]) {
            "update" => match update(write, &line["object"], &answers) {
                Ok(Step::Done(got)) => {
                    *count += 1;
                    let wanted = managers(&line["out"]);
                    return same(&show_managers(&got), &show_managers(&wanted));
                }
                Ok(Step::Need(needs)) => needs,
                Err(error) => return same(&error.to_string(), line.str_at(&["error"])),
            },
            _ => {
                let force = match line.bool_at(&["force"]) {
                    true => Force::Yes,
                    false => Force::No,
                };
                match apply(write, &line["object"], force, &answers) {
                    Ok(Step::Need(needs)) => needs,
                    Ok(Step::Done(got)) => {
                        *count += 1;
                        return applied(&got, line);
                    }
                    Err(ApplyError::Conflicts(conflicts)) => {
                        return same(&conflicts.to_string(), line.str_at(&["conflicts"]));
                    }
                    Err(error) => return same(&error.to_string(), line.str_at(&["error"])),
                }
            }
        };
        for need in &needs {
            for version in &need.versions {
                answers.insert(
                    need.subject.clone(),
                    version.clone(),
                    kinds.call(need, version),
                );
            }
        }
    }
    Err(format!("more than {ROUNDS_MAX} rounds of conversions"))
}

fn applied(got: &polyplane_managedfields::Applied, line: &Value) -> Result<(), String> {
    if line["out"].as_object().is_none() {
        return Err(format!("was applied: {got:?}"));
    }
    let wanted = managers(&line["out"]);
    same(&show_managers(&got.managers), &show_managers(&wanted))?;
    let live = got.object.as_ref().unwrap_or(&line["live"]);
    let wanted = line.get("result").unwrap_or(&line["live"]);
    if equal(live, wanted) {
        return Ok(());
    }
    same(&json::to_string(live), &json::to_string(wanted))
}
