//! Controllers that a ControlPlane switches off and on, and controllers whose rights a plane's roles
//! take away. Each is off until a write elsewhere, in the root or of a role, lets it go on: nothing
//! happens to the object that it works on.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{create_plane, create_plane_of};
use serde_json::{Value, json};

const NAMESPACES: &str = "/api/v1/namespaces";
/// What every namespace has, each by a controller of its own.
const CONTENT: [&str; 2] = ["serviceaccounts/default", "configmaps/kube-root-ca.crt"];
/// How long a controller that is off is watched. It takes a few milliseconds if it is on.
const STAYS: Duration = Duration::from_millis(1500);
/// The pause between two looks. Shorter ones would take the CPU from the controller.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Looks until a controller must have done its work: more than its longest pause after a failure.
const LOOKS: usize = 2000;

async fn patch(client: &Client, path: &str, patch: &Value) -> Result<Value> {
    let merge = "application/merge-patch+json";
    let patched = client.typed(Method::PATCH, path, merge, patch.to_string());
    patched.await?.expect(200)
}

async fn make(client: &Client, namespace: &str) -> Result<()> {
    let body = json!({"metadata": {"name": namespace}});
    client.post(NAMESPACES, &body).await?.expect(201)?;
    let map = json!({"metadata": {"name": "kept"}});
    let maps = format!("{NAMESPACES}/{namespace}/configmaps");
    client.post(&maps, &map).await?.expect(201)?;
    Ok(())
}

/// Waits until a path answers with this status.
async fn until(client: &Client, path: &str, status: u16) -> Result<()> {
    for _ in 0..LOOKS {
        if client.get(path).await?.status == status {
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    anyhow::bail!("{path} does not come to {status}")
}

/// Creates namespaces until one has no content, as the plane's owner has learnt by then that the
/// controllers which own it are off. Returns its path.
async fn bare_namespace(client: &Client) -> Result<String> {
    for number in 0..LOOKS {
        let body = json!({"metadata": {"name": format!("bare-{number}")}});
        client.post(NAMESPACES, &body).await?.expect(201)?;
        let path = format!("{NAMESPACES}/bare-{number}");
        if client.get(&format!("{path}/{}", CONTENT[0])).await?.status == 404 {
            return Ok(path);
        }
    }
    anyhow::bail!("every namespace has content")
}

#[tokio::test]
async fn a_controller_runs_only_where_the_control_plane_and_its_roles_let_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let endpoint = server.root()?;
    let root = Client::open(&endpoint).await?;
    let a = Client::open(&create_plane(&endpoint, "a").await?).await?;
    let planes = "/apis/polyplane.dev/v1alpha1/controlplanes";
    let plane = format!("{planes}/a");

    // The list is that of the controller manager's flag, and a wrong name is an error.
    let wrong = json!({"spec": {"controllers": ["*", "-deployment-controller"]}});
    let merge = "application/merge-patch+json";
    root.typed(Method::PATCH, &plane, merge, wrong.to_string())
        .await?
        .refuses(422, "Unsupported value: \"-deployment-controller\"")?;

    // Off: the namespace stays, and so does everything in it.
    let off = json!({"spec": {"controllers": ["*", "-namespace-controller", "-serviceaccount-controller"]}});
    patch(&root, &plane, &off).await?;
    make(&a, "left").await?;
    a.delete(&format!("{NAMESPACES}/left")).await?;
    let account = format!("{NAMESPACES}/default/serviceaccounts/default");
    a.delete(&account).await?.expect(200)?;
    tokio::time::sleep(STAYS).await;
    let left = a.get(&format!("{NAMESPACES}/left")).await?.expect(200)?;
    ensure!(left["status"]["phase"] == "Terminating", "{left}");
    a.get(&format!("{NAMESPACES}/left/configmaps/kept"))
        .await?
        .expect(200)?;
    a.get(&account).await?.refuses(404, "not found")?;

    // On again: nobody writes to the plane, and the work is found.
    patch(&root, &plane, &json!({"spec": {"controllers": null}})).await?;
    until(&a, &format!("{NAMESPACES}/left"), 404).await?;
    until(&a, &account, 200).await?;

    // What the write of a namespace creates on behalf of controllers waits for them too.
    let off = json!({"spec": {"controllers": ["*", "-serviceaccount-controller", "-root-ca-certificate-publisher-controller"]}});
    patch(&root, &plane, &off).await?;
    let bare = bare_namespace(&a).await?;
    tokio::time::sleep(STAYS).await;
    for content in CONTENT {
        a.get(&format!("{bare}/{content}"))
            .await?
            .refuses(404, "not found")?;
    }
    patch(&root, &plane, &json!({"spec": {"controllers": null}})).await?;
    for content in CONTENT {
        until(&a, &format!("{bare}/{content}"), 200).await?;
    }

    // A controller has the rights that the plane's roles give it.
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:controller:namespace-controller";
    let before = a.get(binding).await?.expect(200)?;
    patch(&a, binding, &json!({"subjects": null})).await?;
    make(&a, "refused").await?;
    a.delete(&format!("{NAMESPACES}/refused")).await?;
    tokio::time::sleep(STAYS).await;
    let refused = a.get(&format!("{NAMESPACES}/refused")).await?.expect(200)?;
    ensure!(refused["status"]["phase"] == "Terminating", "{refused}");
    patch(
        &a,
        binding,
        &json!({"subjects": (before["subjects"].clone())}),
    )
    .await?;
    until(&a, &format!("{NAMESPACES}/refused"), 404).await
}

/// A kube-apiserver raises the usage in admission, and the controller that another program runs relies
/// on it: it counts when something is deleted, and every five minutes.
#[tokio::test]
async fn usage_of_a_quota_that_another_program_counts_is_raised_and_never_lowered() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let off = json!({"controllers": ["*", "-resourcequota-controller"]});
    let a = Client::open(&create_plane_of(&server.root()?, "a", &off).await?).await?;
    let core = format!("{NAMESPACES}/default");
    let quota =
        json!({"metadata": {"name": "q"}, "spec": {"hard": {"secrets": "10", "services": "5"}}});
    let quotas = format!("{core}/resourcequotas");
    a.post(&quotas, &quota).await?.expect(201)?;
    let path = format!("{quotas}/q");
    let status = json!({"status": {"hard": {"secrets": "10"}, "used": {"secrets": "0"}}});
    patch(&a, &format!("{path}/status"), &status).await?;
    let secret = json!({"metadata": {"name": "s"}});
    let secrets = format!("{core}/secrets");
    a.post(&secrets, &secret).await?.expect(201)?;
    let one = json!({"hard": {"secrets": "10"}, "used": {"secrets": "1"}});
    let mut looks = 0;
    while a.get(&path).await?.expect(200)?["status"] != one {
        ensure!(looks < LOOKS, "the usage is not raised");
        looks += 1;
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    a.delete(&format!("{secrets}/s")).await?.expect(200)?;
    tokio::time::sleep(STAYS).await;
    let kept = a.get(&path).await?.expect(200)?;
    ensure!(kept["status"] == one, "{kept}");
    Ok(())
}
