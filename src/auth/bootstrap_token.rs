//! Bootstrap tokens, by which a new node proves itself, as `kubeadm join` does: their form, and what the
//! Secret of one must say. This module does not know where Secrets are read.

use std::collections::BTreeSet;
use std::time::SystemTime;

use polyplane_apimachinery::Str;
use polyplane_apimachinery::time::Timestamp;

use crate::digest::{Digest, digest_of};
use crate::user::UserInfo;

/// Characters of a token's id and of its secret.
const LENGTHS: (usize, usize) = (6, 16);
/// The group of all whom such tokens prove.
const GROUP: &str = "system:bootstrappers";
/// The longest further group, behind the name of [`GROUP`] and a colon.
const GROUP_BYTES_MAX: usize = 256;

/// A bearer token of the form of bootstrap tokens. Nothing else about it has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapToken {
    id: Str,
    secret: Digest,
}

impl BootstrapToken {
    /// Reads a bearer token; returns `None` for one of another form.
    pub fn read(bearer: &str) -> Option<Self> {
        let (id, secret) = bearer.split_once('.')?;
        let is_part = |part: &str, length| {
            let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            part.len() == length && part.bytes().all(is_known)
        };
        let is_token = is_part(id, LENGTHS.0) && is_part(secret, LENGTHS.1);
        is_token.then(|| Self {
            id: id.into(),
            secret: digest_of(secret),
        })
    }

    /// Returns the name of the Secret that decides about the token.
    pub fn secret_name(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }

    /// Returns the user whom the token proves if its Secret is sound, without the groups that the Secret
    /// adds.
    pub fn user(&self) -> UserInfo {
        self.user_in(&[GROUP]).authenticated()
    }

    /// Returns the user whom the token proves, by the decoded items of the Secret with its name. An item
    /// that is not there is empty.
    ///
    /// # Errors
    /// Returns the reason why the token proves nobody.
    pub fn judge(
        &self,
        item: impl Fn(&str) -> String,
        now: SystemTime,
    ) -> Result<UserInfo, &'static str> {
        // By their digests, so that the time of the comparison tells nothing about the secret.
        if digest_of(item("token-secret")) != self.secret {
            return Err("its token-secret is another one");
        }
        if self.id != item("token-id").as_str() {
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
        Ok(self.user_in(&groups).authenticated())
    }

    fn user_in(&self, groups: &[&str]) -> UserInfo {
        UserInfo::new(format!("system:bootstrap:{}", self.id), groups)
    }
}

/// Returns whether a time has passed. One that cannot be read has.
fn has_expired(expiration: &str, now: SystemTime) -> bool {
    match Timestamp::parse(expiration) {
        _ if expiration.is_empty() => false,
        Ok(then) => then.nanoseconds_since(Timestamp::from(now)) <= 0,
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
    use std::time::Duration;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    /// Judges the token by a whole Secret with these changes.
    fn judged(changes: &[(&str, &str)]) -> Result<UserInfo, &'static str> {
        let items = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ];
        let item = |name: &str| {
            let mut items = changes.iter().chain(&items);
            let found = items.find(|(known, _)| *known == name);
            found.map_or_else(String::new, |(_, text)| (*text).to_owned())
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        BootstrapToken::read(TOKEN)
            .expect("a token")
            .judge(item, now)
    }

    #[test]
    fn a_token_has_an_id_and_a_secret() {
        let token = BootstrapToken::read(TOKEN).expect("a token");
        assert_eq!(token.secret_name(), "bootstrap-token-abcdef");
        for wrong in [
            "abcdef",
            "abcde.0123456789abcdef",
            "Abcdef.0123456789abcdef",
            "abcdef.0123456789abcde",
            "abcdef.0123456789abcdef.x",
        ] {
            assert_eq!(BootstrapToken::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_whole_secret_proves_a_bootstrapper_and_one_that_lacks_something_nobody() {
        let plain = judged(&[]).expect("whole");
        assert_eq!(plain.name, "system:bootstrap:abcdef");
        assert_eq!(plain.groups, [GROUP, "system:authenticated"]);
        assert_eq!(
            Some(plain),
            BootstrapToken::read(TOKEN).map(|token| token.user())
        );
        let groups = "system:bootstrappers:b,system:bootstrappers:a-1";
        let more = judged(&[
            ("auth-extra-groups", groups),
            ("expiration", "2099-01-01T00:00:00Z"),
        ]);
        let expected = [
            GROUP,
            "system:bootstrappers:a-1",
            "system:bootstrappers:b",
            "system:authenticated",
        ];
        assert_eq!(more.expect("whole").groups, expected);
        for wrong in [
            ("token-secret", "0123456789abcdeg"),
            ("token-secret", ""),
            ("token-id", "abcdeg"),
            ("usage-bootstrap-authentication", "false"),
            ("expiration", "2020-01-01T00:00:00Z"),
            ("expiration", "soon"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
        ] {
            assert!(judged(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
