//! Tokens of issuers with real servers, keys and signatures.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::StatusCode;
use polyplane_auth::{Authentication, Authenticator, Credentials, UserInfo};
use polyplane_delegated::oidc::{
    AuthenticationConfig, JwtAuthenticator, NotReplaced, OperatorIssuers,
};
use polyplane_outbound::Caller;
use polyplane_tests::outside::{DISCOVERY, IssuerKey, KEYS, Outside, TokenIssuer};
use serde_json::{Value, json};

/// Returns the file for one issuer, in JSON, with `more` beside the issuer.
fn file(issuer: &TokenIssuer, audience: &str, more: &Value) -> Value {
    let mut jwt = json!({
        "issuer": {"url": issuer.server.url, "audiences": [audience],
            "certificateAuthority": issuer.server.ca_pem},
        "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}},
    });
    if let (Some(jwt), Some(more)) = (jwt.as_object_mut(), more.as_object()) {
        jwt.extend(more.clone());
    }
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [jwt]})
}

fn authenticator(issuer: &TokenIssuer, audience: &str, more: &Value) -> Result<JwtAuthenticator> {
    let text = file(issuer, audience, more).to_string();
    let config = AuthenticationConfig::parse(text.as_bytes(), &[])?;
    let jwt = config.jwt.into_iter().next().context("an issuer")?;
    Ok(JwtAuthenticator::new(
        jwt,
        &Caller::new(Vec::new()).of_operator(),
    )?)
}

async fn judge(authenticator: &dyn Authenticator, token: &str) -> Authentication {
    let credentials = Credentials {
        bearer: Some(token),
        chain: None,
        path: "/api",
        now: SystemTime::now(),
        source: 0,
    };
    authenticator.authenticate(&credentials).await
}

async fn user(authenticator: &dyn Authenticator, token: &str) -> Option<Arc<UserInfo>> {
    match judge(authenticator, token).await {
        Authentication::User(user) => Some(user),
        _ => None,
    }
}

async fn issuer() -> Result<TokenIssuer> {
    TokenIssuer::start(vec![
        ("rsa", IssuerKey::rsa()?),
        ("curve", IssuerKey::curve()?),
    ])
    .await
}

