//! What a pod and a volume refer to, and so what the kubelet that runs the pod has to read.

use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::{Str, Value};

/// The annotation of a mirror pod: the kubelet's copy of a pod that it runs from a file.
pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// The kinds of objects that a pod refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referred {
    Account,
    Secret,
    ConfigMap,
    VolumeClaim,
    ResourceClaim,
}

/// The members of a persistent volume that name a secret which a kubelet reads, with whether the
/// secret is in the namespace of the claim if the member names none.
const PERSISTENT_SECRETS: [(&[&str], bool); 10] = [
    (&["cephfs", "secretRef"], true),
    (&["cinder", "secretRef"], false),
    (&["flexVolume", "secretRef"], true),
    (&["rbd", "secretRef"], true),
    (&["scaleIO", "secretRef"], true),
    (&["iscsi", "secretRef"], true),
    (&["storageos", "secretRef"], false),
    (&["csi", "nodePublishSecretRef"], false),
    (&["csi", "nodeStageSecretRef"], false),
    (&["csi", "nodeExpandSecretRef"], false),
];

/// Returns whether a pod refers to an object of its namespace. A mirror pod refers to none: a
/// kubelet makes it, and could give itself rights by what it writes into it.
pub(super) fn refers_to(pod: &Value, kind: Referred, name: &str) -> bool {
    if pod["metadata"]["annotations"].get(MIRROR_POD).is_some() {
        return false;
    }
    let spec = &pod["spec"];
    match kind {
        Referred::Account => spec.str_at(&["serviceAccountName"]) == name,
        Referred::Secret => names_at(spec, &SECRETS).any(|one| one == name),
        Referred::ConfigMap => names_at(spec, &CONFIG_MAPS).any(|one| one == name),
        Referred::VolumeClaim => {
            let mut claims = volumes(spec).filter_map(|volume| claim_of(pod, volume));
            claims.any(|claim| claim == name)
        }
        Referred::ResourceClaim => uses_resource_claim(pod, name),
    }
}

/// Returns the name of the claim of a pod's volume.
fn claim_of(pod: &Value, volume: &Value) -> Option<Str> {
    if let Some(claim) = volume.get("persistentVolumeClaim") {
        return Some(claim.str_at(&["claimName"]).into());
    }
    volume.get("ephemeral")?;
    let (pod, volume) = (pod.str_at(&["metadata", "name"]), volume.str_at(&["name"]));
    Some(format!("{pod}-{volume}").into())
}

fn volumes(spec: &Value) -> impl Iterator<Item = &Value> {
    spec.items_at(&["volumes"]).iter()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    lists.into_iter().flat_map(|list| spec.items_at(&[list]))
}

