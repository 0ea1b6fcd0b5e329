//! Users of a control plane's own: what their certificates are worth, where, and how they end.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{create_plane, remove_plane};
use polyplane_tests::site::{Site, admitted, endpoint, get, refused};
use serde_json::{Value, json};

const NAMESPACES: &str = "/api/v1/namespaces";
const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const AUTHENTICATION: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// Returns a kubeconfig whose client shows these certificates behind its own.
fn with_intermediates(path: &Path, intermediates: &[&str]) -> Result<Endpoint> {
    let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(path)?)?;
    let user = &mut config["users"][0]["user"];
    let own = user["client-certificate-data"].as_str().context("none")?;
    let own = String::from_utf8(STANDARD.decode(own)?)?;
    let chain = format!("{own}{}", intermediates.concat());
    user["client-certificate-data"] = STANDARD.encode(chain).into();
    let longer = path.with_extension("longer");
    std::fs::write(&longer, config.to_string())?;
    Endpoint::from_kubeconfig(&longer, None)
}

/// Every plane's administrator at every other plane and at the root, whatever certificates the
/// client adds: under one common root another plane's CA would do as an intermediate.
#[tokio::test]
async fn a_certificate_is_worth_something_in_its_own_plane_alone() -> Result<()> {
    let site = Site::start(&["--replicas=3"]).await?;
    let planes = ["a", "b", "c", "d"];
    let (mut files, mut cas) = (Vec::new(), Vec::new());
    for plane in planes {
        create_plane(&site.root, plane).await?;
        let file = site.admin_of(plane)?;
        let map = get(&endpoint(&file)?, AUTHENTICATION).await?.expect(200)?;
        let ca = map["data"]["client-ca-file"].as_str().context("no CA")?;
        cas.push(ca.to_owned());
        let proxies = map["data"]["requestheader-client-ca-file"].as_str();
        ensure!(proxies != Some(ca), "one CA for clients and front proxies");
        files.push(file);
    }
    let server_ca = std::fs::read_to_string(site.folder.path().join("data/pki/ca.crt"))?;
    let (mut attempts, mut twins) = (0, 0);
    for (from, file) in files.iter().enumerate() {
        for (to, plane) in planes.iter().enumerate() {
            let chains: [&[&str]; 4] = [
                &[],
                &[&cas[from]],
                &[&cas[from], &cas[to]],
                &[&cas[from], &server_ca],
            ];
            for chain in chains {
                let caller = with_intermediates(file, chain)?;
                let caller = caller.at_base_path(&format!("/clusters/{plane}"));
                if from == to {
                    admitted(&caller).await?;
                    twins += 1;
                } else {
                    refused(&caller).await.context("in another plane")?;
                    refused(&caller.at_base_path(""))
                        .await
                        .context("in the root")?;
                    attempts += 2;
                }
            }
        }
    }
    println!("{attempts} attempts refused, {twins} twins admitted");
    ensure!((attempts, twins) == (96, 16));
    Ok(())
}

#[tokio::test]
async fn real_clients_work_with_a_planes_own_kubeconfigs() -> Result<()> {
    let site = Site::start(&[]).await?;
    create_plane(&site.root, "a").await?;
    let admin = site.kubectl.with_kubeconfig(&site.admin_of("a")?);
    let jane = [
        "a",
        "--user=jane",
        "--group=dev",
        "--group=ops",
        "--uid=u-1",
    ];
    let jane = site.kubeconfig("jane", &[&jane[..], &["--expires=8h"]].concat())?;
    let jane = site.kubectl.with_kubeconfig(&jane);
    let who = jane.ok(&["auth", "whoami", "-o", "json"])?;
    let who: Value = serde_json::from_str(&who)?;
    let user = &who["status"]["userInfo"];
    ensure!(user["username"] == "jane" && user["uid"] == "u-1", "{who}");
    ensure!(
        user["groups"] == json!(["dev", "ops", "system:authenticated"]),
        "{who}"
    );
    // Which of her certificates it was.
    let id = &user["extra"]["authentication.kubernetes.io/credential-id"][0];
    let is_digest = |id: &str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = id.as_str().and_then(|id| id.strip_prefix("X509SHA256="));
    ensure!(digest.is_some_and(is_digest), "{who}");
    let denied = jane.fails(&["get", "configmaps"])?;
    ensure!(denied.contains("User \"jane\" cannot list"), "{denied}");
    admin.ok(&[
        "create",
        "rolebinding",
        "x",
        "--clusterrole=view",
        "--group=ops",
    ])?;
    jane.ok(&["get", "configmaps"])?;
    // The administrator's right is a binding like any other.
    admin.ok(&["delete", "clusterrolebinding", "polyplane:cluster-admins"])?;
    let denied = admin.fails(&["get", "namespaces"])?;
    ensure!(denied.contains("Forbidden"), "{denied}");
    for (arguments, words) in [
        (
            &["a", "--user=root:eve"][..],
            "names that begin with \"root:\"",
        ),
        (
            &["a", "--user=system:serviceaccount:a:b"],
            "given by the server",
        ),
        (
            &["a", "--user=eve", "--group=system:masters"],
            "polyplane:cluster-admins",
        ),
        (&["a", "--user=eve", "--expires=800d"], "must be between"),
        (&["a", "--user=eve", "--expires=soon"], "such as 8h"),
        (&["a"], "say for whom"),
        (&["nobody", "--user=eve"], "\"nobody\" not found"),
    ] {
        let refused = [&["plane", "kubeconfig"], arguments].concat();
        let said = site.kubectl.fails(&refused)?;
        ensure!(said.contains(words), "{arguments:?}: {said}");
    }
    Ok(())
}

