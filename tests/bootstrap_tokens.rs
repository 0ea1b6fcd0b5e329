//! Bootstrap tokens in control planes: whom they prove, where, and what ends them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{create_plane, remove_plane};
use polyplane_tests::site::{Site, get, move_to, owner, refused};
use serde_json::{Value, json};

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const MERGE_PATCH: &str = "application/merge-patch+json";
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// The longest time until a plane sleeps, or a controller has acted.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// The id and the secret of a token.
#[derive(Clone, Copy)]
struct Token<'a>(&'a str, &'a str);

impl Token<'_> {
    fn text(self) -> String {
        format!("{}.{}", self.0, self.1)
    }

    fn secret(self) -> Value {
        let items = [
            ("token-id", self.0),
            ("token-secret", self.1),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", GROUP),
        ];
        let data = items
            .iter()
            .map(|(name, text)| ((*name).to_owned(), json!(STANDARD.encode(text))));
        json!({"metadata": {"name": format!("bootstrap-token-{}", self.0)},
            "type": "bootstrap.kubernetes.io/token", "data": Value::Object(data.collect())})
    }

    fn path(self) -> String {
        format!("{SECRETS}/bootstrap-token-{}", self.0)
    }

    /// Returns a plane as the token's bearer sees it.
    fn at(self, site: &Site, plane: &str) -> Endpoint {
        let bearer = site.root.with_token(Some(&self.text()));
        bearer.at_base_path(&format!("/clusters/{plane}"))
    }

    /// Changes an item of the token's Secret.
    async fn change(self, masters: &Client, item: &str, text: &str) -> Result<()> {
        let body = json!({"data": {item: STANDARD.encode(text)}}).to_string();
        let path = self.path();
        let changed = masters.typed(Method::PATCH, &path, MERGE_PATCH, body);
        changed.await?.expect(200).map(drop)
    }
}

async fn patch(site: &Site, plane: &str, authentication: &Value) -> Result<Reply> {
    let root = Client::open(&site.root).await?;
    let body = json!({"spec": {"authentication": authentication}}).to_string();
    let path = format!("{PLANES}/{plane}");
    root.typed(Method::PATCH, &path, MERGE_PATCH, body).await
}

async fn take_tokens(site: &Site, plane: &str, takes: bool) -> Result<()> {
    let changed = patch(site, plane, &json!({"bootstrapTokens": takes})).await?;
    changed.expect(200).map(drop)
}

/// Creates a plane at a replica with a token, whose bearers may read.
async fn plane(site: &Site, name: &str, replica: &str, token: Token<'_>) -> Result<Endpoint> {
    let endpoint = create_plane(&site.root, name).await?;
    move_to(&Client::open(&site.root).await?, name, replica).await?;
    let masters = Client::open(&endpoint).await?;
    bind(&masters, "view").await?;
    masters.post(SECRETS, &token.secret()).await?.expect(201)?;
    Ok(endpoint)
}

/// Lets the bearers of tokens do what a role allows.
async fn bind(masters: &Client, role: &str) -> Result<()> {
    let binding = json!({"metadata": {"name": format!("bootstrap-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": GROUP}]});
    masters.post(BINDINGS, &binding).await?.expect(201)?;
    Ok(())
}

async fn reads(caller: &Endpoint) -> Result<()> {
    get(caller, CONFIG_MAPS).await?.expect(200).map(drop)
}

/// Checks who a caller is, by a request with a body.
async fn is_bootstrapper(caller: &Endpoint, id: &str) -> Result<()> {
    let who = Client::open(caller).await?.post(WHO, &json!({})).await?;
    let who = who.expect(201)?;
    let user = &who["status"]["userInfo"];
    let groups = json!(["system:bootstrappers", GROUP, "system:authenticated"]);
    let is_expected =
        user["username"] == format!("system:bootstrap:{id}") && user["groups"] == groups;
    ensure!(is_expected, "{who}");
    Ok(())
}

/// Two planes that take such tokens, at the replica with the client and through it, and one that does not, each
/// with a Secret of the same name: a token proves its bearer in its own plane, and nobody in the others, in
/// the root, or in a plane that is not there.
#[tokio::test]
async fn a_bootstrap_token_proves_a_node_of_its_plane_alone() -> Result<()> {
    let site = Site::start(&["--replicas=2", "--sleep-after=2"]).await?;
    let tokens = [
        ("a", "polyplane-0", Token("abcdef", "aaaaaaaaaaaaaaaa")),
        ("b", "polyplane-1", Token("abcdef", "bbbbbbbbbbbbbbbb")),
        ("plain", "polyplane-0", Token("abcdef", "cccccccccccccccc")),
    ];
    for (name, replica, token) in tokens {
        plane(&site, name, replica, token).await?;
        refused(&token.at(&site, name)).await?;
    }
    for name in ["a", "b"] {
        take_tokens(&site, name, true).await?;
    }
    let (mut attempts, mut twins) = (tokens.len(), 0);
    for (of, _, token) in tokens {
        for (name, _, _) in tokens {
            let caller = token.at(&site, name);
            if of == name && name != "plain" {
                reads(&caller).await?;
                is_bootstrapper(&caller, "abcdef").await?;
                twins += 1;
            } else {
                refused(&caller).await?;
                attempts += 1;
            }
        }
    }
    for text in [
        "abcdef.aaaaaaaaaaaaaaaa",
        "abcdef.dddddddddddddddd",
        "fedcba.aaaaaaaaaaaaaaaa",
        "abcdef.AAAAAAAAAAAAAAAA",
        "abcdef.aaaaaaaaaaaaaaaaa",
        "abcdef",
    ] {
        let caller = site.root.with_token(Some(text));
        let places = ["", "/clusters/missing", "/clusters/plain", "/clusters/b"];
        for place in places {
            let wrong = caller.at_base_path(place);
            refused(&wrong).await.with_context(|| text.to_owned())?;
            attempts += 1;
        }
    }
    println!("{attempts} attempts refused, {twins} twins admitted");
    lives_on(&site, tokens[0].2).await?;
    ends(&site).await
}

