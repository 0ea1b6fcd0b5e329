//! `Impersonate-*` headers, by which a caller acts as another user. Each header needs a right.

use std::sync::Arc;

use http::HeaderMap;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, Subject, UserInfo};
use polyplane_registry::AccessCheck;

use crate::answer::respond::Refusal;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Returns whether the headers of a request ask for another user than the proven one.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| name.as_str().starts_with("impersonate-"))
}

/// Returns the user that a request acts as: the proven one, or the one that its headers name.
pub(crate) async fn effective_user(
    proven: &Arc<UserInfo>,
    headers: &HeaderMap,
    access_check: &mut AccessCheck<'_>,
) -> Result<Arc<UserInfo>, Refusal> {
    if !is_wanted(headers) {
        return Ok(Arc::clone(proven));
    }
    let impersonation = Impersonation::of(headers)?;
    if impersonation.user.is_empty() {
        // The headers are empty or unknown, so nobody is impersonated.
        return Ok(Arc::clone(proven));
    }
    for subject in impersonation.rights() {
        let passed = access_check.pass(proven, "impersonate", subject).await;
        passed.map_err(Refusal::of_access)?;
    }
    Ok(Arc::new(impersonation.user()))
}

#[derive(Debug, Default)]
struct Impersonation {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: Vec<(String, Vec<String>)>,
}

impl Impersonation {
    fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let texts = |name: &str| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                .collect()
        };
        let first = |name: &str| texts(name).into_iter().next().unwrap_or_default();
        let mut impersonation = Self {
            user: first(USER),
            uid: first(UID),
            groups: texts(GROUP),
            extra: Vec::new(),
        };
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                let key = unescape(key);
                impersonation.extra.push((key, texts(name.as_str())));
            }
        }
        impersonation.extra.sort();
        let more = !impersonation.groups.is_empty()
            || !impersonation.extra.is_empty()
            || !impersonation.uid.is_empty();
        if impersonation.user.is_empty() && more {
            let message = "requested impersonation without impersonating a user";
            return Err(ApiError::internal(message).into());
        }
        Ok(impersonation)
    }

    /// Returns everything that the caller must be allowed to impersonate.
    fn rights(&self) -> Vec<Subject<'_>> {
        let authentication = "authentication.k8s.io";
        let right = |group, version, resource, subresource, namespace, name| Subject::Resource {
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
            field_selector: "",
        };
        let mut rights = Vec::new();
        rights.push(match service_account(&self.user) {
            Some((namespace, name)) => right("", "v1", "serviceaccounts", "", namespace, name),
            None => right("", "v1", "users", "", "", &self.user),
        });
        for group in &self.groups {
            rights.push(right("", "v1", "groups", "", "", group));
        }
        for (key, values) in &self.extra {
            for value in values {
                rights.push(right(authentication, "v1", "userextras", key, "", value));
            }
        }
        if !self.uid.is_empty() {
            rights.push(right(authentication, "v1", "uids", "", "", &self.uid));
        }
        rights
    }

    fn user(self) -> UserInfo {
        let mut groups: Vec<Str> = self.groups.iter().map(Str::from).collect();
        if groups.is_empty()
            && let Some((namespace, _)) = service_account(&self.user)
        {
            groups.push("system:serviceaccounts".into());
            groups.push(format!("system:serviceaccounts:{namespace}").into());
        }
        let known = |groups: &[Str], name: &str| groups.iter().any(|group| group == name);
        let implied = if self.user == ANONYMOUS {
            ALL_UNAUTHENTICATED
        } else {
            ALL_AUTHENTICATED
        };
        if !known(&groups, ALL_AUTHENTICATED) && !known(&groups, ALL_UNAUTHENTICATED) {
            groups.push(implied.into());
        }
        UserInfo {
            name: self.user.into(),
            uid: self.uid.into(),
            groups,
            extra: self
                .extra
                .into_iter()
                .map(|(key, values)| (key.into(), values.into_iter().map(Str::from).collect()))
                .collect(),
            is_foreign: false,
        }
    }
}

/// Returns namespace and name from a service account's user name.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let plain = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    plain.then_some((namespace, name))
}

fn unescape(key: &str) -> String {
    crate::request::route::decode_key(key).unwrap_or_else(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::{Authorizer, DenyAll, Masters, SYSTEM_MASTERS};
    use polyplane_registry::Authority;

    /// Returns the user that a request acts as if `authorizer` decides.
    async fn effective(
        proven: &Arc<UserInfo>,
        headers: &HeaderMap,
        authorizer: impl Authorizer + 'static,
    ) -> Result<Arc<UserInfo>, Refusal> {
        let authority = Authority::fixed(authorizer);
        let mut access_check = authority.access_check_without_plane();
        effective_user(proven, headers, &mut access_check).await
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        headers
    }

    fn master() -> Arc<UserInfo> {
        Arc::new(UserInfo::new("admin", &[SYSTEM_MASTERS]))
    }

    #[tokio::test]
    async fn without_headers_a_user_stays_itself() {
        let user = effective(&master(), &headers(&[("accept", "*/*")]), DenyAll).await;
        assert_eq!(user.expect("itself").name, "admin");
    }

    #[tokio::test]
    async fn a_master_may_be_anybody() {
        let asked = headers(&[
            (USER, "jane"),
            (GROUP, "dev"),
            (GROUP, "ops"),
            (UID, "7"),
            ("impersonate-extra-acme.com%2fproject", "x"),
        ]);
        let user = effective(&master(), &asked, Masters)
            .await
            .expect("allowed");
        assert_eq!((&*user.name, &*user.uid), ("jane", "7"));
        assert_eq!(user.groups, ["dev", "ops", ALL_AUTHENTICATED]);
        assert_eq!(
            user.extra,
            [(Str::from("acme.com/project"), vec![Str::from("x")])]
        );
        let account = headers(&[(USER, "system:serviceaccount:ns:robot")]);
        let user = effective(&master(), &account, Masters)
            .await
            .expect("allowed");
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:ns",
            ALL_AUTHENTICATED,
        ];
        assert_eq!(user.groups, groups);
    }

    #[tokio::test]
    async fn nobody_else_may_be_somebody_else() {
        let caller = Arc::new(UserInfo::new("eve", &[]));
        let refused = effective(&caller, &headers(&[(USER, "jane")]), Masters).await;
        let Err(Refusal::Access(error)) = refused else {
            panic!("must be refused")
        };
        assert_eq!(
            error.message,
            r#"users "jane" is forbidden: User "eve" cannot impersonate resource "users" in API group "" at the cluster scope"#
        );
        let nobody = effective(&master(), &headers(&[(GROUP, "dev")]), Masters).await;
        assert!(nobody.is_err());
    }
}
