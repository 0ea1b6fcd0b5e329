//! The errors that the validation of a pod spec tolerates because the object had them before.

use super::{affinity, containers_of, is_sidecar, projected, resources, security, spread};
use crate::shared::node_selector;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_registry::settings::Privileged;

/// The kind of object that the spec belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A pod.
    Pod,
    /// The template of another kind.
    Template,
}

/// An error that new objects must not have and old ones may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leniency {
    /// A pod deletion cost that is not a number.
    DeletionCost,
    /// Amounts of huge pages that are not a multiple of the page size.
    IndivisibleHugePages,
    /// Invalid label values in selectors of pod affinity.
    AffinitySelector,
    /// Invalid label values in required node affinity.
    NodeAffinity,
    /// Invalid label selectors of spread constraints.
    SpreadSelector,
    /// Label keys of spread constraints that follow the older rules.
    SpreadKeys,
    /// Paths of projected tokens outside their volume.
    TokenPath,
    /// Namespaced sysctls in a pod that uses the namespaces of the host.
    HostSysctls,
    /// Tolerations that compare numbers.
    ComparingTolerations,
    /// Block devices in a pod with users of its own.
    UserNamespaceDevices,
    /// The network of the host in a pod with users of its own.
    UserNamespaceHostNetwork,
    /// Image volumes without an image.
    EmptyImageReference,
    /// `CAP_SYS_ADMIN` without privilege escalation.
    SysAdminWithoutEscalation,
    /// Restart on resize in init containers.
    RestartOfInitContainers,
}

/// The options of validating a pod spec.
#[derive(Debug, Clone)]
pub struct PodOptions {
    /// The kind of object that the spec belongs to.
    pub subject: Subject,
    /// Whether containers may be privileged.
    pub privileged: Privileged,
    lenient: Vec<Leniency>,
}

impl PodOptions {
    /// Returns the options for the template of another kind; `old` is the template before an
    /// update.
    pub fn for_template(old: Option<&Value>) -> Self {
        Self::new(Subject::Template, old)
    }

    /// Returns the options for a pod; `old` is the pod before an update.
    pub fn for_pod(old: Option<&Value>) -> Self {
        Self::new(Subject::Pod, old)
    }

    fn new(subject: Subject, old: Option<&Value>) -> Self {
        Self {
            subject,
            privileged: Privileged::Allowed,
            lenient: old.map(leniencies).unwrap_or_default(),
        }
    }

    /// Returns the options with another rule for privileged containers.
    pub fn with(self, privileged: Privileged) -> Self {
        Self { privileged, ..self }
    }

    /// Returns true if the old object had this error already.
    pub fn allows(&self, leniency: Leniency) -> bool {
        self.lenient.contains(&leniency)
    }
}

fn leniencies(old: &Value) -> Vec<Leniency> {
    let spec = &old["spec"];
    let own_users = spec.at(&["hostUsers"]).and_then(Value::as_bool) == Some(false);
    let annotations = &old["metadata"]["annotations"];
    let found = [
        (
            Leniency::DeletionCost,
            !super::annotations::deletion_cost_is_valid(annotations),
        ),
        (
            Leniency::IndivisibleHugePages,
            resources::has_indivisible_huge_pages(spec),
        ),
        (Leniency::AffinitySelector, affinity::has_bad_selector(spec)),
        (Leniency::NodeAffinity, has_bad_node_affinity(spec)),
        (Leniency::SpreadSelector, spread::has_bad_selector(spec)),
        (Leniency::SpreadKeys, spread::has_bad_keys(spec)),
        (Leniency::TokenPath, has_bad_token_path(spec)),
        (Leniency::HostSysctls, security::has_host_sysctl(spec)),
        (Leniency::ComparingTolerations, compares(spec)),
        (
            Leniency::UserNamespaceDevices,
            own_users
                && containers_of(spec).any(|one| !one.items_at(&["volumeDevices"]).is_empty()),
        ),
        (
            Leniency::UserNamespaceHostNetwork,
            own_users && spec.bool_at(&["hostNetwork"]),
        ),
        (Leniency::EmptyImageReference, has_empty_image(spec)),
        (
            Leniency::SysAdminWithoutEscalation,
            containers_of(spec).any(is_admin_without_escalation),
        ),
        (
            Leniency::RestartOfInitContainers,
            spec.items_at(&["initContainers"])
                .iter()
                .any(restarts_on_resize),
        ),
    ];
    found
        .into_iter()
        .filter(|(_, present)| *present)
        .map(|(leniency, _)| leniency)
        .collect()
}

fn has_bad_node_affinity(spec: &Value) -> bool {
    let required = [
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ];
    spec.at(&required)
        .is_some_and(node_selector::has_bad_label_values)
}

fn has_bad_token_path(spec: &Value) -> bool {
    let sources = spec
        .items_at(&["volumes"])
        .iter()
        .flat_map(|volume| volume.items_at(&["projected", "sources"]));
    sources
        .filter_map(|source| source.get("serviceAccountToken"))
        .any(|token| {
            let mut errors = Complaints::default();
            projected::validate_local_path(token.str_at(&["path"]), &Path::NIL, &mut errors);
            !errors.is_empty()
        })
}

fn compares(spec: &Value) -> bool {
    let tolerations = spec.items_at(&["tolerations"]).iter();
    tolerations
        .map(|toleration| toleration.str_at(&["operator"]))
        .any(|operator| matches!(operator, "Lt" | "Gt"))
}

fn has_empty_image(spec: &Value) -> bool {
    let images = spec
        .items_at(&["volumes"])
        .iter()
        .filter_map(|volume| volume.get("image"));
    images
        .filter(|image| !image.is_null())
        .any(|image| image.str_at(&["reference"]).is_empty())
}

fn is_admin_without_escalation(container: &Value) -> bool {
    let context = &container["securityContext"];
    !context.bool_at(&["allowPrivilegeEscalation"]) && security::adds_sys_admin(context)
}

fn restarts_on_resize(container: &Value) -> bool {
    let policies = container.items_at(&["resizePolicy"]).iter();
    !is_sidecar(container)
        && policies
            .map(|one| one.str_at(&["restartPolicy"]))
            .any(|one| one == "RestartContainer")
}
