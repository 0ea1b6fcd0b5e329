//! A server that does as little as possible: hyper and rustls answering constant bytes over HTTP/2.
//!
//! It understands the requests of the scenarios, so that each of them can run against it: it
//! receives a body and drops it, it answers with as many bytes as a real server, and it delivers one
//! event for each PATCH to all open watches. It stores nothing. `bench` starts it in a process of
//! its own, and the result is the ceiling for the numbers of a real server.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Context as Waker, Poll};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio_rustls::TlsAcceptor;

use crate::target::{Place, Target};

/// Bytes of an answer with one object, the owners of its fields among them. `against-bare` ends with
/// an error if a real server's answers have another length.
const OBJECT_BYTES: usize = 1_300;
/// Bytes of an answer with a hundred objects.
const LIST_BYTES: usize = 135_000;
/// Events that wait for one watcher. A watcher that is further behind loses its watch, so that it
/// cannot take memory without end; the run then counts the events as lost.
const EVENTS_MAX: usize = 4096;

/// What the server answers, and the watches that are open.
struct Constants {
    object: Bytes,
    list: Bytes,
    watchers: Mutex<Vec<mpsc::Sender<Bytes>>>,
}

/// Serves until it is killed. Writes a kubeconfig into `folder` once it listens.
///
/// # Errors
/// Returns an error if it cannot listen or write.
pub async fn serve(folder: &Path) -> Result<()> {
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
    let constants = Arc::new(Constants {
        object: json_of(OBJECT_BYTES),
        list: json_of(LIST_BYTES),
        watchers: Mutex::default(),
    });
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (acceptor, constants) = (acceptor.clone(), Arc::clone(&constants));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else {
                return;
            };
            let service = service_fn(move |request: Request<Incoming>| {
                let constants = Arc::clone(&constants);
                async move { Ok::<_, Infallible>(answer(request, &constants).await) }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
    }
}

/// Returns a JSON object of about this size, with the version that a watch begins at.
fn json_of(bytes: usize) -> Bytes {
    let filler = "x".repeat(bytes);
    Bytes::from(format!(
        r#"{{"metadata":{{"resourceVersion":"1"}},"text":"{filler}"}}"#
    ))
}

async fn answer(
    request: Request<Incoming>,
    constants: &Constants,
) -> Response<Either<Full<Bytes>, Events>> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    let constant = |status: StatusCode, body: &Bytes| {
        let mut response = Response::new(Either::Left(Full::new(body.clone())));
        *response.status_mut() = status;
        response
    };
    match parts.method {
        Method::GET if query.contains("watch=1") => {
            let (sender, receiver) = mpsc::channel(EVENTS_MAX);
            constants.watchers.lock().await.push(sender);
            Response::new(Either::Right(Events(receiver)))
        }
        Method::GET if query.contains("labelSelector") => constant(StatusCode::OK, &constants.list),
        Method::GET if is_namespace(parts.uri.path()) => {
            // A scenario reads its namespace only to see that it is gone.
            constant(StatusCode::NOT_FOUND, &Bytes::new())
        }
        Method::GET | Method::DELETE => constant(StatusCode::OK, &constants.object),
        method => {
            let Ok(received) = body.collect().await else {
                return constant(StatusCode::BAD_REQUEST, &Bytes::new());
            };
            match method {
                Method::POST => constant(StatusCode::CREATED, &constants.object),
                Method::PATCH => {
                    publish(&received.to_bytes(), constants).await;
                    constant(StatusCode::OK, &constants.object)
                }
                _ => {
                    let body = received.to_bytes();
                    // A server answers with the object, which is as long as what it received.
                    let is_large = body.len() > constants.object.len();
                    constant(
                        StatusCode::OK,
                        if is_large { &body } else { &constants.object },
                    )
                }
            }
        }
    }
}

fn is_namespace(path: &str) -> bool {
    path.rsplit('/').nth(1) == Some("namespaces")
}

/// Sends one event of an object's size, with the patch in it, to every open watch.
async fn publish(patch: &[u8], constants: &Constants) {
    let mut watchers = constants.watchers.lock().await;
    if watchers.is_empty() {
        return;
    }
    let mut event = br#"{"type":"MODIFIED","was":"#.to_vec();
    event.extend_from_slice(&constants.object);
    event.extend_from_slice(br#","object":"#);
    event.extend_from_slice(patch);
    event.extend_from_slice(b"}\n");
    let event = Bytes::from(event);
    watchers.retain(|watcher| watcher.try_send(event.clone()).is_ok());
}

/// The body of a watch: events until the client leaves.
struct Events(mpsc::Receiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = self.0.poll_recv(waker);
        event.map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// The bare server in a process of its own, which ends when this is dropped.
pub struct Bare {
    child: Child,
    folder: tempfile::TempDir,
}

impl Bare {
    /// Starts this program as a bare server.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let child = Command::new(std::env::current_exe()?)
            .arg("bare-server")
            .arg(folder.path())
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

    /// Returns the kubeconfig that leads to the server.
    pub fn place(&self) -> Place {
        Place {
            kubeconfig: self.folder.path().join("kubeconfig"),
            context: None,
        }
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// Returns an error if it has ended.
    pub async fn target(&self, connections: usize) -> Result<Target> {
        Target::open("bare", &self.place(), &[], connections).await
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_a_namespace_is_one() {
        assert!(is_namespace("/api/v1/namespaces/a"));
        assert!(!is_namespace("/api/v1/namespaces/a/configmaps/b"));
        assert!(!is_namespace("/api/v1/namespaces"));
    }

    #[tokio::test]
    async fn an_event_contains_the_patch_and_a_watch_that_is_behind_ends() {
        let (sender, mut behind) = mpsc::channel(1);
        let constants = Constants {
            object: json_of(10),
            list: json_of(10),
            watchers: Mutex::new(vec![sender]),
        };
        publish(br#"{"data":1}"#, &constants).await;
        publish(br#"{"data":2}"#, &constants).await;
        assert!(constants.watchers.lock().await.is_empty());
        let event = behind.recv().await.expect("the first event");
        let event: serde_json::Value = serde_json::from_slice(&event).expect("JSON");
        assert_eq!(event["object"]["data"], 1);
        assert_eq!(behind.recv().await, None);
    }
}
