//! Options of the commands about a control plane's own users.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `kubectl plane kubeconfig`.
#[derive(Debug, Args)]
pub struct KubeconfigOptions {
    /// Name of the control plane.
    pub name: String,
    /// Name of the user. Roles of the control plane are bound to it or to a group.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Group of the user whom --user or --admin names. Several are given by repeating this. The group
    /// system:masters is reserved; --admin makes an administrator.
    #[arg(long, value_name = "NAME")]
    pub group: Vec<String>,
    /// The user's uid, to tell apart people who have one name at different times.
    #[arg(long, value_name = "TEXT")]
    pub uid: Option<String>,
    /// How long the kubeconfig is valid, such as 8h or 30d: from 60s to 366d, without this a day.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = crate::plugin::access::duration)]
    pub expires: Option<Duration>,
    /// Let the kubeconfig renew itself for so long, from --expires to 366d: it runs `polyplane
    /// credentials`, which replaces the certificate when it is used in the last third of its time. A
    /// certificate that has expired is not replaced. `kubectl plane revoke` ends that too.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = crate::plugin::access::duration)]
    pub renewable: Option<Duration>,
    /// Put the user into the group polyplane:cluster-admins, which the ClusterRoleBinding of that
    /// name makes an administrator of this control plane until somebody removes it.
    #[arg(long)]
    pub admin: bool,
    /// Copy the credentials of the current user into the kubeconfig instead. Whoever gets the file
    /// can do in every control plane what this user can.
    #[arg(long, conflicts_with_all = ["user", "group", "uid", "expires", "renewable", "admin"])]
    pub with_my_credentials: bool,
}

/// Options of `credentials`.
#[derive(Debug, Args)]
pub struct CredentialsOptions {
    /// Folder for renewed certificates and their keys. Without it `polyplane/credentials` in
    /// $XDG_CACHE_HOME or ~/.cache.
    #[arg(long, value_name = "FOLDER", env = "POLYPLANE_CREDENTIALS_DIR")]
    pub dir: Option<PathBuf>,
}

/// Options of `kubectl plane revoke`.
#[derive(Debug, Args)]
pub struct RevokeOptions {
    /// Name of the control plane.
    pub name: String,
    /// Name of the user, or of a service account as system:serviceaccount:NAMESPACE:NAME. What is
    /// issued afterwards, such as another kubeconfig or token, is valid.
    pub user: String,
}

/// Options of `kubectl plane rotate`.
#[derive(Debug, Args)]
pub struct RotateOptions {
    /// Name of the control plane.
    pub name: String,
    /// How long credentials of the earlier keys are accepted. With 0s none is, as with --now. Until that
    /// time is over a further rotation needs --now, because it would end them.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "24h",
        allow_hyphen_values = true,
        value_parser = crate::plugin::access::duration
    )]
    pub overlap: Duration,
    /// Refuse every credential of the earlier keys at once. The list of revoked users is emptied, but
    /// for users if the control plane has ever had spec.authentication.
    #[arg(long, conflicts_with = "overlap")]
    pub now: bool,
    /// Replace the key by which the control plane's objects are encrypted in the store instead, and wait
    /// until no object is stored under an earlier one. Credentials stay valid. The objects get new
    /// versions.
    #[arg(long, conflicts_with_all = ["overlap", "now"])]
    pub data_key: bool,
    /// Seconds to wait for that.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        requires = "data_key"
    )]
    pub timeout: u64,
}
