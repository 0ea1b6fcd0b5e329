//! Which bootstrap roles come back when a plane is loaded.

use super::{Site, rbac};
use crate::bootstrap_roles;
use polyplane_apimachinery::{Value, json};
use polyplane_batteries::bootstrap::Release;
use polyplane_batteries::bootstrap::upgrade::{self, Merge};
use polyplane_plane::Prefix;

/// Returns a patch that empties a field.
fn of_nothing(field: &str) -> Value {
    let mut patch = Value::object();
    patch.set(&[field], Value::Null);
    patch
}

#[tokio::test]
async fn a_plane_that_is_loaded_gets_the_bootstrap_roles_back_that_its_users_took_away() {
    let site = Site::open().await;
    let own_objects = || site.tenant.plane.snapshot().own_objects();
    let untouched = site.tenant.plane.snapshot().version();
    site.load_roles().await;
    let cut = site.tenant.plane.snapshot();
    assert_eq!((cut.own_objects(), cut.version()), (0, untouched));

    let reader = "extension-apiserver-authentication-reader";
    let deleted = [
        rbac("clusterroles", None, "system:basic-user"),
        rbac("clusterrolebindings", None, "system:discovery"),
        rbac("roles", Some("kube-system"), reader),
    ];
    for key in &deleted {
        site.delete(key).await;
    }
    let changed = [
        (rbac("clusterroles", None, "system:discovery"), "rules"),
        (
            rbac("clusterrolebindings", None, "system:basic-user"),
            "subjects",
        ),
    ];
    for (key, field) in &changed {
        site.patch(key, of_nothing(field)).await;
    }
    site.load_roles().await;
    for key in deleted.iter().chain(changed.iter().map(|(key, _)| key)) {
        let (now, born) = (site.tree(key), site.layered(key));
        assert_eq!(upgrade::merge(key, &now, Some(&born)), Merge::Keep, "{key}");
        let field = |object: &Value, field: &str| object.items_at(&[field]).len();
        assert_eq!(field(&now, "subjects"), field(&born, "subjects"), "{key}");
        assert!(field(&now, "rules") >= field(&born, "rules"), "{key}");
    }
    let (count, version) = (own_objects(), site.tenant.plane.snapshot().version());
    assert_eq!(count, 5);
    site.load_roles().await;
    assert_eq!(
        site.tenant.plane.snapshot().version(),
        version,
        "once is enough"
    );
}

#[tokio::test]
async fn only_kinds_of_roles_that_a_plane_has_changed_are_compared_with_its_layer() {
    let site = Site::open().await;
    let compared = || -> Vec<Prefix> {
        let kinds = bootstrap_roles::own_kinds(&Release::own(), &site.tenant);
        kinds.iter().map(|kind| kind.prefix.clone()).collect()
    };
    assert!(compared().is_empty());
    let own = rbac("clusterroles", None, "own");
    site.create(&own, json!({"rules": []})).await;
    assert_eq!(compared(), [own.resource_prefix()]);
    let reader = "extension-apiserver-authentication-reader";
    let deleted = rbac("roles", Some("kube-system"), reader);
    site.delete(&deleted).await;
    let both = [own, deleted].map(|key| key.resource_prefix());
    assert_eq!(compared(), both);
}

#[tokio::test]
async fn roles_that_opted_out_and_the_administrators_binding_stay_as_their_users_left_them() {
    let site = Site::open().await;
    let opted_out = rbac("clusterroles", None, "system:public-info-viewer");
    let note = json!({"rbac.authorization.kubernetes.io/autoupdate": "false"});
    site.patch(
        &opted_out,
        json!({"metadata": {"annotations": note}, "rules": null}),
    )
    .await;
    let administrators = rbac("clusterrolebindings", None, "polyplane:cluster-admins");
    site.delete(&administrators).await;
    site.load_roles().await;
    assert!(site.tree(&opted_out).items_at(&["rules"]).is_empty());
    assert!(site.object(&administrators).is_none());
}
