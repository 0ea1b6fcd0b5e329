//! Users whom servers of others prove: issuers of tokens, and webhooks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{Method, StatusCode};
use polyplane_tests::client::Client;
use polyplane_tests::drop_in::DropIn;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::outside::{DISCOVERY, IssuerKey, KEYS, Outside, TokenIssuer};
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Writes the file for an issuer, and returns its path.
fn configuration(folder: &Path, issuer: &TokenIssuer) -> Result<String> {
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": issuer.server.url, "audiences": ["planes"],
                "certificateAuthority": issuer.server.ca_pem},
            "claimMappings": {
                "username": {"claim": "sub", "prefix": "oidc:"},
                "groups": {"expression": "claims.?roles.orValue([]).map(role, 'role:' + role)"}},
            "userValidationRules": [{"expression": "!user.username.startsWith('system:')"}]}]});
    let path = folder.join("authentication.yaml");
    std::fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

/// The token of an issuer proves a user with groups by claims, who may do in the root what roles say, and
/// enters a plane only by a grant, under another name. A wrong one is 401 everywhere, and what strangers
/// send causes no calls beyond the look-ups.
#[tokio::test]
async fn an_issuers_token_proves_a_user_of_the_root_and_nobody_elsewhere() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let issuer = TokenIssuer::start(vec![("one", IssuerKey::curve()?)]).await?;
    let file = configuration(folder.path(), &issuer)?;
    let options = ["--authentication-config", &file, "--replicas", "2"];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let root = server.root()?;
    create_plane(&root, "a").await?;
    let masters = Client::open(&root).await?;
    let token = issuer.token("one", &json!({"roles": ["dev", "ops"]}))?;
    let jane = root.with_token(Some(&token));
    let in_root = Client::open(&jane).await?;
    let in_a = Client::open(&jane.at_base_path("/clusters/a")).await?;
    let who = in_root.post(WHO, &json!({})).await?.expect(201)?;
    let groups = json!(["role:dev", "role:ops", "system:authenticated"]);
    let user = &who["status"]["userInfo"];
    ensure!(
        user["username"] == "oidc:jane" && user["groups"] == groups,
        "{who}"
    );
    let review = |audiences: Value| json!({"spec": {"token": token, "audiences": audiences}});
    let reviewed = masters
        .post(REVIEWS, &review(json!([])))
        .await?
        .expect(201)?;
    let status = &reviewed["status"];
    ensure!(
        status["authenticated"] == true && status["user"]["username"] == "oidc:jane",
        "{status}"
    );
    ensure!(
        status["audiences"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{status}"
    );
    let elsewhere = masters
        .post(REVIEWS, &review(json!(["vault"])))
        .await?
        .expect(201)?;
    ensure!(elsewhere["status"]["authenticated"] != true, "{elsewhere}");
    in_root.get(CONFIG_MAPS).await?.refuses(403, "oidc:jane")?;
    in_a.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    let binding = json!({"metadata": {"name": "dev"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "role:dev"}]});
    masters.post(BINDINGS, &binding).await?.expect(201)?;
    in_root.get(CONFIG_MAPS).await?.expect(200)?;
    in_a.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    let access =
        json!({"spec": {"access": {"grants": [{"group": "role:ops", "groups": ["guests"]}]}}});
    let path = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
    masters
        .typed(
            Method::PATCH,
            path,
            "application/merge-patch+json",
            access.to_string(),
        )
        .await?
        .expect(200)?;
    let who = in_a.post(WHO, &json!({})).await?.expect(201)?;
    let user = &who["status"]["userInfo"];
    ensure!(user["username"] == "root:oidc:jane", "{who}");
    ensure!(
        user["groups"] == json!(["guests", "system:authenticated"]),
        "{who}"
    );
    strangers(&issuer, &root).await?;
    kubectl(&server, folder.path(), &token)?;
    let text = server.log()?;
    ensure!(!text.contains(&token), "the log has the token");
    Ok(())
}

