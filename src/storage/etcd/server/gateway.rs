//! The paths over plain HTTP that test harnesses poll, and the one by which upstream's scripts write
//! a key.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use tonic::body::Body;

use super::{ETCD_VERSION, Face, MEMBER_ID};

/// Bytes of a body; more than any key that a script writes.
const BODY_BYTES_MAX: usize = 1024 * 1024;
const JSON: &str = "application/json";

#[derive(Deserialize)]
struct PutBody {
    key: String,
    #[serde(default)]
    value: String,
}

pub(super) async fn answer(face: &Face, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match (request.method(), &*path) {
        (&Method::GET, "/health") => json(r#"{"health":"true","reason":""}"#.to_owned()),
        (&Method::GET, "/livez" | "/readyz") => text(StatusCode::OK, "ok\n"),
        (&Method::GET, "/version") => json(format!(
            r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{}.0","storage":"polyplane-memory"}}"#,
            ETCD_VERSION.rsplit_once('.').map_or("", |(line, _)| line)
        )),
        (&Method::GET, "/metrics") => text(
            StatusCode::OK,
            "# HELP etcd_server_has_leader Whether or not a leader exists. 1 is existence, 0 is not.\n\
             # TYPE etcd_server_has_leader gauge\netcd_server_has_leader 1\n",
        ),
        (&Method::POST, "/v3/kv/put") => put(face, request).await,
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

async fn put(face: &Face, request: Request<Incoming>) -> Response<Body> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX)
        .collect()
        .await;
    let Ok(body) = body else {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "request is too large\n");
    };
    let decoded = serde_json::from_slice::<PutBody>(&body.to_bytes()).ok();
    let decoded = decoded.and_then(|put| {
        let key = BASE64_STANDARD.decode(put.key).ok()?;
        Some((key, BASE64_STANDARD.decode(put.value).ok()?))
    });
    let Some((key, value)) = decoded else {
        let why = "a JSON object with key and value in base 64 is needed\n";
        return text(StatusCode::BAD_REQUEST, why);
    };
    match face.put_key(key, value).await {
        Ok(at) => {
            let cluster = face.state.cluster_id;
            json(format!(
                r#"{{"header":{{"cluster_id":"{cluster}","member_id":"{MEMBER_ID}","revision":"{at}","raft_term":"1"}}}}"#
            ))
        }
        Err(status) => text(StatusCode::BAD_REQUEST, status.message()),
    }
}

fn json(body: String) -> Response<Body> {
    let mut response = Response::new(body_of(body));
    let kind = http::HeaderValue::from_static(JSON);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn text(status: StatusCode, body: &str) -> Response<Body> {
    let mut response = Response::new(body_of(body.to_owned()));
    *response.status_mut() = status;
    response
}

fn body_of(text: String) -> Body {
    Body::new(Full::new(Bytes::from(text)))
}
