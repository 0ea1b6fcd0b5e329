//! The bootstrap objects that every new plane has, as a layer.
//!
//! Values that differ between planes are left open in the layer and filled in from the plane's
//! record: uids, the time of birth, certificates, and the address at which clients reach the
//! server. The range of service addresses is the same in every plane, because no two planes share a
//! network.

pub mod ranges;
pub mod upgrade;

use crate::kind_tables::tenant_kinds;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::{Flags, Key, Layer, LayerError, LayerObject, NewObject};
use polyplane_registry::service_ranges::ServiceRanges;
use polyplane_registry::{KindTable, Scope};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

const BOOTSTRAP: &[u8] = include_bytes!("data/bootstrap.json");
/// The bootstrap objects that upstream does not have.
const OWN: &[u8] = include_bytes!("polyplane/bootstrap.json");
/// The level of this program. It must grow by one whenever the bootstrap objects change, or the
/// store's format changes so that an older program would lose data.
pub const LEVEL: u32 = 7;
/// The store's floor from which on older steps of a plane are folded. Programs of level 1 from
/// before folds could not read these; all programs of a higher level can.
pub const FOLDS_LEVEL: u32 = 2;
/// The store's floor from which on planes have users of their own. Programs below it neither read
/// who may enter a plane nor know the CAs of planes.
pub const ACCESS_LEVEL: u32 = 5;
/// The store's floor from which on planes name issuers of their own. Programs below it would drop them with
/// their next write of a plane's object, and refuse the tokens.
pub const ISSUERS_LEVEL: u32 = 6;
/// The store's floor from which on planes can be suspended. Programs below it would drop the wish with their
/// next write of a plane's object, and serve the plane.
pub const SUSPENSION_LEVEL: u32 = 7;
/// The store's floor from which on planes name client CAs of their own, and take bootstrap tokens. Programs
/// below it would drop that with their next write of a plane's object, and refuse the certificates and tokens.
pub const CLIENT_CAS_LEVEL: u32 = 7;
/// The range of service addresses.
pub const SERVICE_RANGE: ([u8; 4], u8) = ([10, 0, 0, 0], 16);
/// The address of the service `kubernetes`: the first of the range.
pub const KUBERNETES_ADDRESS: &str = "10.0.0.1";
/// A number that replaces the port while an object is encoded, because only numbers can be encoded
/// there.
const PORT_SENTINEL: i64 = 2_147_483_646;

/// The names of the parameters that a plane's record must have values for.
pub mod params {
    /// The certificates that sign the serving certificate, in PEM form.
    pub const SERVING_CA: &str = "SERVING_CA";
    /// The certificates that sign client certificates, in PEM form, in layers below
    /// [`ACCESS_LEVEL`](super::ACCESS_LEVEL).
    pub const CLIENT_CA: &str = "CLIENT_CA";
    /// The certificates that sign front proxies' certificates, in PEM form, in layers below
    /// [`ACCESS_LEVEL`](super::ACCESS_LEVEL).
    pub const REQUESTHEADER_CA: &str = "REQUESTHEADER_CA";
    /// The certificates that sign the plane's client certificates, in PEM form.
    pub const PLANE_CLIENT_CA: &str = "PLANE_CLIENT_CA";
    /// The certificates that sign the certificates of the plane's front proxies, in PEM form.
    pub const PLANE_FRONT_PROXY_CA: &str = "PLANE_FRONT_PROXY_CA";
    /// The address at which the server is reached.
    pub const ADVERTISE_ADDRESS: &str = "ADVERTISE_ADDRESS";
    /// The port at which the server is reached.
    pub const ADVERTISE_PORT: &str = "ADVERTISE_PORT";
}

/// The time at which a deleted object of the layer is created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// At once.
    Now,
    /// With the next step of the layer; roles and bindings also when the plane is loaded.
    Step,
    /// Never: who deletes it has decided something that no later release may undo.
    Never,
}

/// One object of the layer, before it is encoded.
#[derive(Clone, Debug)]
pub struct BootstrapObject {
    /// The object's key.
    pub key: Key,
    /// The object's tree, with placeholders and without system fields.
    pub tree: Value,
    /// The time at which the object is created again after its deletion.
    pub restore: Restore,
}

/// Returns the objects of the layer.
pub fn objects() -> &'static [BootstrapObject] {
    static SHARED: OnceLock<Vec<BootstrapObject>> = OnceLock::new();
    SHARED.get_or_init(|| {
        let lists = [BOOTSTRAP, OWN].map(|text| {
            let parsed = json::parse(text, &json::Limits::default());
            parsed.expect("the bootstrap objects are JSON").value
        });
        let items = lists.iter().flat_map(|list| list.as_array().unwrap_or(&[]));
        items.map(read).collect()
    })
}

