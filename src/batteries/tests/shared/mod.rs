//! Code that the targets of these tests share. Each of them uses all of it.

pub mod plane;
pub mod recorded;

use polyplane_apimachinery::Str;
use polyplane_registry::service_ranges::ServiceRange;
use polyplane_registry::settings::{BirthLayer, PlaneSettings};

/// Returns settings with 10.0.0.0 and `bits` for services, and these node ports.
pub fn settings(bits: u8, node_ports: (u16, u16), serving_ca: &str) -> PlaneSettings {
    PlaneSettings {
        service_ranges: ServiceRange::new([10, 0, 0, 0], bits).into(),
        node_ports,
        serving_ca: serving_ca.into(),
        endpoint: Str::default(),
        birth_layer: BirthLayer::fixed(""),
        records_say_access: polyplane_registry::Shared::fixed(true),
        records_say_issuers: polyplane_registry::Shared::fixed(true),
        records_say_suspension: polyplane_registry::Shared::fixed(true),
        records_say_client_cas: polyplane_registry::Shared::fixed(true),
        switched_off: polyplane_registry::SwitchedOff::none(),
        watch_seconds_min: 1800,
        lifetimes: polyplane_registry::settings::Lifetimes::default(),
        privileged: polyplane_registry::settings::Privileged::Allowed,
    }
}
