//! Everything one replica hands to its planes: where they are found, and their states once awake.
//!
//! The directory is the store's, not the root plane's: every replica has it whole, so an asleep
//! plane costs nothing here until somebody asks for it, and the root may be anybody's.

use crate::replica::backend::TenantApi;
use parking_lot::{Mutex, RwLock};
use polyplane_apimachinery::Str;
use polyplane_batteries::bootstrap::params;
use polyplane_batteries::polyplane::control_plane::{DirectoryRecord, GROUP, RESOURCE};
use polyplane_ownership::directory::{Directory, DirectoryEntry, DirectoryRow};
use polyplane_ownership::{Birth, DirectoryKey, Pin, Planes, WakeError};
use polyplane_plane::{Key, LayerHash, Prefix, external};
use polyplane_registry::{KindTable, PlaneSettings, Tenant};
use polyplane_storage::Revision;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// How long a name that is not known waits for the directory to catch up with the store.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Everything one replica hands to its planes.
pub struct PlaneDirectory {
    /// The planes.
    pub planes: Arc<Planes>,
    /// Which planes there are.
    pub rows: Arc<Directory>,
    /// The kinds of every plane but the root.
    pub kinds: Arc<KindTable>,
    /// Facts that kinds need.
    pub settings: Arc<PlaneSettings>,
    /// What fills the layer's placeholders.
    pub params: BTreeMap<String, String>,
    root: OnceLock<Arc<LocatedPlane>>,
    located: RwLock<HashMap<Str, Arc<LocatedPlane>>>,
}

/// A plane that somebody asked for.
pub struct LocatedPlane {
    /// The name.
    pub name: Str,
    /// All that waking it needs.
    pub birth: Birth,
    kinds: Arc<KindTable>,
    api: Mutex<Option<Arc<TenantApi>>>,
}

/// Why a name leads to no plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// There is none.
    NotFound,
    /// It is being deleted.
    Deleting,
    /// The store does not say whether there is one.
    Unproven,
}

/// How a plane is asked for.
#[derive(Clone, Debug)]
pub enum NameOrId {
    /// By its name.
    Name(Str),
    /// By its id.
    Id(Str),
}

/// The store's prefix of the directory's rows.
pub fn directory_prefix() -> bytes::Bytes {
    external::object_prefix(
        polyplane_ownership::ROOT,
        &Prefix::resource(GROUP, RESOURCE),
    )
}

/// Reads a row of the directory out of a ControlPlane's bytes.
pub fn read_row(body: &[u8]) -> Option<DirectoryRow> {
    let record = DirectoryRecord::read(body)?;
    // Wishes were validated when they were written; one of a newer program is passed over.
    let pin = match (record.replica, record.zone) {
        (Some(replica), _) => replica.parse().map(Pin::Replica).unwrap_or_default(),
        (None, Some(zone)) => zone.parse().map(Pin::Zone).unwrap_or_default(),
        (None, None) => Pin::Anywhere,
    };
    Some(DirectoryRow {
        id: record.id.into(),
        layer: record.layer.into(),
        born_at: record.born_at.into(),
        pin,
    })
}

impl PlaneDirectory {
    /// A directory whose root is not known yet.
    pub fn new(
        planes: Arc<Planes>,
        rows: Arc<Directory>,
        kinds: Arc<KindTable>,
        settings: Arc<PlaneSettings>,
        params: BTreeMap<String, String>,
    ) -> Self {
        Self {
            planes,
            rows,
            kinds,
            settings,
            params,
            root: OnceLock::new(),
            located: RwLock::default(),
        }
    }

    /// Says how the root plane is woken. Once.
    pub fn set_root(&self, birth: Birth, kinds: Arc<KindTable>) {
        let root = LocatedPlane {
            name: polyplane_ownership::ROOT.into(),
            birth,
            kinds,
            api: Mutex::new(None),
        };
        drop(self.root.set(Arc::new(root)));
    }

    /// The root plane, wherever it is.
    pub fn root(&self) -> Option<&Arc<LocatedPlane>> {
        self.root.get()
    }

    /// The root plane if it is awake here.
    pub fn root_here(&self) -> Option<Tenant> {
        let api = self.root.get()?.awake(self)?;
        Some(api.tenant.clone())
    }

    /// The plane, from memory alone.
    ///
    /// # Errors
    /// If there is none, or it is on its way out.
    pub fn find(&self, asked: &NameOrId) -> Result<Arc<LocatedPlane>, LookupError> {
        let entry = match asked {
            NameOrId::Name(name) => self.rows.named(name),
            NameOrId::Id(id) => self.rows.by_id(id),
        };
        self.locate(&*entry.ok_or(LookupError::NotFound)?)
    }

    /// The plane; one that is not known is looked for once the directory has caught up with what
    /// was acknowledged before this call.
    ///
    /// # Errors
    /// As [`Self::find`], and if the store does not say in time that there is none.
    pub async fn seek(&self, asked: &NameOrId) -> Result<Arc<LocatedPlane>, LookupError> {
        match self.find(asked) {
            Err(LookupError::NotFound) => {}
            found => return found,
        }
        let deadline = Instant::now() + CATCH_UP;
        let revision = self.confirmed(deadline).await;
        let caught_up = match revision {
            Some(revision) => self.rows.reach(revision, deadline).await,
            None => false,
        };
        match self.find(asked) {
            Err(LookupError::NotFound) if !caught_up => Err(LookupError::Unproven),
            found => found,
        }
    }

