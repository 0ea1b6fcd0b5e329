//! The user that a request acts as, and the reserved users and groups.

use polyplane_apimachinery::{Str, names};

/// The user of a request without credentials, where such requests are admitted at all.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of all users who have proven who they are.
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The group of all users who have not proven who they are.
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group whose members may do everything, whatever the roles say.
pub const SYSTEM_MASTERS: &str = "system:masters";
/// The group of all kubelets.
pub const NODES: &str = "system:nodes";
/// The beginning of the name of a kubelet; the rest is the name of its node.
pub const NODE_PREFIX: &str = "system:node:";
/// The group whose members may read this server's metrics, and nothing else.
pub const METRICS_READERS: &str = "polyplane:metrics-readers";

/// The key of the extra value that names the credential by which the user was proven: its identifier, for a
/// certificate its digest. It is no secret.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The user that a request acts as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The user name, which roles and messages contain.
    pub name: Str,
    /// A value that distinguishes two users who had one name at different times; often empty.
    pub uid: Str,
    /// The groups, in the order in which the authenticator returned them.
    pub groups: Vec<Str>,
    /// Further values about the user, by key, keys in byte order: which credential proved them, what a token
    /// says, or what an impersonation or access review names.
    pub extra: Vec<(Str, Vec<Str>)>,
    /// True if another plane's credential proves the user. The roles of the plane that the request
    /// is for mean others by the same names.
    pub is_foreign: bool,
}

/// The extra value by which a service account's token names the node that its pod runs on.
const NODE_OF_POD: &str = "authentication.kubernetes.io/node-name";

/// Returns the namespace and the name of the service account that a user's name means, if an account can
/// have them.
pub fn service_account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let is_valid =
        names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty();
    is_valid.then_some((namespace, name))
}

impl UserInfo {
    /// Creates a user with a name and groups.
    pub fn new(name: impl Into<Str>, groups: &[&str]) -> Self {
        Self {
            name: name.into(),
            groups: groups.iter().map(|group| Str::from(*group)).collect(),
            ..Self::default()
        }
    }

    /// Returns the user of a request without credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[ALL_UNAUTHENTICATED])
    }

    /// Returns the name of the node whose kubelet the user is, which may be empty; `None` for any
    /// other user, and for one whom another plane's credential proves.
    pub fn node(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX)?;
        (!self.is_foreign && self.in_group(NODES)).then_some(name)
    }

    /// Returns the namespace and the name of the service account that the user's name means, if an account
    /// can have them.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        service_account_of(&self.name)
    }

    /// Returns the node of the pod that the user's token is bound to, which one extra value names.
    pub fn node_of_pod(&self) -> Option<&str> {
        let (_, values) = self.extra.iter().find(|(key, _)| key == NODE_OF_POD)?;
        match values.as_slice() {
            [node] => Some(node),
            _ => None,
        }
    }

    /// Returns true if the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Returns the user with the group of authenticated users added. Every successful
    /// authentication ends with this call.
    pub fn authenticated(mut self) -> Self {
        let settled = self.in_group(ALL_AUTHENTICATED) || self.in_group(ALL_UNAUTHENTICATED);
        if self.name != ANONYMOUS && !settled {
            self.groups.push(Str::from(ALL_AUTHENTICATED));
        }
        self
    }
}
