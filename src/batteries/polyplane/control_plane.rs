//! ControlPlane: the planes themselves, as objects of the root plane.
//!
//! The object *is* the directory record: creating it is the birth of a plane, complete in one
//! commit, `Ready` included. The id in its status is drawn once and never used again; the name may
//! be. A finalizer keeps the object until the plane's owner has removed the plane's whole range.

use crate::polyplane::controllers::{self, Controllers};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{Index, IndexId, IndexRow, Key};
use polyplane_registry::strategy::{Context, age};
use polyplane_registry::{Strategy, metadata};

use crate::polyplane::{access, authentication, limits, suspension};

/// The finalizer that keeps a ControlPlane until its plane is removed.
pub const FINALIZER: &str = "polyplane.dev/plane";
/// The API group of the kind.
pub const GROUP: &str = "polyplane.dev";
/// The resource of the kind.
pub const RESOURCE: &str = "controlplanes";
/// The annotation with a number, at each rise of which the plane's owner seals by a new data key. It is
/// no field, so that an earlier release in a mixed ring keeps it.
pub const DATA_KEY_GENERATION: &str = "polyplane.dev/data-key-generation";
/// The warning about a plane of an earlier release.
const ADMITS_MASTERS: &str = "spec.access is not set: members of system:masters in the root plane are masters of \
    this control plane too, as in earlier releases; set spec.access to say who may enter";
/// Number of letters of an id that are taken from its object's uid.
const ID_LETTERS: usize = 20;

/// An index of planes' ids, so that a plane is found by its id as fast as by its name.
pub struct PlaneIds;

impl Index for PlaneIds {
    fn covers(&self, key: &Key) -> bool {
        key.is_of(GROUP, RESOURCE)
    }

    fn rows(&self, _key: &Key, body: &[u8]) -> Vec<IndexRow> {
        let id = json::scan::string_at(body, &["status", "id"]);
        let row = id.map(|id| IndexRow {
            value: id.into_owned().into(),
            amount: 1,
        });
        row.into_iter().collect()
    }
}

/// Returns the position of [`PlaneIds`] among the indexes of a plane.
pub fn ids() -> IndexId {
    let before = [crate::core::BATTERY, crate::apiextensions::BATTERY];
    IndexId(before.iter().map(|battery| battery.indexes.len()).sum())
}

/// The behaviour of ControlPlane.
#[derive(Debug)]
pub struct ControlPlane;

