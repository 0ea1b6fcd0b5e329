//! Runs one scenario against one endpoint and returns the answers.
//!
//! This module owns the order of steps, captures, watches that run beside steps, and the scenario's
//! namespace. It does not know whether the endpoint is the reference or a plane.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{Answer, Ask, Connection};
use crate::golden::{Golden, Recorded};
use crate::kubeconfig::{Caller, Endpoint, Protocol};
use crate::normalize::Normalizer;
use crate::protobuf;
use crate::scenario::{Action, Condition, Namespace, Record, Removals, Scenario, Step};
use crate::scenario::{Template, Variables, Watch, WatchEnd};
use crate::symbols::Symbols;

/// The longest time of a request: more than the server's own deadline.
const REQUEST_LIMIT: Duration = Duration::from_secs(75);
/// The longest time for which an `@until` is tried.
const UNTIL_LIMIT: Duration = Duration::from_secs(40);
/// The longest time that a `@join` waits for its events.
const JOIN_LIMIT: Duration = Duration::from_secs(15);
/// Interval between two checks of a condition.
const POLL: Duration = Duration::from_millis(50);
/// Events of one watch that are stored at most.
const EVENTS_MAX: usize = 10_000;
/// Longest body, in bytes, that is searched for values that answers repeat.
const SENT_BODY_BYTES_MAX: usize = 64 * 1024;

/// Runs the scenario.
///
/// # Errors
/// Returns an error if the endpoint cannot be reached or the scenario itself is wrong. An
/// unexpected answer is not an error: it is part of the result.
pub async fn run(scenario: &Scenario, endpoint: &Endpoint) -> Result<Golden> {
    let mut run = Run {
        endpoint,
        admin: Connection::open(endpoint, Caller::Admin, Protocol::Http2).await?,
        variables: Variables::for_scenario(scenario)?,
        symbols: Symbols::default(),
        sent: String::new(),
        watches: HashMap::new(),
        recorded: Vec::new(),
    };
    if scenario.namespace == Namespace::Own {
        run.make_namespace(&scenario.name).await?;
    }
    run.clean_up(scenario).await?;
    for step in &scenario.steps {
        let done = run.step(step).await;
        done.with_context(|| format!("scenario {}, step {:?}", scenario.name, step.name))?;
    }
    if scenario.namespace == Namespace::Own {
        let path = format!("/api/v1/namespaces/{}", scenario.name);
        run.ask(Method::DELETE, &path, "").await?;
    }
    Ok(Golden {
        steps: run.recorded,
        order: run.symbols.order(),
    })
}

struct Run<'a> {
    endpoint: &'a Endpoint,
    admin: Connection,
    variables: Variables,
    symbols: Symbols,
    sent: String,
    watches: HashMap<String, OpenWatch>,
    recorded: Vec<Recorded>,
}

struct OpenWatch {
    events: mpsc::Receiver<Value>,
    end: WatchEnd,
    reader: tokio::task::JoinHandle<()>,
}

