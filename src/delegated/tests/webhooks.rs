//! Webhooks with real servers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use http::StatusCode;
use polyplane_auth::{
    Attributes, Authentication, Authenticator as _, Authorizer as _, Credentials, Decision, Denied,
    Subject, UserInfo,
};
use polyplane_delegated::webhook::{
    AccessWebhook, OwnIssuers, ReviewVersion, TokenWebhook, WebhookServer,
};
use polyplane_outbound::Caller;
use polyplane_tests::outside::Outside;
use serde_json::{Value, json};

fn kubeconfig(server: &Outside) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "webhook",
        "contexts": [{"name": "webhook", "context": {"cluster": "webhook", "user": "api"}}],
        "clusters": [{"name": "webhook", "cluster": {"server": format!("{}/review?a=b", server.url),
            "certificate-authority-data": BASE64_STANDARD.encode(&server.ca_pem)}}],
        "users": [{"name": "api", "user": {"token": "for-the-webhook"}}]})
}

fn webhook(config: &Value) -> Result<WebhookServer> {
    let no_files = |file: &str| Err(format!("{file} is not there"));
    Ok(WebhookServer::parse(
        config.to_string().as_bytes(),
        &no_files,
    )?)
}

async fn judge(webhook: &TokenWebhook, token: &str) -> Authentication {
    judge_from(webhook, token, 0).await
}

async fn judge_from(webhook: &TokenWebhook, token: &str, source: usize) -> Authentication {
    let credentials = Credentials {
        bearer: Some(token),
        chain: None,
        path: "/api",
        now: SystemTime::now(),
        source,
    };
    webhook.authenticate(&credentials).await
}

fn jwt(issuer: &str) -> String {
    let part = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    format!(
        "{}.{}.AAAA",
        part(json!({"alg": "ES256"})),
        part(json!({"iss": issuer}))
    )
}

/// A webhook names users, whose answers are cached, refusals too; it is never sent a token of a plane, of
/// a service account, or of an issuer that is known here.
#[tokio::test]
async fn a_token_webhook_proves_users_and_never_sees_own_tokens() -> Result<()> {
    let server = Outside::start(|request| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let status = match asked["spec"]["token"].as_str().unwrap_or("") {
            "jane" => {
                json!({"authenticated": true, "audiences": ["api"], "user": {"username": "jane",
                "uid": "7", "groups": ["dev"], "extra": {"level": ["3"]}}})
            }
            "other" => {
                json!({"authenticated": true, "audiences": ["vault"], "user": {"username": "jane"}})
            }
            "nobody" => json!({"authenticated": true, "user": {}}),
            _ => json!({"authenticated": false, "error": "unknown"}),
        };
        let kind = &asked["kind"];
        (
            StatusCode::OK,
            json!({"kind": kind, "apiVersion": asked["apiVersion"], "status": status}),
        )
    })
    .await?;
    let caller = Caller::new(Vec::new()).of_operator();
    let own = OwnIssuers {
        fixed: vec!["https://issuer.example.com".to_owned()],
        named: None,
    };
    let minute = Duration::from_secs(60);
    let config = webhook(&kubeconfig(&server))?;
    let version = ReviewVersion::V1;
    let checked = TokenWebhook::new(config, &caller, version, vec!["api".into()], minute, own)?;
    for _ in 0..3 {
        let Authentication::User(user) = judge(&checked, "jane").await else {
            anyhow::bail!("jane is nobody");
        };
        ensure!(
            user.name == "jane" && user.uid == "7" && user.in_group("dev"),
            "{user:?}"
        );
        ensure!(
            user.in_group("system:authenticated") && user.extra.len() == 1,
            "{user:?}"
        );
    }
    for token in ["other", "nobody", "wrong"] {
        for _ in 0..3 {
            let judged = judge(&checked, token).await;
            ensure!(
                matches!(judged, Authentication::Denied(_)),
                "{token}: {judged:?}"
            );
        }
    }
    let received = server.received();
    ensure!(received.len() == 4, "{}", received.len());
    ensure!(
        received
            .iter()
            .all(|one| one.authorization == "Bearer for-the-webhook")
    );
    ensure!(received.iter().all(|one| one.path == "/review?a=b"));
    let first: Value = serde_json::from_slice(&received[0].body)?;
    ensure!(
        first
            == json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": "jane", "audiences": ["api"]}}),
        "{first}"
    );
    for issuer in [
        "https://planes.example.com/clusters/abc/control-plane",
        "kubernetes/serviceaccount",
        "https://issuer.example.com",
    ] {
        ensure!(
            judge(&checked, &jwt(issuer)).await == Authentication::NoOpinion,
            "{issuer}"
        );
    }
    ensure!(server.received().len() == 4);
    judge(&checked, &jwt("https://elsewhere.example.com")).await;
    ensure!(server.received().len() == 5, "the twin is sent");
    Ok(())
}

