//! Who may change who may enter a control plane.
//!
//! A change of `spec.access` or `spec.authentication` is worth a credential of the plane, so it needs the same right: to
//! create `controlplanes/credentials` of that name. Without this check the right to change a plane's
//! other fields would be a way into it.

use polyplane_apimachinery::Value;
use polyplane_auth::{Attributes as Access, Decision, Subject};
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Mutated};

/// See the module.
#[derive(Debug)]
pub(crate) struct PlaneAccess;

impl Admission for PlaneAccess {
    fn name(&self) -> &'static str {
        "PlaneAccess"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["controlplanes.polyplane.dev"])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let Some(object) = object else {
            return Ok(Mutated::Unchanged);
        };
        let of = |tree: &Value, field: &str| tree.at(&["spec", field]).cloned();
        let differs = |field: &&str| of(object, field) != what.old.and_then(|old| of(old, field));
        let name = object.str_at(&["metadata", "name"]);
        let right = Access {
            user: &what.call.request.user,
            verb: "create",
            subject: Subject::Resource {
                group: "polyplane.dev",
                version: "v1alpha1",
                resource: "controlplanes",
                subresource: "credentials",
                namespace: "",
                name,
                field_selector: "",
            },
        };
        let changed = ["access", "authentication"]
            .into_iter()
            .find(|field| differs(field));
        if let Some(field) = changed
            && call_outs.authorize(&right)? != Decision::Allow
        {
            let why = format!(
                "a change of spec.{field} needs the right to create controlplanes/credentials of this name"
            );
            return Err(what.forbidden(Some(object), &why).into());
        }
        Ok(Mutated::Unchanged)
    }
}
