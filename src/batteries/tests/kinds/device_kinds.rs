//! The requirements of the device kinds on their namespace, which golden files cannot record.

use crate::shared::plane;
use crate::site::{put, settings};
use polyplane_apimachinery::{Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_plane::Snapshot;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::strategy::Context;

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Returns the state of a plane with one namespace `lab` that has these labels.
fn cut_with(labels: Value) -> Snapshot {
    let kinds = tenant_kinds();
    let row = kinds
        .stored("", "namespaces")
        .expect("namespaces are stored");
    let mut tree = json!({"metadata": {"name": "lab"}});
    tree.set(&["metadata", "labels"], labels);
    plane::with(vec![put(row, tree)])
}

/// Returns the refusal of a new object of `resource` with this spec, if it is refused.
fn refusal(cut: &Snapshot, resource: &str, spec: Value) -> Option<String> {
    let kinds = tenant_kinds();
    let row = kinds
        .stored("resource.k8s.io", resource)
        .expect("claims are stored");
    let settings = settings();
    let context = Context {
        now: 1_715_000_000,
        user: &UserInfo::new("admin", &["system:masters"]),
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

#[test]
fn an_allocation_grants_admin_access_only_in_a_labelled_namespace() {
    let kinds = tenant_kinds();
    let row = kinds
        .stored("resource.k8s.io", "resourceclaims")
        .expect("claims are stored");
    let settings = settings();
    let context = Context {
        now: 1_715_000_000,
        user: &UserInfo::new("scheduler", &[]),
        subresource: "status",
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
    let claim = |granted: bool| {
        json!({"metadata": {"name": "gpu", "namespace": "lab"},
            "status": {"allocation": {"devices": {"results": [{"request": "b", "adminAccess": granted}]}}}})
    };
    let fresh = json!({"metadata": {"name": "gpu", "namespace": "lab"}});
    let refusal = |cut: &Snapshot, object: &Value, old: &Value| {
        let answer = row.strategy.admit_subresource(&context, cut, object, old);
        answer.err().map(|error| error.to_string())
    };
    let labelled = cut_with(json!({"resource.kubernetes.io/admin-access": "true"}));
    let other = cut_with(json!({}));
    assert_eq!(refusal(&labelled, &claim(true), &fresh), None);
    assert_eq!(refusal(&other, &claim(false), &fresh), None);
    // Access that an earlier write was granted does not prevent a later write.
    assert_eq!(refusal(&other, &claim(true), &claim(true)), None);
    let text = refusal(&other, &claim(true), &fresh).expect("it is refused");
    assert!(
        text.contains("status.allocation.devices.results[0].adminAccess: Forbidden"),
        "{text}"
    );
}
