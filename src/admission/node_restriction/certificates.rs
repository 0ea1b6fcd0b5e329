//! The certificates that a kubelet may request: for itself, and for pods of its node.

use super::tokens::is_allowed;
use super::{NodeWrite, node_of, operation_name};
use crate::certificates::request_of;
use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_batteries::node_access::MIRROR_POD;
use polyplane_plane::Key;
use polyplane_registry::plan::{CallOuts, Interrupted, Operation};

/// The signers of kubelets.
const SIGNERS: [&str; 2] = [
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

/// Checks a certificate signing request: a kubelet requests a certificate of a kubelet for itself.
pub(super) fn check_signing(write: &NodeWrite<'_>) -> Result<(), ApiError> {
    let (Operation::Create, Some(request)) = (write.what.operation, write.object) else {
        return Ok(());
    };
    if !SIGNERS.contains(&request.str_at(&["spec", "signerName"])) {
        return Ok(());
    }
    let Some(parsed) = request_of(request) else {
        let why = "unable to parse csr: PEM block type must be CERTIFICATE REQUEST";
        return write.refuse(why);
    };
    let wanted = format!("system:node:{}", write.node);
    if parsed.common_name() != wanted {
        return write.refuse(format!("can only create a node CSR with CN={wanted}"));
    }
    Ok(())
}

/// Checks a request of a certificate for a pod.
pub(super) fn check_of_pod(
    write: &NodeWrite<'_>,
    call_outs: &mut CallOuts<'_>,
) -> Result<(), Interrupted> {
    let (Operation::Create, Some(request)) = (write.what.operation, write.object) else {
        let operation = operation_name(write.what.operation);
        return Ok(write.refuse(format!("unexpected operation {operation}"))?);
    };
    if !write.subresource().is_empty() {
        return Ok(write.refuse(format!("unexpected subresource {}", write.subresource()))?);
    }
    let spec = &request["spec"];
    let namespace = write.what.call.namespace();
    let full_name = quote(&format!("{namespace}/{}", spec.str_at(&["podName"])));
    check_node(write, spec, &full_name)?;
    let pod = checked_pod(write, spec, (namespace, &full_name))?;
    check_account(write, spec, &pod, (namespace, &full_name))?;
    let signer = spec.str_at(&["signerName"]);
    let mut volumes = pod.items_at(&["spec", "volumes"]).iter();
    let is_mounted = volumes.any(|volume| {
        let mut sources = volume.items_at(&["projected", "sources"]).iter();
        sources.any(|source| source.str_at(&["podCertificate", "signerName"]) == signer)
    });
    let resource = signer.replace('/', ":");
    let verb = "request-serviceaccounts-podcertificate-signer";
    let account = spec.str_at(&["serviceAccountName"]);
    if is_mounted || is_allowed(write, call_outs, (verb, &resource), account)? {
        return Ok(());
    }
    Ok(write.refuse(format!(
        "pod {full_name} does not mount a podCertificate projected volume for signer {}",
        quote(signer)
    ))?)
}

/// Returns an error that tells the kubelet to try again: what it has seen is not what is stored.
fn differs<T>(why: String) -> Result<T, ApiError> {
    Err(ApiError::new(Reason::Unknown, why))
}

fn check_node(write: &NodeWrite<'_>, spec: &Value, pod: &str) -> Result<(), ApiError> {
    let named = spec.str_at(&["nodeName"]);
    if named != write.node {
        return write.refuse(format!(
            "PodCertificateRequest.Spec.NodeName={}, which is not the requesting node {}",
            quote(named),
            quote(write.node)
        ));
    }
    let Some(node) = objects::get(write.what, &Key::new("", "nodes", None, named))? else {
        let named = quote(named);
        return differs(format!(
            "while retrieving node {named} named in the PodCertificateRequest: node {named} not found"
        ));
    };
    let (wanted, uid) = (spec.str_at(&["nodeUID"]), node.str_at(&["metadata", "uid"]));
    if wanted != uid {
        return differs(format!(
            "PodCertificateRequest for pod {pod} names node UID {}, inconsistent with the running node ({})",
            quote(wanted),
            quote(uid)
        ));
    }
    Ok(())
}

fn checked_pod(
    write: &NodeWrite<'_>,
    spec: &Value,
    (namespace, full_name): (&str, &str),
) -> Result<Value, ApiError> {
    let name = spec.str_at(&["podName"]);
    let key = Key::new("", "pods", Some(namespace), name);
    let Some(pod) = objects::get(write.what, &key)? else {
        return differs(format!(
            "while retrieving pod {full_name} named in the PodCertificateRequest: pod {} not found",
            quote(name)
        ));
    };
    let (wanted, uid) = (spec.str_at(&["podUID"]), pod.str_at(&["metadata", "uid"]));
    if wanted != uid {
        return differs(format!(
            "PodCertificateRequest for pod {full_name} contains pod UID ({}) which differs from running pod {}",
            quote(wanted),
            quote(uid)
        ));
    }
    if node_of(Some(&pod)) != write.node {
        return write.refuse(format!(
            "pod {full_name} is not running on node {} named in the PodCertificateRequest",
            quote(write.node)
        ));
    }
    if objects::has_annotation(&pod, MIRROR_POD) {
        return write.refuse(format!("pod {full_name} is a mirror pod"));
    }
    Ok(pod)
}

fn check_account(
    write: &NodeWrite<'_>,
    spec: &Value,
    pod: &Value,
    (namespace, full_name): (&str, &str),
) -> Result<(), ApiError> {
    let name = spec.str_at(&["serviceAccountName"]);
    let of_pod = pod.str_at(&["spec", "serviceAccountName"]);
    if name != of_pod {
        return write.refuse(format!(
            "PodCertificateRequest for pod {full_name} contains serviceAccountName ({}) that differs from running pod ({})",
            quote(name),
            quote(of_pod)
        ));
    }
    let key = Key::new("", "serviceaccounts", Some(namespace), name);
    let Some(account) = objects::get(write.what, &key)? else {
        let account = quote(&format!("{namespace}/{name}"));
        return differs(format!(
            "while retrieving service account {account} named in the PodCertificateRequest: serviceaccount {} not found",
            quote(name)
        ));
    };
    let uid = account.str_at(&["metadata", "uid"]);
    let wanted = spec.str_at(&["serviceAccountUID"]);
    if wanted != uid {
        return differs(format!(
            "PodCertificateRequest for pod {full_name} names service account UID {}, which differs from the running service account ({})",
            quote(wanted),
            quote(uid)
        ));
    }
    Ok(())
}
