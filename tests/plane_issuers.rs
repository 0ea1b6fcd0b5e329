//! Issuers of tokens that a control plane names for itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::outside::{DISCOVERY, IssuerKey, KEYS, TokenIssuer};
use polyplane_tests::programs::{create_plane, remove_plane};
use polyplane_tests::site::{Site, get, move_to, owner, refused};
use serde_json::{Value, json};

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ALLOWED: &str = "--outbound-allow=127.0.0.0/8";

fn issuer_of(issuer: &TokenIssuer, audience: &str) -> Value {
    json!({"issuer": {"url": issuer.server.url, "audiences": [audience],
            "certificateAuthority": issuer.server.ca_pem},
        "claimMappings": {"username": {"claim": "sub", "prefix": ""},
            "groups": {"claim": "roles", "prefix": "role:"}}})
}

async fn name_issuers(site: &Site, plane: &str, issuers: Value) -> Result<Reply> {
    let root = Client::open(&site.root).await?;
    let body = json!({"spec": {"authentication": {"jwt": issuers}}}).to_string();
    let path = format!("{PLANES}/{plane}");
    root.typed(Method::PATCH, &path, "application/merge-patch+json", body)
        .await
}

fn token_for(issuer: &TokenIssuer, audience: &str, user: &str) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    issuer.token(
        "one",
        &json!({"aud": audience, "sub": user, "roles": ["dev"], "iat": now}),
    )
}

/// Creates a plane at a replica in which `role:dev` may read.
async fn plane(site: &Site, name: &str, replica: &str) -> Result<Endpoint> {
    let endpoint = create_plane(&site.root, name).await?;
    move_to(&Client::open(&site.root).await?, name, replica).await?;
    let binding = json!({"metadata": {"name": "dev"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "role:dev"}]});
    let masters = Client::open(&endpoint).await?;
    masters.post(BINDINGS, &binding).await?.expect(201)?;
    Ok(endpoint)
}

async fn reads(caller: &Endpoint) -> Result<()> {
    get(caller, CONFIG_MAPS).await?.expect(200).map(drop)
}

/// Checks whom a token proves to the administrator of a plane who asks for a review.
async fn reviews(plane: &Endpoint, token: &str, user: Option<&str>) -> Result<()> {
    let review = json!({"spec": {"token": token}});
    let review = Client::open(plane).await?.post(REVIEWS, &review).await?;
    let status = &review.expect(201)?["status"];
    let is_proven = status["authenticated"] == true;
    ensure!(is_proven == user.is_some(), "{status}");
    ensure!(status["user"]["username"].as_str() == user, "{status}");
    ensure!(
        is_proven || status["error"] == "invalid bearer token",
        "{status}"
    );
    Ok(())
}

/// Two planes with one issuer and different audiences, at the owner and through another replica: each token
/// proves its user in its own plane, and nobody in the other, in the root, or in a plane without issuers.
/// An issuer that is taken out proves nobody from the next request on; nor does a namesake of the plane.
#[tokio::test]
async fn an_issuer_proves_users_of_the_plane_that_names_it_alone() -> Result<()> {
    let site = Site::start(&["--replicas=2", "--sleep-after=1", ALLOWED]).await?;
    let issuer = TokenIssuer::start(vec![("one", IssuerKey::curve()?)]).await?;
    let places = [
        ("a", "polyplane-0"),
        ("b", "polyplane-1"),
        ("plain", "polyplane-0"),
    ];
    let mut planes = Vec::new();
    for (name, replica) in places {
        planes.push((name, plane(&site, name, replica).await?));
    }
    for name in ["a", "b"] {
        let jwt = json!([issuer_of(&issuer, name)]);
        name_issuers(&site, name, jwt).await?.expect(200)?;
    }
    let (mut attempts, mut twins) = (0, 0);
    for of in ["a", "b"] {
        let token = token_for(&issuer, of, "jane")?;
        reviews(&site.root, &token, None).await?;
        for (name, endpoint) in &planes {
            reviews(endpoint, &token, (of == *name).then_some("jane")).await?;
            let caller = endpoint.with_token(Some(&token));
            if of == *name {
                reads(&caller).await?;
                let who = Client::open(&caller).await?.post(WHO, &json!({})).await?;
                let who = who.expect(201)?;
                let user = &who["status"]["userInfo"];
                ensure!(user["username"] == "jane", "{who}");
                ensure!(
                    user["groups"] == json!(["role:dev", "system:authenticated"]),
                    "{who}"
                );
                twins += 1;
            } else {
                refused(&caller).await?;
                attempts += 1;
            }
        }
        refused(&site.root.with_token(Some(&token))).await?;
        attempts += 1;
    }
    attempts += forged(&site, &issuer, &planes).await?;
    println!("{attempts} attempts refused, {twins} twins admitted");
    lives_on(&site, &issuer).await?;
    ends(&site, &issuer).await
}