/// The bootstrap data of one release of the program: a level, and the layer of that level.
pub struct Release {
    level: u32,
    layer: Arc<Layer>,
    restore: HashMap<Key, Restore>,
    /// Makes the layer for planes that were born with other ranges of service addresses.
    for_ranges: Option<ForRanges>,
}

/// Makes the bootstrap objects for ranges of service addresses.
type ForRanges = Box<dyn Fn(&ServiceRanges) -> Vec<BootstrapObject> + Send + Sync>;

impl Release {
    /// Creates a release with these objects. Other objects need another level.
    ///
    /// # Errors
    /// Returns an error if the objects cannot be built into a layer.
    ///
    /// # Panics
    /// Panics if the kind of an object is not one that planes serve, or if an object does not match
    /// its schema.
    pub fn new(level: u32, objects: &[BootstrapObject]) -> Result<Arc<Self>, LayerError> {
        Self::build(level, objects).map(Arc::new)
    }

    fn build(level: u32, objects: &[BootstrapObject]) -> Result<Self, LayerError> {
        let restore = objects.iter();
        Ok(Self {
            level,
            layer: build_layer(objects)?,
            restore: restore
                .map(|object| (object.key.clone(), object.restore))
                .collect(),
            for_ranges: None,
        })
    }

    /// Creates a release with the objects that a function makes for these ranges of service addresses. A
    /// plane that was born with other ranges keeps the objects that show them.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn with_ranges(
        level: u32,
        ranges: &ServiceRanges,
        objects: impl Fn(&ServiceRanges) -> Vec<BootstrapObject> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, LayerError> {
        let mut release = Self::build(level, &objects(ranges))?;
        release.for_ranges = Some(Box::new(objects));
        Ok(Arc::new(release))
    }

    /// Returns the release of this program.
    pub fn own() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Release>> = OnceLock::new();
        let build = || Self::new(LEVEL, objects()).expect("the generated objects make a layer");
        Arc::clone(SHARED.get_or_init(build))
    }

    /// Returns the level. It is higher than that of any program that cannot serve these objects.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Returns the layer of that level.
    pub fn layer(&self) -> &Arc<Layer> {
        &self.layer
    }

    /// Returns the layer for a plane whose present layer has this ServiceCIDR `kubernetes`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn layer_after(&self, service_cidr: Option<&Value>) -> Result<Arc<Layer>, LayerError> {
        let born_with = service_cidr.and_then(ranges::shown);
        match self.for_ranges.as_ref().zip(born_with) {
            Some((objects, ranges)) => build_layer(&objects(&ranges)),
            None => Ok(Arc::clone(&self.layer)),
        }
    }

    /// Returns whether planes may have been born with other ranges of service addresses.
    pub fn has_ranges(&self) -> bool {
        self.for_ranges.is_some()
    }

    /// Returns when an object of the layer is created again after its deletion; `None` for other
    /// objects.
    pub fn restore(&self, key: &Key) -> Option<Restore> {
        let restore = self.restore.get(key).copied();
        restore.filter(|restore| *restore != Restore::Never)
    }
}

/// Returns the layer of this program.
pub fn layer() -> Arc<Layer> {
    Arc::clone(Release::own().layer())
}

fn build_layer(objects: &[BootstrapObject]) -> Result<Arc<Layer>, LayerError> {
    let kinds = tenant_kinds();
    let encoded = objects.iter().map(|object| encode(&kinds, object));
    Layer::build(encoded.collect())
}

fn read(item: &Value) -> BootstrapObject {
    let text = |name: &str| item.str_at(&[name]).to_owned();
    let namespace = text("namespace");
    let mut tree = item["object"].clone();
    substitute(&mut tree);
    let name = constant(&text("name")).unwrap_or_else(|| text("name").into());
    let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
    let restore = match item.str_at(&["restore"]) {
        "now" => Restore::Now,
        "never" => Restore::Never,
        _ => Restore::Step,
    };
    BootstrapObject {
        key: Key::new(&text("group"), &text("resource"), namespace, &name),
        tree,
        restore,
    }
}

