//! The body of an authorized watch, and how the watch is opened again at another replica.

use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::schema::proto;
use polyplane_registry::{Verb, WatchStream};

use crate::answer::body::{ResponseBody, Watch};
use crate::answer::respond::{Refusal, Reply};
use crate::backend::PlaneRecord;
use crate::peer::channel::stream::PeerStream;
use crate::peer::forward::moved_to;
use crate::peer::headers::{MOVED, MovedTo, SENT_UP_TO};
use crate::peer::pool::Link;
use crate::pipeline::{self, Pipeline, ResumedWatch};
use crate::request::caller::{Caller, Origin};
use crate::request::request_info::RequestInfo;
use crate::server_state::ServerState;
use crate::watch::kept_head::{Keeping, KeptHead, kept_head};
use crate::watch::open_watches::OpenWatchEntry;
use crate::watch::record::{WatchForm, WatchWriter};
use crate::watch::relay::{Relay, RemoteWatch, Reopen, Reopened, Source, WatchReader};
use crate::watch::watch_query;

/// Longest `Status` that is sent as the last event of a watch, in bytes. A longer one ends the
/// watch without an event.
const STATUS_BYTES_MAX: usize = 64 * 1024;

impl Pipeline<'_> {
    pub(crate) fn is_watch(&self) -> bool {
        match self.info {
            RequestInfo::Resource(info) => info.verb == Some(Verb::Watch),
            RequestInfo::Path(_) => false,
        }
    }

    /// Returns the form in which this replica sends its own watch.
    pub(crate) fn watch_form(&self) -> WatchForm {
        match self.caller.origin {
            Origin::Client => WatchForm::Lines,
            Origin::Peer { watch_form, .. } => watch_form,
        }
    }

    /// Returns the body of a watch that this replica answers.
    pub(crate) fn watch(
        &mut self,
        record: &Arc<dyn PlaneRecord>,
        stream: WatchStream,
        content_type: HeaderValue,
    ) -> ResponseBody {
        let (connection, headers) = (&self.caller.connection, &self.parts.headers);
        let entry = OpenWatchEntry::open(self.state, &**record, connection, headers);
        let events = WatchWriter::new(stream, self.watch_form());
        let ending = entry.ending();
        let watch = Watch::new(events, ending, self.gauge(entry));
        if !self.is_direct() {
            let (state, record) = (Arc::clone(self.state), Arc::clone(record));
            let moved_trailers = move |sent_up_to: Option<u64>| {
                let mut trailers = HeaderMap::new();
                trailers.insert(MOVED, moved_to(&state, &*record).to_value());
                if let Some(sent_up_to) = sent_up_to {
                    trailers.insert(SENT_UP_TO, HeaderValue::from(sent_up_to));
                }
                trailers
            };
            return ResponseBody::watch_of_peer(watch, Box::new(moved_trailers));
        }
        if self.state.peers.is_none() {
            return ResponseBody::watch(watch);
        }
        let source = Source::Here(Box::new(watch));
        let ending = self.state.drain.ending().clone().cancelled_owned();
        let session = self.session(record.id(), Some(content_type));
        ResponseBody::relay(Relay::new(source, session, ending))
    }

    /// Returns the body of a watch that another replica answers.
    pub(crate) fn relayed(
        &self,
        record: &dyn PlaneRecord,
        (stream, link): (PeerStream, &Link),
        reader: WatchReader,
        content_type: Option<HeaderValue>,
    ) -> ResponseBody {
        let there = RemoteWatch {
            kept: stream.kept(),
            stream,
            gone: Box::pin(link.gone().clone().cancelled_owned()),
            reader,
            _seat: self.state.metrics.forwarded_watches.take(),
        };
        let ending = self.state.drain.ending().clone().cancelled_owned();
        let source = Source::There(Box::new(there));
        let session = self.session(record.id(), content_type);
        ResponseBody::relay(Relay::new(source, session, ending))
    }

    fn session(&self, plane: &str, content_type: Option<HeaderValue>) -> Box<Session> {
        let single = self.state.single.as_ref();
        let keeping = match single.is_some_and(|single| single.front_proxy.is_some()) {
            true => Keeping::All,
            false => Keeping::Needed,
        };
        Box::new(Session {
            state: Arc::clone(self.state),
            caller: Arc::clone(self.caller),
            plane: plane.into(),
            head: kept_head(self.parts, self.audit_id, keeping),
            opened: self.started,
            content_type,
        })
    }
}