/// Returns an authenticator whose webhook is at `url`.
async fn token_webhook_at(url: String) -> Result<TokenWebhook> {
    let mut server = Outside::start(|_| (StatusCode::OK, Value::Null)).await?;
    server.url = url;
    let (config, version) = (webhook(&kubeconfig(&server))?, ReviewVersion::V1);
    let caller = Caller::new(Vec::new()).of_operator();
    let (minute, own) = (Duration::from_secs(60), OwnIssuers::default());
    Ok(TokenWebhook::new(
        config,
        &caller,
        version,
        Vec::new(),
        minute,
        own,
    )?)
}

/// Tokens of one source that a slow webhook has no place for are put off and not refused, and those of
/// another source have places.
#[tokio::test]
async fn a_flood_of_tokens_from_one_source_leaves_places_to_others() -> Result<()> {
    const FLOOD: usize = 200;
    const OF_SOURCE_MAX: usize = 64;
    // It accepts connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}", silent.local_addr()?);
    let checked = Arc::new(token_webhook_at(url).await?);
    let mut flood = tokio::task::JoinSet::new();
    for number in 0..FLOOD {
        let checked = Arc::clone(&checked);
        flood.spawn(async move { judge_from(&checked, &format!("opaque-{number}"), 1).await });
    }
    for _ in OF_SOURCE_MAX..FLOOD {
        let judged = flood.join_next().await.context("one of the flood")??;
        ensure!(
            judged == Authentication::Denied(Denied::Crowded),
            "{judged:?}"
        );
    }
    let newcomer = judge_from(&checked, "opaque-of-jane", 2);
    let judged = tokio::time::timeout(Duration::from_millis(100), newcomer).await;
    ensure!(judged.is_err(), "it waits for the webhook: {judged:?}");
    Ok(())
}

/// As upstream, a token is refused if the webhook fails. While the webhook is not asked, because it has failed
/// too often, tokens are put off.
#[tokio::test]
async fn a_token_is_put_off_while_its_webhook_is_not_asked() -> Result<()> {
    let gone = token_webhook_at("https://127.0.0.1:1".to_owned()).await?;
    let first = judge(&gone, "opaque").await;
    ensure!(
        matches!(first, Authentication::Denied(Denied::Delegated(_))),
        "{first:?}"
    );
    let second = judge(&gone, "opaque").await;
    ensure!(
        matches!(second, Authentication::Denied(Denied::NotAsked(_))),
        "{second:?}"
    );
    Ok(())
}