fn encoded(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Every algorithm of a published key is accepted; a header that names another kind of algorithm, no
/// algorithm, a key of its own or a critical extension is not, nor is a changed part of a right token.
#[tokio::test]
async fn only_signatures_by_published_keys_under_their_algorithms_are_accepted() -> Result<()> {
    let issuer = issuer().await?;
    let checked = authenticator(&issuer, "planes", &json!({}))?;
    let header = |algorithm: &str, key: &str| json!({"alg": algorithm, "kid": key});
    for (key, algorithm) in [("rsa", "RS256"), ("rsa", "PS256"), ("curve", "ES256")] {
        let token = issuer.token_under(key, &header(algorithm, key), &json!({}))?;
        let found = user(&checked, &token).await.context(algorithm)?;
        ensure!(
            found.name == "oidc:jane" && found.in_group("system:authenticated"),
            "{found:?}"
        );
        // Without a key id every key of the right kind is tried.
        let token = issuer.token_under(key, &json!({"alg": algorithm}), &json!({}))?;
        ensure!(
            user(&checked, &token).await.is_some(),
            "{algorithm} without a key id"
        );
    }
    let own = IssuerKey::curve()?;
    let mut wrong = Vec::new();
    for (key, algorithm) in [
        ("rsa", "ES256"),
        ("rsa", "RS512"),
        ("rsa", "HS256"),
        ("rsa", "none"),
        ("rsa", "rs256"),
        ("curve", "RS256"),
        ("curve", "ES384"),
    ] {
        wrong.push(issuer.token_under(key, &header(algorithm, key), &json!({}))?);
    }
    wrong.push(issuer.token_under("rsa", &header("RS256", "curve"), &json!({}))?);
    wrong.push(issuer.token_under(
        "rsa",
        &json!({"alg": "RS256", "kid": "rsa", "crit": ["exp"]}),
        &json!({}),
    )?);
    let claims =
        json!({"iss": issuer.server.url, "sub": "jane", "aud": "planes", "exp": 4_000_000_000_u64});
    for header in [
        json!({"alg": "ES256", "kid": "curve"}),
        json!({"alg": "ES256", "kid": "own", "jwk": own.jwk("own")}),
        json!({"alg": "ES256", "jwk": own.jwk("own"), "jku": issuer.server.url}),
    ] {
        wrong.push(own.sign(&header, &claims)?);
    }
    wrong.push(format!(
        "{}.{}.",
        encoded(&json!({"alg": "none"})),
        encoded(&claims)
    ));
    wrong.push(format!(
        "{}.{}.AAAA",
        encoded(&json!({"alg": "HS256", "kid": "rsa"})),
        encoded(&claims)
    ));
    let right = issuer.token("curve", &json!({}))?;
    let (signed, signature) = right.rsplit_once('.').context("a signature")?;
    let (head, _) = signed.split_once('.').context("a header")?;
    wrong.push(format!("{head}.{}.{signature}", encoded(&claims)));
    wrong.push(format!("{right}="));
    wrong.push(format!(
        "{signed}.{}",
        BASE64_URL_SAFE_NO_PAD.encode([0; 64])
    ));
    for token in &wrong {
        // Twice, so that a remembered refusal is no acceptance.
        ensure!(user(&checked, token).await.is_none(), "{token}");
        ensure!(user(&checked, token).await.is_none(), "{token}");
    }
    ensure!(user(&checked, &right).await.is_some());
    // However many tokens came, the keys were looked up once for the start; unknown ids wait a pause.
    ensure!(
        issuer.server.hits(KEYS) == 1,
        "{}",
        issuer.server.hits(KEYS)
    );
    ensure!(issuer.server.hits(DISCOVERY) == 1);
    Ok(())
}

/// Audience, issuer and times decide for each configuration by itself: two with one issuer and other
/// audiences share no verdict.
#[tokio::test]
async fn tokens_count_for_their_audience_issuer_and_time_alone() -> Result<()> {
    let issuer = issuer().await?;
    let here = authenticator(&issuer, "planes", &json!({}))?;
    let there = authenticator(&issuer, "vault", &json!({}))?;
    for (claims, is_here, is_there) in [
        (json!({}), true, false),
        (json!({"aud": "vault"}), false, true),
        (json!({"aud": ["x", "vault", "planes"]}), true, true),
        (json!({"aud": null}), false, false),
        (json!({"aud": []}), false, false),
        (json!({"aud": {"planes": 1}}), false, false),
        (json!({"exp": 1}), false, false),
        (json!({"exp": null}), false, false),
        (json!({"exp": "never"}), false, false),
        (json!({"nbf": 4_000_000_000_u64}), false, false),
        (json!({"sub": null}), false, false),
        (json!({"sub": 5}), false, false),
        (json!({"iss": "https://other.example.com"}), false, false),
    ] {
        let token = issuer.token("curve", &claims)?;
        for _ in 0..2 {
            ensure!(user(&here, &token).await.is_some() == is_here, "{claims}");
            ensure!(user(&there, &token).await.is_some() == is_there, "{claims}");
        }
    }
    let other = issuer.token("curve", &json!({"iss": "https://other.example.com"}))?;
    ensure!(judge(&here, &other).await == Authentication::NoOpinion);
    ensure!(judge(&here, "opaque").await == Authentication::NoOpinion);
    Ok(())
}

/// A key that is published later is found, once the pause after the last look-up is over; a withdrawn
/// key ends with that look-up. While the issuer is away, known keys go on.
#[tokio::test]
async fn keys_rotate_and_outlive_an_absent_issuer() -> Result<()> {
    let issuer = issuer().await?;
    let checked = authenticator(&issuer, "planes", &json!({}))?;
    issuer.set_away(true);
    let old = issuer.token("curve", &json!({}))?;
    ensure!(user(&checked, &old).await.is_none());
    issuer.set_away(false);
    // Strangers' tokens do not make the pause shorter.
    for _ in 0..200 {
        ensure!(user(&checked, &old).await.is_none());
    }
    ensure!(issuer.server.hits(DISCOVERY) == 1);
    until(&checked, &old, true).await?;
    issuer.rotate("new", IssuerKey::curve()?);
    let new = issuer.token("new", &json!({}))?;
    let hits = issuer.server.hits(KEYS);
    ensure!(user(&checked, &new).await.is_none(), "the pause goes on");
    ensure!(issuer.server.hits(KEYS) == hits);
    until(&checked, &new, true).await?;
    ensure!(
        user(&checked, &old).await.is_none(),
        "the old key is withdrawn"
    );
    issuer.set_away(true);
    for number in 0..20 {
        let more = issuer.token("new", &json!({"jti": number.to_string()}))?;
        ensure!(user(&checked, &more).await.is_some());
    }
    Ok(())
}

/// Asks until a token is accepted, or is not any more.
async fn until(checked: &JwtAuthenticator, token: &str, accepted: bool) -> Result<()> {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while user(checked, token).await.is_some() != accepted {
        ensure!(tokio::time::Instant::now() < deadline, "not in time");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Claims become names, groups, uid and extra values by claim and prefix or by expression, and the
/// rules refuse what they should.
#[tokio::test]
async fn claims_make_users_as_the_configuration_says() -> Result<()> {
    let issuer = issuer().await?;
    let checked = authenticator(
        &issuer,
        "planes",
        &json!({
            "claimMappings": {
                "username": {"expression": "'u-' + claims.sub"},
                "groups": {"expression": "claims.roles.split(',') + claims.?more.orValue([])"},
                "uid": {"claim": "uid"},
                "extra": [{"key": "example.com/level", "valueExpression": "string(claims.level)"}]},
            "claimValidationRules": [
                {"claim": "hd", "requiredValue": "example.com"},
                {"expression": "claims.exp - claims.iat <= 86400", "message": "too long"}],
            "userValidationRules": [
                {"expression": "!user.username.startsWith('u-system:')"},
                {"expression": "user.groups.all(group, group != 'system:masters')"},
                {"expression": "!('example.com/level' in user.extra) || user.extra['example.com/level'][0] != '9'"}],
        }),
    )?;
    let sound = json!({"roles": "a,b", "more": ["c"], "uid": "7", "hd": "example.com", "level": 3, "jti": "x1"});
    let found = user(&checked, &issuer.token("rsa", &sound)?)
        .await
        .context("a user")?;
    ensure!(found.name == "u-jane" && found.uid == "7", "{found:?}");
    let groups: Vec<&str> = found.groups.iter().map(|group| &**group).collect();
    ensure!(
        groups == ["a", "b", "c", "system:authenticated"],
        "{groups:?}"
    );
    let extra: Vec<(&str, &str)> = found
        .extra
        .iter()
        .map(|(key, values)| (&**key, &*values[0]))
        .collect();
    ensure!(
        extra
            == [
                ("authentication.kubernetes.io/credential-id", "JTI=x1"),
                ("example.com/level", "3")
            ],
        "{extra:?}"
    );
    for change in [
        json!({"roles": "a,system:masters"}),
        json!({"more": 5}),
        json!({"more": [5]}),
        json!({"roles": null}),
        json!({"uid": null}),
        json!({"hd": "example.org"}),
        json!({"hd": null}),
        json!({"level": 9}),
        json!({"exp": 4_000_000_000_u64}),
        json!({"sub": "system:admin"}),
    ] {
        let mut claims = sound.clone();
        if let (Some(claims), Some(change)) = (claims.as_object_mut(), change.as_object()) {
            claims.extend(change.clone());
        }
        ensure!(
            user(&checked, &issuer.token("rsa", &claims)?)
                .await
                .is_none(),
            "{change}"
        );
    }
    let mail = authenticator(
        &issuer,
        "planes",
        &json!({"claimMappings": {
        "username": {"claim": "email", "prefix": ""}, "groups": {"claim": "roles", "prefix": "g:"}}}),
    )?;
    for (claims, name) in [
        (json!({"email": "j@x", "roles": "one"}), Some("j@x g:one")),
        (
            json!({"email": "j@x", "email_verified": true, "roles": ["one", "two"]}),
            Some("j@x g:one g:two"),
        ),
        (json!({"email": "j@x", "email_verified": false}), None),
        (json!({"email": "j@x", "email_verified": "true"}), None),
        (json!({"email": "j@x", "roles": 5}), None),
        (
            json!({"email": "j@x", "_claim_names": {"roles": "src"}}),
            None,
        ),
    ] {
        let found = user(&mail, &issuer.token("rsa", &claims)?).await;
        let shown = found.map(|user| {
            let groups = user.groups.iter().filter(|group| group.starts_with("g:"));
            let all: Vec<&str> = [&*user.name]
                .into_iter()
                .chain(groups.map(|group| &**group))
                .collect();
            all.join(" ")
        });
        ensure!(shown.as_deref() == name, "{claims}: {shown:?}");
    }
    Ok(())
}

/// A file with a mistake is refused, and the refusal names the field.
#[tokio::test]
async fn files_with_mistakes_are_refused_by_field() -> Result<()> {
    let issuer = issuer().await?;
    let sound = file(&issuer, "planes", &json!({}));
    for (pointer, value, words) in [
        ("/kind", json!("Policy"), "AuthenticationConfiguration of"),
        ("/apiVersion", json!("v1"), "AuthenticationConfiguration of"),
        (
            "/jwt/0/issuer/url",
            json!("http://x.example.com"),
            "URL scheme must be https",
        ),
        (
            "/jwt/0/issuer/url",
            json!("https://u:p@x.example.com"),
            "must not contain a username",
        ),
        (
            "/jwt/0/issuer/url",
            json!("https://x.example.com/?a=b"),
            "must not contain a query",
        ),
        (
            "/jwt/0/issuer/url",
            json!("https://x.example.com/#a"),
            "must not contain a fragment",
        ),
        (
            "/jwt/0/issuer/url",
            json!("https://own.example.com"),
            "disallowed issuers",
        ),
        ("/jwt/0/issuer/url", json!(5), "jwt[0].issuer.url"),
        (
            "/jwt/0/issuer/audiences",
            json!([]),
            "jwt[0].issuer.audiences: Required",
        ),
        (
            "/jwt/0/issuer/audiences",
            json!(["a", "b"]),
            "must be MatchAny for multiple",
        ),
        (
            "/jwt/0/issuer/certificateAuthority",
            json!("none"),
            "CA bundle",
        ),
        (
            "/jwt/0/issuer",
            json!({"url": "https://x.example.com", "audiences": ["a"], "egressSelectorType": "cluster"}),
            "egressSelectorType",
        ),
        (
            "/jwt/0/claimMappings",
            json!({}),
            "jwt[0].claimMappings.username: Required",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"claim": "sub"}}),
            "username.prefix: Required",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"claim": "a", "expression": "claims.a"}}),
            "can't both be set",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"expression": "claims.("}}),
            "compilation failed",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"expression": "other.sub"}}),
            "undeclared reference",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"expression": "claims.email"}}),
            "claims.email_verified must be used",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"claim": "sub", "prefix": ""}, "extra": [{"key": "level", "valueExpression": "'a'"}]}),
            "domain-prefixed",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"claim": "sub", "prefix": ""}, "extra": [{"key": "a.k8s.io/x", "valueExpression": "'a'"}]}),
            "reserved for Kubernetes",
        ),
        (
            "/jwt/0/claimMappings",
            json!({"username": {"claim": "sub", "prefix": "", "colour": "red"}}),
            "username.colour",
        ),
        (
            "/anonymous",
            json!({"enabled": false, "conditions": [{"path": "/livez"}]}),
            "enabled should be set to true when conditions are defined",
        ),
    ] {
        let mut wrong = sound.clone();
        match (wrong.pointer_mut(pointer), pointer.rsplit_once('/')) {
            (Some(place), _) => *place = value,
            (None, Some((parent, name))) => {
                wrong.pointer_mut(parent).context("a parent")?[name] = value
            }
            (None, None) => {}
        }
        let refused =
            AuthenticationConfig::parse(wrong.to_string().as_bytes(), &["https://own.example.com"]);
        let said = refused
            .err()
            .with_context(|| format!("{pointer} {words}"))?
            .to_string();
        ensure!(said.contains(words), "{pointer}: {said}");
    }
    let mut on_paths = sound.clone();
    on_paths["anonymous"] = json!({"enabled": true, "conditions": [{"path": "/livez"}]});
    let read = AuthenticationConfig::parse(on_paths.to_string().as_bytes(), &[])?;
    let anonymous = read.anonymous.context("it says where")?;
    ensure!(anonymous.admits("/livez") && !anonymous.admits("/livez/ping"));
    let doubled = json!({"apiVersion": sound["apiVersion"], "kind": sound["kind"], "jwt": [sound["jwt"][0], sound["jwt"][0]]});
    let said = AuthenticationConfig::parse(doubled.to_string().as_bytes(), &[])
        .err()
        .context("refused")?;
    ensure!(
        said.to_string().contains("jwt[1].issuer.url: Duplicate"),
        "{said}"
    );
    let unknown = AuthenticationConfig::parse(b"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\njwks: []\n", &[]);
    ensure!(unknown.is_err());
    ensure!(AuthenticationConfig::parse(b"\tx", &[]).is_err());
    Ok(())
}

