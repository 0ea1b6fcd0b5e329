//! Priority and fairness inside a plane: what a plane's FlowSchemas and PriorityLevelConfigurations do
//! with its requests, from the write that changes them on.
//!
//! A request is kept in flight by a body that does not end: it has its seat, and the server waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::{HeaderMap, Method};
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Answer, Ask, connect};
use polyplane_tests::drop_in::DropIn;
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const DUMPS: &str = "/debug/api_priority_and_fairness";
const MERGE: &str = "application/merge-patch+json";
const BUSY: &str = "Too many requests, please try again later.\n";
/// Looks until something that needs no request of the test must have happened.
const LOOKS: usize = 1000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// A level of one share has one seat of so many.
const SEATS: &str = "--plane-seats=10";
/// One replica, which owns each plane, so that a body that does not end is waited for at the owner.
const ONE: &str = "--replicas=1";
/// Three replicas, which forward to each other.
const THREE: &str = "--replicas=3";
/// Requests of the flood at a time.
const FLOOD: usize = 50;
/// Requests of the user who does not flood.
const CALM: usize = 30;

struct Site {
    admin: Client,
    root: Client,
    endpoint: Endpoint,
    server: Up,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn start(replicas: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Up::start(&folder.path().join("data"), &[SEATS, replicas]).await?;
        let endpoint = create_plane(&server.root()?, "team").await?;
        let admin = Client::open(&endpoint).await?;
        for user in ["jane", "bob"] {
            let binding = json!({"metadata": {"name": user},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
            admin.post(BINDINGS, &binding).await?.expect(201)?;
        }
        Ok(Self {
            admin,
            root: Client::open(&server.root()?).await?,
            endpoint,
            server,
            _folder: folder,
        })
    }

    /// Creates a level of one seat, and a schema that leads there. Returns their uids.
    async fn create(&self, response: Value, users: &[&str]) -> Result<[String; 2]> {
        let level = json!({"metadata": {"name": "own"}, "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": response}}});
        let level = self.admin.post(LEVELS, &level).await?.expect(201)?;
        let schema = json!({"metadata": {"name": "own"}, "spec": {
            "priorityLevelConfiguration": {"name": "own"}, "matchingPrecedence": 500,
            "distinguisherMethod": {"type": "ByUser"}, "rules": [rule(users)]}});
        let schema = self.admin.post(SCHEMAS, &schema).await?.expect(201)?;
        Ok([uid(&schema)?, uid(&level)?])
    }

    async fn named(&self, collection: &str, name: &str) -> Result<String> {
        let path = format!("{collection}/{name}");
        uid(&self.admin.get(&path).await?.expect(200)?)
    }

    /// Returns the numbers of one level: waiting, executing, rejected.
    async fn numbers(&self, level: &str) -> Result<[u64; 3]> {
        let dump = self.dump("dump_priority_levels").await?;
        let mut rows = dump.lines().map(|line| line.split(", ").map(str::trim));
        let row = rows.find(|row| row.clone().next() == Some(level));
        let row: Vec<&str> = row.context("no such level")?.collect();
        let number = |at: usize| -> Result<u64> {
            let cell = row.get(at).context("a column is missing")?;
            Ok(cell.trim_end_matches(',').parse()?)
        };
        Ok([number(4)?, number(5)?, number(7)?])
    }

    async fn dump(&self, name: &str) -> Result<String> {
        let asked = ask(Method::GET, &format!("{DUMPS}/{name}"), &Value::Null);
        let answer = self.admin.raw(asked).await?;
        ensure!(answer.status == 200, "{}", answer.status);
        Ok(String::from_utf8(answer.body.to_vec())?)
    }

