//! The issuer of one plane: the keys that sign and verify its tokens, and its names.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{self, SHA256};
use polyplane_apimachinery::{Str, json};

use super::claims::{Claims, LEGACY_ISSUER};
use super::{TokenFault, VerifiedToken};
use crate::digest::digest_of;
use crate::jws::{CompactJws, SigningError, SigningKey, VerifyingKey};
use crate::plane_access::Revocation;

/// Keys that a plane accepts besides the one that signs. A rotation has one, and a second secret of
/// the ring doubles that; more would make a token without a cached verdict expensive.
const FORMER_KEYS_MAX: usize = 8;

/// Names a set of accepted keys and issuers. Two planes never have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcceptStamp([u8; 32]);

/// The issuer of a plane's tokens.
pub struct TokenIssuer {
    plane: Str,
    /// The names of the issuer; the first stands in new tokens.
    names: Vec<Str>,
    /// The audiences of the plane, which tokens have unless others are requested.
    audiences: Vec<Str>,
    /// What every name of the issuer ends with, whichever URL it begins with; `None` if the names are
    /// given.
    path: Option<String>,
    /// The URL of the key set.
    key_set_url: Str,
    signing: SigningKey,
    former: Vec<FormerKey>,
    revoked: Vec<Revocation>,
    stamp: AcceptStamp,
}

/// The names of an issuer that flags give, and not the plane's id.
pub struct IssuerNames {
    /// The issuers: the first stands in new tokens, all are accepted.
    pub issuers: Vec<Str>,
    /// The audiences of the plane.
    pub audiences: Vec<Str>,
    /// The URL of the key set.
    pub key_set_url: Str,
}

