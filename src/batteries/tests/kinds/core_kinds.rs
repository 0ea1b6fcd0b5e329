//! Behaviour of the core kinds that the golden files do not record: what they allocate in a plane,
//! which objects are created and deleted with them, and when they are deleted.

use crate::shared::plane;
use crate::site::{self, settings};
use polyplane_apimachinery::field_error::FieldError;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::schema::decode::{Empties, Numbers};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::{features, schemas, tenant_kinds};
use polyplane_plane::{Claim, Flags, Key, NewObject, Operation, Snapshot};
use polyplane_registry::plan::prepare;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::settings::Lifetimes;
use polyplane_registry::strategy::{Allocation, CompanionChange, Context, Plain};
use polyplane_registry::{KindTable, PlaneSettings, Resource, Strategy};
use std::sync::Arc;

pub fn with_context<T>(subresource: &str, run: impl FnOnce(&Context<'_>) -> T) -> T {
    with_kinds(&tenant_kinds(), subresource, run)
}

fn with_kinds<T>(
    kinds: &Arc<KindTable>,
    subresource: &str,
    run: impl FnOnce(&Context<'_>) -> T,
) -> T {
    with_settings(&settings(), kinds, subresource, run)
}

fn with_settings<T>(
    settings: &PlaneSettings,
    kinds: &Arc<KindTable>,
    subresource: &str,
    run: impl FnOnce(&Context<'_>) -> T,
) -> T {
    let user = UserInfo::new("admin", &["system:masters"]);
    run(&Context {
        now: 1_715_000_000,
        user: &user,
        subresource,
        persistence: Persistence::Store,
        lacks_labels: false,
        metadata_blocks_rules: false,
        plane: "p",
        settings,
        schemas: kinds.schemas(),
        features: &features(),
        kinds,
        warnings: &Warnings::default(),
    })
}

/// Calls `run` with the row of a resource.
pub fn on<T>(group: &str, resource: &str, run: impl FnOnce(&Resource) -> T) -> T {
    let kinds = tenant_kinds();
    let row = kinds
        .resources()
        .iter()
        .find(|row| row.group == group && row.name == resource);
    run(row.unwrap_or_else(|| panic!("{resource} is served")))
}

pub fn put(
    group: &str,
    resource: &str,
    namespace: Option<&str>,
    name: &str,
    mut tree: Value,
) -> Operation {
    let kinds = tenant_kinds();
    let row = kinds.stored(group, resource).expect("the kind is stored");
    tree.set(&["metadata", "name"], name);
    if let Some(namespace) = namespace {
        tree.set(&["metadata", "namespace"], namespace);
    }
    site::put(row, tree)
}

pub fn service(name: &str, spec: Value) -> Value {
    let mut object =
        json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec});
    on("", "services", |row| {
        prepare::default(row, row.definition, &mut object).expect("they are small")
    });
    object
}

fn allocate(
    cut: &Snapshot,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Allocation, ApiError> {
    allocate_with(&settings(), cut, object, old)
}

/// Allocates for a Service of a plane with these settings.
pub fn allocate_with(
    settings: &PlaneSettings,
    cut: &Snapshot,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<Allocation, ApiError> {
    with_settings(settings, &tenant_kinds(), "", |context| {
        on("", "services", |row| {
            row.strategy.allocate(context, cut, object, old)
        })
    })
}

pub fn changes(allocation: &Allocation) -> Vec<(&str, &'static str)> {
    let companions = allocation.companions.iter();
    companions
        .map(|companion| {
            let change = match companion.change {
                CompanionChange::Create(_) => "create",
                CompanionChange::Ensure(_) => "ensure",
                CompanionChange::Replace(_) => "replace",
                CompanionChange::Remove => "remove",
            };
            (companion.name.as_str(), change)
        })
        .collect()
}

fn ports(object: &Value) -> Vec<i64> {
    let ports = object.items_at(&["spec", "ports"]).iter();
    ports
        .filter_map(|port| port.int_at(&["nodePort"]))
        .collect()
}

#[test]
fn a_service_takes_an_address_that_nobody_has() {
    let mut taken = Vec::new();
    // There are 14 addresses; all but one are allocated.
    for last in (1..=14).filter(|last| *last != 9) {
        taken.push(put(
            "networking.k8s.io",
            "ipaddresses",
            None,
            &format!("10.0.0.{last}"),
            json!({}),
        ));
    }
    let cut = plane::with(taken);
    let mut object = service("a", json!({"ports": [{"port": 80i64}]}));
    let allocation = allocate(&cut, &mut object, None).expect("one is free");
    assert_eq!(object.str_at(&["spec", "clusterIP"]), "10.0.0.9");
    assert_eq!(changes(&allocation), [("10.0.0.9", "create")]);

    let mut wish = service(
        "b",
        json!({"clusterIP": "10.0.0.3", "ports": [{"port": 80i64}]}),
    );
    let error = allocate(&cut, &mut wish, None).expect_err("it is taken");
    assert_eq!(
        error.message,
        "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.0.0.3\"]: failed to allocate IP 10.0.0.3: provided IP is already allocated"
    );
    for outside in ["10.0.0.0", "10.0.0.15", "192.0.2.7"] {
        let mut wish = service(
            "b",
            json!({"clusterIP": outside, "ports": [{"port": 80i64}]}),
        );
        let error = allocate(&cut, &mut wish, None).expect_err("it is outside");
        assert!(
            error
                .message
                .ends_with("the provided network does not match the current range")
        );
    }
}

#[test]
fn ranges_of_service_cidrs_are_used_unless_they_are_not_ready() {
    let range = |cidr: &str, ready: &str| {
        json!({
            "metadata": {},
            "spec": {"cidrs": [cidr]},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2024-05-06T07:08:09Z"}]}
        })
    };
    let cut = plane::with(vec![
        put(
            "networking.k8s.io",
            "servicecidrs",
            None,
            "more",
            range("192.0.2.0/28", "True"),
        ),
        put(
            "networking.k8s.io",
            "servicecidrs",
            None,
            "not-yet",
            range("198.51.100.0/28", "False"),
        ),
    ]);
    let wish = |address: &str| {
        let mut wish = service(
            "b",
            json!({"clusterIP": address, "ports": [{"port": 80i64}]}),
        );
        allocate(&cut, &mut wish, None).is_ok()
    };
    assert!(wish("192.0.2.7") && wish("10.0.0.7"));
    assert!(!wish("198.51.100.7"));
}

/// A strategy of ServiceCIDRs whose version v0 calls the field `ranges`.
#[derive(Debug)]
struct Ranges;

impl Strategy for Ranges {
    fn to_stored(&self, _: &str, mut cidr: Value) -> Value {
        let ranges = cidr.remove(&["spec", "ranges"]).unwrap_or_default();
        cidr.set(&["spec", "cidrs"], ranges);
        cidr
    }
}

/// ServiceCIDRs in two versions, the second of which is stored today.
const CIDR_ROWS: &str = r#"{"groups": [{"name": "networking.k8s.io", "versions": [
  {"version": "v1", "resources": [{"name": "servicecidrs", "singular": "servicecidr",
    "kind": "ServiceCIDR", "definition": "io.k8s.api.networking.v1.ServiceCIDR",
    "verbs": ["get", "list"]}]},
  {"version": "v0", "resources": [{"name": "servicecidrs", "singular": "servicecidr",
    "kind": "ServiceCIDR", "definition": "io.k8s.api.networking.v1.ServiceCIDR",
    "verbs": ["get", "list"],
    "storage": {"group": "networking.k8s.io", "resource": "servicecidrs", "version": "v1",
                "kind": "ServiceCIDR"}}]}
]}]}"#;

