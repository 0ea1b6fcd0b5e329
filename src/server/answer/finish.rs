//! Finishes a reply after the stage that made it: counts it and adds the headers that all replies
//! have.

use std::time::{Duration, Instant};

use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, StatusCode};

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Reply, add_common_headers};
use crate::operations::access_metrics::AccessOutcome;
use crate::operations::metrics::Labels;
use crate::peer::forward::{Forwarded, OwnerCounts};
use crate::server_state::ServerState;

/// Counts a request that this replica answered. A request that another replica answered, or will
/// answer, is counted there, so that the sum over all replicas counts each request once.
pub(crate) fn count(
    state: &ServerState,
    (labels, access): (Labels<'_>, &AccessOutcome),
    (started, queued): (Instant, Duration),
    reply: &Reply,
) {
    let extensions = reply.extensions();
    if extensions.get::<Forwarded>().is_some() || extensions.get::<OwnerCounts>().is_some() {
        let took = started.elapsed().as_secs_f64();
        state.metrics.forwarding.took.observe(took);
        return;
    }
    if reply.status() == StatusCode::MISDIRECTED_REQUEST {
        return;
    }
    state.metrics.access.count(access);
    let bytes = http_body::Body::size_hint(reply.body()).exact();
    let status = reply.status().as_u16();
    state
        .metrics
        .request(labels, status, (started.elapsed(), queued), bytes);
}

/// Adds the headers that every reply of this replica has. A reply that another replica made has
/// them already.
pub(crate) fn finish(method: &Method, audit_id: HeaderValue, mut reply: Reply) -> Reply {
    if reply.extensions_mut().remove::<Forwarded>().is_some() {
        // The owner has sent none, and a watch that has ended there would be opened again.
        if *method == Method::HEAD {
            *reply.body_mut() = ResponseBody::empty();
        }
        return reply;
    }
    if *method == Method::HEAD {
        reply = without_body(reply);
    }
    add_common_headers(&mut reply, audit_id);
    reply
}

/// Removes the body of a reply to `HEAD`, which is otherwise the reply to `GET`.
fn without_body(mut reply: Reply) -> Reply {
    if let Some(length) = http_body::Body::size_hint(reply.body()).exact() {
        reply
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    *reply.body_mut() = ResponseBody::empty();
    reply
}
