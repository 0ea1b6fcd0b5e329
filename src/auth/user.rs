//! The identity that a request acts under, and the reserved users and groups.

use polyplane_apimachinery::Str;

/// The user a request without credentials is, where such requests are let in at all.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of everybody who proved who they are.
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody who did not prove who they are.
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything, whatever the roles say.
pub const SYSTEM_MASTERS: &str = "system:masters";
/// Those who may read this server's metrics, and nothing else.
pub const METRICS_READERS: &str = "polyplane:metrics-readers";

/// Who a request acts as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The user name; what roles and messages name.
    pub name: Str,
    /// A value that tells two holders of one name apart over time; often empty.
    pub uid: Str,
    /// The groups, in the order in which the authenticator gave them.
    pub groups: Vec<Str>,
    /// Further values about the user, by key, keys in byte order. Only impersonation and access
    /// reviews set them.
    pub extra: Vec<(Str, Vec<Str>)>,
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

    /// Returns the user of a request that gave no credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[ALL_UNAUTHENTICATED])
    }

    /// Returns true if the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Returns the user with the group of the authenticated added, as every successful
    /// authentication ends.
    pub fn authenticated(mut self) -> Self {
        let settled = self.in_group(ALL_AUTHENTICATED) || self.in_group(ALL_UNAUTHENTICATED);
        if self.name != ANONYMOUS && !settled {
            self.groups.push(Str::from(ALL_AUTHENTICATED));
        }
        self
    }
}
