//! Tokens of a plane's issuer: what is signed is accepted, and nothing else.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::jws::{JwsError, SigningKey, VerifyingKey};
use polyplane_auth::service_account::TokenFault;
use polyplane_auth::service_account::authenticator::AccountTokens;
use polyplane_auth::service_account::claims::{Binding, Claims, ObjectClaim};
use polyplane_auth::service_account::issuer::{FormerKey, TokenIssuer};
use polyplane_auth::service_account::verdicts::VerdictCache;
use polyplane_auth::{Authentication, Authenticator as _, Credentials, Revocation, Verdict};
use proptest::prelude::*;

const BASE: &str = "https://api.example.com:6443";
const NOW: i64 = 1_800_000_000;

fn pair() -> EcdsaKeyPair {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("random numbers")
}

fn issuer_with(plane: &str, pair: EcdsaKeyPair, former: Vec<FormerKey>) -> TokenIssuer {
    let point = pair.public_key().as_ref().to_vec();
    let key = SigningKey::new(pair, &point).expect("a key");
    TokenIssuer::new(plane, &[BASE.into()], key, former)
}

fn issuer(plane: &str) -> TokenIssuer {
    issuer_with(plane, pair(), Vec::new())
}

fn object(name: &str) -> ObjectClaim {
    ObjectClaim {
        name: name.into(),
        uid: format!("uid-of-{name}").into(),
    }
}

fn claims(issuer: &TokenIssuer) -> Claims {
    Claims {
        issuer: issuer.name().clone(),
        audiences: issuer.audiences().to_vec(),
        issued_at: Some(NOW),
        not_before: Some(NOW),
        expires: Some(NOW + 3600),
        id: "5f6b".into(),
        namespace: "ci".into(),
        account: object("builder"),
        binding: Binding::Pod {
            pod: object("pod-1"),
            node: Some(object("node-1")),
        },
        warn_after: Some(NOW + 3607),
    }
}

fn at(seconds: i64) -> std::time::SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).expect("after 1970"))
}

/// Returns a token with this header and payload, signed by a key.
fn signed(pair: &EcdsaKeyPair, header: &str, payload: &[u8]) -> String {
    let mut token = BASE64_URL_SAFE_NO_PAD.encode(header);
    token.push('.');
    token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(payload));
    let signature = pair.sign(&SystemRandom::new(), token.as_bytes());
    token.push('.');
    token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(signature.expect("signed")));
    token
}

#[test]
fn a_token_says_what_was_signed() {
    let issuer = issuer("abc");
    for binding in [
        claims(&issuer).binding,
        Binding::Account,
        Binding::Secret(object("s")),
        Binding::Node(object("n")),
        Binding::Pod {
            pod: object("p"),
            node: None,
        },
    ] {
        let claims = Claims {
            binding,
            ..claims(&issuer)
        };
        let token = issuer.sign(&claims).expect("signed");
        let verified = issuer.verify(&token).expect("its own");
        assert_eq!(verified.claims, claims);
        assert!(TokenIssuer::may_judge(&token));
    }
    let verified = issuer.verify(&issuer.sign(&claims(&issuer)).expect("signed"));
    let user = Arc::clone(&verified.expect("its own").user);
    assert_eq!(user.name, "system:serviceaccount:ci:builder");
    assert_eq!(user.uid, "uid-of-builder");
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:ci",
        "system:authenticated",
    ];
    assert_eq!(user.groups, groups);
    let extra: Vec<String> = user
        .extra
        .iter()
        .map(|(key, values)| format!("{key}={}", values.join(",")))
        .collect();
    assert_eq!(
        extra,
        [
            "authentication.kubernetes.io/credential-id=JTI=5f6b",
            "authentication.kubernetes.io/node-name=node-1",
            "authentication.kubernetes.io/node-uid=uid-of-node-1",
            "authentication.kubernetes.io/pod-name=pod-1",
            "authentication.kubernetes.io/pod-uid=uid-of-pod-1",
        ]
    );
}

