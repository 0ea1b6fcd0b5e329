//! `spec.authentication` of a ControlPlane: the issuers of OpenID Connect whose tokens prove users of the
//! plane, in the form of upstream's `AuthenticationConfiguration`, client CAs whose certificates do, and
//! whether bootstrap tokens do.

use crate::polyplane::not_read_by_all;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json;
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::{NamedCa, UserInfo};
use polyplane_delegated::oidc::AuthenticationConfig;
use std::time::{Duration, SystemTime};

use super::access::{is_given, reserved_group, reserved_user};

/// Issuers of one plane. A token is compared with all of them.
const ISSUERS_MAX: usize = 4;
/// The name of the field with the client CAs.
const CLIENT_CAS: &str = "clientCAs";
/// Client CAs of one plane. A certificate that the plane's own CA has not signed is compared with all of
/// them.
const CLIENT_CAS_MAX: usize = 4;
/// The name of the field that lets bootstrap tokens prove users.
const BOOTSTRAP_TOKENS: &str = "bootstrapTokens";
/// Bytes of one client CA. A certificate with an RSA key of 8192 bits has about 3 000.
const CLIENT_CA_BYTES_MAX: usize = 8 << 10;
/// Bytes of the whole field as JSON. Each replica holds those of all planes in memory.
const BYTES_MAX: usize = 32 << 10;

/// Returns the field in what the directory keeps of a ControlPlane, as JSON; `None` if the plane names no
/// issuers.
#[must_use]
pub fn raw(kept: &[u8]) -> Option<&[u8]> {
    json::scan::find(kept, &["authentication"]).map(|range| &kept[range])
}

/// Reads the field. What cannot be read names no issuer; the server has validated it when it was
/// written.
#[must_use]
pub fn read(raw: &[u8]) -> Option<AuthenticationConfig> {
    let mut parsed = json::parse(raw, &json::Limits::default()).ok()?;
    remove_others(&mut parsed.value);
    let config = AuthenticationConfig::of_plane(&parsed.value, &Path::NIL, &[]).ok()?;
    (!config.jwt.is_empty()).then_some(config)
}

/// Removes what upstream's configuration does not have.
fn remove_others(authentication: &mut Value) {
    authentication.remove(&[CLIENT_CAS]);
    authentication.remove(&[BOOTSTRAP_TOKENS]);
}

/// Returns whether bootstrap tokens prove users of a plane, by what the directory keeps of it.
#[must_use]
pub fn takes_bootstrap_tokens(kept: &[u8]) -> bool {
    json::scan::Scanned(kept).bool_at(&["authentication", BOOTSTRAP_TOKENS])
}

/// Returns the client CAs that the field names. One that cannot be read proves nobody; the server has
/// validated them when they were written.
#[must_use]
pub fn client_cas(raw: &[u8]) -> Vec<NamedCa> {
    let parsed = json::parse(raw, &json::Limits::default());
    let parsed = parsed.map_or_else(|_| Value::object(), |parsed| parsed.value);
    let texts = parsed.items_at(&[CLIENT_CAS]).iter();
    texts
        .filter_map(|text| NamedCa::read(text.as_str()?).ok())
        .collect()
}

/// Returns why a user of a client CA that the plane names cannot be a user of the plane. Other than an
/// issuer's, such a user may be a master: whoever may name a CA may give any credential of the plane.
#[must_use]
pub fn reserved_to_cas(user: &UserInfo) -> Option<String> {
    let name =
        reserved_user(&user.name).map(|prefix| format!("a name that begins with {prefix:?}"));
    let group = || user.groups.iter().find(|group| is_given(group));
    name.or_else(|| group().map(|group| format!("group {group:?}")))
}

/// Returns why a user of an issuer cannot be a user of the plane: the server gives some names and groups
/// itself, so their users would be taken for others.
#[must_use]
pub fn reserved(user: &UserInfo) -> Option<String> {
    let name =
        reserved_user(&user.name).map(|prefix| format!("a name that begins with {prefix:?}"));
    let group = || user.groups.iter().find(|group| reserved_group(group));
    let why = name.or_else(|| group().map(|group| format!("group {group:?}")))?;
    Some(format!("the server alone gives {why}"))
}

