//! A key management service of version 2 of upstream's plug-ins: gRPC over a Unix socket. It "wraps" by
//! turning bits over, and counts its calls.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tokio::task::{AbortHandle, JoinSet};

/// Bytes before a message of gRPC: whether it is compressed, and its length.
const FRAME_BYTES: usize = 5;

/// A running service.
pub struct FakeKms {
    calls: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl FakeKms {
    /// Serves on a socket, which is made anew. Its own key is called `key_id`.
    pub fn start(socket: &Path, key_id: &'static str) -> Result<Self> {
        // Absent if this is the first service.
        drop(std::fs::remove_file(socket));
        let listener = UnixListener::bind(socket)?;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                let service =
                    service_fn(move |request| answer(request, key_id, Arc::clone(&counted)));
                let serving = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                connections.spawn(serving);
            }
        });
        Ok(Self {
            calls,
            task: task.abort_handle(),
        })
    }

    /// Stops the service with all its connections, and returns the number of its calls.
    pub fn stop(self) -> usize {
        self.task.abort();
        self.calls.load(Ordering::SeqCst)
    }
}

async fn answer(
    request: Request<Incoming>,
    key_id: &str,
    calls: Arc<AtomicUsize>,
) -> Result<Response<impl http_body_util::BodyExt<Data = Bytes, Error = Infallible>>, hyper::Error>
{
    calls.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let given = first_field(body.get(FRAME_BYTES..).unwrap_or_default());
    let turned: Vec<u8> = given.iter().map(|byte| byte ^ 0x5a).collect();
    let message = match path.as_str() {
        "/v2.KeyManagementService/Status" => [
            field(1, b"v2"),
            field(2, b"ok"),
            field(3, key_id.as_bytes()),
        ]
        .concat(),
        "/v2.KeyManagementService/Encrypt" => {
            assert_eq!(given.len(), 32, "it gets one key and nothing else");
            [field(1, &turned), field(2, key_id.as_bytes())].concat()
        }
        "/v2.KeyManagementService/Decrypt" => field(1, &turned),
        other => panic!("there is no method {other}"),
    };
    let mut frame = vec![0];
    let length = u32::try_from(message.len()).expect("it is short");
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Returns the bytes of the first field of a message, which is shorter than 128 bytes.
fn first_field(message: &[u8]) -> &[u8] {
    match message {
        [0x0a, length, rest @ ..] => rest.get(..usize::from(*length)).unwrap_or_default(),
        _ => &[],
    }
}

/// Returns a field of bytes, shorter than 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("it is short");
    [&[number << 3 | 2, length], bytes].concat()
}
