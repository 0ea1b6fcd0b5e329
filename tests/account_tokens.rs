//! Service account tokens of planes: whom they prove where, and until when.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{create_plane, remove_plane, until_asleep};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";

/// A plane whose roles let every account, and every authenticated user, do everything.
struct Open {
    name: String,
    endpoint: Endpoint,
    admin: Client,
}

impl Open {
    async fn of(name: &str, endpoint: Endpoint) -> Result<Self> {
        let admin = Client::open(&endpoint).await?;
        let binding = json!({"metadata": {"name": "everybody"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "Group", "name": "system:authenticated"},
                {"kind": "ServiceAccount", "name": "builder", "namespace": "default"}]});
        admin.post(BINDINGS, &binding).await?.expect(201)?;
        let account = json!({"metadata": {"name": "builder"}});
        admin.post(ACCOUNTS, &account).await?.expect(201)?;
        Ok(Self {
            name: name.to_owned(),
            endpoint,
            admin,
        })
    }

    async fn token(&self, spec: Value) -> Result<String> {
        let path = format!("{ACCOUNTS}/builder/token");
        let request = json!({"spec": spec});
        let answer = self.admin.post(&path, &request).await?.expect(201)?;
        text(&answer, "/status/token")
    }

    /// Returns the status that a request with a token gets.
    async fn status(&self, token: &str) -> Result<u16> {
        status(&self.endpoint, token).await
    }
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found
        .map(str::to_owned)
        .with_context(|| format!("{pointer} of {value}"))
}

async fn status(endpoint: &Endpoint, token: &str) -> Result<u16> {
    let client = Client::open(&endpoint.with_token(Some(token))).await?;
    Ok(client.get(CONFIG_MAPS).await?.status.as_u16())
}

/// Returns what anybody gets at a path of the server.
async fn in_public(endpoint: &Endpoint, path: &str) -> Result<(u16, Value)> {
    let nobody = endpoint.at_base_path("").with_token(None);
    let reply = Client::open(&nobody).await?.get(path).await?;
    Ok((reply.status.as_u16(), reply.body))
}

/// Every token against every plane, the root included: 200 in its own, 401 elsewhere. The roles of
/// each plane would let the account of the same name do everything.
#[tokio::test]
async fn a_token_of_one_plane_is_nobody_in_every_other() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let mut planes = vec![Open::of("root", root.clone()).await?];
    for name in ["a", "b", "c"] {
        planes.push(Open::of(name, create_plane(&root, name).await?).await?);
    }
    let (mut accepted, mut refused) = (0, 0);
    for of in &planes {
        let tokens = [
            of.token(json!({})).await?,
            of.token(json!({"audiences": []})).await?,
            held_token(of, "held").await?,
        ];
        for token in tokens {
            for plane in &planes {
                let expected = if plane.name == of.name { 200 } else { 401 };
                let status = plane.status(&token).await?;
                ensure!(
                    status == expected,
                    "{} at {}: {status}",
                    of.name,
                    plane.name
                );
                match status {
                    200 => accepted += 1,
                    _ => refused += 1,
                }
                let review = json!({"spec": {"token": token}});
                let review = plane.admin.post(REVIEWS, &review).await?.expect(201)?;
                let says = review["status"]["authenticated"] == true;
                ensure!(says == (expected == 200), "{review}");
            }
        }
    }
    println!(
        "tokens across planes: {accepted} accepted at home, {refused} refused elsewhere, 0 accepted elsewhere"
    );
    Ok(())
}