/// Returns what is wrong with `spec.authentication`. Before all programs of the ring read it, it may not
/// be set: an older one would ignore it, and drop it with its next write. `own_issuer` is the issuer of
/// the plane's service account tokens.
pub(crate) fn errors(object: &Value, own_issuer: &str, is_read_by_all: bool) -> Complaints {
    let Some(authentication) = object.at(&["spec", "authentication"]) else {
        return Complaints::default();
    };
    let path = Path::new("spec");
    let path = path.child("authentication");
    if !is_read_by_all {
        return Complaints::from([not_read_by_all(&path)]);
    }
    if json::to_vec(authentication).len() > BYTES_MAX {
        return Complaints::from([FieldError::too_long(&path, BYTES_MAX)]);
    }
    let issuers = authentication.items_at(&["jwt"]).len();
    if issuers > ISSUERS_MAX {
        return Complaints::from([FieldError::too_many(
            &path.child("jwt"),
            issuers,
            ISSUERS_MAX,
        )]);
    }
    let mut issuers_alone = authentication.clone();
    remove_others(&mut issuers_alone);
    AuthenticationConfig::of_plane(&issuers_alone, &path, &[own_issuer])
        .err()
        .unwrap_or_default()
}

/// Returns what is wrong with `spec.authentication.clientCAs`. `server_ca` has the certificates that sign
/// for users of the root plane, PEM.
pub(crate) fn client_ca_errors(
    object: &Value,
    server_ca: &str,
    is_read_by_all: bool,
) -> Complaints {
    let named = object.items_at(&["spec", "authentication", CLIENT_CAS]);
    if named.is_empty() {
        return Complaints::default();
    }
    let path = Path::new("spec");
    let path = path.child("authentication");
    let path = path.child(CLIENT_CAS);
    if !is_read_by_all {
        return Complaints::from([not_read_by_all(&path)]);
    }
    if named.len() > CLIENT_CAS_MAX {
        return Complaints::from([FieldError::too_many(&path, named.len(), CLIENT_CAS_MAX)]);
    }
    let mut errors = Complaints::default();
    let mut known: Vec<NamedCa> = NamedCa::read(server_ca).into_iter().collect();
    let of_server = known.len();
    for (at, text) in named.iter().enumerate() {
        let path = path.index(at);
        let text = text.as_str().unwrap_or_default();
        if text.len() > CLIENT_CA_BYTES_MAX {
            errors.push(FieldError::too_long(&path, CLIENT_CA_BYTES_MAX));
            continue;
        }
        let mut wrong = |why: &str| errors.push(FieldError::invalid(&path, "<omitted>", why));
        match NamedCa::read(text) {
            Err(error) => wrong(&error.to_string()),
            Ok(named) => match known.iter().position(|known| *known == named) {
                Some(place) if place < of_server => {
                    wrong("is the CA of this server, whose users enter by grants in spec.access");
                }
                Some(_) => errors.push(FieldError::duplicate(&path, "<omitted>")),
                None => known.push(named),
            },
        }
    }
    errors
}

/// Complains about `spec.authentication.bootstrapTokens` before all programs of the ring read it: an older one
/// would drop it with its next write, and refuse the tokens.
pub(crate) fn bootstrap_token_errors(object: &Value, is_read_by_all: bool) -> Option<FieldError> {
    let path = Path::new("spec");
    let path = path.child("authentication");
    let path = path.child(BOOTSTRAP_TOKENS);
    let takes = object.bool_at(&["spec", "authentication", BOOTSTRAP_TOKENS]);
    (takes && !is_read_by_all).then(|| not_read_by_all(&path))
}

