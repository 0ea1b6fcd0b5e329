//! Finds planes by name or id, and keeps the interface of each plane that is awake here. This
//! module does not know requests.
//!
//! The rows come from the store, not from the root plane: every replica has all of them, so a
//! sleeping plane costs nothing here until a request names it, and any replica may own the root.
//! This module and the backend use each other, because the `TenantApi` of an awake plane, a type of
//! the backend, is kept with the plane.

use crate::replica::access::Access;
use crate::replica::backend::TenantApi;
use crate::replica::credentials::{self, RenewingPlane};
use crate::replica::unproven_wakes::WakesOfPlane;
use parking_lot::{Mutex, RwLock};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{ClientChain, PlaneAccess};
use polyplane_batteries::bootstrap::params;
use polyplane_batteries::polyplane::access::PlaneAccessSpec;
use polyplane_batteries::polyplane::authentication;
use polyplane_batteries::polyplane::control_plane::{DirectoryRecord, GROUP, RESOURCE};
use polyplane_batteries::polyplane::controllers::Controllers;
use polyplane_batteries::polyplane::limits;
use polyplane_fairness::{LimitDefaults, PlaneMeter};
use polyplane_ownership::directory::{Directory, DirectoryEntry, DirectoryRow};
use polyplane_ownership::{Birth, DirectoryKey, Freshness, Pin, Planes, WakeError};
use polyplane_plane::{Key, LayerHash, Plane, Prefix, external};
use polyplane_registry::{KindTable, PlaneSettings, Tenant};
use polyplane_storage::Revision;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// How long an unknown name waits for the directory to catch up with the store. After that the
/// request gets 503, because the name may be new.
const CATCH_UP: Duration = Duration::from_secs(2);

/// The planes of one replica by name and id, and the values that all of them need.
pub struct PlaneDirectory {
    /// The planes.
    pub planes: Arc<Planes>,
    /// The rows of all planes, as the store has them.
    pub rows: Arc<Directory>,
    /// The kinds of every plane but the root.
    pub kinds: Arc<KindTable>,
    /// Settings that kinds read, such as the range of service addresses.
    pub settings: Arc<PlaneSettings>,
    /// The values for the layer's placeholders.
    pub params: BTreeMap<String, String>,
    /// Whether the rows may decide who somebody is.
    pub freshness: Arc<Freshness>,
    /// The limits of planes whose record says none.
    limits: LimitDefaults,
    root: OnceLock<Arc<LocatedPlane>>,
    located: RwLock<HashMap<Str, Arc<LocatedPlane>>>,
}

/// A plane that a request has named.
pub struct LocatedPlane {
    /// The name.
    pub name: Str,
    /// Everything that is needed to wake the plane.
    pub birth: Birth,
    /// Counts what the plane uses here, and has its limits.
    pub meter: Arc<PlaneMeter>,
    kinds: Arc<KindTable>,
    /// True if no request reaches the plane.
    pub suspended: bool,
    /// True if bootstrap tokens prove users of the plane, says its record.
    pub takes_bootstrap_tokens: bool,
    /// The wakes for callers who are not proven.
    pub unproven_wakes: WakesOfPlane,
    /// What the plane's record says about who may use it, and how much.
    says_of_access: Arc<[u8]>,
    /// The plane's authenticators, made when the first caller has to be proven.
    access: OnceLock<PlaneAccess>,
    api: Mutex<Option<Arc<TenantApi>>>,
}

/// The reason why no plane was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// There is no plane of this name or id.
    NotFound,
    /// The plane is being deleted.
    Deleting,
    /// It is not certain whether the plane exists, because the directory did not catch up with the
    /// store in time.
    Unproven,
}

/// The name or the id of a plane.
#[derive(Clone, Debug)]
pub enum NameOrId {
    /// The name.
    Name(Str),
    /// The id.
    Id(Str),
}

/// Returns the prefix of the directory's rows in the store.
pub fn directory_prefix() -> bytes::Bytes {
    external::object_prefix(
        polyplane_ownership::ROOT,
        &Prefix::resource(GROUP, RESOURCE),
    )
}

/// Reads a row of the directory from a ControlPlane's bytes.
pub fn read_row(body: &[u8]) -> Option<DirectoryRow> {
    let record = DirectoryRecord::read(body)?;
    // Pins were validated when they were written. A pin that only a newer program can read is
    // ignored.
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
        switches: record.controllers.switched_off(),
        suspended: record.suspended,
        data_key_generation: record.data_key_generation,
        access: record.access,
    })
}

