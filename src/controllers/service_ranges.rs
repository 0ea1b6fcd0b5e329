//! Adds the secondary range of service addresses to the ServiceCIDR `kubernetes` of a plane that was born
//! with the primary one alone. As upstream, this is the only change of ranges that an object follows.

use crate::client::{OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_batteries::bootstrap::ranges;
use polyplane_registry::service_ranges::ServiceRanges;
use polyplane_registry::{Tenant, Verb};

/// Returns the ServiceCIDR if it lacks the secondary range.
fn narrow(tenant: &Tenant) -> Result<Option<Value>, ApiError> {
    let settings = &tenant.settings.service_ranges;
    if !settings.are_dual() {
        return Ok(None);
    }
    let known = tenant.plane.snapshot().get(&ranges::service_cidr());
    let Some(known) = known else {
        return Ok(None);
    };
    let known = tree(&tenant.kinds(), &known)?;
    let primary = ServiceRanges::from(settings.primary());
    Ok((ranges::shown(&known) == Some(primary)).then_some(known))
}

/// Returns whether the ServiceCIDR may lack the secondary range.
pub(crate) fn may_be_narrow(tenant: &Tenant) -> bool {
    !matches!(narrow(tenant), Ok(None))
}

/// Adds the secondary range, unless the ServiceCIDR shows other ranges than the primary one.
pub(crate) async fn widen(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let Some(mut cidr) = narrow(tenant)? else {
        return Ok(Progress::Done);
    };
    let all = ranges::texts(&tenant.settings.service_ranges);
    cidr.set(&["spec", "cidrs"], all);
    let key = ranges::service_cidr();
    let row = tenant.base.stored(key.group(), key.resource());
    let row = row.ok_or_else(|| ApiError::internal("ServiceCIDRs are not served"))?;
    let request = OwnRequest {
        body: &cidr,
        manager: "kube-apiserver",
        ..OwnRequest::new(Verb::Update, row, "", key.name())
    };
    request.send(&context.client, tenant).await?;
    Ok(Progress::Done)
}
