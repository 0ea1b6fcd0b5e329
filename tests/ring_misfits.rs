//! Replicas that a ring cannot use: one with another peer CA, one that advertises the address of a member,
//! and one that no other replica reaches.
//! Each says why it is not ready, ends at once, and makes no control plane unavailable for long. And
//! a replica whose etcd answers later than the read lease lasts, which says what to do.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::addresses::free_ports;
use polyplane_tests::ring::etcd::Cluster;
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::process::{Launch, Process, Told};
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// The longest time of any step on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How far away etcd is.
const ONE_WAY: Duration = Duration::from_millis(160);
/// Pieces that may be on the way to or from the distant etcd.
const PIECES_MAX: usize = 1024;

/// The address that a further replica advertises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advertised {
    /// The one at which it listens.
    Own,
    /// One at which nobody listens.
    Dead,
    /// That of another replica.
    Taken(SocketAddr),
}

/// A further replica on a ring's store.
struct Further {
    process: Process,
    at: SocketAddr,
}

impl Further {
    fn start(store: &str, certs: &Path, name: &str, advertised: Advertised) -> Result<Self> {
        let ports = free_ports(Ipv4Addr::LOCALHOST, 3)?;
        let address = |at: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, ports[at]));
        let (at, peers) = (address(0), address(1));
        let advertised = match advertised {
            Advertised::Own => peers,
            Advertised::Dead => address(2),
            Advertised::Taken(of) => of,
        };
        let launch = Launch::of(polyplane()?)
            .with(["serve", "--store", store, "--replica-id", name])
            .with(["--listen", &at.to_string(), "--endpoint", &at.to_string()])
            .with(["--peer-listen", &peers.to_string()])
            .with(["--advertise", &advertised.to_string()])
            .with(["--certs", &certs.to_string_lossy()]);
        let logs = certs.parent().context("the folder has a parent")?;
        let process = Process::start(name, &launch, None, logs)?;
        Ok(Self { process, at })
    }

    /// Waits until a path answers with these words, and returns the whole text.
    async fn says(&mut self, admin: &Endpoint, path: &str, words: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let said = said(&at_address(admin, self.at), path).await;
            if let Ok(said) = &said
                && said.contains(words)
            {
                return Ok(said.clone());
            }
            ensure!(
                self.process.ended()?.is_none() && Instant::now() < deadline,
                "{path}: {said:?}\n{}",
                self.process.last_words()
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the replica, which holds nothing that it would have to hand over.
    async fn end(mut self) -> Result<()> {
        self.process.tell(Told::End)?;
        let status = self.process.end(LIMIT).await?;
        let status = status.with_context(|| self.process.last_words())?;
        ensure!(status.success(), "{status}: {}", self.process.last_words());
        Ok(())
    }
}

async fn said(endpoint: &Endpoint, path: &str) -> Result<String> {
    let reply = Client::open(endpoint).await?.get(path).await?;
    let text = reply.body.as_str().map(str::to_owned);
    Ok(text.unwrap_or_else(|| reply.body.to_string()))
}

/// Copies the ring's certificates, so that a further replica may write its own kubeconfig beside
/// them; without the files of peers it makes a peer CA of its own.
fn copied(ring: &Ring, name: &str, is_copied: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let to = ring.folder().join(name).join("certs");
    std::fs::create_dir_all(&to)?;
    for file in std::fs::read_dir(ring.folder().join("certs"))? {
        let file = file?;
        let own_name = file.file_name().to_string_lossy().into_owned();
        let is_kubeconfig = own_name.ends_with(".kubeconfig");
        if file.file_type()?.is_file() && !is_kubeconfig && is_copied(&own_name) {
            std::fs::copy(file.path(), to.join(own_name))?;
        }
    }
    Ok(to)
}

/// Waits until `kubectl plane ring` shows a replica as one that waits outside, and not as a member.
async fn shown_outside(ring: &Ring, name: &str) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let shown = ring.plugin(&polyplane()?, &["ring"]).await?;
        let (inside, outside) = shown
            .split_once("waiting outside the ring")
            .unwrap_or((shown.as_str(), ""));
        ensure!(!inside.contains(name), "{shown}");
        if outside.contains(name) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{shown}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until all planes answer.
async fn all_answer(admin: &Endpoint, planes: &[String]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    for plane in planes {
        let path = format!("/clusters/{plane}/api/v1/namespaces");
        loop {
            let reply = async { Client::open(admin).await?.get(&path).await };
            let reply = reply.await;
            if reply.as_ref().is_ok_and(|reply| reply.status == 200) {
                break;
            }
            ensure!(Instant::now() < deadline, "{path}: {reply:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_the_ring_cannot_use_says_why_and_takes_no_plane_away() -> Result<()> {
    let wish = Wish {
        replicas: 2,
        ..Wish::default()
    };
    let ring = Ring::start(&wish).await?.context("no ring")?;
    let admin = ring.controller.admin()?.at_base_path("");
    let store = ring.cluster.url();
    let planes = make_planes(&admin, "p", 6).await?;

    let certs = copied(&ring, "stranger", |file| !file.starts_with("peer"))?;
    let mut stranger = Further::start(&store, &certs, "stranger", Advertised::Own)?;
    let own = administrator(&stranger, &certs).await?;
    stranger.says(&own, "/readyz/ring", "peer CA").await?;
    stranger.says(&own, "/readyz", "[-]ring failed").await?;
    for plane in &planes {
        let path = format!("/clusters/{plane}/api/v1/namespaces");
        let reply = Client::open(&admin).await?.get(&path).await?;
        ensure!(reply.status == 200, "{path}: {reply:?}");
    }
    shown_outside(&ring, "stranger").await?;
    stranger.end().await?;

    let certs = copied(&ring, "misplaced", |_| true)?;
    let member = &ring.controller.replicas[0].pod;
    let taken = Advertised::Taken(member.peer());
    let mut misplaced = Further::start(&store, &certs, "misplaced", taken)?;
    let own = administrator(&misplaced, &certs).await?;
    let why = format!("is the address of replica {}", member.name);
    misplaced.says(&own, "/readyz/ring", &why).await?;
    all_answer(&admin, &planes).await?;
    misplaced.end().await?;

    let certs = copied(&ring, "unreached", |_| true)?;
    let mut unreached = Further::start(&store, &certs, "unreached", Advertised::Dead)?;
    let why = "no other member reached it before";
    let own = administrator(&unreached, &certs).await?;
    unreached.says(&own, "/readyz/ring", why).await?;
    let log = std::fs::read_to_string(unreached.process.log())?;
    ensure!(log.contains("joins again after a pause"), "{log}");
    unreached.end().await?;
    all_answer(&admin, &planes).await?;
    ring.ensure_no_panic()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_etcd_is_too_far_away_says_what_to_do() -> Result<()> {
    let etcd = Cluster::start(1, &[], &[]).await?;
    let near: SocketAddr = etcd.endpoints()[0].parse()?;
    let store = format!("etcd://{}", moved_away(near).await?);
    let folder = tempfile::tempdir()?;
    let certs = folder.path().join("certs");
    std::fs::create_dir_all(&certs)?;
    let mut replica = Further::start(&store, &certs, "distant", Advertised::Own)?;
    let admin = administrator(&replica, &certs).await?;
    let why = replica
        .says(&admin, "/readyz/read-lease", "kubectl plane terms")
        .await?;
    let log = std::fs::read_to_string(replica.process.log())?;
    ensure!(log.contains("kubectl plane terms"), "{why}\n{log}");
    replica
        .says(&admin, "/readyz", "[-]read-lease failed")
        .await?;
    let metrics = replica
        .says(&admin, "/metrics", "late_member_reads")
        .await?;
    let mut lines = metrics.lines();
    let late = lines.find_map(|line| line.strip_prefix("polyplane_late_member_reads_total "));
    ensure!(
        late.context("it is not counted")?.parse::<u64>()? > 0,
        "{late:?}"
    );
    // Whoever cannot be judged by records that may be old learns where the reason stands.
    let (path, somebody) = ("/clusters/p/api", admin.with_token(Some("a.b.c")));
    replica.says(&somebody, path, "/readyz/read-lease").await?;
    replica.process.kill().await
}

/// Waits until a replica has written the kubeconfig of its administrator.
async fn administrator(replica: &Further, certs: &Path) -> Result<Endpoint> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let read = Endpoint::from_kubeconfig(&certs.join("admin.kubeconfig"), None);
        if read.is_ok() || Instant::now() > deadline {
            return read.with_context(|| replica.process.last_words());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Returns an address that leads to `server` and whose bytes take [`ONE_WAY`] in each direction.
async fn moved_away(server: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(server).await else {
                    return;
                };
                for socket in [&client, &server] {
                    drop(socket.set_nodelay(true));
                }
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::join!(late(from_client, to_server), late(from_server, to_client));
            });
        }
    });
    Ok(address)
}

/// Passes bytes on, each [`ONE_WAY`] after it has arrived.
async fn late(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let reading = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let piece = (Instant::now() + ONE_WAY, buffer[..length].to_vec());
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((due, bytes)) = receiver.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}