impl PlaneDirectory {
    /// Creates a directory without a root plane.
    pub fn new(
        planes: Arc<Planes>,
        rows: Arc<Directory>,
        kinds: Arc<KindTable>,
        settings: Arc<PlaneSettings>,
        params: BTreeMap<String, String>,
        freshness: Arc<Freshness>,
        limits: LimitDefaults,
    ) -> Self {
        Self {
            planes,
            rows,
            kinds,
            settings,
            params,
            freshness,
            limits,
            root: OnceLock::new(),
            located: RwLock::default(),
        }
    }

    /// Sets how to wake the root plane. To be called once.
    pub fn set_root(&self, birth: Birth, kinds: Arc<KindTable>) {
        let meter = Arc::<PlaneMeter>::default();
        // The planes of all tenants are managed there.
        meter.flow().reserve();
        let root = LocatedPlane {
            name: polyplane_ownership::ROOT.into(),
            birth,
            meter,
            kinds,
            suspended: false,
            takes_bootstrap_tokens: false,
            unproven_wakes: WakesOfPlane::default(),
            says_of_access: Arc::default(),
            access: OnceLock::new(),
            api: Mutex::new(None),
        };
        drop(self.root.set(Arc::new(root)));
    }

    /// Returns the root plane, whichever replica owns it.
    pub fn root(&self) -> Option<&Arc<LocatedPlane>> {
        self.root.get()
    }

    /// Returns the root plane if it is awake here.
    pub fn root_here(&self) -> Option<Tenant> {
        let api = self.root.get()?.awake(self)?;
        Some(api.tenant.clone())
    }

    /// Finds a plane, in memory only.
    ///
    /// # Errors
    /// Returns an error if there is no such plane, or it is being deleted.
    pub fn find(&self, asked: &NameOrId) -> Result<Arc<LocatedPlane>, LookupError> {
        let entry = match asked {
            NameOrId::Name(name) => self.rows.named(name),
            NameOrId::Id(id) => self.rows.by_id(id),
        };
        self.locate(&*entry.ok_or(LookupError::NotFound)?)
    }

    /// Finds a plane. If it is unknown, waits until the directory has every change that was
    /// acknowledged before this call, and looks again.
    ///
    /// # Errors
    /// Returns the errors of [`Self::find`], and [`LookupError::Unproven`] if the directory does
    /// not catch up in time.
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

    /// Waits until the rows may decide who somebody is. Returns whether they may.
    pub async fn await_freshness(&self) -> bool {
        self.freshness.wait(Instant::now() + CATCH_UP).await
    }

    /// Waits until no replica decides by rows from before this call who may use a plane.
    pub async fn known_everywhere(&self) {
        match self.planes.ring().options().is_alone {
            // Only this replica decides, and it needs no more than the rows themselves.
            true => match self.planes.store().revision().await {
                Ok(revision) => {
                    self.rows.reach(revision, Instant::now() + CATCH_UP).await;
                }
                Err(_) => self.freshness.elsewhere().await,
            },
            false => self.freshness.elsewhere().await,
        }
    }

