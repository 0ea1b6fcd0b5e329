//! Field management: the ownership of an object's fields.
//!
//! After defaults and merge, before mutating admission, in the version of the request: fields that
//! admission adds have no owner.

use super::call_outs::Interrupted;
use super::run::Run;
use super::stages::{Defaulted, Target};
use polyplane_apimachinery::Value;

/// The object that the client wants, with the owners of its fields, in the version of the request.
pub(super) struct Managed(Value);

impl Managed {
    pub(super) fn into_tree(self) -> Value {
        self.0
    }
}

/// Brings `metadata.managedFields` up to date. Field owners are not tracked yet, so an object keeps
/// what the client has sent.
pub(super) fn manage(
    run: &mut Run<'_>,
    defaulted: Defaulted,
    target: &Target,
) -> Result<Managed, Interrupted> {
    let _ = (run, target);
    Ok(Managed(defaulted.into_tree()))
}
