//! ResourceClaimTemplates, from which claims are made.

use super::resource_claim::spec;
use super::{admin_access, flat};
use crate::shared::object_metadata;
use crate::shared::pod::validation;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::IMMUTABLE;
use crate::shared::validation::equality::alike;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::Snapshot;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Allocation, Context, Strategy};

const SPEC: &str = "io.k8s.api.resource.v1.ResourceClaimTemplateSpec";

/// Behaviour of the ResourceClaimTemplates of one version.
#[derive(Clone, Copy, Debug)]
pub enum ResourceClaimTemplate {
    /// A version with the form in which templates are stored.
    Stored,
    /// Version v1beta1.
    Flat,
}

impl Strategy for ResourceClaimTemplate {
    fn default(&self, object: &mut Value) {
        let default = match self {
            Self::Stored => spec::default,
            Self::Flat => flat::default_requests,
        };
        object
            .at_mut(&["spec", "spec"])
            .into_iter()
            .for_each(default);
    }

    fn declared_field(&self, stored: &str) -> Option<String> {
        match self {
            Self::Stored => None,
            Self::Flat => flat::request_field(stored),
        }
    }

    fn to_stored(&self, _: &str, mut object: Value) -> Value {
        if let (Self::Flat, Some(spec)) = (self, object.at_mut(&["spec", "spec"])) {
            flat::requests_to_stored(spec);
        }
        object
    }

    fn to_served(&self, _: &str, mut object: Value) -> Value {
        if let (Self::Flat, Some(spec)) = (self, object.at_mut(&["spec", "spec"])) {
            flat::requests_to_served(spec);
        }
        object
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors =
            object_metadata::validate(object, Scope::Namespaced, NameRule::DnsSubdomain);
        validate_spec(&mut errors, &object["spec"]);
        errors.extend(object_metadata::validate_update(object, old));
        if !alike(context.schemas, SPEC, &object["spec"], &old["spec"]) {
            let bad = bad_value::typed(SPEC, &object["spec"]);
            errors.push(FieldError::invalid(&Path::new("spec"), bad, IMMUTABLE));
        }
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
            admin_access::admit(
                "ResourceClaimTemplate",
                cut,
                object,
                &object["spec"]["spec"],
            )?;
        }
        Ok(Allocation::default())
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![name_cell(object), age_cell(object, now)]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    validation::claim_template::validate_metadata(
        &spec["metadata"],
        &path.child("metadata"),
        errors,
    );
    spec::validate(errors, &path.child("spec"), &spec["spec"]);
}
