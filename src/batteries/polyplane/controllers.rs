//! The controllers of upstream's controller manager that the owner of a plane runs itself, by
//! upstream's names, and which of them a ControlPlane switches off.
//!
//! Must not know what a controller does.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::{Str, Value};

/// Stands for all controllers in a list.
const ALL: &str = "*";
/// Most items of a list. Each controller needs one; more are a mistake.
const ITEMS_MAX: usize = 100;

/// A controller that the owner of a plane runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Writes the rules of aggregated ClusterRoles.
    ClusterRoleAggregation,
    /// Deletes objects whose owners are gone.
    GarbageCollector,
    /// Empties and removes deleted namespaces.
    Namespace,
    /// Lets deleted volumes go that are not bound.
    PersistentVolumeProtection,
    /// Lets deleted volume claims go that no pod uses.
    PersistentVolumeClaimProtection,
    /// Shows in the status of quotas what a namespace takes.
    ResourceQuota,
    /// Writes the certificates of the server into each namespace.
    RootCaCertificatePublisher,
    /// Creates the default service account of each namespace.
    ServiceAccount,
    /// Fills the Secrets that hold tokens of service accounts.
    ServiceAccountToken,
    /// Lets deleted attributes classes go that nothing names.
    VolumeAttributesClassProtection,
    /// Approves the certificate signing requests of kubelets.
    CertificateApproving,
    /// Deletes certificate signing requests that are done with.
    CertificateCleaner,
    /// Signs certificate signing requests.
    CertificateSigning,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::CertificateApproving,
        Self::CertificateCleaner,
        Self::CertificateSigning,
        Self::ClusterRoleAggregation,
        Self::GarbageCollector,
        Self::Namespace,
        Self::PersistentVolumeProtection,
        Self::PersistentVolumeClaimProtection,
        Self::ResourceQuota,
        Self::RootCaCertificatePublisher,
        Self::ServiceAccount,
        Self::ServiceAccountToken,
        Self::VolumeAttributesClassProtection,
    ];

    /// Returns the name by which the controller manager's flag `--controllers` knows it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CertificateApproving => "certificatesigningrequest-approving-controller",
            Self::CertificateCleaner => "certificatesigningrequest-cleaner-controller",
            Self::CertificateSigning => "certificatesigningrequest-signing-controller",
            Self::ClusterRoleAggregation => "clusterrole-aggregation-controller",
            Self::GarbageCollector => "garbage-collector-controller",
            Self::Namespace => "namespace-controller",
            Self::PersistentVolumeProtection => "persistentvolume-protection-controller",
            Self::PersistentVolumeClaimProtection => "persistentvolumeclaim-protection-controller",
            Self::ResourceQuota => "resourcequota-controller",
            Self::RootCaCertificatePublisher => "root-ca-certificate-publisher-controller",
            Self::ServiceAccount => "serviceaccount-controller",
            Self::ServiceAccountToken => "serviceaccount-token-controller",
            Self::VolumeAttributesClassProtection => "volumeattributesclass-protection-controller",
        }
    }

    /// Returns the name of the service account in `kube-system` that it acts as, or of the user if it
    /// acts as the manager itself. The bootstrap roles bind it.
    #[must_use]
    pub const fn account(self) -> &'static str {
        match self {
            Self::CertificateApproving | Self::CertificateCleaner | Self::CertificateSigning => {
                "certificate-controller"
            }
            Self::GarbageCollector => "generic-garbage-collector",
            Self::PersistentVolumeProtection => "pv-protection-controller",
            Self::PersistentVolumeClaimProtection => "pvc-protection-controller",
            Self::RootCaCertificatePublisher => "root-ca-cert-publisher",
            Self::ServiceAccount => "service-account-controller",
            Self::ServiceAccountToken => "system:kube-controller-manager",
            Self::ClusterRoleAggregation
            | Self::Namespace
            | Self::ResourceQuota
            | Self::VolumeAttributesClassProtection => self.name(),
        }
    }

    /// Returns whether it acts as the controller manager's own user, as upstream's does: without
    /// tokens the manager has no other.
    #[must_use]
    pub const fn is_manager(self) -> bool {
        matches!(self, Self::ServiceAccountToken)
    }

    /// Returns the manager of the fields that it writes: the controller manager's, so that it goes
    /// on with its own fields if it runs.
    #[must_use]
    pub const fn manager(self) -> &'static str {
        match self {
            Self::ClusterRoleAggregation => self.name(),
            _ => "kube-controller-manager",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    off: u32,
}

impl Controllers {
    /// All controllers.
    pub const EVERY: Self = Self { off: 0 };
    /// No controller, as in a kube-apiserver beside which no controller manager runs.
    pub const NONE: Self = Self { off: u32::MAX };

