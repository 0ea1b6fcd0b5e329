//! haproxy as the Service in front of a ring: TCP, ready endpoints only.
//!
//! This module owns the process, its configuration and a fixed number of slots for servers. As with
//! a Service, a removed server gets no new connection and keeps those it has, and a server whose
//! readiness probe fails is skipped. The module does not know which replica an endpoint is.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep};

use super::etcd::program;
use super::process::{Launch, Process};

/// Servers that the balancer can have at one time.
const SLOTS: usize = 16;
/// The longest time until haproxy listens.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The interval of readiness probes, and the number of failures after which a server is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probing {
    /// The time from one probe to the next.
    pub period: Duration,
    /// The number of failures in a row.
    pub failures: u32,
}

impl Default for Probing {
    /// Probes as often as a kubelet can.
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            failures: 1,
        }
    }
}

/// The one address of a ring. Dropping this ends the balancer.
pub struct Balancer {
    /// The address to which clients connect.
    pub address: SocketAddr,
    process: Process,
    socket: PathBuf,
    slots: Vec<Option<SocketAddr>>,
    _folder: tempfile::TempDir,
}

impl Balancer {
    /// Starts a balancer without servers at this address.
    ///
    /// # Errors
    /// Returns an error if haproxy cannot be installed or does not listen.
    pub async fn start(address: SocketAddr, probing: Probing) -> Result<Self> {
        let haproxy = program("haproxy").await?;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("admin");
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(
            &file,
            configuration(address, &socket.to_string_lossy(), probing)?,
        )?;
        let launch = Launch::of(haproxy).with(["-db", "-f", &file.to_string_lossy()]);
        let process = Process::start("haproxy", &launch, None, folder.path())?;
        let mut balancer = Self {
            address,
            process,
            socket,
            slots: vec![None; SLOTS],
            _folder: folder,
        };
        let deadline = Instant::now() + START_LIMIT;
        while balancer.order("show version").await.is_err()
            || TcpStream::connect(address).await.is_err()
        {
            if balancer.process.ended()?.is_some() || Instant::now() > deadline {
                bail!("haproxy does not listen: {}", balancer.process.last_words());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(balancer)
    }

    /// Adds a ready server.
    ///
    /// # Errors
    /// Returns an error if all slots are taken or haproxy refuses.
    pub async fn add(&mut self, server: SocketAddr) -> Result<()> {
        let slot = self.slots.iter().position(Option::is_none);
        let slot = slot.context("too many servers behind the balancer")?;
        let (ip, port) = (server.ip(), server.port());
        let name = format!("replicas/s{slot}");
        self.said_well(&format!("set server {name} addr {ip} port {port}"))
            .await?;
        self.order(&format!("set server {name} health up")).await?;
        self.order(&format!("set server {name} state ready"))
            .await?;
        self.slots[slot] = Some(server);
        Ok(())
    }

    /// Removes a server: it gets no new connection, and keeps those it has.
    ///
    /// # Errors
    /// Returns an error if the balancer does not have the server, or haproxy refuses.
    pub async fn remove(&mut self, server: SocketAddr) -> Result<()> {
        let slot = self.slots.iter().position(|slot| *slot == Some(server));
        let slot = slot.with_context(|| format!("{server} is not behind the balancer"))?;
        self.order(&format!("set server replicas/s{slot} state maint"))
            .await?;
        self.slots[slot] = None;
        Ok(())
    }

    /// Sends an order and checks haproxy's answer, which is a sentence both for success and for
    /// failure.
    async fn said_well(&self, order: &str) -> Result<()> {
        let answer = self.order(order).await?;
        ensure!(
            answer.contains("changed") || answer.contains("no need to change"),
            "{order}: {answer}"
        );
        Ok(())
    }

    async fn order(&self, order: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        stream.write_all(format!("{order}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let answer = answer.trim().to_owned();
        ensure!(
            !answer.contains("No such server") && !answer.contains("Unknown command"),
            "{order}: {answer}"
        );
        Ok(answer)
    }
}

fn configuration(address: SocketAddr, socket: &str, probing: Probing) -> Result<String> {
    let (period, failures) = (probing.period.as_millis(), probing.failures);
    let mut text = format!(
        "global\n  maxconn 4000\n  stats socket {socket} mode 600 level admin\n\
         defaults\n  mode tcp\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n  \
         timeout check 1s\n  retries 0\n\
         frontend endpoint\n  bind {address}\n  default_backend replicas\n\
         backend replicas\n  balance roundrobin\n  option httpchk GET /readyz\n  \
         http-check expect status 200\n  \
         default-server check check-ssl check-alpn http/1.1 verify none inter {period}ms \
         fall {failures} rise 1\n",
    );
    for slot in 0..SLOTS {
        writeln!(text, "  server s{slot} 127.0.0.1:1 disabled")?;
    }
    Ok(text)
}
