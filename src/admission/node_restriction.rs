//! `NodeRestriction`: a kubelet writes its own node and what belongs to the pods of that node, and
//! nothing else.
//!
//! The node authorizer sees no bodies. This plug-in compares what a kubelet sends, and what is stored,
//! with the name of its node.

mod certificates;
mod node;
mod tokens;

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_batteries::node_access::{LEASES, MIRROR_POD, api_reference};
use polyplane_plane::Key;
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct NodeRestriction;

impl Admission for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[
            "pods",
            "nodes",
            "persistentvolumeclaims",
            "serviceaccounts",
            "leases.coordination.k8s.io",
            "csinodes.storage.k8s.io",
            "resourceslices.resource.k8s.io",
            "certificatesigningrequests.certificates.k8s.io",
            "podcertificaterequests.certificates.k8s.io",
        ])
    }

    fn measured(&self) -> Measured {
        Measured::mutating(&[Operation::Create, Operation::Update, Operation::Delete])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let user = &what.call.request.user;
        let Some(node) = user.node() else {
            return Ok(Mutated::Unchanged);
        };
        let object = object.as_deref();
        if node.is_empty() {
            let why = format!("could not determine node from user {}", quote(&user.name));
            return Err(what.forbidden(object, why).into());
        }
        let write = NodeWrite { what, object, node };
        match what.call.row.name.as_str() {
            "pods" => write.pod()?,
            "nodes" => node::check(&write)?,
            "persistentvolumeclaims" => write.claim()?,
            "serviceaccounts" => tokens::check(&write, call_outs)?,
            "leases" => write.lease()?,
            "csinodes" => write.csi_node()?,
            "resourceslices" => write.slice()?,
            "certificatesigningrequests" => certificates::check_signing(&write)?,
            "podcertificaterequests" => certificates::check_of_pod(&write, call_outs)?,
            _ => {}
        }
        Ok(Mutated::Unchanged)
    }
}

/// A write of a kubelet.
struct NodeWrite<'a> {
    what: &'a Attributes<'a>,
    /// What the kubelet sends; `None` if it deletes.
    object: Option<&'a Value>,
    /// The name of the kubelet's node.
    node: &'a str,
}