/// Sends wrong tokens to existing and missing planes.
async fn strangers(issuer: &TokenIssuer, root: &Endpoint) -> Result<()> {
    let before = (issuer.server.hits(DISCOVERY), issuer.server.hits(KEYS));
    let own = IssuerKey::curve()?;
    let header = json!({"alg": "ES256", "kid": "one"});
    let claims =
        json!({"iss": issuer.server.url, "sub": "jane", "aud": "planes", "exp": 4_000_000_000_u64});
    let forged = own.sign(&header, &claims)?;
    let vault = issuer.token("one", &json!({"aud": "vault"}))?;
    let expired = issuer.token("one", &json!({"exp": 1}))?;
    let system = issuer.token("one", &json!({"iss": "https://elsewhere.example.com"}))?;
    for token in [&forged, &vault, &expired, &system] {
        for place in ["", "/clusters/a", "/clusters/missing"] {
            let stranger = root.with_token(Some(token)).at_base_path(place);
            let refused = Client::open(&stranger).await?.get(CONFIG_MAPS).await?;
            refused
                .refuses(401, "Unauthorized")
                .with_context(|| place.to_owned())?;
        }
    }
    let after = (issuer.server.hits(DISCOVERY), issuer.server.hits(KEYS));
    ensure!(before == after && after.0 <= 2, "{before:?} {after:?}");
    Ok(())
}

/// The real kubectl with the token.
fn kubectl(server: &Up, folder: &Path, token: &str) -> Result<()> {
    let bin = server.kubeconfig.with_file_name("bin");
    let kubectl = Kubectl::find(&server.kubeconfig, folder, &bin)?.in_context("root");
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&server.kubeconfig)?)?;
    for user in config["users"].as_array_mut().into_iter().flatten() {
        user["user"] = json!({"token": token});
    }
    let path = folder.join("jane.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    let kubectl = kubectl.with_kubeconfig(&path);
    let who = kubectl.ok(&[
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo.username}",
    ])?;
    ensure!(who == "oidc:jane", "{who}");
    kubectl.ok(&["get", "configmaps"])?;
    ensure!(
        kubectl
            .fails(&["create", "namespace", "x"])?
            .contains("oidc:jane")
    );
    Ok(())
}

/// Waits until a caller gets this status.
async fn until(caller: &Client, status: StatusCode) -> Result<()> {
    for _ in 0..300 {
        if caller.post(WHO, &json!({})).await?.status == status {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("no {status} within half a minute")
}

/// A changed file is read again, at each replica, without a restart. A wrong one changes nothing and is
/// named in the log; whom the server admits without credentials is decided at the start alone.
#[tokio::test]
async fn a_changed_configuration_is_read_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let issuer = TokenIssuer::start(vec![("one", IssuerKey::curve()?)]).await?;
    let file = configuration(folder.path(), &issuer)?;
    let good = std::fs::read_to_string(&file)?;
    let options = ["--authentication-config", &file, "--replicas", "2"];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let token = issuer.token("one", &json!({}))?;
    let jane = server.root()?.with_token(Some(&token));
    let jane = Client::open(&jane).await?;
    until(&jane, StatusCode::CREATED).await?;

    for (wrong, words) in [
        (good.replace("claims.?roles", "claimz.?roles"), "claimz"),
        ("{".to_owned(), "it is not YAML"),
        (
            good.replace("\"jwt\"", "\"anonymous\": {\"enabled\": false}, \"jwt\""),
            "anonymous: Forbidden: changed from initial configuration file",
        ),
    ] {
        std::fs::write(&file, wrong)?;
        let mut log = String::new();
        for _ in 0..300 {
            log = server.log()?;
            if log.contains("has changed without effect") && log.contains(words) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ensure!(log.contains(words), "{words}: {log}");
        ensure!(jane.post(WHO, &json!({})).await?.status == StatusCode::CREATED);
    }
    let none =
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration"});
    std::fs::write(&file, none.to_string())?;
    until(&jane, StatusCode::UNAUTHORIZED).await?;
    std::fs::write(&file, good)?;
    until(&jane, StatusCode::CREATED).await?;

    let metrics = Client::open(&server.root()?).await?;
    let metrics = metrics
        .raw(ask(Method::GET, "/metrics", &Value::Null))
        .await?;
    let metrics = String::from_utf8(metrics.body.to_vec())?;
    let reloads = "apiserver_authentication_config_controller_automatic_reloads_total";
    for line in ["status=\"failure\"} 3\n", "status=\"success\"} 2\n"] {
        let found = metrics
            .lines()
            .any(|one| one.starts_with(reloads) && format!("{one}\n").ends_with(line));
        ensure!(found, "{line}{metrics}");
    }
    Ok(())
}

/// Returns the lines of `/metrics` about the keys of issuers, without numbers of seconds.
async fn key_metrics(root: &Endpoint) -> Result<Vec<String>> {
    let metrics = Client::open(root).await?;
    let metrics = metrics.raw(ask(Method::GET, "/metrics", &Value::Null));
    let metrics = String::from_utf8(metrics.await?.body.to_vec())?;
    let of_keys = metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_authentication_jwt_authenticator_jwks_fetch_"));
    Ok(of_keys
        .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()))
        .collect())
}

