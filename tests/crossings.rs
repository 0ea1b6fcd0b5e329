//! Every way from one control plane into another that this kind of system is known for, tried by the
//! administrator of one plane against another plane: at a replica that owns the target, and through one
//! that forwards. Each attempt has a twin that succeeds with the right credential.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Method, Request};
use polyplane_tests::client::{Client, version};
use polyplane_tests::connection::{Answer, Ask, connect};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::programs::{create_plane, delete_plane, remove_plane};
use polyplane_tests::site::{Site, endpoint, get, move_to};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// The name of an object of the target, which the attacker knows.
/// The beginning of the names of metrics with a series for each of the planes that use most.
const USAGE: &str = "polyplane_largest_plane_";
const TREASURE: &str = "treasure-of-the-target";
/// What is in it, and no other plane may show.
const GOLD: &str = "gold-in-the-target";

/// Attempts that were refused, and twins that succeeded.
#[derive(Default)]
struct Counts {
    refused: usize,
    twins: usize,
}

/// The plane of the attacker, who is its administrator, and the target with its own administrator.
/// Both have a kind and an object of the same names, and the target has its treasure.
struct Crossing {
    site: Site,
    target: &'static str,
    target_id: String,
    eve: Endpoint,
    tom: Endpoint,
    /// An account of the attacker's plane, which may do everything there.
    account: Endpoint,
    counts: Counts,
}

impl Crossing {
    async fn new(replica: &str) -> Result<Self> {
        let site = Site::start(&["--replicas=2"]).await?;
        let root = Client::open(&site.root).await?;
        for (name, place) in [("eves", "polyplane-0"), ("target", replica)] {
            create_plane(&site.root, name).await?;
            move_to(&root, name, place).await?;
        }
        let eve = endpoint(&site.admin_of("eves")?)?;
        let tom = endpoint(&site.admin_of("target")?)?;
        for (owner, name) in [(&eve, "own-of-eve"), (&tom, TREASURE)] {
            let own = Client::open(owner).await?;
            for name in ["same", name] {
                let data = if name == TREASURE { GOLD } else { "nothing" };
                let map = json!({"metadata": {"name": name}, "data": {"of": data}});
                own.post(CONFIG_MAPS, &map).await?.expect(201)?;
            }
        }
        let own = Client::open(&eve).await?;
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let account = json!({"metadata": {"name": "builder"}});
        own.post(accounts, &account).await?.expect(201)?;
        let path = format!("{accounts}/builder/token");
        let token = own.post(&path, &json!({"spec": {}})).await?.expect(201)?;
        let token = token["status"]["token"].as_str().context("no token")?;
        let record = root.get(&format!("{PLANES}/target")).await?.expect(200)?;
        let id = record["status"]["id"].as_str().context("no id")?;
        Ok(Self {
            target: "target",
            target_id: id.to_owned(),
            account: eve.with_token(Some(token)),
            site,
            eve,
            tom,
            counts: Counts::default(),
        })
    }

    /// Checks that an answer is a refusal and shows nothing of the target.
    fn refused(&mut self, what: &str, answer: &Answer) -> Result<()> {
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(
            answer.status.is_client_error() && !text.contains(GOLD),
            "{what}: {} {text:.300}",
            answer.status
        );
        self.counts.refused += 1;
        Ok(())
    }

    /// Checks that the right credential gets the treasure in the same way.
    fn twin(&mut self, what: &str, answer: &Answer) -> Result<()> {
        let text = String::from_utf8_lossy(&answer.body);
        ensure!(
            answer.status.is_success() && (text.contains(GOLD) || text.contains(TREASURE)),
            "the twin of {what}: {} {text:.300}",
            answer.status
        );
        self.counts.twins += 1;
        Ok(())
    }
}

async fn ask(caller: &Endpoint, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
    let headers = headers.iter();
    let ask = Ask {
        method: Method::GET,
        path: path.to_owned(),
        headers: headers
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        body: Bytes::new(),
    };
    Client::open(caller).await?.raw(ask).await
}