/// Creates a Secret for a token of the account, and returns the token.
async fn held_token(plane: &Open, name: &str) -> Result<String> {
    let secret = json!({"metadata": {"name": name,
            "annotations": {"kubernetes.io/service-account.name": "builder"}},
        "type": "kubernetes.io/service-account-token"});
    plane.admin.post(SECRETS, &secret).await?.expect(201)?;
    let path = format!("{SECRETS}/{name}");
    let filled = async {
        loop {
            let secret = plane.admin.get(&path).await?.expect(200)?;
            if let Ok(token) = text(&secret, "/data/token") {
                let token = BASE64_STANDARD.decode(token)?;
                return anyhow::Ok(String::from_utf8(token)?);
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), filled).await?
}

/// A plane that is made anew under its name has another issuer and other keys, and no token of its
/// namesake proves anybody there.
#[tokio::test]
async fn a_plane_of_the_same_name_accepts_nothing_of_its_namesake() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let first = Open::of("a", create_plane(&root, "a").await?).await?;
    let tokens = [
        first.token(json!({})).await?,
        held_token(&first, "held").await?,
    ];
    for token in &tokens {
        ensure!(first.status(token).await? == 200);
    }
    let first_documents = documents(&root, "a").await?;
    remove_plane(&root, "a").await?;
    for token in &tokens {
        ensure!(first.status(token).await? == 401);
    }
    let second = Open::of("a", create_plane(&root, "a").await?).await?;
    for token in &tokens {
        ensure!(second.status(token).await? == 401);
    }
    let fresh = second.token(json!({})).await?;
    ensure!(second.status(&fresh).await? == 200);
    let second_documents = documents(&root, "a").await?;
    ensure!(first_documents.0["issuer"] != second_documents.0["issuer"]);
    ensure!(first_documents.1["keys"] != second_documents.1["keys"]);
    let claims = claims(&fresh)?;
    ensure!(claims["iss"] == second_documents.0["issuer"], "{claims}");
    Ok(())
}

/// Returns the two documents of a plane as the public sees them.
async fn documents(root: &Endpoint, name: &str) -> Result<(Value, Value)> {
    let admin = Client::open(root).await?;
    let record = admin.get(&format!("{PLANES}/{name}")).await?.expect(200)?;
    let base = format!("/clusters/{}/control-plane", text(&record, "/status/id")?);
    let path = format!("{base}/.well-known/openid-configuration");
    let (status, configuration) = in_public(root, &path).await?;
    ensure!(status == 200, "{configuration}");
    let (status, keys) = in_public(root, &format!("{base}/openid/v1/jwks")).await?;
    ensure!(status == 200, "{keys}");
    ensure!(text(&configuration, "/jwks_uri")?.ends_with(&format!("{base}/openid/v1/jwks")));
    // At the path of the name roles decide, and an id that no plane has is like any other path.
    let at_name = format!("/clusters/{name}/openid/v1/jwks");
    ensure!(in_public(root, &at_name).await?.0 == 401);
    admin.get(&at_name).await?.expect(200)?;
    let nobody = "/clusters/p00000000000000000000/control-plane/openid/v1/jwks";
    ensure!(in_public(root, nobody).await?.0 == 401);
    Ok((configuration, keys))
}

fn claims(token: &str) -> Result<Value> {
    let payload = token.split('.').nth(1).context("a token has three parts")?;
    Ok(serde_json::from_slice(
        &BASE64_URL_SAFE_NO_PAD.decode(payload)?,
    )?)
}