#[test]
fn a_token_that_a_secret_holds_has_upstreams_claims() {
    let issuer = issuer("abc");
    let claims = Claims {
        issuer: "kubernetes/serviceaccount".into(),
        audiences: Vec::new(),
        issued_at: None,
        not_before: None,
        expires: None,
        id: Str::default(),
        binding: Binding::HeldBy("builder-token".into()),
        warn_after: None,
        ..claims(&issuer)
    };
    let token = issuer.sign(&claims).expect("signed");
    let verified = issuer.verify(&token).expect("its own");
    assert_eq!(verified.claims, claims);
    assert_eq!(verified.user.extra, []);
    assert!(verified.is_for(issuer.audiences()));
    let shown = json::parse(&claims.payload(), &json::Limits::default()).expect("JSON");
    assert_eq!(
        shown.value.as_object().map(|members| members.len()),
        Some(6)
    );
}

#[test]
fn times_have_upstreams_leeway() {
    let issuer = issuer("abc");
    let token = issuer.sign(&claims(&issuer)).expect("signed");
    let token = issuer.verify(&token).expect("its own");
    for (seconds, outcome) in [
        (NOW - 61, Err(TokenFault::NotYetValid)),
        (NOW - 60, Ok(())),
        (NOW, Ok(())),
        (NOW + 3660, Ok(())),
        (NOW + 3661, Err(TokenFault::Expired)),
    ] {
        assert_eq!(token.check_times(at(seconds)), outcome, "{seconds}");
    }
}

#[test]
fn audiences_are_those_asked_for() {
    let issuer = issuer("abc");
    let own = issuer.audiences();
    let mut claims = claims(&issuer);
    claims.audiences = vec!["vault".into(), "other".into()];
    let token = issuer.verify(&issuer.sign(&claims).expect("signed"));
    let token = token.expect("its own");
    assert!(!token.is_for(own));
    assert!(token.audiences(own, own).is_err());
    let asked = [Str::from("vault")];
    assert_eq!(token.audiences(own, &asked), Ok(asked.to_vec()));
}

/// Returns the issuer of plane `abc` with this key, at a server that clients reach under `bases`.
fn issuer_at(pkcs8: &[u8], bases: &[&str]) -> TokenIssuer {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8).expect("a key");
    let point = pair.public_key().as_ref().to_vec();
    let bases: Vec<Str> = bases.iter().map(|base| Str::from(*base)).collect();
    let key = SigningKey::new(pair, &point).expect("a key");
    TokenIssuer::new("abc", &bases, key, Vec::new())
}

#[test]
fn a_token_of_an_earlier_url_is_for_the_plane_as_before() {
    let pkcs8 = pair().to_pkcs8v1().expect("a key");
    let (before, after) = (
        issuer_at(pkcs8.as_ref(), &[BASE]),
        issuer_at(pkcs8.as_ref(), &["https://new.example.com"]),
    );
    let own = claims(&before);
    let of = |change: &dyn Fn(&mut Claims)| {
        let mut claims = own.clone();
        change(&mut claims);
        after.verify(&before.sign(&claims).expect("signed"))
    };
    let token = of(&|_| {}).expect("the plane's key signed it");
    let audiences = after.audiences_of(&token);
    assert!(token.is_for(&audiences) && !token.is_for(after.audiences()));
    let for_another = of(&|claims| claims.audiences = vec!["vault".into()]);
    let for_another = for_another.expect("the plane's key signed it");
    assert!(!for_another.is_for(&after.audiences_of(&for_another)));
    for foreign in [
        "https://api.example.com:6443/clusters/other/control-plane",
        "https://api.example.com:6443/x/clusters/abc/control-plane",
        "http://api.example.com:6443/clusters/abc/control-plane",
        "https:///clusters/abc/control-plane",
        "/clusters/abc/control-plane",
        "https://api.example.com:6443/clusters/abc/control-plane/",
    ] {
        let refused = of(&|claims| claims.issuer = foreign.into());
        assert_eq!(refused, Err(TokenFault::Foreign), "{foreign}");
    }
}