    /// Returns a revision of the store that is not older than this call. On a shared store the next
    /// read of the members returns it, so that requests for unknown names cost no reads of their
    /// own.
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
        let (api, meter) = match known {
            Some(located) if located.is_of(entry) => return Ok(located),
            // Only the pin, the access or the limits have changed, so the interface of the plane
            // stays valid, and so does what it has used.
            Some(located) => (located.api.lock().clone(), Arc::clone(&located.meter)),
            None => (None, Arc::default()),
        };
        meter.set_limits(&limits::read(&entry.access).or(&self.limits));
        let fresh = Arc::new(LocatedPlane {
            name: entry.name.clone(),
            birth: self.birth(entry),
            meter,
            kinds: Arc::clone(&self.kinds),
            suspended: entry.suspended,
            takes_bootstrap_tokens: authentication::takes_bootstrap_tokens(&entry.access),
            unproven_wakes: WakesOfPlane::default(),
            says_of_access: Arc::clone(&entry.access),
            access: OnceLock::new(),
            api: Mutex::new(api),
        });
        self.located
            .write()
            .insert(entry.id.clone(), Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Returns everything that is needed to wake or delete the plane of an entry.
    pub fn birth(&self, entry: &DirectoryEntry) -> Birth {
        let key = Key::new(GROUP, RESOURCE, None, &entry.name);
        Birth {
            id: entry.id.as_str().to_owned(),
            base: self.planes.numbering().base.0,
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

    /// Returns the controllers that the owner of a plane runs.
    pub fn controllers(&self, id: &str) -> Controllers {
        Controllers::without(self.settings.switched_off.bits(id))
    }

    /// Drops entries of planes that are neither awake here nor named by a request in flight. One
    /// timer calls this for all planes together.
    pub fn sweep(&self) {
        let planes = self.planes.all_awake();
        let awake: HashSet<&str> = planes.iter().map(|plane| plane.id()).collect();
        self.located.write().retain(|id, located| {
            let used = Arc::strong_count(located) > 1;
            used || awake.contains(id.as_str())
        });
    }

    /// Returns the names of at most `most` planes, without the root.
    pub fn names(&self, most: usize) -> Vec<Str> {
        let entries = self.rows.first(most).into_iter();
        entries
            .filter(|entry| !entry.deleting)
            .map(|entry| entry.name.clone())
            .collect()
    }

    /// Returns the plane with this id if it is awake here.
    pub fn tenant_awake(&self, id: &str) -> Option<Tenant> {
        let located = self.located.read().get(id).cloned()?;
        located.awake(self).map(|api| api.tenant.clone())
    }

    /// Returns whether a plane accepts, or has accepted for a time, keys that were replaced.
    pub fn has_replaced_keys(&self, id: &str) -> bool {
        let entry = self.rows.by_id(id);
        entry.is_some_and(|entry| {
            PlaneAccessSpec::read(&entry.access)
                .previous_until
                .is_some()
        })
    }

    /// Returns all planes that are awake here. The call does not count as use, so it does not keep
    /// them awake.
    pub fn tenants_awake(&self) -> Vec<Tenant> {
        let planes = self.planes.all_awake();
        let planes: HashSet<*const Plane> = planes.iter().map(Arc::as_ptr).collect();
        let located: Vec<Arc<LocatedPlane>> = {
            let known = self.located.read();
            known.values().chain(self.root.get()).cloned().collect()
        };
        let apis = located
            .iter()
            .filter_map(|located| located.api.lock().clone());
        let awake = |api: &Arc<TenantApi>| planes.contains(&Arc::as_ptr(&api.tenant.plane));
        apis.filter(awake).map(|api| api.tenant.clone()).collect()
    }
}

impl LocatedPlane {
    /// Returns whether this was made from what the entry says now.
    fn is_of(&self, entry: &DirectoryEntry) -> bool {
        self.has_access_of(entry) && self.birth.pin == entry.pin
    }

    /// Returns whether the entry says the same about who may use the plane.
    fn has_access_of(&self, entry: &DirectoryEntry) -> bool {
        Arc::ptr_eq(&self.says_of_access, &entry.access) || self.says_of_access == entry.access
    }

    /// Returns whether this is what the directory says about who may use the plane. Where the plane
    /// is pinned does not matter: a watch that is opened while its plane moves goes on.
    pub fn is_current(&self, directory: &PlaneDirectory) -> bool {
        let entry = directory.rows.by_id(&self.birth.id);
        self.birth.id == polyplane_ownership::ROOT
            || entry.is_some_and(|entry| !entry.deleting && self.has_access_of(&entry))
    }

    /// Replaces a certificate of one of the plane's users, as [`credentials::renew`] says.
    ///
    /// # Errors
    /// Returns the error for the client.
    pub fn renew(
        &self,
        access: &Access,
        chain: &ClientChain,
        body: &[u8],
        now: i64,
    ) -> Result<Vec<u8>, ApiError> {
        let plane = RenewingPlane {
            id: &self.birth.id,
            name: &self.name,
            access: self.access(access),
            generation: PlaneAccessSpec::read(&self.says_of_access).generation,
            now,
        };
        credentials::renew(access, &plane, chain, body)
    }

    /// Returns the authenticators of the plane.
    pub fn access(&self, access: &Access) -> &PlaneAccess {
        let of_plane = || access.of_plane(&self.birth.id, &self.says_of_access);
        self.access.get_or_init(of_plane)
    }

    /// Returns the interface of the plane, if it is awake.
    pub fn awake(&self, directory: &PlaneDirectory) -> Option<Arc<TenantApi>> {
        self.api_of(&directory.planes.awake(&self.birth.id)?)
    }

    /// Returns the interface of the plane, if it is awake. The call does not count as use.
    pub fn awake_unused(&self, directory: &PlaneDirectory) -> Option<Arc<TenantApi>> {
        self.api_of(&directory.planes.awake_unused(&self.birth.id)?)
    }

    fn api_of(&self, plane: &Arc<Plane>) -> Option<Arc<TenantApi>> {
        let api = self.api.lock();
        api.as_ref()
            .filter(|api| Arc::ptr_eq(&api.tenant.plane, plane))
            .map(Arc::clone)
    }

    /// Wakes the plane. `build` makes its interface, once each time the plane wakes.
    ///
    /// # Errors
    /// Returns why the plane cannot be woken.
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
        plane.attach_meter(Arc::clone(&self.meter));
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

/// Returns the values for the layer's placeholders.
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
