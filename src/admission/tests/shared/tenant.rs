//! A control plane in memory, for the tests of what a registry admits to it and the example that measures it.

use polyplane_admission::indexes;
use polyplane_apimachinery::Str;
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_plane::{Committer, Plane, PlaneParams, SoleHolder};
use polyplane_registry::service_ranges::ServiceRange;
use polyplane_registry::settings::{BirthLayer, Lifetimes, PlaneSettings};
use polyplane_registry::{Shared, SwitchedOff, Tenant};
use polyplane_storage::{MemoryOptions, MemoryStore, Store};
use std::sync::Arc;

/// Returns a plane without objects.
pub async fn empty_tenant() -> Tenant {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
    let guard = guard.expect("memory takes the fence");
    let plane = Plane::open(PlaneParams {
        indexes: indexes(),
        ..guard.empty_plane(Committer::new(store))
    });
    let settings = PlaneSettings {
        service_ranges: ServiceRange::new([10, 0, 0, 0], 16).into(),
        node_ports: (30000, 32767),
        serving_ca: "certificates".into(),
        endpoint: Str::default(),
        birth_layer: BirthLayer::fixed(""),
        records_say_access: Shared::fixed(true),
        records_say_issuers: Shared::fixed(true),
        records_say_suspension: Shared::fixed(true),
        records_say_client_cas: Shared::fixed(true),
        switched_off: SwitchedOff::none(),
        watch_seconds_min: 1800,
        lifetimes: Lifetimes::default(),
        privileged: polyplane_registry::settings::Privileged::Allowed,
    };
    Tenant {
        name: "test".into(),
        plane: plane.await.expect("an empty plane opens"),
        base: tenant_kinds(),
        settings: Arc::new(settings),
    }
}