/// The metrics say which keys each issuer of the operator has and when they were fetched, until the issuer
/// is no longer named.
#[tokio::test]
async fn metrics_show_the_keys_of_issuers_that_are_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let issuer = TokenIssuer::start(vec![("one", IssuerKey::curve()?)]).await?;
    let file = configuration(folder.path(), &issuer)?;
    let options = ["--authentication-config", &file];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let root = server.root()?;
    ensure!(key_metrics(&root).await?.is_empty(), "no key is known yet");
    let token = issuer.token("one", &json!({}))?;
    let jane = Client::open(&root.with_token(Some(&token))).await?;
    until(&jane, StatusCode::CREATED).await?;
    let lines = key_metrics(&root).await?;
    let is_known = |part: &str| lines.iter().any(|line| line.contains(part));
    ensure!(
        lines.len() == 2
            && is_known("last_key_set_info{")
            && is_known("hash=\"sha256:")
            && is_known("result=\"success\""),
        "{lines:?}"
    );
    let hash = digest(&SHA256, issuer.server.url.as_bytes());
    let hash: String = hash
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let of_issuer = format!("jwt_issuer_hash=\"sha256:{hash}\"");
    ensure!(
        lines.iter().all(|line| line.contains(&of_issuer)),
        "{lines:?}"
    );
    // The same issuer in a changed file keeps its metrics.
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("role:", "group:"))?;
    let client = Client::open(&root).await?;
    for _ in 0..300 {
        let metrics = client.raw(ask(Method::GET, "/metrics", &Value::Null));
        let metrics = String::from_utf8(metrics.await?.body.to_vec())?;
        if metrics.contains("automatic_reloads_total{") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(key_metrics(&root).await? == lines);
    let none =
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration"});
    std::fs::write(&file, none.to_string())?;
    until(&jane, StatusCode::UNAUTHORIZED).await?;
    ensure!(key_metrics(&root).await?.is_empty());
    Ok(())
}

/// A file that cannot be used ends the start with the flag, the file and the field.
#[tokio::test]
async fn a_wrong_configuration_ends_the_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("authentication.yaml");
    let shown = path.display().to_string();
    for (text, words) in [
        (
            "apiVersion: v1\nkind: Policy\n",
            "AuthenticationConfiguration of apiserver.config.k8s.io/v1",
        ),
        (
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: [{issuer: {url: 'http://x'}}]\n",
            "jwt[0].issuer.url",
        ),
        (
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\n",
            "anonymous.enabled",
        ),
    ] {
        std::fs::write(&path, text)?;
        let ended = refused(
            &folder.path().join("data"),
            &["--authentication-config", &shown],
        )
        .await?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(
            said.contains("--authentication-config") && said.contains(&shown),
            "{said}"
        );
        ensure!(said.contains(words), "{said}");
    }
    Ok(())
}