/// Nobody can make a token from another, from the public key or from nothing.
#[tokio::test]
async fn forged_tokens_prove_nobody() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let plane = Open::of("a", create_plane(&root, "a").await?).await?;
    let token = plane.token(json!({})).await?;
    ensure!(plane.status(&token).await? == 200);
    let parts: Vec<&str> = token.split('.').collect();
    let (header, payload, signature) = (parts[0], parts[1], parts[2]);
    let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let (_, keys) = documents(&root, "a").await?;
    let kid = text(&keys, "/keys/0/kid")?;
    let none = encode(r#"{"alg":"none"}"#);
    let none_with_key = encode(&format!(r#"{{"alg":"none","kid":"{kid}"}}"#));
    let hmac = encode(&format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#));
    let with_jwk = encode(&json!({"alg": "ES256", "kid": kid, "jwk": keys["keys"][0]}).to_string());
    let mut masters = claims(&token)?;
    masters["sub"] = json!("system:admin");
    let masters = encode(&masters.to_string());
    let other = plane.token(json!({"audiences": ["vault"]})).await?;
    let forged = [
        format!("{none}.{payload}."),
        format!("{none}.{payload}.{signature}"),
        format!("{none_with_key}.{payload}.{signature}"),
        format!("{hmac}.{payload}.{signature}"),
        format!("{with_jwk}.{payload}.{signature}"),
        format!("{header}.{masters}.{signature}"),
        format!("{header}.{payload}"),
        format!("{header}.{payload}."),
        format!("{header}..{signature}"),
        format!("{header}.{payload}.{signature}."),
        format!("{header}.{payload}.{signature}="),
        token.to_uppercase(),
        other,
        "eyJ".repeat(3000),
    ];
    for forged in &forged {
        let status = plane.status(forged).await?;
        ensure!(status == 401, "{status}: {forged}");
    }
    println!("forged tokens: {} refused, 0 accepted", forged.len());
    Ok(())
}

/// What a token rests on is looked up by each request: the first one after the deletion is refused.
#[tokio::test]
async fn a_token_ends_with_what_it_rests_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let plane = Open::of("a", create_plane(&root, "a").await?).await?;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "bound"}, "spec": {"serviceAccountName": "builder",
        "containers": [{"name": "c", "image": "i"}]}});
    let secret = json!({"metadata": {"name": "bound"}});
    let node = json!({"metadata": {"name": "bound"}});
    let bound = [
        ("Pod", pods, &pod),
        ("Secret", SECRETS, &secret),
        ("Node", "/api/v1/nodes", &node),
    ];
    for (kind, path, object) in bound {
        for _ in 0..3 {
            plane.admin.post(path, object).await?.expect(201)?;
            let reference = json!({"apiVersion": "v1", "kind": kind, "name": "bound"});
            let token = plane.token(json!({"boundObjectRef": reference})).await?;
            ensure!(plane.status(&token).await? == 200, "{kind}");
            let one = format!("{path}/bound?gracePeriodSeconds=0");
            plane.admin.delete(&one).await?.expect(200)?;
            ensure!(plane.status(&token).await? == 401, "{kind}");
            plane.admin.post(path, object).await?.expect(201)?;
            ensure!(plane.status(&token).await? == 401, "{kind} again");
            plane.admin.delete(&one).await?.expect(200)?;
        }
    }
    let held = held_token(&plane, "held").await?;
    ensure!(plane.status(&held).await? == 200);
    let other = plane.token(json!({})).await?;
    // Not a PUT: the server writes to the Secret too, when its token is used.
    let changed = json!({"data": {"token": BASE64_STANDARD.encode(&other)}}).to_string();
    let path = format!("{SECRETS}/held");
    let kind = "application/merge-patch+json";
    let changed = plane.admin.typed(http::Method::PATCH, &path, kind, changed);
    changed.await?.expect(200)?;
    ensure!(plane.status(&held).await? == 401, "the Secret has another");
    let again = held_token(&plane, "again").await?;
    plane
        .admin
        .delete(&format!("{SECRETS}/again"))
        .await?
        .expect(200)?;
    ensure!(plane.status(&again).await? == 401, "the Secret is gone");
    let account = format!("{ACCOUNTS}/builder");
    plane.admin.delete(&account).await?.expect(200)?;
    ensure!(plane.status(&other).await? == 401, "the account is gone");
    let account = json!({"metadata": {"name": "builder"}});
    plane.admin.post(ACCOUNTS, &account).await?.expect(201)?;
    ensure!(plane.status(&other).await? == 401, "the account is another");
    ensure!(plane.status(&plane.token(json!({})).await?).await? == 200);
    Ok(())
}