#[test]
fn a_revocation_ends_what_was_issued_before_it() {
    let user = "system:serviceaccount:ci:builder";
    let revocation = |user: &str, before| Revocation {
        user: user.into(),
        before,
    };
    let issuer = issuer("abc").revoking(vec![
        revocation(user, NOW - 5),
        revocation(user, NOW),
        revocation("system:serviceaccount:ci:other", NOW + 100),
    ]);
    let issued = |at: Option<i64>| {
        let claims = Claims {
            issued_at: at,
            ..claims(&issuer)
        };
        let token = issuer.verify(&issuer.sign(&claims).expect("signed"));
        issuer.check_revoked(&token.expect("its own"))
    };
    assert_eq!(issued(Some(NOW - 1)), Err(TokenFault::Revoked));
    assert_eq!(issued(None), Err(TokenFault::Revoked));
    assert_eq!(issued(Some(NOW)), Ok(()));
    assert_eq!(issuer.issue_time(user, NOW - 10), NOW);
    assert_eq!(issuer.issue_time(user, NOW + 10), NOW + 10);
    assert_eq!(issuer.issue_time("jane", NOW - 10), NOW - 10);
}

#[test]
fn a_token_of_one_plane_is_nobody_in_any_other() {
    let planes: Vec<TokenIssuer> = (0..8).map(|at| issuer(&format!("plane-{at}"))).collect();
    let cache = VerdictCache::default();
    for issuing in &planes {
        let token = issuing.sign(&claims(issuing)).expect("signed");
        for judging in &planes {
            let outcome = cache.verify(judging, &token);
            let again = cache.verify(judging, &token);
            assert_eq!(outcome, again);
            assert_eq!(outcome.is_ok(), issuing.plane() == judging.plane());
        }
    }
}

#[test]
fn the_same_key_in_another_plane_does_not_help() {
    // Both issuers have one key, as if the derivation had failed: the issuer's name still differs.
    let document = pair().to_pkcs8v1().expect("a key");
    let pair = || {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref()).expect("a key")
    };
    let (one, two) = (
        issuer_with("one", pair(), Vec::new()),
        issuer_with("two", pair(), Vec::new()),
    );
    let token = one.sign(&claims(&one)).expect("signed");
    assert_eq!(two.verify(&token), Err(TokenFault::Foreign));
    assert_ne!(one.stamp(), two.stamp());
}

#[test]
fn a_former_key_verifies_until_it_is_forgotten() {
    let old = pair();
    let point = old.public_key().as_ref().to_vec();
    let former = issuer_with("abc", old, Vec::new());
    let token = former.sign(&claims(&former)).expect("signed");
    let former_key = FormerKey {
        key: VerifyingKey::es256(&point).expect("a key"),
        until: at(NOW + 600),
    };
    let rotated = issuer_with("abc", pair(), vec![former_key]);
    let now = issuer_with("abc", pair(), Vec::new());
    let cache = VerdictCache::default();
    assert!(cache.verify(&former, &token).is_ok());
    let by_former_key = cache.verify(&rotated, &token).expect("it is accepted yet");
    assert_eq!(by_former_key.check_times(at(NOW + 599)), Ok(()));
    let replaced = Err(TokenFault::KeyReplaced);
    assert_eq!(by_former_key.check_times(at(NOW + 600)), replaced);
    let keys_at = |seconds| {
        let set = rotated.key_set(at(seconds));
        let set = json::parse(&set, &json::Limits::default()).expect("JSON");
        set.value.items_at(&["keys"]).len()
    };
    assert_eq!((keys_at(NOW), keys_at(NOW + 600)), (2, 1));
    assert_eq!(cache.verify(&now, &token), Err(TokenFault::UnknownKey));
    assert!(cache.verify(&former, &token).is_ok());
}

