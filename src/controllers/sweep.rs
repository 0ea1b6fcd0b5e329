//! The one timer for all planes of a replica: removes expired objects, puts unused planes to sleep,
//! and writes changed sizes of planes. This module does not decide when a plane counts as unused.

use crate::client::{OwnClient, OwnRequest};
use crate::control_planes::{GROUP, RESOURCE};
use crate::work::Reconcilers;
use parking_lot::Mutex;
use polyplane_apimachinery::Value;
use polyplane_batteries::polyplane::control_plane;
use polyplane_ownership::Planes;
use polyplane_plane::{Claim, Operation, Plane, Write};
use polyplane_registry::{Tenant, Verb};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest pause between two sweeps. An expired object is removed at most this much later.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Shortest pause between two sweeps. Idle times are counted in seconds, so less would gain nothing.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Expired objects that one sweep removes from one plane, at most. The next sweep removes the
/// others; without the limit one plane would delay the rest.
const EXPIRED_MAX: usize = 100;
/// Planes whose sizes one sweep writes, at most. The next sweep writes the others; without the
/// limit the root plane would get a burst of writes.
const FIGURES_MAX: usize = 100;
/// How long removing one expired object may take. Without the limit a store that does not answer
/// would stop the sweeps of all planes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the root plane if it is awake in this process.
pub type RootHere = Box<dyn Fn() -> Option<Tenant> + Send + Sync>;

/// Sweeps all planes of a process.
pub struct Sweeper {
    client: OwnClient,
    planes: Arc<Planes>,
    reconcilers: Arc<Reconcilers>,
    root: RootHere,
    /// The numbers of own objects and of their bytes that were last written, by plane id.
    written: Mutex<HashMap<String, (u64, u64)>>,
}

impl Sweeper {
    /// Creates the sweeper of a replica's planes.
    pub fn new(
        client: OwnClient,
        planes: Arc<Planes>,
        reconcilers: Arc<Reconcilers>,
        root: RootHere,
    ) -> Self {
        Self {
            client,
            planes,
            reconcilers,
            root,
            written: Mutex::new(HashMap::new()),
        }
    }

    /// Sweeps until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        // With a longer pause, planes would stay awake for much longer than their idle time.
        let pause = self.planes.idle().clamp(PAUSE_MIN, PAUSE_MAX);
        loop {
            tokio::select! {
                // First: a stopping server sweeps nothing.
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            for plane in self.planes.all_awake() {
                remove_expired(&plane).await;
            }
            if let Some(root) = (self.root)() {
                self.write_figures(&root).await;
            }
            let has_work = |plane: &Arc<Plane>| self.reconcilers.has_work(plane);
            self.planes.sweep(&has_work).await;
        }
    }

    /// Writes the sizes of planes that are awake anywhere in the ring into their ControlPlane
    /// objects, if the sizes have changed. They are what the limits of the planes count.
    async fn write_figures(&self, root: &Tenant) {
        let figures = self.planes.figures_of_ring().await;
        let awake: HashMap<&str, (u64, u64)> = figures
            .planes
            .iter()
            .filter_map(|figures| {
                let size = (figures.own_objects()?, figures.bytes);
                Some((figures.plane.as_str(), size))
            })
            .collect();
        self.written
            .lock()
            .retain(|id, _| awake.contains_key(id.as_str()));
        let changed: Vec<(&str, (u64, u64))> = awake
            .into_iter()
            .filter(|(id, figures)| self.written.lock().get(*id) != Some(figures))
            .take(FIGURES_MAX)
            .collect();
        let cut = root.plane.snapshot();
        for (id, figures) in changed {
            let Some(key) = cut.index_owner(control_plane::ids(), id.as_bytes()) else {
                continue;
            };
            if self.write(root, key.name(), figures).await {
                self.written.lock().insert(id.to_owned(), figures);
            }
        }
    }

    async fn write(&self, root: &Tenant, name: &str, (objects, bytes): (u64, u64)) -> bool {
        let mut patch = Value::object();
        patch.set(
            &["status", "objects"],
            i64::try_from(objects).unwrap_or(i64::MAX),
        );
        patch.set(
            &["status", "bytes"],
            i64::try_from(bytes).unwrap_or(i64::MAX),
        );
        let Some(row) = root.base.stored(GROUP, RESOURCE) else {
            return false;
        };
        let own = OwnRequest {
            subresource: "status",
            content_type: "application/merge-patch+json",
            body: &patch,
            ..OwnRequest::new(Verb::Patch, row, "", name)
        };
        match own.send(&self.client, root).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(name, %error, "cannot write the size of a plane");
                false
            }
        }
    }
}

async fn remove_expired(plane: &Arc<Plane>) {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    for key in plane.expired(since.as_secs(), EXPIRED_MAX) {
        let Some(object) = plane.snapshot().get(&key) else {
            continue;
        };
        let write = Write {
            claims: vec![Claim::At(key.clone(), object.stamp())],
            operations: vec![Operation::Delete { key }],
            deadline: Some(Instant::now() + PATIENCE),
        };
        if let Err(error) = plane.submit(write).await {
            tracing::debug!(plane = plane.id(), %error, "cannot remove an expired object");
        }
    }
}