/// Strangers fetch the documents of planes that sleep, and none wakes.
#[tokio::test]
async fn the_key_sets_of_sleeping_planes_wake_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &["--sleep-after", "1"]).await?;
    let root = server.root()?;
    let names: Vec<String> = (0..20).map(|number| format!("plane-{number}")).collect();
    for name in &names {
        create_plane(&root, name).await?;
    }
    let admin = Client::open(&root).await?;
    let awake = async || -> Result<u64> {
        let ring = admin.get("/polyplane/ring").await?.expect(200)?;
        let awake = ring.pointer("/replicas/0/awake").and_then(Value::as_u64);
        awake.context("the ring says how many planes are awake")
    };
    until_asleep(&admin, Duration::from_secs(60)).await?;
    let mut keys = std::collections::BTreeSet::new();
    for name in &names {
        let record = admin.get(&format!("{PLANES}/{name}")).await?.expect(200)?;
        let id = text(&record, "/status/id")?;
        let path = format!("/clusters/{id}/control-plane/openid/v1/jwks");
        let (status, document) = in_public(&root, &path).await?;
        ensure!(status == 200, "{document}");
        keys.insert(text(&document, "/keys/0/kid")?);
    }
    ensure!(keys.len() == names.len(), "each plane has a key of its own");
    let awake = awake().await?;
    ensure!(awake == 1, "{awake} planes are awake, the root included");
    println!("{} key sets of sleeping planes, 0 woken", names.len());
    Ok(())
}

/// A revocation ends all tokens that an account got before, of every sort, and nothing else: not those
/// of a namesake in another plane, nor those that the account gets afterwards.
#[tokio::test]
async fn a_revoked_account_keeps_what_it_gets_afterwards() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let plane = Open::of("a", create_plane(&root, "a").await?).await?;
    let namesake = Open::of("b", create_plane(&root, "b").await?).await?;
    let other = json!({"metadata": {"name": "other"}});
    plane.admin.post(ACCOUNTS, &other).await?.expect(201)?;
    let path = format!("{ACCOUNTS}/other/token");
    let other = plane.admin.post(&path, &json!({"spec": {}})).await?;
    let other = text(&other.expect(201)?, "/status/token")?;
    let elsewhere = [
        namesake.token(json!({})).await?,
        held_token(&namesake, "held").await?,
    ];
    let reviewed = async |token: &str| -> Result<bool> {
        let review = json!({"spec": {"token": token}});
        let review = plane.admin.post(REVIEWS, &review).await?.expect(201)?;
        Ok(review["status"]["authenticated"] == true)
    };
    let mut earlier: Vec<String> = Vec::new();
    for round in 0..3 {
        let fresh = [
            plane.token(json!({})).await?,
            plane.token(json!({"expirationSeconds": 86_400})).await?,
            held_token(&plane, &format!("held-{round}")).await?,
        ];
        for token in &fresh {
            ensure!(plane.status(token).await? == 200 && reviewed(token).await?);
        }
        // A revocation dates `iat` of the next tokens ahead, but they are valid at once.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        for token in &fresh[..2] {
            let claims = claims(token)?;
            let begins = claims["nbf"].as_u64().context("a token has nbf")?;
            ensure!(begins <= now.as_secs(), "{claims}");
        }
        earlier.extend(fresh);
        let account = "system:serviceaccount:default:builder";
        let admin = Client::open(&root).await?;
        let record = format!("{PLANES}/a");
        let access = json!({"spec": {"access": {"revoked": [{"user": account}]}}}).to_string();
        let kind = "application/merge-patch+json";
        let revoked = admin
            .typed(http::Method::PATCH, &record, kind, access)
            .await?;
        revoked.expect(200)?;
        for token in &earlier {
            ensure!(plane.status(token).await? == 401 && !reviewed(token).await?);
        }
    }
    ensure!(plane.status(&other).await? == 200);
    for token in &elsewhere {
        ensure!(namesake.status(token).await? == 200);
    }
    println!("revoked tokens: {} refused, 0 accepted", earlier.len());
    Ok(())
}

