//! `ServiceAccount`: a pod runs as a service account that exists, pulls images with the account's
//! secrets, and gets a volume with the account's token.

use crate::objects;
use async_trait::async_trait;
use bytes::Bytes;
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::node_access::MIRROR_POD;
use polyplane_plane::{Claim, Key};
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};
use std::time::Duration;

/// The account of a pod that names none.
const DEFAULT: &str = "default";
/// The annotation of an account whose pods may use only the secrets that it names.
const ENFORCE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
/// The path at which client libraries look for the token.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The beginning of the name of the volume with the token.
const TOKEN_VOLUME: &str = "kube-api-access-";
/// Seconds after which the token expires. The kubelet renews it earlier; the odd number lets a
/// server recognise tokens of clients that never read the renewed one.
const TOKEN_SECONDS: i64 = 3607;
/// Number of times that a pod waits for the default account, which is recreated when somebody
/// deletes it.
const WAITS: u8 = 10;
/// The duration of one wait. Ten of them are as long as upstream waits at least.
const WAIT: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(crate) struct ServiceAccount;

#[async_trait]
impl Admission for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods"])
    }

    fn measured(&self) -> Measured {
        Measured::both(&[Operation::Create, Operation::Update])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let (Operation::Create, "", Some(pod)) = (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        if objects::has_annotation(pod, MIRROR_POD) {
            check_mirror(what, pod)?;
            return Ok(Mutated::Unchanged);
        }
        if pod.str_at(&["spec", "serviceAccountName"]).is_empty() {
            pod.set(&["spec", "serviceAccountName"], DEFAULT);
            pod.set(&["spec", "serviceAccount"], DEFAULT);
        }
        let account = account_of(what, pod, call_outs)?;
        if mounts_token(&account, pod) {
            mount_token(pod, what.suffix.letters());
        }
        let secrets = account.items_at(&["imagePullSecrets"]);
        if pod.items_at(&["spec", "imagePullSecrets"]).is_empty() && !secrets.is_empty() {
            pod.set(&["spec", "imagePullSecrets"], secrets.to_vec());
        }
        check_secrets(what, pod, &account)?;
        Ok(Mutated::Completed)
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let Some(pod) = object else {
            return Ok(Vec::new());
        };
        match (what.operation, what.call.subresource()) {
            (Operation::Create, "") if objects::has_annotation(pod, MIRROR_POD) => {
                check_mirror(what, pod)?;
            }
            (Operation::Create, "") => {
                let account = account_of(what, pod, call_outs)?;
                check_secrets(what, pod, &account)?;
            }
            (Operation::Update, "ephemeralcontainers") => {
                let account = account_of(what, pod, call_outs)?;
                check_ephemeral_containers(pod, &account)?;
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    /// Waits until the default account may have been recreated.
    async fn call(&self, _: &Bytes) -> Result<Bytes, ApiError> {
        tokio::time::sleep(WAIT).await;
        Ok(Bytes::new())
    }
}

/// Returns the account that a pod names.
fn account_of(
    what: &Attributes<'_>,
    pod: &Value,
    call_outs: &mut CallOuts<'_>,
) -> Result<Value, Interrupted> {
    let namespace = what.call.namespace();
    let name = pod.str_at(&["spec", "serviceAccountName"]);
    if name.is_empty() {
        let pod_name = pod.str_at(&["metadata", "name"]);
        let why = format!("no service account specified for pod {namespace}/{pod_name}");
        return Err(what.forbidden(Some(pod), why).into());
    }
    let key = Key::new("", "serviceaccounts", Some(namespace), name);
    if let Some(account) = objects::get(what, &key)? {
        return Ok(account);
    }
    if name == DEFAULT {
        for wait in 0..WAITS {
            call_outs.ask(Bytes::copy_from_slice(&[wait]))??;
        }
    }
    let missing = ApiError::not_found(Qualified::new("", "serviceaccount"), name);
    let why = format!(
        "error looking up service account {namespace}/{name}: {}",
        missing.message
    );
    Err(what.forbidden(Some(pod), why).into())
}

/// Returns whether a pod gets a volume with the account's token.
fn mounts_token(account: &Value, pod: &Value) -> bool {
    let wish = |object: &Value| object.get("automountServiceAccountToken")?.as_bool();
    wish(&pod["spec"]).or_else(|| wish(account)).unwrap_or(true)
}

/// Mounts the token in each container that has nothing else at its path.
fn mount_token(pod: &mut Value, suffix: &str) {
    let volumes = pod.items_at(&["spec", "volumes"]).iter();
    let mut names = volumes.map(|volume| volume.str_at(&["name"]));
    let present: Option<Str> = names
        .find(|name| name.starts_with(TOKEN_VOLUME))
        .map(Into::into);
    let has_volume = present.is_some();
    let name = present.unwrap_or_else(|| format!("{TOKEN_VOLUME}{suffix}").into());
    let mut is_mounted = false;
    for list in ["initContainers", "containers"] {
        let containers = pod.at_mut(&["spec", list]).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = container.items_at(&["volumeMounts"]);
            let is_taken = |mount: &Value| mount.str_at(&["mountPath"]) == TOKEN_PATH;
            if mounts.iter().any(is_taken) {
                continue;
            }
            let mount = json!({"name": (name.clone()), "readOnly": true, "mountPath": TOKEN_PATH});
            objects::append(container, &["volumeMounts"], mount);
            is_mounted = true;
        }
    }
    if is_mounted && !has_volume {
        objects::append(pod, &["spec", "volumes"], token_volume(&name));
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}]
                }},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
                }]}}
            ]
        }
    })
}

