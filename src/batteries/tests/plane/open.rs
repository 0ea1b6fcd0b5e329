//! A plane of its own in memory.

use polyplane_plane::{
    Committer, Layer, Layers, LogBounds, Plane, PlaneParams, PlaneRecord, SoleHolder, Version,
};
use polyplane_storage::{MemoryOptions, MemoryStore, Revision, Store};
use std::sync::Arc;

/// Opens an empty plane in a store of its own.
pub async fn open() -> Arc<Plane> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
    let plane = Plane::open(PlaneParams {
        record: PlaneRecord {
            id: "test".into(),
            base: 0,
            birth: None,
            layer: Layer::empty().hash().clone(),
            params: Default::default(),
        },
        born: Version::from_raw(256),
        born_at: "2024-05-06T07:08:09Z".into(),
        layers: Layers::new(Arc::clone(&store)),
        uid_seed: [0; 32],
        indexes: polyplane_batteries::core::indexes(),
        derivation: None,
        committer: Committer::new(store),
        guard: guard.expect("memory takes the fence"),
        acquired: Revision(1),
        log: LogBounds::default(),
        foreign: None,
        import: None,
    });
    plane.await.expect("an empty plane opens")
}
