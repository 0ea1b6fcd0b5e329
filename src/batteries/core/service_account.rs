//! ServiceAccounts: only the names of their references to Secrets are kept.

use crate::shared::object_metadata;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

/// Behaviour of ServiceAccounts.
#[derive(Debug)]
pub struct ServiceAccount;

impl Strategy for ServiceAccount {
    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        clean_references(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        clean_references(object);
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        object_metadata::validate_finalizers(object)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(object_metadata::validate(
            object,
            Scope::Namespaced,
            NameRule::DnsSubdomain,
        ));
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let has = |object: &Value| object.at(&["metadata", "annotations", MOUNTABLE]).is_some();
        if old.is_some_and(has) || !has(object) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )]
    }
}

fn clean_references(object: &mut Value) {
    let Some(secrets) = object.get_mut("secrets").and_then(Value::as_array_mut) else {
        return;
    };
    for secret in secrets {
        let name = secret.get("name").cloned();
        *secret = Value::object();
        if let Some(name) = name {
            secret.set(&["name"], name);
        }
    }
}
