//! The warnings about recorded objects that were accepted are those of upstream: about new objects, about changed
//! ones and about those that were changed through a subresource.

use crate::shared::plane;
use crate::shared::recorded::cases;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_plane::Snapshot;
use polyplane_registry::plan::prepare;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::settings::PlaneSettings;
use polyplane_registry::strategy::Context;
use polyplane_registry::{KindTable, Resource};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ENDING: &str = ".jsonl.gz";

struct Bench {
    kinds: Arc<KindTable>,
    settings: PlaneSettings,
    user: UserInfo,
    cut: Snapshot,
}

/// The warnings about one object, each once: upstream's recorder removes repetitions only in front of the client.
struct Told {
    ours: BTreeSet<String>,
    theirs: BTreeSet<String>,
}

impl Bench {
    fn open() -> Self {
        Self {
            kinds: tenant_kinds(),
            settings: crate::shared::settings(16, (30000, 32767), ""),
            user: UserInfo::new("admin", &["system:masters"]),
            cut: plane::empty(),
        }
    }

    /// Returns the row of the kind after which a file is named; `None` if only a feature gate brings the kind.
    fn row(&self, file: &Path) -> Option<&Resource> {
        let name = file.file_name()?.to_str()?.strip_suffix(ENDING)?;
        let (rest, kind) = name.rsplit_once('.')?;
        let (group, version) = rest.rsplit_once('.')?;
        let group = if group == "core" { "" } else { group };
        let mut rows = self.kinds.resources().iter();
        let found =
            rows.find(|row| row.group == group && row.version == version && row.kind == kind);
        found.map(|row| &**row)
    }

    /// Decodes an object and sets defaults, in the version that is stored.
    fn arrive(&self, row: &Resource, object: &Value) -> Option<Value> {
        let schemas = self.kinds.schemas();
        let mut tree = object.clone();
        let decoded = schemas.decode(row.definition, &mut tree, Empties::Null);
        decoded.ok()?;
        prepare::default(row, row.definition, &mut tree).expect("they are small");
        let decoded = schemas.decode(row.definition, &mut tree, Empties::Null);
        decoded.ok()?;
        Some(match row.converts() {
            true => row.strategy.to_stored(&row.version, tree),
            false => tree,
        })
    }

    /// Returns the warnings about a recorded write; `None` if it was refused or is not compared.
    fn told(&self, row: &Resource, case: &Value) -> Option<Told> {
        let out = &case["out"];
        let is_refused = ["status", "errors"].map(|refusal| out.get(refusal).is_some());
        if is_refused.contains(&true) || out.get("prepared").is_none() {
            return None;
        }
        let mut tree = self.arrive(row, &case["in"])?;
        let old = match case.get("old") {
            Some(old) => Some(self.arrive(row, old)?),
            None => None,
        };
        if row.is_virtual() || tree.str_at(&["metadata", "name"]).is_empty() {
            return None;
        }
        let warnings = Warnings::default();
        let context = Context {
            now: 1_715_000_000,
            user: &self.user,
            subresource: match case.str_at(&["op"]) {
                "create" | "update" => "",
                subresource => subresource,
            },
            persistence: Persistence::Store,
            lacks_labels: false,
            metadata_blocks_rules: false,
            plane: "p",
            settings: &self.settings,
            schemas: &row.schemas,
            features: &row.features,
            kinds: &self.kinds,
            warnings: &warnings,
        };
        self.settle(row, &context, &mut tree, old.as_ref())?;
        let mut ours = warnings.take();
        ours.extend(row.strategy.warnings(&context, &tree, old.as_ref()));
        let theirs = out.items_at(&["warnings"]).iter();
        Some(Told {
            ours: ours.into_iter().collect(),
            theirs: theirs
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        })
    }

    /// Makes of an object what is validated; `None` if it is refused before.
    fn settle(
        &self,
        row: &Resource,
        context: &Context<'_>,
        tree: &mut Value,
        old: Option<&Value>,
    ) -> Option<()> {
        match old {
            None => prepare::create(row, context, tree),
            Some(old) => prepare::update(row, context, tree, old),
        }
        let allowed = match old {
            Some(old) if !context.subresource.is_empty() => row
                .strategy
                .admit_subresource(context, &self.cut, tree, old),
            _ => {
                let allocated = row.strategy.allocate(context, &self.cut, tree, old);
                allocated.map(|_| ())
            }
        };
        allowed.ok()?;
        prepare::canonical(row, tree).ok().map(|_| ())
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the golden files are there");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.to_str().is_some_and(|name| name.ends_with(ENDING)))
        .collect();
    files.sort();
    files
}

#[test]
fn warnings_about_writes_are_those_of_upstream() {
    let bench = Bench::open();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let upstream = folder.join("upstream");
    let (mut wrong, mut warned) = (Vec::new(), BTreeMap::new());
    for file in [files(&folder), files(&upstream)].concat() {
        let Some(row) = bench.row(&file) else {
            continue;
        };
        for case in cases(&file) {
            let Some(Told { ours, theirs }) = bench.told(row, &case) else {
                continue;
            };
            let operation = case.str_at(&["op"]).to_owned();
            *warned.entry(operation.clone()).or_insert(0) += usize::from(!theirs.is_empty());
            if ours != theirs {
                let file = file.display();
                wrong.push(format!(
                    "{file} {operation}\nours:   {ours:?}\ntheirs: {theirs:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("objects that were warned about: {warned:?}");
    for (operation, at_least) in [("create", 90), ("update", 40), ("status", 5)] {
        let count = warned.get(operation).copied().unwrap_or_default();
        assert!(count >= at_least, "{operation}: {warned:?}");
    }
}