impl Strategy for ControlPlane {
    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        if context.settings.records_say_access.present() {
            access::prepare_create(object, context.now);
        }
        let mut finalizers = object.items_at(&["metadata", "finalizers"]).to_vec();
        if !finalizers.contains(&Value::string(FINALIZER)) {
            finalizers.push(Value::string(FINALIZER));
            object.set(&["metadata", "finalizers"], finalizers);
        }
        let id = id_of(object.str_at(&["metadata", "uid"]));
        let now = Timestamp::from_seconds(context.now).to_rfc3339();
        let ready = match suspension::is_suspended(object) {
            true => suspension::ready(object, &now),
            false => condition(
                "Ready",
                "True",
                "Born",
                "the control plane can be used",
                &now,
            ),
        };
        let url = url(context, object);
        let layer = context.settings.birth_layer.hash();
        let mut status = json!({"observedGeneration": 1i64});
        status.set(&["id"], id);
        status.set(&["url"], url);
        status.set(&["conditions"], vec![ready]);
        status.set(&["birth", "layer"], layer);
        object.set(&["status"], status);
    }

    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        access::prepare_update(object, old, context.now);
        suspension::prepare_update(object, old, context.now);
        let url = url(context, object);
        object.set(&["status", "url"], url);
    }

    /// What the status says of the spec follows from the spec in the same write, so nobody has to act
    /// before it is true.
    fn observe_generation(&self, object: &mut Value) {
        if let Some(generation) = object.int_at(&["metadata", "generation"]) {
            object.set(&["status", "observedGeneration"], generation);
        }
    }

    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        let mut status = object["status"].clone();
        metadata::keep_all_but_managers(object, old.clone());
        status.set(&["url"], url(context, object));
        for fixed in ["id", "birth", "keys"] {
            match old.at(&["status", fixed]) {
                Some(value) => status.set(&[fixed], value.clone()),
                None => drop(status.remove(&[fixed])),
            }
        }
        object.set(&["status"], status);
    }

    fn prepare_deletion(&self, object: &mut Value) {
        let now = object.str_at(&["metadata", "deletionTimestamp"]).to_owned();
        let mut conditions = object.items_at(&["status", "conditions"]).to_vec();
        conditions.retain(|old| !matches!(old.str_at(&["type"]), "Ready" | "Deleting"));
        conditions.push(condition(
            "Ready",
            "False",
            "Deleting",
            "the control plane is being deleted",
            &now,
        ));
        conditions.push(condition(
            "Deleting",
            "True",
            "Deleting",
            "its objects are being removed",
            &now,
        ));
        object.set(&["status", "conditions"], conditions);
        // A deletion is counted too.
        self.observe_generation(object);
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let name = object.str_at(&["metadata", "name"]);
        let path = Path::new("metadata");
        let path = path.child("name");
        let mut errors: Complaints = names::dns1123_label(name)
            .into_iter()
            .map(|detail| FieldError::invalid(&path, name, detail))
            .collect();
        if matches!(name, "root" | "clusters") {
            errors.push(FieldError::invalid(&path, name, "the name is reserved"));
        }
        errors.extend(spec_errors(object));
        errors.extend(generation_errors(object));
        let is_read_by_all = context.settings.records_say_access.present();
        errors.extend(access::errors(object, None, (is_read_by_all, context.now)));
        errors.extend(limits::errors(object, is_read_by_all));
        errors.extend(issuer_errors(context, object));
        errors.extend(suspension::errors(context, object));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = spec_errors(object);
        errors.extend(generation_errors(object));
        let is_read_by_all = context.settings.records_say_access.present();
        errors.extend(access::errors(
            object,
            Some(old),
            (is_read_by_all, context.now),
        ));
        errors.extend(limits::errors(object, is_read_by_all));
        errors.extend(issuer_errors(context, object));
        errors.extend(suspension::errors(context, object));
        errors
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = authentication::client_ca_warnings(object, context.now);
        let is_open = object.at(&["spec", "access"]).is_none();
        if is_open && context.settings.records_say_access.present() {
            warnings.push(ADMITS_MASTERS.to_owned());
        }
        warnings
    }

    fn admit_delete(&self, _context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
        if object.bool_at(&["spec", "deletionProtection"]) {
            let name = object.str_at(&["metadata", "name"]);
            let why = "its deletion protection is on; set spec.deletionProtection to false first";
            return Err(ApiError::forbidden(
                Qualified::new(GROUP, RESOURCE),
                name,
                why,
            ));
        }
        Ok(())
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let conditions = object.items_at(&["status", "conditions"]);
        let ready = conditions
            .iter()
            .find(|condition| condition.str_at(&["type"]) == "Ready");
        let deleting = !object.str_at(&["metadata", "deletionTimestamp"]).is_empty();
        let ready = if deleting {
            "Deleting"
        } else if suspension::is_suspended(object) {
            "Suspended"
        } else {
            ready.map_or("Unknown", |ready| ready.str_at(&["status"]))
        };
        let objects = object.int_at(&["status", "objects"]);
        vec![
            Value::string(object.str_at(&["metadata", "name"])),
            Value::string(ready),
            Value::string(objects.map_or("-".to_owned(), |objects| objects.to_string())),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            Value::string(object.str_at(&["status", "id"])),
            Value::string(object.str_at(&["status", "url"])),
            Value::Bool(object.bool_at(&["spec", "deletionProtection"])),
        ]
    }
}

/// Returns where clients find a plane. Each write of its object sets it anew, because the address of the
/// server may have changed since the one before.
fn url(context: &Context<'_>, object: &Value) -> String {
    let name = object.str_at(&["metadata", "name"]);
    format!("{}/clusters/{name}", context.settings.endpoint)
}

