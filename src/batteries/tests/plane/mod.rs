//! Planes in memory, against which addresses and ports are allocated.

use polyplane_plane::{
    Committer, Layer, Layers, LogBounds, Operation, Plane, PlaneParams, PlaneRecord, Snapshot,
    SoleHolder, Version, Write,
};
use polyplane_storage::{MemoryOptions, MemoryStore, Revision};
use std::sync::Arc;

/// The cut of an empty plane, against which addresses and ports are allocated.
pub fn empty() -> Snapshot {
    with(Vec::new())
}

/// The cut of a plane that holds what `operations` put there.
pub fn with(operations: Vec<Operation>) -> Snapshot {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be built").block_on(async {
        let store = MemoryStore::new(MemoryOptions::default());
        let store: Arc<dyn polyplane_storage::Store> = Arc::new(store);
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
            committer: Committer::new(store),
            guard: guard.expect("memory takes the fence"),
            acquired: Revision(1),
            log: LogBounds::default(),
            foreign: None,
            import: None,
        });
        let plane = plane.await.expect("an empty plane opens");
        if !operations.is_empty() {
            let write = Write {
                operations,
                claims: Vec::new(),
                deadline: None,
            };
            plane.submit(write).await.expect("memory takes what is put");
        }
        plane.snapshot()
    })
}
