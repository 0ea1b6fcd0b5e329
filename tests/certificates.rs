//! Certificates that a plane signs for those who request them: what they are worth, where, and for
//! how long.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const NAMESPACES: &str = "/api/v1/namespaces";
/// Looks until a controller must have acted: more than its longest pause after a failure.
const LOOKS: usize = 2000;
const BETWEEN_LOOKS: std::time::Duration = std::time::Duration::from_millis(20);

/// A key and the request for its certificate.
struct Wanted {
    key: String,
    request: String,
}

fn wanted(group: &str, name: &str, host: &[&str]) -> Result<Wanted> {
    let key = rcgen::KeyPair::generate()?;
    let hosts: Vec<String> = host.iter().map(|host| (*host).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(hosts)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, value) in [
        (rcgen::DnType::OrganizationName, group),
        (rcgen::DnType::CommonName, name),
    ] {
        params.distinguished_name.push(kind, value);
    }
    let request = params.serialize_request(&key)?.pem()?;
    Ok(Wanted {
        key: key.serialize_pem(),
        request: STANDARD.encode(request),
    })
}

async fn patch(client: &Client, path: &str, body: &Value) -> Result<Value> {
    let merge = "application/merge-patch+json";
    let patched = client.typed(Method::PATCH, path, merge, body.to_string());
    patched.await?.expect(200)
}

/// Requests a certificate, and approves the request unless a controller does.
async fn request(
    client: &Client,
    (name, signer): (&str, &str),
    usages: &[&str],
    wanted: &Wanted,
) -> Result<()> {
    let body = json!({"metadata": {"name": name}, "spec": {"request": wanted.request,
        "signerName": format!("kubernetes.io/{signer}"), "usages": usages,
        "expirationSeconds": 3600}});
    client.post(REQUESTS, &body).await?.expect(201)?;
    if signer != "kube-apiserver-client-kubelet" {
        let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True",
            "reason": "Test", "message": "wanted"}]}});
        patch(client, &format!("{REQUESTS}/{name}/approval"), &approval).await?;
    }
    Ok(())
}