/// A webhook decides on requests, each question is sent once while its answer is cached, and one that
/// does not answer decides nothing.
#[tokio::test]
async fn an_access_webhook_decides_and_an_absent_one_has_no_opinion() -> Result<()> {
    let server = Outside::start(|request| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let status = match asked["spec"]["resourceAttributes"]["verb"]
            .as_str()
            .unwrap_or("")
        {
            "get" => json!({"allowed": true}),
            "list" => json!({"allowed": false, "reason": "not yours"}),
            "delete" => json!({"allowed": false, "denied": true, "reason": "never"}),
            "patch" => json!({"allowed": true, "denied": true}),
            _ => return (StatusCode::INTERNAL_SERVER_ERROR, Value::Null),
        };
        let kind = &asked["kind"];
        (
            StatusCode::OK,
            json!({"kind": kind, "apiVersion": asked["apiVersion"], "status": status}),
        )
    })
    .await?;
    let caller = Caller::new(Vec::new()).of_operator();
    let minute = Duration::from_secs(60);
    let version = ReviewVersion::V1;
    let config = webhook(&kubeconfig(&server))?;
    let checked = AccessWebhook::new(config, &caller, version, (minute, minute))?;
    let user = UserInfo::new("jane", &["dev"]);
    let attributes = |verb: &'static str| Attributes {
        user: &user,
        verb,
        subject: Subject::Resource {
            group: "apps",
            version: "v1",
            resource: "deployments",
            subresource: "",
            namespace: "demo",
            name: "",
            field_selector: "metadata.name=web",
        },
    };
    for (verb, decision) in [
        ("get", Decision::Allow),
        ("list", Decision::NoOpinion("not yours".to_owned())),
        ("delete", Decision::Deny("never".to_owned())),
        ("patch", Decision::Deny(String::new())),
    ] {
        for _ in 0..3 {
            let attributes = attributes(verb);
            let decided = checked.authorize(&attributes).await;
            ensure!(decided == decision, "{verb}: {decided:?}");
        }
    }
    let received = server.received();
    ensure!(received.len() == 4, "{}", received.len());
    let first: Value = serde_json::from_slice(&received[0].body)?;
    ensure!(
        first
            == json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"user": "jane", "groups": ["dev"], "resourceAttributes": {"group": "apps",
                "version": "v1", "resource": "deployments", "namespace": "demo", "verb": "get",
                "fieldSelector": {"requirements": [
                    {"key": "metadata.name", "operator": "In", "values": ["web"]}]}}}}),
        "{first}"
    );
    let failing = attributes("watch");
    ensure!(checked.authorize(&failing).await == Decision::NoOpinion(String::new()));
    drop(Arc::new(server));
    Ok(())
}

/// A kubeconfig that cannot be followed is refused, and the refusal names what is wrong.
#[tokio::test]
async fn kubeconfigs_that_cannot_be_followed_are_refused() -> Result<()> {
    let server = Outside::start(|_| (StatusCode::OK, Value::Null)).await?;
    let sound = kubeconfig(&server);
    ensure!(webhook(&sound).is_ok());
    let mut bare = sound.clone();
    bare["users"] = json!([{"name": "api"}]);
    ensure!(webhook(&bare).is_ok(), "it has no credential");
    for (pointer, value, words) in [
        ("/current-context", json!("other"), "the context \"other\""),
        (
            "/contexts/0/context/cluster",
            json!("other"),
            "the cluster \"other\"",
        ),
        (
            "/contexts/0/context/user",
            json!("other"),
            "the user \"other\"",
        ),
        ("/users/0/user", json!({"exec": {"command": "x"}}), "exec"),
        (
            "/users/0/user",
            json!({"tokenFile": "/nowhere"}),
            "/nowhere is not there",
        ),
        (
            "/users/0/user",
            json!({"client-certificate-data": "YQ=="}),
            "certificate or key",
        ),
        (
            "/clusters/0/cluster/certificate-authority-data",
            json!("YQ=="),
            "CA bundle",
        ),
        (
            "/clusters/0/cluster/certificate-authority-data",
            json!("*"),
            "certificate-authority",
        ),
    ] {
        let mut wrong = sound.clone();
        if let Some(place) = wrong.pointer_mut(pointer) {
            *place = value;
        }
        let refused = webhook(&wrong).err().map(|error| format!("{error:#}"));
        ensure!(
            refused.as_ref().is_some_and(|said| said.contains(words)),
            "{pointer}: {refused:?}"
        );
    }
    let mut proxied = sound.clone();
    proxied["clusters"][0]["cluster"]["proxy-url"] = json!("http://proxy");
    ensure!(webhook(&proxied).is_err());
    proxied["clusters"][0]["cluster"] =
        json!({"server": server.url, "insecure-skip-tls-verify": true});
    ensure!(webhook(&proxied).is_err());
    Ok(())
}