/// A move and a sleep end nothing.
async fn lives_on(site: &Site, token: Token<'_>) -> Result<()> {
    let root = Client::open(&site.root).await?;
    let node = token.at(site, "a");
    move_to(&root, "a", "polyplane-1").await?;
    reads(&node).await?;
    let asleep = async {
        while !owner(&root, "a").await?.is_empty() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        anyhow::Ok(())
    };
    let asleep = tokio::time::timeout(PATIENCE, asleep).await;
    asleep.context("the plane does not sleep")??;
    is_bootstrapper(&node, token.0).await
}

/// Each change of the Secret counts from its acknowledgement on, at the owner and through another replica. The
/// end of the field ends the watches of all bearers, a revocation one bearer's token, and a namesake of the
/// plane inherits nothing.
async fn ends(site: &Site) -> Result<()> {
    let root = Client::open(&site.root).await?;
    let masters = Client::open(&site.root.at_base_path("/clusters/a")).await?;
    for (replica, id) in [("polyplane-0", "nodes0"), ("polyplane-1", "nodes1")] {
        move_to(&root, "a", replica).await?;
        let token = Token(id, "0123456789abcdef");
        let node = token.at(site, "a");
        refused(&node).await?;
        masters.post(SECRETS, &token.secret()).await?.expect(201)?;
        reads(&node).await?;
        for (item, wrong, good) in [
            ("token-secret", "0123456789abcdeg", token.1),
            ("expiration", "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"),
            ("usage-bootstrap-authentication", "false", "true"),
            ("auth-extra-groups", "system:masters", GROUP),
        ] {
            token.change(&masters, item, wrong).await?;
            let ended = refused(&node).await;
            ended.with_context(|| format!("{item} at {replica}"))?;
            token.change(&masters, item, good).await?;
            is_bootstrapper(&node, id).await?;
        }
        masters.delete(&token.path()).await?.expect(200)?;
        refused(&node).await?;
        masters.post(SECRETS, &token.secret()).await?.expect(201)?;
        let watch = format!("{CONFIG_MAPS}?watch=1");
        let mut watch = Client::open(&node).await?.watch(&watch).await?;
        take_tokens(site, "a", false).await?;
        refused(&node).await?;
        watch.until_end().await?;
        take_tokens(site, "a", true).await?;
        reads(&node).await?;
        let user = format!("system:bootstrap:{id}");
        site.kubectl.ok(&["plane", "revoke", "a", &user])?;
        refused(&node).await?;
    }
    let token = Token("abcdef", "aaaaaaaaaaaaaaaa");
    reads(&token.at(site, "a")).await?;
    remove_plane(&site.root, "a").await?;
    refused(&token.at(site, "a")).await?;
    create_plane(&site.root, "a").await?;
    take_tokens(site, "a", true).await?;
    refused(&token.at(site, "a")).await
}

/// A node joins as `kubeadm join` lets it: the bearer of a token requests the kubelet's certificate, which is
/// approved and signed by itself, and proves the node afterwards.
#[tokio::test]
async fn a_node_joins_with_a_bootstrap_token() -> Result<()> {
    let site = Site::start(&[]).await?;
    let explained = site.kubectl.in_context("root").ok(&[
        "explain",
        "controlplane.spec.authentication.bootstrapTokens",
    ])?;
    ensure!(
        explained.contains("bootstrap.kubernetes.io/token"),
        "{explained}"
    );
    let token = Token("abcdef", "0123456789abcdef");
    let masters = plane(&site, "a", "polyplane-0", token).await?;
    take_tokens(&site, "a", true).await?;
    let masters = Client::open(&masters).await?;
    let approved = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
    for role in ["system:node-bootstrapper", approved] {
        bind(&masters, role).await?;
    }
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, value) in [
        (rcgen::DnType::OrganizationName, "system:nodes"),
        (rcgen::DnType::CommonName, "system:node:n1"),
    ] {
        params.distinguished_name.push(kind, value);
    }
    let request = STANDARD.encode(params.serialize_request(&key)?.pem()?);
    let body = json!({"metadata": {"name": "n1"}, "spec": {"request": request,
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"]}});
    let bearer = Client::open(&token.at(&site, "a")).await?;
    let made = bearer.post(REQUESTS, &body).await?.expect(201)?;
    ensure!(
        made["spec"]["username"] == "system:bootstrap:abcdef",
        "{made}"
    );
    let signed = async {
        loop {
            let found = bearer.get(&format!("{REQUESTS}/n1")).await?.expect(200)?;
            if let Some(signed) = found["status"]["certificate"].as_str() {
                return anyhow::Ok(String::from_utf8(STANDARD.decode(signed)?)?);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    };
    let signed = tokio::time::timeout(PATIENCE, signed).await;
    let signed = signed.context("the request is not signed")??;
    let folder = site.folder.path();
    let node = site
        .server
        .as_holder(folder, &signed, &key.serialize_pem())?;
    let node = Client::open(&node.at_base_path("/clusters/a")).await?;
    let who = node.post(WHO, &json!({})).await?.expect(201)?;
    let user = &who["status"]["userInfo"];
    ensure!(user["username"] == "system:node:n1", "{who}");
    Ok(())
}
