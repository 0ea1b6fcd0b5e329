//! Vectors and the parts that they are made of.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path as FilePath;

use polyplane_apimachinery::json;
use polyplane_apimachinery::value::{Str, Value};
use polyplane_managedfields::{
    FieldSet, Managers, Path, PathElement, Pattern, PatternStep, VersionedSet,
};

use crate::schema::Schema;

/// The lines of one file.
pub struct Vectors {
    pub lines: Vec<Value>,
    schemas: BTreeMap<Str, Value>,
}

impl Vectors {
    pub fn read(name: &str) -> Self {
        let path = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        let file = std::fs::File::open(path.join(name)).expect("the vectors are there");
        let mut text = String::new();
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .expect("vectors are gzip and UTF-8");
        let mut vectors = Self {
            lines: Vec::new(),
            schemas: BTreeMap::new(),
        };
        for line in text.lines().map(tree) {
            if line.str_at(&["op"]) == "schema" {
                vectors
                    .schemas
                    .insert(line.str_at(&["id"]).into(), line["types"].clone());
            } else {
                vectors.lines.push(line);
            }
        }
        vectors
    }

    /// Returns the types of a schema.
    pub fn types(&self, id: &str) -> Value {
        self.schemas[id].clone()
    }

    /// Returns the schema that a line names.
    pub fn schema(&self, line: &Value) -> Schema {
        Schema::new(&self.schemas[line.str_at(&["schema"])])
    }
}

pub fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("a vector is JSON").value
}

/// Counts what agrees, and names what does not.
#[derive(Default)]
pub struct Tally {
    passed: BTreeMap<String, (usize, usize)>,
    failures: Vec<String>,
}

impl Tally {
    pub fn check(&mut self, line: &Value, outcome: Result<(), String>) {
        let counts = self.passed.entry(line.str_at(&["op"]).into()).or_default();
        counts.1 += 1;
        match outcome {
            Ok(()) => counts.0 += 1,
            Err(difference) => self
                .failures
                .push(format!("{line}\n  {difference}", line = show(line))),
        }
    }

    pub fn report(self, name: &str) {
        for (operation, (passed, total)) in &self.passed {
            println!("{name} {operation}: {passed} of {total}");
        }
        let total: usize = self.passed.values().map(|counts| counts.1).sum();
        assert!(total > 0, "{name} has vectors");
        assert!(
            self.failures.is_empty(),
            "{} of {total} differ:\n{}",
            self.failures.len(),
            self.failures[..self.failures.len().min(25)].join("\n")
        );
    }
}

fn show(line: &Value) -> String {
    let mut text = json::to_string(line);
    if text.len() > 1500 {
        let end = (0..=1500).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
    }
    text
}

/// Returns an error that names both, unless they are equal.
pub fn same(got: &str, wanted: &str) -> Result<(), String> {
    if got == wanted {
        return Ok(());
    }
    Err(format!("got  {got}\n  want {wanted}"))
}

pub fn text(set: &FieldSet) -> String {
    String::from_utf8(set.to_json()).expect("sets are text")
}

pub fn set(value: &Value) -> FieldSet {
    match value.as_str() {
        None => FieldSet::EMPTY,
        Some(text) => FieldSet::from_json(text.as_bytes()).expect("upstream wrote this set"),
    }
}

pub fn element(value: &Value) -> PathElement {
    match value[0].as_str() {
        Some("f") => PathElement::field(value[1].as_str().expect("a name")),
        Some("k") => {
            PathElement::key(value[1].as_array().unwrap_or_default().iter().map(|field| {
                (
                    Str::from(field[0].as_str().expect("a name")),
                    field[1].clone(),
                )
            }))
        }
        Some("v") => PathElement::value(value[1].clone()),
        Some("i") => PathElement::Index(value[1].as_int().expect("an index")),
        other => panic!("unknown element {other:?}"),
    }
}

pub fn path(value: &Value) -> Path {
    Path(
        value
            .as_array()
            .unwrap_or_default()
            .iter()
            .map(element)
            .collect(),
    )
}

pub fn pattern(value: &Value) -> Pattern {
    let Some(steps) = value.as_array() else {
        return Pattern::All;
    };
    let steps = steps.iter().map(|step| {
        let own = match &step[0] {
            Value::Null => PatternStep::Any,
            own => PatternStep::Element(element(own)),
        };
        (own, pattern(&step[1]))
    });
    Pattern::Steps(steps.collect())
}

pub fn managers(value: &Value) -> Managers {
    let all = value
        .as_object()
        .map(|map| map.iter())
        .into_iter()
        .flatten();
    all.map(|(manager, owned)| {
        let owned = VersionedSet {
            set: set(&owned["set"]),
            version: owned.str_at(&["version"]).into(),
            is_applied: owned.bool_at(&["applied"]),
        };
        (Str::from(manager), owned)
    })
    .collect()
}

pub fn show_managers(managers: &Managers) -> String {
    let lines = managers.iter().map(|(manager, owned)| {
        let applied = owned.is_applied;
        format!("{manager} {} {applied} {}", owned.version, text(&owned.set))
    });
    lines.collect::<Vec<_>>().join("\n       ")
}
