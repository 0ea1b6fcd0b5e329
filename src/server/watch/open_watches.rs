//! The watches that this replica answers, by plane, so that a watch ends with its client's right to use
//! the plane.
//!
//! A request is proven when it arrives. A watch goes on for half an hour, and a client that may not use
//! the plane any more must not go on reading. When the record of a plane changes, the callers of its open
//! watches are proven again by the new record, and the watches of those who fail end as if their time
//! were up, whether or not there are more events. Planes whose records do not change cost nothing, and a
//! chunk of events costs one look at a token.
//!
//! Owns the list of open watches; must not know what a record says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_auth::{Credentials, Verdict};
use tokio_util::sync::CancellationToken;

use crate::backend::PlaneRecord;
use crate::connection::Connection;
use crate::request::bearer;
use crate::request::prove::is_still_proven;
use crate::request::route::PlaneReference;
use crate::server_state::ServerState;
use crate::watch::kept_head::kept_authorization;

/// The open watches of all planes.
#[derive(Default)]
pub(crate) struct OpenWatches {
    planes: Mutex<HashMap<Str, OfPlane>>,
}

#[derive(Default)]
struct OfPlane {
    watches: HashMap<u64, Arc<WatchingCaller>>,
    /// The number of the next watch.
    next: u64,
}

/// The caller of one watch.
struct WatchingCaller {
    connection: Arc<Connection>,
    /// The header with the bearer token, if there is one that may prove the caller.
    authorization: Option<HeaderValue>,
    ending: CancellationToken,
}

/// The entry of an open watch, which ends with this value.
pub(crate) struct OpenWatchEntry {
    state: Arc<ServerState>,
    plane: Str,
    number: u64,
    ending: CancellationToken,
}

impl OpenWatchEntry {
    /// Lists a watch of the plane of `record`, whose caller was proven by that record.
    pub(crate) fn open(
        state: &Arc<ServerState>,
        record: &dyn PlaneRecord,
        connection: &Arc<Connection>,
        headers: &HeaderMap,
    ) -> Self {
        let caller = WatchingCaller {
            connection: Arc::clone(connection),
            authorization: kept_authorization(headers),
            ending: state.drain.ending().child_token(),
        };
        let ending = caller.ending.clone();
        let plane = Str::from(record.id());
        let number = state.watches.add(plane.clone(), caller);
        // Only now: a change from before this line is seen here, one from after it finds the entry.
        if !record.is_current() {
            ending.cancel();
        }
        Self {
            state: Arc::clone(state),
            plane,
            number,
            ending,
        }
    }

    /// Returns the token that is cancelled when the watch has to end.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.ending.clone()
    }
}

impl Drop for OpenWatchEntry {
    fn drop(&mut self) {
        self.state.watches.remove(&self.plane, self.number);
    }
}

impl OpenWatches {
    fn add(&self, plane: Str, caller: WatchingCaller) -> u64 {
        let mut planes = self.planes.lock();
        let of_plane = planes.entry(plane).or_default();
        let number = of_plane.next;
        of_plane.next += 1;
        of_plane.watches.insert(number, Arc::new(caller));
        number
    }

    fn remove(&self, plane: &str, number: u64) {
        let mut planes = self.planes.lock();
        let Some(of_plane) = planes.get_mut(plane) else {
            return;
        };
        of_plane.watches.remove(&number);
        if of_plane.watches.is_empty() {
            planes.remove(plane);
        }
    }

    fn of(&self, plane: &str) -> Vec<Arc<WatchingCaller>> {
        let planes = self.planes.lock();
        let of_plane = planes.get(plane);
        of_plane.map_or_else(Vec::new, |of_plane| {
            of_plane.watches.values().cloned().collect()
        })
    }

    fn planes(&self) -> Vec<Str> {
        self.planes.lock().keys().cloned().collect()
    }
}

/// Ends the watches of clients that may not use their plane any more.
#[derive(Clone)]
pub struct WatchGuard {
    state: Arc<ServerState>,
}

impl WatchGuard {
    pub(crate) fn new(state: &Arc<ServerState>) -> Self {
        Self {
            state: Arc::clone(state),
        }
    }

    /// Proves the callers of all open watches of the plane with this id again, after its record has
    /// changed, and ends the watches of those who fail. Without an id it does so in every plane.
    pub async fn access_changed(&self, plane: Option<&str>) {
        match plane {
            Some(plane) => self.prove_again(plane).await,
            None => {
                for plane in self.state.watches.planes() {
                    self.prove_again(&plane).await;
                }
            }
        }
    }

    async fn prove_again(&self, plane: &str) {
        let watches = self.state.watches.of(plane);
        if watches.is_empty() {
            return;
        }
        // A plane that has to be waited for is none that has watches here: it is gone. Nobody watches
        // one that is suspended.
        let record = match self.state.backend.locate(PlaneReference::Id(plane)) {
            Verdict::Now(Some(Ok(record))) => Some(record).filter(|record| !record.is_suspended()),
            Verdict::Now(_) | Verdict::Later(_) => None,
        };
        let mut ended = 0_u32;
        for caller in &watches {
            let is_proven = match &record {
                Some(record) => {
                    let source = self.state.doorway.source_of(&caller.connection);
                    caller.is_proven_by(&**record, source).await
                }
                None => false,
            };
            if !is_proven {
                caller.ending.cancel();
                ended += 1;
            }
            // A proof may take as long as the verification of a signature.
            tokio::task::yield_now().await;
        }
        if ended > 0 {
            tracing::info!(
                plane,
                ended,
                "ended watches whose callers lost their access"
            );
        }
    }
}

impl WatchingCaller {
    async fn is_proven_by(&self, record: &dyn PlaneRecord, source: usize) -> bool {
        let credentials = Credentials {
            bearer: self.authorization.as_ref().and_then(bearer::token_in),
            chain: self.connection.chain(),
            path: "",
            now: SystemTime::now(),
            source,
        };
        is_still_proven(record, &self.connection, &credentials).await
    }
}
