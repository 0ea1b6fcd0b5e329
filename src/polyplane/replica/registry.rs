//! The registry of a replica, with what it knows beside the planes.

use crate::replica::ReplicaParts;
use crate::replica::credentials::CredentialIssuer;
use crate::replica::fences::Fences;
use crate::replica::plane_directory::PlaneDirectory;
use crate::replica::root_secret::SharedSecret;
use polyplane_registry::environment::System;
use polyplane_registry::{Components, Observer, Registry};
use polyplane_storage::Health;
use std::sync::Arc;

/// Builds the registry. Takes the admission plug-ins out of `setup`.
pub fn build_registry(
    setup: &mut ReplicaParts,
    directory: &Arc<PlaneDirectory>,
    secret: &Arc<SharedSecret>,
    observers: Vec<Arc<dyn Observer>>,
) -> Registry {
    Registry::new(Arc::new(System), setup.authority.clone(), observers)
        .admitting(std::mem::take(&mut setup.admission))
        .with_external(Arc::new(Fences(Arc::clone(directory))))
        .with_components(Arc::new(StoreHealth(Arc::clone(directory))))
        .with_credentials(Arc::new(CredentialIssuer::new(Arc::clone(secret))))
}

/// The health of the store, which is that of every plane's `etcd-0`.
struct StoreHealth(Arc<PlaneDirectory>);

impl Components for StoreHealth {
    fn store_works(&self) -> bool {
        matches!(self.0.planes.store().health(), Health::Ok)
    }
}
