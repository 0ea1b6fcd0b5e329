//! `ResourceQuota`: what the objects of a namespace take together stays within its quotas.
//!
//! An index of every plane has the usage of each namespace. A write claims that there is room for
//! it, so that the sequencer refuses the one of two writers that would overshoot. Limits are those
//! of the quotas' specs; `status` only shows them, see [`status`].
//!
//! A configuration can limit resources ([`LimitedResources`]): a write that takes them, and is covered by no
//! quota, is refused. One that a quota covers claims that this quota stays.

mod extended;
mod limited;
mod quota;
#[cfg(test)]
mod tests;
mod usage;

pub(crate) use limited::LimitedResources;
pub(crate) use quota::status;
pub(crate) use usage::UsageIndex;

use limited::{LimitedObject, Uncovered};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Claim, IndexId};
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};
use quota::{Quota, Source, Total};
use usage::{Kind, Usage};

/// Resources that upstream does not count: what is not stored, and events.
const IGNORED: [&str; 10] = [
    "bindings",
    "componentstatuses",
    "events",
    "events.events.k8s.io",
    "localsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "subjectaccessreviews.authorization.k8s.io",
    "tokenreviews.authentication.k8s.io",
];
/// Resources whose objects are also limited by the number under their own name.
const WITH_ALIAS: [&str; 5] = [
    "configmaps",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// See the module.
#[derive(Debug)]
pub(crate) struct ResourceQuota {
    /// What nobody may take without a quota.
    pub(crate) limited: LimitedResources,
    /// The index with the usage, a [`UsageIndex`].
    pub(crate) index: IndexId,
}

impl Admission for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn interest(&self) -> Interest {
        Interest::Everything
    }

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Create, Operation::Update])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let namespace = what.call.namespace();
        let counts = |object: &&Value| {
            !namespace.is_empty() && (counts(what, object) || self.limits_status(what))
        };
        let Some(object) = object.filter(counts) else {
            return Ok(Vec::new());
        };
        let quotas = Quota::of_namespace(what.cut, namespace)?;
        let mut claims = vec![Quota::no_others(self.index, namespace, &quotas)];
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(claims);
        }
        let total = Total {
            index: self.index,
            cut: what.cut,
            namespace,
            now: what.now,
        };
        let write = Write::new(what, object, &total);
        let pertinent = quotas.iter().filter(|quota| write.is_counted_by(quota));
        let pertinent: Vec<&Quota> = pertinent.collect();
        for quota in &pertinent {
            write.check_stated(what, quota)?;
        }
        if !self.limited.is_empty() && write.takes_more(&pertinent) {
            let covering = self.limited.check(&write.limited(), &quotas, &pertinent);
            let covering = covering.map_err(|uncovered| match uncovered {
                Uncovered::Amount(names) => {
                    let why = format!("insufficient quota to consume: {names}");
                    what.forbidden(Some(object), why)
                }
                Uncovered::Scope(error) => error,
            })?;
            let stay = covering.iter().map(|one| one.stays(self.index, namespace));
            claims.extend(stay);
        }
        if what.call.subresource() == "status" {
            return Ok(claims);
        }
        for quota in pertinent {
            check(what, &write, (quota, &total), &mut claims)?;
        }
        Ok(claims)
    }
}

/// Returns whether a write can take more than before.
fn counts(what: &Attributes<'_>, object: &Value) -> bool {
    let qualified = what.call.row.qualified.as_str();
    let kind = Kind::of_resource(qualified);
    match (what.operation, what.call.subresource(), kind) {
        (Operation::Create, "", _) if IGNORED.contains(&qualified) => false,
        (Operation::Create, "", _) | (Operation::Update, "resize", Some(Kind::Pods)) => true,
        // An update of a pod only moves it between quotas.
        (Operation::Update, "", Some(Kind::Pods)) => {
            let deadline = |pod: &Value| pod.at(&["spec", "activeDeadlineSeconds"]).is_some();
            what.old
                .is_some_and(|old| deadline(old) != deadline(object))
        }
        (Operation::Update, "", Some(_)) => true,
        _ => false,
    }
}

/// What a write takes.
struct Write<'a> {
    object: &'a Value,
    qualified: &'a str,
    kind: Option<Kind>,
    new: Usage,
    old: Option<Usage>,
}

impl<'a> Write<'a> {
    fn new(what: &Attributes<'a>, object: &'a Value, total: &Total<'_>) -> Self {
        let kind = Kind::of_resource(&what.call.row.qualified);
        let usage = |object: &Value| {
            let mut usage = kind.map_or_else(Usage::default, |kind| Usage::of(kind, object));
            if kind == Some(Kind::DeviceClaims) {
                total.add_extended(object, &mut usage);
            }
            usage
        };
        Self {
            object,
            qualified: &what.call.row.qualified,
            kind,
            new: usage(object),
            old: what.old.map(usage),
        }
    }

