//! What claims to devices ask of their namespace, which golden files cannot record.

use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::catalog::tenant_kinds;
use polyplane_plane::{Flags, Key, NewObject, Operation, Snapshot};
use polyplane_registry::strategy::{BirthLayer, Context, PlaneSettings, ServiceRange};

mod plane;

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// A plane with one namespace `lab` of these labels.
fn cut_with(labels: Value) -> Snapshot {
    let kinds = tenant_kinds();
    let row = kinds
        .stored("", "namespaces")
        .expect("namespaces are stored");
    let mut tree =
        json!({"metadata": {"name": "lab", "creationTimestamp": "2024-05-06T07:08:09Z"}});
    tree.set(&["metadata", "labels"], labels);
    let decoded = kinds
        .schemas()
        .decode(row.stored_definition, &mut tree, Empties::Null);
    decoded.expect("it fits its schema");
    let encoded = kinds.schemas().encode_stored(row.stored_definition, &tree);
    let slot = encoded.version.expect("it has metadata");
    plane::with(vec![Operation::Put {
        key: Key::new("", "namespaces", None, "lab"),
        object: NewObject {
            body: encoded.bytes.into(),
            version_slot: slot.following(),
            labels: encoded.labels,
            storage_version: row.storage.version.clone(),
            expires: None,
            flags: Flags::NONE,
        },
    }])
}

/// What a new object of `resource` with this spec is told, if it is refused.
fn refusal(cut: &Snapshot, resource: &str, spec: Value) -> Option<String> {
    let kinds = tenant_kinds();
    let row = kinds
        .stored("resource.k8s.io", resource)
        .expect("claims are stored");
    let settings = PlaneSettings {
        service_range: ServiceRange {
            base: [10, 0, 0, 0].into(),
            bits: 28,
        },
        node_ports: (30000, 30003),
        serving_ca: Str::default(),
        endpoint: Str::default(),
        birth_layer: BirthLayer::fixed(""),
    };
    let context = Context {
        now: 1_715_000_000,
        user: &UserInfo::new("admin", &["system:masters"]),
        subresource: "",
        settings: &settings,
    };
    let mut object = json!({"metadata": {"name": "gpu", "namespace": "lab"}});
    object.set(&["spec"], spec);
    let answer = row.strategy.allocate(&context, cut, &mut object, None);
    answer.err().map(|error| error.to_string())
}

fn spec(admin: bool) -> Value {
    json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}, {"name": "b", "exactly": {"adminAccess": admin}}]}})
}

fn template(admin: bool) -> Value {
    json!({"spec": (spec(admin))})
}

#[test]
fn admin_access_needs_the_label_of_the_namespace() {
    let labelled = cut_with(json!({"resource.kubernetes.io/admin-access": "true"}));
    let other = cut_with(json!({"resource.kubernetes.io/admin-access": "yes"}));
    for (resource, wish) in [
        ("resourceclaims", spec as fn(bool) -> Value),
        ("resourceclaimtemplates", template),
    ] {
        assert_eq!(refusal(&labelled, resource, wish(true)), None);
        assert_eq!(refusal(&other, resource, wish(false)), None);
        for cut in [&other, &plane::empty()] {
            let text = refusal(cut, resource, wish(true)).expect("it is refused");
            assert!(
                text.contains("spec.devices.requests[1].adminAccess: Forbidden"),
                "{text}"
            );
            assert!(text.contains(LABEL), "{text}");
        }
    }
}
