//! Recreates objects that a client deleted although each namespace or plane must have them: the
//! config map `kube-root-ca.crt`, the default service account, objects of the layer. This module
//! does not decide when a reconciler runs.

use crate::client::{OwnClient, OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::bootstrap::ranges;
use polyplane_batteries::polyplane::controllers::{Controller, Controllers};
use polyplane_batteries::root_ca;
use polyplane_plane::{Claim, Flags, Key, ObjectRef, Operation, Prefix, Start, SubmitError, Write};
use polyplane_registry::environment::{Environment as _, System};
use polyplane_registry::plan::object::new_object;
use polyplane_registry::{Resource, Tenant, Verb};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How long one commit may take. Without the limit a store that does not answer would hold the
/// reconciler forever.
const PATIENCE: Duration = Duration::from_secs(30);
const ROOT_CA: &str = "kube-root-ca.crt";
const ACCOUNT: &str = "default";

/// Returns true for the objects that every namespace has.
pub(crate) fn is_namespace_content(key: &Key) -> bool {
    matches!(
        (key.resource(), key.name()),
        ("configmaps", ROOT_CA) | ("serviceaccounts", ACCOUNT)
    )
}

/// Creates or corrects the objects that every namespace has, unless the namespace is being deleted.
pub(crate) async fn namespace_content(
    context: &ReconcilerContext,
    tenant: &Tenant,
    namespace: &str,
    controllers: Controllers,
) -> Result<Progress, ApiError> {
    if !takes_content(tenant, namespace) {
        return Ok(Progress::Done);
    }
    if controllers.has(Controller::ServiceAccount) {
        let account = json!({"metadata": {"name": (ACCOUNT)}});
        let (actor, resource) = (Controller::ServiceAccount, "serviceaccounts");
        ensure(context, tenant, actor, resource, namespace, &account).await?;
    }
    if controllers.has(Controller::RootCaCertificatePublisher) {
        publish(context, tenant, namespace).await?;
    }
    Ok(Progress::Done)
}

/// Returns the namespaces that lack an object which every namespace has.
pub(crate) fn incomplete(tenant: &Tenant) -> Vec<Str> {
    let cut = tenant.plane.snapshot();
    let lacks = |namespace: &ObjectRef| {
        let name = namespace.key().name();
        let content = [("configmaps", ROOT_CA), ("serviceaccounts", ACCOUNT)];
        let lacks_one = content.iter().any(|(resource, object)| {
            cut.get(&Key::new("", resource, Some(name), object))
                .is_none()
        });
        lacks_one && !namespace.flags().has(Flags::TERMINATING)
    };
    cut.range(&Prefix::resource("", "namespaces"), Start::First)
        .filter(lacks)
        .map(|namespace| namespace.key().name().into())
        .collect()
}

/// Returns whether objects can be created in a namespace.
fn takes_content(tenant: &Tenant, namespace: &str) -> bool {
    let holder = tenant
        .plane
        .snapshot()
        .get(&Key::new("", "namespaces", None, namespace));
    holder.is_some_and(|holder| !holder.flags().has(Flags::TERMINATING))
}

/// Creates or corrects the config map with the server's certificates.
async fn publish(
    context: &ReconcilerContext,
    tenant: &Tenant,
    namespace: &str,
) -> Result<(), ApiError> {
    let actor = Controller::RootCaCertificatePublisher;
    let certificates = tenant.settings.serving_ca.clone();
    let mut wanted = root_ca(&certificates);
    wanted.set(&["metadata", "name"], ROOT_CA);
    ensure(context, tenant, actor, "configmaps", namespace, &wanted).await?;
    let key = Key::new("", "configmaps", Some(namespace), ROOT_CA);
    let map = tenant.plane.snapshot().get(&key);
    let known = map.map(|map| tree(&tenant.kinds(), &map)).transpose()?;
    // The layer's own maps have no description, and a plane that nobody touched shall write nothing.
    let is_of_layer = |known: &Value| {
        let born = tenant.plane.layer_object(&key);
        let born = born.map(|object| tree(&tenant.kinds(), &object));
        born.is_some_and(|born| {
            born.is_ok_and(|born| born["metadata"]["uid"] == known["metadata"]["uid"])
        })
    };
    let description = ["metadata", "annotations", "kubernetes.io/description"];
    let is_right = |known: &Value| {
        known["data"] == wanted["data"]
            && (known.str_at(&description) == wanted.str_at(&description) || is_of_layer(known))
    };
    if let Some(mut known) = known.filter(|known| !is_right(known)) {
        known.set(&["data"], wanted["data"].clone());
        if !is_of_layer(&known) {
            known.set(&description, wanted.str_at(&description));
        }
        let row = tenant.base.stored("", "configmaps");
        let row = row.ok_or_else(|| ApiError::internal("configmaps are not served"))?;
        let own = OwnRequest {
            body: &known,
            ..OwnRequest::of(actor, Verb::Update, row, namespace, ROOT_CA)
        };
        own.send(&context.client, tenant).await?;
    }
    Ok(())
}

async fn ensure(
    context: &ReconcilerContext,
    tenant: &Tenant,
    actor: Controller,
    resource: &str,
    namespace: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let name = object.str_at(&["metadata", "name"]);
    if tenant
        .plane
        .snapshot()
        .get(&Key::new("", resource, Some(namespace), name))
        .is_some()
    {
        return Ok(());
    }
    let row = tenant.base.stored("", resource);
    let row = row.ok_or_else(|| ApiError::internal("a core kind is not served"))?;
    let own = OwnRequest {
        body: object,
        ..OwnRequest::of(actor, Verb::Create, row, namespace, "")
    };
    create(&context.client, tenant, own).await
}

/// Creates an object. Succeeds also if the object exists already or its namespace does not, or is
/// being deleted.
async fn create(client: &OwnClient, tenant: &Tenant, own: OwnRequest<'_>) -> Result<(), ApiError> {
    let namespace = own.namespace;
    match own.send(client, tenant).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.reason, Reason::AlreadyExists | Reason::NotFound) => Ok(()),
        Err(error) if error.reason == Reason::Forbidden && !takes_content(tenant, namespace) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Recreates an object of the layer, as a new object with a new uid.
pub(crate) async fn bootstrap(
    client: &OwnClient,
    tenant: &Tenant,
    key: &Key,
) -> Result<Progress, ApiError> {
    if tenant.plane.snapshot().get(key).is_some() {
        return Ok(Progress::Done);
    }
    if let Some(object) = tenant.plane.layer_object(key)
        && !comes_with_service(tenant, &object)
    {
        recreate(client, tenant, &object).await?;
    }
    Ok(Progress::Done)
}

/// Returns whether an object is the address of a service that is gone too. The service is recreated with its address;
/// if the address were recreated first, the service could not be, because somebody would seem to have taken it.
fn comes_with_service(tenant: &Tenant, object: &ObjectRef) -> bool {
    let key = object.key();
    if key.group() != "networking.k8s.io" || key.resource() != "ipaddresses" {
        return false;
    }
    let body = object.body();
    let of = |name: &str| scan::string_at(&body, &["spec", "parentRef", name]).unwrap_or_default();
    let (namespace, name) = (of("namespace"), of("name"));
    let service = Key::new("", "services", Some(&*namespace), &name);
    let snapshot = tenant.plane.snapshot();
    of("resource") == "services" && snapshot.get(&service).is_none()
}

/// Creates a copy of a layer's object as the plane's own object. Its creator is the manager who owns
/// the fields of the layer's object, so that it has the same owners again.
pub(crate) async fn recreate(
    client: &OwnClient,
    tenant: &Tenant,
    object: &ObjectRef,
) -> Result<(), ApiError> {
    let key = object.key();
    let kinds = tenant.kinds();
    let Some(row) = kinds.stored(key.group(), key.resource()) else {
        return Ok(());
    };
    let mut body = tree(&kinds, object)?;
    // The layer may show other ranges than the server has now.
    ranges::show(key, &mut body, &tenant.settings.service_ranges);
    if shows_local_address(key, &body) {
        return put_back(tenant, row, key, body).await;
    }
    let creator = creator(&body);
    for given in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
    ] {
        drop(body.remove(&["metadata", given]));
    }
    let namespace = key.namespace().unwrap_or("");
    let own = OwnRequest {
        body: &body,
        manager: &creator,
        ..OwnRequest::new(Verb::Create, row, namespace, "")
    };
    create(client, tenant, own).await
}

