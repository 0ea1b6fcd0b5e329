//! The roles and bindings of one namespace, or of the cluster.

use std::ops::ControlFlow;
use std::sync::Arc;

use polyplane_apimachinery::Str;
use rpds::HashTrieMapSync;

use super::binding::{Binding, SubjectKey};
use super::role::Role;
use super::subject_bindings::SubjectBindings;
use crate::user::UserInfo;

/// A persistent map by name. A clone shares everything; a change copies what lies above it. The
/// default hasher has a random key, because tenants choose the names.
pub(crate) type ByName<T> = HashTrieMapSync<Str, T>;

/// The roles and bindings of one namespace, or of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scope {
    roles: ByName<Arc<Role>>,
    bindings: ByName<Arc<Binding>>,
    /// The bindings of `bindings` by the user whom they name.
    users: ByName<SubjectBindings>,
    /// The bindings of `bindings` by the group that they name.
    groups: ByName<SubjectBindings>,
}

impl Scope {
    pub(crate) fn is_empty(&self) -> bool {
        self.roles.is_empty() && self.bindings.is_empty()
    }

    pub(crate) fn role(&self, name: &str) -> Option<&Role> {
        self.roles.get(name).map(|role| &**role)
    }

    /// Returns all roles, in no order.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (&Str, &Role)> {
        self.roles.iter().map(|(name, role)| (name, &**role))
    }

    pub(crate) fn put_role(&mut self, name: &str, role: Role) {
        self.roles.insert_mut(name.into(), Arc::new(role));
    }

    pub(crate) fn remove_role(&mut self, name: &str) {
        self.roles.remove_mut(name);
    }

    pub(crate) fn put_binding(&mut self, binding: Binding) {
        self.remove_binding(binding.name());
        let binding = Arc::new(binding);
        for key in binding.keys() {
            let (subjects, name) = self.subjects(key);
            if let Some(known) = subjects.get_mut(&name) {
                known.put(&binding);
            } else {
                let mut first = SubjectBindings::default();
                first.put(&binding);
                subjects.insert_mut(name, first);
            }
        }
        self.bindings.insert_mut(binding.name().into(), binding);
    }

    pub(crate) fn remove_binding(&mut self, name: &str) {
        let Some(binding) = self.bindings.get(name).cloned() else {
            return;
        };
        for key in binding.keys() {
            let (subjects, subject) = self.subjects(key);
            if let Some(known) = subjects.get_mut(&subject) {
                known.remove(name);
                if known.is_empty() {
                    subjects.remove_mut(&subject);
                }
            }
        }
        self.bindings.remove_mut(name);
    }

    /// Calls `visit` with each binding that names the user or a group of the user. A binding that
    /// names several of these is visited several times.
    pub(crate) fn visit<'a, R>(
        &'a self,
        user: &UserInfo,
        visit: &mut impl FnMut(&'a Arc<Binding>) -> ControlFlow<R>,
    ) -> ControlFlow<R> {
        let by_user = self.users.get(user.name.as_str()).into_iter();
        let groups = user.groups.iter();
        let by_group = groups.filter_map(|group| self.groups.get(group.as_str()));
        for bindings in by_user.chain(by_group) {
            bindings.iter().try_for_each(&mut *visit)?;
        }
        ControlFlow::Continue(())
    }

    fn subjects(&mut self, key: SubjectKey) -> (&mut ByName<SubjectBindings>, Str) {
        match key {
            SubjectKey::User(name) => (&mut self.users, name),
            SubjectKey::Group(name) => (&mut self.groups, name),
        }
    }
}
