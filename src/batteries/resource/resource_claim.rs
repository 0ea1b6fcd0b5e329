//! ResourceClaims: a request for devices, the devices allocated to it and the pods that use them.

pub mod spec;
pub mod status;

use super::{admin_access, flat};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::Snapshot;
use polyplane_registry::strategy::{Allocation, Context, Strategy};
use polyplane_registry::{Scope, metadata};

/// Behaviour of the ResourceClaims of one version.
#[derive(Clone, Copy, Debug)]
pub enum ResourceClaim {
    /// A version with the form in which claims are stored.
    Stored,
    /// Version v1beta1.
    Flat,
}

impl Strategy for ResourceClaim {
    fn default(&self, object: &mut Value) {
        let default = match self {
            Self::Stored => spec::default,
            Self::Flat => flat::default_requests,
        };
        object.get_mut("spec").into_iter().for_each(default);
    }

    fn declared_field(&self, stored: &str) -> Option<String> {
        match self {
            Self::Stored => None,
            Self::Flat => flat::request_field(stored),
        }
    }

    fn to_stored(&self, _: &str, mut object: Value) -> Value {
        if let (Self::Flat, Some(spec)) = (self, object.get_mut("spec")) {
            flat::requests_to_stored(spec);
        }
        object
    }

    fn to_served(&self, _: &str, mut object: Value) -> Value {
        if let (Self::Flat, Some(spec)) = (self, object.get_mut("spec")) {
            flat::requests_to_served(spec);
        }
        object
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        let status = object.remove(&["status"]);
        metadata::keep_all_but_managers(object, old.clone());
        match status {
            Some(status) => object.set(&["status"], status),
            None => drop(object.remove(&["status"])),
        }
        status::prepare(&mut object["status"], &old["status"]);
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        spec::validate(&mut errors, &Path::new("spec"), &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors =
            object_metadata::validate(object, Scope::Namespaced, NameRule::DnsSubdomain);
        errors.extend(object_metadata::validate_update(object, old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        status::validate(&mut errors, object, old);
        errors
    }

    fn allocate(
        &self,
        _: &Context<'_>,
        cut: &Snapshot,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Allocation, ApiError> {
        // A spec never changes, so only a new one requests devices.
        if old.is_none() {
            admin_access::admit("ResourceClaim", cut, object, &object["spec"])?;
        }
        Ok(Allocation::default())
    }

    fn admit_subresource(
        &self,
        _: &Context<'_>,
        cut: &Snapshot,
        object: &Value,
        old: &Value,
    ) -> Result<(), ApiError> {
        admin_access::admit_status(cut, object, old)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            state(object).into(),
            age_cell(object, now),
        ]
    }
}

/// Returns the state of the claim.
fn state(object: &Value) -> String {
    let deleted = present(&object["metadata"]["deletionTimestamp"]);
    let allocated = present(&object["status"]["allocation"]);
    let reserved = allocated && !object.items_at(&["status", "reservedFor"]).is_empty();
    let states = [
        ("deleted", deleted),
        ("pending", !allocated && !deleted),
        ("allocated", allocated),
        ("reserved", reserved),
    ];
    let states: Vec<&str> = states
        .iter()
        .filter(|(_, holds)| *holds)
        .map(|(state, _)| *state)
        .collect();
    states.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn states_follow_the_status() {
        assert_eq!(state(&json!({})), "pending");
        let used = json!({"status": {"allocation": {}, "reservedFor": [{"name": "pod"}]}});
        assert_eq!(state(&used), "allocated,reserved");
        let gone = json!({"metadata": {"deletionTimestamp": "2024-05-06T07:08:09Z"}});
        assert_eq!(state(&gone), "deleted");
    }
}
