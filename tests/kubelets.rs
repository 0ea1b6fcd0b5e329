//! Logs, exec, attach, port-forward, copies and proxies by the real kubectl, through upstream's own
//! streaming server in a kubelet's place, at the owner of a plane and through a replica that is not the
//! owner; and what keeps users of a plane from reaching further than its own nodes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::golden::folder;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::{Value, json};
use tempfile::TempDir;

const PODS: &str = "/api/v1/namespaces/default/pods";
const SIGNING: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// The longest time that a test waits for something that must happen.
const LIMIT: Duration = Duration::from_secs(60);
/// The flags of a server that reaches kubelets on this machine.
const FLAGS: [&str; 3] = [
    "--kubelet-access=plane",
    "--kubelet-preferred-address-types=InternalIP",
    "--node-networks=127.0.0.1/32",
];

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns upstream's streaming server in a kubelet's place.
fn kubelet_program() -> Result<PathBuf> {
    let found = Command::new(folder().join("programs"))
        .arg("test-kubelet")
        .stderr(Stdio::inherit())
        .output()?;
    let line = String::from_utf8(found.stdout)?;
    let path = line.trim().strip_prefix("test-kubelet ");
    Ok(path.context("tests/programs finds no test-kubelet")?.into())
}

/// The first ports that this process has chosen: its tests run side by side.
static CHOSEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// Returns the first of `count` free ports in a row, outside of the range from which the system chooses.
fn ports_in_a_row(count: u16) -> Result<u16> {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let offset = (std::process::id() % 500) as usize;
    let mut chosen = CHOSEN.lock().expect("no test panics here");
    let mut bases = (10_000_u16..20_000).step_by(16).skip(offset);
    let found = bases.find(|base| !chosen.contains(base) && (*base..base + count).all(is_free));
    let base = found.context("no free ports in a row")?;
    chosen.push(base);
    Ok(base)
}

/// A server with planes, and kubectl.
struct Site {
    kubelet: PathBuf,
    server: Up,
    folder: TempDir,
    base_port: u16,
}

impl Site {
    async fn start(replicas: u16, flags: &[&str]) -> Result<Self> {
        // First, because building it takes minutes, and a server closes connections that are idle so long.
        let kubelet = kubelet_program()?;
        let folder = tempfile::tempdir()?;
        let base_port = ports_in_a_row(replicas)?;
        let listen = format!("127.0.0.1:{base_port}");
        let replicas = format!("--replicas={replicas}");
        let options = [&["--listen", &listen, &replicas], flags].concat();
        let server = Up::start(&folder.path().join("data"), &options).await?;
        Ok(Self {
            kubelet,
            server,
            folder,
            base_port,
        })
    }

    /// Makes a plane and returns a client of it.
    async fn plane(&self, name: &'static str) -> Result<Plane> {
        let endpoint = create_plane(&self.server.root()?, name).await?;
        let client = Client::open(&endpoint).await?;
        Ok(Plane { name, client })
    }

    /// Returns kubectl for a plane, at the replica with this number.
    fn kubectl(&self, plane: &str, replica: u16) -> Result<Kubectl> {
        let text = std::fs::read_to_string(&self.server.kubeconfig)?;
        let mut config: Value = serde_saphyr::from_str(&text)?;
        let port = self.base_port + replica;
        for cluster in config["clusters"].as_array_mut().into_iter().flatten() {
            let server = format!("https://127.0.0.1:{port}/clusters/{plane}");
            cluster["cluster"]["server"] = json!(server);
        }
        // Beside the first one, because it names files.
        let data = self.folder.path().join("data");
        let path = data.join(format!("kubeconfig-{plane}-{replica}"));
        std::fs::write(&path, config.to_string())?;
        Kubectl::find(&path, self.folder.path(), &data)
    }
}

/// A kubelet of a plane, with a certificate that the plane has signed.
struct Kubelet {
    port: u16,
    _process: Running,
}

