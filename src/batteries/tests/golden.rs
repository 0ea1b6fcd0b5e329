//! Measures, kind by kind, how many of upstream's answers this crate gives too.
//!
//! `golden/` has upstream's answers (see `generate/README.md`) to random objects,
//! `golden/upstream/` those to the inputs of upstream's own validation tests. For each case the
//! same object is decoded, defaulted, prepared, validated and printed here. The test prints the
//! share of equal answers for each file; it must not be below the one in `floor.json`.
//!
//! `KIND=core.v1.Pod SHOW=5 cargo test -p polyplane-batteries --test golden -- --nocapture` shows
//! the first differences of one file (`KIND=upstream/core.v1.Pod` of the other folder).
//! `RECORD=1` writes the shares to `floor.json`.

use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::{gates_of_kinds, preview_kinds, tenant_kinds};
use polyplane_plane::Snapshot;
use polyplane_registry::answer::negotiate::BodySyntax;
use polyplane_registry::plan::prepare;
use polyplane_registry::request::body;
use polyplane_registry::request::body::Expected;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::settings::PlaneSettings;
use polyplane_registry::strategy::Context;
use polyplane_registry::{KindTable, Resource, Scope};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod chance;
mod floor;
mod shared;

use floor::{MEASURES, Share, check_floor, report};
use shared::{plane, recorded};

struct Bench {
    kinds: Arc<KindTable>,
    settings: PlaneSettings,
    user: UserInfo,
    cut: Snapshot,
    warnings: Warnings,
    shown: usize,
}

#[test]
fn answers_agree_with_upstream() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let only = std::env::var("KIND").ok();
    let mut bench = Bench {
        kinds: tenant_kinds(),
        settings: shared::settings(16, (30000, 32767), ""),
        user: UserInfo::new("admin", &["system:masters", "system:authenticated"]),
        cut: plane::empty(),
        warnings: Warnings::default(),
        shown: std::env::var("SHOW")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
    };
    // Upstream answered with the gates of all kinds on.
    let gates = gates_of_kinds();
    let gates: Vec<&str> = gates.iter().map(|gate| gate.as_str()).collect();
    let previews = Arc::new(preview_kinds(&gates).expect("upstream has these gates"));
    let mut shares: BTreeMap<String, [Share; 6]> = BTreeMap::new();
    for (prefix, folder) in [("", folder.clone()), ("upstream/", folder.join("upstream"))] {
        for path in golden_files(&folder) {
            let file = path.file_name().and_then(|name| name.to_str());
            let kind = file.expect("names are UTF-8").trim_end_matches(ENDING);
            let name = format!("{prefix}{kind}");
            if only.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            bench.kinds = tenant_kinds();
            if bench.found(kind).is_none() {
                bench.kinds = Arc::clone(&previews);
            }
            let share = shares.entry(name).or_default();
            for case in recorded::cases(&path) {
                bench.case(kind, &case, share);
            }
        }
    }
    report(&shares);
    if only.is_none() {
        check_floor(&shares);
    }
}

const ENDING: &str = ".jsonl.gz";

fn golden_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the golden files are there");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.to_str().is_some_and(|name| name.ends_with(ENDING)))
        .collect();
    files.sort();
    files
}

impl Bench {
    fn row(&self, name: &str) -> &Resource {
        let found = self.found(name);
        found.unwrap_or_else(|| panic!("{name} has no row"))
    }

    fn found(&self, name: &str) -> Option<&Resource> {
        let (rest, kind) = name.rsplit_once('.').expect("group.version.Kind");
        let (group, version) = rest.rsplit_once('.').expect("group.version");
        let group = if group == "core" { "" } else { group };
        let mut rows = self.kinds.resources().iter();
        let found =
            rows.find(|row| row.group == group && row.version == version && row.kind == kind);
        found.map(|row| &**row)
    }

    fn case(&mut self, name: &str, case: &Value, shares: &mut [Share; 6]) {
        let results = match case.str_at(&["op"]) {
            "create" => self.create(name, case),
            "update" => self.update(name, case, ""),
            sub @ ("status" | "resize" | "ephemeralcontainers" | "approval" | "finalize") => {
                self.update(name, case, sub)
            }
            "row" => self.print(name, case),
            "decode" => self.decode(name, case),
            _ => Vec::new(),
        };
        for (measure, ours, theirs) in results {
            let at = MEASURES
                .iter()
                .position(|known| *known == measure)
                .expect("a known measure");
            shares[at].all += 1;
            if ours == theirs {
                shares[at].agree += 1;
            } else if self.shown > 0 {
                self.shown -= 1;
                println!(
                    "--- {name} {} {measure}\nin:     {}",
                    case.str_at(&["op"]),
                    show(&case["in"])
                );
                if case.get("old").is_some() {
                    println!("old:    {}", show(&case["old"]));
                }
                println!("ours:   {ours}\ntheirs: {theirs}");
            }
        }
    }