/// Returns whether an object shows an address of the server that no client could write into it, because
/// it means something else on each machine.
fn shows_local_address(key: &Key, body: &Value) -> bool {
    let text = match (key.group(), key.resource()) {
        ("", "endpoints") => &body["subsets"][0]["addresses"][0]["ip"],
        ("discovery.k8s.io", "endpointslices") => &body["endpoints"][0]["addresses"][0],
        _ => return false,
    };
    let address = text.as_str().and_then(|text| text.parse::<IpAddr>().ok());
    let address = address.map(|address| address.to_canonical());
    address.is_some_and(|address| {
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        is_link_local || address.is_loopback() || address.is_unspecified()
    })
}

/// Stores a copy of a layer's object as a new object, past the validation that it could not pass: a plane
/// is born with it, so that it can come back.
async fn put_back(
    tenant: &Tenant,
    row: &Resource,
    key: &Key,
    mut body: Value,
) -> Result<(), ApiError> {
    let now = Timestamp::from(SystemTime::now());
    let (seconds, now) = (now.seconds, now.to_rfc3339());
    drop(body.remove(&["metadata", "resourceVersion"]));
    body.set(&["metadata", "uid"], System.uid());
    body.set(&["metadata", "creationTimestamp"], now.as_str());
    let entries = body.at_mut(&["metadata", "managedFields"]);
    let entries = entries.and_then(Value::as_array_mut).into_iter().flatten();
    for entry in entries {
        entry.set(&["time"], now.as_str());
    }
    let object = new_object(row, &body, (seconds, &tenant.settings.lifetimes));
    let key = key.clone();
    let write = Write {
        claims: vec![Claim::Absent(key.clone())],
        operations: vec![Operation::Put { key, object }],
        deadline: Some(Instant::now() + PATIENCE),
    };
    match tenant.plane.submit(write).await {
        // If the claim failed, somebody else has created it.
        Ok(_) | Err(SubmitError::ClaimFailed(_)) => Ok(()),
        // The plane has another owner now, which searches the plane for this work.
        Err(SubmitError::Lost) => Err(ApiError::moved()),
        Err(error) => Err(ApiError::internal(error.to_string())),
    }
}

/// Returns the manager that has created a layer's object; empty if the object has no owners.
pub(crate) fn creator(object: &Value) -> Str {
    let entries = object.items_at(&["metadata", "managedFields"]).iter();
    let mut creators = entries.filter(|entry| {
        entry.str_at(&["operation"]) == "Update" && entry.str_at(&["subresource"]).is_empty()
    });
    let creator = creators.next();
    creator.map_or_else(Str::default, |entry| entry.str_at(&["manager"]).into())
}
