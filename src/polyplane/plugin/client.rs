//! A small HTTPS client for one server.

use super::config::Target;
use super::pinned;
use super::print::{excerpt, progress};
use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use polyplane_apimachinery::{Value, error_chain, json};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest answer, in bytes: a page of 500 control planes of 128 KiB. Without the limit a server
/// could use up the memory.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest time of one request. Without the limit a server that hangs would block the command
/// forever.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a request waits silently. After that the user may take the command for stuck.
const SILENCE_MAX: Duration = Duration::from_secs(3);

type Connector = hyper_rustls::HttpsConnector<HttpConnector>;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The server answered with an error.
    #[error("{message}")]
    Status {
        /// The HTTP status.
        code: u16,
        /// The server's message.
        message: String,
    },
    /// The server showed a certificate that is not trusted.
    #[error("{server} shows a certificate that is not trusted: {reason}")]
    Untrusted {
        /// The server's URL.
        server: String,
        /// The problem with the certificate.
        reason: CertificateError,
    },
    /// The server was not reached or did not answer.
    #[error("cannot reach {server}: {reason}")]
    Unreachable {
        /// The server's URL.
        server: String,
        /// The error and its causes, outermost first.
        reason: String,
    },
}

impl Refusal {
    /// Returns whether another CA than the kubeconfig's has signed the server's certificate.
    pub fn is_of_another_ca(&self) -> bool {
        match self {
            Self::Untrusted { reason, .. } => matches!(
                reason,
                CertificateError::BadSignature | CertificateError::UnknownIssuer
            ),
            Self::Status { .. } | Self::Unreachable { .. } => false,
        }
    }
}

/// The answer of a server.
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The body.
    pub bytes: Bytes,
}

impl Answer {
    /// Returns the beginning of the body as text that is safe to print.
    pub fn text(&self) -> String {
        excerpt(String::from_utf8_lossy(&self.bytes).trim())
    }

    /// Returns the message of the `Status` in the body, or else [`Self::text`].
    pub fn message(&self) -> String {
        let parsed = json::parse(&self.bytes, &json::Limits::default()).ok();
        let message = parsed.and_then(|parsed| message_of(&parsed.value));
        message.unwrap_or_else(|| self.text())
    }
}

/// Returns the message of a `Status`, safe to print; `None` if the value has none.
fn message_of(status: &Value) -> Option<String> {
    let message = status.str_at(&["message"]);
    (!message.is_empty()).then(|| excerpt(message))
}

/// Sends requests to one server as one user.
pub struct Client {
    server: String,
    /// The control plane that the kubeconfig's context names, if it names one.
    plane: Option<String>,
    token: Option<String>,
    has_said_that_it_waits: AtomicBool,
    http: hyper_util::client::legacy::Client<Connector, Full<Bytes>>,
}

impl Client {
    /// Creates a client for the server of `target`.
    ///
    /// # Errors
    /// Returns an error if certificates or keys cannot be used.
    pub fn new(target: &Target) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&target.ca) {
            roots.add(certificate.context("the kubeconfig's certificate authority is not PEM")?)?;
        }
        if roots.is_empty() {
            bail!(
                "the kubeconfig's cluster has no certificate-authority, so no server can be trusted; add one"
            );
        }
        let builder = match &target.own_certificate {
            None => ClientConfig::builder().with_root_certificates(roots),
            Some(own) => ClientConfig::builder()
                .dangerous()
                .with_custom_certificate_verifier(pinned::verifier(roots, own.clone())?),
        };
        let tls = match &target.identity {
            Some((certificate, key)) => {
                let chain: Result<Vec<_>, _> =
                    CertificateDer::pem_slice_iter(certificate).collect();
                let chain = chain.context("the kubeconfig's client certificate is not PEM")?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .context("the kubeconfig's client key is not PEM")?;
                builder
                    .with_client_auth_cert(chain, key)
                    .context("the kubeconfig's client certificate cannot be used with its key")?
            }
            None => builder.with_no_client_auth(),
        };
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .build();
        Ok(Self {
            server: target.server.clone(),
            plane: target.plane.clone(),
            token: target.token.clone(),
            has_said_that_it_waits: AtomicBool::new(false),
            http: hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .build(connector),
        })
    }

    /// Returns the URL of the server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Sends one request and returns the object in its answer.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if the answer is an error or does not arrive.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        let asked = self.ask(method, path, body, PATIENCE);
        let answer = noticed(asked, SILENCE_MAX, || self.say_that_it_waits()).await?;
        let code = answer.code;
        let limits = json::Limits {
            bytes_max: ANSWER_BYTES_MAX,
            ..json::Limits::default()
        };
        let object = json::parse(&answer.bytes, &limits).map(|parsed| parsed.value);
        match object.ok() {
            Some(object) if code < 300 => Ok(object),
            object => {
                let message = match object.as_ref().and_then(message_of) {
                    Some(message) => message + &plane_alone(code, self.plane.as_deref()),
                    None => format!(
                        "the server answered {code}: {}; is this a Polyplane server?",
                        answer.text()
                    ),
                };
                Err(Refusal::Status { code, message })
            }
        }
    }

    /// Tells the user once what the command waits for.
    fn say_that_it_waits(&self) {
        if !self.has_said_that_it_waits.swap(true, Ordering::Relaxed) {
            progress(&format!("waiting for the server {} ...\n", self.server));
        }
    }

    /// Sends one request and returns its answer, even if that is an error.
    ///
    /// # Errors
    /// Returns an error if no answer arrives in time.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Answer, Refusal> {
        let unreachable = |reason: String| Refusal::Unreachable {
            server: self.server.clone(),
            reason,
        };
        let uri: Uri = format!("{}{path}", self.server).parse().map_err(|_| {
            unreachable("this is not a URL; mend `server` in the kubeconfig".into())
        })?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("kubectl-plane/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(json::to_vec).unwrap_or_default();
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| unreachable(error.to_string()))?;
        let answer = tokio::time::timeout(patience, self.http.request(request)).await;
        let answer =
            answer.map_err(|_| unreachable(format!("no answer in {} s", patience.as_secs())))?;
        let answer = answer.map_err(|error| match certificate_error(&error) {
            Some(reason) => Refusal::Untrusted {
                server: self.server.clone(),
                reason: reason.clone(),
            },
            None => unreachable(error_chain(&error)),
        })?;
        let code = answer.status().as_u16();
        let bytes = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let bytes = bytes.map_err(|error| {
            if error.is::<LengthLimitError>() {
                unreachable(format!(
                    "the answer is longer than {ANSWER_BYTES_MAX} bytes"
                ))
            } else {
                unreachable(error.to_string())
            }
        })?;
        let bytes = bytes.to_bytes();
        Ok(Answer { code, bytes })
    }
}

