//! Bootstrap tokens where their Secrets are read. As upstream a token that is wrong proves nobody, and the
//! next authenticator is asked.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::{BootstrapToken, UserInfo};
use polyplane_plane::Snapshot;

use super::Found;

/// The type of a Secret that is a bootstrap token.
const BOOTSTRAP_SECRET: &str = "bootstrap.kubernetes.io/token";

/// A user whom a bootstrap token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrapper {
    /// The user.
    pub user: Arc<UserInfo>,
    /// The second since 1970 at which the Secret was made.
    pub since: i64,
}

/// Returns the user whom a bootstrap token proves in a state, as of `now`.
///
/// # Errors
/// Returns the reason why it proves nobody.
pub fn bootstrapper(
    cut: &Snapshot,
    token: &BootstrapToken,
    now: SystemTime,
) -> Result<Bootstrapper, &'static str> {
    let secret = Found::get(cut, "secrets", Some("kube-system"), &token.secret_name());
    let secret = secret.ok_or("it has no Secret")?;
    if secret.is_deleting {
        return Err("its Secret is being deleted");
    }
    let body = Scanned(&secret.body);
    if body.str_at(&["type"]) != BOOTSTRAP_SECRET {
        return Err("its Secret is of another type");
    }
    let item = |name: &str| {
        let text = BASE64_STANDARD.decode(&*body.str_at(&["data", name]));
        let text = text.ok().and_then(|text| String::from_utf8(text).ok());
        text.unwrap_or_default()
    };
    let user = token.judge(item, now)?;
    let created = Timestamp::parse(&body.str_at(&["metadata", "creationTimestamp"]));
    Ok(Bootstrapper {
        user: Arc::new(user),
        since: created.map_or(0, |created| created.seconds),
    })
}