    /// Returns whether a controller is in the set.
    #[must_use]
    pub const fn has(self, controller: Controller) -> bool {
        self.off & controller.bit() == 0
    }

    /// Returns the controllers that are switched off, a bit each.
    #[must_use]
    pub const fn switched_off(self) -> u32 {
        self.off
    }

    /// Returns the set without the controllers whose bits are given.
    #[must_use]
    pub const fn without(off: u32) -> Self {
        Self { off }
    }

    /// Reads `spec.controllers` of a ControlPlane, which means what the controller manager's flag
    /// of that name means: the first item about a controller decides, and `*` stands for all. No
    /// list means all. Items that this program does not know mean nothing here.
    #[must_use]
    pub fn of<S: AsRef<str>>(items: &[S]) -> Self {
        if items.is_empty() {
            return Self::EVERY;
        }
        let off = |controller: &Controller| {
            for item in items.iter().map(AsRef::as_ref) {
                if item == controller.name() {
                    return false;
                }
                if item.strip_prefix('-') == Some(controller.name()) {
                    return true;
                }
            }
            !items.iter().any(|item| item.as_ref() == ALL)
        };
        let all = Controller::ALL.into_iter();
        let off = all.filter(off).fold(0, |off, one| off | one.bit());
        Self { off }
    }

    /// Reads `spec.controllers` in the bytes of a ControlPlane.
    #[must_use]
    pub fn read(body: &[u8]) -> Self {
        let Some(list) = scan::find(body, &["spec", "controllers"]) else {
            return Self::EVERY;
        };
        let list = &body[list];
        let items = scan::items(list).filter_map(|item| scan::string(&list[item]));
        let items: Vec<_> = items.collect();
        Self::of(&items)
    }
}

/// Complains about items that name no controller.
pub(crate) fn errors(object: &Value) -> Complaints {
    let path = Path::new("spec");
    let path = path.child("controllers");
    let items = object.items_at(&["spec", "controllers"]);
    if items.len() > ITEMS_MAX {
        return Complaints::from([FieldError::too_many(&path, items.len(), ITEMS_MAX)]);
    }
    let mut known: Vec<Str> = vec![ALL.into()];
    for controller in Controller::ALL {
        known.push(controller.name().into());
        known.push(format!("-{}", controller.name()).into());
    }
    let mut errors = Complaints::default();
    for (index, item) in items.iter().enumerate() {
        let item = item.as_str().unwrap_or_default();
        if !known.iter().any(|name| name == item) {
            errors.push(FieldError::not_supported(&path.index(index), item, &known));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    fn off(items: &[&str]) -> Vec<&'static str> {
        let set = Controllers::of(items);
        let all = Controller::ALL.into_iter();
        all.filter(|one| !set.has(*one))
            .map(Controller::name)
            .collect()
    }

    #[test]
    fn a_list_means_what_the_controller_managers_flag_means() {
        let every: Vec<&str> = Controller::ALL.map(Controller::name).to_vec();
        assert_eq!(off(&[]), [""; 0]);
        assert_eq!(off(&["*"]), [""; 0]);
        assert_eq!(
            off(&["*", "-namespace-controller"]),
            ["namespace-controller"]
        );
        assert_eq!(
            off(&["-namespace-controller", "*"]),
            ["namespace-controller"]
        );
        assert_eq!(off(&["-namespace-controller"]), every);
        let mut but_one = every.clone();
        but_one.retain(|name| *name != "serviceaccount-controller");
        assert_eq!(off(&["serviceaccount-controller"]), but_one);
        let twice = ["resourcequota-controller", "-resourcequota-controller", "*"];
        assert_eq!(off(&twice), [""; 0]);
    }

    #[test]
    fn the_bytes_of_a_control_plane_say_the_same() {
        let body = br#"{"spec":{"controllers":["*","-garbage-collector-controller"]}}"#;
        let set = Controllers::read(body);
        assert!(!set.has(Controller::GarbageCollector));
        assert!(set.has(Controller::Namespace));
        assert_eq!(Controllers::read(br#"{"spec":{}}"#), Controllers::EVERY);
        assert_eq!(Controllers::without(set.switched_off()), set);
    }

    #[test]
    fn the_bootstrap_roles_bind_the_account_of_each_controller() {
        let objects = include_bytes!("../data/bootstrap.json");
        let objects = json::parse(objects, &json::Limits::default())
            .expect("it is JSON")
            .value;
        let objects = objects.as_array().expect("it is a list").iter();
        let subjects = objects.flat_map(|entry| entry.items_at(&["object", "subjects"]));
        let bound: Vec<&str> = subjects.map(|subject| subject.str_at(&["name"])).collect();
        for controller in Controller::ALL {
            assert!(bound.contains(&controller.account()), "{controller:?}");
        }
    }
}
