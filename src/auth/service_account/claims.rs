//! The claims of service account tokens, in upstream's two forms: tokens of TokenRequests, bound to
//! an account and perhaps to an object, and tokens that a Secret holds.

use polyplane_apimachinery::{Map, Str, Value, json};

use crate::jws;
use crate::user::{CREDENTIAL_ID, UserInfo};

/// The issuer of all tokens that Secrets hold. Only the key tells the planes apart.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// The key of the claims about the cluster's objects.
const KUBERNETES: &str = "kubernetes.io";
/// Longest name or uid in a claim, in bytes; upstream's objects have no longer ones.
const NAME_BYTES_MAX: usize = 253;
/// Audiences that a token may name. Each one is compared at every request.
pub const AUDIENCES_MAX: usize = 64;
/// The claims that a token may have.
const BOUND_CLAIMS: [&str; 8] = ["aud", "exp", "iat", "iss", "jti", KUBERNETES, "nbf", "sub"];
/// The objects that a token may name.
const OBJECTS: [&str; 6] = [
    "namespace",
    "node",
    "pod",
    "secret",
    "serviceaccount",
    "warnafter",
];

/// The claims of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    /// Who issued the token.
    pub issuer: Str,
    /// The recipients that may accept the token; empty for those of the plane.
    pub audiences: Vec<Str>,
    /// When the token was issued, in seconds since 1970.
    pub issued_at: Option<i64>,
    /// From when on the token is valid.
    pub not_before: Option<i64>,
    /// Until when the token is valid.
    pub expires: Option<i64>,
    /// The id of the token; empty if it has none.
    pub id: Str,
    /// The namespace of the account.
    pub namespace: Str,
    /// The account.
    pub account: ObjectClaim,
    /// The objects on whose life the token's depends, besides the account.
    pub binding: Binding,
    /// From when on a client should have a newer token, for tokens that live longer than was asked.
    pub warn_after: Option<i64>,
}

/// An object that a token names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectClaim {
    /// The name.
    pub name: Str,
    /// The uid, which an object of the same name that is created later does not have.
    pub uid: Str,
}

/// The objects that a token rests on besides its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// None.
    Account,
    /// A pod. The node is where it ran when the token was issued, and need not exist; its uid may be
    /// empty.
    Pod {
        /// The pod.
        pod: ObjectClaim,
        /// The node.
        node: Option<ObjectClaim>,
    },
    /// A Secret.
    Secret(ObjectClaim),
    /// A node.
    Node(ObjectClaim),
    /// The Secret of this name holds the token, and must hold the same bytes.
    HeldBy(Str),
}

/// The claims of a token are not those of a service account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimsError {
    /// The payload is no JSON object without repeated keys.
    #[error("the claims cannot be read")]
    Unreadable,
    /// A claim is missing, has another type, or is not one that such tokens have.
    #[error("the claim {0:?} of the token is refused")]
    Claim(&'static str),
    /// The subject is not the account.
    #[error("sub claim is invalid")]
    Subject,
}

impl Claims {
    /// Reads the payload of a token whose signature has been verified.
    ///
    /// # Errors
    /// Returns an error if these are not the claims of a service account's token.
    pub fn parse(payload: &[u8]) -> Result<Self, ClaimsError> {
        let tree = jws::object(payload).ok_or(ClaimsError::Unreadable)?;
        let members = tree.as_object().ok_or(ClaimsError::Unreadable)?;
        let issuer = text(members, "iss")?.ok_or(ClaimsError::Claim("iss"))?;
        let claims = match &*issuer {
            LEGACY_ISSUER => legacy(members, issuer)?,
            _ => bound(members, issuer)?,
        };
        let subject = text(members, "sub")?.ok_or(ClaimsError::Claim("sub"))?;
        if subject != claims.user_name() {
            return Err(ClaimsError::Subject);
        }
        Ok(claims)
    }

