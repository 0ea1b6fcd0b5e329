//! Measures the cost of forwarding a GET between replicas: a pool of HTTP/1.1 connections against
//! HTTP/2.
//!
//! Client and server are in one process, over TLS on loopback; an answer has 1 KiB. The program
//! prints the CPU time of both ends per request, in interleaved blocks, and the mean wall time.
//! Run it with `cargo run -p polyplane-server --example forwarding`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const REQUESTS: usize = 20_000;
const AT_A_TIME: usize = 64;
const BLOCKS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Way {
    Http1,
    Http2 { connections: usize },
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Returns the CPU seconds of this process, user and system.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

fn configs() -> (Arc<rustls::ServerConfig>, rustls::ClientConfig) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
    let certificate: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("known")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(key))
        .expect("usable");
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("known")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), client)
}

async fn serve(listener: TcpListener, config: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(config);
    let body = Bytes::from(vec![b'x'; 1024]);
    loop {
        let (socket, _) = listener.accept().await.expect("accepted");
        socket.set_nodelay(true).expect("set");
        let (acceptor, body) = (acceptor.clone(), body.clone());
        tokio::spawn(async move {
            let stream = acceptor.accept(socket).await.expect("a handshake");
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |_: Request<Incoming>| {
                let body = Full::new(body.clone());
                async move { Ok::<_, Infallible>(Response::new(body)) }
            });
            let io = TokioIo::new(stream);
            if is_h2 {
                let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = serving.serve_connection(io, service).await;
            } else {
                let serving = hyper::server::conn::http1::Builder::new();
                let _ = serving.serve_connection(io, service).await;
            }
        });
    }
}

async fn connect(address: &str, mut config: rustls::ClientConfig, way: Way) -> Sender {
    let is_h2 = matches!(way, Way::Http2 { .. });
    let alpn: &[u8] = if is_h2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![alpn.to_vec()];
    let socket = TcpStream::connect(address).await.expect("connected");
    socket.set_nodelay(true).expect("set");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .expect("trusted");
    let io = TokioIo::new(stream);
    if is_h2 {
        let builder = http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(io).await.expect("a handshake");
        tokio::spawn(connection);
        Sender::Http2(sender)
    } else {
        let (sender, connection) = http1::handshake(io).await.expect("a handshake");
        tokio::spawn(connection);
        Sender::Http1(sender)
    }
}

async fn work(mut sender: Sender, left: Arc<AtomicUsize>) {
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        })
        .is_ok()
    {
        let request = Request::get("https://localhost/clusters/team-a/api/v1/namespaces/ns/pods/a")
            .header(
                "authorization",
                "Bearer 0123456789012345678901234567890123456789",
            )
            .header("accept", "application/json")
            .header(
                "user-agent",
                "kubectl/v1.37.0 (linux/amd64) kubernetes/abcdef0",
            )
            .header("host", "localhost")
            .body(Full::new(Bytes::new()))
            .expect("a request");
        let answer = match &mut sender {
            Sender::Http1(sender) => {
                sender.ready().await.expect("open");
                sender.send_request(request).await
            }
            Sender::Http2(sender) => sender.send_request(request).await,
        };
        let body = answer.expect("an answer").into_body();
        let length = body.collect().await.expect("whole").to_bytes().len();
        assert_eq!(length, 1024);
    }
}

/// Measures CPU seconds and wall time of one block.
async fn block(address: &str, config: &rustls::ClientConfig, way: Way) -> (f64, Duration) {
    let mut senders = Vec::new();
    match way {
        Way::Http1 => {
            for _ in 0..AT_A_TIME {
                senders.push(connect(address, config.clone(), way).await);
            }
        }
        Way::Http2 { connections } => {
            let mut open = Vec::new();
            for _ in 0..connections {
                if let Sender::Http2(sender) = connect(address, config.clone(), way).await {
                    open.push(sender);
                }
            }
            let state = open.iter().cycle().take(AT_A_TIME).cloned();
            senders.extend(state.map(Sender::Http2));
        }
    }
    let left = Arc::new(AtomicUsize::new(REQUESTS));
    let (before, began) = (cpu(), Instant::now());
    let workers: Vec<_> = senders
        .into_iter()
        .map(|sender| tokio::spawn(work(sender, Arc::clone(&left))))
        .collect();
    for worker in workers {
        worker.await.expect("done");
    }
    (cpu() - before, began.elapsed())
}

#[tokio::main]
async fn main() {
    let (server, client) = configs();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(serve(listener, server));
    let ways = [
        Way::Http1,
        Way::Http2 { connections: 1 },
        Way::Http2 { connections: 4 },
    ];
    let mut sums = [(0.0, Duration::ZERO); 3];
    for _ in 0..BLOCKS {
        for (way, sum) in ways.iter().zip(&mut sums) {
            let (cpu, wall) = block(&address, &client, *way).await;
            sum.0 += cpu;
            sum.1 += wall;
        }
    }
    for (way, (cpu, wall)) in ways.iter().zip(sums) {
        let requests = (BLOCKS * REQUESTS) as f64;
        let (cpu, wall) = (cpu * 1e6 / requests, wall.as_secs_f64() * 1e6 / requests);
        println!("{way:?}: {cpu:.1} us of CPU per request, {wall:.1} us of wall time");
    }
}