/// Users whom the server alone names, and wrong tokens.
async fn forged(site: &Site, issuer: &TokenIssuer, planes: &[(&str, Endpoint)]) -> Result<usize> {
    let before = issuer.server.hits(KEYS);
    let own = IssuerKey::curve()?;
    let header = json!({"alg": "ES256", "kid": "one"});
    let claims = json!({"iss": issuer.server.url, "sub": "jane", "aud": "a",
        "exp": 4_000_000_000_u64});
    let token = |claims: Value| issuer.token("one", &claims);
    let mut attempts = 0;
    for token in [
        own.sign(&header, &claims)?,
        token(json!({"aud": "a", "exp": 1}))?,
        token(json!({"aud": "a", "nbf": 4_000_000_000_u64}))?,
        token(json!({"aud": "a", "sub": "root:admin"}))?,
        token(json!({"aud": "a", "sub": "system:serviceaccount:default:default"}))?,
        token(json!({"aud": "a", "iss": "https://elsewhere.example.com"}))?,
    ] {
        for (_, endpoint) in planes {
            refused(&endpoint.with_token(Some(&token))).await?;
            attempts += 1;
        }
        refused(&site.root.with_token(Some(&token))).await?;
        refused(
            &site
                .root
                .with_token(Some(&token))
                .at_base_path("/clusters/missing"),
        )
        .await?;
        attempts += 2;
    }
    ensure!(issuer.server.hits(KEYS) == before, "strangers cause calls");
    Ok(attempts)
}