#[test]
fn headers_that_choose_keys_or_algorithms_are_refused() {
    let pair = pair();
    let point = pair.public_key().as_ref().to_vec();
    let public = VerifyingKey::es256(&point).expect("a key");
    let kid = public.id().to_owned();
    let pair_again = EcdsaKeyPair::from_pkcs8(
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        pair.to_pkcs8v1().expect("a key").as_ref(),
    );
    let issuer = issuer_with("abc", pair_again.expect("a key"), Vec::new());
    let payload = claims(&issuer).payload();
    let good = format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#);
    assert!(issuer.verify(&signed(&pair, &good, &payload)).is_ok());
    let with_type = format!(r#"{{"alg":"ES256","kid":"{kid}","typ":"JWT"}}"#);
    assert!(issuer.verify(&signed(&pair, &with_type, &payload)).is_ok());
    let mut jwk = Vec::new();
    public.write_jwk(&mut jwk);
    let jwk = String::from_utf8(jwk).expect("text");
    for more in [
        format!(r#","jwk":{jwk}"#),
        r#","jku":"https://evil.example/keys""#.to_owned(),
        r#","x5c":["AAAA"]"#.to_owned(),
        r#","x5u":"https://evil.example""#.to_owned(),
        r#","crit":["exp"]"#.to_owned(),
        r#","crit":[]"#.to_owned(),
        r#","b64":false"#.to_owned(),
        r#","zip":"DEF""#.to_owned(),
        r#","typ":1"#.to_owned(),
        r#","kid":"again""#.to_owned(),
        r#","alg":"none""#.to_owned(),
    ] {
        let header = format!(r#"{{"alg":"ES256","kid":"{kid}"{more}}}"#);
        let outcome = issuer.verify(&signed(&pair, &header, &payload));
        assert_eq!(outcome, Err(JwsError::Header.into()), "{header}");
    }
    for algorithm in ["none", "None", "", "HS256", "RS256", "ES384", "es256"] {
        let header = format!(r#"{{"alg":"{algorithm}","kid":"{kid}"}}"#);
        let outcome = issuer.verify(&signed(&pair, &header, &payload));
        assert_eq!(outcome, Err(JwsError::Algorithm.into()), "{header}");
    }
    // The public key as the secret of an HMAC: what confuses a verifier that trusts the header.
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &point);
    let mut token = BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#));
    token.push('.');
    token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(&payload));
    let tag = hmac::sign(&secret, token.as_bytes());
    let token = format!("{token}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag));
    assert!(issuer.verify(&token).is_err());
    for header in [r#"{"alg":"ES256"}"#, r#"{"alg":"ES256","kid":"other"}"#] {
        let outcome = issuer.verify(&signed(&pair, header, &payload));
        assert_eq!(outcome, Err(TokenFault::UnknownKey), "{header}");
    }
}

#[test]
fn claims_that_no_account_has_are_refused_though_they_are_signed() {
    let pair = pair();
    let pkcs8 = pair.to_pkcs8v1().expect("a key");
    let again = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref());
    let issuer = issuer_with("abc", again.expect("a key"), Vec::new());
    let public = VerifyingKey::es256(pair.public_key().as_ref()).expect("a key");
    let header = format!(r#"{{"alg":"ES256","kid":"{}"}}"#, public.id());
    let whole = json::parse(&claims(&issuer).payload(), &json::Limits::default());
    let whole = whole.expect("JSON").value;
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 16] = [
        ("no issuer", |tree| drop(tree.remove(&["iss"]))),
        ("another issuer", |tree| tree.set(&["iss"], "https://evil")),
        ("no subject", |tree| drop(tree.remove(&["sub"]))),
        ("another subject", |tree| {
            tree.set(&["sub"], "system:serviceaccount:kube-system:builder");
        }),
        ("no expiry", |tree| drop(tree.remove(&["exp"]))),
        ("expiry as text", |tree| tree.set(&["exp"], "9999999999")),
        ("a broken expiry", |tree| {
            tree.set(&["exp"], Value::Float(1e10 + 0.5))
        }),
        ("an unknown claim", |tree| tree.set(&["cnf"], "x")),
        ("audience as text", |tree| tree.set(&["aud"], "x")),
        ("no objects", |tree| drop(tree.remove(&["kubernetes.io"]))),
        ("an unknown object", |tree| {
            tree.set(&["kubernetes.io", "attestations"], Value::object());
        }),
        ("pod and secret", |tree| {
            tree.set(&["kubernetes.io", "secret", "name"], "s");
            tree.set(&["kubernetes.io", "secret", "uid"], "u");
        }),
        ("a pod without a uid", |tree| {
            drop(tree.remove(&["kubernetes.io", "pod", "uid"]));
        }),
        ("an account without a uid", |tree| {
            drop(tree.remove(&["kubernetes.io", "serviceaccount", "uid"]));
        }),
        ("a name with a colon", |tree| {
            tree.set(&["kubernetes.io", "namespace"], "ci:x");
        }),
        ("the legacy issuer", |tree| {
            tree.set(&["iss"], "kubernetes/serviceaccount");
        }),
    ];
    for (name, change) in changes {
        let mut tree = whole.clone();
        change(&mut tree);
        let token = signed(&pair, &header, &json::to_vec(&tree));
        assert!(issuer.verify(&token).is_err(), "{name}");
    }
    let repeated = String::from_utf8(json::to_vec(&whole)).expect("text");
    let repeated = repeated.replacen('{', r#"{"exp":9999999999,"#, 1);
    assert!(
        issuer
            .verify(&signed(&pair, &header, repeated.as_bytes()))
            .is_err()
    );
    assert!(
        issuer
            .verify(&signed(&pair, &header, &json::to_vec(&whole)))
            .is_ok()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Any change of a token's text makes it a token of nobody.
    #[test]
    fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), change in 0_usize..5, byte in 0x21_u8..0x7f) {
        use std::sync::LazyLock;
        static KNOWN: LazyLock<(TokenIssuer, String)> = LazyLock::new(|| {
            let issuer = issuer("abc");
            let token = issuer.sign(&claims(&issuer)).expect("signed");
            (issuer, token)
        });
        let (issuer, token) = &*KNOWN;
        let at = at.index(token.len());
        let mut bytes = token.clone().into_bytes();
        match change {
            0 => bytes[at] = byte,
            1 => bytes.insert(at, byte),
            2 => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            _ => bytes.swap(at, 0),
        }
        let changed = String::from_utf8(bytes).expect("ASCII");
        prop_assert_eq!(issuer.verify(&changed).is_ok(), changed == *token);
    }
}

#[test]
fn a_plane_with_many_tokens_evicts_its_own() {
    let (quiet, noisy) = (issuer("quiet"), issuer("noisy"));
    let cache = VerdictCache::with_bytes_max(100 << 10);
    let kept = quiet.sign(&claims(&quiet)).expect("signed");
    assert!(cache.verify(&quiet, &kept).is_ok());
    for number in 0..200 {
        let claims = Claims {
            id: format!("{number}").into(),
            ..claims(&noisy)
        };
        let token = noisy.sign(&claims).expect("signed");
        assert!(cache.verify(&noisy, &token).is_ok());
        assert!(cache.bytes() <= 100 << 10);
    }
    assert_eq!(cache.verified_tokens("quiet"), 1);
    let noisy_tokens = cache.verified_tokens("noisy");
    assert!((20..100).contains(&noisy_tokens), "{noisy_tokens}");
}

/// The request of a known token pays for a digest and two lookups, not for parsing.
#[test]
fn a_known_token_is_verified_without_an_allocation() {
    let issuer = Arc::new(issuer("abc"));
    let token = issuer.sign(&claims(&issuer)).expect("signed");
    let tokens = AccountTokens::new(Arc::clone(&issuer), Arc::default());
    let credentials = Credentials {
        bearer: Some(&token),
        chain: None,
        path: "/api",
        now: at(NOW),
        source: 0,
    };
    let judge = || match tokens.authenticate(&credentials) {
        Verdict::Now(Some(Authentication::Token(token))) => token,
        _ => panic!("it is the plane's own"),
    };
    let first = judge();
    let mut second = None;
    let measured = allocation_counter::measure(|| second = Some(judge()));
    assert_eq!(measured.count_total, 0, "{measured:?}");
    assert!(Arc::ptr_eq(&first, &second.expect("it was judged")));
}

#[test]
fn a_token_that_is_too_long_is_refused_before_it_is_read() {
    let issuer = issuer("abc");
    let long = format!("eyJ{}.a.b", "a".repeat(16 << 10));
    assert_eq!(issuer.verify(&long), Err(JwsError::TooLong.into()));
}