/// Waits until a request has its certificate.
async fn certificate(client: &Client, name: &str) -> Result<String> {
    for _ in 0..LOOKS {
        let found = client.get(&format!("{REQUESTS}/{name}")).await?;
        let found = found.expect(200)?;
        if let Some(certificate) = found["status"]["certificate"].as_str() {
            return Ok(String::from_utf8(STANDARD.decode(certificate)?)?);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    anyhow::bail!("{name} is not signed")
}

/// Waits until a request has failed, and returns why.
async fn failure(client: &Client, name: &str) -> Result<String> {
    for _ in 0..LOOKS {
        let found = client.get(&format!("{REQUESTS}/{name}")).await?;
        let found = found.expect(200)?;
        ensure!(found["status"]["certificate"].is_null(), "{found}");
        let conditions = found["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        if let Some(failed) = conditions.find(|condition| condition["type"] == "Failed") {
            ensure!(failed["reason"] == "SignerValidationFailure", "{failed}");
            return Ok(failed["message"].as_str().unwrap_or_default().to_owned());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    anyhow::bail!("{name} has not failed")
}

/// A plane signs for its own users only: the certificate proves its holder there and nobody in
/// another plane or in the root. A kubelet gets its first one by the role that lets its maker boot
/// kubelets, and is then restricted to its node. What serves is signed by another CA, and proves no
/// client. The root signs nothing, and a controller that is switched off does nothing.
#[tokio::test]
async fn a_signed_request_proves_its_holder_in_its_plane_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let masters = Client::open(&root).await?;
    let a = Client::open(&create_plane(&root, "a").await?).await?;
    let b = Client::open(&create_plane(&root, "b").await?).await?;

    let jane = wanted("dev", "jane", &[])?;
    let client = ("jane", "kube-apiserver-client");
    request(&a, client, &["client auth"], &jane).await?;
    let signed = certificate(&a, "jane").await?;
    let of_jane = server.as_holder(folder.path(), &signed, &jane.key)?;
    let in_a = Client::open(&of_jane.at_base_path("/clusters/a")).await?;
    in_a.get(NAMESPACES)
        .await?
        .refuses(403, "User \"jane\" cannot list")?;
    let binding = json!({"metadata": {"name": "dev"}, "roleRef": {"kind": "ClusterRole",
        "apiGroup": "rbac.authorization.k8s.io", "name": "view"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "dev"}]});
    for plane in [&a, &b, &masters] {
        plane.post(BINDINGS, &binding).await?.expect(201)?;
    }
    in_a.get(NAMESPACES).await?.expect(200)?;
    let metrics = masters.raw(ask(Method::GET, "/metrics", &Value::Null));
    let metrics = String::from_utf8(metrics.await?.body.to_vec())?;
    // Hers has proven two requests and is valid for about an hour; the administrator's is for years.
    for bucket in ["0\"} 0", "1800\"} 0", "7200\"} 2", "31104000\"} 2"] {
        let line =
            format!("apiserver_client_certificate_expiration_seconds_bucket{{le=\"{bucket}\n");
        ensure!(metrics.contains(&line), "{line}{metrics}");
    }
    for elsewhere in [of_jane.at_base_path("/clusters/b"), of_jane.clone()] {
        let elsewhere = Client::open(&elsewhere).await?;
        elsewhere
            .get(NAMESPACES)
            .await?
            .refuses(401, "Unauthorized")?;
    }

    // The administrator may boot kubelets, so nobody has to approve the request.
    let kubelet = wanted("system:nodes", "system:node:n1", &[])?;
    let usages = ["client auth", "digital signature"];
    let signer = ("n1", "kube-apiserver-client-kubelet");
    request(&a, signer, &usages, &kubelet).await?;
    let signed = certificate(&a, "n1").await?;
    let endpoint = server.as_holder(folder.path(), &signed, &kubelet.key)?;
    let node = Client::open(&endpoint.at_base_path("/clusters/a")).await?;
    let body = |name: &str| json!({"metadata": {"name": name}});
    node.post("/api/v1/nodes", &body("n1")).await?.expect(201)?;
    let other = node.post("/api/v1/nodes", &body("n2")).await?;
    other.refuses(403, "is not allowed to modify node")?;

    let serving = wanted("system:nodes", "system:node:n1", &["n1.example.com"])?;
    let usages = ["server auth", "digital signature"];
    request(&a, ("serving", "kubelet-serving"), &usages, &serving).await?;
    let signed = certificate(&a, "serving").await?;
    let endpoint = server.as_holder(folder.path(), &signed, &serving.key)?;
    let server_as_client = Client::open(&endpoint.at_base_path("/clusters/a")).await?;
    let refused = server_as_client.get(NAMESPACES).await?;
    refused.refuses(401, "Unauthorized")?;

    request(&masters, client, &["client auth"], &jane).await?;
    let off =
        json!({"spec": {"controllers": ["*", "-certificatesigningrequest-signing-controller"]}});
    let plane = "/apis/polyplane.dev/v1alpha1/controlplanes/b";
    patch(&masters, plane, &off).await?;
    request(&b, client, &["client auth"], &jane).await?;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    for unsigned in [&masters, &b] {
        let found = unsigned
            .get(&format!("{REQUESTS}/jane"))
            .await?
            .expect(200)?;
        ensure!(found["status"]["certificate"].is_null(), "{found}");
    }
    // Switched on again, it finds what it missed.
    patch(&masters, plane, &json!({"spec": {"controllers": null}})).await?;
    certificate(&b, "jane").await.context("in b")?;
    Ok(())
}

/// Who may make and approve requests in a plane makes nobody who seems to be a user of the root. Upstream's
/// plug-in keeps the group of masters from them.
#[tokio::test]
async fn nobody_is_signed_for_as_a_user_of_the_root() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let plane = Client::open(&create_plane(&server.root()?, "a").await?).await?;
    let client = ("forged", "kube-apiserver-client");
    let forged = wanted("dev", "root:admin", &[])?;
    request(&plane, client, &["client auth"], &forged).await?;
    let why = failure(&plane, "forged").await?;
    ensure!(why.contains("begins with root:"), "{why}");
    let master = wanted("system:masters", "jane", &[])?;
    let body = json!({"metadata": {"name": "master"}, "spec": {"request": master.request,
        "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}});
    let refused = plane.post(REQUESTS, &body).await?;
    refused.refuses(403, "with system:masters group is not allowed")?;
    let jane = wanted("dev", "jane", &[])?;
    let client = ("jane", "kube-apiserver-client");
    request(&plane, client, &["client auth"], &jane).await?;
    certificate(&plane, "jane").await.context("the twin")?;
    Ok(())
}

/// A handshake refuses a chain of more than 12 000 bytes, so such a certificate would prove nobody.
#[tokio::test]
async fn a_certificate_that_no_handshake_accepts_is_not_signed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let plane = Client::open(&create_plane(&server.root()?, "a").await?).await?;
    let long = wanted("dev", &"x".repeat(30_000), &[])?;
    let client = ("long", "kube-apiserver-client");
    request(&plane, client, &["client auth"], &long).await?;
    let why = failure(&plane, "long").await?;
    ensure!(why.contains("accepts at most 12000"), "{why}");
    Ok(())
}
