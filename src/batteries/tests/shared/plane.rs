//! Planes in memory.

use polyplane_plane::{
    Committer, Derivation, LogBounds, Memory, Operation, Plane, PlaneParams, Snapshot, SoleHolder,
    Write,
};
use polyplane_storage::{MemoryOptions, MemoryStore, Store};
use std::sync::Arc;

/// The parameters that a plane is opened with.
pub struct Opening {
    pub store: Arc<dyn Store>,
    pub memory: Arc<Memory>,
    pub log: LogBounds,
    pub derivation: Option<Arc<dyn Derivation>>,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            store: Arc::new(MemoryStore::new(MemoryOptions::default())),
            memory: Arc::default(),
            log: LogBounds::default(),
            derivation: None,
        }
    }
}

/// Opens an empty plane.
pub async fn open(opening: Opening) -> Arc<Plane> {
    let store = opening.store;
    let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
    let guard = guard.expect("memory takes the fence");
    let plane = Plane::open(PlaneParams {
        indexes: polyplane_batteries::indexes(),
        derivation: opening.derivation,
        log: opening.log,
        ..guard.empty_plane(Committer::with_memory(store, opening.memory))
    });
    plane.await.expect("an empty plane opens")
}

/// Submits these operations.
pub async fn submit(plane: &Arc<Plane>, operations: Vec<Operation>) {
    let write = Write {
        operations,
        claims: Vec::new(),
        deadline: None,
    };
    plane.submit(write).await.expect("memory takes what is put");
}

/// Returns the cut of an empty plane, against which addresses and ports are allocated.
pub fn empty() -> Snapshot {
    with(Vec::new())
}

/// Returns the cut of a plane that has the objects which `operations` put.
pub fn with(operations: Vec<Operation>) -> Snapshot {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be built").block_on(async {
        let plane = open(Opening::default()).await;
        if !operations.is_empty() {
            submit(&plane, operations).await;
        }
        plane.snapshot()
    })
}