/// Each way of ending a credential ends it with the next request, over an open connection too, and
/// ends no other.
#[tokio::test]
async fn what_ends_a_credential_ends_it_with_the_next_request() -> Result<()> {
    let site = Site::start(&[]).await?;
    let a = create_plane(&site.root, "a").await?;
    let binding = json!({"metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "dev"}]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let masters = Client::open(&a).await?;
    masters.post(bindings, &binding).await?.expect(201)?;
    let user = |name: &str| {
        let file = format!("{name}.user");
        let user = format!("--user={name}");
        endpoint(&site.kubeconfig(&file, &["a", &user, "--group=dev"])?)
    };
    let (jane, joe) = (user("jane")?, user("joe")?);
    let connected = Client::open(&jane).await?;
    connected.get(NAMESPACES).await?.expect(200)?;
    site.kubectl.ok(&["plane", "revoke", "a", "jane"])?;
    connected
        .get(NAMESPACES)
        .await?
        .refuses(401, "Unauthorized")?;
    refused(&jane).await?;
    admitted(&joe).await?;
    // The same user gets a new credential at once, and a second revocation ends that one too.
    let again = user("jane")?;
    admitted(&again).await?;
    refused(&jane).await?;
    site.kubectl.ok(&["plane", "revoke", "a", "jane"])?;
    refused(&again).await?;
    admitted(&user("jane")?).await?;
    // Keys that are replaced with an overlap end nothing yet; without one they do.
    site.kubectl.ok(&["plane", "rotate", "a", "--overlap=1h"])?;
    admitted(&joe).await?;
    let of_second = user("ann")?;
    let revoked = async || {
        let root = Client::open(&site.root).await?;
        let plane = root.get(&format!("{PLANES}/a")).await?.expect(200)?;
        let revoked = plane["spec"]["access"]["revoked"].as_array();
        anyhow::Ok(revoked.map_or(0, Vec::len))
    };
    ensure!(revoked().await? == 1, "the earlier keys are accepted");
    site.kubectl.ok(&["plane", "rotate", "a", "--now"])?;
    refused(&joe).await?;
    refused(&of_second).await?;
    // Nothing of what was revoked proves anybody any more, so nothing has to be remembered.
    ensure!(revoked().await? == 0, "all earlier credentials have ended");
    refused(&jane).await?;
    refused(&again).await?;
    admitted(&user("jane")?).await?;
    let of_now = user("joe")?;
    let said = site.kubectl.ok(&["plane", "rotate", "a", "--overlap=0s"])?;
    ensure!(
        said.contains("no certificate or token of the earlier keys"),
        "{said}"
    );
    refused(&of_now).await?;
    // Nor does a record that says nothing bring ended keys back.
    let nothing = site.change_access("a", json!(null)).await?;
    nothing.refuses(422, "may be 3, or 4")?;
    refused(&of_now).await?;
    refused(&joe).await?;
    let of_third = user("ann")?;
    admitted(&of_third).await?;
    // A plane of the same name is another plane.
    remove_plane(&site.root, "a").await?;
    refused(&of_third).await?;
    create_plane(&site.root, "a").await?;
    refused(&of_third).await?;
    Ok(())
}

/// The masters of the root enter by a grant like everybody else, over open connections too.
#[tokio::test]
async fn a_grant_that_is_removed_admits_nobody() -> Result<()> {
    let site = Site::start(&[]).await?;
    let a = create_plane(&site.root, "a").await?;
    let (masters, root) = (Client::open(&a).await?, Client::open(&site.root).await?);
    masters.get(NAMESPACES).await?.expect(200)?;
    let own = endpoint(&site.admin_of("a")?)?;
    site.change_access("a", json!({"grants": []}))
        .await?
        .expect(200)?;
    masters
        .get(NAMESPACES)
        .await?
        .refuses(401, "Unauthorized")?;
    admitted(&own).await?;
    root.get(&format!("{PLANES}/a")).await?.expect(200)?;
    let grants = json!({"grants": [{"user": "admin", "groups": ["readers"]}]});
    site.change_access("a", grants).await?.expect(200)?;
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let who = masters.post(review, &json!({})).await?.expect(201)?;
    let user = &who["status"]["userInfo"];
    ensure!(user["username"] == "root:admin", "{who}");
    ensure!(
        user["groups"] == json!(["readers", "system:authenticated"]),
        "{who}"
    );
    masters.get(NAMESPACES).await?.refuses(403, "root:admin")?;
    for (access, words) in [
        (
            json!({"grants": [{"groups": ["x"]}]}),
            "name a user or a group",
        ),
        (json!({"grants": [{"user": "x", "group": "y"}]}), "not both"),
        (json!({"keyGeneration": 7}), "may be 0, or 1"),
        (json!({"keyOverlapSeconds": -1}), "between 0 and a year"),
        (json!({"revoked": [{"user": ""}]}), "a name is needed"),
    ] {
        site.change_access("a", access).await?.refuses(422, words)?;
    }
    Ok(())
}

/// A token or a certificate that no plane knows gets one answer, whatever the name stands for.
#[tokio::test]
async fn strangers_learn_nothing_from_names() -> Result<()> {
    let site = Site::start(&[]).await?;
    create_plane(&site.root, "a").await?;
    create_plane(&site.root, "b").await?;
    let of_b = endpoint(&site.admin_of("b")?)?;
    for name in ["a", "nobody", "root"] {
        refused(&of_b.at_base_path(&format!("/clusters/{name}"))).await?;
    }
    let mut nonsense = site.root.clone();
    nonsense.token = Some("nonsense".to_owned());
    let nonsense = nonsense.without_certificate();
    for name in ["a", "nobody", "root"] {
        refused(&nonsense.at_base_path(&format!("/clusters/{name}"))).await?;
    }
    admitted(&of_b).await?;
    site.server.stop().await?;
    Ok(())
}
