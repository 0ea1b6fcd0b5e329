//! Behaviour that depends on facts about the write: whether it is stored, and what the client has left out.

use crate::core_kinds::{put, service};
use crate::shared::plane;
use crate::site::settings;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::{features, tenant_kinds};
use polyplane_registry::Resource;
use polyplane_registry::plan::prepare;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::strategy::Context;

/// Calls `run` with the row of a resource and a context for it.
fn with<T>(
    (group, resource): (&str, &str),
    (persistence, lacks_labels): (Persistence, bool),
    run: impl FnOnce(&Resource, &Context<'_>) -> T,
) -> T {
    let kinds = tenant_kinds();
    let row = kinds.stored(group, resource).expect("the kind is stored");
    let user = UserInfo::new("admin", &["system:masters"]);
    let context = Context {
        now: 1_715_000_000,
        user: &user,
        subresource: "",
        persistence,
        lacks_labels,
        metadata_blocks_rules: false,
        plane: "p",
        settings: &settings(),
        schemas: kinds.schemas(),
        features: &features(),
        kinds: &kinds,
        warnings: &Warnings::default(),
    };
    run(row, &context)
}

#[test]
fn a_dry_run_shows_addresses_and_ports_without_looking_for_free_ones() {
    let other = json!({"metadata": {}, "spec": {"ports": [{"port": 80i64, "nodePort": 30001i64}]}});
    let address = ("networking.k8s.io", "ipaddresses");
    let cut = plane::with(vec![
        put("", "services", Some("default"), "other", other),
        put(address.0, address.1, None, "10.0.0.3", json!({})),
    ]);
    let allocate = |spec: Value| {
        let mut object = service("a", spec);
        let dry = (Persistence::DryRun, false);
        let allocated = with(("", "services"), dry, |row, context| {
            row.strategy.allocate(context, &cut, &mut object, None)
        });
        allocated.map(|_| object).map_err(|error| error.message)
    };
    for (first, second, shown) in [
        (0, 0, [32769, 32770]),
        (80, 0, [80, 81]),
        (31000, 0, [31000, 31001]),
    ] {
        let ports = json!([
            {"name": "a", "port": 1i64, "nodePort": (Value::Int(first))},
            {"name": "b", "port": 2i64, "nodePort": (Value::Int(second))}
        ]);
        let object = allocate(json!({"type": "NodePort", "ports": ports}));
        let object = object.expect("a dry run takes nothing");
        let ports = object.items_at(&["spec", "ports"]).iter();
        let ports: Vec<i64> = ports
            .filter_map(|port| port.int_at(&["nodePort"]))
            .collect();
        assert_eq!(ports, shown);
        assert_eq!(object.str_at(&["spec", "clusterIP"]), "10.0.0.0");
    }
    let taken =
        allocate(json!({"type": "NodePort", "ports": [{"port": 1i64, "nodePort": 30001i64}]}));
    let taken = taken.expect_err("another Service has the port");
    assert!(
        taken.ends_with("provided port is already allocated"),
        "{taken}"
    );
    let wish = |address: &str| allocate(json!({"clusterIP": address, "ports": [{"port": 1i64}]}));
    assert!(wish("10.0.0.3").is_ok());
    let outside = wish("192.0.2.7").expect_err("no range has it");
    let end = "the provided IP (192.0.2.7) is not in the valid range. The range of valid IPs is 10.0.0.0/28";
    assert!(outside.ends_with(end), "{outside}");
}

#[test]
fn a_job_without_labels_gets_all_labels_of_its_template() {
    for (lacks_labels, count) in [(true, 5), (false, 1)] {
        let mut job = json!({
            "metadata": {"name": "a", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"app": "x"}}, "spec": {}}}
        });
        let how = (Persistence::Store, lacks_labels);
        with(("batch", "jobs"), how, |row, context| {
            prepare::default(row, row.definition, &mut job).expect("they are small");
            row.strategy.prepare_create(context, &mut job);
        });
        let labels = |path: &[&str]| job.at(path).and_then(Value::as_object);
        let own = labels(&["metadata", "labels"]).expect("it has the label of its template");
        let template = labels(&["spec", "template", "metadata", "labels"]);
        let template = template.expect("it has labels");
        assert_eq!((own.len(), template.len()), (count, 5));
        assert!(
            own.iter()
                .all(|(name, value)| template.get(name) == Some(value))
        );
    }
}