    /// Returns the payload of a token with these claims.
    pub fn payload(&self) -> Vec<u8> {
        let mut tree = Value::object();
        tree.set(&["iss"], self.issuer.clone());
        tree.set(&["sub"], self.user_name());
        if let Binding::HeldBy(secret) = &self.binding {
            tree.set(&[LEGACY_NAMESPACE], self.namespace.clone());
            tree.set(&[LEGACY_SECRET], secret.clone());
            tree.set(&[LEGACY_NAME], self.account.name.clone());
            tree.set(&[LEGACY_UID], self.account.uid.clone());
            // Upstream's have no such claim. Without it, no revocation of the account's tokens could
            // tell later ones from earlier ones.
            if let Some(time) = self.issued_at {
                tree.set(&["iat"], time);
            }
            return json::to_vec(&tree);
        }
        if !self.audiences.is_empty() {
            let audiences = self.audiences.iter().cloned().map(Value::String).collect();
            tree.set(&["aud"], Value::Array(audiences));
        }
        let times = [
            ("iat", self.issued_at),
            ("nbf", self.not_before),
            ("exp", self.expires),
        ];
        for (name, time) in times {
            if let Some(time) = time {
                tree.set(&[name], time);
            }
        }
        if !self.id.is_empty() {
            tree.set(&["jti"], self.id.clone());
        }
        tree.set(&[KUBERNETES], self.objects());
        json::to_vec(&tree)
    }

    fn objects(&self) -> Value {
        let mut objects = Value::object();
        objects.set(&["namespace"], self.namespace.clone());
        objects.set(&["serviceaccount"], self.account.to_value());
        match &self.binding {
            Binding::Account | Binding::HeldBy(_) => {}
            Binding::Pod { pod, node } => {
                objects.set(&["pod"], pod.to_value());
                if let Some(node) = node {
                    objects.set(&["node"], node.to_value());
                }
            }
            Binding::Secret(secret) => objects.set(&["secret"], secret.to_value()),
            Binding::Node(node) => objects.set(&["node"], node.to_value()),
        }
        if let Some(time) = self.warn_after {
            objects.set(&["warnafter"], time);
        }
        objects
    }

    /// Returns the name of the account as a user.
    pub fn user_name(&self) -> Str {
        let account = &self.account.name;
        format!("system:serviceaccount:{}:{account}", self.namespace).into()
    }

    /// Returns the user whom the token proves.
    pub fn user(&self) -> UserInfo {
        let mut extra = Vec::new();
        // In byte order, which the list of extra values has.
        if !self.id.is_empty() {
            let id = Str::from(format!("JTI={}", self.id));
            extra.push((Str::from(CREDENTIAL_ID), vec![id]));
        }
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                let key = format!("authentication.kubernetes.io/{key}");
                extra.push((Str::from(key), vec![Str::from(value)]));
            }
        };
        let (pod, node) = match &self.binding {
            Binding::Pod { pod, node } => (Some(pod), node.as_ref()),
            Binding::Node(node) => (None, Some(node)),
            Binding::Account | Binding::Secret(_) | Binding::HeldBy(_) => (None, None),
        };
        for (kind, object) in [("node", node), ("pod", pod)] {
            if let Some(object) = object {
                add(&format!("{kind}-name"), &object.name);
                add(&format!("{kind}-uid"), &object.uid);
            }
        }
        let of_namespace = format!("system:serviceaccounts:{}", self.namespace);
        let groups = ["system:serviceaccounts", of_namespace.as_str()];
        UserInfo {
            uid: self.account.uid.clone(),
            extra,
            ..UserInfo::new(self.user_name(), &groups)
        }
        .authenticated()
    }
}

impl ObjectClaim {
    fn to_value(&self) -> Value {
        let mut object = Value::object();
        object.set(&["name"], self.name.clone());
        if !self.uid.is_empty() {
            object.set(&["uid"], self.uid.clone());
        }
        object
    }
}

const LEGACY_NAMESPACE: &str = "kubernetes.io/serviceaccount/namespace";
const LEGACY_SECRET: &str = "kubernetes.io/serviceaccount/secret.name";
const LEGACY_NAME: &str = "kubernetes.io/serviceaccount/service-account.name";
const LEGACY_UID: &str = "kubernetes.io/serviceaccount/service-account.uid";