    /// Returns whether a quota limits what objects of this kind take, and its scopes select the object.
    fn is_counted_by(&self, quota: &Quota) -> bool {
        let is_matching = match self.kind {
            Some(kind) => quota.matches(kind, &self.new.signature),
            None => quota.has_no_scopes(),
        };
        is_matching && quota.limits_on(self.qualified).next().is_some()
    }

    /// Refuses a pod that does not state an amount which a quota limits.
    fn check_stated(&self, what: &Attributes<'_>, quota: &Quota) -> Result<(), ApiError> {
        if self.kind == Some(Kind::Pods)
            && let Some(why) = quota.missing(self.object)
        {
            let why = format!("failed quota: {}: {why}", quota.name);
            return Err(what.forbidden(Some(self.object), why));
        }
        Ok(())
    }

    /// Returns whether the write takes more than before of anything, in the eyes of one of the quotas that
    /// count it.
    fn takes_more(&self, pertinent: &[&Quota]) -> bool {
        let (Some(old), Some(kind)) = (&self.old, self.kind) else {
            return true;
        };
        let before = |name: &str| old.amounts.get(name).copied().unwrap_or(0);
        let mut amounts = self.new.amounts.iter();
        let is_new = |quota: &&Quota| !quota.matches(kind, &old.signature);
        amounts.any(|(name, amount)| *amount > before(name)) || pertinent.iter().any(is_new)
    }

    /// Returns the object as a configuration of limited resources judges it.
    fn limited(&self) -> LimitedObject<'_> {
        let amounts = self.new.amounts.iter().filter(|(_, amount)| **amount > 0);
        let mut amounts: Vec<String> = amounts.map(|(name, _)| name.to_string()).collect();
        let qualified = self.qualified;
        amounts.push(format!("count/{qualified}"));
        if WITH_ALIAS.contains(&qualified) {
            amounts.push(qualified.to_owned());
        }
        LimitedObject {
            qualified,
            amounts,
            signature: self.kind.map(|kind| (kind, &self.new.signature)),
        }
    }

    /// Returns the amount of a resource that the write adds to what a quota counts.
    fn adds(&self, quota: &Quota, source: &Source, resource: &str) -> i128 {
        let kind = self.kind.filter(|_| *source != Source::Objects);
        let Some(kind) = kind else {
            let is_new = self.old.is_none();
            return i128::from(is_new);
        };
        let amount = |usage: &Usage| usage.amounts.get(resource).copied().unwrap_or(0);
        let before = self
            .old
            .as_ref()
            .filter(|old| quota.matches(kind, &old.signature));
        let before = before.map_or(0, amount);
        i128::from(amount(&self.new)) - i128::from(before)
    }
}

impl ResourceQuota {
    /// Returns whether the write is one of the status of a claim, which fits always, but may take what is
    /// limited.
    fn limits_status(&self, what: &Attributes<'_>) -> bool {
        let kind = Kind::of_resource(&what.call.row.qualified);
        let write = (what.operation, what.call.subresource(), kind);
        !self.limited.is_empty() && write == (Operation::Update, "status", Some(Kind::Claims))
    }
}

/// Refuses a write that does not fit into a quota, and claims the room that it needs.
fn check(
    what: &Attributes<'_>,
    write: &Write<'_>,
    (quota, total): (&Quota, &Total<'_>),
    claims: &mut Vec<Claim>,
) -> Result<(), ApiError> {
    let row = what.call.row;
    let name = &quota.name;
    if write.kind == Some(Kind::DeviceClaims) {
        claims.extend(total.owner_stays(write.object));
    }
    let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
    for (resource, source, hard) in quota.limits_on(&row.qualified) {
        let adds = write.adds(quota, &source, resource);
        if adds <= 0 {
            continue;
        }
        let storage = (row.storage.group.as_str(), row.storage.resource.as_str());
        let limit = source.amount(hard);
        let mut used = total.of(quota, &source, resource, storage);
        let mut room = limit;
        if used + adds > limit {
            let (twice, rests_on) = total.counted_twice(quota, source, resource);
            claims.extend(rests_on);
            used -= twice;
            room += twice;
        }
        if used + adds > limit {
            let shown = [
                source.shown(adds, hard),
                source.shown(used, hard),
                hard.clone(),
            ];
            for (list, quantity) in exceeded.iter_mut().zip(shown) {
                list.push(format!("{resource}={quantity}"));
            }
        }
        claims.push(total.claim(quota, &source, resource, (storage, adds, room)));
    }
    let [requested, used, limited] = exceeded.map(|list| list.join(","));
    if requested.is_empty() {
        return Ok(());
    }
    let why =
        format!("exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}");
    Err(what.forbidden(Some(write.object), why))
}
