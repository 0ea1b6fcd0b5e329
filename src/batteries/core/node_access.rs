//! The node authorizer: what a kubelet may do.
//!
//! A kubelet is the user `system:node:<name>` in the group `system:nodes`. It reads what the pods of
//! its node refer to and writes what it reports; `NodeRestriction` checks the content of what it
//! writes. The rules about objects without such a relation are those of the role `system:node`,
//! which upstream keeps for the same purpose.
//!
//! Invariant: a relation is looked up in the state that the request reads, so it is as fresh as the
//! last acknowledged write. Users who are no nodes cost one comparison of their names.

mod references;
mod relations;

use crate::bootstrap;
use crate::core::node_access::references::Referred;
use crate::core::node_access::relations::Relation;
use polyplane_apimachinery::field_selector::{FieldOperator, FieldSelector};
use polyplane_auth::rbac::policy_rule::PolicyRule;
use polyplane_auth::{Attributes, Decision, Subject, UserInfo};
use polyplane_plane::Snapshot;
use polyplane_registry::authority::{PlaneAuthorizer, RuleLists};

pub use references::{MIRROR_POD, api_reference};
pub use relations::NodeRelations;

/// The role whose rules hold for every node.
const ROLE: &str = "system:node";
/// The namespace of the leases of nodes.
pub const LEASES: &str = "kube-node-lease";

/// Decides on the requests of kubelets.
#[derive(Debug)]
pub struct NodeAuthorizer {
    rules: Vec<PolicyRule>,
}

impl Default for NodeAuthorizer {
    /// Takes the rules from the bootstrap role. What a plane makes of its own copy of the role
    /// changes nothing here, as upstream.
    fn default() -> Self {
        let mut objects = bootstrap::objects().iter();
        let role = objects
            .find(|object| (object.key.resource(), object.key.name()) == ("clusterroles", ROLE));
        let rules = role.map_or(&[][..], |role| role.tree.items_at(&["rules"]));
        Self {
            rules: rules.iter().map(PolicyRule::from_value).collect(),
        }
    }
}

/// The parts of a request for a resource that decide.
#[derive(Clone, Copy)]
struct Asked<'a> {
    verb: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
    field_selector: &'a str,
}

/// A decision, with the reason if it is no.
type Judged = Result<(), String>;

fn deny(reason: impl Into<String>) -> Judged {
    Err(reason.into())
}

fn allow_if(allowed: bool, reason: &str) -> Judged {
    match allowed {
        true => Ok(()),
        false => deny(reason),
    }
}

impl PlaneAuthorizer for NodeAuthorizer {
    fn authorize_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Decision {
        let Some(node) = attributes.user.node() else {
            return Decision::NoOpinion(String::new());
        };
        let judged = match node {
            "" => deny(format!(
                "unknown node for user \"{}\"",
                attributes.user.name
            )),
            node => self.judge(cut, node, attributes),
        };
        match judged {
            Ok(()) => Decision::Allow,
            Err(why) => Decision::NoOpinion(why),
        }
    }

    fn list_rules_at(&self, _: &Snapshot, user: &UserInfo, _: &str, rules: &mut RuleLists) {
        if user.node().is_some() {
            let why = "node authorizer does not support user rule resolution";
            rules.errors.push(why.to_owned());
            rules.is_incomplete = true;
        }
    }
}

impl NodeAuthorizer {
    fn judge(&self, cut: &Snapshot, node: &str, attributes: &Attributes<'_>) -> Judged {
        let by_rules = || {
            let mut rules = self.rules.iter();
            allow_if(rules.any(|rule| rule.allows_request(attributes)), "")
        };
        let Subject::Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
            field_selector,
            ..
        } = attributes.subject
        else {
            return by_rules();
        };
        let asked = Asked {
            verb: attributes.verb,
            subresource,
            namespace,
            name,
            field_selector,
        };
        let relation = Relation {
            cut,
            node,
            namespace,
            name,
        };
        match (group, resource) {
            ("", "secrets") => asked.read(|| relation.of_secret(), node),
            ("", "configmaps") => asked.read(|| relation.of_pods(Referred::ConfigMap), node),
            ("", "persistentvolumeclaims") => asked.claim(&relation),
            ("", "persistentvolumes") => asked.get(|| relation.of_volume(), node),
            ("resource.k8s.io", "resourceclaims") => {
                asked.get(|| relation.of_pods(Referred::ResourceClaim), node)
            }
            ("storage.k8s.io", "volumeattachments") => {
                let kind = (group, resource);
                asked.get(|| relation.by_name(kind, &["spec", "nodeName"]), node)
            }
            ("", "serviceaccounts") => asked.account(&relation),
            ("coordination.k8s.io", "leases") => asked.lease(node),
            ("storage.k8s.io", "csinodes") => asked.csi_node(node),
            ("resource.k8s.io", "resourceslices") => asked.slice(&relation),
            ("", "nodes") => asked.node(node),
            ("", "pods") => asked.pod(&relation),
            ("certificates.k8s.io", "podcertificaterequests") => asked.certificate(&relation),
            _ => by_rules(),
        }
    }
}