impl Kubelet {
    async fn start(site: &Site, plane: &Plane, name: &str, flags: &[&str]) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let user = format!("system:node:{name}");
        let names = &mut params.distinguished_name;
        *names = rcgen::DistinguishedName::new();
        names.push(DnType::OrganizationName, "system:nodes");
        names.push(DnType::CommonName, user.as_str());
        params.subject_alt_names = vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())];
        let request = STANDARD.encode(params.serialize_request(&key)?.pem()?);
        let body = json!({
            "metadata": {"name": name},
            "spec": {
                "request": request,
                "signerName": "kubernetes.io/kubelet-serving",
                "usages": ["digital signature", "server auth"],
            },
        });
        let kubectl = site.kubectl(plane.name, 0)?;
        let body = with_kind(body, "certificates.k8s.io/v1", "CertificateSigningRequest");
        let as_node = format!("--as={user}");
        let create = [
            "create",
            as_node.as_str(),
            "--as-group=system:nodes",
            "-f",
            "-",
        ];
        kubectl.ok_with(&create, &body.to_string())?;
        kubectl.ok(&["certificate", "approve", name])?;
        let signed = until(async || {
            let request = plane.get(&format!("{SIGNING}/{name}")).await?.expect(200)?;
            Ok(request["status"]["certificate"].as_str().map(str::to_owned))
        });
        let certificate = STANDARD.decode(signed.await?)?;
        let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
        let map = plane.get(map).await?.expect(200)?;
        let client_ca = map["data"]["client-ca-file"].as_str().context("a CA")?;
        let folder = site.folder.path().join(format!("{}-{name}", plane.name));
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("tls.crt"), certificate)?;
        std::fs::write(folder.join("tls.key"), key.serialize_pem())?;
        std::fs::write(folder.join("ca.crt"), client_ca)?;
        let mut process = Command::new(&site.kubelet)
            .args([
                "--cert",
                "tls.crt",
                "--key",
                "tls.key",
                "--client-ca",
                "ca.crt",
            ])
            .args(flags)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = process.stdout.take().context("output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let port = line
            .trim()
            .rsplit_once(':')
            .context("an address")?
            .1
            .parse()?;
        Ok(Self {
            port,
            _process: Running(process),
        })
    }
}

struct Plane {
    name: &'static str,
    client: Client,
}

