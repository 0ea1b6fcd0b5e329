//! `PodSecurity`: labels of a namespace say how much its pods may see of their node.
//!
//! A level that is enforced refuses pods; one that is for warnings adds warnings, also to objects
//! with a template of pods. Violations of the level for audit are counted in the metrics and told in
//! the audit of the request.

mod checks;
mod config;
mod count;
mod evaluate;
mod policy;
#[cfg(test)]
mod tests;

pub(crate) use config::PodSecurityConfig;

use crate::objects;
use count::{Counts, Mode, Target};
use evaluate::{Pod, Violation, details, reasons, violations};
use policy::{Level, LevelVersion, Policy};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::FieldError;
use polyplane_apimachinery::json::scan::find;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Claim, Key, ObjectRef, Prefix, Start};
use polyplane_registry::Admission;
use polyplane_registry::metrics::Family;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};
use std::collections::{BTreeMap, HashSet};

/// Pods that are checked when the enforced level of their namespace changes. More would keep a
/// thread busy for too long.
const PODS_CHECKED_MAX: usize = 3000;

/// The annotation in the audit with the level that a pod was held to.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce-policy";
/// The annotation with what violates the level for audit.
const VIOLATIONS: &str = "pod-security.kubernetes.io/audit-violations";
/// The annotation with the reason why nothing was checked.
const EXEMPT: &str = "pod-security.kubernetes.io/exempt";
/// The annotation with what is wrong with the labels of the namespace.
const ERROR: &str = "pod-security.kubernetes.io/error";

/// The subresources of a pod that change nothing about its containers.
const HARMLESS: [&str; 8] = [
    "exec",
    "attach",
    "binding",
    "eviction",
    "log",
    "portforward",
    "proxy",
    "status",
];

/// See the module.
#[derive(Debug)]
pub(crate) struct PodSecurity {
    config: PodSecurityConfig,
    counts: Counts,
}

impl Admission for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[
            "namespaces",
            "pods",
            "replicationcontrollers",
            "podtemplates",
            "replicasets.apps",
            "deployments.apps",
            "statefulsets.apps",
            "daemonsets.apps",
            "jobs.batch",
            "cronjobs.batch",
        ])
    }

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Create, Operation::Update])
    }

    fn families(&self) -> Vec<Family> {
        self.counts.families()
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Create | Operation::Update, Some(object)) = (what.operation, object) else {
            return Ok(Vec::new());
        };
        let subresource = what.call.subresource();
        match what.call.row.name.as_str() {
            "namespaces" if subresource.is_empty() => {
                self.check_namespace(what, object)?;
                Ok(Vec::new())
            }
            "pods" if !HARMLESS.contains(&subresource) => Ok(self.check_pod(what, object)?),
            "namespaces" | "pods" => Ok(Vec::new()),
            _ if subresource.is_empty() => {
                self.check_template(what, object)?;
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }
}

impl PodSecurity {
    pub(crate) fn new(config: PodSecurityConfig) -> Self {
        Self {
            config,
            counts: Counts::default(),
        }
    }

    /// Returns whether the namespace or the user of a write is exempt, which is counted and told in the audit.
    fn exempts_request(&self, what: &Attributes<'_>, target: Target) -> bool {
        let reason = if self.config.exempts_namespace(what.call.namespace()) {
            "namespace"
        } else if self.config.exempts_user(&what.call.request.user.name) {
            "user"
        } else {
            return false;
        };
        self.exempted((what, target), reason);
        true
    }

