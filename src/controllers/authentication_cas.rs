//! The config map in which a plane tells extension API servers which CAs prove its clients. A plane is
//! born with it and fills it from its record when it wakes; this module corrects it while the plane is
//! awake, when its keys are replaced, when the end of their overlap has passed, and after a client has
//! written to it. This module does not decide when a reconciler runs.

use crate::client::{OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_batteries::bootstrap::params;
use polyplane_plane::Key;
use polyplane_registry::{Tenant, Verb};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const RESOURCE: &str = "configmaps";
/// The members of the config map, each with the parameter of the layer that fills it.
const MEMBERS: [(&str, &str); 2] = [
    ("client-ca-file", params::PLANE_CLIENT_CA),
    ("requestheader-client-ca-file", params::PLANE_FRONT_PROXY_CA),
];

/// Returns whether this is the config map.
pub(crate) fn is_subject(key: &Key) -> bool {
    key.is_of("", RESOURCE) && (key.namespace(), key.name()) == (Some(NAMESPACE), NAME)
}

/// Returns whether the config map is the plane's own copy. That of the layer, which shows what the plane
/// accepted when it woke, is right.
pub(crate) fn is_own(tenant: &Tenant) -> bool {
    let key = key();
    let layered = tenant.plane.layer_object(&key).map(|object| object.stamp());
    let found = tenant.plane.snapshot().get(&key);
    found.is_some_and(|object| Some(object.stamp()) != layered)
}

fn key() -> Key {
    Key::new("", RESOURCE, Some(NAMESPACE), NAME)
}

/// Writes the CAs that the plane accepts now, if the config map shows others. One that a client deleted
/// comes back with the next step of the layer.
pub(crate) async fn publish(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let Some(object) = tenant.plane.snapshot().get(&key()) else {
        return Ok(Progress::Done);
    };
    let kinds = tenant.kinds();
    let mut map = tree(&kinds, &object)?;
    if !correct(&mut map, &context.planes.derived_params(tenant.plane.id())) {
        return Ok(Progress::Done);
    }
    let Some(row) = kinds.stored("", RESOURCE) else {
        return Ok(Progress::Done);
    };
    let own = OwnRequest {
        body: &map,
        ..OwnRequest::new(Verb::Update, row, NAMESPACE, NAME)
    };
    own.send(&context.client, tenant).await?;
    Ok(Progress::Done)
}

/// Puts the CAs into the config map. Returns false if it shows them already.
fn correct(map: &mut Value, params: &[(String, String)]) -> bool {
    let mut is_changed = false;
    for (member, param) in MEMBERS {
        let Some((_, wanted)) = params.iter().find(|(name, _)| name == param) else {
            continue;
        };
        if map.str_at(&["data", member]) != wanted {
            map.set(&["data", member], wanted.as_str());
            is_changed = true;
        }
    }
    is_changed
}