/// Replaces the placeholders that are the same in every plane.
fn substitute(tree: &mut Value) {
    match tree {
        Value::String(text) => {
            if let Some(replacement) = constant(text) {
                *text = replacement;
            } else if text == "${ADVERTISE_PORT}" {
                *tree = Value::Int(PORT_SENTINEL);
            } else if text == "<time>" {
                *text = "${BIRTH_TIME}".into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(substitute),
        Value::Object(members) => members.iter_mut().for_each(|(_, value)| substitute(value)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
    }
}

fn constant(text: &str) -> Option<Str> {
    let ([a, b, c, d], bits) = SERVICE_RANGE;
    text.contains("${")
        .then(|| {
            let range = format!("{a}.{b}.{c}.{d}/{bits}");
            text.replace("${CLUSTER_IP}", KUBERNETES_ADDRESS)
                .replace("${SERVICE_CIDR}", &range)
                // Upstream has one for the whole cluster; here each plane has its own.
                .replace("${CLIENT_CA}", "${PLANE_CLIENT_CA}")
                .replace("${REQUESTHEADER_CA}", "${PLANE_FRONT_PROXY_CA}")
        })
        .filter(|replaced| replaced != text)
        .map(Str::from)
}

fn encode(kinds: &KindTable, object: &BootstrapObject) -> LayerObject {
    let row = kinds
        .stored(object.key.group(), object.key.resource())
        .expect("every generated object is of a served kind");
    let mut tree = object.tree.clone();
    if row.scope == Scope::Namespaced {
        tree.set(
            &["metadata", "namespace"],
            object.key.namespace().unwrap_or(""),
        );
    }
    open_times(&mut tree);
    kinds
        .schemas()
        .decode(row.stored_definition, &mut tree, Empties::Null)
        .expect("every generated object fits its schema");
    let encoded = kinds.schemas().encode_stored(row.stored_definition, &tree);
    let slot = encoded
        .version
        .expect("every generated object has metadata");
    let (body, version_slot, labels) = fill_in(&encoded.bytes, slot.following(), encoded.labels);
    LayerObject {
        key: object.key.clone(),
        object: NewObject {
            body: body.into(),
            version_slot,
            labels,
            storage_version: row.storage.version.clone(),
            expires: None,
            flags: Flags::NONE,
        },
    }
}

/// A time that replaces the time of birth while an object is encoded, because only times can be
/// encoded there.
const TIME_SENTINEL: &str = "1999-12-31T23:59:59Z";

fn open_times(tree: &mut Value) {
    fn replace(value: &mut Value) {
        match value {
            Value::String(text) if text == "${BIRTH_TIME}" => *text = TIME_SENTINEL.into(),
            Value::Array(items) => items.iter_mut().for_each(replace),
            Value::Object(members) => members.iter_mut().for_each(|(_, value)| replace(value)),
            _ => {}
        }
    }
    tree.set(&["metadata", "uid"], "${UID}");
    tree.set(&["metadata", "creationTimestamp"], TIME_SENTINEL);
    replace(tree);
}

/// Replaces the sentinels by placeholders. Offsets behind a replaced text are moved accordingly.
fn fill_in(
    bytes: &[u8],
    slot: usize,
    labels: Option<std::ops::Range<usize>>,
) -> (Vec<u8>, usize, Option<std::ops::Range<usize>>) {
    let text = std::str::from_utf8(bytes).expect("canonical JSON is UTF-8");
    let open = |part: &str| {
        part.replace(TIME_SENTINEL, "${BIRTH_TIME}")
            .replace(&PORT_SENTINEL.to_string(), "${ADVERTISE_PORT}")
    };
    let moved = |offset: usize| open(&text[..offset]).len();
    let labels = labels.map(|range| moved(range.start)..moved(range.end));
    (open(text).into_bytes(), moved(slot), labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layer and its level must change together, or planes of two binaries would differ
    /// unnoticed.
    #[test]
    fn whoever_changes_the_layer_raises_the_level() {
        let release = Release::own();
        let known = "3a3b3bc188c9235810b6e451f9f83020674002862836beb8236b972f17c96f22";
        let hash = &release.layer().hash().0;
        assert_eq!(
            (release.level(), hash.as_str()),
            (7, known),
            "raise LEVEL, then write down the new hash"
        );
    }

    #[test]
    fn what_the_server_keeps_up_comes_back_at_once_and_policy_with_a_step() {
        let release = Release::own();
        let key = |group, resource, name| Key::new(group, resource, None, name);
        let flow = key("flowcontrol.apiserver.k8s.io", "flowschemas", "probes");
        let role = key("rbac.authorization.k8s.io", "clusterroles", "view");
        assert_eq!(release.restore(&flow), Some(Restore::Now));
        assert_eq!(release.restore(&role), Some(Restore::Step));
        assert_eq!(release.restore(&key("", "namespaces", "mine")), None);
    }

    #[test]
    fn the_layer_holds_every_generated_object_and_asks_for_known_params_only() {
        let layer = layer();
        assert_eq!(layer.len(), objects().len());
        let known = [
            params::SERVING_CA,
            params::PLANE_CLIENT_CA,
            params::PLANE_FRONT_PROXY_CA,
            params::ADVERTISE_ADDRESS,
            params::ADVERTISE_PORT,
        ];
        for param in layer.params() {
            assert!(known.contains(&param.as_str()), "{param} is not known");
        }
    }
}
