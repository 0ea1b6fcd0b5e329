//! Users whom a front proxy names in headers. The proxy proves itself by a client certificate of its
//! own CA; whoever holds none is not listened to.
//!
//! This module decides which headers count. It must not know where they come from: callers look them
//! up.

use std::sync::Arc;

use polyplane_apimachinery::Str;
use rustls_pki_types::CertificateDer;

use crate::user::UserInfo;
use crate::x509::{ClientCa, X509Error};

/// Whom to take for a front proxy, and which of its headers count, all as kube-apiserver's flags
/// `--requestheader-…` name them.
pub struct FrontProxy {
    ca: ClientCa,
    allowed_names: Vec<String>,
    /// The headers that count.
    pub headers: FrontProxyHeaders,
}

/// The names of headers, in lower case. Of several that name one thing, the first that is there
/// counts, but groups are those of all.
#[derive(Clone, Debug, Default)]
pub struct FrontProxyHeaders {
    /// Those with the user's name.
    pub users: Vec<String>,
    /// Those with the user's uid.
    pub uids: Vec<String>,
    /// Those with a group each.
    pub groups: Vec<String>,
    /// The prefixes of those with further values; the rest of the name is the key.
    pub extra_prefixes: Vec<String>,
}

impl FrontProxy {
    /// Creates the settings for proxies with a certificate of one of `roots`. If `allowed_names` is
    /// not empty, a proxy's common name must be one of them.
    ///
    /// # Errors
    /// Returns an error if a root is not a certificate.
    pub fn new(
        roots: &[CertificateDer<'_>],
        allowed_names: Vec<String>,
        headers: FrontProxyHeaders,
    ) -> Result<Self, X509Error> {
        Ok(Self {
            ca: ClientCa::new(roots)?,
            allowed_names,
            headers,
        })
    }

    /// Returns the judge of proxies' certificates. The common name is the name of the user that it
    /// finds.
    pub fn ca(&self) -> &ClientCa {
        &self.ca
    }

    /// Returns whether a proxy of this common name may name users.
    pub fn allows(&self, common_name: &str) -> bool {
        let mut names = self.allowed_names.iter();
        self.allowed_names.is_empty() || names.any(|name| name == common_name)
    }
}

impl FrontProxyHeaders {
    /// Returns the user whom headers name; `None` if they name none. `headers` are names in lower case
    /// and values, in their order.
    pub fn user(&self, headers: &[(&str, &str)]) -> Option<Arc<UserInfo>> {
        let first = |names: &[String]| {
            let found = names.iter().find_map(|name| {
                let mut values = headers.iter().filter(|(known, _)| known == name);
                values.find(|(_, value)| !value.is_empty())
            });
            found.map(|(_, value)| Str::from(*value))
        };
        let name = first(&self.users)?;
        let groups = self.groups.iter().flat_map(|name| {
            let values = headers.iter().filter(move |(known, _)| known == name);
            values.map(|(_, value)| Str::from(*value))
        });
        let mut extra: Vec<(Str, Vec<Str>)> = Vec::new();
        for prefix in &self.extra_prefixes {
            for &(known, value) in headers {
                let Some(key) = known.strip_prefix(prefix.as_str()) else {
                    continue;
                };
                let key = Str::from(unescaped(key));
                match extra.iter_mut().find(|(known, _)| *known == key) {
                    Some((_, values)) => values.push(value.into()),
                    None => extra.push((key, vec![value.into()])),
                }
            }
        }
        extra.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let user = UserInfo {
            name,
            uid: first(&self.uids).unwrap_or_default(),
            groups: groups.collect(),
            extra,
            is_foreign: false,
        };
        Some(Arc::new(user.authenticated()))
    }
}

/// Decodes the percent escapes of a key; one that is malformed stays as it is.
fn unescaped(key: &str) -> String {
    let decoded = || {
        let (mut out, mut bytes) = (Vec::with_capacity(key.len()), key.bytes());
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        }
        String::from_utf8(out).ok()
    };
    decoded().unwrap_or_else(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_a_user_with_groups_and_further_values() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let headers = FrontProxyHeaders {
            users: names(&["x-remote-user", "x-user"]),
            uids: names(&["x-remote-uid"]),
            groups: names(&["x-remote-group"]),
            extra_prefixes: names(&["x-remote-extra-"]),
        };
        let sent = [
            ("x-remote-user", ""),
            ("x-user", "jane"),
            ("x-remote-uid", "42"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fscope", "one"),
            ("x-remote-extra-example.com%2fscope", "two"),
            ("x-remote-extra-bad%zz", "three"),
        ];
        let user = headers.user(&sent).expect("a user");
        assert_eq!((&*user.name, &*user.uid), ("jane", "42"));
        assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
        let extra = [
            ("bad%zz".into(), vec!["three".into()]),
            ("example.com/scope".into(), vec!["one".into(), "two".into()]),
        ];
        assert_eq!(user.extra, extra);
        assert_eq!(headers.user(&sent[2..]), None);
        assert_eq!(FrontProxyHeaders::default().user(&sent), None);
    }
}