impl Asked<'_> {
    fn related(&self, is_related: impl FnOnce() -> bool, node: &str) -> Judged {
        if self.name.is_empty() {
            return deny("No Object name found");
        }
        match is_related() {
            true => Ok(()),
            false => deny(format!(
                "no relationship found between node '{node}' and this object"
            )),
        }
    }

    fn get(&self, is_related: impl FnOnce() -> bool, node: &str) -> Judged {
        if self.verb != "get" {
            return deny("can only get individual resources of this type");
        }
        if !self.subresource.is_empty() {
            return deny("cannot get subresource");
        }
        self.related(is_related, node)
    }

    fn read(&self, is_related: impl FnOnce() -> bool, node: &str) -> Judged {
        if !matches!(self.verb, "get" | "list" | "watch") {
            return deny("can only read resources of this type");
        }
        if !self.subresource.is_empty() {
            return deny("cannot read subresource");
        }
        if self.namespace.is_empty() {
            return deny("can only read namespaced object of this type");
        }
        self.related(is_related, node)
    }

    fn claim(&self, relation: &Relation<'_>) -> Judged {
        let is_related = || relation.of_pods(Referred::VolumeClaim);
        if self.subresource != "status" {
            return self.get(is_related, relation.node);
        }
        match self.verb {
            "update" | "patch" => self.related(is_related, relation.node),
            _ => deny("can only get/update/patch this type"),
        }
    }

    fn account(&self, relation: &Relation<'_>) -> Judged {
        let is_related = || relation.of_pods(Referred::Account);
        if self.verb == "get" && self.subresource.is_empty() {
            return self.read(is_related, relation.node);
        }
        if self.verb != "create" || self.name.is_empty() {
            return deny("can only create tokens for individual service accounts");
        }
        if self.subresource != "token" {
            return deny("can only create token subresource of serviceaccount");
        }
        self.related(is_related, relation.node)
    }

    fn lease(&self, node: &str) -> Judged {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return deny("can only get, create, update, patch, or delete a node lease");
        }
        if self.namespace != LEASES {
            return deny(format!(
                "can only access leases in the \"{LEASES}\" system namespace"
            ));
        }
        // The name of what is created is in its body, which NodeRestriction checks.
        allow_if(
            self.verb == "create" || self.name == node,
            "can only access node lease with the same name as the requesting node",
        )
    }

    fn csi_node(&self, node: &str) -> Judged {
        match self.subresource {
            "" => {}
            "status" => return deny("CSINode status access requires CSIVolumeHealth feature"),
            _ => return deny("cannot authorize CSINode subresources"),
        }
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return deny("can only get, create, update, patch, or delete a CSINode");
        }
        allow_if(
            self.verb == "create" || self.name == node,
            "can only access CSINode with the same name as the requesting node",
        )
    }

    fn slice(&self, relation: &Relation<'_>) -> Judged {
        if !self.subresource.is_empty() {
            return deny("cannot authorize ResourceSlice subresources");
        }
        match self.verb {
            // NodeRestriction compares the name of the node in the new object.
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => {
                let kind = ("resource.k8s.io", "resourceslices");
                let is_own = || relation.by_name(kind, &["spec", "nodeName"]);
                self.related(is_own, relation.node)
            }
            "watch" | "list" | "deletecollection" => allow_if(
                self.selects(relation.node),
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => deny(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn certificate(&self, relation: &Relation<'_>) -> Judged {
        if !self.subresource.is_empty() {
            return deny("nodes may not access the status subresource of PodCertificateRequests");
        }
        match self.verb {
            "create" => Ok(()),
            "get" => {
                let kind = ("certificates.k8s.io", "podcertificaterequests");
                let is_own = || relation.by_name(kind, &["spec", "nodeName"]);
                self.related(is_own, relation.node)
            }
            "list" | "watch" => allow_if(
                self.selects(relation.node),
                "can only list/watch podcertificaterequests with nodeName field selector",
            ),
            verb => deny(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn node(&self, node: &str) -> Judged {
        match (self.subresource, self.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") => match self.name {
                own if own == node => Ok(()),
                "" => deny(format!(
                    "node '{node}' cannot read all nodes, only its own Node object"
                )),
                other => deny(format!(
                    "node '{node}' cannot read '{other}', only its own Node object"
                )),
            },
            _ => deny(""),
        }
    }

    fn pod(&self, relation: &Relation<'_>) -> Judged {
        let is_own = || relation.by_name(("", "pods"), &["spec", "nodeName"]);
        match (self.subresource, self.verb) {
            ("", "get") => self.get(is_own, relation.node),
            ("", "list" | "watch") if self.selects(relation.node) => Ok(()),
            ("", "list" | "watch") if !self.name.is_empty() => self.related(is_own, relation.node),
            ("", "list" | "watch") => {
                deny("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Ok(())
            }
            _ => deny(""),
        }
    }

    /// Returns whether the request is restricted to the objects of the node.
    fn selects(&self, node: &str) -> bool {
        let selector = FieldSelector::parse(self.field_selector);
        selector.is_ok_and(|selector| {
            let mut terms = selector.terms().iter();
            terms.any(|term| {
                term.field == "spec.nodeName"
                    && term.operator == FieldOperator::Equals
                    && term.value == node
            })
        })
    }
}
