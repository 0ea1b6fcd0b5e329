//! What every request may use beside its plane, and who hears of a plane's writes.

use crate::authority::Authority;
use crate::environment::Environment;
use crate::kinds::table::{KindTable, Resource};
use crate::plan::Admission;
use crate::request::call::Tenant;
use crate::strategy::PlaneSettings;
use crate::verbs::delete::Removal;
use crate::verbs::external::ExternalObjects;
use polyplane_apimachinery::Str;
use polyplane_plane::{Event, ObjectRef, Plane};
use std::sync::Arc;

/// Hears of every write that a plane's owner publishes.
pub trait Observer: Send + Sync {
    /// `object` of `row` was written; it is gone if `removal` says so.
    fn written(&self, tenant: &Tenant, row: &Resource, object: &ObjectRef, removal: Removal);
}

/// Shared by all requests.
#[derive(Clone)]
pub struct Services {
    /// Time and chance.
    pub environment: Arc<dyn Environment>,
    /// Who decides what users may do.
    pub authority: Authority,
    /// Who hears of writes.
    pub observers: Vec<Arc<dyn Observer>>,
    /// Who may change or refuse a write, in order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Objects that are kept elsewhere than in a plane.
    pub external: Vec<Arc<dyn ExternalObjects>>,
}

impl Services {
    /// Who reads the objects of an external kind.
    pub(crate) fn external(&self, row: &Resource) -> Option<&dyn ExternalObjects> {
        let mut external = self.external.iter();
        let found = external.find(|objects| row.qualified == objects.resource());
        found.map(|objects| &**objects)
    }
}

/// Tells the observers what one plane publishes. Holds all of a tenant but its plane, which holds
/// this.
pub(crate) struct PlaneObserver {
    pub(crate) name: Str,
    pub(crate) base: Arc<KindTable>,
    pub(crate) settings: Arc<PlaneSettings>,
    pub(crate) services: Arc<Services>,
}

impl polyplane_plane::Observer for PlaneObserver {
    fn published(&self, plane: &Arc<Plane>, events: &[Arc<Event>]) {
        let tenant = Tenant {
            name: self.name.clone(),
            plane: Arc::clone(plane),
            base: Arc::clone(&self.base),
            settings: Arc::clone(&self.settings),
        };
        let kinds = tenant.kinds();
        for event in events {
            let key = event.key();
            let Some(row) = kinds.stored(key.group(), key.resource()) else {
                continue;
            };
            let (object, removal) = match (event.current(), event.previous()) {
                (Some(current), _) => (current, Removal::Pending),
                (None, Some(previous)) => (previous, Removal::Gone),
                (None, None) => continue,
            };
            for observer in &self.services.observers {
                observer.written(&tenant, row, object, removal);
            }
        }
    }
}
