//! A real etcd of one or three members that can be killed, stopped, started again and alarmed.
//!
//! This module owns the members' processes and folders. It uses their JSON gateway for what a test
//! needs: health, the leader, alarms. It does not know what Polyplane stores in etcd.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::addresses::Block;
use super::network::Node;
use super::process::{Launch, Process, Told, folder};

/// The port for clients of a member.
const CLIENT_PORT: u16 = 2379;
/// The port for the other members.
const PEER_PORT: u16 = 2380;
/// The longest time until a store has a leader again.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// The longest time of one request to a member.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// One member.
struct Member {
    name: String,
    client: SocketAddr,
    launch: Launch,
    node: Option<Node>,
    process: Option<Process>,
}

/// A running store. Dropping this ends its members.
pub struct Cluster {
    members: Vec<Member>,
    /// All members, as `--initial-cluster` names them.
    all: String,
    folder: tempfile::TempDir,
    _addresses: Option<Block>,
}

/// Finds a program with tests/programs, which builds or downloads it once.
///
/// # Errors
/// Returns an error that says what to do if the program cannot be found or built.
pub async fn program(name: &str) -> Result<PathBuf> {
    let script = crate::golden::folder().join("programs");
    let found = tokio::process::Command::new(script)
        .arg(name)
        .stderr(std::process::Stdio::inherit())
        .output()
        .await
        .context("cannot run tests/programs")?;
    ensure!(found.status.success(), "tests/programs has no {name}");
    let text = String::from_utf8(found.stdout)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let path = line.context("tests/programs names no path")?;
    Ok(PathBuf::from(path.trim()))
}

/// Makes a member's folder from a snapshot, as an operator would after the loss of a store. With
/// `bump` the revisions go on so much later, and all before count as compacted. Without it they stay
/// as they are, for stores of which no client has seen later revisions.
async fn restore_member(
    snapshot: &Path,
    data: &Path,
    (name, all): (&str, &str),
    bump: Option<u64>,
) -> Result<()> {
    let (_, peer) = all.split_once('=').context("no member")?;
    let mut restore = Launch::of(program("etcdutl").await?)
        .with(["snapshot", "restore", &snapshot.to_string_lossy()])
        .with(["--data-dir", &data.to_string_lossy(), "--name", name])
        .with([
            "--initial-cluster",
            all,
            "--initial-advertise-peer-urls",
            peer,
        ]);
    if let Some(bump) = bump {
        restore = restore.with(["--bump-revision", &bump.to_string(), "--mark-compacted"]);
    }
    let output = restore.command(None).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "no restore of {snapshot:?}: {said}"
    );
    Ok(())
}

impl Cluster {
    /// Starts `members` members, on loopback or on one node each, and waits until they have a
    /// leader. Every member gets `options`.
    ///
    /// # Errors
    /// Returns an error if etcd cannot be installed or does not start.
    pub async fn start(members: usize, nodes: &[Node], options: &[&str]) -> Result<Self> {
        Self::start_from(members, nodes, options, None).await
    }

    /// Starts one member on loopback with the content of a snapshot, at the snapshot's revision.
    ///
    /// # Errors
    /// Returns an error if the snapshot cannot be restored, or the errors of [`Cluster::start`].
    pub async fn restore(snapshot: &Path, options: &[&str]) -> Result<Self> {
        Self::start_from(1, &[], options, Some(snapshot)).await
    }

