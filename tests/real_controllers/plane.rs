//! One control plane of the scenario as its administrator sees it. A request that a fault left without
//! an answer is repeated.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::ring::client::pool::Pool;
use polyplane_tests::ring::collection::ask;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

/// How long a request is repeated until it is answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How long the controllers have for one step. Three planes share the machine with their controllers.
const STEP_LIMIT: Duration = Duration::from_secs(180);
/// The pause between two looks. Shorter ones would take the CPU from the controllers.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A control plane, or the root plane.
#[derive(Clone)]
pub struct Plane {
    /// The plane's name.
    pub name: String,
    /// The administrator's connections.
    pub pool: Arc<Pool>,
}

impl Plane {
    /// Connects to a plane of a ring.
    pub fn new(name: &str, admin: &Endpoint) -> Self {
        Self {
            name: name.to_owned(),
            pool: Pool::new(admin.clone(), 1),
        }
    }

    /// Returns the absolute path of a path in the plane.
    pub fn path(&self, path: &str) -> String {
        format!("/clusters/{}{path}", self.name)
    }

    async fn answered(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        done: &[u16],
    ) -> Result<(u16, Value)> {
        let path = self.path(path);
        let repeating = async {
            loop {
                match ask(&self.pool, method.clone(), &path, body).await {
                    Ok((status, body)) if done.contains(&status) => {
                        return anyhow::Ok((status, body));
                    }
                    Ok((status, body)) if ![408, 429, 500, 502, 503, 504].contains(&status) => {
                        bail!("{method} {path}: {status} {body}");
                    }
                    _ => sleep(BETWEEN_LOOKS).await,
                }
            }
        };
        let answered = timeout(ANSWER_LIMIT, repeating).await;
        answered.with_context(|| format!("{method} {path} is not answered"))?
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// Returns an error if it is not there, or no answer comes.
    pub async fn get(&self, path: &str) -> Result<Value> {
        Ok(self
            .answered(Method::GET, path, &Value::Null, &[200])
            .await?
            .1)
    }

    /// Reads what may be there.
    ///
    /// # Errors
    /// Returns an error if no answer comes.
    pub async fn find(&self, path: &str) -> Result<Option<Value>> {
        let (status, body) = self
            .answered(Method::GET, path, &Value::Null, &[200, 404])
            .await?;
        Ok((status == 200).then_some(body))
    }

    /// Creates an object. One that exists was created by an attempt without an answer.
    ///
    /// # Errors
    /// Returns an error if the object is refused, or no answer comes.
    pub async fn create(&self, path: &str, object: &Value) -> Result<()> {
        self.answered(Method::POST, path, object, &[201, 409])
            .await
            .map(drop)
    }

    /// Merges a patch into an object.
    ///
    /// # Errors
    /// Returns an error if the patch is refused, or no answer comes.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        self.answered(Method::PATCH, path, patch, &[200])
            .await
            .map(drop)
    }

    /// Merges a patch into an object that may be gone.
    ///
    /// # Errors
    /// Returns an error if the patch is refused, or no answer comes.
    pub async fn touch(&self, path: &str, patch: &Value) -> Result<()> {
        let touched = self.answered(Method::PATCH, path, patch, &[200, 404]);
        touched.await.map(drop)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// Returns an error if that is refused, or no answer comes.
    pub async fn delete(&self, path: &str, propagation: &str) -> Result<()> {
        let path = format!("{path}?propagationPolicy={propagation}");
        self.answered(Method::DELETE, &path, &Value::Null, &[200, 202, 404])
            .await
            .map(drop)
    }

    /// Waits until what is at a path, or null, is as wanted; returns it.
    ///
    /// # Errors
    /// Returns an error with what is there if that takes too long.
    pub async fn until(
        &self,
        path: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = Instant::now() + STEP_LIMIT;
        loop {
            let seen = self.find(path).await?.unwrap_or(Value::Null);
            if wanted(&seen) {
                return Ok(seen);
            }
            ensure!(
                Instant::now() < deadline,
                "{}: no {what}: {path} is {seen}",
                self.name
            );
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Returns the version up to which the plane's state is known to have come.
    ///
    /// # Errors
    /// Returns an error if no answer comes.
    pub async fn head(&self) -> Result<u64> {
        let list = self.get("/api/v1/nodes?limit=1").await?;
        let text = list["metadata"]["resourceVersion"].as_str();
        text.and_then(|text| text.parse().ok())
            .context("a list has a version")
    }
}