fn legacy(members: &Map, issuer: Str) -> Result<Claims, ClaimsError> {
    only(
        members,
        &[
            "iss",
            "sub",
            "iat",
            LEGACY_NAMESPACE,
            LEGACY_SECRET,
            LEGACY_NAME,
            LEGACY_UID,
        ],
    )?;
    Ok(Claims {
        issuer,
        audiences: Vec::new(),
        issued_at: time(members, "iat")?,
        not_before: None,
        expires: None,
        id: Str::default(),
        namespace: name(members, LEGACY_NAMESPACE)?,
        account: ObjectClaim {
            name: name(members, LEGACY_NAME)?,
            uid: name(members, LEGACY_UID)?,
        },
        binding: Binding::HeldBy(name(members, LEGACY_SECRET)?),
        warn_after: None,
    })
}

fn bound(members: &Map, issuer: Str) -> Result<Claims, ClaimsError> {
    only(members, &BOUND_CLAIMS)?;
    let objects = members.get(KUBERNETES).and_then(Value::as_object);
    let objects = objects.ok_or(ClaimsError::Claim(KUBERNETES))?;
    only(objects, &OBJECTS)?;
    let expires = time(members, "exp")?.ok_or(ClaimsError::Claim("exp"))?;
    let (pod, secret, node) = (
        object(objects, "pod")?,
        object(objects, "secret")?,
        object(objects, "node")?,
    );
    let has_uid = |object: &ObjectClaim| !object.uid.is_empty();
    let binding = match (pod, secret, node) {
        (None, None, None) => Binding::Account,
        (Some(pod), None, node) if has_uid(&pod) => Binding::Pod { pod, node },
        (None, Some(secret), None) if has_uid(&secret) => Binding::Secret(secret),
        (None, None, Some(node)) if has_uid(&node) => Binding::Node(node),
        _ => return Err(ClaimsError::Claim(KUBERNETES)),
    };
    let account = object(objects, "serviceaccount")?.filter(has_uid);
    Ok(Claims {
        issuer,
        audiences: audiences(members)?,
        issued_at: time(members, "iat")?,
        not_before: time(members, "nbf")?,
        expires: Some(expires),
        id: text(members, "jti")?.unwrap_or_default(),
        namespace: name(objects, "namespace")?,
        account: account.ok_or(ClaimsError::Claim("serviceaccount"))?,
        binding,
        warn_after: time(objects, "warnafter")?,
    })
}

/// Refuses members other than those named: a claim that is not understood might restrict the token.
fn only(members: &Map, allowed: &[&'static str]) -> Result<(), ClaimsError> {
    match members.keys().all(|name| allowed.contains(&name)) {
        true => Ok(()),
        false => Err(ClaimsError::Unreadable),
    }
}

fn text(members: &Map, claim: &'static str) -> Result<Option<Str>, ClaimsError> {
    match members.get(claim) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ClaimsError::Claim(claim)),
    }
}

fn name(members: &Map, claim: &'static str) -> Result<Str, ClaimsError> {
    let name = text(members, claim)?.unwrap_or_default();
    // A slash or colon would make another key, or the name of another user.
    let is_sound = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains([':', '/']);
    is_sound.then_some(name).ok_or(ClaimsError::Claim(claim))
}

fn time(members: &Map, claim: &'static str) -> Result<Option<i64>, ClaimsError> {
    match members.get(claim) {
        None => Ok(None),
        Some(Value::Int(time)) if *time >= 0 => Ok(Some(*time)),
        Some(_) => Err(ClaimsError::Claim(claim)),
    }
}

fn object(members: &Map, claim: &'static str) -> Result<Option<ObjectClaim>, ClaimsError> {
    let Some(found) = members.get(claim) else {
        return Ok(None);
    };
    let found = found.as_object().ok_or(ClaimsError::Claim(claim))?;
    only(found, &["name", "uid"])?;
    let uid = match found.get("uid") {
        None => Str::default(),
        Some(_) => name(found, "uid")?,
    };
    let name = name(found, "name")?;
    Ok(Some(ObjectClaim { name, uid }))
}

fn audiences(members: &Map) -> Result<Vec<Str>, ClaimsError> {
    let refused = ClaimsError::Claim("aud");
    let items = match members.get("aud") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= AUDIENCES_MAX => items,
        Some(_) => return Err(refused),
    };
    let text = |item: &Value| item.as_str().map(Str::from).ok_or(refused);
    items.iter().map(text).collect()
}
