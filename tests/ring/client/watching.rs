//! A long watch of a plane that continues from its last version whenever it ends.
//!
//! This module owns the sessions and their recording. It does not compare their events.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::BytesMut;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value as Json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::history::{Change, Event, Moment, Session, SessionEnd, Version, Watch};

use super::{CONFIG_MAPS, PlaneClient, name, value, version};

/// Pause of a watcher before its next attempt after a refusal.
const PAUSE: Duration = Duration::from_millis(20);
/// The time that a watcher waits for the first list.
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// The time that a watcher waits for the head of an answer.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Longest line of a watch, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The goal of a watcher: it ends once it has this version. While unset, it continues.
pub type Goal = watch::Receiver<Option<Version>>;

impl PlaneClient {
    /// Watches until the goal is reached. After a 410 a new watch begins. `ready` is called after
    /// the first list: from then on, the watch delivers every change.
    ///
    /// # Errors
    /// Returns an error if there is no first list, or an answer is not JSON.
    pub async fn follow(&self, mut goal: Goal, ready: impl FnOnce()) -> Result<()> {
        let mut ready = Some(ready);
        loop {
            let first = timeout(LIST_LIMIT, self.first_list()).await;
            let first = first.context("no first list for a watch")??;
            let mut watch = Watch {
                client: self.id,
                plane: self.plane.clone(),
                first,
                since: self.recorder.now(),
                sessions: Vec::new(),
            };
            if let Some(ready) = ready.take() {
                ready();
            }
            let ended = self.sessions(&mut watch, &mut goal).await;
            self.recorder
                .note(|history| history.watches.push(watch))
                .await;
            if ended? == SessionEnd::Finished {
                return Ok(());
            }
        }
    }

    async fn first_list(&self) -> Result<crate::history::Cut> {
        loop {
            if let Ok(cut) = self.list().await? {
                return Ok(cut);
            }
            sleep(PAUSE).await;
        }
    }

    /// Runs session after session, until the goal is reached or the server answers 410.
    async fn sessions(&self, watch: &mut Watch, goal: &mut Goal) -> Result<SessionEnd> {
        loop {
            let from = watch.reached();
            let mut session = Session {
                from,
                start: self.recorder.now(),
                events: Vec::new(),
                end: SessionEnd::Finished,
            };
            let ended = self.session(&mut session, goal).await;
            if let Ok(end) = &ended {
                session.end = *end;
            }
            // A session that was refused shows nothing, and a store that is down refuses many, so
            // they are not recorded.
            let silent = session.events.is_empty() && !watch.sessions.is_empty();
            let end = session.end;
            if !(silent && matches!(end, SessionEnd::Broken | SessionEnd::Refused(_))) {
                watch.sessions.push(session);
            }
            ended?;
            match end {
                SessionEnd::Finished | SessionEnd::Expired => return Ok(end),
                SessionEnd::Closed => {}
                SessionEnd::Broken
                | SessionEnd::Unanswered
                | SessionEnd::Refused(_)
                | SessionEnd::Error(_) => {
                    sleep(PAUSE).await;
                }
            }
            let given_up = goal.has_changed().is_err();
            if given_up || goal.borrow().is_some_and(|goal| watch.reached() >= goal) {
                return Ok(SessionEnd::Finished);
            }
        }
    }

    /// Runs one session, from the request to its end.
    async fn session(&self, session: &mut Session, goal: &mut Goal) -> Result<SessionEnd> {
        let from = session.from.0;
        let path = format!("{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={from}");
        let request = self.request(Method::GET, &path, &Json::Null)?;
        let answer = match timeout(HEAD_LIMIT, self.pool.send(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => return Ok(SessionEnd::Broken),
            Err(_) => {
                let (plane, limit) = (&self.plane, HEAD_LIMIT.as_secs());
                println!("{plane}: a watch from {from} on is not begun within {limit} s");
                return Ok(SessionEnd::Unanswered);
            }
        };
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::GONE => return Ok(SessionEnd::Expired),
            status if [429, 503].contains(&status.as_u16()) => {
                return Ok(SessionEnd::Refused(status.as_u16()));
            }
            status => return Ok(SessionEnd::Error(status.as_u16())),
        }
        let mut lines = Lines::of(answer.into_body());
        let mut reached = session.from;
        loop {
            if goal.borrow_and_update().is_some_and(|goal| reached >= goal) {
                return Ok(SessionEnd::Finished);
            }
            // The event first, because the goal can wait.
            let line = tokio::select! {
                biased;
                line = lines.next() => line,
                changed = goal.changed() => {
                    if changed.is_err() {
                        return Ok(SessionEnd::Finished);
                    }
                    continue;
                }
            };
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(SessionEnd::Closed),
                Err(_) => return Ok(SessionEnd::Broken),
            };
            let seen = self.recorder.now();
            match told(&line, seen)? {
                Ok(event) => {
                    reached = reached.max(event.1.version());
                    session.events.push(event);
                }
                Err(end) => return Ok(end),
            }
        }
    }
}

/// Parses a line: an event, or the end of the session.
fn told(line: &[u8], seen: Moment) -> Result<Result<(Moment, Event), SessionEnd>> {
    let told: Json = serde_json::from_slice(line).context("a watch event is no JSON")?;
    let object = &told["object"];
    let change = match told["type"].as_str() {
        Some("ADDED") => Change::Added,
        Some("MODIFIED") => Change::Modified,
        Some("DELETED") => Change::Deleted,
        Some("BOOKMARK") => return Ok(Ok((seen, Event::Bookmark(version(object))))),
        Some("ERROR") => {
            let code = object["code"].as_u64().unwrap_or(500);
            return Ok(Err(match u16::try_from(code).unwrap_or(500) {
                410 => SessionEnd::Expired,
                code => SessionEnd::Error(code),
            }));
        }
        _ => anyhow::bail!("a watch event of no type: {told}"),
    };
    let event = match name(object) {
        Some(name) => Event::Change {
            change,
            object: name,
            version: version(object),
            value: value(object),
        },
        // The object is not one of the run's, but it shows up to which version the watch is.
        None => Event::Bookmark(version(object)),
    };
    Ok(Ok((seen, event)))
}

/// The lines of a body. `next` is cancel safe: bytes that were read stay in the buffer.
pub(in crate::ring) struct Lines {
    body: Incoming,
    buffer: BytesMut,
}

impl Lines {
    /// Creates a reader of a body's lines.
    pub(in crate::ring) fn of(body: Incoming) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
        }
    }

    /// Returns the next line; `None` at the proper end of the body.
    pub(in crate::ring) async fn next(&mut self) -> Result<Option<BytesMut>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.buffer.split_to(end + 1)));
            }
            anyhow::ensure!(self.buffer.len() < LINE_BYTES_MAX, "an endless line");
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => anyhow::bail!("the watch ended within an event"),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}