/// Returns warnings about client CAs that prove nobody now.
pub(crate) fn client_ca_warnings(object: &Value, now: i64) -> Vec<String> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(now).unwrap_or_default());
    let named = object.items_at(&["spec", "authentication", CLIENT_CAS]);
    let named = named.iter().enumerate().filter_map(|(at, text)| {
        let named = NamedCa::read(text.as_str()?).ok()?;
        let (begins, ends) = named.dates();
        let when = match (now < begins, now < ends) {
            (false, true) => return None,
            (true, _) => format!(
                "is valid from {} only",
                Timestamp::from(begins).to_rfc3339()
            ),
            (false, false) => format!(
                "has expired: it was valid until {}",
                Timestamp::from(ends).to_rfc3339()
            ),
        };
        Some(format!(
            "spec.authentication.{CLIENT_CAS}[{at}] {when}, and proves nobody now"
        ))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polyplane::access;

    fn plane(jwt: Value) -> Value {
        let mut plane = Value::object();
        plane.set(&["spec", "authentication", "jwt"], jwt);
        plane
    }

    fn issuer(url: &str) -> Value {
        json!({
            "issuer": {"url": url, "audiences": ["planes"]},
            "claimMappings": {"username": {"claim": "sub", "prefix": ""}}
        })
    }

    #[test]
    fn the_directory_keeps_the_issuers() {
        let object = plane(Value::from(vec![issuer("https://i.example")]));
        assert_eq!(errors(&object, "https://own", true), Complaints::default());
        let kept = access::raw(&json::to_vec(&object));
        let config = raw(&kept).and_then(read).expect("one issuer");
        assert_eq!(config.jwt[0].issuer.url, "https://i.example");
        assert!(raw(&access::raw(b"{\"spec\":{\"limits\":{}}}")).is_none());
        assert!(read(b"{\"jwt\":[]}").is_none());
        assert!(read(b"{\"jwt\":").is_none());
    }

    #[test]
    fn the_directory_keeps_whether_bootstrap_tokens_are_taken_beside_the_issuers() {
        let takes = |object: &Value| takes_bootstrap_tokens(&access::raw(&json::to_vec(object)));
        let mut object = plane(Value::from(vec![issuer("https://i.example")]));
        assert!(!takes(&object));
        object.set(&["spec", "authentication", BOOTSTRAP_TOKENS], true);
        assert!(takes(&object));
        assert_eq!(errors(&object, "https://own", true), Complaints::default());
        let kept = access::raw(&json::to_vec(&object));
        assert!(raw(&kept).and_then(read).is_some());
        assert_eq!(bootstrap_token_errors(&object, true), None);
        let early = bootstrap_token_errors(&object, false).map(|error| error.to_string());
        assert!(early.is_some_and(|error| error.contains("--raise-floor")));
        object.set(&["spec", "authentication", BOOTSTRAP_TOKENS], false);
        assert!(!takes(&object) && bootstrap_token_errors(&object, false).is_none());
    }

    #[test]
    fn wrong_too_many_and_too_early_issuers_are_refused() {
        let said = |jwt: Vec<Value>, is_read_by_all| {
            let errors = errors(&plane(Value::from(jwt)), "https://own", is_read_by_all);
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        };
        let one = |url: &str| said(vec![issuer(url)], true);
        for (said, words) in [
            (
                one("http://i.example"),
                "spec.authentication.jwt[0].issuer.url: Invalid value",
            ),
            (
                one("https://own"),
                "must not overlap with disallowed issuers",
            ),
            (said(vec![issuer("https://i"); 5], true), "Too many"),
            (said(vec![issuer("https://i"); 2], true), "Duplicate value"),
            (said(vec![issuer("https://i")], false), "--raise-floor"),
            (
                one(&format!("https://{}", "i".repeat(BYTES_MAX))),
                "Too long",
            ),
        ] {
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn an_issuer_names_nobody_whom_the_server_names() {
        for (user, groups, is_reserved) in [
            ("jane", &["dev"][..], false),
            ("root:jane", &[], true),
            ("system:serviceaccount:a:b", &[], true),
            ("jane", &["system:masters"], true),
            ("jane", &["system:serviceaccounts:a"], true),
        ] {
            let found = reserved(&UserInfo::new(user, groups));
            assert_eq!(found.is_some(), is_reserved, "{user} {groups:?}: {found:?}");
        }
    }
}
