//! What was open when a right to use a control plane was taken away: the watches of those who lost it
//! end, at the owner of the plane and through another replica, and no other watch does.

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, Events, version};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{create_plane, delete_plane};
use polyplane_tests::site::{Site, admitted, endpoint, move_to, refused};
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const BUILDER: &str = "system:serviceaccount:default:builder";

/// One caller's open watch.
struct Reader {
    name: String,
    events: Events,
    /// Keeps the connection open.
    _client: Client,
}

impl Reader {
    async fn open(name: &str, caller: &Endpoint) -> Result<Self> {
        let client = Client::open(caller).await?;
        let list = client.get(CONFIG_MAPS).await?.expect(200)?;
        let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&list));
        Ok(Self {
            name: name.to_owned(),
            events: client.watch(&path).await?,
            _client: client,
        })
    }

    /// Checks that the watch shows this object next.
    async fn shows(&mut self, name: &str) -> Result<()> {
        let change = self.events.change().await;
        let (_, object) = change.with_context(|| format!("the watch of {}", self.name))?;
        ensure!(
            object["metadata"]["name"] == name,
            "{}: {object}",
            self.name
        );
        Ok(())
    }

    /// Checks that the watch ends, and shows nothing before.
    async fn ends(mut self) -> Result<()> {
        let rest = self.events.until_end().await;
        let rest = rest.with_context(|| format!("the watch of {}", self.name))?;
        let shown = rest.iter().filter(|event| event["type"] != "BOOKMARK");
        ensure!(shown.count() == 0, "{} still sees {rest:?}", self.name);
        Ok(())
    }
}

/// A plane whose users in the group `dev`, and whose accounts, may read.
struct Plane<'a> {
    site: &'a Site,
    name: &'a str,
    masters: Client,
    endpoint: Endpoint,
    /// Watches that ended, and checks that another one stayed open.
    ended: usize,
    stayed: usize,
}

impl<'a> Plane<'a> {
    async fn make(site: &'a Site, name: &'a str, replica: &str) -> Result<Self> {
        let endpoint = create_plane(&site.root, name).await?;
        move_to(&Client::open(&site.root).await?, name, replica).await?;
        let masters = Client::open(&endpoint).await?;
        let binding = json!({"metadata": {"name": "readers"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "Group", "name": "dev"},
                {"kind": "Group", "name": "system:serviceaccounts"}]});
        masters.post(BINDINGS, &binding).await?.expect(201)?;
        for account in ["builder", "deployer"] {
            let account = json!({"metadata": {"name": account}});
            masters.post(ACCOUNTS, &account).await?.expect(201)?;
        }
        Ok(Self {
            site,
            name,
            masters,
            endpoint,
            ended: 0,
            stayed: 0,
        })
    }

    async fn account(&self, name: &str) -> Result<Endpoint> {
        let path = format!("{ACCOUNTS}/{name}/token");
        let answer = self.masters.post(&path, &json!({"spec": {}})).await?;
        let answer = answer.expect(201)?;
        let token = answer["status"]["token"].as_str().context("no token")?;
        Ok(self.endpoint.with_token(Some(token)))
    }

    async fn ends(&mut self, reader: Reader) -> Result<()> {
        reader.ends().await?;
        self.ended += 1;
        Ok(())
    }

    /// Creates an object, which these watches show.
    async fn is_shown(
        &mut self,
        name: &str,
        by: &Client,
        readers: &mut [&mut Reader],
    ) -> Result<()> {
        let map = json!({"metadata": {"name": name}});
        by.post(CONFIG_MAPS, &map).await?.expect(201)?;
        for reader in readers {
            reader.shows(name).await?;
            self.stayed += 1;
        }
        Ok(())
    }

    /// Takes one right after the other away, while watches of all sorts of callers are open.
    async fn take_away(&mut self) -> Result<()> {
        let (site, name) = (self.site, self.name);
        let users = ["jane", "joe"].map(|user| site.user_of(name, user));
        let [jane, joe] = users;
        let (jane, joe) = (jane?, joe?);
        let builder = self.account("builder").await?;
        let deployer = self.account("deployer").await?;
        let admin = endpoint(&site.admin_of(name)?)?;
        let own = Client::open(&admin).await?;
        let of_jane = Reader::open("jane", &jane).await?;
        let again = Reader::open("jane, once more", &jane).await?;
        let mut of_joe = Reader::open("joe", &joe).await?;
        let of_builder = Reader::open("builder", &builder).await?;
        let mut of_deployer = Reader::open("deployer", &deployer).await?;
        let mut of_root = Reader::open("root", &self.endpoint).await?;

        site.kubectl.ok(&["plane", "revoke", name, "jane"])?;
        self.ends(of_jane).await?;
        self.ends(again).await?;
        refused(&jane).await?;
        site.kubectl.ok(&["plane", "revoke", name, BUILDER])?;
        self.ends(of_builder).await?;
        refused(&builder).await?;
        let all = &mut [&mut of_joe, &mut of_deployer, &mut of_root];
        self.is_shown("revoked", &own, all).await?;
        // Both get new credentials at once.
        let mut of_jane = Reader::open("jane", &site.user_of(name, "jane")?).await?;
        let mut of_builder = Reader::open("builder", &self.account("builder").await?).await?;

        let none = json!({"grants": []});
        site.change_access(name, none).await?.expect(200)?;
        self.ends(of_root).await?;
        site.kubectl
            .ok(&["plane", "rotate", name, "--overlap=1h"])?;
        let all = &mut [&mut of_joe, &mut of_deployer, &mut of_jane, &mut of_builder];
        self.is_shown("overlapping", &own, all).await?;
        let mut of_second = Reader::open("ann", &site.user_of(name, "ann")?).await?;
        // It would end what the first one has promised to accept.
        let twice = site
            .kubectl
            .run(&["plane", "rotate", name, "--overlap=1h"])?;
        let said = String::from_utf8_lossy(&twice.stderr);
        ensure!(
            !twice.status.success() && said.contains("are accepted until"),
            "{said}"
        );
        let all = &mut [
            &mut of_joe,
            &mut of_deployer,
            &mut of_jane,
            &mut of_builder,
            &mut of_second,
        ];
        self.is_shown("still-overlapping", &own, all).await?;
        site.kubectl.ok(&["plane", "rotate", name, "--now"])?;
        for reader in [of_joe, of_deployer, of_jane, of_builder, of_second] {
            self.ends(reader).await?;
        }

        let fourth = site.user_of(name, "fred")?;
        admitted(&fourth).await?;
        let of_fourth = Reader::open("fred", &fourth).await?;
        delete_plane(&site.root, name).await?;
        self.ends(of_fourth).await
    }
}