/// A client's watch, with everything that is needed to open it again.
struct Session {
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    /// The id of the plane, because its name may mean another one by the time the watch is resumed.
    plane: Str,
    /// What is needed of the head of its request; `None` if that is too long to be kept.
    head: Option<KeptHead>,
    opened: Instant,
    /// The media type of the stream that the client has got so far.
    content_type: Option<HeaderValue>,
}

impl Reopen for Session {
    fn reopen(
        &self,
        sent_up_to: u64,
        hint: Option<MovedTo>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Reopened> + Send>> {
        let Some(KeptHead { parts, audit_id }) = &self.head else {
            return Box::pin(std::future::ready(Reopened::Over));
        };
        let query = watch_query::rest(parts.uri.query(), sent_up_to, self.opened.elapsed());
        let target = format!("{}?{query}", parts.uri.path());
        let mut parts = parts.clone();
        let Ok(uri) = Uri::try_from(target) else {
            return Box::pin(std::future::ready(Reopened::Over));
        };
        parts.uri = uri;
        let (state, caller) = (Arc::clone(&self.state), Arc::clone(&self.caller));
        let content_type = self.content_type.clone();
        let in_protobuf = content_type.as_ref().is_some_and(is_protobuf);
        let resumed = ResumedWatch {
            parts,
            plane: self.plane.clone(),
            audit_id: audit_id.clone(),
        };
        Box::pin(async move {
            let counters = Arc::clone(&state);
            match pipeline::reopen(state, caller, resumed, hint).await {
                Ok(reply) => {
                    let reopened = reopened(reply, content_type.as_ref()).await;
                    if matches!(reopened, Reopened::Source(_)) {
                        ServerState::count(&counters.metrics.forwarding.resumed);
                    }
                    reopened
                }
                Err(Refusal::Status(error)) if error.code == 410 => {
                    let json = error.to_json();
                    let status = match counters.schemas.proto_of_json(&json) {
                        Some(status) if in_protobuf => status,
                        _ => json,
                    };
                    Reopened::Last(error_frame(&status))
                }
                Err(refusal) => {
                    tracing::debug!(?refusal, "a watch could not be resumed");
                    Reopened::Over
                }
            }
        })
    }
}

/// Decides what the reply to a resumed watch means for the stream that has begun.
async fn reopened(reply: Reply, content_type: Option<&HeaderValue>) -> Reopened {
    let status = reply.status();
    if status == StatusCode::OK && reply.headers().get(CONTENT_TYPE) != content_type {
        // Another release answers in another form, so the client has to begin anew.
        return Reopened::Over;
    }
    let body = reply.into_body();
    match status {
        StatusCode::OK => body.into_source().map_or(Reopened::Over, Reopened::Source),
        StatusCode::GONE => match Limited::new(body, STATUS_BYTES_MAX).collect().await {
            Ok(status) => Reopened::Last(error_frame(&status.to_bytes())),
            Err(_) => Reopened::Over,
        },
        _ => Reopened::Over,
    }
}

/// Returns true if a stream of this type has protobuf in it.
pub(crate) fn is_protobuf(content_type: &HeaderValue) -> bool {
    content_type
        .as_bytes()
        .starts_with(proto::MEDIA_TYPE.as_bytes())
}

/// Returns the last event of a watch, with a Status in the form of the watch.
fn error_frame(status: &[u8]) -> Bytes {
    if proto::is_enveloped(status) {
        return proto::watch_frame("ERROR", status).into();
    }
    let mut frame = BytesMut::with_capacity(status.len() + 32);
    frame.put_slice(b"{\"type\":\"ERROR\",\"object\":");
    frame.put_slice(status.trim_ascii_end());
    frame.put_slice(b"}\n");
    frame.freeze()
}
