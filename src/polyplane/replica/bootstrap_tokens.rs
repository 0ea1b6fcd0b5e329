//! Bootstrap tokens of a plain kube-apiserver: Secrets of `kube-system` by which a new node proves itself, as
//! `kubeadm join` does. As upstream a token that is wrong proves nobody, and the next authenticator is
//! asked.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::{Authentication, Authenticator, Credentials, UserInfo, Verdict, digest_of};
use polyplane_ownership::{Planes, ROOT};
use polyplane_plane::Key;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Characters of a token's id and of its secret.
const LENGTHS: (usize, usize) = (6, 16);
/// The group of all whom such tokens prove.
const GROUP: &str = "system:bootstrappers";
/// The longest further group, behind the name of [`GROUP`] and a colon.
const GROUP_BYTES_MAX: usize = 256;
/// How long a request waits until this server may read the Secret.
const WAIT: Duration = Duration::from_secs(5);

/// The authenticator. It proves nobody until it knows the planes.
#[derive(Default)]
pub struct BootstrapTokens {
    planes: OnceLock<Weak<Planes>>,
}

impl BootstrapTokens {
    /// Makes it read the Secrets of the root plane among these.
    pub fn attach(&self, planes: &Arc<Planes>) {
        // Nobody attaches it twice.
        let _ = self.planes.set(Arc::downgrade(planes));
    }

    async fn user(&self, id: &str, secret: &str, now: SystemTime) -> Option<UserInfo> {
        let plane = self.planes.get()?.upgrade()?.awake(ROOT)?;
        plane.answerable(Instant::now() + WAIT).await.ok()?;
        let name = format!("bootstrap-token-{id}");
        let key = Key::new("", "secrets", Some("kube-system"), &name);
        let body = plane.snapshot().get(&key)?.body();
        let stored = json::parse(&body, &Limits::default()).ok()?.value;
        match judge(&stored, id, secret, now) {
            Ok(user) => Some(user),
            Err(why) => {
                tracing::debug!("Secret {name} proves nobody: {why}");
                None
            }
        }
    }
}

impl Authenticator for BootstrapTokens {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some((id, secret)) = credentials.bearer.and_then(parts) else {
            return Verdict::now(Authentication::NoOpinion);
        };
        Verdict::later(async move {
            match self.user(id, secret, credentials.now).await {
                Some(user) => Authentication::User(Arc::new(user.authenticated())),
                None => Authentication::NoOpinion,
            }
        })
    }
}

/// Returns the id and the secret in a token.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_part = |part: &str, length| {
        let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        part.len() == length && part.bytes().all(is_known)
    };
    (is_part(id, LENGTHS.0) && is_part(secret, LENGTHS.1)).then_some((id, secret))
}

/// Returns the user whom a token proves, by the Secret with its id.
fn judge(
    stored: &Value,
    id: &str,
    secret: &str,
    now: SystemTime,
) -> Result<UserInfo, &'static str> {
    if !stored.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
        return Err("it is being deleted");
    }
    if stored.str_at(&["type"]) != "bootstrap.kubernetes.io/token" {
        return Err("it is of another type");
    }
    let item = |name: &str| {
        let text = BASE64_STANDARD.decode(stored.str_at(&["data", name]));
        text.ok().and_then(|text| String::from_utf8(text).ok())
    };
    let item = |name: &str| item(name).unwrap_or_default();
    // By their digests, so that the time of the comparison tells nothing about the secret.
    if digest_of(item("token-secret")) != digest_of(secret) {
        return Err("its token-secret is another one");
    }
    if item("token-id") != id {
        return Err("its token-id is another one");
    }
    if has_expired(&item("expiration"), now) {
        return Err("it has expired");
    }
    if item("usage-bootstrap-authentication") != "true" {
        return Err("it is not for authentication");
    }
    let extra = item("auth-extra-groups");
    let mut groups = BTreeSet::from([GROUP]);
    for group in extra.split(',').filter(|_| !extra.is_empty()) {
        if !is_group(group) {
            return Err("its auth-extra-groups are wrong");
        }
        groups.insert(group);
    }
    let groups: Vec<&str> = groups.into_iter().collect();
    Ok(UserInfo::new(format!("system:bootstrap:{id}"), &groups))
}

/// Returns whether a time has passed. One that cannot be read has.
fn has_expired(expiration: &str, now: SystemTime) -> bool {
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    match Timestamp::parse(expiration) {
        _ if expiration.is_empty() => false,
        Ok(then) => then.nanoseconds_since(Timestamp::from_seconds(now)) <= 0,
        Err(_) => true,
    }
}

fn is_group(text: &str) -> bool {
    let Some(name) = text
        .strip_prefix(GROUP)
        .and_then(|text| text.strip_prefix(':'))
    else {
        return false;
    };
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_known = |byte: u8| is_letter(byte) || byte == b':' || byte == b'-';
    name.len() <= GROUP_BYTES_MAX
        && name.bytes().all(is_known)
        && name.bytes().last().is_some_and(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    const ID: &str = "abcdef";
    const SECRET: &str = "0123456789abcdef";

    fn stored(changes: &[(&str, &str)]) -> Value {
        let mut data = Value::object();
        let items = [
            ("token-id", ID),
            ("token-secret", SECRET),
            ("usage-bootstrap-authentication", "true"),
        ];
        for (name, text) in items.iter().chain(changes) {
            data.set(&[name], BASE64_STANDARD.encode(text));
        }
        let mut made = json!({"metadata": {"name": "bootstrap-token-abcdef"},
            "type": "bootstrap.kubernetes.io/token"});
        made.set(&["data"], data);
        made
    }

    #[test]
    fn a_token_has_an_id_and_a_secret() {
        assert_eq!(parts("abcdef.0123456789abcdef"), Some((ID, SECRET)));
        for wrong in [
            "abcdef",
            "abcde.0123456789abcdef",
            "Abcdef.0123456789abcdef",
            "abcdef.0123456789abcdef.x",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_whole_secret_proves_a_bootstrapper_and_one_that_lacks_something_nobody() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let user = |changes: &[(&str, &str)]| judge(&stored(changes), ID, SECRET, now);
        let plain = user(&[]).expect("whole");
        assert_eq!(plain, UserInfo::new("system:bootstrap:abcdef", &[GROUP]));
        let groups = "system:bootstrappers:b,system:bootstrappers:a-1";
        let more = user(&[
            ("auth-extra-groups", groups),
            ("expiration", "2099-01-01T00:00:00Z"),
        ]);
        let expected = [GROUP, "system:bootstrappers:a-1", "system:bootstrappers:b"];
        assert_eq!(more.expect("whole").groups, expected);
        for wrong in [
            ("token-secret", "0123456789abcdeg"),
            ("token-id", "abcdeg"),
            ("usage-bootstrap-authentication", "false"),
            ("expiration", "2020-01-01T00:00:00Z"),
            ("expiration", "soon"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
        ] {
            assert!(user(&[wrong]).is_err(), "{wrong:?}");
        }
        let mut other = stored(&[]);
        other.set(&["type"], "Opaque");
        assert!(judge(&other, ID, SECRET, now).is_err());
        let mut leaving = stored(&[]);
        leaving.set(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        assert!(judge(&leaving, ID, SECRET, now).is_err());
    }
}