    /// Returns whether the runtime class of a pod or of a template is exempt, which is counted and told in the
    /// audit.
    fn exempts_runtime_class(
        &self,
        (what, target): (&Attributes<'_>, Target),
        pod: &Value,
    ) -> bool {
        let class = pod.str_at(&["spec", "runtimeClassName"]);
        let is_exempt = self.config.exempts_runtime_class(class);
        if is_exempt {
            self.exempted((what, target), "runtimeClass");
        }
        is_exempt
    }

    fn exempted(&self, (what, target): (&Attributes<'_>, Target), reason: &str) {
        self.counts.exempted(target);
        what.call.annotate(EXEMPT, || reason.to_owned());
    }

    /// Refuses a pod that violates the enforced level, and warns of one that violates the other.
    fn check_pod(&self, what: &Attributes<'_>, pod: &Value) -> Result<Vec<Claim>, ApiError> {
        let target = Target::of(what);
        if self.exempts_request(what, target) {
            return Ok(Vec::new());
        }
        let (policy, errors, claim) = self.policy_here(what, target)?;
        if errors.is_empty() && policy.is_privileged() {
            self.counts
                .evaluated(target, Mode::Enforce, policy.enforce, false);
            what.call
                .annotate(ENFORCED, || "privileged:latest".to_owned());
            return Ok(vec![claim]);
        }
        if what.old.is_some_and(|old| !changes_containers(pod, old)) {
            return Ok(vec![claim]);
        }
        if self.exempts_runtime_class((what, target), pod) {
            return Ok(vec![claim]);
        }
        self.complain((what, target), &errors);
        what.call.annotate(ENFORCED, || policy.enforce.to_string());
        let seen = Pod::of(pod);
        let found = violations(policy.enforce, &seen);
        let is_denied = !found.is_empty();
        self.counts
            .evaluated(target, Mode::Enforce, policy.enforce, is_denied);
        self.audit((what, target), policy.audit, &seen);
        if is_denied {
            let level = quote(&policy.enforce.to_string());
            let why = format!("violates PodSecurity {level}: {}", details(&found));
            return Err(what.forbidden(Some(pod), why));
        }
        if policy.warn != policy.enforce {
            self.warn((what, target), policy.warn, &seen);
        }
        Ok(vec![claim])
    }

    /// Warns of an object whose pods would violate the level for warnings.
    fn check_template(&self, what: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
        let path: &[&str] = match what.call.row.name.as_str() {
            "podtemplates" => &["template"],
            "cronjobs" => &["spec", "jobTemplate", "spec", "template"],
            _ => &["spec", "template"],
        };
        let target = Target::of(what);
        if self.exempts_request(what, target) {
            return Ok(());
        }
        let (policy, errors, _) = self.policy_here(what, target)?;
        if errors.is_empty() && policy.asks_for_nothing_else() {
            return Ok(());
        }
        let Some(template) = object.at(path) else {
            return Ok(());
        };
        if self.exempts_runtime_class((what, target), template) {
            return Ok(());
        }
        self.complain((what, target), &errors);
        let seen = Pod::of(template);
        self.audit((what, target), policy.audit, &seen);
        self.warn((what, target), policy.warn, &seen);
        Ok(())
    }

    /// Returns the policy of the write's namespace, what is wrong with its labels, and the claim that
    /// the namespace stays as it is.
    fn policy_here(
        &self,
        what: &Attributes<'_>,
        target: Target,
    ) -> Result<(Policy, Complaints, Claim), ApiError> {
        let name = what.call.namespace();
        let key = Key::new("", "namespaces", None, name);
        let Some(namespace) = what.cut.get(&key) else {
            self.counts.failed(target, true);
            let why = format!("failed to lookup namespace {}", quote(name));
            return Err(ApiError::internal(why));
        };
        let labels = namespace.labels_json();
        let (policy, errors) = policy::of_labels_text(labels, &self.config.defaults)?;
        Ok((policy, errors, Claim::At(key, namespace.stamp())))
    }

    /// Counts that labels of a namespace are wrong, and tells it in the audit.
    fn complain(&self, (what, target): (&Attributes<'_>, Target), errors: &[FieldError]) {
        if errors.is_empty() {
            return;
        }
        self.counts.failed(target, false);
        what.call.annotate(ERROR, || {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            match texts.as_slice() {
                [only] => format!("Failed to parse policy: {only}"),
                all => format!("Failed to parse policy: [{}]", all.join(", ")),
            }
        });
    }

    /// Counts a pod that violates the level for audit, and tells it there.
    fn audit(&self, (what, target): (&Attributes<'_>, Target), level: LevelVersion, pod: &Pod<'_>) {
        let found = violations(level, pod);
        if !found.is_empty() {
            self.counts.evaluated(target, Mode::Audit, level, true);
            what.call
                .annotate(VIOLATIONS, || would_violate(level, &found));
        }
    }

    fn warn(&self, (what, target): (&Attributes<'_>, Target), level: LevelVersion, pod: &Pod<'_>) {
        let found = violations(level, pod);
        if !found.is_empty() {
            self.counts.evaluated(target, Mode::Warn, level, true);
            what.call.warn(would_violate(level, &found));
        }
    }

    /// Refuses a namespace with wrong labels. Warns of pods that violate a level which is enforced from
    /// now on, or of labels without effect.
    fn check_namespace(&self, what: &Attributes<'_>, namespace: &Value) -> Result<(), ApiError> {
        let name = namespace.str_at(&["metadata", "name"]);
        let labels = &namespace["metadata"]["labels"];
        let defaults = &self.config.defaults;
        let (policy, errors) = policy::of_labels(labels, defaults);
        let invalid = || {
            Err(ApiError::invalid(
                Qualified::new("", "Namespace"),
                name,
                &errors,
            ))
        };
        let Some(old) = what.old else {
            if !errors.is_empty() {
                return invalid();
            }
            if self.config.exempts_namespace(name) {
                self.warn_of_exemption(what, name, (labels, &policy));
            }
            return Ok(());
        };
        let (old_policy, old_errors) = policy::of_labels(&old["metadata"]["labels"], defaults);
        if !errors.is_empty() && errors != old_errors {
            return invalid();
        }
        let (new, old) = (policy.enforce, old_policy.enforce);
        let is_relaxed = new.version == old.version && new.level <= old.level;
        if new == old || new.level == Level::Privileged || is_relaxed {
            return Ok(());
        }
        if self.config.exempts_namespace(name) {
            self.warn_of_exemption(what, name, (labels, &policy));
            return Ok(());
        }
        for text in self.warnings_of_present(what, name, new)? {
            what.call.warn(text);
        }
        Ok(())
    }

    /// Warns of labels of an exempt namespace, unless its pods would be treated like this anyway.
    fn warn_of_exemption(
        &self,
        what: &Attributes<'_>,
        namespace: &str,
        (labels, policy): (&Value, &Policy),
    ) {
        if policy.is_privileged() || policy.is_equivalent(&self.config.defaults) {
            return;
        }
        let (namespace, levels) = (quote(namespace), policy::named(labels, policy));
        what.call.warn(format!(
            "namespace {namespace} is exempt from Pod Security, and the policy ({levels}) will be ignored"
        ));
    }

    /// Returns warnings of the pods of a namespace that violate a level.
    fn warnings_of_present(
        &self,
        what: &Attributes<'_>,
        namespace: &str,
        level: LevelVersion,
    ) -> Result<Vec<String>, ApiError> {
        let prefix = Prefix::namespaced("", "pods", namespace);
        // The reason, with the first pod that has it and the number of all.
        let mut by_reason: BTreeMap<String, (String, usize)> = BTreeMap::new();
        let mut controllers = HashSet::new();
        let (mut first, mut further) = (Vec::new(), Vec::new());
        // One pod of each controller is checked before the others, in case that not all can be.
        let is_evaluated = |pod: &ObjectRef| !self.exempts_stored(pod);
        let mut pods = what.cut.range(&prefix, Start::First).filter(is_evaluated);
        for object in pods.by_ref().take(PODS_CHECKED_MAX) {
            let pod = what.call.stored_tree(&object)?;
            match controller(&pod) {
                Some(uid) if !controllers.insert(uid.clone()) => further.push(pod),
                _ => first.push(pod),
            }
        }
        let total = match self.config.has_runtime_classes() {
            true => first.len() + further.len() + pods.count(),
            false => what.cut.count(&prefix),
        };
        for pod in first.into_iter().chain(further) {
            let found = violations(level, &Pod::of(&pod));
            if found.is_empty() {
                continue;
            }
            let name = pod.str_at(&["metadata", "name"]).to_owned();
            let (named, count) = by_reason
                .entry(reasons(&found))
                .or_insert_with(|| (name.clone(), 0));
            *named = std::mem::take(named).min(name);
            *count += 1;
        }
        let mut warnings = Vec::new();
        if total > PODS_CHECKED_MAX {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {PODS_CHECKED_MAX} of {total} existing pods"
            ));
        }
        if !by_reason.is_empty() {
            warnings.push(format!(
                "existing pods in namespace {} violate the new PodSecurity enforce level {}",
                quote(namespace),
                quote(&level.to_string())
            ));
        }
        let mut of_pods: Vec<String> = by_reason
            .into_iter()
            .map(|(reason, (name, count))| match count {
                1 => format!("{name}: {reason}"),
                2 => format!("{name} (and 1 other pod): {reason}"),
                _ => format!("{name} (and {} other pods): {reason}", count - 1),
            })
            .collect();
        of_pods.sort();
        warnings.extend(of_pods);
        Ok(warnings)
    }

    /// Returns whether the runtime class of a stored pod is exempt.
    fn exempts_stored(&self, pod: &ObjectRef) -> bool {
        if !self.config.has_runtime_classes() {
            return false;
        }
        let body = pod.body();
        let class = find(&body, &["spec", "runtimeClassName"]).map(|range| &body[range]);
        let class = class.and_then(|class| std::str::from_utf8(class).ok());
        // Names of classes have no characters that JSON escapes.
        class.is_some_and(|class| self.config.exempts_runtime_class(class.trim_matches('"')))
    }
}

/// Returns what clients and the audit are told of a pod that violates a level.
fn would_violate(level: LevelVersion, found: &[Violation]) -> String {
    let level = quote(&level.to_string());
    format!("would violate PodSecurity {level}: {}", details(found))
}

/// Returns whether an update of a pod brings containers or images that nobody has checked.
fn changes_containers(pod: &Value, old: &Value) -> bool {
    let list = |pod: &'_ Value, list: &str| pod.items_at(&["spec", list]).to_vec();
    let image = |container: &Value| Str::from(container.str_at(&["image"]));
    let fixed = ["containers", "initContainers"].iter().any(|name| {
        let (new, old) = (list(pod, name), list(old, name));
        new.len() != old.len()
            || new
                .iter()
                .zip(&old)
                .any(|(new, old)| image(new) != image(old))
    });
    let old = list(old, "ephemeralContainers");
    let ephemeral = || {
        pod.items_at(&["spec", "ephemeralContainers"])
            .iter()
            .any(|new| {
                let same = |old: &&Value| old.str_at(&["name"]) == new.str_at(&["name"]);
                old.iter()
                    .find(same)
                    .is_none_or(|old| image(old) != image(new))
            })
    };
    fixed || ephemeral()
}

/// Returns the uid of the object that controls a pod.
fn controller(pod: &Value) -> Option<Str> {
    objects::controller(pod).map(|owner| owner.str_at(&["uid"]).into())
}