/// Refuses a mirror pod that uses accounts or secrets of the API, because the kubelet runs such
/// pods without asking.
fn check_mirror(what: &Attributes<'_>, pod: &Value) -> Result<(), ApiError> {
    let refuse = |why: &str| Err(what.forbidden(Some(pod), why));
    if !pod.str_at(&["spec", "serviceAccountName"]).is_empty() {
        return refuse("a mirror pod may not reference service accounts");
    }
    if uses_secrets(&pod["spec"]) {
        return refuse("a mirror pod may not reference secrets");
    }
    let volumes = pod.items_at(&["spec", "volumes"]).iter();
    let mut sources = volumes.flat_map(|volume| volume.items_at(&["projected", "sources"]));
    if sources.any(|source| source.get("serviceAccountToken").is_some()) {
        return refuse("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// Returns true if a pod names a secret anywhere.
fn uses_secrets(spec: &Value) -> bool {
    let in_containers = ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| spec.items_at(&[list]))
        .any(|container| secrets_of(container).next().is_some());
    let in_volume = |volume: &Value| {
        let names_one = |path: &[&str]| volume.at(path).is_some_and(|found| !found.is_null());
        let projected = volume.items_at(&["projected", "sources"]);
        names_one(&["secret"])
            || VOLUME_SECRETS.iter().any(|path| names_one(path))
            || projected
                .iter()
                .any(|source| source.get("secret").is_some())
    };
    in_containers
        || !spec.items_at(&["imagePullSecrets"]).is_empty()
        || spec.items_at(&["volumes"]).iter().any(in_volume)
}

/// The places where volumes other than secrets name a secret.
const VOLUME_SECRETS: [&[&str]; 9] = [
    &["azureFile", "secretName"],
    &["cephfs", "secretRef"],
    &["cinder", "secretRef"],
    &["csi", "nodePublishSecretRef"],
    &["flexVolume", "secretRef"],
    &["iscsi", "secretRef"],
    &["rbd", "secretRef"],
    &["scaleIO", "secretRef"],
    &["storageos", "secretRef"],
];

/// Returns the secrets that a container's environment names, each with the text for messages.
fn secrets_of(container: &Value) -> impl Iterator<Item = (String, &str)> {
    let variables = container.items_at(&["env"]).iter().filter_map(|variable| {
        let secret = variable.at(&["valueFrom", "secretKeyRef"])?;
        let how = format!("envVar {}", variable.str_at(&["name"]));
        Some((how, secret.str_at(&["name"])))
    });
    let whole = container.items_at(&["envFrom"]).iter().filter_map(|from| {
        let secret = from.get("secretRef")?;
        Some(("envFrom".to_owned(), secret.str_at(&["name"])))
    });
    variables.chain(whole)
}

/// Returns whether pods of an account may use only the secrets that it names.
fn enforces_secrets(account: &Value) -> bool {
    let value = account.str_at(&["metadata", "annotations", ENFORCE_SECRETS]);
    matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn names_secret(account: &Value, list: &str, name: &str) -> bool {
    let mut secrets = account.items_at(&[list]).iter();
    secrets.any(|secret| secret.str_at(&["name"]) == name)
}

/// Refuses a pod that uses secrets which its account does not name, if the account wants that.
fn check_secrets(what: &Attributes<'_>, pod: &Value, account: &Value) -> Result<(), ApiError> {
    if !enforces_secrets(account) {
        return Ok(());
    }
    let account_name = account.str_at(&["metadata", "name"]);
    for volume in pod.items_at(&["spec", "volumes"]) {
        let Some(secret) = volume.get("secret") else {
            continue;
        };
        let name = secret.str_at(&["secretName"]);
        if !names_secret(account, "secrets", name) {
            let why = format!(
                r#"volume with secret.secretName="{name}" is not allowed because service account {account_name} does not reference that secret"#
            );
            return Err(what.forbidden(Some(pod), why));
        }
    }
    for list in [
        ("initContainers", "init container"),
        ("containers", "container"),
    ] {
        if let Some(why) = foreign_secret(pod, account, list) {
            return Err(what.forbidden(Some(pod), why));
        }
    }
    let pull_secrets = pod.items_at(&["spec", "imagePullSecrets"]);
    for (at, secret) in pull_secrets.iter().enumerate() {
        let name = secret.str_at(&["name"]);
        if !names_secret(account, "imagePullSecrets", name) {
            let why = format!(
                r#"imagePullSecrets[{at}].name="{name}" is not allowed because service account {account_name} does not reference that imagePullSecret"#
            );
            return Err(what.forbidden(Some(pod), why));
        }
    }
    Ok(())
}

fn check_ephemeral_containers(pod: &Value, account: &Value) -> Result<(), ApiError> {
    if !enforces_secrets(account) {
        return Ok(());
    }
    let list = ("ephemeralContainers", "ephemeral container");
    // Upstream answers 500 here, with nothing but the text.
    foreign_secret(pod, account, list)
        .map_or(Ok(()), |why| Err(ApiError::new(Reason::Unknown, why)))
}

/// Returns what is wrong with a pod that has a container whose environment uses a secret which the
/// account does not name.
fn foreign_secret(pod: &Value, account: &Value, (list, kind): (&str, &str)) -> Option<String> {
    for container in pod.items_at(&["spec", list]) {
        for (how, secret) in secrets_of(container) {
            if names_secret(account, "secrets", secret) {
                continue;
            }
            let container_name = container.str_at(&["name"]);
            let account_name = account.str_at(&["metadata", "name"]);
            return Some(format!(
                r#"{kind} {container_name} with {how} referencing secret.secretName="{secret}" is not allowed because service account {account_name} does not reference that secret"#
            ));
        }
    }
    None
}