#[test]
fn a_service_cidr_that_was_stored_in_another_version_gives_addresses() {
    let strategy = |_: &str, version: &str, _: &str| {
        Some(match version {
            "v0" => Arc::new(Ranges) as Arc<dyn Strategy>,
            _ => Arc::new(Plain),
        })
    };
    let rows = [CIDR_ROWS.as_bytes()];
    let kinds = KindTable::build(&rows, schemas(), features(), &strategy, 1);
    let kinds = Arc::new(kinds.expect("the rows are sound"));
    let key = Key::new("networking.k8s.io", "servicecidrs", None, "more");
    let wish = |storage_version: &str| {
        let head = r#"{"metadata":{"name":"more","#;
        let cut = plane::with(vec![Operation::Put {
            key: key.clone(),
            object: NewObject {
                body: format!(r#"{head}"uid":"u"}},"spec":{{"ranges":["192.0.2.0/28"]}}}}"#).into(),
                version_slot: head.len(),
                labels: None,
                storage_version: storage_version.into(),
                expires: None,
                flags: Flags::NONE,
            },
        }]);
        let mut wish = service(
            "b",
            json!({"clusterIP": "192.0.2.7", "ports": [{"port": 80i64}]}),
        );
        let allocated = with_kinds(&kinds, "", |context| {
            on("", "services", |row| {
                row.strategy.allocate(context, &cut, &mut wish, None)
            })
        });
        allocated.map(|_| ()).map_err(|error| error.message)
    };
    assert_eq!(wish("v0"), Ok(()));
    let unknown = wish("v7").expect_err("nobody can read it");
    assert!(unknown.contains("stored in version v7"), "{unknown}");
}

#[test]
fn a_full_range_is_told() {
    let all = (1..=14).map(|last| {
        put(
            "networking.k8s.io",
            "ipaddresses",
            None,
            &format!("10.0.0.{last}"),
            json!({}),
        )
    });
    let cut = plane::with(all.collect());
    let mut object = service("a", json!({"ports": [{"port": 80i64}]}));
    let error = allocate(&cut, &mut object, None).expect_err("nothing is free");
    assert_eq!(error.code, 500);
    assert!(error.message.contains("range is full"), "{}", error.message);
}

#[test]
fn node_ports_are_taken_once() {
    let other = json!({"metadata": {}, "spec": {"ports": [{"port": 80i64, "nodePort": 30001i64}], "healthCheckNodePort": 30002i64}});
    let cut = plane::with(vec![put("", "services", Some("default"), "other", other)]);
    let text = |port: i64| {
        let mut object = service(
            "a",
            json!({"type": "NodePort", "ports": [{"port": 80i64, "nodePort": port}]}),
        );
        allocate(&cut, &mut object, None)
            .map(|_| ())
            .map_err(|error| error.message)
    };
    assert!(text(30003).is_ok());
    let taken = |port: i64| {
        format!(
            "Service \"a\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
        )
    };
    assert_eq!(text(30001), Err(taken(30001)));
    assert_eq!(text(30002), Err(taken(30002)));
    assert!(text(80).is_err_and(|text| text.ends_with("The range of valid ports is 30000-30003")));

    let spec = json!({"type": "NodePort", "ports": [{"name": "a", "port": 1i64}, {"name": "b", "port": 2i64}]});
    let mut object = service("b", spec);
    let allocation = allocate(&cut, &mut object, None).expect("two are free");
    let mut chosen = ports(&object);
    chosen.sort_unstable();
    assert_eq!(chosen, [30000, 30003]);
    assert_eq!(allocation.claims.len(), 2);
    assert!(
        allocation
            .claims
            .iter()
            .all(|claim| matches!(claim, Claim::Free { .. }) && cut.holds(claim))
    );
}

#[test]
fn what_a_service_has_stays_with_it_until_its_type_changes() {
    let cut = plane::empty();
    let mut object = service("a", json!({"type": "NodePort", "ports": [{"port": 80i64}]}));
    allocate(&cut, &mut object, None).expect("everything is free");
    let (address, ports_before) = (
        object.str_at(&["spec", "clusterIP"]).to_owned(),
        ports(&object),
    );

    let mut again = service("a", json!({"type": "NodePort", "ports": [{"port": 80i64}]}));
    let allocation = allocate(&cut, &mut again, Some(&object)).expect("nothing new is asked");
    assert_eq!(
        (again.str_at(&["spec", "clusterIP"]), ports(&again)),
        (address.as_str(), ports_before)
    );
    assert!(allocation.claims.is_empty() && allocation.companions.is_empty());

    let mut named = object.clone();
    named.set(&["spec", "type"], "ExternalName");
    named.set(&["spec", "externalName"], "example.com");
    let allocation = allocate(&cut, &mut named, Some(&object)).expect("it gives back");
    assert_eq!(changes(&allocation), [(address.as_str(), "remove")]);
    assert!(named.at(&["spec", "clusterIP"]).is_none() && ports(&named).is_empty());

    let allocation = allocate(&cut, &mut Value::Null, Some(&object)).expect("it goes");
    assert_eq!(changes(&allocation), [(address.as_str(), "remove")]);
}

#[test]
fn a_namespace_comes_with_its_objects_and_goes_with_its_last_finalizer() {
    let object = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
    on("", "namespaces", |row| {
        let companions = with_context("", |context| row.strategy.companions(context, &object));
        let named: Vec<_> = companions
            .iter()
            .map(|one| (one.resource.as_str(), one.name.as_str()))
            .collect();
        assert_eq!(
            named,
            [
                ("serviceaccounts", "default"),
                ("configmaps", "kube-root-ca.crt")
            ]
        );
        let CompanionChange::Ensure(root_ca) = &companions[1].change else {
            panic!("it is left alone if there")
        };
        assert_eq!(root_ca.str_at(&["data", "ca.crt"]), "CERTIFICATE");

        let mut deleted = object.clone();
        deleted.set(&["metadata", "deletionGracePeriodSeconds"], 0i64);
        row.strategy.prepare_deletion(&mut deleted);
        assert_eq!(deleted.str_at(&["status", "phase"]), "Terminating");
        assert!(
            deleted
                .at(&["metadata", "deletionGracePeriodSeconds"])
                .is_none()
        );
        assert!(row.strategy.awaits(&deleted));

        deleted.set(&["metadata", "deletionTimestamp"], "2024-05-06T07:08:09Z");
        let mut finalized = deleted.clone();
        finalized.set(&["spec", "finalizers"], Vec::new());
        finalized.set(&["status", "phase"], "Active");
        with_context("finalize", |context| {
            row.strategy
                .prepare_subresource(context, &mut finalized, &deleted);
            assert!(
                row.strategy
                    .validate_subresource(context, &finalized, &deleted)
                    .is_empty()
            );
        });
        assert_eq!(finalized.str_at(&["status", "phase"]), "Terminating");
        assert!(!row.strategy.awaits(&finalized));

        // One that has lost its finalizers before it is deleted has its content still.
        let mut unmarked = finalized.clone();
        drop(unmarked.remove(&["metadata", "deletionTimestamp"]));
        assert!(row.strategy.awaits(&unmarked));
    });
}

#[test]
fn some_namespaces_stay_for_ever() {
    let refused = |name: &str| {
        let object = json!({"metadata": {"name": name}});
        with_context("", |context| {
            on("", "namespaces", |row| {
                row.strategy.admit_delete(context, &object)
            })
        })
    };
    assert!(refused("kube-node-lease").is_ok());
    let error = refused("default").expect_err("it stays");
    assert_eq!(error.code, 403);
    assert_eq!(
        error.message,
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
}

#[test]
fn events_are_selected_by_the_names_of_their_group() {
    let stored = json!({
        "involvedObject": {"kind": "Pod"},
        "source": {},
        "reportingComponent": "example.com/c",
        "reason": "Started"
    });
    let bytes = polyplane_apimachinery::json::to_string(&stored);
    let scanned = Scanned(bytes.as_bytes());
    let field = |group: &str, name: &str| {
        on(group, "events", |row| row.strategy.field(scanned, name)).unwrap_or_default()
    };
    assert_eq!(field("", "involvedObject.kind"), "Pod");
    assert_eq!(field("", "source"), "example.com/c");
    assert_eq!(field("", "reportingComponent"), "example.com/c");
    assert_eq!(field("events.k8s.io", "regarding.kind"), "Pod");
    assert_eq!(
        field("events.k8s.io", "reportingController"),
        "example.com/c"
    );
    assert_eq!(field("events.k8s.io", "reason"), "Started");
    on("", "events", |row| {
        assert_eq!(row.strategy.lifetime(&Lifetimes::default()), Some(3600))
    });
}

/// Upstream compares the structs of some kinds as Go does, for which an empty list is not none.
#[test]
fn empty_lists_count_in_the_generation_of_some_kinds() {
    let selector = json!({"matchExpressions": []});
    let hooks = json!({"webhooks": [{"name": "a.b.c", "objectSelector": (selector.clone())}]});
    let admission = "admissionregistration.k8s.io";
    let policy = json!({"spec": {"podSelector": (selector.clone())}});
    let budget = json!({"spec": {"selector": selector}});
    for (group, resource, tree, generation) in [
        (admission, "validatingwebhookconfigurations", &hooks, 2),
        (admission, "mutatingwebhookconfigurations", &hooks, 2),
        ("networking.k8s.io", "networkpolicies", &policy, 2),
        ("policy", "poddisruptionbudgets", &budget, 1),
    ] {
        on(group, resource, |row| {
            let (mut old, mut new) = (tree.clone(), tree.clone());
            old.set(&["metadata", "generation"], 1i64);
            let decoded = row.schemas.decode(row.definition, &mut old, Empties::Null);
            decoded.expect("it fits its schema");
            let says = row
                .schemas
                .decode_unless_said(row.definition, &mut new, Numbers::AsWritten);
            assert_eq!(says.expect("it fits its schema"), generation == 2);
            with_context("", |context| {
                prepare::update(row, context, &mut new, &old);
            });
            let found = new.int_at(&["metadata", "generation"]);
            assert_eq!(found, Some(generation), "{resource}");
        });
    }
}

/// Upstream validates what all objects share after a kind that leaves metadata out has found nothing.
#[test]
fn metadata_of_kinds_that_leave_it_out_is_validated_last() {
    let bad = json!({"metadata": {"namespace": "a"}, "spec": {"minAvailable": (-1i64)}});
    let good = json!({"metadata": {"namespace": "a"}});
    for (tree, field) in [(bad, "spec.minAvailable"), (good, "metadata.name")] {
        on("policy", "poddisruptionbudgets", |row| {
            let found = with_context("", |context| prepare::validate_create(row, context, &tree));
            let fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, [field]);
        });
    }
}

/// Complaints show an empty list that a client sends as such, and none as null.
#[test]
fn complaints_tell_an_empty_list_from_none() {
    let definition = ("apiextensions.k8s.io", "customresourcedefinitions");
    let ingress = ("networking.k8s.io", "ingresses");
    let policy = |rules: Value| json!({"successPolicy": {"rules": rules}});
    for ((group, resource), spec, wanted) in [
        (
            definition,
            json!({"versions": []}),
            "spec.versions: Invalid value: []: ",
        ),
        (
            definition,
            json!({}),
            "spec.versions: Invalid value: null: ",
        ),
        (ingress, json!({"rules": []}), "spec: Invalid value: []: "),
        (ingress, json!({}), "spec: Invalid value: null: "),
        (
            ("batch", "jobs"),
            policy(json!([])),
            "spec.successPolicy: Invalid value: {\"Rules\":[]}: ",
        ),
        (
            ("batch", "jobs"),
            policy(Value::Null),
            "spec.successPolicy: Invalid value: {\"Rules\":null}: ",
        ),
    ] {
        on(group, resource, |row| {
            let mut tree = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec});
            let decoded =
                row.schemas
                    .decode_unless_said(row.definition, &mut tree, Numbers::AsWritten);
            decoded.expect("it fits its schema");
            let found = with_context("", |context| prepare::validate_create(row, context, &tree));
            let texts: Vec<String> = found.iter().map(FieldError::to_string).collect();
            let shown = texts.iter().any(|text| text.starts_with(wanted));
            assert!(shown, "{wanted}: {texts:?}");
        });
    }
}

#[test]
fn a_change_of_a_volume_shows_empty_maps_and_takes_them_for_none() {
    let volume = |attributes: Value| {
        let csi = json!({"driver": "d", "volumeHandle": "h", "volumeAttributes": attributes});
        json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"csi": csi}})
    };
    let refusals = |before: Value| {
        on("", "persistentvolumes", |row| {
            let (mut old, mut new) = (volume(before), volume(json!({})));
            let decoded = row.schemas.decode(row.definition, &mut old, Empties::Null);
            decoded.expect("it fits its schema");
            let says = row
                .schemas
                .decode_unless_said(row.definition, &mut new, Numbers::AsWritten);
            assert!(says.expect("it fits its schema"));
            let found = with_context("", |context| {
                prepare::validate_update(row, context, &new, &old)
            });
            let texts = found.iter().map(FieldError::to_string);
            texts
                .filter(|text| text.contains("persistentvolumesource"))
                .collect::<String>()
        })
    };
    let changed = refusals(json!({"pool": "a"}));
    assert!(changed.contains("\"VolumeAttributes\": {}"), "{changed}");
    assert_eq!(refusals(Value::Null), "");
}
