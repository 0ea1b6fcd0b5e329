//! Servers of others that the server under test calls: webhooks, and issuers of tokens.
//!
//! This module owns their sockets, certificates and keys. It knows nothing of who calls.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer as Ca, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A request as an outside server got it.
#[derive(Clone, Debug)]
pub struct Received {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The `Authorization` header; empty for none.
    pub authorization: String,
    /// The body.
    pub body: Bytes,
    /// The status with which it was answered.
    pub answered: StatusCode,
}

type Handler = dyn Fn(&Received) -> (StatusCode, Value) + Send + Sync;

/// A server with TLS on a free port of this machine. Dropping it ends it.
pub struct Outside {
    /// Its URL, without a path.
    pub url: String,
    /// The CA of its certificate, PEM.
    pub ca_pem: String,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

impl Outside {
    /// Starts a server that answers as `handler` says.
    ///
    /// # Errors
    /// Returns an error if there is no port or no certificate.
    pub async fn start(
        handler: impl Fn(&Received) -> (StatusCode, Value) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (acceptor, ca_pem) = acceptor()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let (received, connections) = (Arc::default(), Arc::default());
        let parts = Parts {
            handler: Arc::new(handler),
            received: Arc::clone(&received),
        };
        let counter = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *lock(&counter) += 1;
                let (acceptor, parts) = (acceptor.clone(), parts.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request| parts.clone().answer(request));
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A client that goes away ends its connection; nobody needs to know.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self {
            url,
            ca_pem,
            received,
            connections,
            task,
        })
    }

    /// Writes a kubeconfig for a path of the server, with a token if there is one, and returns its path.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn kubeconfig(&self, folder: &Path, path: &str, token: Option<&str>) -> Result<PathBuf> {
        let user = token.map_or(json!({}), |token| json!({"token": token}));
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "outside",
            "contexts": [{"name": "outside", "context": {"cluster": "outside", "user": "outside"}}],
            "users": [{"name": "outside", "user": user}],
            "clusters": [{"name": "outside", "cluster": {"server": format!("{}{path}", self.url),
                "certificate-authority-data": BASE64_STANDARD.encode(&self.ca_pem)}}]});
        let file = folder.join("outside.kubeconfig");
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// Returns the requests so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        lock(&self.received).clone()
    }

    /// Returns how many requests for a path there were.
    #[must_use]
    pub fn hits(&self, path: &str) -> usize {
        let received = lock(&self.received);
        received.iter().filter(|one| one.path == path).count()
    }

    /// Returns how many connections there were.
    #[must_use]
    pub fn connections(&self) -> usize {
        *lock(&self.connections)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Parts {
    handler: Arc<Handler>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Parts {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let authorization = parts.headers.get("authorization");
        let mut received = Received {
            answered: StatusCode::OK,
            method: parts.method,
            path: parts
                .uri
                .path_and_query()
                .map(ToString::to_string)
                .unwrap_or_default(),
            authorization: authorization
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                .unwrap_or_default(),
            body: body.unwrap_or_default(),
        };
        let (status, answer) = (self.handler)(&received);
        received.answered = status;
        lock(&self.received).push(received);
        let mut response = Response::new(Full::from(answer.to_string()));
        *response.status_mut() = status;
        if let Some(location) = answer["location"]
            .as_str()
            .and_then(|text| text.parse().ok())
        {
            response.headers_mut().insert("location", location);
        }
        Ok(response)
    }
}

fn acceptor() -> Result<(TlsAcceptor, String)> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "outside");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca_pem = params.self_signed(&key)?.pem();
    let ca = Ca::from_ca_cert_pem(&ca_pem, key)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    let leaf = leaf.signed_by(&key, &ca)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), ca_pem))
}

/// A private key of an issuer.
pub enum IssuerKey {
    /// On P-256.
    Curve(EcdsaKeyPair),
    /// RSA with 2048 bits.
    Rsa(Box<RsaKeyPair>),
}

