//! The audit of what reconcilers do: each request is recorded as one of the user that it acts as, by
//! the policy for all requests.
//!
//! Its events have no addresses, because nobody has connected.

use crate::client::{OwnRequest, USER_AGENT};
use bytes::Bytes;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::status::ApiError;
use polyplane_audit::{
    Auditor, BODY_BYTES_MAX, Event, Head, Object, Outcome, PlaneName, Recorded, Sources, Stage,
};
use polyplane_auth::{Attributes, UserInfo};
use polyplane_registry::environment::random_uuid;
use polyplane_registry::{
    Annotations, Answer, AnswerBody, CheckedAccess, Outcome as Ended, Resource, Scope, Tenant, Verb,
};
use std::sync::Arc;
use std::time::SystemTime;

/// A request that is recorded.
pub(crate) struct Audited {
    auditor: Arc<Auditor>,
    event: Event,
    has_arrived: bool,
    /// What the registry says about the request.
    annotations: Arc<Annotations>,
}

impl Audited {
    /// Begins the audit of a request, if the policy wants one.
    pub(crate) fn begin(
        auditor: &Arc<Auditor>,
        tenant: &Tenant,
        request: &OwnRequest<'_>,
        user: &Arc<UserInfo>,
    ) -> Option<Self> {
        let verb = request.verb.name();
        let plan = auditor.plan(&Attributes {
            user,
            verb,
            subject: request.subject(),
        })?;
        let row = request.row;
        let is_namespace = row.group.is_empty() && row.name == "namespaces";
        let id = random_uuid().to_string();
        let head = Head {
            audit_id: &id,
            uri: &uri(request),
            verb,
            user,
            sources: Sources::default(),
            user_agent: USER_AGENT,
            object: Some(Object {
                group: &row.group,
                version: &row.version,
                resource: &row.name,
                subresource: request.subresource,
                // As upstream reads the path of a namespace.
                namespace: match is_namespace {
                    true => request.name,
                    false => request.namespace,
                },
                name: request.name,
            }),
            plane: PlaneName {
                name: &tenant.name,
                id: tenant.plane.id(),
            },
            received: SystemTime::now(),
        };
        let mut event = auditor.event(plan, head);
        if !request.body.is_null() {
            if request.verb == Verb::Create && request.name.is_empty() {
                event.created = request.body.str_at(&["metadata", "name"]).into();
            }
            if event.wants_request() {
                let is_object = request.subresource.is_empty()
                    && matches!(request.verb, Verb::Create | Verb::Update);
                let version = version_of(row);
                let kind = is_object.then_some((&*row.kind, version.as_str()));
                let length = json::to_vec(request.body).len();
                event.show_request(Some(request.body.clone()), length, kind);
            }
        }
        Some(Self {
            auditor: Arc::clone(auditor),
            event,
            has_arrived: false,
            annotations: Arc::default(),
        })
    }

    /// Records the arrival, if requests wait for that.
    ///
    /// # Errors
    /// Returns 500 if the arrival must be recorded and could not be.
    pub(crate) async fn arrive(&mut self) -> Result<(), ApiError> {
        if !self.auditor.waits() {
            return Ok(());
        }
        self.has_arrived = true;
        if !self.event.plan().records(Stage::RequestReceived) {
            return Ok(());
        }
        let arrived = self.auditor.record_arrival(&self.event).await;
        arrived.map_err(|error| ApiError::internal(error.to_string()))
    }

    /// Notes whether the user may make the request, and why.
    pub(crate) fn decided(&mut self, access: CheckedAccess, reason: String) {
        if let Some(allowed) = access.is_allowed() {
            self.event.decided(allowed, &reason);
        }
    }

    /// Returns where the registry says what it knows about the request.
    pub(crate) fn annotations(&self) -> Arc<Annotations> {
        Arc::clone(&self.annotations)
    }

    /// Records the end. A request whose plane has another owner now was not carried out, and is not
    /// recorded.
    pub(crate) fn end(mut self, answer: &Result<Answer, ApiError>) -> Recorded {
        for (key, value) in self.annotations.take() {
            self.event.annotate(key, &value);
        }
        match answer {
            Err(error) if error.is_moved() => return Recorded::default(),
            Err(error) => self.event.refuse(error),
            Ok(answer) => self.answered(answer),
        }
        let (plan, received) = (self.event.plan(), self.event.received());
        let event = Arc::new(self.event);
        let mut recorded = Recorded::default();
        for (stage, at) in [
            (Stage::RequestReceived, received),
            (Stage::ResponseComplete, SystemTime::now()),
        ] {
            let is_over = stage == Stage::RequestReceived && self.has_arrived;
            if plan.records(stage) && !is_over {
                recorded.and(self.auditor.record_whole(&event, stage, at));
            }
        }
        recorded
    }

    fn answered(&mut self, answer: &Answer) {
        self.event.outcome = Some(Outcome {
            code: match answer.outcome {
                Ended::Ok => 200,
                Ended::Created => 201,
                Ended::Accepted => 202,
                Ended::NoContent => 204,
            },
            status: Bytes::new(),
        });
        if !self.event.wants_response() {
            return;
        }
        let AnswerBody::Slices(slices) = &answer.body else {
            self.event.response_left_out = true;
            return;
        };
        let length = slices.iter().map(Bytes::len).sum();
        let parsed = (length <= BODY_BYTES_MAX)
            .then(|| json::parse(&slices.concat(), &Limits::default()).ok())
            .flatten();
        self.event
            .show_response(parsed.map(|parsed| parsed.value), length);
    }
}

/// Returns the version of a kind's objects.
fn version_of(row: &Resource) -> String {
    match row.group.as_str() {
        "" => row.version.to_string(),
        group => format!("{group}/{}", row.version),
    }
}

/// Returns the path and query by which a client would make the request.
fn uri(request: &OwnRequest<'_>) -> String {
    let row = request.row;
    let mut uri = match row.group.as_str() {
        "" => format!("/api/{}", row.version),
        group => format!("/apis/{group}/{}", row.version),
    };
    let mut add = |part: &str| {
        uri.push('/');
        uri.push_str(part);
    };
    if !request.namespace.is_empty() && row.scope == Scope::Namespaced {
        add("namespaces");
        add(request.namespace);
    }
    add(&row.name);
    for part in [request.name, request.subresource] {
        if !part.is_empty() {
            add(part);
        }
    }
    for (index, (name, value)) in request.query().iter().enumerate() {
        uri.push(if index == 0 { '?' } else { '&' });
        uri.push_str(name);
        uri.push('=');
        uri.push_str(value);
    }
    uri
}