    fn context<'a>(&'a self, row: &'a Resource, subresource: &'a str) -> Context<'a> {
        // The time at which the recorded requests were made does not matter, because ages are not
        // compared.
        Context {
            now: 1_715_000_000,
            user: &self.user,
            subresource,
            persistence: Persistence::Store,
            lacks_labels: false,
            metadata_blocks_rules: false,
            plane: "p",
            settings: &self.settings,
            schemas: &row.schemas,
            features: &row.features,
            kinds: &self.kinds,
            warnings: &self.warnings,
        }
    }

    /// Decodes an object and sets defaults; returns `None` if upstream could not decode it either.
    fn arrive(&self, row: &Resource, object: &Value) -> Option<Value> {
        let mut tree = object.clone();
        self.kinds
            .schemas()
            .decode(row.definition, &mut tree, Empties::Null)
            .ok()?;
        prepare::default(row, row.definition, &mut tree).expect("they are small");
        self.kinds
            .schemas()
            .decode(row.definition, &mut tree, Empties::Null)
            .ok()?;
        Some(tree)
    }

    fn expect_tree(&self, row: &Resource, object: &Value) -> String {
        let mut tree = object.clone();
        chance::fill_times(&mut tree);
        let read = self
            .kinds
            .schemas()
            .decode(row.definition, &mut tree, Empties::Null);
        assert!(
            read.is_ok(),
            "upstream's answer fits its own schema: {read:?}"
        );
        blank(&mut tree);
        show(&tree)
    }

    fn served(&self, row: &Resource, tree: Value) -> Value {
        if row.converts() {
            row.strategy.to_served(&row.version, tree)
        } else {
            tree
        }
    }

    fn stored(&self, row: &Resource, tree: Value) -> Value {
        if row.converts() {
            row.strategy.to_stored(&row.version, tree)
        } else {
            tree
        }
    }

    fn create(&self, name: &str, case: &Value) -> Vec<(&'static str, String, String)> {
        let row = self.row(name);
        let out = &case["out"];
        let mut results = Vec::new();
        let Some(mut tree) = self.arrive(row, &case["in"]) else {
            return results;
        };
        if out.get("defaulted").is_some() {
            let mut shown = tree.clone();
            blank(&mut shown);
            results.push((
                "defaults",
                show(&shown),
                self.expect_tree(row, &out["defaulted"]),
            ));
        }
        if row.is_virtual() || out.get("failure").is_some() {
            return results;
        }
        settle_namespace(row, &mut tree, "");
        polyplane_registry::metadata::wipe_system_fields(&mut tree);
        polyplane_registry::metadata::fill_system_fields(&mut tree, UID.into(), TIME);
        if tree.str_at(&["metadata", "name"]).is_empty()
            && !tree.str_at(&["metadata", "generateName"]).is_empty()
        {
            let name = format!("{}x7x7x", tree.str_at(&["metadata", "generateName"]));
            tree.set(&["metadata", "name"], name);
        }
        let mut tree = self.stored(row, tree);
        let context = self.context(row, "");
        prepare::create(row, &context, &mut tree);
        let allocated = with_name(&mut tree, |tree| {
            row.strategy.allocate(&context, &self.cut, tree, None)
        });
        let canonical = prepare::canonical(row, &mut tree);
        let errors = match (allocated, canonical) {
            (Err(error), _) | (_, Err(error)) => refused(&error),
            (Ok(_), Ok(_)) => prepare::validate_create(row, &context, &tree)
                .iter()
                .map(|error| {
                    (
                        error.kind.reason().to_owned(),
                        error.field.to_string(),
                        error.to_string(),
                    )
                })
                .collect(),
        };
        self.compare_write(row, case, tree, &errors, &mut results);
        results
    }

    fn update(
        &self,
        name: &str,
        case: &Value,
        subresource: &str,
    ) -> Vec<(&'static str, String, String)> {
        let row = self.row(name);
        let mut results = Vec::new();
        let out = &case["out"];
        let (Some(tree), Some(old)) = (
            self.arrive(row, &case["in"]),
            self.arrive(row, &case["old"]),
        ) else {
            return results;
        };
        if out.get("failure").is_some() || out["status"].str_at(&["reason"]) == "BadRequest" {
            // A body that contradicts the path is refused before this code is reached.
            return results;
        }
        let (mut tree, mut old) = (tree, old);
        settle_namespace(row, &mut old, "");
        settle_namespace(row, &mut tree, old.str_at(&["metadata", "namespace"]));
        let (mut tree, mut old) = (self.stored(row, tree), self.stored(row, old));
        tree.set(&["metadata", "resourceVersion"], "1");
        old.set(&["metadata", "resourceVersion"], "1");
        let context = self.context(row, subresource);
        prepare::update(row, &context, &mut tree, &old);
        let allocated = if subresource.is_empty() {
            with_name(&mut tree, |tree| {
                let allocated = row.strategy.allocate(&context, &self.cut, tree, Some(&old));
                allocated.map(|_| ())
            })
        } else {
            row.strategy
                .admit_subresource(&context, &self.cut, &tree, &old)
        };
        let errors = match allocated.and_then(|()| prepare::canonical(row, &mut tree)) {
            Err(error) => refused(&error),
            Ok(_) => prepare::validate_update(row, &context, &tree, &old)
                .iter()
                .map(|error| {
                    (
                        error.kind.reason().to_owned(),
                        error.field.to_string(),
                        error.to_string(),
                    )
                })
                .collect(),
        };
        self.compare_write(row, case, tree, &errors, &mut results);
        results
    }

    fn compare_write(
        &self,
        row: &Resource,
        case: &Value,
        tree: Value,
        errors: &[(String, String, String)],
        results: &mut Vec<(&'static str, String, String)>,
    ) {
        let out = &case["out"];
        let theirs = out.items_at(&["errors"]);
        let mut kinds: Vec<String> = errors
            .iter()
            .map(|(kind, field, _)| format!("{kind} {field}"))
            .collect();
        let mut their_kinds: Vec<String> = theirs
            .iter()
            .map(|error| format!("{} {}", error.str_at(&["type"]), error.str_at(&["field"])))
            .collect();
        // A refusal that is not about fields has only a message.
        let refusal = out["status"].str_at(&["message"]);
        if theirs.is_empty() && !refusal.is_empty() {
            their_kinds.push(" ".to_owned());
        }
        kinds.sort();
        their_kinds.sort();
        results.push(("errors", kinds.join("; "), their_kinds.join("; ")));
        if !their_kinds.is_empty() {
            let texts: Vec<&str> = errors.iter().map(|(_, _, text)| text.as_str()).collect();
            let mut their_texts: Vec<&str> = theirs
                .iter()
                .map(|error| error.str_at(&["message"]))
                .collect();
            if theirs.is_empty() {
                their_texts.push(refusal);
            }
            results.push(("texts", texts.join("; "), their_texts.join("; ")));
            return;
        }
        if out.get("prepared").is_none() {
            return;
        }
        if errors.is_empty() {
            if let Some(cells) = out.get("row").and_then(Value::as_array) {
                let ours = blank_ages(print(row, &tree, &case["in"]), cells);
                results.push(("columns", show(&ours), show(&Value::Array(cells.to_vec()))));
            }
            let mut tree = self.served(row, tree);
            chance::blank_allocations(row, &mut tree, &case["in"]);
            blank(&mut tree);
            // Kinds may write the uid in other places too; the recording has a mark in all of them.
            let ours = show(&tree).replace(UID, "\\u003cuid\\u003e");
            let theirs = as_read(row, &out["prepared"]);
            results.push(("prepare", ours, self.expect_tree(row, &theirs)));
        }
    }

    fn print(&self, name: &str, case: &Value) -> Vec<(&'static str, String, String)> {
        let row = self.row(name);
        let out = &case["out"];
        let Some(tree) = self.arrive(row, &case["in"]) else {
            return Vec::new();
        };
        let mut results = Vec::new();
        if out.get("defaulted").is_some() {
            let mut shown = tree.clone();
            blank(&mut shown);
            results.push((
                "defaults",
                show(&shown),
                self.expect_tree(row, &out["defaulted"]),
            ));
        }
        if let Some(cells) = out.get("row").and_then(Value::as_array) {
            let stored = self.stored(row, tree);
            let ours = blank_ages(print(row, &stored, &Value::Null), cells);
            results.push(("columns", show(&ours), show(&Value::Array(cells.to_vec()))));
        }
        results
    }

    fn decode(&self, name: &str, case: &Value) -> Vec<(&'static str, String, String)> {
        let row = self.row(name);
        let out = &case["out"];
        let theirs = out["status"].str_at(&["message"]);
        let result = body::read(
            case.str_at(&["in"]).as_bytes(),
            BodySyntax::Json,
            Expected::of(row),
            None,
        );
        let ours = match result {
            Ok((_, complaints)) if complaints.texts.is_empty() => String::new(),
            Ok((_, complaints)) => complaints.texts.join(", "),
            Err(error) => error.to_string(),
        };
        let theirs = match out.get("strictErrors").and_then(Value::as_array) {
            Some(texts) if theirs.is_empty() => texts
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(", "),
            _ => theirs.to_owned(),
        };
        vec![("decode", without_scheme(&ours), without_scheme(&theirs))]
    }
}