    async fn start_from(
        members: usize,
        nodes: &[Node],
        options: &[&str],
        snapshot: Option<&Path>,
    ) -> Result<Self> {
        let etcd = program("etcd").await?;
        let folder = folder()?;
        // The block is kept, so that a member that starts again finds its ports free.
        let block = nodes.is_empty().then(Block::take).transpose()?;
        let mut addresses = Vec::new();
        for place in 0..members {
            let ip = match (&block, nodes.get(place)) {
                (Some(block), _) => block.nth(u8::try_from(place + 1)?)?,
                (None, Some(node)) => node.address,
                (None, None) => bail!("{members} members and {} nodes", nodes.len()),
            };
            addresses.push((
                SocketAddr::from((ip, CLIENT_PORT)),
                SocketAddr::from((ip, PEER_PORT)),
            ));
        }
        let all = addresses.iter().enumerate();
        let all: Vec<String> = all
            .map(|(place, (_, peer))| format!("m{place}=http://{peer}"))
            .collect();
        let all = all.join(",");
        let mut cluster = Self {
            members: Vec::new(),
            all: all.clone(),
            folder,
            _addresses: block,
        };
        for (place, (client, peer)) in addresses.into_iter().enumerate() {
            let name = format!("m{place}");
            let data = cluster.folder.path().join(&name);
            let launch = Launch::of(&etcd)
                .with(["--name", &name, "--data-dir", &data.to_string_lossy()])
                .with(["--listen-client-urls", &format!("http://{client}")])
                .with(["--advertise-client-urls", &format!("http://{client}")])
                .with(["--listen-peer-urls", &format!("http://{peer}")])
                .with(["--initial-advertise-peer-urls", &format!("http://{peer}")])
                .with(["--initial-cluster", &all])
                .with(["--initial-cluster-state", "new", "--log-level", "warn"])
                .with(options.iter().copied());
            if let Some(snapshot) = snapshot {
                restore_member(snapshot, &data, (name.as_str(), all.as_str()), None).await?;
            }
            cluster.members.push(Member {
                name,
                client,
                launch,
                node: nodes.get(place).cloned(),
                process: None,
            });
            cluster.start_member(place)?;
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// Returns the address for clients, in the form of `--store`.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoints().join(","))
    }

    /// Returns the members' addresses for clients.
    pub fn endpoints(&self) -> Vec<String> {
        let clients = self.members.iter().map(|member| member.client.to_string());
        clients.collect()
    }

    /// Writes a snapshot of the first member's store to a file.
    ///
    /// # Errors
    /// Returns an error if etcdctl cannot be installed, or fails.
    pub async fn snapshot(&self, to: &Path) -> Result<()> {
        let save = Launch::of(program("etcdctl").await?)
            .with(["--endpoints", &self.endpoints()[0], "snapshot", "save"])
            .with([to.to_string_lossy()]);
        let output = save.command(None).output().await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no snapshot: {said}");
        Ok(())
    }

    /// Replaces the content of the only member by a snapshot, whose revisions go on `bump` later. The
    /// member's former folder stays beside the new one.
    ///
    /// # Errors
    /// Returns an error if there are several members, or the snapshot cannot be restored.
    pub async fn restore_later(&mut self, snapshot: &Path, bump: u64) -> Result<()> {
        ensure!(self.members.len() == 1, "one member is restored, not more");
        self.kill_member(0).await?;
        let name = self.members[0].name.clone();
        let data = self.folder.path().join(&name);
        std::fs::rename(&data, self.folder.path().join(format!("{name}-lost")))?;
        let member = (name.as_str(), self.all.as_str());
        restore_member(snapshot, &data, member, Some(bump)).await?;
        self.start_member(0)?;
        self.wait_ready().await
    }

    /// Returns the process ids of the members that run.
    pub fn ids(&self) -> Vec<u32> {
        let running = self.members.iter().filter_map(|one| one.process.as_ref());
        running.filter_map(Process::id).collect()
    }

    /// Returns the number of members, running or not.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the address of a member's machine.
    pub fn address(&self, member: usize) -> Ipv4Addr {
        match self.members[member].client.ip() {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::LOCALHOST,
        }
    }

    /// Starts a member that does not run, with the data that it had.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn start_member(&mut self, member: usize) -> Result<()> {
        let folder = self.folder.path();
        let member = &mut self.members[member];
        let (launch, node) = (&member.launch, member.node.as_ref());
        member.process = Some(Process::start(&member.name, launch, node, folder)?);
        Ok(())
    }

