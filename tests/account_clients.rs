//! Programs of others with tokens of a plane's service accounts: the real kubectl, and the real
//! controller manager, each of whose controllers asks for a token of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{create_plane, found};
use polyplane_tests::recorded::skipped;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

/// How long the controllers have to create what a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);
const PLANE: &str = "/apis/polyplane.dev/v1alpha1/controlplanes/a";

/// Writes the kubeconfig of one plane, for a user with this token or for the administrator.
fn kubeconfig_of(server: &Up, folder: &Path, plane: &str, token: Option<&str>) -> Result<PathBuf> {
    let text = std::fs::read_to_string(&server.kubeconfig)?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    // The server adds a context for each plane a moment after the plane is there, so every context is
    // pointed at the plane instead.
    for cluster in config["clusters"].as_array_mut().into_iter().flatten() {
        let server = cluster["cluster"]["server"].as_str().unwrap_or_default();
        let base = server.split("/clusters/").next().unwrap_or_default();
        cluster["cluster"]["server"] = json!(format!("{base}/clusters/{plane}"));
    }
    if let Some(token) = token {
        for user in config["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({"token": token});
        }
    }
    let user = token.map_or("admin", |_| "account");
    let path = folder.join(format!("{plane}-{user}.kubeconfig"));
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_creates_a_token_and_works_with_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let root = server.root()?;
    for name in ["a", "b"] {
        create_plane(&root, name).await?;
    }
    let kubectl = Kubectl::find(&server.kubeconfig, folder.path(), &data.join("bin"))?;
    let in_plane = |plane: &str, token: Option<&str>| {
        let path = kubeconfig_of(&server, folder.path(), plane, token)?;
        anyhow::Ok(kubectl.with_kubeconfig(&path))
    };
    let (a, b) = (in_plane("a", None)?, in_plane("b", None)?);
    for plane in [&a, &b] {
        plane.ok(&["create", "serviceaccount", "builder"])?;
        let subject = "--serviceaccount=default:builder";
        plane.ok(&[
            "create",
            "rolebinding",
            "build",
            "--clusterrole=edit",
            subject,
        ])?;
    }
    let token = a.ok(&["create", "token", "builder", "--duration=1h"])?;
    let token = token.trim();
    let (in_a, in_b) = (in_plane("a", Some(token))?, in_plane("b", Some(token))?);
    let user = in_a.ok(&["auth", "whoami", "-o=jsonpath={.status.userInfo.username}"])?;
    ensure!(user == "system:serviceaccount:default:builder", "{user}");
    in_a.ok(&["create", "configmap", "mine"])?;
    let refused = in_a.fails(&["get", "nodes"])?;
    ensure!(refused.contains("cannot list resource"), "{refused}");
    let refused = in_b.fails(&["get", "configmaps"])?;
    ensure!(
        refused.contains("must be logged in to the server"),
        "{refused}"
    );
    let short = a.fails(&["create", "token", "builder", "--duration=5m"])?;
    ensure!(short.contains("less than 10 minutes"), "{short}");
    a.ok(&["delete", "serviceaccount", "builder"])?;
    let refused = in_a.fails(&["get", "configmaps"])?;
    ensure!(
        refused.contains("must be logged in to the server"),
        "{refused}"
    );
    Ok(())
}

/// The real controller manager, which ends with the value.
struct Manager(Child);

impl Drop for Manager {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_controller_of_the_real_manager_has_a_token_of_its_own() -> Result<()> {
    let Some(program) = found("kube-controller-manager")? else {
        let why = "there is no kube-controller-manager; `tests/programs kube-controller-manager` builds it in about ten minutes";
        return skipped("the controller manager with tokens", why);
    };
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let root = server.root()?;
    let plane = Client::open(&create_plane(&root, "a").await?).await?;
    // Its own loops stand still, so what happens is the manager's work; only Secrets for tokens are
    // filled here, because the manager has no key of the plane.
    let admin = Client::open(&root).await?;
    let mut record = admin.get(PLANE).await?.expect(200)?;
    record["spec"]["controllers"] = json!(["serviceaccount-token-controller"]);
    admin.send(Method::PUT, PLANE, &record).await?.expect(200)?;
    let log = std::fs::File::create(folder.path().join("manager.log"))?;
    let kubeconfig = kubeconfig_of(&server, folder.path(), "a", None)?;
    let manager = Command::new(program)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--leader-elect=false", "--secure-port=0"])
        .arg("--use-service-account-credentials")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let _manager = Manager(manager);
    let labels = json!({"app": "web"});
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    plane.post(deployments, &deployment).await?.expect(201)?;
    let pods = "/api/v1/namespaces/default/pods";
    let log = || std::fs::read_to_string(folder.path().join("manager.log")).unwrap_or_default();
    let count = |path: &'static str, wanted: usize| {
        let plane = &plane;
        async move {
            loop {
                let list = plane.get(path).await?.expect(200)?;
                if list["items"]
                    .as_array()
                    .is_some_and(|items| items.len() == wanted)
                {
                    return anyhow::Ok(());
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    };
    timeout(PATIENCE, count(pods, 3))
        .await
        .with_context(log)??;
    let path = "/api/v1/namespaces/kube-system/serviceaccounts/replicaset-controller";
    plane.get(path).await?.expect(200)?;
    plane
        .delete(&format!("{deployments}/web"))
        .await?
        .expect(200)?;
    timeout(PATIENCE, count(pods, 0))
        .await
        .with_context(log)??;
    let refusals = log()
        .lines()
        .filter(|line| line.contains("Unauthorized"))
        .count();
    ensure!(refusals == 0, "{}", log());
    Ok(())
}