    /// Waits until a level has so many requests that wait and that are carried out.
    async fn until(&self, level: &str, waiting: u64, executing: u64) -> Result<()> {
        let mut seen = [0; 3];
        for _ in 0..LOOKS {
            seen = self.numbers(level).await?;
            if seen[..2] == [waiting, executing] {
                return Ok(());
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        bail!("{level} has {seen:?}, not {waiting} waiting and {executing} executing")
    }

    /// Returns the value of a metric whose line begins like this; 0 if there is none.
    async fn metric(&self, beginning: &str) -> Result<f64> {
        let answer = self.root.raw(ask(Method::GET, "/metrics", &Value::Null));
        let answer = answer.await?;
        let text = String::from_utf8(answer.body.to_vec())?;
        let line = text.lines().find(|line| line.starts_with(beginning));
        let value = line.and_then(|line| line.rsplit(' ').next());
        Ok(value.map_or(Ok(0.0), str::parse)?)
    }
}

fn rule(users: &[&str]) -> Value {
    let subjects: Vec<Value> = users
        .iter()
        .map(|user| json!({"kind": "User", "user": {"name": user}}))
        .collect();
    json!({"subjects": subjects, "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"],
        "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]})
}

fn uid(object: &Value) -> Result<String> {
    let uid = object["metadata"]["uid"].as_str();
    Ok(uid.context("no uid")?.to_owned())
}

fn get_as(user: &str, path: &str) -> Ask {
    let mut asked = ask(Method::GET, path, &Value::Null);
    asked.headers = vec![("impersonate-user".to_owned(), user.to_owned())];
    asked
}

fn header(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// Returns the uids of the flow schema and the priority level that a reply names.
fn named_in(answer: &Answer) -> [String; 2] {
    [
        header(&answer.headers, "x-kubernetes-pf-flowschema-uid"),
        header(&answer.headers, "x-kubernetes-pf-prioritylevel-uid"),
    ]
}

fn refused(answer: &Answer, uids: &[String; 2]) -> Result<()> {
    ensure!(answer.status == 429, "{}", answer.status);
    ensure!(answer.body == BUSY, "{:?}", answer.body);
    ensure!(header(&answer.headers, "content-type") == "text/plain; charset=utf-8");
    let seconds: u64 = header(&answer.headers, "retry-after").parse()?;
    ensure!((1..=32).contains(&seconds), "{seconds}");
    ensure!(named_in(answer) == *uids, "{:?}", answer.headers);
    Ok(())
}

/// A request that has its seat until its body ends.
struct Held(TlsStream<TcpStream>);

impl Held {
    async fn start(endpoint: &Endpoint, user: &str, name: &str) -> Result<(Self, String)> {
        let mut stream = connect(endpoint, Caller::Admin, Protocol::Http1).await?;
        let body = json!({"metadata": {"name": name}}).to_string();
        let token = endpoint.token.as_deref().map_or(String::new(), |token| {
            format!("authorization: Bearer {token}\r\n")
        });
        let head = format!(
            "POST {}{MAPS} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             impersonate-user: {user}\r\n{token}content-length: {}\r\n\r\n",
            endpoint.base_path,
            endpoint.host,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        Ok((Self(stream), body))
    }

    /// Sends the body, and returns the first line of the reply.
    async fn end(mut self, body: &str) -> Result<String> {
        self.0.write_all(body.as_bytes()).await?;
        let mut reply = Vec::new();
        while !reply.contains(&b'\n') {
            let mut part = [0; 1024];
            let read = self.0.read(&mut part).await?;
            ensure!(read > 0, "the connection has ended");
            reply.extend_from_slice(&part[..read]);
        }
        let text = String::from_utf8_lossy(&reply);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }
}

#[tokio::test]
async fn a_schema_holds_from_its_write_on_and_its_level_refuses_no_one_else() -> Result<()> {
    let site = Site::start(ONE).await?;
    let get = |user| site.admin.raw(get_as(user, MAPS));
    let default = [
        site.named(SCHEMAS, "global-default").await?,
        site.named(LEVELS, "global-default").await?,
    ];
    ensure!(named_in(&get("jane").await?) == default);
    let exempt = [
        site.named(SCHEMAS, "exempt").await?,
        site.named(LEVELS, "exempt").await?,
    ];
    let own = site.create(json!({"type": "Reject"}), &["jane"]).await?;
    ensure!(named_in(&get("jane").await?) == own, "the next request");
    ensure!(named_in(&get("bob").await?) == default);

    let (held, body) = Held::start(&site.endpoint, "jane", "held").await?;
    site.until("own", 0, 1).await?;
    for _ in 0..20 {
        refused(&get("jane").await?, &own)?;
        let passed = get("bob").await?;
        ensure!(passed.status == 200 && named_in(&passed) == default);
        let master = site.admin.raw(ask(Method::GET, MAPS, &Value::Null)).await?;
        ensure!(master.status == 200 && named_in(&master) == exempt);
    }
    ensure!(site.numbers("own").await?[2] == 20);
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"other\",\
                    priority_level=\"other\",reason=\"concurrency-limit\"}";
    ensure!(site.metric(rejected).await? == 20.0);
    // The plane, and the root for the request for metrics itself.
    ensure!(site.metric("polyplane_flowcontrol_planes ").await? == 2.0);
    let requests = site.dump("dump_requests?includeRequestDetails=1").await?;
    let line = requests.lines().find(|line| line.starts_with("own,"));
    let line = line.context("the request is not in the dump")?;
    ensure!(
        line.contains(" jane,") && line.contains(&format!(" {MAPS},")),
        "{line}"
    );

    // Whoever a schema does not name any more is free with the next request.
    let for_bob = json!({"spec": {"rules": [rule(&["bob"])]}}).to_string();
    let path = format!("{SCHEMAS}/own");
    let patched = site.admin.typed(Method::PATCH, &path, MERGE, for_bob);
    patched.await?.expect(200)?;
    ensure!(get("jane").await?.status == 200);
    refused(&get("bob").await?, &own)?;
    site.admin.delete(&path).await?.expect(200)?;
    let passed = get("bob").await?;
    ensure!(passed.status == 200 && named_in(&passed) == default);
    ensure!(held.end(&body).await? == "HTTP/1.1 201 Created");
    idle(&site).await
}

/// Returns the samples of `/metrics` of a plane, whose answer must be 200.
async fn samples(client: &Client, user: &str) -> Result<Vec<String>> {
    let answer = client.raw(get_as(user, "/metrics")).await?;
    ensure!(answer.status == 200, "{}", answer.status);
    let kind = header(&answer.headers, "content-type");
    ensure!(kind == "text/plain; version=0.0.4; charset=utf-8", "{kind}");
    let text = String::from_utf8(answer.body.to_vec())?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

#[tokio::test]
async fn metrics_of_a_plane_tell_what_it_has_at_the_moment() -> Result<()> {
    let site = Site::start(ONE).await?;
    site.create(json!({"type": "Reject"}), &["jane"]).await?;
    let (held, body) = Held::start(&site.endpoint, "jane", "held").await?;
    site.until("own", 0, 1).await?;
    let told = samples(&site.admin, "bob").await?;
    let labels = "flow_schema=\"own\",priority_level=\"own\"";
    for line in [
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"own\"} 1".to_owned(),
        format!("apiserver_flowcontrol_current_executing_requests{{{labels}}} 1"),
        format!("apiserver_flowcontrol_current_inqueue_requests{{{labels}}} 0"),
    ] {
        ensure!(told.contains(&line), "no {line}: {told:#?}");
    }
    ensure!(held.end(&body).await? == "HTTP/1.1 201 Created");
    Ok(())
}

#[tokio::test]
async fn metrics_of_a_plane_are_its_own_at_every_replica() -> Result<()> {
    let site = Site::start(THREE).await?;
    let mut planes = vec![Client::open(&site.endpoint).await?];
    for name in ["blue", "green"] {
        let endpoint = create_plane(&site.server.root()?, name).await?;
        planes.push(Client::open(&endpoint).await?);
    }
    site.create(json!({"type": "Reject"}), &["jane"]).await?;
    for (number, plane) in planes.iter().enumerate() {
        for map in 0..number {
            let map = json!({"metadata": {"name": format!("map-{map}")}});
            plane.post(MAPS, &map).await?.expect(201)?;
        }
        let reader = json!({"metadata": {"name": "reads"}, "roleRef": {"kind": "ClusterRole",
            "apiGroup": "rbac.authorization.k8s.io", "name": "system:monitoring"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]});
        plane.post(BINDINGS, &reader).await?.expect(201)?;
    }
    for (number, plane) in planes.iter().enumerate() {
        let told = samples(plane, "ann").await?;
        // The first has two bindings, a level and a schema from the start of this test.
        let own = 1 + if number == 0 { 4 } else { number };
        let objects = format!("polyplane_plane_objects {own}");
        ensure!(told.contains(&objects), "no {objects}: {told:#?}");
        let levels = told
            .iter()
            .filter(|line| line.contains("priority_level=\"own\""));
        ensure!((levels.count() > 0) == (number == 0), "{told:#?}");
        let replica = ["process_", "polyplane_commits", "polyplane_planes"];
        ensure!(
            !told
                .iter()
                .any(|line| replica.iter().any(|name| line.starts_with(name))),
            "{told:#?}"
        );
        let refused = plane.raw(get_as("mallory", "/metrics")).await?;
        ensure!(refused.status == 403, "{}", refused.status);
        let slis = plane
            .raw(ask(Method::GET, "/metrics/slis", &Value::Null))
            .await?;
        ensure!(slis.status == 200, "{}", slis.status);
    }
    // They ask the root with its own metrics, in which levels of planes have no names.
    ensure!(site.metric("process_open_fds").await? > 0.0);
    ensure!(
        site.metric("apiserver_flowcontrol_nominal_limit_seats{priority_level=\"own\"")
            .await?
            == 0.0
    );
    Ok(())
}

/// A server with one plane names its levels, also those without requests.
#[tokio::test]
async fn the_drop_in_names_all_levels() -> Result<()> {
    let (_drop_in, admin) = DropIn::start_for_admin(Vec::new()).await?;
    let client = Client::open(&admin).await?;
    let level = json!({"metadata": {"name": "own"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 10, "limitResponse": {"type": "Reject"}}}});
    client.post(LEVELS, &level).await?.expect(201)?;
    let schema = json!({"metadata": {"name": "mine"}, "spec": {
        "priorityLevelConfiguration": {"name": "own"}, "matchingPrecedence": 500, "rules": [rule(&["jane"])]}});
    client.post(SCHEMAS, &schema).await?.expect(201)?;
    let has = |told: &[String], begin: &str| told.iter().any(|line| line.starts_with(begin));
    let metrics = || client.raw(ask(Method::GET, "/metrics", &Value::Null));
    let told = String::from_utf8(metrics().await?.body.to_vec())?;
    let told: Vec<String> = told.lines().map(str::to_owned).collect();
    ensure!(has(
        &told,
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"own\"} "
    ));
    ensure!(!has(
        &told,
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"mine\""
    ));
    // Whether the user may do it is asked after that.
    client.raw(get_as("jane", MAPS)).await?;
    let told = String::from_utf8(metrics().await?.body.to_vec())?;
    let told: Vec<String> = told.lines().map(str::to_owned).collect();
    let dispatched = "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"mine\",priority_level=\"own\"} 1";
    ensure!(has(&told, dispatched), "{told:#?}");
    Ok(())
}

/// Nothing is left of a plane without requests.
async fn idle(site: &Site) -> Result<()> {
    for _ in 0..LOOKS {
        // The request for metrics is one of the root's, if the root is at this replica.
        if site.metric("polyplane_flowcontrol_planes ").await? <= 1.0 {
            let executing =
                "apiserver_flowcontrol_current_executing_requests{flow_schema=\"other\"";
            ensure!(site.metric(executing).await? == 0.0);
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    bail!("an idle plane still has state")
}

#[tokio::test]
async fn a_watch_leaves_its_seat_and_what_every_plane_has_comes_back() -> Result<()> {
    let site = Site::start(THREE).await?;
    let own = site.create(json!({"type": "Reject"}), &["jane"]).await?;
    let mut asked = get_as("jane", &format!("{MAPS}?watch=1"));
    asked
        .headers
        .push(("accept".to_owned(), "application/json".to_owned()));
    let watching = polyplane_tests::connection::Connection::open(
        &site.endpoint,
        Caller::Admin,
        Protocol::Http2,
    )
    .await?;
    let watch = watching.start(asked).await?;
    ensure!(header(watch.headers(), "x-kubernetes-pf-flowschema-uid") == own[0]);
    site.until("own", 0, 0).await?;
    for _ in 0..20 {
        let passed = site.admin.raw(get_as("jane", MAPS)).await?;
        ensure!(
            passed.status == 200,
            "a watch holds a seat: {}",
            passed.status
        );
    }
    drop(watch);

    // A deleted object of the layer comes back as a new one, and replies name that one.
    for (schema, level) in [
        ("global-default", "global-default"),
        ("catch-all", "catch-all"),
    ] {
        let before = site.named(SCHEMAS, schema).await?;
        site.admin
            .delete(&format!("{SCHEMAS}/{schema}"))
            .await?
            .expect(200)?;
        site.admin
            .delete(&format!("{LEVELS}/{level}"))
            .await?
            .expect(200)?;
        let path = format!("{SCHEMAS}/{schema}");
        let mut after = None;
        for _ in 0..LOOKS {
            let found = site.admin.get(&path).await?;
            let level = site.admin.get(&format!("{LEVELS}/{level}")).await?;
            if found.status == 200 && level.status == 200 {
                after = Some([uid(&found.body)?, uid(&level.body)?]);
                break;
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        let after = after.context("it does not come back")?;
        ensure!(after[0] != before);
        if schema == "global-default" {
            let answer = site.admin.raw(get_as("bob", MAPS)).await?;
            ensure!(named_in(&answer) == after);
        }
    }
    idle(&site).await
}

#[tokio::test]
async fn who_floods_waits_and_who_does_not_goes_on() -> Result<()> {
    let site = Arc::new(Site::start(ONE).await?);
    let queuing = json!({"queues": 64, "handSize": 4, "queueLengthLimit": 100});
    let response = json!({"type": "Queue", "queuing": queuing});
    site.create(response, &["jane", "bob"]).await?;
    let (held, body) = Held::start(&site.endpoint, "jane", "held").await?;
    site.until("own", 0, 1).await?;
    let (is_over, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut flood = Vec::new();
    for _ in 0..FLOOD {
        let (site, is_over, served) =
            (Arc::clone(&site), Arc::clone(&is_over), Arc::clone(&served));
        flood.push(tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let answer = site.admin.raw(get_as("jane", MAPS)).await?;
                ensure!(answer.status == 200, "{}", answer.status);
                served.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }));
    }
    site.until("own", FLOOD as u64, 1).await?;
    let queues = site.dump("dump_queues").await?;
    let waiting = queues
        .lines()
        .filter(|line| line.starts_with("own,"))
        .count();
    ensure!(waiting == 64, "{waiting} queues");
    ensure!(held.end(&body).await? == "HTTP/1.1 201 Created");
    let calm = Client::open(&site.endpoint).await?;
    let mut overtaken = Vec::new();
    for _ in 0..CALM {
        let before = served.load(Ordering::Relaxed);
        let answer = calm.raw(get_as("bob", MAPS)).await?;
        ensure!(answer.status == 200, "{}", answer.status);
        overtaken.push(served.load(Ordering::Relaxed) - before);
    }
    is_over.store(true, Ordering::Relaxed);
    for one in flood {
        one.await??;
    }
    overtaken.sort_unstable();
    println!("requests of the flood during one of the other user's: {overtaken:?}");
    let median = overtaken.get(CALM / 2).copied().unwrap_or(usize::MAX);
    // In one queue each would wait for all of the flood.
    ensure!(
        median <= FLOOD * 3 / 4,
        "the flood has {median} turns for one: {overtaken:?}"
    );
    idle(&site).await
}

#[tokio::test]
async fn queues_are_bounded_in_length_and_time() -> Result<()> {
    let site = Arc::new(Site::start(ONE).await?);
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 1});
    let own = site.create(json!({"type": "Queue", "queuing": queuing}), &["jane"]);
    let own = own.await?;
    let (held, body) = Held::start(&site.endpoint, "jane", "held").await?;
    site.until("own", 0, 1).await?;
    let rejected = |reason: &str| {
        format!(
            "apiserver_flowcontrol_rejected_requests_total{{flow_schema=\"other\",\
             priority_level=\"other\",reason=\"{reason}\"}}"
        )
    };

    // One waits, which is all the room that there is. Its client goes.
    let waiting = {
        let client = Client::open(&site.endpoint).await?;
        tokio::spawn(async move { client.raw(get_as("jane", MAPS)).await })
    };
    site.until("own", 1, 1).await?;
    refused(&site.admin.raw(get_as("jane", MAPS)).await?, &own)?;
    ensure!(site.metric(&rejected("queue-full")).await? == 1.0);
    let inqueue = "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"other\"";
    ensure!(site.metric(inqueue).await? == 1.0);
    waiting.abort();
    site.until("own", 0, 1).await?;
    ensure!(site.metric(&rejected("cancelled")).await? == 1.0);

    // A request waits for a quarter of its time.
    let late = get_as("jane", &format!("{MAPS}?timeout=1s"));
    refused(&site.admin.raw(late).await?, &own)?;
    ensure!(site.metric(&rejected("time-out")).await? == 1.0);

    // Who still waits goes on when the seat is free.
    let patient = {
        let site = Arc::clone(&site);
        tokio::spawn(async move { site.admin.raw(get_as("jane", MAPS)).await })
    };
    site.until("own", 1, 1).await?;
    ensure!(held.end(&body).await? == "HTTP/1.1 201 Created");
    let answer = patient.await??;
    ensure!(answer.status == 200 && named_in(&answer) == own);
    idle(&site).await
}
