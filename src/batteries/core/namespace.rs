//! Namespaces: they stay until their content is deleted, which `spec.finalizers` represent.

use crate::polyplane::controllers::{Controller, Controllers};
use crate::shared::object_metadata;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_registry::strategy::{Companion, CompanionChange, Context, Strategy, age};
use polyplane_registry::{Scope, metadata};

/// The label that has the namespace's name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// The finalizer that represents the content.
const CONTENT: &str = "kubernetes";
/// The namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];
/// The description in the ConfigMap with the root CA that every namespace has.
const ROOT_CA_TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The manager of what every namespace has: that of upstream's controllers which create it.
const CONTENT_MANAGER: &str = "kube-controller-manager";

/// Behaviour of Namespaces.
#[derive(Debug)]
pub struct Namespace;

impl Strategy for Namespace {
    fn default(&self, object: &mut Value) {
        let name = object.str_at(&["metadata", "name"]).to_owned();
        if !name.is_empty() {
            object.set(&["metadata", "labels", NAME_LABEL], name);
        }
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        object.set(&["status"], json!({"phase": "Active"}));
        let finalizers = object["spec"]["finalizers"].take();
        let mut finalizers = match finalizers {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        if !finalizers.iter().any(|name| name.as_str() == Some(CONTENT)) {
            finalizers.push(CONTENT.into());
        }
        object.set(&["spec", "finalizers"], finalizers);
        set_name_label(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        match old.at(&["spec", "finalizers"]) {
            Some(finalizers) => object.set(&["spec", "finalizers"], finalizers.clone()),
            None => drop(object.remove(&["spec", "finalizers"])),
        }
        set_name_label(object);
    }

    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        let kept = if context.subresource == "finalize" {
            "status"
        } else {
            "spec"
        };
        object.set(&[kept], old[kept].clone());
        set_name_label(object);
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_spec(object));
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsLabel);
        errors.extend(validate_spec(object));
        errors.extend(object_metadata::validate_update(object, old));
        errors
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        if context.subresource == "finalize" {
            let spec = Path::new("spec");
            let path = spec.child("finalizers");
            for (at, name) in metadata::strings(&object["spec"]["finalizers"])
                .iter()
                .enumerate()
            {
                validate_finalizer(name, &path.index(at), &mut errors);
            }
            return errors;
        }
        let deleted = !object.str_at(&["metadata", "deletionTimestamp"]).is_empty();
        let (phase, detail) = if deleted {
            (
                "Terminating",
                "may only be 'Terminating' if `deletionTimestamp` is not empty",
            )
        } else {
            (
                "Active",
                "may only be 'Active' if `deletionTimestamp` is empty",
            )
        };
        let given = object.str_at(&["status", "phase"]);
        if given != phase {
            let status = Path::new("status");
            errors.push(FieldError::invalid(
                &status.child("Phase"),
                Bad::Json(given.into()),
                detail,
            ));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            object.str_at(&["metadata", "name"]).into(),
            object.str_at(&["status", "phase"]).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }

    fn companions(&self, context: &Context<'_>, object: &Value) -> Vec<Companion> {
        let controllers = Controllers::without(context.settings.switched_off.bits(context.plane));
        let name = object.str_at(&["metadata", "name"]);
        let companion = |resource: &str, companion_name: &str, tree: Value| Companion {
            group: Default::default(),
            resource: resource.into(),
            namespace: Some(name.into()),
            name: companion_name.into(),
            manager: CONTENT_MANAGER,
            change: CompanionChange::Ensure(tree),
        };
        let mut companions = Vec::new();
        if controllers.has(Controller::ServiceAccount) {
            let account = json!({"metadata": {}});
            companions.push(companion("serviceaccounts", "default", account));
        }
        if controllers.has(Controller::RootCaCertificatePublisher) {
            let root_ca = root_ca(&context.settings.serving_ca);
            companions.push(companion("configmaps", "kube-root-ca.crt", root_ca));
        }
        companions
    }

    /// The first deletion only marks a namespace, even one without finalizers: what is in it goes before it does.
    fn awaits(&self, object: &Value) -> bool {
        !object.items_at(&["spec", "finalizers"]).is_empty()
            || object.str_at(&["metadata", "deletionTimestamp"]).is_empty()
    }

    fn prepare_deletion(&self, object: &mut Value) {
        drop(object.remove(&["metadata", "deletionGracePeriodSeconds"]));
        object.set(&["status", "phase"], "Terminating");
    }

    fn admit_delete(&self, _: &Context<'_>, object: &Value) -> Result<(), ApiError> {
        let name = object.str_at(&["metadata", "name"]);
        if !IMMORTAL.contains(&name) {
            return Ok(());
        }
        let what = Qualified::new("", "namespaces");
        Err(ApiError::forbidden(
            what,
            name,
            "this namespace may not be deleted",
        ))
    }
}

/// Returns the ConfigMap with the root CA that every namespace has, without its name.
pub fn root_ca(certificates: &Str) -> Value {
    json!({
        "metadata": {"annotations": {"kubernetes.io/description": ROOT_CA_TEXT}},
        "data": {"ca.crt": (certificates.clone())}
    })
}

/// Sets the label with the name. A name that cannot be a label value is refused elsewhere.
fn set_name_label(object: &mut Value) {
    let name = object.str_at(&["metadata", "name"]).to_owned();
    if !name.is_empty() && names::label_value(&name).is_empty() {
        object.set(&["metadata", "labels", NAME_LABEL], name);
    }
}

fn validate_spec(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let spec = Path::new("spec");
    for name in metadata::strings(&object["spec"]["finalizers"]) {
        validate_finalizer(name, &spec.child("finalizers"), &mut errors);
    }
    errors
}

fn validate_finalizer(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    for detail in names::qualified_name(name) {
        errors.push(FieldError::invalid(path, name, detail));
    }
    errors.extend(object_metadata::validate_standard_finalizer(name, path));
}
