//! Client CAs that a control plane names: what they prove there, and nowhere else.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{create_plane, remove_plane};
use polyplane_tests::site::{Site, endpoint, get, move_to, refused};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, date_time_ymd,
};
use serde_json::{Value, json};

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLIENT_CA: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A tenant's CA.
struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
struct Leaf {
    certificate: String,
    key: String,
}

impl Ca {
    fn new(change: impl FnOnce(&mut CertificateParams)) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // All of them have one name, so only their keys tell them apart.
        params
            .distinguished_name
            .push(DnType::CommonName, "a tenant's CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            pem,
            issuer: Issuer::new(params, key),
        })
    }

    fn issue(
        &self,
        name: &str,
        groups: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Leaf> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate()?;
        Ok(Leaf {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A server, and a folder for its users' certificates.
struct Users {
    site: Site,
    made: usize,
}

impl Users {
    /// Returns the root plane as the holder of a certificate sees it.
    fn holder(&mut self, leaf: &Leaf) -> Result<Endpoint> {
        self.made += 1;
        let folder: PathBuf = self.site.folder.path().join(format!("user-{}", self.made));
        std::fs::create_dir(&folder)?;
        let root = self
            .site
            .server
            .as_holder(&folder, &leaf.certificate, &leaf.key)?;
        Ok(self.site.root.for_user(&root))
    }

    /// Returns a plane as a user of a CA sees it.
    fn user(&mut self, ca: &Ca, plane: &str, name: &str, groups: &[&str]) -> Result<Endpoint> {
        let leaf = ca.issue(name, groups, |_| {})?;
        let holder = self.holder(&leaf)?;
        Ok(holder.at_base_path(&format!("/clusters/{plane}")))
    }
}

async fn name_cas(site: &Site, plane: &str, pems: Value) -> Result<Reply> {
    let root = Client::open(&site.root).await?;
    let body = json!({"spec": {"authentication": {"clientCAs": pems}}}).to_string();
    let path = format!("{PLANES}/{plane}");
    root.typed(Method::PATCH, &path, "application/merge-patch+json", body)
        .await
}

async fn reads(caller: &Endpoint) -> Result<()> {
    get(caller, CONFIG_MAPS).await?.expect(200).map(drop)
}

async fn plane(site: &Site, name: &str, replica: &str) -> Result<Endpoint> {
    let masters = create_plane(&site.root, name).await?;
    move_to(&Client::open(&site.root).await?, name, replica).await?;
    let binding = json!({"metadata": {"name": "dev"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "dev"}]});
    let own = Client::open(&masters).await?;
    own.post(BINDINGS, &binding).await?.expect(201)?;
    Ok(masters)
}

/// Two planes with a CA each, at the replica with the client and through it, and one that both name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_ca_proves_users_of_the_plane_that_names_it_alone() -> Result<()> {
    let site = Site::start(&["--replicas=2"]).await?;
    let mut users = Users { site, made: 0 };
    let places = [
        ("a", "polyplane-0"),
        ("b", "polyplane-1"),
        ("plain", "polyplane-0"),
    ];
    for (name, replica) in places {
        plane(&users.site, name, replica).await?;
    }
    let (of_a, of_b, shared) = (Ca::new(|_| {})?, Ca::new(|_| {})?, Ca::new(|_| {})?);
    for (name, ca) in [("a", &of_a), ("b", &of_b)] {
        let named = json!([ca.pem, shared.pem]);
        name_cas(&users.site, name, named).await?.expect(200)?;
    }
    let (mut attempts, mut twins) = (0, 0);
    for (own, ca) in [("a", &of_a), ("b", &of_b)] {
        // As master, too: the plane's operator has decided that, for this plane.
        for groups in [
            &["dev"][..],
            &["system:masters"],
            &["polyplane:cluster-admins"],
        ] {
            let jane = users.user(ca, own, "jane", groups)?;
            reads(&jane).await?;
            let who = Client::open(&jane).await?.post(WHO, &json!({})).await?;
            let who = who.expect(201)?;
            ensure!(who["status"]["userInfo"]["username"] == "jane", "{who}");
            twins += 1;
            for (other, _) in places.iter().filter(|(name, _)| *name != own) {
                refused(&jane.at_base_path(&format!("/clusters/{other}"))).await?;
                attempts += 1;
            }
            for elsewhere in ["", "/clusters/root", "/clusters/missing"] {
                refused(&jane.at_base_path(elsewhere)).await?;
                attempts += 1;
            }
        }
    }
    // A CA that two planes name proves a user of each, with the rights that each gives.
    for own in ["a", "b"] {
        reads(&users.user(&shared, own, "joe", &["dev"])?).await?;
        twins += 1;
    }
    refused(&users.user(&shared, "plain", "joe", &["dev"])?).await?;
    attempts += 1 + forged(&mut users, &of_a).await?;
    println!("{attempts} attempts refused, {twins} twins admitted");
    lives_on(&mut users, &of_a).await?;
    ends(&mut users, &of_a).await
}

/// Names that the server alone gives, and certificates that are not for clients, or of others.
async fn forged(users: &mut Users, ca: &Ca) -> Result<usize> {
    let twin = Ca::new(|_| {})?;
    let below = |leaf: Leaf, issuer: &str| Leaf {
        certificate: format!("{}{issuer}", leaf.certificate),
        ..leaf
    };
    let none = |_: &mut CertificateParams| {};
    let leaves = [
        ca.issue("root:admin", &["system:masters"], none)?,
        ca.issue("system:serviceaccount:default:builder", &[], none)?,
        ca.issue("system:anonymous", &[], none)?,
        ca.issue("jane", &["system:serviceaccounts"], none)?,
        ca.issue("jane", &["system:unauthenticated"], none)?,
        ca.issue("jane", &["dev"], |leaf| leaf.extended_key_usages.clear())?,
        ca.issue("jane", &["dev"], |leaf| {
            leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        })?,
        ca.issue("jane", &["dev"], |leaf| {
            leaf.not_after = date_time_ymd(2001, 1, 1)
        })?,
        ca.issue("jane", &["dev"], |leaf| {
            leaf.not_before = date_time_ymd(4000, 1, 1)
        })?,
        twin.issue("jane", &["dev"], none)?,
        below(twin.issue("jane", &["dev"], none)?, &twin.pem),
        below(twin.issue("jane", &["dev"], none)?, &ca.pem),
    ];
    let mut attempts = 0;
    for (number, leaf) in leaves.iter().enumerate() {
        let holder = users.holder(leaf)?;
        for plane in ["a", "b"] {
            let caller = holder.at_base_path(&format!("/clusters/{plane}"));
            refused(&caller)
                .await
                .with_context(|| format!("leaf {number} at {plane}"))?;
            attempts += 1;
        }
    }
    Ok(attempts)
}

/// A move and a rotation of the plane's own keys end nothing; extension servers are told of the CA.
async fn lives_on(users: &mut Users, ca: &Ca) -> Result<()> {
    let jane = users.user(ca, "a", "jane", &["dev"])?;
    let root = Client::open(&users.site.root).await?;
    move_to(&root, "a", "polyplane-1").await?;
    reads(&jane).await?;
    users.site.kubectl.ok(&["plane", "rotate", "a", "--now"])?;
    reads(&jane).await?;
    let masters = users.site.root.at_base_path("/clusters/a");
    let map = get(&masters, CLIENT_CA).await?.expect(200)?;
    let text = map["data"]["client-ca-file"].as_str().unwrap_or_default();
    let body = |pem: &str| {
        pem.lines()
            .filter(|line| !line.starts_with('-'))
            .collect::<String>()
    };
    ensure!(body(text).contains(&body(&ca.pem)), "{text}");
    Ok(())
}

/// A revocation ends one user's certificates, the removal of a CA all of its, with their watches, from the
/// acknowledgement on; and a namesake of the plane inherits nothing.
async fn ends(users: &mut Users, ca: &Ca) -> Result<()> {
    let root = Client::open(&users.site.root).await?;
    let own = endpoint(&users.site.admin_of("a")?)?;
    for replica in ["polyplane-0", "polyplane-1"] {
        name_cas(&users.site, "a", json!([ca.pem]))
            .await?
            .expect(200)?;
        move_to(&root, "a", replica).await?;
        let name = format!("jane.{replica}");
        let jane = users.user(ca, "a", &name, &["dev"])?;
        let joe = users.user(ca, "a", "joe", &["dev"])?;
        let mut open = Vec::new();
        for user in [&jane, &joe, &own] {
            let path = format!("{CONFIG_MAPS}?watch=1");
            open.push(Client::open(user).await?.watch(&path).await?);
        }
        users.site.kubectl.ok(&["plane", "revoke", "a", &name])?;
        refused(&jane).await?;
        open[0].until_end().await?;
        reads(&joe).await?;
        name_cas(&users.site, "a", json!(null)).await?.expect(200)?;
        refused(&joe).await?;
        open[1].until_end().await?;
        let map = json!({"metadata": {"name": format!("after-{replica}")}});
        Client::open(&own)
            .await?
            .post(CONFIG_MAPS, &map)
            .await?
            .expect(201)?;
        while open[2].change().await?.1["metadata"]["name"] != map["metadata"]["name"] {}
    }
    name_cas(&users.site, "a", json!([ca.pem]))
        .await?
        .expect(200)?;
    let joe = users.user(ca, "a", "joe", &["dev"])?;
    reads(&joe).await?;
    remove_plane(&users.site.root, "a").await?;
    refused(&joe).await?;
    plane(&users.site, "a", "polyplane-0").await?;
    refused(&joe).await
}

/// What is no CA is refused, one that is not valid now is warned of, and who may change a plane's CAs may
/// issue its credentials.
#[tokio::test]
async fn client_cas_are_checked_when_they_are_named() -> Result<()> {
    let mut users = Users {
        site: Site::start(&[]).await?,
        made: 0,
    };
    plane(&users.site, "a", "polyplane-0").await?;
    let good = Ca::new(|_| {})?;
    let others: Vec<String> = (0..5)
        .map(|_| Ok(Ca::new(|_| {})?.pem))
        .collect::<Result<_>>()?;
    let leaf = good.issue("jane", &["dev"], |_| {})?;
    let of_server = std::fs::read_to_string(users.site.folder.path().join("data/pki/ca.crt"))?;
    for (pems, words) in [
        (json!([""]), "must be one certificate in PEM form"),
        (json!([leaf.key]), "holds something else"),
        (json!([leaf.certificate]), "CA:TRUE"),
        (
            json!([format!("{}{}", good.pem, others[0])]),
            "name each CA by itself",
        ),
        (json!([good.pem, good.pem]), "Duplicate value"),
        (json!(others), "Too many"),
        (json!([of_server]), "is the CA of this server"),
        (
            json!([format!("{}{}", "x".repeat(9000), good.pem)]),
            "Too long",
        ),
    ] {
        let refused = name_cas(&users.site, "a", pems).await?;
        refused.refuses(422, "spec.authentication.clientCAs")?;
        refused
            .refuses(422, words)
            .with_context(|| words.to_owned())?;
    }
    let old = Ca::new(|ca| ca.not_after = date_time_ymd(2020, 1, 1))?;
    let kubectl = users.site.kubectl.in_context("root");
    let patch = |pem: &str, user: &str| {
        let patch = json!({"spec": {"authentication": {"clientCAs": [pem]}}});
        let patch = format!("--patch={patch}");
        let user = format!("--as={user}");
        kubectl.run(&[
            "patch",
            "controlplane",
            "a",
            "--type=merge",
            &patch,
            &user,
            "--as-group=system:masters",
        ])
    };
    let said = patch(&old.pem, "admin")?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(
        said.status.success() && text.contains("has expired"),
        "{text}"
    );
    refused(&users.user(&old, "a", "jane", &["dev"])?).await?;
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
    let as_ops = |pem: &str| {
        let patch = json!({"spec": {"authentication": {"clientCAs": [pem]}}});
        let patch = format!("--patch={patch}");
        kubectl.run(&[
            "patch",
            "controlplane",
            "a",
            "--type=merge",
            &patch,
            "--as=ops",
        ])
    };
    let said = as_ops(&good.pem)?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let words = "spec.authentication needs the right to create controlplanes/credentials";
    ensure!(!said.status.success() && text.contains(words), "{text}");
    let minter = [
        "create",
        "clusterrole",
        "minter",
        "--verb=create",
        "--resource=controlplanes.polyplane.dev/credentials",
    ];
    kubectl.ok(&minter)?;
    kubectl.ok(&[
        "create",
        "clusterrolebinding",
        "minter",
        "--clusterrole=minter",
        "--user=ops",
    ])?;
    ensure!(as_ops(&good.pem)?.status.success(), "the twin");
    reads(&users.user(&good, "a", "jane", &["dev"])?).await
}
