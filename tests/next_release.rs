//! The binary of a future release: this program with a higher level and other bootstrap objects,
//! for tests of rolling upgrades.
//!
//! `tests/ring_upgrade.rs` checks the differences: roles that are new (more than one commit of a
//! step can contain), changed and removed, a binding of another role, a flow schema with another
//! precedence.

use std::process::ExitCode;

use polyplane::Release;
use polyplane_apimachinery::{Value, json};
use polyplane_batteries::bootstrap::{BootstrapObject, LEVEL, Restore, objects};
use polyplane_plane::Key;

const RBAC: &str = "rbac.authorization.k8s.io";
/// New roles beside the named ones. With so many, a step needs more than one commit.
const ROLES: usize = 300;

fn main() -> ExitCode {
    let mut objects = objects().to_vec();
    objects.retain(|object| object.key.name() != "system:kube-dns");
    for object in &mut objects {
        change(object);
    }
    objects.push(role("next:reader", "things"));
    objects.extend((0..ROLES).map(|at| role(&format!("next:role-{at:03}"), "parts")));
    match Release::new(LEVEL + 1, &objects) {
        Ok(release) => polyplane::run(release),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn change(object: &mut BootstrapObject) {
    let tree = &mut object.tree;
    match (object.key.resource(), object.key.name()) {
        ("clusterroles", "system:kube-aggregator" | "system:node-problem-detector") => {
            let mut rules = tree.items_at(&["rules"]).to_vec();
            rules.push(rule("things"));
            tree.set(&["rules"], rules);
        }
        ("clusterrolebindings", "system:public-info-viewer") => {
            tree.set(&["roleRef", "name"], "next:reader");
        }
        ("flowschemas", "probes") => tree.set(&["spec", "matchingPrecedence"], 3_i64),
        _ => {}
    }
}

fn role(name: &str, resource: &str) -> BootstrapObject {
    let mut tree = json!({
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}
        }
    });
    tree.set(&["rules"], vec![rule(resource)]);
    BootstrapObject {
        key: Key::new(RBAC, "clusterroles", None, name),
        tree,
        restore: Restore::Step,
    }
}

fn rule(resource: &str) -> Value {
    json!({"verbs": ["get"], "apiGroups": ["next.example"], "resources": [resource]})
}