    /// A revision not older than this call. On a shared store the next member read tells it, so
    /// that names nobody has cost no reads.
    async fn confirmed(&self, deadline: Instant) -> Option<Revision> {
        let store = self.planes.store();
        match store.opened_at() {
            Some(_) => store.revision().await.ok(),
            None => self.planes.ring().next_observed(deadline).await,
        }
    }

    fn locate(&self, entry: &DirectoryEntry) -> Result<Arc<LocatedPlane>, LookupError> {
        if entry.deleting {
            return Err(LookupError::Deleting);
        }
        let known = self.located.read().get(&entry.id).cloned();
        let api = match known {
            Some(located) if located.birth.pin == entry.pin => return Ok(located),
            // The plane is the same, wherever it is wanted.
            Some(located) => located.api.lock().clone(),
            None => None,
        };
        let fresh = Arc::new(LocatedPlane {
            name: entry.name.clone(),
            birth: self.birth(entry),
            kinds: Arc::clone(&self.kinds),
            api: Mutex::new(api),
        });
        self.located
            .write()
            .insert(entry.id.clone(), Arc::clone(&fresh));
        Ok(fresh)
    }

    /// All that waking or deleting the plane of an entry needs.
    pub fn birth(&self, entry: &DirectoryEntry) -> Birth {
        let key = Key::new(GROUP, RESOURCE, None, &entry.name);
        Birth {
            id: entry.id.as_str().to_owned(),
            base: 0,
            layer: LayerHash(entry.layer.as_ref().to_owned()),
            born: entry.born,
            born_at: entry.born_at.as_str().to_owned(),
            params: self.params.clone(),
            directory: Some(DirectoryKey {
                key: external::object_key(polyplane_ownership::ROOT, &key),
                created: entry.created(),
            }),
            pin: entry.pin.clone(),
        }
    }

    /// Drops what is known of planes that are neither awake here nor asked for now. For one clock
    /// that runs for all planes together.
    pub fn sweep(&self) {
        let planes = self.planes.all_awake();
        let awake: HashSet<&str> = planes.iter().map(|plane| plane.id()).collect();
        self.located.write().retain(|id, located| {
            let used = Arc::strong_count(located) > 1;
            used || awake.contains(id.as_str())
        });
    }

    /// The names of all planes but the root, at most `most`.
    pub fn names(&self, most: usize) -> Vec<Str> {
        let entries = self.rows.first(most).into_iter();
        entries
            .filter(|entry| !entry.deleting)
            .map(|entry| entry.name.clone())
            .collect()
    }

    /// All planes that are awake here. Looking at them does not keep them awake.
    pub fn tenants_awake(&self) -> Vec<Tenant> {
        let planes = self.planes.all_awake();
        let located: Vec<Arc<LocatedPlane>> = {
            let known = self.located.read();
            known.values().chain(self.root.get()).cloned().collect()
        };
        let apis = located
            .iter()
            .filter_map(|located| located.api.lock().clone());
        let awake = |api: &Arc<TenantApi>| {
            planes
                .iter()
                .any(|plane| Arc::ptr_eq(plane, &api.tenant.plane))
        };
        apis.filter(awake).map(|api| api.tenant.clone()).collect()
    }
}

impl LocatedPlane {
    /// The interface of the plane, if it is awake.
    pub fn awake(&self, directory: &PlaneDirectory) -> Option<Arc<TenantApi>> {
        let plane = directory.planes.awake(&self.birth.id)?;
        let api = self.api.lock();
        api.as_ref()
            .filter(|api| Arc::ptr_eq(&api.tenant.plane, &plane))
            .map(Arc::clone)
    }

    /// Wakes the plane; `build` makes its interface, once for each time it wakes.
    ///
    /// # Errors
    /// See [`WakeError`].
    pub async fn wake(
        &self,
        directory: &PlaneDirectory,
        build: impl FnOnce(Tenant) -> TenantApi,
    ) -> Result<Arc<TenantApi>, WakeError> {
        let plane = directory.planes.wake(&self.birth).await?;
        let mut api = self.api.lock();
        if let Some(known) = api
            .as_ref()
            .filter(|api| Arc::ptr_eq(&api.tenant.plane, &plane))
        {
            return Ok(Arc::clone(known));
        }
        let fresh = Arc::new(build(Tenant {
            name: self.name.clone(),
            plane,
            base: Arc::clone(&self.kinds),
            settings: Arc::clone(&directory.settings),
        }));
        *api = Some(Arc::clone(&fresh));
        Ok(fresh)
    }
}

/// The values of the layer's placeholders.
pub fn layer_params(
    serving_ca: &str,
    client_ca: &str,
    host: &str,
    port: u16,
) -> BTreeMap<String, String> {
    let values = [
        (params::SERVING_CA, serving_ca.to_owned()),
        (params::CLIENT_CA, client_ca.to_owned()),
        (params::REQUESTHEADER_CA, client_ca.to_owned()),
        (params::ADVERTISE_ADDRESS, host.to_owned()),
        (params::ADVERTISE_PORT, port.to_string()),
    ];
    values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
