//! What every request may use beside its plane, and who hears of its writes.

use crate::call::Tenant;
use crate::delete::Removal;
use crate::environment::Environment;
use crate::kind::Resource;
use polyplane_plane::{Committed, ObjectRef};
use std::sync::Arc;

/// Hears of every write that was committed through the registry, at the owner.
pub trait Observer: Send + Sync {
    /// `object` of `row` was written; it is gone if `removal` says so.
    fn written(&self, tenant: &Tenant, row: &Resource, object: &ObjectRef, removal: Removal);
}

/// Shared by all requests.
pub struct Services {
    /// Time and chance.
    pub environment: Arc<dyn Environment>,
    /// Who hears of writes.
    pub observers: Vec<Arc<dyn Observer>>,
}

impl Services {
    /// Tells the observers of a commit; `removals` says of each object whether it is gone.
    pub(crate) fn committed(&self, tenant: &Tenant, committed: &Committed, removals: &[Removal]) {
        for (written, removal) in committed.objects.iter().zip(removals) {
            let key = written.object.key();
            let Some(row) = tenant.kinds.stored(key.group(), key.resource()) else {
                continue;
            };
            for observer in &self.observers {
                observer.written(tenant, row, &written.object, *removal);
            }
        }
    }
}
