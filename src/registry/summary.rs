//! What every cut of a plane carries: the index of its roles, and that of its flow schemas and priority
//! levels.

use crate::flows::{FlowIndex, FlowResource};
use polyplane_apimachinery::json;
use polyplane_auth::rbac::binding::ObjectName;
use polyplane_auth::rbac::index::{Index, RbacResource};
use polyplane_plane::{Key, Snapshot, Summarize, Summary};
use std::sync::Arc;

/// Makes the indexes.
#[derive(Clone, Copy, Debug)]
pub struct PlaneSummaries;

/// The indexes of one plane.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneSummary {
    pub(crate) roles: Index,
    pub(crate) flows: Arc<FlowIndex>,
}

/// Returns the indexes of a cut; `None` if its plane keeps none.
pub(crate) fn of(cut: &Snapshot) -> Option<&PlaneSummary> {
    cut.summary()?.downcast_ref()
}

impl Summarize for PlaneSummaries {
    fn covers(&self, key: &Key) -> bool {
        let (group, resource) = (key.group(), key.resource());
        RbacResource::of(group, resource).is_some() || FlowResource::of(group, resource).is_some()
    }

    fn empty(&self) -> Summary {
        Arc::new(PlaneSummary::default())
    }

    fn next(&self, summary: &Summary, key: &Key, body: Option<&[u8]>) -> Summary {
        let Some(known) = summary.downcast_ref::<PlaneSummary>() else {
            return Arc::clone(summary);
        };
        let (group, resource) = (key.group(), key.resource());
        let object = body.and_then(|body| json::parse(body, &json::Limits::default()).ok());
        let object = object.map(|parsed| parsed.value);
        let mut next = known.clone();
        if let Some(resource) = FlowResource::of(group, resource) {
            let flows = known.flows.with(resource, key.name(), object.as_ref());
            next.flows = Arc::new(flows);
            return Arc::new(next);
        }
        let Some(resource) = RbacResource::of(group, resource) else {
            return Arc::clone(summary);
        };
        let name = ObjectName {
            namespace: key.namespace().unwrap_or_default(),
            name: key.name(),
        };
        match object {
            Some(object) => next.roles.put(resource, name, &object),
            // What cannot be read grants nothing.
            None => next.roles.remove(resource, name),
        }
        Arc::new(next)
    }
}