/// A key that has signed tokens and does not sign any more.
pub struct FormerKey {
    /// The key.
    pub key: VerifyingKey,
    /// Until when its tokens are accepted.
    pub until: SystemTime,
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TokenIssuer")
            .field("plane", &self.plane)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl TokenIssuer {
    /// Creates the issuer of the plane with the id `plane`, which is reached under the URLs `bases`:
    /// the first one stands in new tokens. Of the `former` keys at most eight are accepted.
    ///
    /// # Panics
    /// Panics if there is no URL.
    pub fn new(
        plane: impl Into<Str>,
        bases: &[Str],
        signing: SigningKey,
        former: Vec<FormerKey>,
    ) -> Self {
        let plane = plane.into();
        // By the id and not the name, because another plane may get the name some day.
        let path = format!("/clusters/{plane}/control-plane");
        let name = |base: &Str| Str::from(format!("{base}{path}"));
        let issuers: Vec<Str> = bases.iter().map(name).collect();
        let names = IssuerNames {
            audiences: issuers.clone(),
            key_set_url: format!("{}{JWKS_PATH}", issuers.first().map_or("", |name| name)).into(),
            issuers,
        };
        Self {
            path: Some(path),
            ..Self::named(plane, names, signing, former)
        }
    }

    /// Creates the issuer of the plane with the id `plane` under names of its own. Of the `former`
    /// keys at most eight are accepted.
    ///
    /// # Panics
    /// Panics if there is no name.
    pub fn named(
        plane: impl Into<Str>,
        names: IssuerNames,
        signing: SigningKey,
        mut former: Vec<FormerKey>,
    ) -> Self {
        assert!(!names.issuers.is_empty(), "an issuer has a name");
        former.truncate(FORMER_KEYS_MAX);
        let plane = plane.into();
        let IssuerNames {
            issuers: names,
            audiences,
            key_set_url,
        } = names;
        let mut digest = digest::Context::new(&SHA256);
        let keys = former.iter().map(|former| &former.key);
        let keys = std::iter::once(signing.public()).chain(keys);
        let keys = keys.map(|key| key.id());
        for part in std::iter::once(&*plane)
            .chain(names.iter().chain(&audiences).map(|name| &**name))
            .chain(keys)
        {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        for former in &former {
            let until = former.until.duration_since(UNIX_EPOCH).unwrap_or_default();
            digest.update(&until.as_nanos().to_be_bytes());
        }
        let stamp = AcceptStamp(
            digest
                .finish()
                .as_ref()
                .try_into()
                .expect("SHA-256 has 32 bytes"),
        );
        Self {
            plane,
            names,
            audiences,
            path: None,
            key_set_url,
            signing,
            former,
            revoked: Vec::new(),
            stamp,
        }
    }

    /// Makes the issuer refuse tokens that ended early.
    #[must_use]
    pub fn revoking(self, revoked: Vec<Revocation>) -> Self {
        Self { revoked, ..self }
    }

    /// Returns the `iat` of a token of this user that is issued at `now`, in seconds since 1970. After a
    /// revocation it may be a little ahead, because clocks differ.
    pub fn issue_time(&self, user: &str, now: i64) -> i64 {
        let before = Revocation::newest(&self.revoked, user);
        before.map_or(now, |before| before.max(now))
    }

    /// Checks that a token did not end early. A token without the time at which it was issued ends
    /// with any revocation.
    ///
    /// # Errors
    /// Returns an error if it ended.
    pub fn check_revoked(&self, token: &VerifiedToken) -> Result<(), TokenFault> {
        let issued = token.claims.issued_at.unwrap_or(i64::MIN);
        match Revocation::newest(&self.revoked, &token.user.name) {
            Some(before) if issued < before => Err(TokenFault::Revoked),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the id of the plane.
    pub fn plane(&self) -> &str {
        &self.plane
    }

    /// Returns the name that stands in new tokens.
    pub fn name(&self) -> &Str {
        &self.names[0]
    }

    /// Returns the plane's own audiences.
    pub fn audiences(&self) -> &[Str] {
        &self.audiences
    }

    /// Returns the audiences of the plane for a token of this issuer. They include the token's own
    /// issuer, which was an audience of the plane when the token was issued.
    pub fn audiences_of<'a>(&'a self, token: &'a VerifiedToken) -> Cow<'a, [Str]> {
        let issuer = &token.claims.issuer;
        if *issuer == LEGACY_ISSUER || self.names.contains(issuer) {
            return Cow::Borrowed(&self.audiences);
        }
        let earlier = std::iter::once(issuer);
        Cow::Owned(self.audiences.iter().chain(earlier).cloned().collect())
    }

    /// Returns whether a name is one that this issuer has, or had while clients reached the server
    /// under another URL. Only the key proves a token, and the keys of a plane sign for no other
    /// issuer, so a token does not end because the server's URL has changed.
    fn is_own_name(&self, name: &str) -> bool {
        let path = self.path.as_deref();
        let base = path.and_then(|path| name.strip_suffix(path));
        let host = base.and_then(|base| base.strip_prefix("https://"));
        host.is_some_and(|host| !host.is_empty() && !host.contains('/'))
            || self.names.iter().any(|known| known == name)
    }

    /// Returns the stamp of the accepted keys and issuers.
    pub fn stamp(&self) -> AcceptStamp {
        self.stamp
    }

    /// Returns whether `token` may be a token of an issuer like this one; the rest are opaque
    /// tokens.
    pub fn may_judge(token: &str) -> bool {
        // The header is a JSON object, so its first letters in base 64 are these.
        token.starts_with("eyJ") && token.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// Signs a token with these claims.
    ///
    /// # Errors
    /// Returns an error if the system gives no random numbers.
    pub fn sign(&self, claims: &Claims) -> Result<String, SigningError> {
        self.signing.sign(&claims.payload())
    }

    /// Verifies form, signature and issuer of a token. The call takes about 70 microseconds.
    ///
    /// # Errors
    /// Returns an error if the token is not one of this plane.
    pub fn verify(&self, token: &str) -> Result<VerifiedToken, TokenFault> {
        let jws = CompactJws::parse(token)?;
        let wanted = jws.key_id().ok_or(TokenFault::UnknownKey)?;
        let former = self.former.iter().map(|one| (&one.key, Some(one.until)));
        let mut keys = std::iter::once((self.signing.public(), None)).chain(former);
        let key = keys.find(|(key, _)| key.id() == wanted);
        let (key, accepted_until) = key.ok_or(TokenFault::UnknownKey)?;
        let payload = jws.verify(key)?;
        let claims = Claims::parse(&payload)?;
        if claims.issuer != LEGACY_ISSUER && !self.is_own_name(&claims.issuer) {
            return Err(TokenFault::Foreign);
        }
        Ok(VerifiedToken {
            user: Arc::new(claims.user()),
            claims,
            digest: digest_of(token),
            accepted_until,
        })
    }

    /// Returns the keys whose tokens are accepted at a time.
    fn keys(&self, now: SystemTime) -> impl Iterator<Item = &VerifyingKey> {
        let former = self.former.iter().filter(move |former| now < former.until);
        std::iter::once(self.signing.public()).chain(former.map(|former| &former.key))
    }

    /// Returns the public keys as a key set (RFC 7517), in upstream's form.
    pub fn key_set(&self, now: SystemTime) -> Vec<u8> {
        let mut out = b"{\"keys\":[".to_vec();
        for (at, key) in self.keys(now).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            key.write_jwk(&mut out);
        }
        out.extend_from_slice(b"]}");
        out
    }

    /// Returns the document of OpenID Connect discovery, in upstream's form.
    pub fn configuration(&self, now: SystemTime) -> Vec<u8> {
        let mut algorithms: Vec<&str> = self.keys(now).map(|key| key.algorithm().name()).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let mut out = b"{\"issuer\":".to_vec();
        json::write_string(self.name(), &mut out);
        out.extend_from_slice(b",\"jwks_uri\":");
        json::write_string(&self.key_set_url, &mut out);
        out.extend_from_slice(
            b",\"response_types_supported\":[\"id_token\"],\"subject_types_supported\":[\"public\"],\"id_token_signing_alg_values_supported\":[",
        );
        for (at, algorithm) in algorithms.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            json::write_string(algorithm, &mut out);
        }
        out.extend_from_slice(b"]}");
        out
    }
}

/// The path of the key set, below the issuer.
pub const JWKS_PATH: &str = "/openid/v1/jwks";
/// The path of the discovery document, below the issuer.
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// Seconds for which relying parties may keep both documents; upstream's value. A key is published
/// at least that long before it signs.
pub const METADATA_SECONDS: u32 = 3600;