/// Returns a recorded object without what upstream stores and shows to nobody.
fn as_read(row: &Resource, prepared: &Value) -> Value {
    let mut shown = prepared.clone();
    if row.qualified == "services" && shown.str_at(&["spec", "type"]) == "ExternalName" {
        drop(shown.remove(&["spec", "internalTrafficPolicy"]));
    }
    shown
}

/// Sets the namespace of the request in an object, as the registry does before it calls a strategy.
fn settle_namespace(row: &Resource, tree: &mut Value, namespace: &str) {
    if row.scope == Scope::Cluster {
        drop(tree.remove(&["metadata", "namespace"]));
    } else if tree.str_at(&["metadata", "namespace"]).is_empty() {
        tree.set(
            &["metadata", "namespace"],
            if namespace.is_empty() {
                "default"
            } else {
                namespace
            },
        );
    }
}

/// Replaces ages, which depend on the time of the recording.
fn blank_ages(ours: Value, theirs: &[Value]) -> Value {
    let Value::Array(mut cells) = ours else {
        return ours;
    };
    for (cell, theirs) in cells.iter_mut().zip(theirs) {
        let is_age = cell.as_str().is_some_and(|text| {
            text.starts_with(|first: char| first.is_ascii_digit())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || b"ydhms".contains(&byte))
        });
        let since = cell
            .as_str()
            .and_then(|text| text.split_once(" ("))
            .filter(|(_, rest)| rest.ends_with(" ago)"));
        if let Some((count, _)) = since
            && theirs.as_str() == Some(format!("{count} (<age> ago)").as_str())
        {
            *cell = theirs.clone();
        }
        if is_age && theirs.as_str() == Some("<age>") {
            *cell = theirs.clone();
        }
    }
    Value::Array(cells)
}