/// Tokens name the URL under which clients reached the server when they were issued. They do not end
/// with that URL: the plane's key and its id prove them.
#[tokio::test]
async fn tokens_outlive_the_url_of_the_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let plane = Open::of("a", create_plane(&server.root()?, "a").await?).await?;
    let tokens = [
        plane.token(json!({})).await?,
        held_token(&plane, "held").await?,
    ];
    let for_vault = plane.token(json!({"audiences": ["vault"]})).await?;
    server.stop().await?;
    let server = Up::start(&data, &[]).await?;
    let endpoint = server.plane("a")?;
    let admin = Client::open(&endpoint).await?;
    for token in &tokens {
        ensure!(status(&endpoint, token).await? == 200);
        let review = json!({"spec": {"token": token}});
        let review = admin.post(REVIEWS, &review).await?.expect(201)?;
        ensure!(review["status"]["authenticated"] == true, "{review}");
    }
    ensure!(status(&endpoint, &for_vault).await? == 401);
    let path = format!("{ACCOUNTS}/builder/token");
    let fresh = admin.post(&path, &json!({"spec": {}})).await?.expect(201)?;
    let fresh = text(&fresh, "/status/token")?;
    ensure!(status(&endpoint, &fresh).await? == 200);
    let (old, new) = (claims(&tokens[0])?, claims(&fresh)?);
    ensure!(
        old["iss"] != new["iss"],
        "the server has another port: {new}"
    );
    Ok(())
}

/// Repeats a read until what it shows is right.
async fn until(plane: &Open, path: &str, is_right: impl Fn(&Value) -> bool) -> Result<Value> {
    let seen = async {
        loop {
            let seen = plane.admin.get(path).await?.body;
            if is_right(&seen) {
                return anyhow::Ok(seen);
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let seen = timeout(Duration::from_secs(20), seen).await;
    seen.with_context(|| format!("{path} does not become right"))?
}

/// The use of a token that a Secret holds is written down by the day, and its account's list forgets a
/// Secret that is deleted.
#[tokio::test]
async fn the_use_of_held_tokens_is_written_down() -> Result<()> {
    const LABEL: &str = "/metadata/labels/kubernetes.io~1legacy-token-last-used";
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let plane = Open::of("a", create_plane(&server.root()?, "a").await?).await?;
    let (used, unused) = ("used", "unused");
    let token = held_token(&plane, used).await?;
    held_token(&plane, unused).await?;
    ensure!(plane.status(&token).await? == 200);
    let secret = |name: &str| format!("{SECRETS}/{name}");
    let seen = until(&plane, &secret(used), |seen| seen.pointer(LABEL).is_some()).await?;
    let day = text(&seen, LABEL)?;
    ensure!(day.len() == 10 && day.starts_with("20"), "{day}");
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let tracking = format!("/api/v1/namespaces/kube-system/configmaps/{tracking}");
    let since = until(&plane, &tracking, |seen| {
        seen.pointer("/data/since").is_some()
    })
    .await?;
    ensure!(text(&since, "/data/since")? == day, "{since}");
    // As upstream, it comes back.
    plane.admin.delete(&tracking).await?.expect(200)?;
    until(&plane, &tracking, |seen| {
        seen.pointer("/data/since").is_some() && seen["metadata"]["uid"] != since["metadata"]["uid"]
    })
    .await?;
    // A second use on the same day writes nothing.
    ensure!(plane.status(&token).await? == 200);
    let again = plane.admin.get(&secret(used)).await?.expect(200)?;
    ensure!(again["metadata"]["resourceVersion"] == seen["metadata"]["resourceVersion"]);
    let other = plane.admin.get(&secret(unused)).await?.expect(200)?;
    ensure!(other.pointer(LABEL).is_none(), "{other}");

    let account = format!("{ACCOUNTS}/builder");
    let listed = json!({"secrets": [{"name": used}, {"name": unused}]}).to_string();
    let kind = "application/merge-patch+json";
    let patched = plane
        .admin
        .typed(http::Method::PATCH, &account, kind, listed);
    patched.await?.expect(200)?;
    plane.admin.delete(&secret(used)).await?.expect(200)?;
    let left = json!([{"name": unused}]);
    until(&plane, &account, |seen| seen["secrets"] == left).await?;
    Ok(())
}
