//! The index of a plane's roles and bindings by the subjects that they name.

use std::ops::ControlFlow;
use std::sync::Arc;

use polyplane_apimachinery::Value;

use super::binding::{Binding, ObjectName, RoleKind, RoleRef};
use super::role::Role;
use super::scope::{ByName, Scope};
use crate::user::UserInfo;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The roles and bindings of one plane, by the users and groups that the bindings name.
///
/// A clone costs a few counters and shares everything; a change copies only what lies above the
/// changed entry. A plane's index begins as a clone of that of its layer, so that it takes memory
/// only for what the plane has changed, and a removed bootstrap object is absent: there is no mark
/// that could be lost.
///
/// The index is a pure function of the objects: in whatever order they are put, replaced and
/// removed, it equals the index to which only those that are left were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    cluster: Scope,
    /// The scopes of namespaces with roles or bindings.
    namespaces: ByName<Arc<Scope>>,
}

/// The resources that the index reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RbacResource {
    /// `roles` and `clusterroles`.
    Role,
    /// `rolebindings` and `clusterrolebindings`.
    Binding,
}

impl RbacResource {
    /// Returns which of them a resource is; `None` for a resource that the index does not read.
    #[must_use]
    pub fn of(group: &str, resource: &str) -> Option<Self> {
        match resource {
            "roles" | "clusterroles" if group == GROUP => Some(Self::Role),
            "rolebindings" | "clusterrolebindings" if group == GROUP => Some(Self::Binding),
            _ => None,
        }
    }
}

impl Index {
    /// Adds an object, in place of the one that was stored under `name`.
    pub fn put(&mut self, resource: RbacResource, name: ObjectName<'_>, object: &Value) {
        match resource {
            RbacResource::Role => self.put_role(name, Role::from_value(object)),
            RbacResource::Binding => self.put_binding(Binding::from_value(name, object)),
        }
    }

    /// Removes the object that was stored under `name`, if the index has it.
    pub fn remove(&mut self, resource: RbacResource, name: ObjectName<'_>) {
        self.edit(name.namespace, |scope| match resource {
            RbacResource::Role => scope.remove_role(name.name),
            RbacResource::Binding => scope.remove_binding(name.name),
        });
    }

    /// Adds a role, in place of the one that was stored under `name`.
    pub fn put_role(&mut self, name: ObjectName<'_>, role: Role) {
        self.edit(name.namespace, |scope| scope.put_role(name.name, role));
    }

    /// Adds a binding, in place of the one that was stored under its name.
    pub fn put_binding(&mut self, binding: Binding) {
        let namespace = binding.namespace().to_owned();
        self.edit(&namespace, |scope| scope.put_binding(binding));
    }

    /// Returns the role of a name.
    #[must_use]
    pub fn role(&self, name: ObjectName<'_>) -> Option<&Role> {
        self.scope(name.namespace)?.role(name.name)
    }

    /// Returns the role to which a binding in `namespace` refers; the namespace of a
    /// ClusterRoleBinding is empty.
    #[must_use]
    pub fn referred(&self, reference: &RoleRef, namespace: &str) -> Option<&Role> {
        match reference.kind {
            RoleKind::ClusterRole => self.cluster.role(&reference.name),
            // The scope without a namespace holds ClusterRoles, which no reference of this kind means.
            RoleKind::Role if namespace.is_empty() => None,
            RoleKind::Role => self.scope(namespace)?.role(&reference.name),
            RoleKind::Unsupported(_) => None,
        }
    }

    pub(crate) fn cluster(&self) -> &Scope {
        &self.cluster
    }

    /// Calls `visit` with each binding that names the user or a group of the user and applies in
    /// `namespace`. A binding can be visited several times.
    pub(crate) fn visit<'a, R>(
        &'a self,
        user: &UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&'a Arc<Binding>) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        self.cluster.visit(user, &mut visit)?;
        match self.namespaces.get(namespace) {
            Some(scope) => scope.visit(user, &mut visit),
            None => ControlFlow::Continue(()),
        }
    }

    /// Returns the bindings that apply to a user in `namespace`, each once: first those of the
    /// cluster, each part in order of names.
    pub(crate) fn applying(&self, user: &UserInfo, namespace: &str) -> Vec<&Binding> {
        let mut found = Vec::new();
        let all = self.visit(user, namespace, |binding| -> ControlFlow<()> {
            found.push(&**binding);
            ControlFlow::Continue(())
        });
        debug_assert!(all.is_continue(), "nothing ends the visit");
        found.sort_by(|a, b| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
        found.dedup_by(|a, b| std::ptr::eq(*a, *b));
        found
    }

    fn scope(&self, namespace: &str) -> Option<&Scope> {
        if namespace.is_empty() {
            return Some(&self.cluster);
        }
        self.namespaces.get(namespace).map(|scope| &**scope)
    }

    fn edit(&mut self, namespace: &str, edit: impl FnOnce(&mut Scope)) {
        if namespace.is_empty() {
            edit(&mut self.cluster);
            return;
        }
        if let Some(known) = self.namespaces.get_mut(namespace) {
            let scope = Arc::make_mut(known);
            edit(scope);
            if scope.is_empty() {
                self.namespaces.remove_mut(namespace);
            }
            return;
        }
        let mut scope = Scope::default();
        edit(&mut scope);
        if !scope.is_empty() {
            self.namespaces
                .insert_mut(namespace.into(), Arc::new(scope));
        }
    }
}