/// Returns a text without the place of a scheme: the oracle is built from modules and names another
/// place than a released binary does.
fn without_scheme(text: &str) -> String {
    text.split(" in scheme ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Returns the complaints of an allocation that was refused.
fn refused(error: &ApiError) -> Vec<(String, String, String)> {
    let causes = error.details.iter().flat_map(|details| &details.causes);
    let causes: Vec<_> = causes
        .map(|cause| {
            let text = format!("{}: {}", cause.field, cause.message);
            (cause.reason.clone(), cause.field.clone(), text)
        })
        .collect();
    if causes.is_empty() {
        vec![(String::new(), String::new(), error.to_string())]
    } else {
        causes
    }
}

/// The creation time of the recorded objects; it is replaced on both sides.
const TIME: &str = "2024-05-06T07:08:09Z";

/// The uid of new objects when they were recorded.
const UID: &str = "6b1e0b6c-4c55-4a5c-8a39-0f4d3f1d7e10";

/// Returns the cells as the oracle prints them: without a time of creation.
fn print(row: &Resource, tree: &Value, given: &Value) -> Value {
    let mut tree = tree.clone();
    chance::blank_allocations(row, &mut tree, given);
    drop(tree.remove(&["metadata", "creationTimestamp"]));
    Value::Array(row.strategy.cells(&tree, 1_715_000_000))
}

/// Replaces the values that depend on the time of the recording.
fn blank(tree: &mut Value) {
    for (field, mark) in [("uid", "<uid>"), ("creationTimestamp", "<time>")] {
        let present = !tree.str_at(&["metadata", field]).is_empty();
        if present {
            tree.set(&["metadata", field], mark);
        }
    }
    drop(tree.remove(&["metadata", "managedFields"]));
    chance::blank_times(tree);
}

fn show(value: &Value) -> String {
    let mut out = Vec::new();
    json::write(value, &mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

/// Allocates what an object needs. Upstream's tables validate without that, and the address of a Service without a name
/// cannot be recorded, so it has one meanwhile.
fn with_name<T>(tree: &mut Value, allocate: impl FnOnce(&mut Value) -> T) -> T {
    if !tree.str_at(&["metadata", "name"]).is_empty() {
        return allocate(tree);
    }
    let before = tree["metadata"].get("name").cloned();
    tree.set(&["metadata", "name"], "named");
    let allocated = allocate(tree);
    match before {
        Some(name) => tree.set(&["metadata", "name"], name),
        None => drop(tree.remove(&["metadata", "name"])),
    }
    allocated
}
