//! Watches: one stream of messages each way, with any number of watches in it.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::proto::{
    PbEvent, PbKeyValue, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchService,
};
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Face, Named, read_status};
use crate::error::ReadError;
use crate::etcd::wire::{number, revision};
use crate::store::{Revision, StoreEvent};
use crate::watch::{StoreWatch, WatchBatch, WatchEnd};

/// Messages that may wait for a client. Further ones wait in the watch, which is bounded too.
const MESSAGES_MAX: usize = 64;
/// Watches in one stream.
const WATCHES_MAX: usize = 1_000;

type Messages = mpsc::Sender<Result<PbWatchResponse, Status>>;

#[tonic::async_trait]
impl PbWatchService for Face {
    type WatchStream = BoxStream<PbWatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (messages, received) = mpsc::channel(MESSAGES_MAX);
        let session = Session {
            face: self.clone(),
            messages,
            running: JoinSet::new(),
            watches: HashMap::new(),
            next_id: 0,
        };
        // The task ends with the stream of requests, or once nobody reads the answers.
        let task = tokio::spawn(session.run(request.into_inner()));
        let guard = Arc::new(EndsTask(task.abort_handle()));
        let answers = stream::unfold((received, guard), |(mut received, guard)| async move {
            let message = received.recv().await?;
            Some((message, (received, guard)))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Ends a task when the stream that it feeds is dropped.
struct EndsTask(AbortHandle);

impl Drop for EndsTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The watches of one stream.
struct Session {
    face: Face,
    messages: Messages,
    running: JoinSet<()>,
    watches: HashMap<i64, AbortHandle>,
    next_id: i64,
}

impl Session {
    async fn run(mut self, mut requests: Streaming<PbWatchRequest>) {
        while let Ok(Some(request)) = requests.message().await {
            while self.running.try_join_next().is_some() {}
            match request.request_union {
                Some(PbWatchRequestUnion::CreateRequest(create)) => {
                    let range = Named::of(create.key, create.range_end);
                    self.create(range, create.start_revision, create.watch_id)
                        .await;
                }
                Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                    if let Some(watch) = self.watches.remove(&cancel.watch_id) {
                        watch.abort();
                        self.send(PbWatchResponse {
                            watch_id: cancel.watch_id,
                            canceled: true,
                            ..PbWatchResponse::default()
                        })
                        .await;
                    }
                }
                Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                    // The watches report it themselves, each behind its own events.
                    let _ = self.face.store().request_progress().await;
                }
                None => {}
            }
        }
        // The client asks for nothing more, but may still read.
        while self.running.join_next().await.is_some() {}
    }

    async fn send(&self, mut message: PbWatchResponse) {
        let at = self.face.head().await.unwrap_or_default();
        message.header = Some(self.face.header(at));
        let _ = self.messages.send(Ok(message)).await;
    }

    async fn create(&mut self, range: Result<Named, Status>, start: i64, wanted_id: i64) {
        let watch_id = match wanted_id {
            0 => self.next_id,
            id => id,
        };
        self.next_id = self.next_id.max(watch_id) + 1;
        let refused = |reason: &str| PbWatchResponse {
            watch_id: -1,
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..PbWatchResponse::default()
        };
        let range = match range {
            Ok(range) if self.watches.len() < WATCHES_MAX => range,
            Ok(_) => {
                return self
                    .send(refused("this etcd has too many watches in one stream"))
                    .await;
            }
            Err(status) => return self.send(refused(status.message())).await,
        };
        let head = match self.face.head().await {
            Ok(head) => head,
            Err(status) => return self.send(refused(status.message())).await,
        };
        let after = match start {
            0 => head,
            start => revision(start - 1),
        };
        let created = PbWatchResponse {
            watch_id,
            created: true,
            ..PbWatchResponse::default()
        };
        // A watch may begin in the future, and then begins with what comes next.
        let from = after.min(head);
        match self.face.store().watch(range.start, range.end, from).await {
            Ok(watch) => {
                self.send(created).await;
                let (face, messages) = (self.face.clone(), self.messages.clone());
                let feed = feed(face, messages, watch, watch_id, after);
                self.watches.insert(watch_id, self.running.spawn(feed));
            }
            Err(ReadError::Compacted { floor }) => {
                self.send(created).await;
                self.send(compacted(watch_id, floor)).await;
            }
            Err(error) => self.send(refused(read_status(&error).message())).await,
        }
    }
}

fn compacted(watch_id: i64, floor: Revision) -> PbWatchResponse {
    PbWatchResponse {
        watch_id,
        canceled: true,
        compact_revision: number(floor),
        ..PbWatchResponse::default()
    }
}

/// Sends what a watch brings, until it or the stream ends.
async fn feed(
    face: Face,
    messages: Messages,
    mut watch: StoreWatch,
    watch_id: i64,
    after: Revision,
) {
    loop {
        let (at, response) = match watch.next().await {
            Ok(WatchBatch { revision, .. }) if revision <= after => continue,
            Ok(WatchBatch { revision, events }) => {
                let events = events.into_iter().map(event).collect();
                let response = PbWatchResponse {
                    watch_id,
                    events,
                    ..PbWatchResponse::default()
                };
                (revision, response)
            }
            Err(WatchEnd::Compacted { floor }) => (floor, compacted(watch_id, floor)),
            Err(end) => {
                // The client opens the stream again, after the last revision that it has.
                let _ = messages
                    .send(Err(Status::unavailable(end.to_string())))
                    .await;
                return;
            }
        };
        let is_last = response.canceled;
        let header = Some(face.header(at));
        let sent = messages
            .send(Ok(PbWatchResponse { header, ..response }))
            .await;
        if sent.is_err() || is_last {
            return;
        }
    }
}

fn event(event: StoreEvent) -> PbEvent {
    let at = number(event.revision);
    let is_delete = event.value.is_none();
    let is_new = event.previous.is_none();
    let previous = event.previous.map(|value| PbKeyValue {
        key: event.key.to_vec(),
        value: value.into(),
        version: 1,
        ..PbKeyValue::default()
    });
    PbEvent {
        // In etcd's enum of event types 1 is DELETE and 0 is PUT.
        r#type: i32::from(is_delete),
        kv: Some(PbKeyValue {
            key: event.key.into(),
            value: event.value.unwrap_or_default().into(),
            create_revision: if is_new && !is_delete { at } else { 0 },
            mod_revision: at,
            version: i64::from(!is_delete),
            lease: 0,
        }),
        prev_kv: previous,
    }
}
