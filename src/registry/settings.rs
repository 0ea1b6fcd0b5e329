//! What a plane and its server set for the kinds: ranges, names, lifetimes and rights.

use crate::service_ranges::ServiceRanges;
use polyplane_apimachinery::Str;
use std::sync::Arc;

/// The facts about a plane that kinds need.
#[derive(Debug, Clone)]
pub struct PlaneSettings {
    /// The ranges from which Services get addresses.
    pub service_ranges: ServiceRanges,
    /// The first and the last node port.
    pub node_ports: (u16, u16),
    /// The text of `kube-root-ca.crt`: the certificates that sign the serving certificate.
    pub serving_ca: Str,
    /// The address at which clients reach this server: scheme, host and port, without a path.
    pub endpoint: Str,
    /// The layer that planes are born with.
    pub birth_layer: BirthLayer,
    /// Whether every program that may still join the ring reads `spec.access` of a plane.
    pub records_say_access: Shared<bool>,
    /// Whether every program of the ring reads which issuers planes name.
    pub records_say_issuers: Shared<bool>,
    /// Whether every program of the ring reads that a plane is suspended.
    pub records_say_suspension: Shared<bool>,
    /// Whether every program of the ring reads which client CAs planes name, and whether they take bootstrap
    /// tokens.
    pub records_say_client_cas: Shared<bool>,
    /// The controllers that do not run in a plane.
    pub switched_off: SwitchedOff,
    /// The seconds after which a watch without a time-out of its own ends at the earliest; at the latest
    /// after twice as many, so that not all watches end at once. With 0 it does not end by itself.
    pub watch_seconds_min: u32,
    /// How long Events and the tokens of service accounts last.
    pub lifetimes: Lifetimes,
    /// Whether containers may be privileged.
    pub privileged: Privileged,
}

/// Whether containers may be privileged, or processes of a Windows host. Upstream's name of the flag is
/// `--allow-privileged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileged {
    /// They may.
    #[default]
    Allowed,
    /// Nobody may write a pod or a template with such a container.
    Forbidden,
}

/// How long Events and the tokens of service accounts last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The seconds after which an Event is deleted that nobody writes again; 0 for never.
    pub event_seconds: u32,
    /// The most seconds for which a token is issued; `None` for as many as it is requested for.
    pub token_seconds_max: Option<i64>,
    /// Whether the token of a pod lives for a year, so that a client that never reads the renewed one does
    /// not fail.
    pub are_pod_tokens_extended: bool,
}

impl Default for Lifetimes {
    /// Returns those that upstream has by default.
    fn default() -> Self {
        Self {
            event_seconds: 3600,
            token_seconds_max: None,
            are_pod_tokens_extended: true,
        }
    }
}

/// The value of [`PlaneSettings::watch_seconds_min`] that upstream has by default.
pub const WATCH_SECONDS_MIN: u32 = 1800;

/// Finds the controllers that do not run in a plane. What a strategy writes on behalf of one of them
/// is left out there. The answer may change while the server runs.
#[derive(Clone)]
pub struct SwitchedOff(Arc<dyn Fn(&str) -> u32 + Send + Sync>);

impl SwitchedOff {
    /// Creates it from a function that returns, for the id of a plane, a bit for each controller
    /// that is off. The crate with the kinds numbers the controllers.
    pub fn new(bits: impl Fn(&str) -> u32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(bits))
    }

    /// Creates one by which all controllers run in every plane.
    pub fn none() -> Self {
        Self::new(|_| 0)
    }

    /// Returns a bit for each controller that is off in the plane with this id.
    pub fn bits(&self, id: &str) -> u32 {
        (self.0)(id)
    }
}

impl std::fmt::Debug for SwitchedOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwitchedOff").finish_non_exhaustive()
    }
}

/// A fact about the ring that may change while the server runs.
#[derive(Clone)]
pub struct Shared<T>(Arc<dyn Fn() -> T + Send + Sync>);

impl<T: Clone + Send + Sync + 'static> Shared<T> {
    /// Creates it from a function that returns the present value.
    pub fn new(present: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self(Arc::new(present))
    }

    /// Creates one that never changes.
    pub fn fixed(value: T) -> Self {
        Self::new(move || value.clone())
    }

    /// Returns the present value.
    pub fn present(&self) -> T {
        (self.0)()
    }
}

impl<T: std::fmt::Debug + Clone + Send + Sync + 'static> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.present()).finish()
    }
}

/// The hash of the layer that planes are born with. The layer may change while the server runs.
#[derive(Clone)]
pub struct BirthLayer(Arc<dyn Fn() -> Str + Send + Sync>);

impl BirthLayer {
    /// Creates it from a function that is called whenever a plane is born.
    pub fn new(hash: impl Fn() -> Str + Send + Sync + 'static) -> Self {
        Self(Arc::new(hash))
    }

    /// Creates one that never changes.
    pub fn fixed(hash: impl Into<Str>) -> Self {
        let hash = hash.into();
        Self::new(move || hash.clone())
    }

    /// Returns the present hash.
    pub fn hash(&self) -> Str {
        (self.0)()
    }
}

impl std::fmt::Debug for BirthLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BirthLayer").field(&self.hash()).finish()
    }
}
