//! Credentials of the drop-in by flags: serving certificates for some names, and the bootstrap tokens of
//! nodes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polyplane_tests::client::Client;
use polyplane_tests::drop_in::DropIn;
use polyplane_tests::kubeconfig::Endpoint;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const TOKEN: &str = "abcdef.0123456789abcdef";

/// Writes a certificate that signs itself for a name, and its key.
fn write_pair(folder: &Path, name: &str) -> Result<()> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![name.to_owned()])?.self_signed(&key)?;
    std::fs::write(folder.join("named.key"), key.serialize_pem())?;
    std::fs::write(folder.join("named.crt"), certificate.pem())?;
    Ok(())
}

/// Returns the server as a client sees it that asks for a name and trusts the certificate in the folder.
fn asking_for(drop_in: &DropIn, folder: &Path, name: &str) -> Result<Endpoint> {
    let config = json!({
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {
            "server": format!("https://127.0.0.1:{}", drop_in.port),
            "tls-server-name": name,
            "certificate-authority": folder.join("named.crt"),
        }}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Endpoint::from_kubeconfig(&path, None)
}

#[tokio::test]
async fn a_name_has_the_certificate_that_a_flag_gives_it_until_its_files_change() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_pair(folder.path(), "named.test")?;
    let shown = |name: &str| folder.path().join(name).display().to_string();
    let pair = format!("{},{}:named.test", shown("named.crt"), shown("named.key"));
    let flags = vec![format!("--tls-sni-cert-key={pair}")];
    let (drop_in, admin) = DropIn::start_for_admin(flags).await?;
    let named = asking_for(&drop_in, folder.path(), "named.test")?;
    Client::open(&named)
        .await?
        .get("/version")
        .await?
        .expect(200)?;
    // Other names have the usual one.
    Client::open(&admin)
        .await?
        .get("/version")
        .await?
        .expect(200)?;
    write_pair(folder.path(), "named.test")?;
    let named = asking_for(&drop_in, folder.path(), "named.test")?;
    for _ in 0..100 {
        if Client::open(&named).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the changed certificate is not served")
}

fn bootstrap_secret(changes: &Value) -> Value {
    let mut items = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"});
    for (name, value) in changes.as_object().into_iter().flatten() {
        items[name] = value.clone();
    }
    let data = items
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let text = value.as_str().unwrap_or_default();
            (name.clone(), Value::from(BASE64_STANDARD.encode(text)))
        });
    json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "data": Value::Object(data.collect())})
}

#[tokio::test]
async fn a_bootstrap_token_proves_a_node_until_its_secret_says_otherwise() -> Result<()> {
    let flags = vec!["--enable-bootstrap-token-auth=true".to_owned()];
    let (_drop_in, admin) = DropIn::start_for_admin(flags).await?;
    let masters = Client::open(&admin).await?;
    let node = Client::open(&admin.with_token(Some(TOKEN))).await?;
    node.post(WHO, &json!({}))
        .await?
        .refuses(401, "Unauthorized")?;
    let secret = bootstrap_secret(&json!({}));
    masters.post(SECRETS, &secret).await?.expect(201)?;
    let who = node.post(WHO, &json!({})).await?.expect(201)?;
    let user = &who["status"]["userInfo"];
    let groups = json!([
        "system:bootstrappers",
        "system:bootstrappers:kubeadm:default-node-token",
        "system:authenticated"
    ]);
    ensure!(
        user["username"] == "system:bootstrap:abcdef" && user["groups"] == groups,
        "{who}"
    );
    let wrong = Client::open(&admin.with_token(Some("abcdef.0123456789abcdeg"))).await?;
    wrong
        .post(WHO, &json!({}))
        .await?
        .refuses(401, "Unauthorized")?;
    let path = format!("{SECRETS}/bootstrap-token-abcdef");
    masters.delete(&path).await?.expect(200)?;
    node.post(WHO, &json!({}))
        .await?
        .refuses(401, "Unauthorized")?;
    let expired = bootstrap_secret(&json!({"expiration": "2020-01-01T00:00:00Z"}));
    masters.post(SECRETS, &expired).await?.expect(201)?;
    node.post(WHO, &json!({}))
        .await?
        .refuses(401, "Unauthorized")?;
    Ok(())
}

/// Without the flag the Secret is nothing but a Secret.
#[tokio::test]
async fn without_the_flag_a_bootstrap_token_proves_nobody() -> Result<()> {
    let (_drop_in, admin) = DropIn::start_for_admin(Vec::new()).await?;
    let masters = Client::open(&admin).await?;
    let secret = bootstrap_secret(&json!({}));
    masters.post(SECRETS, &secret).await?.expect(201)?;
    let node = Client::open(&admin.with_token(Some(TOKEN))).await?;
    node.post(WHO, &json!({}))
        .await?
        .refuses(401, "Unauthorized")
}
