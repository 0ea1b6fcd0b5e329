//! Pods.

pub mod prepare;

use crate::shared::network::addresses;
use crate::shared::object_metadata;
use crate::shared::pod::validation;
use crate::shared::pod::validation::{PodOptions, resize, status, update};
use crate::shared::pod::{defaults, init_annotations, qos, table_cells, warnings};
use crate::shared::validation::equality::alike;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Str, Value};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Grace, RowCompletion, Strategy};

/// Behaviour of Pods.
#[derive(Debug)]
pub struct Pod;

impl Strategy for Pod {
    fn default(&self, object: &mut Value) {
        defaults::default_pod(object);
    }

    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        object.set(&["status"], Value::object());
        object.set(&["status", "phase"], "Pending");
        init_annotations::drop_at(object, &[]);
        prepare::hold_back(object, context.now);
        prepare::resolve_label_keys(object);
        prepare::take_app_armor_from_annotations(object, context.warnings);
        qos::default_pod_resources(object);
        let class = qos::computed_class(object);
        object.set(&["status", "qosClass"], class);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        prepare::keep_pod_resources(object, old);
        init_annotations::drop_at(object, &[]);
    }

    fn forget_old_forms(&self, object: &mut Value) {
        init_annotations::drop_at(object, &[]);
    }

    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        match context.subresource {
            "resize" => prepare::keep_all_but_resources(object, old),
            "ephemeralcontainers" => prepare::keep_all_but_ephemeral(object, old),
            _ => {
                prepare::keep_all_but_status(object, old);
                return;
            }
        }
        init_annotations::drop_at(object, &[]);
        let (spec, before) = (&object["spec"], &old["spec"]);
        if !alike(context.schemas, update::SPEC, spec, before) {
            let generation = old.int_at(&["metadata", "generation"]).unwrap_or(0);
            object.set(&["metadata", "generation"], generation + 1);
        }
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        let options = PodOptions::for_pod(None).with(context.settings.privileged);
        errors.extend(validation::validate_pod_create(object, &options));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata_errors(object, old);
        let options = PodOptions::for_pod(Some(old)).with(context.settings.privileged);
        errors.extend(update::validate(context.schemas, object, old, &options));
        errors
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        let options = PodOptions::for_pod(Some(old)).with(context.settings.privileged);
        match context.subresource {
            "resize" => {
                let mut errors = metadata_errors(object, old);
                errors.extend(resize::validate(
                    context.schemas,
                    context.features,
                    object,
                    old,
                    &options,
                ));
                errors
            }
            "ephemeralcontainers" => {
                let mut errors = metadata_errors(object, old);
                errors.extend(resize::validate_ephemeral(
                    context.schemas,
                    object,
                    old,
                    &options,
                ));
                errors
            }
            _ => {
                let mut errors = object_metadata::validate_update(object, old);
                errors.extend(status::validate(object, old, &options));
                errors
            }
        }
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if old.is_none() {
            let complaints = names::dns1123_label(object.str_at(&["metadata", "name"]));
            if !complaints.is_empty() {
                warnings.push(format!(
                    "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
                    complaints.join(" ")
                ));
            }
            warnings.extend(warnings::pod(object));
        } else if context.subresource == "status" {
            for list in ["podIPs", "hostIPs"] {
                let status = Path::new("status");
                let list_path = status.child(list);
                for (at, item) in object.items_at(&["status", list]).iter().enumerate() {
                    let path = list_path.index(at);
                    warnings.extend(addresses::ip_warnings(
                        &path.child("ip"),
                        item.str_at(&["ip"]),
                    ));
                }
            }
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        table_cells::pod(object, now)
    }

    fn completion(&self, object: &Value) -> Option<RowCompletion> {
        table_cells::completion(object)
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        match name {
            "spec.hostNetwork" => {
                let shared = object.bool_at(&["spec", "hostNetwork"]);
                Some(if shared {
                    "true".into()
                } else {
                    "false".into()
                })
            }
            "status.podIP" => {
                let first = object.first_at(&["status", "podIPs"]);
                Some(first.map_or("".into(), |item| Str::from(&*item.str_at(&["ip"]))))
            }
            "status.podIPs" => Some("".into()),
            _ => None,
        }
    }

    fn grace(&self, object: &Value, wished: Option<i64>) -> Grace {
        let own = object.int_at(&["spec", "terminationGracePeriodSeconds"]);
        let seconds = wished.or(own).unwrap_or(0);
        let ended = matches!(object.str_at(&["status", "phase"]), "Failed" | "Succeeded");
        if ended || object.str_at(&["spec", "nodeName"]).is_empty() || seconds == 0 {
            Grace::Now
        } else {
            Grace::Seconds(if seconds < 0 { 1 } else { seconds })
        }
    }

    fn returns_deleted(&self) -> bool {
        true
    }
}

/// Returns complaints about metadata by the rules of new and of changed pods.
fn metadata_errors(object: &Value, old: &Value) -> Complaints {
    let mut errors = object_metadata::validate_update(object, old);
    errors.extend(object_metadata::validate(
        object,
        Scope::Namespaced,
        NameRule::DnsSubdomain,
    ));
    errors
}
