//! The services that every request may use beside its plane, and the observers of a plane's writes.

use crate::authority::Authority;
use crate::environment::Environment;
use crate::kinds::table::{KindTable, Resource};
use crate::plan::AdmissionChain;
use crate::request::call::Tenant;
use crate::settings::PlaneSettings;
use crate::tokens::TokenIssuers;
use crate::verbs::components::Components;
use crate::verbs::credential::IssueCredential;
use crate::verbs::external::ExternalObjects;
use crate::verbs::watch::selectors::SharedSelectors;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::value::SharedObjects;
use polyplane_plane::{Event, ObjectRef, Plane};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The state of an object after its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is removed.
    Gone,
    /// It is marked as being deleted and waits.
    Pending,
}

/// An observer that is notified of every write that a plane's owner publishes.
pub trait Observer: Send + Sync {
    /// Notifies the observer that `object` of `row` was written. `removal` says whether that
    /// removed it.
    fn written(&self, tenant: &Tenant, row: &Resource, object: &ObjectRef, removal: Removal);

    /// Notifies the observer that it panicked over a write of this plane, so that it knows only a part of it.
    fn missed(&self, tenant: &Tenant);
}

/// The services that all requests share.
#[derive(Clone)]
pub struct Services {
    /// The clock and the randomness.
    pub environment: Arc<dyn Environment>,
    /// The authority that decides on accesses.
    pub authority: Authority,
    /// The observers of writes.
    pub observers: Vec<Arc<dyn Observer>>,
    /// The plug-ins that may change or refuse a write.
    pub admission: AdmissionChain,
    /// The readers of objects that are kept elsewhere than in a plane.
    pub external: Vec<Arc<dyn ExternalObjects>>,
    /// What planes run on; `None` if this server does not tell it.
    pub components: Option<Arc<dyn Components>>,
    /// The issuers of tokens; `None` if no plane has one.
    pub tokens: Option<Arc<dyn TokenIssuers>>,
    /// The issuer of credentials for users of planes, if this server issues any.
    pub credentials: Option<Arc<dyn IssueCredential>>,
    /// The sets of fields that the objects of a plane have in common.
    pub field_sets: Arc<SharedObjects>,
    /// The long selectors that the watches of a plane have in common.
    pub selectors: Arc<SharedSelectors>,
}

impl Services {
    /// Returns the reader of the objects of an external kind.
    pub(crate) fn external(&self, row: &Resource) -> Option<&dyn ExternalObjects> {
        let mut external = self.external.iter();
        let found = external.find(|objects| row.qualified == objects.resource());
        found.map(|objects| &**objects)
    }
}

/// Notifies the observers of what one plane publishes. It has all of a tenant but the plane,
/// because the plane holds a reference to this.
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
                // A panic would end the process, because the committer waits for this; and an object that one
                // tenant wrote would do so again at the plane's next owner. The observers' locks are not poisoned.
                let observed = AssertUnwindSafe(|| observer.written(&tenant, row, object, removal));
                if catch_unwind(observed).is_err() {
                    tracing::error!(plane = plane.id(), ?key, "an observer of a write panicked");
                    observer.missed(&tenant);
                }
            }
        }
    }
}
