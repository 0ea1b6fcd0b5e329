//! Makes the registry's request from an authorized one.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use polyplane_registry::request::parameters::WATCH;
use polyplane_registry::{ResourceRequest, Seats, Verb};

use crate::pipeline::Pipeline;
use crate::request::audited::Audited;
use crate::request::authorize::Authorized;
use crate::request::flow::BothSeats;
use crate::request::request_info::ResourceInfo;

impl Pipeline<'_> {
    pub(crate) fn resource_request(
        &self,
        info: &ResourceInfo<'_>,
        verb: Verb,
        authorized: Authorized,
        body: Bytes,
        deadline: tokio::time::Instant,
    ) -> ResourceRequest {
        let (user, granted) = authorized.into_parts();
        let present = |text: &str| (!text.is_empty()).then(|| text.into());
        let mut query = self.query.to_vec();
        if info.verb_in_path.is_some() && WATCH.read(&query).is_none() && self.is_direct() {
            // Upstream checks the options of a legacy path as those of a list, unless the query says
            // that it is a watch. A peer says which, if it is not of an older release.
            query.push((WATCH.row().name.to_owned(), "false".to_owned()));
        }
        let namespace = if info.resource == "namespaces" && info.group.is_empty() {
            ""
        } else {
            info.namespace
        };
        ResourceRequest {
            verb,
            group: info.group.into(),
            version: info.version.into(),
            resource: info.resource.into(),
            namespace: present(namespace),
            name: present(info.name),
            subresource: present(info.subresource),
            query,
            accept: self.client.accept.to_owned(),
            content_type: header(&self.parts.headers, CONTENT_TYPE),
            user_agent: self.client.user_agent.to_owned(),
            body,
            user,
            granted,
            deadline,
            seats: self.registry_seats(),
            write_rate: None,
            annotations: self.audited.as_ref().map(Audited::annotations),
            token_reviewer: None,
        }
    }
}

impl Pipeline<'_> {
    /// Returns the seats that the request returns while it waits for others.
    fn registry_seats(&self) -> Option<Arc<dyn Seats>> {
        let outer = Arc::clone(self.seats()?);
        Some(match &self.flow.seat {
            Some(flow) => Arc::new(BothSeats {
                outer,
                flow: Arc::clone(flow),
            }),
            None => outer,
        })
    }
}

fn header(headers: &HeaderMap, name: http::HeaderName) -> Option<String> {
    headers
        .get(name)
        .and_then(|value: &HeaderValue| value.to_str().ok())
        .map(str::to_owned)
}
