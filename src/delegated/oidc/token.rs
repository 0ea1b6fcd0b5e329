//! A token as it comes: its parts, before anything is believed.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_auth::jws::TOKEN_BYTES_MAX;

use super::keys::is_accepted;

/// Depth of brackets in a header or in claims.
const DEPTH_MAX: usize = 32;
/// How far an issuer's clock may be ahead of ours, as upstream.
const LEEWAY_SECONDS: i64 = 60;

/// The reason why a token of an issuer proves nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefused {
    /// The token's form or header is wrong.
    #[error("the token is no signed JSON Web Token that is accepted")]
    Form,
    /// No key of the issuer has the token's key id.
    #[error("no key of the issuer has the token's key id")]
    UnknownKey,
    /// The signature is wrong.
    #[error("the signature is wrong")]
    Signature,
    /// The keys of the issuer are not known yet, or cannot be got.
    #[error("the keys of issuer {0:?} are not known")]
    NoKeys(Str),
    /// The token has ended, or has no end.
    #[error("the token is expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token is for others.
    #[error("the token has none of the expected audiences")]
    Audience,
    /// Claims make no user, or break a rule.
    #[error("{0}")]
    Claims(String),
}

/// The parts of a token whose form is right.
pub(super) struct UntrustedToken<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: Str,
    /// The id of the key; empty for none.
    pub key_id: Str,
    /// What the token says, which nobody has proven yet.
    pub claims: Map,
}

impl<'a> UntrustedToken<'a> {
    /// Returns about how many bytes the token has.
    pub(super) fn bytes(&self) -> usize {
        self.signed.len() + self.signature.len()
    }

    /// Returns the second since 1970 in which the token says that it was issued.
    pub(super) fn issued_at(&self) -> Option<i64> {
        self.claims.get("iat")?.as_int()
    }

    /// Reads the parts of a token; `None` if it is no signed token.
    pub(super) fn parse(token: &'a str) -> Option<Self> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        let header = object(header)?;
        // A critical extension changes what the token means.
        if header.contains_key("crit") || header.contains_key("b64") {
            return None;
        }
        let text = |name| header.get(name).map_or(Some(""), Value::as_str);
        Some(Self {
            signed,
            signature: BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?,
            algorithm: text("alg")?.into(),
            key_id: text("kid")?.into(),
            claims: object(payload)?,
        })
    }

    /// Returns the issuer that the token names.
    pub(super) fn issuer(&self) -> &str {
        self.claims.get("iss").and_then(Value::as_str).unwrap_or("")
    }

    /// Checks the signature, which must be by one of `algorithms`, if they are given.
    pub(super) fn verify(
        &self,
        keys: &super::keys::KeySet,
        algorithms: Option<&[String]>,
    ) -> Result<(), TokenRefused> {
        let is_allowed = |known: &[String]| known.iter().any(|one| *one == *self.algorithm);
        if !is_accepted(&self.algorithm) || !algorithms.is_none_or(is_allowed) {
            return Err(TokenRefused::Form);
        }
        if !keys.knows(&self.key_id) {
            return Err(TokenRefused::UnknownKey);
        }
        let signed = self.signed.as_bytes();
        match keys.verifies(&self.key_id, &self.algorithm, signed, &self.signature) {
            true => Ok(()),
            false => Err(TokenRefused::Signature),
        }
    }
}

fn object(part: &str) -> Option<Map> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
    std::str::from_utf8(&bytes).ok()?;
    let limits = Limits {
        depth_max: DEPTH_MAX,
        bytes_max: TOKEN_BYTES_MAX,
        ..Limits::default()
    };
    let parsed = json::parse(&bytes, &limits).ok()?;
    // Two readers could take different values of a key that is repeated.
    match parsed.value {
        Value::Object(members) if parsed.duplicates.is_empty() => Some(members),
        _ => None,
    }
}

/// Between which seconds since 1970 a token is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    begins: Option<i64>,
    ends: i64,
}

impl Times {
    pub(super) fn of(claims: &Map) -> Result<Self, TokenRefused> {
        let seconds = |name: &str| match claims.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Int(seconds)) => Ok(Some(*seconds)),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "saturates, as the time would"
            )]
            Some(Value::Float(seconds)) => Ok(Some(*seconds as i64)),
            Some(_) => Err(TokenRefused::Claims(format!(
                "the claim {name} is no number"
            ))),
        };
        Ok(Self {
            begins: seconds("nbf")?,
            ends: seconds("exp")?.ok_or(TokenRefused::Expired)?,
        })
    }

    pub(super) fn check(&self, now: i64) -> Result<(), TokenRefused> {
        // The second in which it ends has begun.
        if self.ends <= now {
            return Err(TokenRefused::Expired);
        }
        match self.begins {
            Some(begins) if now.saturating_add(LEEWAY_SECONDS) < begins => {
                Err(TokenRefused::NotYetValid)
            }
            Some(_) | None => Ok(()),
        }
    }
}