/// Newer issuers replace the present ones as a whole, and only if each of them answers. What was known of
/// tokens goes with the issuer.
#[tokio::test]
async fn issuers_are_replaced_once_all_newer_ones_answer() -> Result<()> {
    let (first, second) = (issuer().await?, issuer().await?);
    let configs = |issuers: &[&TokenIssuer]| -> Result<Vec<_>> {
        let mut configs = Vec::new();
        for issuer in issuers {
            let text = file(issuer, "planes", &json!({})).to_string();
            configs.extend(AuthenticationConfig::parse(text.as_bytes(), &[])?.jwt);
        }
        Ok(configs)
    };
    let caller = Caller::new(Vec::new()).of_operator();
    let issuers = OperatorIssuers::new(configs(&[&first])?, &caller)?;
    let [of_first, of_second] = [
        first.token("curve", &json!({}))?,
        second.token("curve", &json!({}))?,
    ];
    let proves = async |token: &str| user(&issuers, token).await.is_some();
    ensure!(proves(&of_first).await && !proves(&of_second).await);
    ensure!(issuers.has(&first.server.url) && !issuers.has(&second.server.url));

    // Nobody answers there.
    let mut gone = configs(&[&second])?;
    gone[0].issuer.url = "https://127.0.0.1:1".to_owned();
    let both = [configs(&[&second])?, gone].concat();
    let refused = issuers.replace(both).await;
    ensure!(
        matches!(refused, Err(NotReplaced::Unreachable { .. })),
        "{refused:?}"
    );
    ensure!(proves(&of_first).await && !proves(&of_second).await);

    issuers.replace(configs(&[&second])?).await?;
    ensure!(!proves(&of_first).await && proves(&of_second).await);
    ensure!(!issuers.has(&first.server.url) && issuers.has(&second.server.url));
    issuers.replace(Vec::new()).await?;
    ensure!(!proves(&of_first).await && !proves(&of_second).await);
    Ok(())
}

/// A message about a document of an issuer has the beginning of what it quotes, because it is for the log.
#[tokio::test]
async fn a_message_quotes_only_the_beginning_of_a_document() -> Result<()> {
    const MESSAGE_BYTES_MAX: usize = 1000;
    let long = "x".repeat(40_000);
    let other_issuer = json!({"issuer": long, "jwks_uri": "https://127.0.0.1:1/"});
    let server = Outside::start(move |_| (StatusCode::OK, other_issuer.clone())).await?;
    let sound = issuer().await?;
    let text = file(&sound, "planes", &json!({})).to_string();
    let mut configs = AuthenticationConfig::parse(text.as_bytes(), &[])?.jwt;
    configs[0].issuer.url.clone_from(&server.url);
    configs[0].issuer.certificate_authority = Some(server.ca_pem.clone());
    let caller = Caller::new(Vec::new()).of_operator();
    let issuers = OperatorIssuers::new(Vec::new(), &caller)?;
    let refused = issuers.replace(configs).await.err().context("refused")?;
    let message = refused.to_string();
    ensure!(message.contains("names another issuer, \"xxx"), "{message}");
    ensure!(message.len() < MESSAGE_BYTES_MAX, "{}", message.len());
    Ok(())
}