/// Waits for an answer, and calls `say` if it has not come after `silence`.
async fn noticed<T>(asked: impl Future<Output = T>, silence: Duration, say: impl FnOnce()) -> T {
    let mut asked = pin!(asked);
    match tokio::time::timeout(silence, asked.as_mut()).await {
        Ok(answer) => answer,
        Err(_) => {
            say();
            asked.await
        }
    }
}

/// Returns what a 401 can mean if the kubeconfig's context names a control plane: its users are nobody
/// for the server.
fn plane_alone(code: u16, plane: Option<&str>) -> String {
    match plane {
        Some(plane) if code == 401 => format!(
            ": the server does not accept the user of this context. If the kubeconfig is of the control plane \
             {plane:?} alone, use one of the server's administrator: `kubectl plane` manages control planes at \
             the server, and kubectl itself works in {plane:?}"
        ),
        Some(_) | None => String::new(),
    }
}

/// Returns the problem with the server's certificate, if it is the reason why a request failed.
fn certificate_error<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a CertificateError> {
    let mut source = Some(error);
    while let Some(cause) = source {
        if let Some(rustls::Error::InvalidCertificate(why)) = cause.downcast_ref() {
            return Some(why);
        }
        // `source` of an I/O error skips the error inside it, so look there too.
        let carried = cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        source = match carried {
            Some(carried) => Some(carried),
            None => cause.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_of_one_plane_is_told_from_one_of_the_server() {
        let said = plane_alone(401, Some("team-a"));
        assert!(
            said.contains("of the control plane \"team-a\" alone"),
            "{said}"
        );
        assert!(said.contains("the server's administrator"), "{said}");
        assert_eq!(plane_alone(403, Some("team-a")), "");
        assert_eq!(plane_alone(401, None), "");
    }

    #[tokio::test]
    async fn a_user_is_told_of_a_long_wait_while_it_lasts_and_of_no_short_one() {
        let (told, heard) = tokio::sync::oneshot::channel();
        let waited = noticed(heard, Duration::from_millis(1), || {
            told.send("slow").expect("it still waits");
        });
        assert_eq!(waited.await, Ok("slow"));
        let mut is_told = false;
        let asked = std::future::ready("fast");
        let waited = noticed(asked, PATIENCE, || is_told = true).await;
        assert_eq!((waited, is_told), ("fast", false));
    }

    #[test]
    fn a_server_with_another_ca_is_told_from_one_whose_certificate_is_not_valid() {
        let untrusted = |reason| Refusal::Untrusted {
            server: "https://h:1".to_owned(),
            reason,
        };
        for reason in [
            CertificateError::BadSignature,
            CertificateError::UnknownIssuer,
        ] {
            assert!(untrusted(reason).is_of_another_ca());
        }
        assert!(!untrusted(CertificateError::Expired).is_of_another_ca());
    }
}