/// A move, a sleep, other fields of the record and keys that are replaced end nothing.
async fn lives_on(site: &Site, issuer: &TokenIssuer) -> Result<()> {
    let root = Client::open(&site.root).await?;
    let jane = token_for(issuer, "a", "jane")?;
    let jane = site
        .root
        .with_token(Some(&jane))
        .at_base_path("/clusters/a");
    move_to(&root, "a", "polyplane-1").await?;
    reads(&jane).await?;
    let looked = issuer.server.hits(KEYS);
    site.kubectl
        .ok(&["plane", "limits", "a", "--requests=1000"])?;
    reads(&jane).await?;
    ensure!(
        issuer.server.hits(KEYS) == looked,
        "a limit has the keys looked up"
    );
    let asleep = async {
        while !owner(&root, "a").await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let asleep = tokio::time::timeout(Duration::from_secs(60), asleep).await;
    asleep.context("the plane does not sleep")??;
    reads(&jane).await?;
    // A new key is unknown to a replica until it has looked.
    issuer.rotate("two", IssuerKey::curve()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let claims = json!({"aud": "a", "sub": "jane", "roles": ["dev"], "iat": now});
    let by_new = issuer.token("two", &claims)?;
    let by_new = site
        .root
        .with_token(Some(&by_new))
        .at_base_path("/clusters/a");
    let known = async {
        while get(&by_new, CONFIG_MAPS).await?.status != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    let known = tokio::time::timeout(Duration::from_secs(60), known).await;
    known.context("a new key is never known")??;
    refused(&jane).await.context("the key was withdrawn")
}

/// A revocation ends one user's tokens, the field's removal all, and a namesake inherits none.
async fn ends(site: &Site, issuer: &TokenIssuer) -> Result<()> {
    let root = Client::open(&site.root).await?;
    let by = |user: &str, seconds: i64| -> Result<Endpoint> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let issued = i64::try_from(now)? + seconds;
        let claims = json!({"aud": "a", "sub": user, "roles": ["dev"], "iat": issued});
        let token = issuer.token("two", &claims)?;
        Ok(site
            .root
            .with_token(Some(&token))
            .at_base_path("/clusters/a"))
    };
    for replica in ["polyplane-0", "polyplane-1"] {
        move_to(&root, "a", replica).await?;
        // Another user at each, because the first revocation is younger than the next token.
        let user = format!("jane.{replica}");
        let (jane, joe) = (by(&user, -5)?, by("joe", -5)?);
        until_it_reads(&jane).await?;
        reads(&joe).await?;
        site.kubectl.ok(&["plane", "revoke", "a", &user])?;
        refused(&jane).await?;
        reads(&joe).await?;
        reads(&by(&user, 2)?).await?;
        name_issuers(site, "a", json!(null)).await?.expect(200)?;
        refused(&joe).await?;
        let jwt = json!([issuer_of(issuer, "a")]);
        name_issuers(site, "a", jwt).await?.expect(200)?;
        until_it_reads(&joe).await?;
    }
    let joe = by("joe", 0)?;
    remove_plane(&site.root, "a").await?;
    refused(&joe).await?;
    create_plane(&site.root, "a").await?;
    refused(&joe).await
}

/// Waits until a replica that has not looked the keys up for a while has done so.
async fn until_it_reads(caller: &Endpoint) -> Result<()> {
    let reading = async {
        while reads(caller).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(30), reading).await;
    read.context("the keys are never known")
}

/// The addresses of the server's own network are closed to planes unless the operator opens them, and who
/// may change a plane's issuers may issue its credentials.
#[tokio::test]
async fn a_planes_issuers_are_bounded_by_the_operator() -> Result<()> {
    let site = Site::start(&[]).await?;
    let issuer = TokenIssuer::start(vec![("one", IssuerKey::curve()?)]).await?;
    let a = plane(&site, "a", "polyplane-0").await?;
    let jwt = json!([issuer_of(&issuer, "a")]);
    name_issuers(&site, "a", jwt.clone()).await?.expect(200)?;
    let token = token_for(&issuer, "a", "jane")?;
    refused(&a.with_token(Some(&token))).await?;
    ensure!(
        issuer.server.connections() == 0,
        "{}",
        issuer.server.hits(DISCOVERY)
    );
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut jwt = jwt.clone();
        change(&mut jwt[0]);
        jwt
    };
    for (jwt, words) in [
        (
            wrong(&|one| one["issuer"]["url"] = json!("http://h")),
            "jwt[0].issuer.url",
        ),
        (
            wrong(&|one| one["issuer"]["audiences"] = json!([])),
            "jwt[0].issuer.audiences",
        ),
        (
            wrong(&|one| one["issuer"]["certificateAuthority"] = json!("x")),
            "certificateAuthority",
        ),
        (
            wrong(&|one| one["claimMappings"] = json!({})),
            "jwt[0].claimMappings.username",
        ),
        (
            wrong(&|one| one["claimMappings"]["groups"] = json!({"expression": "claims."})),
            "jwt[0].claimMappings.groups.expression",
        ),
        (json!(vec![jwt[0].clone(); 5]), "Too many"),
    ] {
        let refused = name_issuers(&site, "a", jwt).await?;
        refused
            .refuses(422, "spec.authentication")
            .with_context(|| words.to_owned())?;
        refused.refuses(422, words)?;
    }
    let kubectl = site.kubectl.in_context("root");
    let planes = [
        "create",
        "clusterrole",
        "planes",
        "--verb=get,patch,update",
        "--resource=controlplanes.polyplane.dev",
    ];
    kubectl.ok(&planes)?;
    kubectl.ok(&[
        "create",
        "clusterrolebinding",
        "planes",
        "--clusterrole=planes",
        "--user=ops",
    ])?;
    let patch = |issuers: &str| {
        let patch = format!("--patch={{\"spec\":{{\"authentication\":{issuers}}}}}");
        [
            "patch",
            "controlplane",
            "a",
            "--type=merge",
            &patch,
            "--as=ops",
        ]
        .map(str::to_owned)
    };
    let run = |arguments: [String; 6]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        kubectl.run(&arguments)
    };
    let said = run(patch("null"))?;
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
    let said = run(patch("null"))?;
    ensure!(said.status.success(), "{said:?}");
    Ok(())
}