/// Sends raw bytes over HTTP/1.1 and returns what comes back until the server closes.
async fn converse(caller: &Endpoint, request: &str) -> Result<String> {
    let mut stream = connect(caller, Caller::Admin, Protocol::Http1).await?;
    // A failure is ignored, because the server may refuse and close before it has read everything.
    drop(stream.write_all(request.as_bytes()).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Paths: encoded, doubled and relative prefixes, wildcards, names of several planes, ids.
async fn paths(crossing: &mut Crossing) -> Result<()> {
    let inside = format!("{CONFIG_MAPS}/{TREASURE}");
    let (name, id) = (crossing.target, crossing.target_id.clone());
    let straight = [
        format!("/clusters/{name}{inside}"),
        format!("/clusters/{id}{inside}"),
        format!("/clusters/{id}/control-plane{inside}"),
    ];
    let crooked = [
        format!("/clusters/eves/../{name}{inside}"),
        format!("/clusters/eves/%2e%2e/{name}{inside}"),
        format!("/clusters/eves%2f..%2f{name}{inside}"),
        format!("/clusters/eves/clusters/{name}{inside}"),
        format!("/clusters/eves//clusters/{name}{inside}"),
        format!("//clusters/{name}{inside}"),
        format!("/clusters//{name}{inside}"),
        format!("/./clusters/{name}{inside}"),
        format!("/%63lusters/{name}{inside}"),
        format!("/CLUSTERS/{name}{inside}"),
        format!("/clusters/*{inside}"),
        format!("/clusters/%2a{inside}"),
        format!("/clusters/**{inside}"),
        format!("/clusters/-{inside}"),
        format!("/clusters/eves,{name}{inside}"),
        format!("/clusters/eves%2c{name}{inside}"),
        format!("/clusters/{name}%00{inside}"),
        format!("/clusters/{name};eves{inside}"),
        format!("/clusters/eves:{name}{inside}"),
        format!("/clusters/root:{name}{inside}"),
        format!("/services/apiexport/{name}/clusters/*{inside}"),
        format!("/clusters/eves/apis/polyplane.dev/v1alpha1/controlplanes/{name}"),
        format!("/clusters/eves/{PLANES}/{name}"),
        format!("{PLANES}/{name}"),
        format!("{PLANES}/{name}/credentials"),
    ];
    let callers = [crossing.eve.clone(), crossing.account.clone()];
    for path in straight.iter().chain(&crooked) {
        for caller in &callers {
            let answer = ask(&caller.at_base_path(""), path, &[]).await?;
            crossing.refused(path, &answer)?;
        }
    }
    for path in [&straight[0], &straight[2]] {
        let tom = crossing.tom.at_base_path("");
        let answer = ask(&tom, path, &[]).await?;
        crossing.twin(path, &answer)?;
    }
    Ok(())
}

/// Headers by which a proxy, or a replica, names somebody else.
async fn headers(crossing: &mut Crossing) -> Result<()> {
    let path = format!("{CONFIG_MAPS}/{TREASURE}");
    let leaf = crossing.tom.certificate().context("tom has one")?;
    let chain = BASE64_STANDARD_NO_PAD.encode(leaf);
    let id = crossing.target_id.clone();
    let forged: [&[(&str, &str)]; 11] = [
        &[
            ("x-remote-user", "admin"),
            ("x-remote-group", "system:masters"),
        ],
        &[
            ("x-remote-user", "admin"),
            ("x-remote-group", "polyplane:cluster-admins"),
        ],
        &[
            ("impersonate-user", "admin"),
            ("impersonate-group", "polyplane:cluster-admins"),
        ],
        &[
            ("impersonate-user", "root:admin"),
            ("impersonate-group", "system:masters"),
        ],
        &[("x-polyplane-chain", &chain)],
        &[
            ("x-polyplane-forwarded-by", "polyplane-1"),
            ("x-polyplane-chain", &chain),
        ],
        &[
            ("x-polyplane-forwarded-by", "polyplane-1"),
            ("x-polyplane-meant-for", "polyplane-0"),
            ("x-polyplane-chain", &chain),
            ("x-polyplane-plane", &id),
        ],
        &[("x-polyplane-plane", &id)],
        &[
            ("x-forwarded-client-cert", &chain),
            ("x-forwarded-for", "127.0.0.1"),
        ],
        &[
            ("ssl-client-cert", &chain),
            ("x-ssl-client-verify", "SUCCESS"),
        ],
        &[
            ("x-kubernetes-cluster", "target"),
            ("x-kcp-cluster", "target"),
            ("host", "target"),
        ],
    ];
    let target = format!("/clusters/{}", crossing.target);
    for headers in forged {
        let what = format!("{:.120?}", headers);
        // As eve, as eve's account, and as nobody.
        let callers = [
            crossing.eve.at_base_path(&target),
            crossing.account.at_base_path(&target),
            crossing.eve.at_base_path(&target).with_token(None),
        ];
        for caller in callers {
            let answer = ask(&caller, &path, headers).await?;
            crossing.refused(&what, &answer)?;
        }
        // In eve's own plane they lead nowhere else either.
        let answer = ask(&crossing.eve, &path, headers).await?;
        crossing.refused(&what, &answer)?;
    }
    let tom = crossing.tom.clone();
    let answer = ask(
        &tom,
        &path,
        &[("x-polyplane-plane", "eves"), ("x-remote-user", "eve")],
    );
    crossing.twin("headers", &answer.await?)?;
    // Whom a header names nobody becomes, but by impersonation in one's own plane.
    let own = Client::open(&crossing.eve).await?;
    for (header, expected) in [("x-remote-user", "admin"), ("impersonate-user", "jane")] {
        let ask = Ask {
            method: Method::POST,
            path: REVIEWS.to_owned(),
            headers: vec![
                (header.to_owned(), "jane".to_owned()),
                ("content-type".to_owned(), "application/json".to_owned()),
            ],
            body: Bytes::from_static(b"{}"),
        };
        let answer = own.raw(ask).await?;
        let who: Value = serde_json::from_slice(&answer.body)?;
        let name = &who["status"]["userInfo"]["username"];
        ensure!(name == expected, "{header}: {who}");
    }
    Ok(())
}

/// Versions, page tokens, uids and kinds of the target, used in the attacker's plane.
async fn positions(crossing: &mut Crossing) -> Result<()> {
    let (tom, eve) = (crossing.tom.clone(), crossing.eve.clone());
    let page = get(&tom, &format!("{CONFIG_MAPS}?limit=1"))
        .await?
        .expect(200)?;
    let token = page["metadata"]["continue"].as_str().context("a page")?;
    let list = get(&tom, CONFIG_MAPS).await?.expect(200)?;
    let at = version(&list);
    let kinds = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{TREASURE}s.tomb.example")},
        "spec": {"group": "tomb.example", "scope": "Namespaced",
            "names": {"plural": format!("{TREASURE}s"), "kind": "Treasure"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let own = Client::open(&tom).await?;
    own.post(definitions, &kinds).await?.expect(201)?;
    let ways = [
        format!("{CONFIG_MAPS}?limit=10&continue={token}"),
        format!("{CONFIG_MAPS}?resourceVersion={at}&resourceVersionMatch=Exact"),
        format!("{CONFIG_MAPS}?resourceVersion={at}&resourceVersionMatch=NotOlderThan"),
        "/apis/tomb.example/v1".to_owned(),
        "/apis".to_owned(),
        "/openapi/v2".to_owned(),
        "/openapi/v3".to_owned(),
        "/api/v1/events".to_owned(),
        "/metrics".to_owned(),
    ];
    for way in &ways {
        for caller in [&eve, &crossing.account.clone()] {
            let answer = ask(caller, way, &[]).await?;
            let text = String::from_utf8_lossy(&answer.body);
            // Some are answered, with what is eve's alone.
            ensure!(
                !text.contains(TREASURE) && !text.contains("tomb.example"),
                "{way}: {} {text:.300}",
                answer.status
            );
            crossing.counts.refused += 1;
        }
    }
    for way in [&ways[0], &ways[1], &ways[2], &ways[3], &ways[5]] {
        let answer = ask(&tom, way, &[]).await?;
        crossing.twin(way, &answer)?;
    }
    // A watch of the attacker from the target's versions shows the attacker's next change.
    let mine = Client::open(&eve).await?;
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={at}");
    let watch = mine.watch(&path).await;
    for caller in [&tom, &eve] {
        let map = json!({"metadata": {"name": "next"}});
        Client::open(caller)
            .await?
            .post(CONFIG_MAPS, &map)
            .await?
            .expect(201)?;
    }
    match watch {
        Ok(mut events) => {
            let uid = get(&eve, &format!("{CONFIG_MAPS}/next"))
                .await?
                .expect(200)?;
            let (kind, shown) = events.change().await?;
            let is_mine = shown["metadata"]["uid"] == uid["metadata"]["uid"];
            ensure!(is_mine || kind == "ERROR", "{kind} {shown}");
        }
        Err(error) => ensure!(error.to_string().contains("410"), "{error:#}"),
    }
    crossing.counts.refused += 1;
    let uid = &get(&tom, &format!("{CONFIG_MAPS}/same"))
        .await?
        .expect(200)?["metadata"]["uid"];
    let precondition = json!({"preconditions": {"uid": uid}});
    let same = format!("{CONFIG_MAPS}/same");
    let deleted = mine.send(Method::DELETE, &same, &precondition).await?;
    deleted.refuses(409, "")?;
    crossing.counts.refused += 1;
    let deleted = own.send(Method::DELETE, &same, &precondition).await?;
    deleted.expect(200)?;
    crossing.counts.twins += 1;
    Ok(())
}

/// Requests that a proxy and a server might divide differently, with one for the target inside.
async fn smuggled(crossing: &mut Crossing) -> Result<()> {
    let inside =
        format!("GET /clusters/target{CONFIG_MAPS}/{TREASURE} HTTP/1.1\r\nHost: x\r\n\r\n");
    let length = inside.len();
    let post = format!(
        "POST /clusters/eves{CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    );
    let chunks = format!("0\r\n\r\n{inside}");
    let requests = [
        format!("{post}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{inside}"),
        format!("{post}Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"),
        format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunks}"),
        format!("{post}Transfer-Encoding: xchunked\r\n\r\n{chunks}"),
        format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n{chunks}"),
        format!("{post}Transfer-Encoding : chunked\r\n\r\n{chunks}"),
        format!("{post}Transfer-Encoding:\x0bchunked\r\n\r\n{chunks}"),
        format!("{post}X: y\r\n Transfer-Encoding: chunked\r\n\r\n{chunks}"),
        format!("{post}Content-Length: +0\r\n\r\n{inside}"),
        format!("{post}Content-Length: 0\n\n{inside}"),
        format!(
            "GET /clusters/eves{CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nX-Polyplane-Plane: a\r\n\r\n{inside}"
        ),
        format!(
            "GET /clusters/eves{CONFIG_MAPS} HTTP/1.1\r\nHost: x\rGET /clusters/target{CONFIG_MAPS} HTTP/1.1\r\n\r\n"
        ),
        format!("GET http://target/clusters/target{CONFIG_MAPS} HTTP/1.1\r\nHost: eves\r\n\r\n"),
        format!("GET /clusters/eves{CONFIG_MAPS}#/../../target HTTP/1.1\r\nHost: x\r\n\r\n"),
    ];
    let close = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for request in &requests {
        let answer = converse(&crossing.eve, &format!("{request}{close}")).await?;
        ensure!(!answer.contains(GOLD), "{request}: {answer:.400}");
        crossing.counts.refused += 1;
    }
    let answer = converse(&crossing.tom, &format!("{inside}{close}")).await?;
    ensure!(answer.contains(GOLD), "the twin: {answer:.400}");
    crossing.counts.twins += 1;
    Ok(())
}

/// What a stranger to a plane is answered is the same whether it exists, was deleted, is being made
/// anew, or never was.
async fn names(crossing: &mut Crossing) -> Result<()> {
    create_plane(&crossing.site.root, "gone").await?;
    remove_plane(&crossing.site.root, "gone").await?;
    create_plane(&crossing.site.root, "going").await?;
    delete_plane(&crossing.site.root, "going").await?;
    let issuer = format!(
        "https://localhost/clusters/{}/control-plane",
        crossing.target_id
    );
    let part = |tree: Value| BASE64_URL_SAFE_NO_PAD.encode(tree.to_string());
    let forged = format!(
        "{}.{}.{}",
        part(json!({"alg": "ES256", "kid": "k"})),
        part(json!({"iss": issuer, "aud": [issuer], "sub": "system:serviceaccount:a:b"})),
        BASE64_URL_SAFE_NO_PAD.encode([7; 64])
    );
    let eve = crossing.eve.at_base_path("");
    let callers = [
        eve.clone(),
        crossing.account.at_base_path(""),
        eve.with_token(None),
        eve.with_token(Some("nonsense")),
        // The target takes no bootstrap tokens.
        eve.with_token(Some("abcdef.0123456789abcdef")),
        eve.with_token(Some(&forged)),
    ];
    let ways = [
        CONFIG_MAPS,
        "/version",
        "/api",
        "/openid/v1/jwks",
        "/clusters/x",
        "",
    ];
    for caller in &callers {
        for way in ways {
            let mut answers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for name in ["target", "gone", "going", "never"] {
                let answer = ask(caller, &format!("/clusters/{name}{way}"), &[]).await?;
                ensure!(answer.status == 401, "{name}{way}: {}", answer.status);
                let mut headers = answer.headers.clone();
                for differs in ["audit-id", "date"] {
                    headers.remove(differs);
                }
                let shape = format!("{headers:?} {:?}", answer.body);
                answers.entry(shape).or_default().push(name);
                crossing.counts.refused += 1;
            }
            ensure!(answers.len() == 1, "{way}: {answers:?}");
        }
    }
    let tom = crossing.tom.clone();
    let answer = ask(&tom, CONFIG_MAPS, &[]).await?;
    crossing.twin("names", &answer)
}

/// Floods of one stranger, in whose midst the owner of the target is answered.
async fn floods(crossing: &mut Crossing) -> Result<()> {
    let target = format!("/clusters/{}", crossing.target);
    let eve = crossing.eve.at_base_path(&target);
    let tom = crossing.tom.clone();
    // Rapid reset: each stream is cancelled as soon as it is opened.
    let stream = connect(&eve, Caller::Admin, Protocol::Http2).await?;
    let (mut sender, connection) = h2::client::handshake(stream).await?;
    let driver = tokio::spawn(async move { drop(connection.await) });
    let mut opened = 0;
    for _ in 0..5000 {
        let Ok(ready) = sender.ready().await else {
            break;
        };
        sender = ready;
        let uri = format!("https://{}:{}{target}{CONFIG_MAPS}", eve.host, eve.port);
        let request = Request::builder().method(Method::GET).uri(uri).body(())?;
        let Ok((answer, mut body)) = sender.send_request(request, false) else {
            break;
        };
        body.send_reset(h2::Reason::CANCEL);
        drop(answer);
        opened += 1;
    }
    ensure!(opened > 0, "no stream was opened");
    let answer = ask(&tom, CONFIG_MAPS, &[]).await?;
    crossing.twin("rapid reset", &answer)?;
    driver.abort();
    crossing.counts.refused += 1;
    // Bombs of headers: many, long, and long that compress well.
    let long = "x".repeat(1 << 20);
    let many: Vec<(String, String)> = (0..20_000)
        .map(|number| (format!("x-bomb-{number}"), "x".to_owned()))
        .collect();
    let repeated: Vec<(String, String)> = (0..20_000)
        .map(|_| ("x-bomb".to_owned(), "x".repeat(100)))
        .collect();
    for headers in [vec![("x-bomb".to_owned(), long)], many, repeated] {
        for caller in [&eve, &crossing.eve.clone()] {
            let ask = Ask {
                method: Method::GET,
                path: format!("{CONFIG_MAPS}/{TREASURE}"),
                headers: headers.clone(),
                body: Bytes::new(),
            };
            // The connection may also end.
            if let Ok(answer) = Client::open(caller).await?.raw(ask).await {
                crossing.refused("a bomb of headers", &answer)?;
            } else {
                crossing.counts.refused += 1;
            }
        }
        let some: Vec<(&str, &str)> = vec![("x-bomb", "x"); 50];
        let answer = ask(&tom, CONFIG_MAPS, &some).await?;
        crossing.twin("headers", &answer)?;
    }
    Ok(())
}

/// Nothing that a client chooses becomes a label or a line. The few planes that use most have a series,
/// which only those who may read the root's metrics see.
async fn figures(crossing: &mut Crossing) -> Result<()> {
    let metrics = ask(&crossing.site.root, "/metrics", &[]).await?;
    ensure!(metrics.status == 200, "{}", metrics.status);
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let log = crossing.site.server.log()?;
    for (where_, text) in [("metrics", &metrics), ("log", &log)] {
        for word in [TREASURE, GOLD, "own-of-eve", "x-bomb", "eyJ"] {
            ensure!(!text.contains(word), "{word} stands in the {where_}");
            crossing.counts.refused += 1;
        }
    }
    for word in [&crossing.target_id, "system:masters"] {
        ensure!(!metrics.contains(word), "{word} is a label");
        crossing.counts.refused += 1;
    }
    for word in ["\"eves\"", "\"target\""] {
        let mut others = metrics.lines().filter(|line| !line.starts_with(USAGE));
        ensure!(!others.any(|line| line.contains(word)), "{word} is a label");
        crossing.counts.refused += 1;
    }
    ensure!(!log.contains("panicked"), "{log}");
    ensure!(metrics.contains("resource=\"configmaps\""), "the twin");
    crossing.counts.twins += 1;
    Ok(())
}

async fn cross(replica: &str) -> Result<Counts> {
    let mut crossing = Crossing::new(replica).await?;
    paths(&mut crossing).await.context("paths")?;
    headers(&mut crossing).await.context("headers")?;
    positions(&mut crossing).await.context("positions")?;
    smuggled(&mut crossing).await.context("smuggling")?;
    names(&mut crossing).await.context("names")?;
    floods(&mut crossing).await.context("floods")?;
    figures(&mut crossing).await.context("figures")?;
    Ok(crossing.counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_way_leads_into_another_plane() -> Result<()> {
    for (what, replica) in [
        ("at the owner", "polyplane-0"),
        ("forwarded", "polyplane-1"),
    ] {
        let Counts { refused, twins } = cross(replica).await.context(what)?;
        println!("{what}: {refused} attempts refused, {twins} twins succeeded");
    }
    Ok(())
}
