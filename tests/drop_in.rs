//! The test drop-in as test harnesses start it: an etcd and an API server, each of which can be stopped
//! for itself.
//!
//! This module owns the processes and their folder. It does not know the users whom flags name.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::StatusCode;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::kubeconfig::Endpoint;
use crate::programs::polyplane;
use crate::ring::addresses::free_ports;

/// The longest time until a program answers, on a busy machine.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// A running etcd and the API server that keeps its state there. Dropping this kills both.
pub struct DropIn {
    /// What both write, and what flags may name.
    pub folder: TempDir,
    assets: PathBuf,
    flags: Vec<String>,
    /// The etcd.
    pub etcd: Child,
    etcd_port: u16,
    /// The API server.
    pub server: Child,
    /// The port of the API server.
    pub port: u16,
    /// How long the API server took until it was ready.
    pub ready_in: Duration,
}

/// Returns the folder of programs that `polyplane envtest path` prints, as it is where there is no kubectl. It is
/// made inside `folder`.
///
/// # Errors
/// Returns an error if the folder cannot be made.
pub fn assets(folder: &Path) -> Result<PathBuf> {
    let output = std::process::Command::new(polyplane()?)
        .args(["envtest", "path", "--dir"])
        .arg(folder.join("assets"))
        .env("PATH", "")
        .output()?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

impl DropIn {
    /// Starts both, with roles and the token of a user who may do everything. Returns where he reaches it.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_for_admin(mut flags: Vec<String>) -> Result<(Self, Endpoint)> {
        let folder = tempfile::tempdir()?;
        let tokens = folder.path().join("tokens.csv");
        std::fs::write(&tokens, "the-token,admin,admin,system:masters\n")?;
        flags.push(format!("--token-auth-file={}", tokens.display()));
        flags.push("--authorization-mode=RBAC".to_owned());
        let drop_in = Self::start(folder, flags, None).await?;
        let endpoint = drop_in.endpoint(&json!({"token": "the-token"}))?;
        Ok((drop_in, endpoint))
    }

    /// Starts both. `flags` are the API server's beside those that every one needs, and `etcd` is the etcd to
    /// use instead of the drop-in's.
    ///
    /// # Errors
    /// Returns an error with the server's log if the server does not become ready.
    pub async fn start(folder: TempDir, flags: Vec<String>, etcd: Option<PathBuf>) -> Result<Self> {
        let assets = assets(folder.path())?;
        let accounts = KeyPair::generate()?;
        std::fs::write(folder.path().join("accounts.key"), accounts.serialize_pem())?;
        // As controller-runtime does it: a certificate for the key that signs.
        let certificate = CertificateParams::new(vec!["x".to_owned()])?.self_signed(&accounts)?;
        std::fs::write(folder.path().join("accounts.crt"), certificate.pem())?;
        let ports = free_ports(Ipv4Addr::LOCALHOST, 2)?;
        let (etcd_port, port) = (ports[0], ports[1]);
        let program = etcd.unwrap_or_else(|| assets.join("etcd"));
        let etcd = spawn_etcd(&program, folder.path(), etcd_port)?;
        until_it_listens(etcd_port).await?;
        let server = spawn_server(&assets, folder.path(), &flags, (etcd_port, port))?;
        let mut drop_in = Self {
            folder,
            assets,
            flags,
            etcd,
            etcd_port,
            server,
            port,
            ready_in: Duration::ZERO,
        };
        drop_in.until_it_is_ready().await?;
        Ok(drop_in)
    }

    /// Returns the URL of the etcd.
    pub fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    /// Starts the drop-in's etcd again, after whoever held the port has ended.
    ///
    /// # Errors
    /// Returns an error if it does not listen in time.
    pub async fn start_etcd_again(&mut self) -> Result<()> {
        self.etcd = spawn_etcd(
            &self.assets.join("etcd"),
            self.folder.path(),
            self.etcd_port,
        )?;
        until_it_listens(self.etcd_port).await
    }

    /// Adds a flag for the next start of the API server, where the last value of a flag counts.
    pub fn add_flag(&mut self, flag: &str) {
        self.flags.push(flag.to_owned());
    }

    /// Starts the API server again, on `port`.
    ///
    /// # Errors
    /// Returns the errors of [`DropIn::start`].
    pub async fn start_again(&mut self, port: u16) -> Result<()> {
        self.port = port;
        let ports = (self.etcd_port, port);
        self.server = spawn_server(&self.assets, self.folder.path(), &self.flags, ports)?;
        self.until_it_is_ready().await
    }

    /// Returns the server as a client with these members of a user in a kubeconfig sees it.
    ///
    /// # Errors
    /// Returns an error if the server has left no certificate, or the user's files cannot be read.
    pub fn endpoint(&self, user: &Value) -> Result<Endpoint> {
        let config = json!({
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": self.folder.path().join("certs/apiserver.crt"),
            }}],
            "users": [{"name": "x", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        });
        let path = self.folder.path().join("kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Endpoint::from_kubeconfig(&path, None)
    }

    /// Waits until the server answers a stranger that it is ready.
    async fn until_it_is_ready(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            let asked = async {
                let stranger = Client::open(&self.endpoint(&json!({}))?).await?;
                let reply = stranger.get("/readyz").await?;
                ensure!(reply.status == StatusCode::OK, "{reply:?}");
                Ok(())
            };
            let asked = asked.await;
            self.ready_in = began.elapsed();
            if asked.is_ok() {
                return asked;
            }
            if let Some(status) = self.server.try_wait()? {
                let log = std::fs::read_to_string(self.folder.path().join("server.log"))?;
                bail!("the API server ended with {status}: {log}");
            }
            if self.ready_in > START_LIMIT {
                return asked.context("the API server is not ready");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Waits until somebody listens at this port of 127.0.0.1.
///
/// # Errors
/// Returns an error if nobody does in time.
pub async fn until_it_listens(port: u16) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .await
        .is_err()
    {
        ensure!(Instant::now() < deadline, "nobody listens at port {port}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

fn spawn_etcd(program: &Path, folder: &Path, port: u16) -> Result<Child> {
    let url = format!("http://127.0.0.1:{port}");
    let child = Command::new(program)
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg("--listen-peer-urls=http://127.0.0.1:0")
        .arg("--unsafe-no-fsync=true")
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        .stderr(File::create(folder.join("etcd.log"))?)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// Starts an API server on these ports: its etcd's and its own.
fn spawn_server(
    assets: &Path,
    folder: &Path,
    flags: &[String],
    (etcd_port, port): (u16, u16),
) -> Result<Child> {
    let file = |name: &str| folder.join(name).display().to_string();
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("server.log"))?;
    let child = Command::new(assets.join("kube-apiserver"))
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd_port}"))
        .arg(format!("--cert-dir={}", file("certs")))
        .arg(format!("--secure-port={port}"))
        .arg("--bind-address=127.0.0.1")
        .arg("--allow-privileged=true")
        .arg("--service-account-issuer=https://own.example.com/")
        .args(["--service-account-key-file", &file("accounts.crt")])
        .args(["--service-account-signing-key-file", &file("accounts.key")])
        .args(flags)
        .stderr(log)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}
