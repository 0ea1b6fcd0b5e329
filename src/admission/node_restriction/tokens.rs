//! The tokens that a kubelet may request: those of accounts for pods of its node, for audiences that
//! the pods name.

use super::{NodeWrite, node_of};
use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Attributes as Access, Decision, Subject};
use polyplane_plane::Key;
use polyplane_registry::plan::{CallOuts, Interrupted, Operation};

/// The kinds of volumes that are part of Kubernetes, and the drivers that serve them today.
const MIGRATED: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

/// Checks a write of a service account, of which only the request of a token is restricted.
pub(super) fn check(
    write: &NodeWrite<'_>,
    call_outs: &mut CallOuts<'_>,
) -> Result<(), Interrupted> {
    let (Operation::Create, "token", Some(request)) =
        (write.what.operation, write.subresource(), write.object)
    else {
        return Ok(());
    };
    let bound = &request["spec"]["boundObjectRef"];
    let name = bound.str_at(&["name"]);
    let is_pod = bound.str_at(&["apiVersion"]) == "v1" && bound.str_at(&["kind"]) == "Pod";
    if !is_pod || name.is_empty() {
        return Ok(write.refuse("node requested token not bound to a pod")?);
    }
    let uid = bound.str_at(&["uid"]);
    if uid.is_empty() {
        return Ok(write.refuse("node requested token with a pod binding without a uid")?);
    }
    let pod = write.existing("pods", write.what.call.namespace(), name)?;
    if pod.str_at(&["metadata", "uid"]) != uid {
        return Ok(write.refuse(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        ))?);
    }
    if node_of(Some(&pod)) != write.node {
        let why = "node requested token bound to a pod scheduled on a different node";
        return Ok(write.refuse(why)?);
    }
    check_audience(write, request, &pod, call_outs)
}

fn check_audience(
    write: &NodeWrite<'_>,
    request: &Value,
    pod: &Value,
    call_outs: &mut CallOuts<'_>,
) -> Result<(), Interrupted> {
    let audience = match request.items_at(&["spec", "audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or(""),
        _ => return Ok(write.refuse("node may only request 0 or 1 audiences")?),
    };
    match names_audience(write, pod, audience)? {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(why) => {
            let audience = quote(audience);
            return Ok(write.refuse(format!("error validating audience {audience}: {why}"))?);
        }
    }
    let verb = "request-serviceaccounts-token-audience";
    let account = write.what.name;
    if is_allowed(write, call_outs, (verb, audience), account)? {
        return Ok(());
    }
    Ok(write.refuse(format!(
        "{} is not authorized to request tokens for audience {}",
        write.what.call.request.user.name,
        quote(audience)
    ))?)
}

/// Returns whether roles allow the kubelet something about an account: the verb and what stands in
/// the place of the resource.
pub(super) fn is_allowed(
    write: &NodeWrite<'_>,
    call_outs: &mut CallOuts<'_>,
    (verb, resource): (&str, &str),
    account: &str,
) -> Result<bool, Interrupted> {
    let call = write.what.call;
    let decision = call_outs.authorize(&Access {
        user: &call.request.user,
        verb,
        subject: Subject::Resource {
            group: &call.row.group,
            version: &call.row.version,
            resource,
            subresource: "",
            namespace: call.namespace(),
            name: account,
            field_selector: "",
        },
    })?;
    Ok(decision == Decision::Allow)
}

/// Returns whether a volume of a pod needs a token for the audience; the inner error is the text of
/// what could not be looked up.
fn names_audience(
    write: &NodeWrite<'_>,
    pod: &Value,
    audience: &str,
) -> Result<Result<bool, String>, ApiError> {
    let mut faults = Vec::new();
    for volume in pod.items_at(&["spec", "volumes"]) {
        let mut projected = volume.items_at(&["projected", "sources"]).iter();
        if projected.any(|source| {
            let token = source.get("serviceAccountToken");
            token.is_some_and(|token| token.str_at(&["audience"]) == audience)
        }) {
            return Ok(Ok(true));
        }
        match driver_of(write, pod, volume)? {
            Err(why) => faults.push(why),
            Ok(driver) if driver.is_empty() => {}
            Ok(driver) => {
                let key = Key::new("storage.k8s.io", "csidrivers", None, &driver);
                let Some(found) = objects::get(write.what, &key)? else {
                    faults.push(format!(
                        "csidriver.storage.k8s.io {} not found",
                        quote(&driver)
                    ));
                    continue;
                };
                let mut requests = found.items_at(&["spec", "tokenRequests"]).iter();
                if requests.any(|request| request.str_at(&["audience"]) == audience) {
                    return Ok(Ok(true));
                }
            }
        }
    }
    Ok(match faults.as_slice() {
        [] => Ok(false),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    })
}

/// Returns the driver that serves a volume; empty for none.
fn driver_of(
    write: &NodeWrite<'_>,
    pod: &Value,
    volume: &Value,
) -> Result<Result<String, String>, ApiError> {
    let claim = if volume.at(&["ephemeral", "volumeClaimTemplate"]).is_some() {
        let (pod, volume) = (pod.str_at(&["metadata", "name"]), volume.str_at(&["name"]));
        format!("{pod}-{volume}")
    } else if let Some(claim) = volume.get("persistentVolumeClaim") {
        claim.str_at(&["claimName"]).to_owned()
    } else {
        return Ok(Ok(driver_in(volume)));
    };
    let namespace = pod.str_at(&["metadata", "namespace"]);
    let key = Key::new("", "persistentvolumeclaims", Some(namespace), &claim);
    let Some(claim_found) = objects::get(write.what, &key)? else {
        return Ok(Err(format!(
            "persistentvolumeclaim {} not found",
            quote(&claim)
        )));
    };
    let name = claim_found.str_at(&["spec", "volumeName"]);
    let key = Key::new("", "persistentvolumes", None, name);
    Ok(match objects::get(write.what, &key)? {
        Some(volume) => Ok(driver_in(&volume["spec"])),
        None => Err(format!("persistentvolume {} not found", quote(name))),
    })
}

/// Returns the driver that the source of a volume means; empty for none.
fn driver_in(source: &Value) -> String {
    if let Some(own) = source.get("csi") {
        return own.str_at(&["driver"]).to_owned();
    }
    let mut migrated = MIGRATED.into_iter();
    let driver = migrated.find(|(kind, _)| source.get(kind).is_some());
    driver.map_or("", |(_, driver)| driver).to_owned()
}