/// A webhook for tokens and access: jane's token is good, and she may read what is not secret.
async fn webhook() -> Result<Outside> {
    Outside::start(|request| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let spec = &asked["spec"];
        let status = match asked["kind"].as_str() {
            Some("TokenReview") if spec["token"] == "opaque-of-jane" => {
                json!({"authenticated": true, "user": {"username": "jane", "groups": ["dev"]}})
            }
            Some("TokenReview") => json!({"authenticated": false}),
            _ => {
                let resource = &spec["resourceAttributes"];
                let is_read = resource["verb"] == "get" || resource["verb"] == "list";
                let is_secret = resource["resource"] == "secrets";
                let allowed = spec["user"] == "jane" && is_read && !is_secret;
                json!({"allowed": allowed, "denied": is_secret, "reason": "says the webhook"})
            }
        };
        let kind = &asked["kind"];
        (
            StatusCode::OK,
            json!({"kind": kind, "apiVersion": asked["apiVersion"], "status": status}),
        )
    })
    .await
}

fn webhook_kubeconfig(folder: &Path, server: &Outside) -> Result<String> {
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "webhook",
        "contexts": [{"name": "webhook", "context": {"cluster": "webhook"}}],
        "clusters": [{"name": "webhook", "cluster": {"server": server.url,
            "certificate-authority-data": BASE64_STANDARD.encode(&server.ca_pem)}}]});
    let path = folder.join("webhook.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

/// The drop-in with an issuer, a webhook for tokens and one for access: each proves its users, the webhook
/// decides what they may do, and sees neither the issuer's nor the server's own tokens.
#[tokio::test]
async fn a_drop_in_asks_issuers_and_webhooks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let issuer = TokenIssuer::start(vec![("one", IssuerKey::rsa()?)]).await?;
    let webhook = webhook().await?;
    let file = configuration(folder.path(), &issuer)?;
    let hook = webhook_kubeconfig(folder.path(), &webhook)?;
    let flags = [
        format!("--authentication-config={file}"),
        format!("--authentication-token-webhook-config-file={hook}"),
        "--authentication-token-webhook-version=v1".to_owned(),
        "--authorization-mode=RBAC,Webhook".to_owned(),
        format!("--authorization-webhook-config-file={hook}"),
        "--authorization-webhook-version=v1".to_owned(),
    ];
    let drop_in = DropIn::start(tempfile::tempdir()?, flags.into(), None).await?;
    let jane = drop_in.endpoint(&json!({"token": "opaque-of-jane"}))?;
    let client = Client::open(&jane).await?;
    let who = client.post(WHO, &json!({})).await?.expect(201)?;
    ensure!(
        who["status"]["userInfo"]["groups"] == json!(["dev", "system:authenticated"]),
        "{who}"
    );
    client.get(CONFIG_MAPS).await?.expect(200)?;
    let secrets = "/api/v1/namespaces/default/secrets";
    client
        .get(secrets)
        .await?
        .refuses(403, "says the webhook")?;
    let named = json!({"metadata": {"name": "x"}});
    client
        .post(CONFIG_MAPS, &named)
        .await?
        .refuses(403, "says the webhook")?;
    let wrong = Client::open(&jane.with_token(Some("opaque-of-eve"))).await?;
    wrong.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    let token = issuer.token("one", &json!({"roles": ["dev"]}))?;
    let by_issuer = Client::open(&jane.with_token(Some(&token))).await?;
    by_issuer
        .get(CONFIG_MAPS)
        .await?
        .refuses(403, "oidc:jane")?;
    let forged = IssuerKey::rsa()?;
    let claims =
        json!({"iss": issuer.server.url, "sub": "jane", "aud": "planes", "exp": 4_000_000_000_u64});
    let own = json!({"iss": "https://own.example.com/", "sub": "system:serviceaccount:default:x"});
    let header = json!({"alg": "RS256", "kid": "one"});
    for token in [forged.sign(&header, &claims)?, forged.sign(&header, &own)?] {
        let stranger = Client::open(&jane.with_token(Some(&token))).await?;
        stranger
            .get(CONFIG_MAPS)
            .await?
            .refuses(401, "Unauthorized")?;
    }
    let asked = webhook.received();
    let seen = |text: &str| {
        asked
            .iter()
            .any(|one| String::from_utf8_lossy(&one.body).contains(text))
    };
    ensure!(
        seen("opaque-of-jane") && seen("opaque-of-eve"),
        "the twins are sent"
    );
    ensure!(
        !seen("\"token\":\"ey"),
        "the webhook got a token that is judged here"
    );
    Ok(())
}

