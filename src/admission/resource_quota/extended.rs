//! Extended resources: pods request them by name, and claims take them as devices of a class that
//! has such a name. A claim that a scheduler has made for what a pod requests counts for nothing
//! beside that pod.
//!
//! The rows of the index cannot say this, because they follow from one object each. They have what
//! pods and claims take; this module reads the classes and owners in the state of a write.

use super::quota::{Quota, Source, Total};
use super::usage::{DEVICES, IMPLICIT, Kind, Usage, beginning_of_made};
use polyplane_apimachinery::json::scan::string_at;
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Claim, Key, ObjectRef, Prefix, Snapshot, Start};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const GROUP: &str = "resource.k8s.io";
/// The annotation of claims that were made for what a pod requests by name.
pub(super) const MADE_FOR_POD: &str = "resource.kubernetes.io/extended-resource-claim";

static CLASSES: LazyLock<Prefix> = LazyLock::new(|| Prefix::resource(GROUP, "deviceclasses"));

/// Returns the name and the uid of the pod that a claim was made for.
pub(super) fn pod_of(claim: &Value) -> Option<(&str, &str)> {
    let metadata = &claim["metadata"];
    if metadata.str_at(&["annotations", MADE_FOR_POD]) != "true" {
        return None;
    }
    let mut owners = metadata.items_at(&["ownerReferences"]).iter();
    let owner = owners.find(|owner| owner["controller"].as_bool() == Some(true))?;
    let is_pod = owner.str_at(&["apiVersion"]) == "v1" && owner.str_at(&["kind"]) == "Pod";
    is_pod.then(|| (owner.str_at(&["name"]), owner.str_at(&["uid"])))
}

/// Returns the classes whose devices count as an extended resource.
pub(super) fn classes(cut: &Snapshot, resource: &str) -> Vec<Str> {
    let Some(name) = resource.strip_prefix("requests.") else {
        return Vec::new();
    };
    if let Some(class) = name.strip_prefix(IMPLICIT) {
        return vec![class.into()];
    }
    let classes = cut.range(&CLASSES, Start::First);
    let named = classes.filter(|class| extended_name(class).is_some_and(|own| own == name));
    named.map(|class| class.key().name().into()).collect()
}

/// Returns the extended resource that the devices of a class count as.
fn extended_name(class: &ObjectRef) -> Option<String> {
    let name = string_at(&class.body(), &["spec", "extendedResourceName"])?.into_owned();
    (!name.is_empty()).then_some(name)
}

fn tree(object: &ObjectRef) -> Option<Value> {
    let parsed = parse(&object.body(), &Limits::default());
    parsed.ok().map(|parsed| parsed.value)
}