fn issuer_errors(context: &Context<'_>, object: &Value) -> Complaints {
    let (endpoint, id) = (&context.settings.endpoint, object.str_at(&["status", "id"]));
    let own_issuer = format!("{endpoint}/clusters/{id}/control-plane");
    let settings = context.settings;
    let is_read_by_all = settings.records_say_issuers.present();
    let mut errors = authentication::errors(object, &own_issuer, is_read_by_all);
    let is_read_by_all = settings.records_say_client_cas.present();
    let of_cas = authentication::client_ca_errors(object, &settings.serving_ca, is_read_by_all);
    errors.extend(of_cas);
    let of_tokens = authentication::bootstrap_token_errors(object, is_read_by_all);
    errors.extend(of_tokens);
    errors
}

fn spec_errors(object: &Value) -> Complaints {
    let mut errors = placement_errors(object);
    errors.extend(controllers::errors(object));
    errors
}

/// Complains about a generation of the data key that is no number.
fn generation_errors(object: &Value) -> Option<FieldError> {
    let text = object.str_at(&["metadata", "annotations", DATA_KEY_GENERATION]);
    if text.is_empty() || text.parse::<u32>().is_ok() {
        return None;
    }
    let path = Path::new("metadata");
    let path = path.child("annotations");
    let path = path.key(DATA_KEY_GENERATION);
    Some(FieldError::invalid(
        &path,
        text,
        "must be a number below 2^32",
    ))
}

/// Complains about the placement: it may name a replica or a zone, but not both. Whether it can be
/// satisfied now does not matter.
fn placement_errors(object: &Value) -> Complaints {
    let path = Path::new("spec");
    let path = path.child("placement");
    let replica = object.str_at(&["spec", "placement", "replica"]);
    let zone = object.str_at(&["spec", "placement", "zone"]);
    let mut errors = Complaints::default();
    if !replica.is_empty() {
        let details = names::dns1123_subdomain(replica).into_iter();
        let field = path.child("replica");
        errors.extend(details.map(|detail| FieldError::invalid(&field, replica, detail)));
    }
    if !zone.is_empty() {
        let details = names::label_value(zone).into_iter();
        let field = path.child("zone");
        errors.extend(details.map(|detail| FieldError::invalid(&field, zone, detail)));
    }
    if !replica.is_empty() && !zone.is_empty() {
        let why = "name a replica or a zone, not both";
        errors.push(FieldError::invalid(&path.child("zone"), zone, why));
    }
    errors
}

/// The facts about a ControlPlane that the directory needs, read from its bytes without decoding
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRecord {
    /// The immutable id.
    pub id: String,
    /// The content hash of the layer that the plane was born with.
    pub layer: String,
    /// The time at which the plane was born, RFC 3339.
    pub born_at: String,
    /// The requested replica.
    pub replica: Option<String>,
    /// The requested zone.
    pub zone: Option<String>,
    /// The controllers that the plane's owner runs.
    pub controllers: Controllers,
    /// True if no request reaches the plane.
    pub suspended: bool,
    /// The generation of the data key that the plane is to have; zero without the annotation.
    pub data_key_generation: u32,
    /// Who may use the plane and how much, for [`access::PlaneAccessSpec::read`] and
    /// [`limits::read`].
    pub access: Vec<u8>,
}

impl DirectoryRecord {
    /// Reads the canonical bytes of a ControlPlane; returns `None` if they have no id or no layer.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let text = |path: &[&str]| json::scan::string_at(body, path).map(|text| text.into_owned());
        let wish =
            |field: &str| text(&["spec", "placement", field]).filter(|wish| !wish.is_empty());
        Some(Self {
            id: text(&["status", "id"])?,
            layer: text(&["status", "birth", "layer"])?,
            born_at: text(&["metadata", "creationTimestamp"]).unwrap_or_default(),
            replica: wish("replica"),
            zone: wish("zone"),
            controllers: Controllers::read(body),
            suspended: suspension::read(body),
            data_key_generation: text(&["metadata", "annotations", DATA_KEY_GENERATION])
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            access: access::raw(body),
        })
    }
}

/// Returns the id of the plane whose object has this uid: part of the uid, with a letter before it
/// so that it is a DNS label.
fn id_of(uid: &str) -> String {
    let letters = uid
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(ID_LETTERS);
    let mut id = String::from("p");
    id.extend(letters);
    id
}

/// Returns a condition for the status of a ControlPlane.
pub fn condition(kind: &str, status: &str, reason: &str, message: &str, now: &str) -> Value {
    json!({
        "type": kind,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message
    })
}