impl IssuerKey {
    /// Makes a key on P-256.
    ///
    /// # Errors
    /// Returns an error if there are no random numbers.
    pub fn curve() -> Result<Self> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Ok(Self::Curve(pair.map_err(|_| anyhow::anyhow!("no key"))?))
    }

    /// Makes an RSA key.
    ///
    /// # Errors
    /// Returns an error if there are no random numbers.
    pub fn rsa() -> Result<Self> {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048);
        Ok(Self::Rsa(Box::new(
            pair.map_err(|_| anyhow::anyhow!("no key"))?,
        )))
    }

    /// Returns the public key for a key set.
    #[must_use]
    pub fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Curve(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": id,
                    "x": text(&point[1..33]), "y": text(&point[33..65])})
            }
            Self::Rsa(pair) => {
                let key = pair.public_key();
                json!({"kty": "RSA", "use": "sig", "kid": id,
                    "n": text(key.modulus().big_endian_without_leading_zero()),
                    "e": text(key.exponent().big_endian_without_leading_zero())})
            }
        }
    }

    /// Signs claims under any header.
    ///
    /// # Errors
    /// Returns an error if there are no random numbers.
    pub fn sign(&self, header: &Value, claims: &Value) -> Result<String> {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let random = SystemRandom::new();
        let failed = |_| anyhow::anyhow!("no signature");
        let signature = match self {
            Self::Curve(pair) => {
                let signature = pair.sign(&random, signed.as_bytes()).map_err(failed)?;
                signature.as_ref().to_vec()
            }
            Self::Rsa(pair) => {
                let padding: &'static dyn RsaEncoding = match header["alg"].as_str() {
                    Some("PS256") => &RSA_PSS_SHA256,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                let made = pair.sign(padding, &random, signed.as_bytes(), &mut signature);
                made.map_err(failed)?;
                signature
            }
        };
        Ok(format!(
            "{signed}.{}",
            BASE64_URL_SAFE_NO_PAD.encode(signature)
        ))
    }
}

/// The path of an issuer's configuration.
pub const DISCOVERY: &str = "/.well-known/openid-configuration";
/// The path of an issuer's keys.
pub const KEYS: &str = "/keys";

#[derive(Default)]
struct IssuerState {
    keys: BTreeMap<String, IssuerKey>,
    published: Vec<String>,
    is_away: bool,
}

/// An issuer of tokens.
pub struct TokenIssuer {
    /// Its server.
    pub server: Outside,
    state: Arc<Mutex<IssuerState>>,
}

impl TokenIssuer {
    /// Starts an issuer with these keys, all of which it publishes.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub async fn start(keys: Vec<(&str, IssuerKey)>) -> Result<Self> {
        let state = Arc::new(Mutex::new(IssuerState {
            published: keys.iter().map(|(id, _)| (*id).to_owned()).collect(),
            keys: keys
                .into_iter()
                .map(|(id, key)| (id.to_owned(), key))
                .collect(),
            is_away: false,
        }));
        let url: Arc<Mutex<String>> = Arc::default();
        let (of_handler, own_url) = (Arc::clone(&state), Arc::clone(&url));
        let server = Outside::start(move |request| {
            let state = lock(&of_handler);
            let url = lock(&own_url).clone();
            match request.path.as_str() {
                _ if state.is_away => (StatusCode::SERVICE_UNAVAILABLE, Value::Null),
                DISCOVERY => (
                    StatusCode::OK,
                    json!({"issuer": url, "jwks_uri": format!("{url}{KEYS}")}),
                ),
                KEYS => {
                    let published = state.published.iter();
                    let keys = published.filter_map(|id| Some(state.keys.get(id)?.jwk(id)));
                    (StatusCode::OK, json!({"keys": keys.collect::<Vec<_>>()}))
                }
                _ => (StatusCode::NOT_FOUND, Value::Null),
            }
        });
        let server = server.await?;
        lock(&url).clone_from(&server.url);
        Ok(Self { server, state })
    }

    /// Publishes only this key from now on.
    pub fn rotate(&self, id: &str, key: IssuerKey) {
        let mut state = lock(&self.state);
        state.keys.insert(id.to_owned(), key);
        state.published = vec![id.to_owned()];
    }

    /// Answers nothing but 503, or answers again.
    pub fn set_away(&self, is_away: bool) {
        lock(&self.state).is_away = is_away;
    }

    /// Signs a token with a key, under the header of its kind, for an hour; `claims` are added.
    ///
    /// # Errors
    /// Returns an error if there is no such key.
    pub fn token(&self, key_id: &str, claims: &Value) -> Result<String> {
        let state = lock(&self.state);
        let key = state.keys.get(key_id);
        let key = key.ok_or_else(|| anyhow::anyhow!("no key {key_id}"))?;
        let algorithm = match key {
            IssuerKey::Curve(_) => "ES256",
            IssuerKey::Rsa(_) => "RS256",
        };
        let header = json!({"alg": algorithm, "kid": key_id, "typ": "JWT"});
        key.sign(&header, &self.claims(claims))
    }

    /// Signs a token under any header.
    ///
    /// # Errors
    /// Returns an error if there is no such key.
    pub fn token_under(&self, key_id: &str, header: &Value, claims: &Value) -> Result<String> {
        let state = lock(&self.state);
        let key = state.keys.get(key_id);
        let key = key.ok_or_else(|| anyhow::anyhow!("no key {key_id}"))?;
        key.sign(header, &self.claims(claims))
    }

    fn claims(&self, more: &Value) -> Value {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let mut claims = json!({"iss": self.server.url, "sub": "jane", "aud": "planes",
            "iat": now, "exp": now + 3600});
        if let (Some(claims), Some(more)) = (claims.as_object_mut(), more.as_object()) {
            claims.extend(more.clone());
            claims.retain(|_, value| !value.is_null());
        }
        claims
    }
}
