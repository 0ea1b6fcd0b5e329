//! RoleBindings and ClusterRoleBindings.

use polyplane_apimachinery::quote::push_quote;
use polyplane_apimachinery::{Str, Value};

use crate::user::UserInfo;

/// A namespace and a name. The namespace is empty for objects of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
}

/// A RoleBinding, or a ClusterRoleBinding if it has no namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    namespace: Str,
    name: Str,
    role: RoleRef,
    subjects: Box<[BindingSubject]>,
}

/// A reference to a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRef {
    /// The kind of the role.
    pub kind: RoleKind,
    /// The name of the role.
    pub name: Str,
}

/// The kind of a role that a binding refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// A Role of the binding's namespace.
    Role,
    /// A ClusterRole.
    ClusterRole,
    /// A kind that has no roles. Validation refuses it.
    Unsupported(Str),
}

/// A user or group to whom a binding gives a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindingSubject {
    /// A user, by name.
    User(Str),
    /// A group, by name.
    Group(Str),
    /// A service account. Without a namespace it is one of the binding's namespace.
    ServiceAccount {
        /// The namespace.
        namespace: Str,
        /// The name.
        name: Str,
    },
    /// A kind that names nobody. Validation refuses it.
    Unsupported,
}

/// The user name or group by which a subject is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubjectKey {
    User(Str),
    Group(Str),
}

impl Binding {
    /// Reads the binding that is stored under `name`.
    #[must_use]
    pub fn from_value(name: ObjectName<'_>, object: &Value) -> Self {
        let subjects = object.items_at(&["subjects"]).iter();
        Self {
            namespace: name.namespace.into(),
            name: name.name.into(),
            role: RoleRef::from_value(&object["roleRef"]),
            subjects: subjects.map(BindingSubject::from_value).collect(),
        }
    }

    /// Returns the namespace; empty for a ClusterRoleBinding.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the role that the binding gives.
    #[must_use]
    pub fn role(&self) -> &RoleRef {
        &self.role
    }

    /// Returns the subjects.
    #[must_use]
    pub fn subjects(&self) -> &[BindingSubject] {
        &self.subjects
    }

    /// Returns the keys of all subjects; one of them twice if the binding names a subject twice.
    pub(crate) fn keys(&self) -> impl Iterator<Item = SubjectKey> {
        let subjects = self.subjects.iter();
        subjects.filter_map(|subject| subject.key(&self.namespace))
    }

    /// Returns the first subject that is `user`.
    fn subject_of(&self, user: &UserInfo) -> Option<&BindingSubject> {
        let mut subjects = self.subjects.iter();
        subjects.find(|subject| match subject.key(&self.namespace) {
            Some(SubjectKey::User(name)) => name == user.name,
            Some(SubjectKey::Group(group)) => user.in_group(&group),
            None => false,
        })
    }

    /// Appends how `user` comes to the role, as upstream writes it into the reason of a decision. Each
    /// recorded request has one, so it is written in one piece.
    pub(crate) fn describe(&self, user: &UserInfo, out: &mut String) {
        if self.namespace.is_empty() {
            out.push_str("ClusterRoleBinding ");
            push_quote(&self.name, out);
        } else {
            out.push_str("RoleBinding ");
            push_quote(&format!("{}/{}", self.name, self.namespace), out);
        }
        out.push_str(" of ");
        out.push_str(self.role.kind.name());
        out.push(' ');
        push_quote(&self.role.name, out);
        out.push_str(" to ");
        match self.subject_of(user) {
            Some(BindingSubject::User(name)) => {
                out.push_str("User ");
                push_quote(name, out);
            }
            Some(BindingSubject::Group(name)) => {
                out.push_str("Group ");
                push_quote(name, out);
            }
            Some(BindingSubject::ServiceAccount { namespace, name }) => {
                let namespace = Some(namespace).filter(|own| !own.is_empty());
                let namespace = namespace.unwrap_or(&self.namespace);
                out.push_str("ServiceAccount ");
                push_quote(&format!("{name}/{namespace}"), out);
            }
            Some(BindingSubject::Unsupported) | None => out.push_str("nobody"),
        }
    }
}

impl RoleRef {
    /// Reads the `roleRef` of a binding.
    #[must_use]
    pub fn from_value(reference: &Value) -> Self {
        let kind = match reference.str_at(&["kind"]) {
            "Role" => RoleKind::Role,
            "ClusterRole" => RoleKind::ClusterRole,
            other => RoleKind::Unsupported(other.into()),
        };
        Self {
            kind,
            name: reference.str_at(&["name"]).into(),
        }
    }
}

impl RoleKind {
    /// Returns the kind's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
            Self::Unsupported(name) => name,
        }
    }
}

impl BindingSubject {
    fn from_value(subject: &Value) -> Self {
        let name = || subject.str_at(&["name"]).into();
        match subject.str_at(&["kind"]) {
            "User" => Self::User(name()),
            "Group" => Self::Group(name()),
            "ServiceAccount" => Self::ServiceAccount {
                namespace: subject.str_at(&["namespace"]).into(),
                name: name(),
            },
            _ => Self::Unsupported,
        }
    }

    /// Returns the key of the subject of a binding in `namespace`; `None` if it is nobody.
    fn key(&self, namespace: &str) -> Option<SubjectKey> {
        match self {
            Self::User(name) => Some(SubjectKey::User(name.clone())),
            Self::Group(name) => Some(SubjectKey::Group(name.clone())),
            Self::ServiceAccount {
                namespace: own,
                name,
            } => {
                let namespace = if own.is_empty() { namespace } else { own };
                let user = format!("system:serviceaccount:{namespace}:{name}");
                (!namespace.is_empty()).then(|| SubjectKey::User(user.into()))
            }
            Self::Unsupported => None,
        }
    }
}