/// The places in the spec of a pod that name an object of one kind.
struct Places {
    /// A list of names.
    list: &'static str,
    /// The member of a variable's source that names an object of which one key is taken.
    single: &'static str,
    /// The member of a source of variables that names an object of which all keys are.
    whole: &'static str,
    /// The places in a volume.
    volumes: &'static [&'static [&'static str]],
    /// The member of a source of a projected volume.
    projected: &'static str,
}

const SECRETS: Places = Places {
    list: "imagePullSecrets",
    single: "secretKeyRef",
    whole: "secretRef",
    volumes: &[
        &["secret", "secretName"],
        &["azureFile", "secretName"],
        &["cephfs", "secretRef", "name"],
        &["cinder", "secretRef", "name"],
        &["csi", "nodePublishSecretRef", "name"],
        &["flexVolume", "secretRef", "name"],
        &["iscsi", "secretRef", "name"],
        &["rbd", "secretRef", "name"],
        &["scaleIO", "secretRef", "name"],
        &["storageos", "secretRef", "name"],
    ],
    projected: "secret",
};

const CONFIG_MAPS: Places = Places {
    list: "",
    single: "configMapKeyRef",
    whole: "configMapRef",
    volumes: &[&["configMap", "name"]],
    projected: "configMap",
};

/// Returns all names at the places in a spec. Where there is none, the name is empty.
fn names_at<'a>(spec: &'a Value, places: &'static Places) -> impl Iterator<Item = &'a str> {
    let listed = spec.items_at(&[places.list]).iter();
    let listed = listed.map(|one| one.str_at(&["name"]));
    let in_containers = containers(spec).flat_map(|container| {
        let variables = container.items_at(&["env"]).iter();
        let sources = container.items_at(&["envFrom"]).iter();
        let single = variables.map(|one| one.str_at(&["valueFrom", places.single, "name"]));
        single.chain(sources.map(|one| one.str_at(&[places.whole, "name"])))
    });
    let in_volumes = volumes(spec).flat_map(|volume| {
        let projected = volume.items_at(&["projected", "sources"]).iter();
        let own = places.volumes.iter().map(|path| volume.str_at(path));
        own.chain(projected.map(|one| one.str_at(&[places.projected, "name"])))
    });
    listed.chain(in_containers).chain(in_volumes)
}

fn names_any(spec: &Value, places: &'static Places) -> bool {
    names_at(spec, places).any(|name| !name.is_empty())
}

fn uses_resource_claim(pod: &Value, name: &str) -> bool {
    let status = &pod["status"];
    let made = status.items_at(&["resourceClaimStatuses"]);
    let mut wanted = pod.items_at(&["spec", "resourceClaims"]).iter();
    let names_it = |wanted: &Value| match wanted.get("resourceClaimName") {
        Some(claim) => claim.as_str() == Some(name),
        // The claim was made for the pod, and its status says which one it is.
        None => made.iter().any(|made| {
            made.str_at(&["name"]) == wanted.str_at(&["name"])
                && made.str_at(&["resourceClaimName"]) == name
        }),
    };
    wanted.any(names_it)
        || status.str_at(&["extendedResourceClaimStatus", "resourceClaimName"]) == name
}

/// Returns the secrets that a kubelet needs for a persistent volume, with their namespaces.
pub(super) fn volume_secrets(spec: &Value) -> Vec<(&str, &str)> {
    let of_claim = spec.str_at(&["claimRef", "namespace"]);
    let in_claim = |namespace| match namespace {
        "" => of_claim,
        own => own,
    };
    let mut found = Vec::new();
    if let Some(file) = spec.get("azureFile") {
        let namespace = in_claim(file.str_at(&["secretNamespace"]));
        found.push((namespace, file.str_at(&["secretName"])));
    }
    for (path, is_in_claim) in PERSISTENT_SECRETS {
        let Some(secret) = spec.at(path) else {
            continue;
        };
        let namespace = match secret.str_at(&["namespace"]) {
            namespace if is_in_claim => in_claim(namespace),
            namespace => namespace,
        };
        found.push((namespace, secret.str_at(&["name"])));
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

/// The kinds of volumes that refer to no object of the API.
const PLAIN_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
/// The kinds of volumes that refer to objects, with upstream's texts about these.
const REFERRING_VOLUMES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    (
        "ephemeral",
        "persistentvolumeclaims (via ephemeral volumes)",
    ),
    ("azureFile", "secrets (via azureFile volumes)"),
];
/// The sources of projected volumes that refer to objects, with upstream's texts about these.
const REFERRING_SOURCES: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    (
        "serviceAccountToken",
        "serviceaccounts (via projected volumes)",
    ),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// Returns what objects of the API a pod refers to; `None` if there are none.
///
/// # Errors
/// Returns upstream's text if the pod has a volume of a kind that is not known.
pub fn api_reference(pod: &Value) -> Result<Option<&'static str>, String> {
    let spec = &pod["spec"];
    if !spec.str_at(&["serviceAccountName"]).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    if names_any(spec, &SECRETS) {
        return Ok(Some("secrets"));
    }
    if names_any(spec, &CONFIG_MAPS) {
        return Ok(Some("configmaps"));
    }
    if !spec.items_at(&["resourceClaims"]).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in volumes(spec) {
        let name = volume.str_at(&["name"]);
        let has = |kind: &&str| volume.get(kind).is_some();
        if PLAIN_VOLUMES.iter().any(has) {
            continue;
        }
        let mut referring = REFERRING_VOLUMES.iter();
        if let Some((_, text)) = referring.find(|(kind, _)| has(kind)) {
            return Ok(Some(text));
        }
        if !has(&"projected") {
            return Err(format!("unknown volume type for volume  {}", quote(name)));
        }
        for source in volume.items_at(&["projected", "sources"]) {
            let mut referring = REFERRING_SOURCES.iter();
            match referring.find(|(kind, _)| source.get(kind).is_some()) {
                Some((_, text)) => return Ok(Some(text)),
                None if source.get("downwardAPI").is_some() => {}
                None => {
                    let name = quote(name);
                    return Err(format!("unknown source for projected volume {name}"));
                }
            }
        }
    }
    Ok(None)
}