impl std::ops::Deref for Plane {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

fn with_kind(mut body: Value, version: &str, kind: &str) -> Value {
    body["apiVersion"] = json!(version);
    body["kind"] = json!(kind);
    body
}

async fn until<T>(look: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("it does not happen")
}

async fn node(plane: &Plane, name: &str, address: &str, port: u16) -> Result<()> {
    let body = json!({"metadata": {"name": name}});
    plane.post("/api/v1/nodes", &body).await?.expect(201)?;
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    let path = format!("/api/v1/nodes/{name}/status");
    let patched = plane.typed(Method::PATCH, &path, MERGE_PATCH, status.to_string());
    patched.await?.expect(200)?;
    Ok(())
}

async fn pod(plane: &Plane, name: &str, node: &str) -> Result<()> {
    let body = json!({
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    });
    plane.post(PODS, &body).await?.expect(201)?;
    let status = json!({"status": {"phase": "Running", "podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]}});
    let path = format!("{PODS}/{name}/status");
    let patched = plane.typed(Method::PATCH, &path, MERGE_PATCH, status.to_string());
    patched.await?.expect(200)?;
    Ok(())
}

fn piped(kubectl: &Kubectl, arguments: &[&str]) -> Result<Running> {
    let mut command = kubectl.command(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(Running(command.spawn()?))
}

fn line_of(process: &mut Running) -> Result<String> {
    let output = process.0.stdout.as_mut().context("output")?;
    let mut line = Vec::new();
    let mut byte = [0];
    while output.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(String::from_utf8(line)?)
}

/// Uses everything that needs a kubelet once.
fn use_all(kubectl: &Kubectl, home: &Path) -> Result<()> {
    let log = kubectl.ok(&["logs", "p", "--tail=5", "--timestamps"])?;
    let expected = "log of /containerLogs/default/p/c tailLines=5&timestamps=true\n";
    ensure!(log == expected, "{log}");
    let mut followed = piped(kubectl, &["logs", "-f", "p"])?;
    let line = line_of(&mut followed)?;
    ensure!(
        line == "log of /containerLogs/default/p/c follow=true",
        "{line}"
    );
    drop(followed);

    let run = [
        "exec",
        "p",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ];
    let output = kubectl.run(&run)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.stdout == b"out\n" && errors.contains("err\n"),
        "{output:?}"
    );
    ensure!(output.status.code() == Some(7), "{output:?}");
    let echoed = kubectl.ok_with(&["exec", "-i", "p", "--", "cat"], "typed\n")?;
    ensure!(echoed == "typed\n", "{echoed}");
    let long = "x".repeat(3_000_000);
    let echoed = kubectl.ok_with(&["exec", "-i", "p", "--", "cat"], &long)?;
    ensure!(echoed == long, "{} bytes came back", echoed.len());

    let mut attached = piped(kubectl, &["attach", "-i", "p"])?;
    let line = line_of(&mut attached)?;
    ensure!(line == "attached to default/p/c", "{line}");
    attached
        .0
        .stdin
        .take()
        .context("input")?
        .write_all(b"hello\n")?;
    let line = line_of(&mut attached)?;
    ensure!(line == "hello", "{line}");
    drop(attached);

    let from = home.join("copied");
    let to = home.join("back");
    std::fs::write(&from, &long)?;
    let source = from.to_str().context("a path")?;
    let target = format!("p:{}", home.join("inside").display());
    kubectl.ok(&["cp", source, &target])?;
    kubectl.ok(&["cp", &target, to.to_str().context("a path")?])?;
    ensure!(std::fs::read_to_string(&to)? == long, "the copy differs");
    for file in ["copied", "back", "inside"] {
        std::fs::remove_file(home.join(file))?;
    }
    forward_a_port(kubectl)?;
    let raw = kubectl.ok(&[
        "get",
        "--raw",
        "/clusters/a/api/v1/nodes/n/proxy/metrics/x?y=1",
    ])?;
    let expected = "GET /metrics/x?y=1 by CN=kube-apiserver-kubelet-client,O=system:masters, \
                    authorization \"\", body \"\"\n";
    ensure!(raw == expected, "{raw}");
    Ok(())
}

fn forward_a_port(kubectl: &Kubectl) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let echo = std::thread::spawn(move || -> Result<()> {
        let (mut client, _) = listener.accept()?;
        let mut asked = [0; 4];
        client.read_exact(&mut asked)?;
        client.write_all(&asked.map(|byte| byte.to_ascii_uppercase()))?;
        Ok(())
    });
    let mut forwarding = piped(kubectl, &["port-forward", "p", &format!(":{port}")])?;
    let line = line_of(&mut forwarding)?;
    let local = line
        .split(" -> ")
        .next()
        .and_then(|head| head.rsplit(':').next());
    let local: u16 = local
        .context("a port")?
        .parse()
        .with_context(|| line.clone())?;
    let mut client = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, local))?;
    client.set_read_timeout(Some(LIMIT))?;
    client.write_all(b"ping")?;
    let mut answer = [0; 4];
    client.read_exact(&mut answer)?;
    ensure!(&answer == b"PING", "{answer:?}");
    echo.join().expect("the echo does not panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reaches_a_pod_through_every_replica() -> Result<()> {
    let site = Site::start(3, &FLAGS).await?;
    let plane = site.plane("a").await?;
    let kubelet = Kubelet::start(&site, &plane, "n", &[]).await?;
    node(&plane, "n", "127.0.0.1", kubelet.port).await?;
    pod(&plane, "p", "n").await?;
    for replica in 0..3 {
        let kubectl = site.kubectl("a", replica)?;
        use_all(&kubectl, site.folder.path()).with_context(|| format!("replica {replica}"))?;
        // The other protocol of kubectl.
        let spdy = kubectl
            .with_variable("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .with_variable("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
        use_all(&spdy, site.folder.path()).with_context(|| format!("replica {replica}, SPDY"))?;
    }
    // A kubelet that knows no WebSockets: kubectl falls back by itself.
    let old = Kubelet::start(&site, &plane, "old", &["--spdy-only"]).await?;
    node(&plane, "old", "127.0.0.1", old.port).await?;
    pod(&plane, "q", "old").await?;
    let kubectl = site.kubectl("a", 1)?;
    let said = kubectl.ok(&["exec", "q", "--", "echo", "old"])?;
    ensure!(said == "old\n", "{said}");
    a_tunnel_survives_a_move(&site, &kubectl).await?;
    counts(&site).await
}

/// Moves the plane while a command runs, and talks to the command afterwards.
async fn a_tunnel_survives_a_move(site: &Site, kubectl: &Kubectl) -> Result<()> {
    let mut shell = piped(kubectl, &["exec", "-i", "p", "--", "cat"])?;
    let mut input = shell.0.stdin.take().context("input")?;
    input.write_all(b"before\n")?;
    ensure!(line_of(&mut shell)? == "before", "no echo");
    let root = Client::open(&site.server.root()?).await?;
    let path = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
    for replica in ["polyplane-0", "polyplane-1", "polyplane-2"] {
        let pin = json!({"spec": {"placement": {"replica": replica}}});
        let pinned = root.typed(Method::PATCH, path, MERGE_PATCH, pin.to_string());
        pinned.await?.expect(200)?;
        // The answer of a request proves that the plane has an owner again.
        kubectl.ok(&["get", "pod", "p"])?;
        input.write_all(b"after\n")?;
        ensure!(
            line_of(&mut shell)? == "after",
            "no echo after the move to {replica}"
        );
    }
    Ok(())
}

/// Every connection is counted, and none is left.
async fn counts(site: &Site) -> Result<()> {
    for replica in 0..3 {
        let mut endpoint = Endpoint::from_kubeconfig(&site.server.kubeconfig, Some("root"))?;
        endpoint.port = site.base_port + replica;
        let root = Client::open(&endpoint).await?;
        until(async || {
            let metrics = root.get("/metrics").await?.expect(200)?;
            let metrics = metrics.as_str().context("text")?;
            let is_quiet = metrics
                .lines()
                .any(|line| line == "polyplane_node_connections 0");
            let opened = r#"polyplane_node_connections_total{outcome="opened"} "#;
            let opened = metrics.lines().find_map(|line| line.strip_prefix(opened));
            let opened: u64 = opened.context("a metric")?.parse()?;
            ensure!(opened > 0, "replica {replica} has counted nothing");
            Ok(is_quiet.then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_kubelet_of_the_plane_is_not_reached() -> Result<()> {
    let flags = [&FLAGS[..], &["--plane-node-connections-max=2"]].concat();
    let site = Site::start(1, &flags).await?;
    let (a, b) = (site.plane("a").await?, site.plane("b").await?);
    let own = Kubelet::start(&site, &a, "n", &[]).await?;
    node(&a, "n", "127.0.0.1", own.port).await?;
    pod(&a, "p", "n").await?;
    a.get("/api/v1/nodes/n/proxy/x").await?.expect(200)?;

    // The kubelet of another plane, named as one's own: neither side accepts the other.
    node(&b, "stolen", "127.0.0.1", own.port).await?;
    pod(&b, "p", "stolen").await?;
    let refused = b.get("/api/v1/nodes/stolen/proxy/x").await?;
    refused.refuses(
        503,
        "error trying to reach service: tls: invalid peer certificate",
    )?;
    let refused = b.get(&format!("{PODS}/p/log")).await?;
    refused.refuses(500, "tls: invalid peer certificate")?;
    // Without the check of the certificate, the kubelet still refuses the client of another plane.
    let unverified = format!("{PODS}/p/log?insecureSkipTLSVerifyBackend=true");
    b.get(&unverified)
        .await?
        .refuses(500, "Get \"https://127.0.0.1:")?;
    a.get(&unverified).await?.expect(200)?;

    // Addresses that the operator has not listed, by number and by name.
    for (at, address) in [
        "10.0.0.1",
        "127.0.0.2",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "localhost",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("far-{at}");
        node(&a, &name, address, own.port).await?;
        let path = format!("/api/v1/nodes/{name}/proxy/x");
        let reply = a.get(&path).await?;
        match address {
            // If the name means 127.0.0.1 alone, it is reached and proves another name.
            "localhost" => ensure!([400, 503].contains(&reply.status.as_u16()), "{reply:?}"),
            _ => reply.refuses(400, "address not allowed")?,
        }
    }
    a.get(&format!("{PODS}/p:80/proxy/x"))
        .await?
        .refuses(400, "address not allowed")?;

    // Failures of the kubelet, and a kubelet that is away.
    a.get(&format!("{PODS}/p/log?tailLines=-1"))
        .await?
        .refuses(422, "tailLines")?;
    a.post(&format!("{PODS}/p/exec?command=ls&stdout=true"), &json!({}))
        .await?
        .refuses(400, "Upgrade request required")?;
    let port = ports_in_a_row(1)?;
    node(&a, "away", "127.0.0.1", port).await?;
    pod(&a, "lost", "away").await?;
    a.get(&format!("{PODS}/lost/log"))
        .await?
        .refuses(500, "connection refused")?;
    let failed = site.kubectl("a", 0)?.fails(&["exec", "lost", "--", "ls"])?;
    ensure!(failed.contains("error dialing backend"), "{failed}");
    a.get("/api/v1/nodes/away/proxy/x")
        .await?
        .refuses(503, "error trying to reach service")?;
    let moved = a.get("/api/v1/nodes/n/proxy/moved").await?;
    ensure!(moved.status == 302, "{moved:?}");

    // Connections that hang take the plane's seats, and none of another plane.
    let kubectl = site.kubectl("a", 0)?;
    let mut first = piped(&kubectl, &["logs", "-f", "p"])?;
    let mut second = piped(&kubectl, &["logs", "-f", "p"])?;
    line_of(&mut first)?;
    line_of(&mut second)?;
    a.get("/api/v1/nodes/n/proxy/x")
        .await?
        .refuses(429, "too many connections")?;
    b.get("/api/v1/nodes/stolen/proxy/x")
        .await?
        .refuses(503, "invalid peer certificate")?;
    drop(first);
    until(async || {
        let reply = a.get("/api/v1/nodes/n/proxy/x").await?;
        Ok((reply.status == 200).then_some(()))
    })
    .await?;

    // Who may only read runs no command, over a WebSocket either.
    a_reader_runs_nothing(&site, &a)?;
    // A plane that is deleted takes its open connections with it.
    polyplane_tests::programs::remove_plane(&site.server.root()?, "a").await?;
    let deadline = Instant::now() + LIMIT;
    while second.0.try_wait()?.is_none() {
        ensure!(
            Instant::now() < deadline,
            "the log of a deleted plane goes on"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn a_reader_runs_nothing(site: &Site, plane: &Plane) -> Result<()> {
    let kubectl = site.kubectl(plane.name, 0)?;
    let rules = [
        "create",
        "role",
        "r",
        "--verb=get",
        "--resource=pods,pods/exec,pods/log",
    ];
    kubectl.ok(&rules)?;
    kubectl.ok(&["create", "rolebinding", "r", "--role=r", "--user=jane"])?;
    let run = ["exec", "--as=jane", "p", "--", "echo", "x"];
    let refused = kubectl.fails(&run)?;
    ensure!(refused.contains("forbidden"), "{refused}");
    let patch = json!([{"op": "add", "path": "/rules/0/verbs/-", "value": "create"}]);
    kubectl.ok(&[
        "patch",
        "role",
        "r",
        "--type=json",
        "-p",
        &patch.to_string(),
    ])?;
    let said = kubectl.ok(&run)?;
    ensure!(said == "x\n", "{said}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_reached_unless_the_operator_says_so() -> Result<()> {
    let site = Site::start(1, &[]).await?;
    let a = site.plane("a").await?;
    node(&a, "n", "127.0.0.1", 10_250).await?;
    pod(&a, "p", "n").await?;
    let why = "no node of this control plane can be reached";
    a.get(&format!("{PODS}/p/log")).await?.refuses(503, why)?;
    a.get("/api/v1/nodes/n/proxy/x").await?.refuses(503, why)?;
    let failed = site.kubectl("a", 0)?.fails(&["exec", "p", "--", "ls"])?;
    ensure!(failed.contains(why), "{failed}");
    Ok(())
}