impl Total<'_> {
    /// Adds the extended resources to what a claim takes.
    pub(super) fn add_extended(&self, claim: &Value, usage: &mut Usage) {
        let paid = self.paid(claim);
        for (name, amount) in self.extended(usage) {
            let paid = paid.amounts.get(&name).copied().unwrap_or(0);
            if amount > paid {
                usage.take(name, amount - paid);
            }
        }
    }

    /// Returns the extended resources that the devices of a claim count as, those for a pod included.
    fn extended(&self, usage: &Usage) -> BTreeMap<Str, i64> {
        let mut extended: BTreeMap<Str, i64> = BTreeMap::new();
        let mut take = |name: String, amount: i64| {
            let total = extended.entry(name.into()).or_default();
            *total = total.saturating_add(amount);
        };
        for (name, amount) in &usage.amounts {
            let Some(class) = name.strip_suffix(DEVICES) else {
                continue;
            };
            take(format!("requests.{IMPLICIT}{class}"), *amount);
            let class = self.cut.get(&Key::new(GROUP, "deviceclasses", None, class));
            if let Some(name) = class.and_then(|class| extended_name(&class)) {
                take(format!("requests.{name}"), *amount);
            }
        }
        extended
    }

    /// Returns what a pod takes already of that for which a claim was made.
    fn paid(&self, claim: &Value) -> Usage {
        match pod_of(claim) {
            Some(_) => self.paid_beside(claim, &self.made_for_pods()),
            None => Usage::default(),
        }
    }

    /// Returns the same, if `made` are all claims of the namespace that were made for pods. Only one
    /// claim of a pod is paid: the one that its status names, or else its oldest.
    fn paid_beside(&self, claim: &Value, made: &[Value]) -> Usage {
        let owner = pod_of(claim).and_then(|(name, uid)| {
            let pod = tree(&self.cut.get(&self.pod(name))?)?;
            (pod.str_at(&["metadata", "uid"]) == uid).then_some((pod, uid))
        });
        let Some((pod, uid)) = owner else {
            return Usage::default();
        };
        let age = |claim: &Value| {
            let text = |name| claim.str_at(&["metadata", name]).to_owned();
            (text("creationTimestamp"), text("name"))
        };
        let is_older = |other: &Value| {
            let is_sibling = pod_of(other).is_some_and(|(_, owner)| owner == uid);
            is_sibling && age(other) < age(claim)
        };
        let is_paid = match pod.at(&["status", "extendedResourceClaimStatus"]) {
            Some(status) => {
                status.str_at(&["resourceClaimName"]) == claim.str_at(&["metadata", "name"])
            }
            None => !made.iter().any(is_older),
        };
        let usage = Usage::of(Kind::Pods, &pod);
        match is_paid && !usage.signature.has_ended(self.now) {
            true => usage,
            false => Usage::default(),
        }
    }

    /// Returns the claims of the namespace that were made for pods.
    fn made_for_pods(&self) -> Vec<Value> {
        let beginning = beginning_of_made(self.namespace);
        let rows = self.cut.index_values(self.index, &beginning);
        let names = rows.map_while(|(value, _)| value.strip_prefix(beginning.as_slice()));
        let claims = names.filter_map(|name| {
            let name = std::str::from_utf8(name).ok()?;
            tree(&self.cut.get(&self.claim_key(name))?)
        });
        claims.collect()
    }

    fn pod(&self, name: &str) -> Key {
        Key::new("", "pods", Some(self.namespace), name)
    }

    fn claim_key(&self, name: &str) -> Key {
        Key::new(GROUP, "resourceclaims", Some(self.namespace), name)
    }

    /// Claims that the pod which a claim was made for stays as it is.
    pub(super) fn owner_stays(&self, claim: &Value) -> Option<Claim> {
        let (pod, _) = pod_of(claim)?;
        self.stays(&self.pod(pod))
    }

    fn stays(&self, key: &Key) -> Option<Claim> {
        let object = self.cut.get(key)?;
        Some(Claim::At(key.clone(), object.stamp()))
    }

    /// Returns the part of the usage that counts twice in the index, because claims were made for
    /// what pods request, and claims that this is so.
    pub(super) fn counted_twice(
        &self,
        quota: &Quota,
        source: Source,
        resource: &str,
    ) -> (i128, Vec<Claim>) {
        let (mut twice, mut rests_on) = (0, Vec::new());
        if source != Source::Extended || !quota.has_no_scopes() {
            return (twice, rests_on);
        }
        let made = self.made_for_pods();
        for claim in &made {
            let paid = self.paid_beside(claim, &made);
            let taken = self.extended(&Usage::of(Kind::DeviceClaims, claim));
            let amounts = [&taken, &paid.amounts].map(|amounts| amounts.get(resource).copied());
            let [Some(taken), Some(paid)] = amounts else {
                continue;
            };
            twice += i128::from(taken.min(paid));
            let name = claim.str_at(&["metadata", "name"]);
            rests_on.extend(self.stays(&self.claim_key(name)));
            rests_on.extend(self.owner_stays(claim));
        }
        (twice, rests_on)
    }
}
