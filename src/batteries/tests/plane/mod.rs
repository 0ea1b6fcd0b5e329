//! Planes in memory, against which addresses and ports are allocated.

mod open;

use polyplane_plane::{Operation, Snapshot, Write};

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
        let plane = open::open().await;
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
