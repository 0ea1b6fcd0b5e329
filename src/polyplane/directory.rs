//! Which planes there are, by name and id, and their states once they are awake.
//!
//! The root plane is the directory: a name is looked up in its memory, so an asleep plane costs
//! nothing here until somebody asks for it.

use crate::backend::Api;
use parking_lot::{Mutex, RwLock};
use polyplane_apimachinery::{Str, json};
use polyplane_batteries::bootstrap::params;
use polyplane_batteries::control_plane::{self, GROUP, RESOURCE};
use polyplane_ownership::{Birth, DirectoryKey, Pin, Planes, ROOT, WakeError};
use polyplane_plane::{Base, Flags, Key, LayerHash, ObjectRef, Prefix, Start, foreign};
use polyplane_registry::{KindTable, PlaneSettings, Tenant};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

/// Everything the directory hands to planes when they wake.
pub struct World {
    /// The planes.
    pub planes: Arc<Planes>,
    /// The kinds of every plane but the root.
    pub kinds: Arc<KindTable>,
    /// Facts that kinds need.
    pub settings: Arc<PlaneSettings>,
    /// What fills the layer's placeholders.
    pub params: BTreeMap<String, String>,
    /// The root plane, once it is awake.
    pub root: OnceLock<Tenant>,
    located: RwLock<HashMap<Str, Arc<Located>>>,
}

/// A plane that somebody asked for.
pub struct Located {
    /// The name.
    pub name: Str,
    birth: Birth,
    api: Mutex<Option<Arc<Api>>>,
}

/// Why a name leads to no plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// There is none.
    NotFound,
    /// It is being deleted.
    Deleting,
}

impl World {
    /// A world whose root is not awake yet.
    pub fn new(
        planes: Arc<Planes>,
        kinds: Arc<KindTable>,
        settings: Arc<PlaneSettings>,
        params: BTreeMap<String, String>,
    ) -> Self {
        Self {
            planes,
            kinds,
            settings,
            params,
            root: OnceLock::new(),
            located: RwLock::default(),
        }
    }

    /// The plane of this name.
    ///
    /// # Errors
    /// If there is none, or it is on its way out.
    pub fn named(&self, name: &str) -> Result<Arc<Located>, Missing> {
        if let Some(located) = self.located.read().get(name) {
            return Ok(Arc::clone(located));
        }
        let root = self.root.get().ok_or(Missing::NotFound)?;
        let object = root
            .plane
            .snapshot()
            .get(&Key::new(GROUP, RESOURCE, None, name));
        let located = self.locate(&object.ok_or(Missing::NotFound)?)?;
        let mut known = self.located.write();
        Ok(Arc::clone(known.entry(name.into()).or_insert(located)))
    }

    /// The plane of this id.
    ///
    /// # Errors
    /// If there is none, or it is on its way out.
    pub fn by_id(&self, id: &str) -> Result<Arc<Located>, Missing> {
        let root = self.root.get().ok_or(Missing::NotFound)?;
        let cut = root.plane.snapshot();
        let key = cut
            .index_owner(control_plane::ids(), id.as_bytes())
            .ok_or(Missing::NotFound)?;
        self.named(key.name())
    }

    fn locate(&self, object: &ObjectRef) -> Result<Arc<Located>, Missing> {
        if object.flags().has(Flags::DELETING) {
            return Err(Missing::Deleting);
        }
        let birth = self.birth_of(object).ok_or(Missing::NotFound)?;
        let name = object.key().name().into();
        Ok(Arc::new(Located {
            name,
            birth,
            api: Mutex::new(None),
        }))
    }

    /// What is known of the birth of a plane, on its way out or not.
    pub fn birth(&self, name: &str) -> Option<Birth> {
        let root = self.root.get()?;
        let key = Key::new(GROUP, RESOURCE, None, name);
        self.birth_of(&root.plane.snapshot().get(&key)?)
    }

    fn birth_of(&self, object: &ObjectRef) -> Option<Birth> {
        let body = object.body();
        let text = |path: &[&str]| json::scan::string_at(&body, path).map(|text| text.into_owned());
        let born = object.created().or(object.version())?;
        Some(Birth {
            id: text(&["status", "id"])?,
            base: 0,
            layer: LayerHash(text(&["status", "birth", "layer"])?),
            born,
            born_at: text(&["metadata", "creationTimestamp"]).unwrap_or_default(),
            params: self.params.clone(),
            directory: Some(DirectoryKey {
                key: foreign::object_key(ROOT, object.key()),
                created: born.revision(Base(0)),
            }),
            pin: Pin::Anywhere,
        })
    }

    /// Drops what is known of a name; whoever asks again looks it up anew.
    pub fn forget(&self, name: &str) {
        self.located.write().remove(name);
    }

    /// The names of all planes but the root, at most `most`.
    pub fn names(&self, most: usize) -> Vec<Str> {
        let Some(root) = self.root.get() else {
            return Vec::new();
        };
        let cut = root.plane.snapshot();
        let prefix = Prefix::resource(GROUP, RESOURCE);
        let objects = cut
            .range(&prefix, Start::First)
            .filter(|object| !object.flags().has(Flags::DELETING));
        objects
            .take(most)
            .map(|object| object.key().name().into())
            .collect()
    }

    /// What fills a placeholder of the layer.
    pub fn param(&self, name: &str) -> Option<Str> {
        self.params.get(name).map(|text| Str::from(text.as_str()))
    }
}

impl Located {
    /// The immutable id.
    pub fn id(&self) -> &str {
        &self.birth.id
    }

    /// The interface of the plane, if it is awake.
    pub fn awake(&self, world: &World) -> Option<Arc<Api>> {
        let plane = world.planes.awake(&self.birth.id)?;
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
        world: &World,
        build: impl FnOnce(Tenant) -> Api,
    ) -> Result<Arc<Api>, WakeError> {
        let plane = world.planes.wake(&self.birth).await?;
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
            kinds: Arc::clone(&world.kinds),
            settings: Arc::clone(&world.settings),
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
