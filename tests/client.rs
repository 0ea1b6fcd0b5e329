//! JSON requests and watches over one connection.
//!
//! This module owns the framing of watch events. It does not know any kind.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use crate::connection::{Answer, Ask, Connection};
use crate::kubeconfig::{Caller, Endpoint, Protocol};
use crate::programs::ask;

/// The longest time of a request: more than the server's own deadline.
const ANSWER_LIMIT: Duration = Duration::from_secs(75);
/// The longest time that a test waits for an event that must arrive.
const EVENT_LIMIT: Duration = Duration::from_secs(30);

/// Sends JSON to one plane as the administrator.
pub struct Client {
    connection: Connection,
}

/// An answer with its body parsed as JSON. Other text becomes a JSON string.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: StatusCode,
    /// The body.
    pub body: Value,
}

impl Client {
    /// Connects to an endpoint.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub async fn open(endpoint: &Endpoint) -> Result<Self> {
        Self::open_over(endpoint, Protocol::Http2).await
    }

    /// Connects to an endpoint over one protocol.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub async fn open_over(endpoint: &Endpoint, protocol: Protocol) -> Result<Self> {
        let connection = Connection::open(endpoint, Caller::Admin, protocol).await?;
        Ok(Self { connection })
    }

    /// Sends a request as it is.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn raw(&self, ask: Ask) -> Result<Answer> {
        timeout(ANSWER_LIMIT, self.connection.send(ask))
            .await
            .context("no answer")?
    }

    /// Sends a body with the given content type.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn typed(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: impl Into<bytes::Bytes>,
    ) -> Result<Reply> {
        let headers = vec![("content-type".to_owned(), kind.to_owned())];
        let sent = Ask {
            method,
            path: path.to_owned(),
            headers,
            body: body.into(),
        };
        Ok(reply(self.raw(sent).await?))
    }

    /// Sends JSON, or no body for null.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Reply> {
        Ok(reply(self.raw(ask(method, path, body)).await?))
    }

    /// Sends a GET.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.send(Method::GET, path, &Value::Null).await
    }

    /// Sends a POST.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send(Method::POST, path, body).await
    }

    /// Sends a DELETE.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.send(Method::DELETE, path, &Value::Null).await
    }

    /// Opens a watch. `path` contains `watch=1`.
    ///
    /// # Errors
    /// Returns an error if the server refuses the watch.
    pub async fn watch(&self, path: &str) -> Result<Events> {
        let answer = self.connection.start(ask(Method::GET, path, &Value::Null));
        let answer = timeout(ANSWER_LIMIT, answer).await.context("no answer")??;
        if answer.status() != StatusCode::OK {
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            bail!(
                "the watch {path} is refused: {status} {}",
                String::from_utf8_lossy(&body)
            );
        }
        Ok(Events {
            body: answer.into_body(),
            buffer: BytesMut::new(),
        })
    }
}

fn reply(answer: Answer) -> Reply {
    let text = || Value::String(String::from_utf8_lossy(&answer.body).into_owned());
    Reply {
        status: answer.status,
        body: serde_json::from_slice(&answer.body).unwrap_or_else(|_| text()),
    }
}

impl Reply {
    /// Returns the body if the status is the expected one.
    ///
    /// # Errors
    /// Returns an error with the body if the status is another.
    pub fn expect(self, status: u16) -> Result<Value> {
        if self.status != status {
            bail!("expected {status}, got {} {}", self.status, self.body);
        }
        Ok(self.body)
    }

    /// Checks that this is a Status failure of this code whose message contains a text.
    ///
    /// # Errors
    /// Returns an error if the answer is anything else.
    pub fn refuses(&self, code: u16, words: &str) -> Result<()> {
        let message = self.body["message"].as_str().unwrap_or_default();
        let is_status = self.body["kind"] == "Status" && self.body["status"] == "Failure";
        if self.status != code
            || !is_status
            || self.body["code"] != code
            || !message.contains(words)
        {
            bail!(
                "expected a Status {code} with {words:?}, got {} {}",
                self.status,
                self.body
            );
        }
        Ok(())
    }
}

/// Returns the version of an object, as a number.
pub fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default();
    text.parse().unwrap_or_default()
}

/// Returns the names of the items of a list, in order.
pub fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

/// The events of a watch.
pub struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// Returns the next event; `None` if the server ended the watch.
    ///
    /// # Errors
    /// Returns an error if the connection breaks or a line is not JSON.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Ok(Some(
                    serde_json::from_slice(&line).context("a watch event is no JSON")?,
                ));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => bail!("the watch ended within an event"),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }

    /// Returns the next event, which must arrive.
    ///
    /// # Errors
    /// Returns an error if it does not arrive, or the watch ends.
    pub async fn expect(&mut self) -> Result<Value> {
        let event = timeout(EVENT_LIMIT, self.next())
            .await
            .context("no event came")??;
        event.context("the watch ended")
    }

    /// Returns type and object of the next event that is not a bookmark.
    ///
    /// # Errors
    /// Returns the errors of [`Events::expect`].
    pub async fn change(&mut self) -> Result<(String, Value)> {
        loop {
            let mut event = self.expect().await?;
            let kind = event["type"].as_str().unwrap_or_default().to_owned();
            if kind != "BOOKMARK" {
                return Ok((kind, event["object"].take()));
            }
        }
    }

    /// Reads until the server ends the watch; returns the events that arrived.
    ///
    /// # Errors
    /// Returns an error if the server does not end the watch.
    pub async fn until_end(&mut self) -> Result<Vec<Value>> {
        let mut events = Vec::new();
        while let Some(event) = timeout(EVENT_LIMIT, self.next())
            .await
            .context("the watch stays open")??
        {
            events.push(event);
        }
        Ok(events)
    }
}
