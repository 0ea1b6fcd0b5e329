//! `ResourceQuota`: what the objects of a namespace take together stays within its quotas.
//!
//! An index of every plane has the usage of each namespace. A write claims that there is room for
//! it, so that the sequencer refuses the one of two writers that would overshoot. Limits are those
//! of the quotas' specs; `status` only shows them, see [`status`].

mod quota;
#[cfg(test)]
mod tests;
mod usage;

pub(crate) use quota::status;
pub(crate) use usage::UsageIndex;

use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Claim, IndexId};
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};
use quota::{Quota, Source, Total};
use usage::{Kind, Usage};

/// See the module.
#[derive(Debug)]
pub(crate) struct ResourceQuota {
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
        let Some(object) = object.filter(|object| !namespace.is_empty() && counts(what, object))
        else {
            return Ok(Vec::new());
        };
        let quotas = Quota::of_namespace(what.cut, namespace)?;
        let mut claims = vec![Quota::no_others(self.index, namespace, &quotas)];
        if !quotas.is_empty() {
            let write = Write::new(what, object);
            for quota in &quotas {
                self.check(what, &write, quota, &mut claims)?;
            }
        }
        Ok(claims)
    }
}

/// Returns whether a write can take more than before.
fn counts(what: &Attributes<'_>, object: &Value) -> bool {
    let kind = Kind::of_resource(&what.call.row.qualified);
    match (what.operation, what.call.subresource(), kind) {
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
    kind: Option<Kind>,
    new: Usage,
    old: Option<Usage>,
}

impl<'a> Write<'a> {
    fn new(what: &Attributes<'_>, object: &'a Value) -> Self {
        let kind = Kind::of_resource(&what.call.row.qualified);
        let usage = |object: &Value| match kind {
            Some(kind) => Usage::of(kind, object),
            None => Usage::default(),
        };
        Self {
            object,
            kind,
            new: usage(object),
            old: what.old.map(usage),
        }
    }

    /// Returns the amount of a resource that the write adds to what a quota counts.
    fn adds(&self, quota: &Quota, source: &Source, resource: &str) -> i128 {
        let Source::Index(kind) = source else {
            let is_new = self.old.is_none();
            return i128::from(is_new);
        };
        let amount = |usage: &Usage| usage.amounts.get(resource).copied().unwrap_or(0);
        let before = self
            .old
            .as_ref()
            .filter(|old| quota.matches(*kind, &old.signature));
        let before = before.map_or(0, amount);
        i128::from(amount(&self.new)) - i128::from(before)
    }
}

impl ResourceQuota {
    /// Refuses a write that does not fit into a quota, and claims the room that it needs.
    fn check(
        &self,
        what: &Attributes<'_>,
        write: &Write<'_>,
        quota: &Quota,
        claims: &mut Vec<Claim>,
    ) -> Result<(), ApiError> {
        let row = what.call.row;
        let mut limits = quota.limits_on(&row.qualified).peekable();
        let is_matching = match write.kind {
            Some(kind) => quota.matches(kind, &write.new.signature),
            None => quota.has_no_scopes(),
        };
        if limits.peek().is_none() || !is_matching {
            return Ok(());
        }
        let name = &quota.name;
        if write.kind == Some(Kind::Pods)
            && let Some(why) = quota.missing(write.object)
        {
            let why = format!("failed quota: {name}: {why}");
            return Err(what.forbidden(Some(write.object), why));
        }
        let total = Total {
            index: self.index,
            cut: what.cut,
            namespace: what.call.namespace(),
            now: what.now,
        };
        let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
        for (resource, source, hard) in limits {
            let adds = write.adds(quota, &source, resource);
            if adds <= 0 {
                continue;
            }
            let storage = (row.storage.group.as_str(), row.storage.resource.as_str());
            let used = total.of(quota, &source, resource, storage);
            let limit = source.amount(hard);
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
            claims.push(total.claim(quota, &source, resource, (storage, adds, limit)));
        }
        let [requested, used, limited] = exceeded.map(|list| list.join(","));
        if requested.is_empty() {
            return Ok(());
        }
        let why = format!(
            "exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"
        );
        Err(what.forbidden(Some(write.object), why))
    }
}