impl NodeWrite<'_> {
    fn refuse<T>(&self, why: impl Into<String>) -> Result<T, ApiError> {
        Err(self.what.forbidden(self.object, why.into()))
    }

    /// Refuses with a text that begins with the node.
    fn refuse_node<T>(&self, why: &str) -> Result<T, ApiError> {
        self.refuse(format!("node {} {why}", quote(self.node)))
    }

    fn unexpected<T>(&self) -> Result<T, ApiError> {
        let operation = quote(operation_name(self.what.operation));
        self.refuse(format!("unexpected operation {operation}"))
    }

    fn subresource(&self) -> &str {
        self.what.call.subresource()
    }

    /// Returns an object of the core group. The error names its kind as upstream's does here.
    ///
    /// # Errors
    /// Returns 404 if it does not exist.
    fn existing(&self, resource: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let found = objects::get(self.what, &Key::new("", resource, namespace, name))?;
        let kind = resource.trim_end_matches('s');
        found.ok_or_else(|| ApiError::not_found(Qualified::new("", kind), name))
    }

    fn pod(&self) -> Result<(), ApiError> {
        match (self.subresource(), self.what.operation) {
            ("", Operation::Create) => self.create_pod(),
            ("", Operation::Delete) => {
                if node_of(self.what.old) != self.node {
                    let why = "can only delete pods with spec.nodeName set to itself";
                    return self.refuse_node(why);
                }
                Ok(())
            }
            ("", Operation::Update) => {
                let (operation, node) = (operation_name(self.what.operation), self.node);
                self.refuse(format!(
                    "unexpected operation {}, node {} can only create and delete mirror pods",
                    quote(operation),
                    quote(node)
                ))
            }
            ("status", Operation::Update) => self.pod_status(),
            ("status", _) => self.unexpected(),
            ("eviction", Operation::Create) => {
                let namespace = self.what.call.namespace();
                let pod = self.existing("pods", namespace, self.what.name)?;
                if node_of(Some(&pod)) != self.node {
                    return self.refuse(format!(
                        "node {} can only evict pods with spec.nodeName set to itself",
                        self.node
                    ));
                }
                Ok(())
            }
            ("eviction", other) => {
                self.refuse(format!("unexpected operation {}", operation_name(other)))
            }
            (other, _) => self.refuse(format!(
                "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
                quote(other)
            )),
        }
    }

    fn create_pod(&self) -> Result<(), ApiError> {
        let pod = self.object.unwrap_or(&Value::Null);
        if !objects::has_annotation(pod, MIRROR_POD) {
            return self.refuse(format!(
                "pod does not have {} annotation, node {} can only create mirror pods",
                quote(MIRROR_POD),
                quote(self.node)
            ));
        }
        if node_of(Some(pod)) != self.node {
            return self.refuse_node("can only create pods with spec.nodeName set to itself");
        }
        self.check_owner(pod.items_at(&["metadata", "ownerReferences"]))?;
        match api_reference(pod) {
            Ok(None) => Ok(()),
            Ok(Some(resource)) => {
                self.refuse_node(&format!("can not create pods that reference {resource}"))
            }
            Err(why) => self.refuse(format!(
                "error checking mirror pod for API references: {why}"
            )),
        }
    }

    /// Checks that the only owner of a mirror pod is its node.
    fn check_owner(&self, owners: &[Value]) -> Result<(), ApiError> {
        let owner = match owners {
            [] => {
                let why = "can only create pods with an owner reference set to itself";
                return self.refuse_node(why);
            }
            [owner] => owner,
            _ => {
                let why = "can only create pods with a single owner reference set to itself";
                return self.refuse_node(why);
            }
        };
        let is_node = owner.str_at(&["apiVersion"]) == "v1"
            && owner.str_at(&["kind"]) == "Node"
            && owner.str_at(&["name"]) == self.node;
        if !is_node {
            return self.refuse_node("can only create pods with an owner reference set to itself");
        }
        if !owner.bool_at(&["controller"]) {
            let why = "can only create pods with a controller owner reference set to itself";
            return self.refuse_node(why);
        }
        if owner.bool_at(&["blockOwnerDeletion"]) {
            return self.refuse_node("must not set blockOwnerDeletion on an owner reference");
        }
        let node = self.existing("nodes", "", self.node)?;
        let (wanted, uid) = (owner.str_at(&["uid"]), node.str_at(&["metadata", "uid"]));
        if wanted != uid {
            return self.refuse(format!(
                "node {} UID mismatch: expected {wanted} got {uid}",
                self.node
            ));
        }
        Ok(())
    }

    fn pod_status(&self) -> Result<(), ApiError> {
        let (Some(old), Some(new)) = (self.what.old, self.object) else {
            return self.unexpected();
        };
        if node_of(Some(old)) != self.node {
            let why = "can only update pod status for pods with spec.nodeName set to itself";
            return self.refuse_node(why);
        }
        if !is_same(old, new, &["metadata", "labels"]) {
            return self.refuse_node("cannot update labels through pod status");
        }
        for (member, what) in [
            ("resourceClaimStatuses", "resource claim statues"),
            (
                "extendedResourceClaimStatus",
                "extended resource claim status",
            ),
            (
                "nodeAllocatableResourceClaimStatuses",
                "node allocatable resource claim statuses",
            ),
        ] {
            if !is_same(old, new, &["status", member]) {
                return self.refuse_node(&format!("cannot update {what}"));
            }
        }
        Ok(())
    }

    fn claim(&self) -> Result<(), ApiError> {
        if self.subresource() != "status" {
            return self.refuse("may only update PVC status");
        }
        let (Operation::Update, Some(old), Some(new)) =
            (self.what.operation, self.what.old, self.object)
        else {
            return self.unexpected();
        };
        let rest = |claim: &Value| {
            let mut rest = claim.clone();
            for member in ["resourceVersion", "managedFields"] {
                drop(rest.remove(&["metadata", member]));
            }
            for member in [
                "capacity",
                "conditions",
                "allocatedResourceStatuses",
                "allocatedResources",
            ] {
                drop(rest.remove(&["status", member]));
            }
            rest
        };
        let (old, new) = (rest(old), rest(new));
        let subject = self.what.subject;
        let is_same = |part: &str| {
            let schemas = subject.schemas;
            schemas.alike_at(subject.definition, &[part], &old, &new)
        };
        let differing: Vec<&str> = ["metadata", "spec", "status"]
            .into_iter()
            .filter(|part| !is_same(part))
            .collect();
        if !differing.is_empty() {
            return self.refuse_node(&format!(
                "is not allowed to update fields other than status.quantity and status.conditions: {}",
                differing.join(", ")
            ));
        }
        Ok(())
    }

    fn lease(&self) -> Result<(), ApiError> {
        if self.what.call.namespace() != LEASES {
            return self.refuse(format!(
                "can only access leases in the {} system namespace",
                quote(LEASES)
            ));
        }
        self.check_name("can only access node lease with the same name as the requesting node")
    }

    fn csi_node(&self) -> Result<(), ApiError> {
        self.check_name("can only access CSINode with the same name as the requesting node")
    }

    fn check_name(&self, why: &str) -> Result<(), ApiError> {
        match self.what.name == self.node {
            true => Ok(()),
            false => self.refuse(why),
        }
    }

    fn slice(&self) -> Result<(), ApiError> {
        let (slice, verb) = match self.what.operation {
            Operation::Create => (self.object, "create"),
            Operation::Delete => (self.what.old, "delete"),
            Operation::Update => return Ok(()),
        };
        if node_of(slice) != self.node {
            return self.refuse(format!(
                "can only {verb} ResourceSlice with the same NodeName as the requesting node"
            ));
        }
        Ok(())
    }
}

/// Returns the name of the node that an object is bound to; empty for none.
fn node_of(object: Option<&Value>) -> &str {
    object.map_or("", |object| object.str_at(&["spec", "nodeName"]))
}

const fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    }
}

/// Returns whether two objects have the same at a place. What is empty is as good as not there.
fn is_same(one: &Value, other: &Value, path: &[&str]) -> bool {
    let at = |object: &Value| object.at(path).filter(|value| !is_empty(value)).cloned();
    at(one) == at(other)
}

fn is_empty(value: &Value) -> bool {
    value.is_null()
        || value.as_array().is_some_and(<[Value]>::is_empty)
        || value.as_object().is_some_and(|object| object.is_empty())
}
