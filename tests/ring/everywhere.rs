//! Changes to a plane through the balancer, and questions to every replica at once after each: what
//! was acknowledged must be so everywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::kubeconfig::Endpoint;
use crate::ring::client::pool::Pool;
use crate::ring::replica::at_address;
use crate::ring::setup::Ring;

/// How long a request is repeated until it is answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts of a request.
const BETWEEN: Duration = Duration::from_millis(20);

/// The numbers of all planes together.
#[derive(Default)]
pub struct Counts {
    /// Changes that were acknowledged.
    pub changes: AtomicUsize,
    /// Answers of replicas.
    pub answers: AtomicUsize,
    /// Attempts that were repeated.
    pub repeated: AtomicUsize,
}

/// One plane, the balancer, and every replica.
pub struct Everywhere {
    /// The name of the plane.
    pub plane: String,
    balancer: Arc<Pool>,
    replicas: Vec<Arc<Pool>>,
    counts: Arc<Counts>,
}

impl Everywhere {
    /// Connects the planes of a ring.
    pub fn of(
        ring: &Ring,
        admin: &Endpoint,
        planes: Vec<String>,
        counts: &Arc<Counts>,
    ) -> Vec<Self> {
        let replicas = ring.controller.replicas.iter();
        let replicas: Vec<_> = replicas
            .map(|replica| Pool::new(at_address(admin, replica.pod.client()), 1))
            .collect();
        let connect = |plane| Self {
            plane,
            balancer: Pool::new(admin.clone(), 1),
            replicas: replicas.clone(),
            counts: Arc::clone(counts),
        };
        planes.into_iter().map(connect).collect()
    }

    /// Sends a change until it is acknowledged. An attempt whose answer was lost may have been
    /// carried out, so a conflict on a repeated attempt acknowledges it.
    ///
    /// # Errors
    /// Returns an error if the change is refused, or not answered in time.
    pub async fn write(&self, method: Method, path: &str, body: &Value) -> Result<()> {
        let done = match method {
            Method::POST => [200, 201, 409],
            _ => [200, 202, 404],
        };
        self.answered(&self.balancer, method, path, (body, None), &done)
            .await?;
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a request that changes nothing, and returns the answer.
    ///
    /// # Errors
    /// Returns an error if the answer is not 201, or does not come in time.
    pub async fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let asked = self.answered(&self.balancer, Method::POST, path, (body, None), &[201]);
        Ok(asked.await?.1)
    }

    /// Reads a path at every replica at once, with another header, and expects one status.
    ///
    /// # Errors
    /// Returns an error if one of the replicas answers with another of the `known` statuses.
    pub async fn expect(
        &self,
        path: &str,
        header: (&'static str, &str),
        expected: u16,
        known: &[u16],
    ) -> Result<()> {
        let asked = self.replicas.iter().map(|replica| async move {
            let ask = (&Value::Null, Some(header));
            let answered = self.answered(replica, Method::GET, path, ask, known);
            let (status, _) = answered.await?;
            ensure!(
                status == expected,
                "{}: {status} after {expected} was acknowledged",
                self.plane
            );
            self.counts.answers.fetch_add(1, Ordering::Relaxed);
            anyhow::Ok(())
        });
        try_join_all(asked).await.map(drop)
    }

    /// Repeats a request until it gets one of these statuses.
    async fn answered(
        &self,
        pool: &Pool,
        method: Method,
        path: &str,
        (body, header): (&Value, Option<(&'static str, &str)>),
        wanted: &[u16],
    ) -> Result<(u16, Value)> {
        let path = format!("/clusters/{}{path}", self.plane);
        let repeating = async {
            loop {
                let mut request = pool.request(method.clone(), &path)?;
                if let (Some((name, value)), Some(headers)) = (header, request.headers_mut()) {
                    headers.insert(name, HeaderValue::from_str(value)?);
                }
                let bytes = match body {
                    Value::Null => Bytes::new(),
                    body => {
                        request = request.header("content-type", "application/json");
                        serde_json::to_vec(body)?.into()
                    }
                };
                let sent = pool.send(request.body(Full::new(bytes))?).await;
                if let Ok(answer) = sent {
                    let status = answer.status().as_u16();
                    let whole = answer.into_body().collect().await;
                    let whole = whole.map(|whole| whole.to_bytes()).ok();
                    match whole {
                        Some(body) if wanted.contains(&status) => {
                            let body = serde_json::from_slice(&body).unwrap_or_default();
                            return anyhow::Ok((status, body));
                        }
                        Some(_) if !matches!(status, 408 | 429 | 500 | 502 | 503 | 504) => {
                            bail!("{method} {path}: {status}");
                        }
                        Some(_) | None => {}
                    }
                }
                self.counts.repeated.fetch_add(1, Ordering::Relaxed);
                sleep(BETWEEN).await;
            }
        };
        let answered = timeout(PATIENCE, repeating).await;
        answered.with_context(|| format!("{path} is not answered"))?
    }
}