    /// Kills a member with SIGKILL.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub async fn kill_member(&mut self, member: usize) -> Result<()> {
        if let Some(mut process) = self.members[member].process.take() {
            process.kill().await?;
        }
        Ok(())
    }

    /// Sends a signal to a member.
    ///
    /// # Errors
    /// Returns an error if the member does not run.
    pub fn tell_member(&self, member: usize, told: Told) -> Result<()> {
        let process = self.members[member].process.as_ref();
        process.context("the member does not run")?.tell(told)
    }

    /// Waits until every running member is healthy.
    ///
    /// # Errors
    /// Returns an error if that takes too long.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        for place in 0..self.members.len() {
            while !self.is_healthy(place).await {
                let member = &mut self.members[place];
                let Some(process) = &mut member.process else {
                    break;
                };
                if let Some(status) = process.ended()? {
                    bail!(
                        "{} ended with {status}: {}",
                        member.name,
                        process.last_words()
                    );
                }
                if Instant::now() > deadline {
                    bail!("{} has no leader: {}", member.name, process.last_words());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    async fn is_healthy(&self, member: usize) -> bool {
        let answer = self.ask(member, Method::GET, "/health", &Value::Null).await;
        answer.is_ok_and(|answer| answer["health"] == "true")
    }

    /// Returns which member leads.
    ///
    /// # Errors
    /// Returns an error if no member reports a leader.
    pub async fn leader(&self) -> Result<usize> {
        for place in 0..self.members.len() {
            let path = "/v3/maintenance/status";
            let Ok(status) = self.ask(place, Method::POST, path, &json!({})).await else {
                continue;
            };
            if status["leader"].is_string() && status["leader"] == status["header"]["member_id"] {
                return Ok(place);
            }
        }
        bail!("no member says that it leads")
    }

    /// Drops the history before the newest revision.
    ///
    /// # Errors
    /// Returns an error if no member does so.
    pub async fn compact(&self) -> Result<()> {
        let path = "/v3/maintenance/status";
        let status = self.ask(0, Method::POST, path, &json!({})).await?;
        let newest = &status["header"]["revision"];
        let compact = json!({"revision": newest, "physical": true});
        let path = "/v3/kv/compaction";
        let answer = self.ask(0, Method::POST, path, &compact).await?;
        ensure!(answer["header"].is_object(), "no compaction: {answer}");
        Ok(())
    }

    /// Raises or clears the alarm that there is no space.
    ///
    /// # Errors
    /// Returns an error if no member does so.
    pub async fn alarm_no_space(&self, raised: bool) -> Result<()> {
        let status = self
            .ask(0, Method::POST, "/v3/maintenance/status", &json!({}))
            .await?;
        let action = if raised { "ACTIVATE" } else { "DEACTIVATE" };
        let member = &status["header"]["member_id"];
        let alarm = json!({"action": action, "memberID": member, "alarm": "NOSPACE"});
        let path = "/v3/maintenance/alarm";
        let answer = self.ask(0, Method::POST, path, &alarm).await?;
        let alarms = answer["alarms"].as_array().map_or(0, Vec::len);
        ensure!(!raised || alarms > 0, "no alarm was raised: {answer}");
        Ok(())
    }

    /// Sends one request to a member's gateway.
    async fn ask(&self, member: usize, method: Method, path: &str, body: &Value) -> Result<Value> {
        let address = self.members[member].client;
        let asked = async {
            let stream = TcpStream::connect(address).await?;
            let (mut sender, frames) = http1::handshake(TokioIo::new(stream)).await?;
            let frames = tokio::spawn(frames);
            let text = match body {
                Value::Null => Bytes::new(),
                body => Bytes::from(body.to_string()),
            };
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(http::header::HOST, address.to_string())
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(Full::new(text))?;
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            drop(sender);
            frames.abort();
            ensure!(
                status.is_success(),
                "{path}: {status} {}",
                String::from_utf8_lossy(&body)
            );
            serde_json::from_slice(&body).context("no JSON")
        };
        timeout(ASK_LIMIT, asked).await.context("no answer")?
    }
}