impl Run<'_> {
    async fn step(&mut self, step: &Step) -> Result<()> {
        let answer = match &step.action {
            Action::Send(template) => self.send(template).await?,
            Action::Until(template, condition) => self.until(template, condition).await?,
            Action::Watch(template, watch) => return self.watch(step, template, watch).await,
            Action::Join(name, removals) => return self.join(step, name, *removals).await,
        };
        self.capture(step, &answer);
        if !matches!(step.record, Record::Nothing | Record::Cleanup) {
            let recorded = self.normalizer(&step.name).answer(step, &answer);
            self.recorded.push(recorded);
        }
        Ok(())
    }

    fn normalizer<'b>(&'b mut self, step: &'b str) -> Normalizer<'b> {
        Normalizer {
            symbols: &mut self.symbols,
            step,
            sent: &self.sent,
            base_path: &self.endpoint.base_path,
        }
    }

    fn fill(&mut self, template: &Template) -> Result<Ask> {
        let path = self.variables.fill(&template.path)?;
        let body = self.variables.fill(&template.body)?;
        self.remember(&template.path)?;
        let mut headers = Vec::new();
        for (name, value) in &template.headers {
            self.remember(value)?;
            headers.push((name.clone(), self.variables.fill(value)?));
        }
        if body.len() <= SENT_BODY_BYTES_MAX {
            self.remember(&template.body)?;
        }
        Ok(Ask {
            method: Method::from_bytes(template.method.as_bytes())?,
            path,
            headers,
            body: Bytes::from(body),
        })
    }

    fn remember(&mut self, template: &str) -> Result<()> {
        self.sent.push_str(&self.variables.fill_as_given(template)?);
        self.sent.push('\n');
        Ok(())
    }

    async fn send(&mut self, template: &Template) -> Result<Answer> {
        let ask = self.fill(template)?;
        match template.caller {
            Caller::Admin => send_within_limit(&self.admin, ask).await,
            Caller::Anonymous => {
                let nobody =
                    Connection::open(self.endpoint, Caller::Anonymous, Protocol::Http2).await?;
                send_within_limit(&nobody, ask).await
            }
        }
    }

    async fn until(&mut self, template: &Template, condition: &Condition) -> Result<Answer> {
        let deadline = Instant::now() + UNTIL_LIMIT;
        loop {
            let answer = self.send(template).await?;
            if holds(condition, &answer) || Instant::now() >= deadline {
                return Ok(answer);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn capture(&mut self, step: &Step, answer: &Answer) {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        for (name, pointer) in &step.captures {
            let value = match body.pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                // The missing value shows as a difference of this step; the next steps still run.
                None => "not-captured".to_owned(),
            };
            self.variables.capture(name, &value);
        }
    }

    async fn watch(&mut self, step: &Step, template: &Template, watch: &Watch) -> Result<()> {
        let ask = self.fill(template)?;
        let response = timeout(REQUEST_LIMIT, self.admin.start(ask)).await??;
        let (head, body) = response.into_parts();
        if head.status != http::StatusCode::OK {
            let answer = Answer {
                status: head.status,
                headers: head.headers,
                body: timeout(REQUEST_LIMIT, body.collect()).await??.to_bytes(),
            };
            let recorded = self.normalizer(&step.name).answer(step, &answer);
            self.recorded.push(recorded);
            return Ok(());
        }
        let recorded = self
            .normalizer(&step.name)
            .head(step, head.status, &head.headers);
        self.recorded.push(recorded);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let kind = head.headers.get(http::header::CONTENT_TYPE);
        let take = match kind {
            Some(kind) if kind.as_bytes().starts_with(protobuf::MEDIA_TYPE.as_bytes()) => {
                protobuf::take_events
            }
            _ => take_lines,
        };
        let reader = tokio::spawn(read_events(body, sender, take));
        let open = OpenWatch {
            events,
            end: watch.end,
            reader,
        };
        self.watches.insert(watch.name.clone(), open);
        Ok(())
    }

    async fn join(&mut self, step: &Step, name: &str, removals: Removals) -> Result<()> {
        // A watch that was refused has been recorded as an answer, and has no events.
        let Some(mut watch) = self.watches.remove(name) else {
            return Ok(());
        };
        let deadline = Instant::now() + JOIN_LIMIT;
        let mut events = Vec::new();
        let end = loop {
            if watch.end == WatchEnd::Events(events.len()) {
                break "complete";
            }
            match timeout_at(deadline, watch.events.recv()).await {
                Ok(Some(event)) => events.extend(shown(event, removals)),
                Ok(None) => break "closed by the server",
                Err(_) => break "no further event in time",
            }
        };
        watch.reader.abort();
        let recorded = self.normalizer(&step.name).events(step, events, end);
        self.recorded.push(recorded);
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> Result<Answer> {
        let ask = Ask {
            method,
            path: path.to_owned(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        send_within_limit(&self.admin, ask).await
    }

    /// Runs the cleanup steps before the scenario, because an earlier run may have been
    /// interrupted.
    async fn clean_up(&mut self, scenario: &Scenario) -> Result<()> {
        for step in &scenario.steps {
            if let (Record::Cleanup, Action::Send(template)) = (&step.record, &step.action) {
                self.send(template).await?;
            }
        }
        Ok(())
    }

    /// Creates the scenario's namespace again and waits for the objects that every namespace
    /// contains.
    async fn make_namespace(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{name}");
        if self.ask(Method::DELETE, &path, "").await?.status != 404 {
            self.wait_for_status(&path, 404).await?;
        }
        let body = json!({"metadata": {"name": name}}).to_string();
        let made = self.ask(Method::POST, "/api/v1/namespaces", &body).await?;
        if made.status != 201 {
            bail!(
                "no namespace {name}: {}",
                String::from_utf8_lossy(&made.body)
            );
        }
        self.wait_for_status(&format!("{path}/serviceaccounts/default"), 200)
            .await?;
        self.wait_for_status(&format!("{path}/configmaps/kube-root-ca.crt"), 200)
            .await
    }

    async fn wait_for_status(&self, path: &str, status: u16) -> Result<()> {
        let deadline = Instant::now() + UNTIL_LIMIT;
        loop {
            let answer = self.ask(Method::GET, path, "").await?;
            if answer.status == status {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("{path} still answers {}, not {status}", answer.status);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn send_within_limit(connection: &Connection, ask: Ask) -> Result<Answer> {
    let title = format!("{} {}", ask.method, ask.path);
    timeout(REQUEST_LIMIT, connection.send(ask))
        .await
        .with_context(|| format!("{title}: no answer in {} s", REQUEST_LIMIT.as_secs()))?
        .with_context(|| title)
}

fn holds(condition: &Condition, answer: &Answer) -> bool {
    let body = || serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
    match condition {
        Condition::Status(code) => answer.status == *code,
        Condition::Exists(pointer) => body().pointer(pointer).is_some(),
        Condition::Equals(pointer, wanted) => match body().pointer(pointer) {
            Some(Value::String(text)) => text == wanted,
            Some(other) => serde_json::from_str(wanted).is_ok_and(|wanted: Value| wanted == *other),
            None => false,
        },
    }
}

/// Splits the stream into events.
async fn read_events(
    mut body: Incoming,
    events: mpsc::Sender<Value>,
    take: fn(&mut Vec<u8>) -> Vec<Value>,
) {
    let mut rest = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        rest.extend_from_slice(&data);
        for event in take(&mut rest) {
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
    if !rest.is_empty() {
        let last = json!({"unterminated": String::from_utf8_lossy(&rest)});
        drop(events.send(last).await);
    }
}

/// Removes the whole lines and returns their events.
fn take_lines(arrived: &mut Vec<u8>) -> Vec<Value> {
    let Some(last) = arrived.iter().rposition(|byte| *byte == b'\n') else {
        return Vec::new();
    };
    let lines: Vec<u8> = arrived.drain(..=last).collect();
    lines
        .split_inclusive(|byte| *byte == b'\n')
        .map(event)
        .collect()
}

/// Returns an event as it is recorded; `None` for one that is left out.
fn shown(mut event: Value, removals: Removals) -> Option<Value> {
    let mark = "/object/metadata/deletionGracePeriodSeconds";
    let is_marked = event.pointer(mark).and_then(Value::as_i64) == Some(0);
    if removals == Removals::AsSent || !is_marked {
        return Some(event);
    }
    if event["type"] != "DELETED" {
        return None;
    }
    if let Some(Value::Object(metadata)) = event.pointer_mut("/object/metadata") {
        metadata.remove("deletionGracePeriodSeconds");
        metadata.remove("deletionTimestamp");
        // The mark counts as a change.
        let generation = metadata.get("generation").and_then(Value::as_i64);
        if let Some(generation) = generation {
            metadata.insert("generation".to_owned(), json!(generation - 1));
        }
    }
    Some(event)
}

fn event(line: &[u8]) -> Value {
    serde_json::from_slice(line)
        .unwrap_or_else(|_| json!({"not json": String::from_utf8_lossy(line)}))
}