/// The webhook for access decides on what roles leave open in the root, and is not asked about the users
/// of other planes, who may have the same names.
#[tokio::test]
async fn a_webhook_for_access_decides_about_the_root_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let webhook = webhook().await?;
    let hook = webhook_kubeconfig(folder.path(), &webhook)?;
    let options = [
        "--authentication-token-webhook-config-file",
        &hook,
        "--authorization-webhook-config-file",
        &hook,
        "--authorization-webhook-version=v1",
        "--replicas=2",
    ];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let root = server.root()?;
    create_plane(&root, "a").await?;
    let jane = root.with_token(Some("opaque-of-jane"));
    let in_root = Client::open(&jane).await?;
    in_root.get(CONFIG_MAPS).await?.expect(200)?;
    let secrets = "/api/v1/namespaces/default/secrets";
    in_root
        .get(secrets)
        .await?
        .refuses(403, "says the webhook")?;
    let review =
        json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "configmaps"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let allowed = in_root.post(reviews, &review).await?.expect(201)?;
    ensure!(allowed["status"]["allowed"] == true, "{allowed}");
    let masters = Client::open(&root).await?;
    let access = json!({"spec": {"access": {"grants": [
        {"group": "system:masters", "groups": ["system:masters"]},
        {"group": "dev", "groups": ["guests"]}]}}});
    let path = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
    let merge = "application/merge-patch+json";
    let patched = masters.typed(Method::PATCH, path, merge, access.to_string());
    patched.await?.expect(200)?;
    // As a guest from the root, and as the plane's own user of that name.
    let reviewed = |asked: &[polyplane_tests::outside::Received]| {
        let is_review = |one: &&polyplane_tests::outside::Received| {
            String::from_utf8_lossy(&one.body).contains("SubjectAccessReview")
        };
        asked.iter().filter(is_review).count()
    };
    let before = reviewed(&webhook.received());
    ensure!(before > 0, "the twin in the root is asked about");
    let in_a = Client::open(&jane.at_base_path("/clusters/a")).await?;
    in_a.get(CONFIG_MAPS).await?.refuses(403, "root:jane")?;
    let bin = server.kubeconfig.with_file_name("bin");
    let kubectl = Kubectl::find(&server.kubeconfig, folder.path(), &bin)?;
    let own = kubectl.ok(&["plane", "kubeconfig", "a", "--user=jane", "--group=dev"])?;
    let file = folder.path().join("jane.a");
    std::fs::write(&file, own)?;
    let own = Client::open(&Endpoint::from_kubeconfig(&file, None)?).await?;
    own.get(CONFIG_MAPS).await?.refuses(403, "jane")?;
    let denied = own.post(reviews, &review).await?.expect(201)?;
    ensure!(denied["status"]["allowed"] == false, "{denied}");
    let after = reviewed(&webhook.received());
    ensure!(after == before, "the webhook is asked about another plane");
    Ok(())
}