#[tokio::test]
async fn watches_end_with_the_access_of_their_callers() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    // Clients are connected to the first replica.
    let mut near = Plane::make(&site, "near", "polyplane-0").await?;
    let mut far = Plane::make(&site, "far", "polyplane-1").await?;
    for plane in [&mut near, &mut far] {
        plane.take_away().await.context(plane.name.to_owned())?;
        println!(
            "{}: {} watches ended, {} stayed open",
            plane.name, plane.ended, plane.stayed
        );
    }
    ensure!(!site.server.log()?.contains("panicked"));
    Ok(())
}

/// A right that is taken away inside the plane ends no watch, as upstream. When the plane moves, its
/// new owner proves and authorizes the watch anew.
#[tokio::test]
async fn a_watch_that_moves_is_proven_and_authorized_anew() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    let root = Client::open(&site.root).await?;
    for (name, replicas) in [
        ("near", ["polyplane-0", "polyplane-1"]),
        ("far", ["polyplane-1", "polyplane-0"]),
    ] {
        let mut plane = Plane::make(&site, name, replicas[0]).await?;
        let own = Client::open(&endpoint(&site.admin_of(name)?)?).await?;
        let binding = json!({"metadata": {"name": "kim-reads"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "kim"}]});
        own.post(BINDINGS, &binding).await?.expect(201)?;
        let kim = [name, "--user=kim"];
        let kim = endpoint(&site.kubeconfig(&format!("kim.{name}"), &kim)?)?;
        let mut of_kim = Reader::open("kim", &kim).await?;
        let mut of_joe = Reader::open("joe", &site.user_of(name, "joe")?).await?;
        let mut of_builder = Reader::open("builder", &plane.account("builder").await?).await?;
        let mut of_deployer = Reader::open("deployer", &plane.account("deployer").await?).await?;
        let binding = format!("{BINDINGS}/kim-reads");
        own.delete(&binding).await?.expect(200)?;
        let account = format!("{ACCOUNTS}/builder");
        own.delete(&account).await?.expect(200)?;
        let all = &mut [&mut of_kim, &mut of_joe, &mut of_builder, &mut of_deployer];
        plane.is_shown("before", &own, all).await?;
        move_to(&root, name, replicas[1]).await?;
        plane.ends(of_kim).await?;
        plane.ends(of_builder).await?;
        let others = &mut [&mut of_joe, &mut of_deployer];
        plane.is_shown("after", &own, others).await?;
        move_to(&root, name, replicas[0]).await?;
        plane.is_shown("back", &own, others).await?;
        ensure!((plane.ended, plane.stayed) == (2, 8));
    }
    Ok(())
}

/// What extension API servers read of a plane that is awake follows its keys.
#[tokio::test]
async fn an_awake_plane_shows_the_cas_that_it_accepts() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    for (name, replica) in [("near", "polyplane-0"), ("far", "polyplane-1")] {
        let plane = Plane::make(&site, name, replica).await?;
        let maps = "/api/v1/namespaces/kube-system/configmaps";
        let map = format!("{maps}/extension-apiserver-authentication");
        let first = plane.masters.get(&map).await?.expect(200)?;
        let path = format!(
            "{maps}?watch=1&resourceVersion={}&fieldSelector=metadata.name%3Dextension-apiserver-authentication",
            version(&first)
        );
        let mut events = plane.masters.watch(&path).await?;
        let cas = |map: &Value| {
            let members = ["client-ca-file", "requestheader-client-ca-file"];
            members.map(|member| map["data"][member].as_str().unwrap_or_default().to_owned())
        };
        let old = cas(&first);
        site.kubectl
            .ok(&["plane", "rotate", name, "--overlap=1h"])?;
        let (_, both) = events.change().await?;
        for (both, old) in cas(&both).iter().zip(&old) {
            ensure!(
                both.contains(old.trim()) && both.len() > old.len(),
                "{both}"
            );
        }
        site.kubectl.ok(&["plane", "rotate", name, "--now"])?;
        let (_, last) = events.change().await?;
        for (last, both) in cas(&last).iter().zip(&cas(&both)) {
            ensure!(!last.is_empty() && !both.contains(last.trim()), "{last}");
        }
        // A client that damages it has no lasting effect.
        let body = json!({"data": {"client-ca-file": "none"}}).to_string();
        let kind = "application/merge-patch+json";
        let patched = plane.masters.typed(Method::PATCH, &map, kind, body).await?;
        patched.expect(200)?;
        ensure!(events.change().await?.1["data"]["client-ca-file"] == "none");
        ensure!(cas(&events.change().await?.1) == cas(&last));
    }
    Ok(())
}
