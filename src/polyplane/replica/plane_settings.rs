//! The facts that kinds need about every plane.

use crate::replica::ReplicaParts;
use polyplane_apimachinery::Str;
use polyplane_batteries::bootstrap::{
    self, ACCESS_LEVEL, CLIENT_CAS_LEVEL, ISSUERS_LEVEL, SUSPENSION_LEVEL,
};
use polyplane_batteries::polyplane::controllers::Controllers;
use polyplane_ownership::Planes;
use polyplane_ownership::directory::Directory;
use polyplane_registry::service_ranges::ServiceRange;
use polyplane_registry::settings::{Privileged, WATCH_SECONDS_MIN};
use polyplane_registry::{BirthLayer, PlaneSettings, Shared, SwitchedOff};
use std::sync::Arc;

/// The range of node ports from which services get theirs.
const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// Returns the facts that kinds need about every plane.
pub(super) fn settings(
    setup: &ReplicaParts,
    planes: &Arc<Planes>,
    rows: &Arc<Directory>,
) -> PlaneSettings {
    let (base, bits) = bootstrap::SERVICE_RANGE;
    let every = ServiceRange::new(base, bits).into();
    let plain = setup.plain.as_ref();
    PlaneSettings {
        service_ranges: plain.map_or(every, |plain| plain.service_ranges),
        node_ports: plain.map_or(NODE_PORTS, |plain| plain.node_ports),
        serving_ca: setup.config.pki.root_pem().into(),
        endpoint: format!("https://{}", setup.endpoint).into(),
        birth_layer: BirthLayer::new({
            let planes = Arc::downgrade(planes);
            move || {
                planes
                    .upgrade()
                    .map_or_else(Str::default, |planes| planes.birth_layer().0.into())
            }
        }),
        records_say_access: from_floor(planes, ACCESS_LEVEL),
        records_say_issuers: from_floor(planes, ISSUERS_LEVEL),
        records_say_suspension: from_floor(planes, SUSPENSION_LEVEL),
        records_say_client_cas: from_floor(planes, CLIENT_CAS_LEVEL),
        switched_off: switched_off(rows, plain.is_some()),
        watch_seconds_min: plain.map_or(WATCH_SECONDS_MIN, |plain| plain.watch_seconds_min),
        lifetimes: setup.lifetimes,
        privileged: plain.map_or(Privileged::Allowed, |plain| plain.privileged),
    }
}

/// Returns what finds the controllers that are switched off in a plane: the plane's record says it.
/// The root has no record; all controllers run in it, or none if it is plain.
fn switched_off(rows: &Arc<Directory>, plain: bool) -> SwitchedOff {
    let rows = Arc::downgrade(rows);
    let root = match plain {
        true => Controllers::NONE,
        false => Controllers::EVERY,
    };
    SwitchedOff::new(move |id| {
        let entry = rows.upgrade().and_then(|rows| rows.by_id(id));
        entry.map_or(root.switched_off(), |entry| entry.switches)
    })
}

/// Returns whether the store's floor has come to a level.
fn from_floor(planes: &Arc<Planes>, level: u32) -> Shared<bool> {
    let planes = Arc::downgrade(planes);
    Shared::new(move || {
        let floor = planes.upgrade().map(|planes| planes.floor());
        floor.is_some_and(|floor| floor.level >= level)
    })
}
