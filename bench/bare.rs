//! A server that does as little as possible: hyper and rustls answering constant bytes over HTTP/2.
//!
//! `bench self` sends load to it in a process of its own. The result shows what the load generator
//! can reach, and is the ceiling for the numbers of a real server.

use std::convert::Infallible;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Serves until it is killed. Writes a kubeconfig into `folder` once it listens.
///
/// # Errors
/// Returns an error if it cannot listen or write.
pub async fn serve(folder: &Path, body_bytes: usize) -> Result<()> {
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let certificate = key.cert.der().clone();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], private)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    std::fs::write(folder.join("ca.crt"), key.cert.pem())?;
    std::fs::write(folder.join("pids"), std::process::id().to_string())?;
    let text = format!(
        "current-context: bare\nclusters: [{{name: bare, cluster: {{server: \"https://{address}\", certificate-authority: ca.crt}}}}]\nusers: [{{name: bare, user: {{token: none}}}}]\ncontexts: [{{name: bare, context: {{cluster: bare, user: bare}}}}]\n"
    );
    let unfinished = folder.join("kubeconfig.new");
    std::fs::write(&unfinished, text)?;
    std::fs::rename(unfinished, folder.join("kubeconfig"))?;
    let body = Bytes::from("x".repeat(body_bytes));
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (acceptor, body) = (acceptor.clone(), body.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else {
                return;
            };
            let service = service_fn(move |_: Request<Incoming>| {
                let body = body.clone();
                async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
    }
}

/// The bare server in a process of its own, which ends when this is dropped.
pub struct Bare {
    child: Child,
    /// The folder of its kubeconfig.
    pub folder: tempfile::TempDir,
}

impl Bare {
    /// Starts this program as a bare server.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub async fn start(body_bytes: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let child = Command::new(std::env::current_exe()?)
            .arg("bare-server")
            .arg(folder.path())
            .arg(body_bytes.to_string())
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the bare server")?;
        let bare = Self { child, folder };
        for _ in 0..1000 {
            if bare.folder.path().join("kubeconfig").exists() {
                return Ok(bare);
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        anyhow::bail!("the bare server does not come up")
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
