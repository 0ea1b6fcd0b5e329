//! The warnings about new pods, and about objects with templates of pods, are those of upstream.

use crate::shared::recorded::cases;
use crate::site::settings;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_registry::plan::prepare;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::strategy::Context;
use std::path::Path;

/// Returns the number of new objects of a file whose recorded warnings equal ours, and the number of all.
fn agreement(group: &str, kind: &str, file: &str) -> (usize, usize) {
    let kinds = tenant_kinds();
    let row = kinds
        .resources()
        .iter()
        .find(|row| row.group == group && row.kind == kind)
        .expect("a known kind");
    let settings = settings();
    let user = UserInfo::new("admin", &["system:masters"]);
    let context = Context {
        now: 1_715_000_000,
        user: &user,
        subresource: "",
        persistence: Persistence::Store,
        lacks_labels: false,
        metadata_blocks_rules: false,
        plane: "p",
        settings: &settings,
        schemas: &row.schemas,
        features: &row.features,
        kinds: &kinds,
        warnings: &Warnings::default(),
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let (mut agree, mut all) = (0, 0);
    for case in cases(&path) {
        // A refused object gets no warnings.
        if case.str_at(&["op"]) != "create" || !case.items_at(&["out", "errors"]).is_empty() {
            continue;
        }
        let mut tree = case["in"].clone();
        if kinds
            .schemas()
            .decode(row.definition, &mut tree, Empties::Null)
            .is_err()
        {
            continue;
        }
        prepare::default(row, row.definition, &mut tree).expect("they are small");
        prepare::create(row, &context, &mut tree);
        let mut ours = context.warnings.take();
        if tree.str_at(&["metadata", "name"]).is_empty() {
            continue;
        }
        let theirs: Vec<&str> = case
            .items_at(&["out", "warnings"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        ours.extend(row.strategy.warnings(&context, &tree, None));
        let mut sorted = theirs.clone();
        sorted.sort_unstable();
        ours.sort_unstable();
        all += 1;
        if ours == sorted {
            agree += 1;
        } else {
            println!("{kind}\nours:   {ours:?}\ntheirs: {sorted:?}");
        }
    }
    (agree, all)
}

#[test]
fn warnings_about_new_objects_are_those_of_upstream() {
    for (group, kind) in [
        ("", "Pod"),
        ("", "PodTemplate"),
        ("", "ReplicationController"),
        ("apps", "DaemonSet"),
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("batch", "CronJob"),
        ("batch", "Job"),
    ] {
        for folder in ["golden", "golden/upstream"] {
            let of_group = if group.is_empty() { "core" } else { group };
            let file = format!("{folder}/{of_group}.v1.{kind}.jsonl.gz");
            let (agree, all) = agreement(group, kind, &file);
            println!("{file}: {agree} of {all}");
            assert_eq!(agree, all, "{file}");
        }
    }
}
