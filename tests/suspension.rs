//! Suspended control planes: nobody is answered, nothing runs, and all is there when they are resumed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use polyplane_tests::client::{Client, names};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{create_plane, remove_plane};
use polyplane_tests::site::{Site, admitted, endpoint, get, move_to, refused};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const FENCES: &str = "/apis/polyplane.dev/v1alpha1/fences";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
/// What a refusal says.
const SUSPENDED: &str = "the control plane is suspended";
/// The longest time until a plane sleeps.
const PATIENCE: Duration = Duration::from_secs(30);

/// The plane that is suspended, and those who could use it: its administrator, an account of it, and the
/// master of the server, who enters by a grant.
struct Quiet {
    id: String,
    users: Vec<Endpoint>,
    neighbour: Endpoint,
}

impl Quiet {
    async fn new(site: &Site) -> Result<Self> {
        let masters = create_plane(&site.root, "quiet").await?;
        create_plane(&site.root, "loud").await?;
        let root = Client::open(&site.root).await?;
        move_to(&root, "loud", "polyplane-0").await?;
        let record = root.get(&format!("{PLANES}/quiet")).await?.expect(200)?;
        let admin = endpoint(&site.admin_of("quiet")?)?;
        let own = Client::open(&admin).await?;
        let account = json!({"metadata": {"name": "builder"}});
        own.post(ACCOUNTS, &account).await?.expect(201)?;
        let path = format!("{ACCOUNTS}/builder/token");
        let token = own.post(&path, &json!({"spec": {}})).await?.expect(201)?;
        let token = token["status"]["token"].as_str().context("no token")?;
        let binding = json!({"metadata": {"name": "builder"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "builder"}]});
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        own.post(bindings, &binding).await?.expect(201)?;
        Ok(Self {
            id: record["status"]["id"].as_str().context("no id")?.to_owned(),
            users: vec![admin.clone(), admin.with_token(Some(token)), masters],
            neighbour: endpoint(&site.admin_of("loud")?)?,
        })
    }

    /// Checks that every request of every user is refused, and strangers are told what they always are.
    async fn is_closed(&self, site: &Site) -> Result<()> {
        let path = format!("{CONFIG_MAPS}/kept");
        for user in &self.users {
            let client = Client::open(user).await?;
            for path in [
                path.as_str(),
                "/api",
                "/version",
                "/healthz",
                "/openapi/v2",
                "/nowhere",
            ] {
                client.get(path).await?.refuses(403, SUSPENDED)?;
            }
            let watch = format!("{CONFIG_MAPS}?watch=1");
            client.get(&watch).await?.refuses(403, SUSPENDED)?;
            let map = json!({"metadata": {"name": "late"}});
            client
                .post(CONFIG_MAPS, &map)
                .await?
                .refuses(403, SUSPENDED)?;
            client.delete(&path).await?.refuses(403, SUSPENDED)?;
            let by_id = user.at_base_path(&format!("/clusters/{}/control-plane", self.id));
            get(&by_id, &path).await?.refuses(403, SUSPENDED)?;
        }
        let plane = &self.users[0];
        for stranger in [
            plane.with_token(None),
            plane.with_token(Some("nonsense")),
            plane.for_user(&self.neighbour),
        ] {
            refused(&stranger).await?;
        }
        let keys = format!("/clusters/{}/control-plane/openid/v1/jwks", self.id);
        let nobody = site.root.with_token(None).at_base_path("");
        let keys = get(&nobody, &keys).await?.expect(200)?;
        ensure!(
            keys["keys"].as_array().is_some_and(|keys| !keys.is_empty()),
            "{keys}"
        );
        admitted(&self.neighbour).await
    }

    /// Returns state and epoch of the plane's fence.
    async fn fence(&self, site: &Site) -> Result<(String, i64)> {
        let path = format!("{FENCES}/{}", self.id);
        let fence = get(&site.root, &path).await?.expect(200)?;
        let status = &fence["status"];
        let state = status["state"].as_str().unwrap_or_default().to_owned();
        Ok((state, status["epoch"].as_i64().unwrap_or_default()))
    }

    /// Waits until nobody holds the plane, and returns the epoch of its fence.
    async fn asleep(&self, site: &Site) -> Result<i64> {
        let asleep = async {
            loop {
                match self.fence(site).await? {
                    (state, epoch) if state == "Released" => return anyhow::Ok(epoch),
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let asleep = tokio::time::timeout(PATIENCE, asleep).await;
        asleep.context("the plane does not sleep")?
    }
}

/// Writes until it is refused. Returns the names of what was acknowledged.
fn writer(user: &Endpoint, prefix: &'static str) -> JoinHandle<Result<BTreeSet<String>>> {
    let user = user.clone();
    tokio::spawn(async move {
        let client = Client::open(&user).await?;
        let mut acknowledged = BTreeSet::new();
        for number in 0_u32.. {
            let name = format!("{prefix}-{number}");
            let map = json!({"metadata": {"name": name}});
            let answer = client.post(CONFIG_MAPS, &map).await?;
            if answer.status == 403 {
                answer.refuses(403, SUSPENDED)?;
                break;
            }
            answer.expect(201)?;
            acknowledged.insert(name);
        }
        Ok(acknowledged)
    })
}

/// One suspension while the plane is at this replica, with watches open and writes under way.
async fn round(site: &Site, quiet: &Quiet, replica: &'static str, other: &str) -> Result<()> {
    let root = Client::open(&site.root).await?;
    move_to(&root, "quiet", replica).await?;
    let kept = json!({"metadata": {"name": "kept"}, "data": {"a": "b"}});
    let own = Client::open(&quiet.users[0]).await?;
    let made = own.post(CONFIG_MAPS, &kept).await?.status;
    ensure!([201, 409].contains(&made.as_u16()), "{made}");
    let mut watches = Vec::new();
    for user in &quiet.users {
        let path = format!("{CONFIG_MAPS}?watch=1");
        watches.push(Client::open(user).await?.watch(&path).await?);
    }
    let beside = get_watch(&quiet.neighbour).await?;
    let writing = writer(&quiet.users[0], replica);
    watches[0].change().await.context("the watch begins")?;
    let said = site.kubectl.ok(&["plane", "suspend", "quiet"])?;
    ensure!(said.contains("is suspended"), "{said}");
    // From the acknowledgement on.
    quiet.is_closed(site).await?;
    for watch in &mut watches {
        watch.until_end().await?;
    }
    let written = writing.await??;
    let epoch = quiet.asleep(site).await?;
    let listed = site.kubectl.ok(&["plane", "list"])?;
    let row = listed.lines().find(|line| line.starts_with("quiet"));
    ensure!(row.is_some_and(|row| row.contains("Suspended")), "{listed}");
    let table = site
        .kubectl
        .in_context("root")
        .ok(&["get", "controlplanes"])?;
    ensure!(table.contains("Suspended"), "{table}");
    // A wish to be elsewhere, and requests there, move nothing and wake nothing.
    let pin = json!({"spec": {"placement": {"replica": other}}}).to_string();
    let path = format!("{PLANES}/quiet");
    root.typed(Method::PATCH, &path, MERGE, pin)
        .await?
        .expect(200)?;
    quiet.is_closed(site).await?;
    ensure!(
        quiet.fence(site).await? == ("Released".to_owned(), epoch),
        "it was taken"
    );
    drop(beside);
    let said = site.kubectl.ok(&["plane", "resume", "quiet"])?;
    ensure!(said.contains("can be used again"), "{said}");
    for user in &quiet.users {
        get(user, &format!("{CONFIG_MAPS}/kept"))
            .await?
            .expect(200)?;
    }
    let list = own.get(CONFIG_MAPS).await?.expect(200)?;
    let found = names(&list).into_iter();
    let found: BTreeSet<String> = found.filter(|name| name.starts_with(replica)).collect();
    ensure!(
        found == written,
        "acknowledged {written:?}, found {found:?}"
    );
    println!(
        "{replica}: {} writes before the suspension, none after it",
        written.len()
    );
    Ok(())
}

async fn get_watch(user: &Endpoint) -> Result<polyplane_tests::client::Events> {
    let path = format!("{CONFIG_MAPS}?watch=1");
    Client::open(user).await?.watch(&path).await
}

/// At the replica with the client, and through it at another; over a kill of the server; and deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_plane_answers_nobody_and_wakes_for_nothing() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    let quiet = Quiet::new(&site).await?;
    round(&site, &quiet, "polyplane-0", "polyplane-1").await?;
    round(&site, &quiet, "polyplane-1", "polyplane-0").await?;
    site.kubectl.ok(&["plane", "suspend", "quiet"])?;
    let epoch = quiet.asleep(&site).await?;
    let (site, quiet) = killed_and_started(site, quiet).await?;
    quiet.is_closed(&site).await?;
    ensure!(quiet.fence(&site).await?.1 == epoch, "it was taken");
    // A namesake is nothing of it.
    remove_plane(&site.root, "quiet").await?;
    for user in &quiet.users[..2] {
        refused(user).await?;
    }
    create_plane(&site.root, "quiet").await?;
    let masters = &quiet.users[2];
    admitted(masters).await?;
    get(masters, &format!("{CONFIG_MAPS}/kept"))
        .await?
        .expect(404)?;
    Ok(())
}

async fn killed_and_started(site: Site, quiet: Quiet) -> Result<(Site, Quiet)> {
    let Site {
        server,
        folder,
        kubectl,
        ..
    } = site;
    server.kill().await?;
    let data: &Path = &folder.path().join("data");
    let server = Up::start(data, &["--replicas=2"]).await?;
    let root = server.root()?;
    let here = |user: &Endpoint, plane: &str| {
        let plane = root.at_base_path(&format!("/clusters/{plane}"));
        plane.for_user(user)
    };
    let quiet = Quiet {
        users: quiet.users.iter().map(|user| here(user, "quiet")).collect(),
        neighbour: here(&quiet.neighbour, "loud"),
        ..quiet
    };
    let site = Site {
        root,
        server,
        kubectl,
        folder,
    };
    Ok((site, quiet))
}

/// Whoever may change planes may suspend them, and no longer enters them by that.
#[tokio::test]
async fn a_plane_is_born_suspended_and_resumed_by_whoever_may_change_it() -> Result<()> {
    let site = Site::start(&[]).await?;
    let root = Client::open(&site.root).await?;
    let plane = json!({"metadata": {"name": "born"}, "spec": {"suspended": true}});
    let made = root.post(PLANES, &plane).await?.expect(201)?;
    let ready = condition(&made)?;
    ensure!(
        ready == ("False".to_owned(), "Suspended".to_owned()),
        "{made}"
    );
    let masters = site.root.at_base_path("/clusters/born");
    get(&masters, CONFIG_MAPS).await?.refuses(403, SUSPENDED)?;
    let kubectl = site.kubectl.in_context("root");
    for arguments in [
        &[
            "create",
            "clusterrole",
            "planes",
            "--verb=get,patch",
            "--resource=controlplanes.polyplane.dev",
        ][..],
        &[
            "create",
            "clusterrolebinding",
            "planes",
            "--clusterrole=planes",
            "--user=ops",
        ],
    ] {
        kubectl.ok(arguments)?;
    }
    let patch = |user: &str, suspended: bool| {
        let patch = format!("--patch={{\"spec\":{{\"suspended\":{suspended}}}}}");
        let user = format!("--as={user}");
        kubectl.run(&[
            "patch",
            "controlplane",
            "born",
            "--type=merge",
            &patch,
            &user,
        ])
    };
    ensure!(!patch("nobody", false)?.status.success(), "nobody resumes");
    get(&masters, CONFIG_MAPS).await?.refuses(403, SUSPENDED)?;
    ensure!(patch("ops", false)?.status.success(), "ops resumes");
    get(&masters, CONFIG_MAPS).await?.expect(200)?;
    let record = root.get(&format!("{PLANES}/born")).await?.expect(200)?;
    ensure!(
        condition(&record)? == ("True".to_owned(), "Resumed".to_owned()),
        "{record}"
    );
    ensure!(patch("ops", true)?.status.success(), "ops suspends");
    get(&masters, CONFIG_MAPS).await?.refuses(403, SUSPENDED)
}

fn condition(plane: &Value) -> Result<(String, String)> {
    let conditions = plane["status"]["conditions"].as_array();
    let mut ready = conditions
        .into_iter()
        .flatten()
        .filter(|one| one["type"] == "Ready");
    let (Some(one), None) = (ready.next(), ready.next()) else {
        bail!("not one condition Ready: {plane}");
    };
    let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
    Ok((text("status"), text("reason")))
}
