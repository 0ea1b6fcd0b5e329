//! The answer that is not an object: `Status`, and the errors that are returned as one.
//!
//! Owns upstream's error texts, reasons, causes and the only table from a reason to its status
//! number. Of HTTP it knows only that number.

mod reason;

use std::fmt;

use crate::field_error::{FieldError, aggregate};
use crate::json::write_string;
use crate::quote::quote;

pub use reason::Reason;

/// A resource or kind with its group, as messages name it: `pods`, `deployments.apps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Qualified<'a> {
    /// The group; empty for the legacy one.
    pub group: &'a str,
    /// The plural name of the resource, or the kind.
    pub name: &'a str,
}

impl<'a> Qualified<'a> {
    /// Creates the qualified name of `name` in `group`.
    pub const fn new(group: &'a str, name: &'a str) -> Self {
        Self { group, name }
    }

    fn is_empty(&self) -> bool {
        self.group.is_empty() && self.name.is_empty()
    }
}

impl fmt::Display for Qualified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// One cause in a failure's details.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The reason for machines, such as `FieldValueRequired`.
    pub reason: String,
    /// The text for people.
    pub message: String,
    /// The field that the cause is about.
    pub field: String,
}

impl From<&FieldError> for Cause {
    fn from(error: &FieldError) -> Self {
        Self {
            reason: error.kind.reason().into(),
            message: error.body(),
            field: error.field.clone(),
        }
    }
}

/// The object that a status is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The object's name.
    pub name: String,
    /// The group of the resource or kind.
    pub group: String,
    /// The resource or kind.
    pub kind: String,
    /// The object's uid.
    pub uid: String,
    /// The individual causes.
    pub causes: Vec<Cause>,
    /// Seconds after which the client may try again; 0 is not written.
    pub retry_after_seconds: u32,
}

impl Details {
    fn of(what: Qualified<'_>, name: &str) -> Self {
        Self {
            name: name.into(),
            group: what.group.into(),
            kind: what.name.into(),
            ..Self::default()
        }
    }
}

/// A failure that is returned to a client as a `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The reason for machines.
    pub reason: Reason,
    /// The status number: that of the reason, unless upstream uses another one in this case.
    pub code: u16,
    /// The text for people.
    pub message: String,
    /// The object that the failure is about. Boxed, because errors are in every `Result` and should
    /// be small.
    pub details: Option<Box<Details>>,
    /// The token with which an expired list can be continued, as `metadata.continue`.
    pub continue_token: Option<Box<str>>,
    /// Warnings that are sent to the client with the failure, as headers.
    pub warnings: Vec<String>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    /// Creates a failure without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            code: reason.code(),
            message: message.into(),
            details: None,
            continue_token: None,
            warnings: Vec::new(),
        }
    }

    /// Returns the same failure with these details.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Returns the same failure with one more cause.
    #[must_use]
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// Returns the same failure with the number of seconds after which a client may try again.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Returns the same failure with the token with which a list can be continued.
    #[must_use]
    pub fn with_continue(mut self, token: &str) -> Self {
        self.continue_token = Some(token.into());
        self
    }

    /// Returns the seconds after which the client may try again; `None` if there is no such number.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.details
            .as_ref()
            .map(|details| details.retry_after_seconds)
            .filter(|seconds| *seconds > 0)
    }

    /// Reports that the object does not exist.
    pub fn not_found(what: Qualified<'_>, name: &str) -> Self {
        let message = format!("{what} {} not found", quote(name));
        Self::new(Reason::NotFound, message).with_details(Details::of(what, name))
    }

    /// Reports that the name is taken.
    pub fn already_exists(what: Qualified<'_>, name: &str) -> Self {
        let message = format!("{what} {} already exists", quote(name));
        Self::new(Reason::AlreadyExists, message).with_details(Details::of(what, name))
    }

    /// Reports that every generated name was taken.
    pub fn generate_name_conflict(
        what: Qualified<'_>,
        name: &str,
        retry_after_seconds: u32,
    ) -> Self {
        let message = format!(
            "{what} {} already exists, the server was not able to generate a unique name for the object",
            quote(name)
        );
        Self::new(Reason::AlreadyExists, message)
            .with_details(Details::of(what, name))
            .with_retry_after(retry_after_seconds)
    }

    /// Reports that the client is not authenticated. An empty reason becomes `not authorized`.
    pub fn unauthorized(reason: &str) -> Self {
        Self::new(
            Reason::Unauthorized,
            if reason.is_empty() {
                "not authorized"
            } else {
                reason
            },
        )
    }

    /// Reports that the client may not do this.
    pub fn forbidden(what: Qualified<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = if what.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {} is forbidden: {why}", quote(name))
        };
        Self::new(Reason::Forbidden, message).with_details(Details::of(what, name))
    }

    /// Reports that the object has changed in the meantime, or that a precondition failed.
    pub fn conflict(what: Qualified<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {what} {}: {why}",
            quote(name)
        );
        Self::new(Reason::Conflict, message).with_details(Details::of(what, name))
    }

    /// Reports that other managers own fields which a server-side apply would change.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        Self::new(Reason::Conflict, message).with_details(Details {
            causes,
            ..Details::default()
        })
    }

    /// Reports that the requested data is gone for good.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(Reason::Gone, message)
    }

    /// Reports that the requested version is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// Reports that the object is invalid; `kind` is a kind, not a resource.
    pub fn invalid(kind: Qualified<'_>, name: &str, errors: &[FieldError]) -> Self {
        let mut message = format!("{kind} {} is invalid", quote(name));
        if let Some(texts) = aggregate(errors) {
            message.push_str(": ");
            message.push_str(&texts);
        }
        let mut details = Details::of(kind, name);
        details.causes = errors.iter().map(Cause::from).collect();
        Self::new(Reason::Invalid, message).with_details(details)
    }

    /// Reports that the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// Reports, with this text, that the client sends too many requests.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(Reason::TooManyRequests, message).with_details(Details {
            retry_after_seconds,
            ..Details::default()
        })
    }

    /// Reports that the server cannot serve at this time.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(Reason::ServiceUnavailable, message)
    }

    /// Reports that another replica owns the data by now. This promises that nothing of the request
    /// was carried out here, so the request may be repeated there.
    pub fn moved() -> Self {
        Self::new(
            Reason::Moved,
            "the control plane moved to another server while the request waited",
        )
        .with_retry_after(1)
    }

    /// Returns whether the request may be repeated at another owner.
    pub fn is_moved(&self) -> bool {
        self.reason == Reason::Moved
    }

    /// Reports that the kind's definition changed while the request was processed. This promises
    /// that nothing of the request was carried out, so it is processed again under the new
    /// definition.
    pub fn kind_changed() -> Self {
        Self::new(
            Reason::KindChanged,
            "the definition of the kind changed while the request waited",
        )
        .with_retry_after(1)
    }

    /// Returns whether the request must be processed again under a new definition of its kind.
    pub fn is_kind_changed(&self) -> bool {
        self.reason == Reason::KindChanged
    }

    /// Reports that the resource does not know this verb.
    pub fn method_not_supported(what: Qualified<'_>, action: &str) -> Self {
        let message = format!(
            "{action} is not supported on resources of kind {}",
            quote(&what.to_string())
        );
        Self::new(Reason::MethodNotAllowed, message).with_details(Details::of(what, ""))
    }

    /// Reports that the operation could not be finished and had no effect.
    pub fn server_timeout(what: Qualified<'_>, operation: &str, retry_after_seconds: u32) -> Self {
        let message = format!(
            "The {operation} operation against {what} could not be completed at this time, please try again."
        );
        Self::new(Reason::ServerTimeout, message)
            .with_details(Details::of(what, operation))
            .with_retry_after(retry_after_seconds)
    }

    /// Reports an internal error.
    pub fn internal(error: impl fmt::Display) -> Self {
        let cause = Cause {
            message: error.to_string(),
            ..Cause::default()
        };
        Self::new(
            Reason::InternalError,
            format!("Internal error occurred: {error}"),
        )
        .with_cause(cause)
    }

    /// Reports that the request ran out of time.
    pub fn timeout(message: impl fmt::Display, retry_after_seconds: u32) -> Self {
        Self::new(Reason::Timeout, format!("Timeout: {message}")).with_details(Details {
            retry_after_seconds,
            ..Details::default()
        })
    }

    /// Reports that the requested version is newer than any existing one.
    pub fn too_large_resource_version(asked: u64, current: u64, retry_after_seconds: u32) -> Self {
        const CAUSE: &str = "Too large resource version";
        Self::timeout(
            format_args!("{CAUSE}: {asked}, current: {current}"),
            retry_after_seconds,
        )
        .with_cause(Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: CAUSE.into(),
            field: String::new(),
        })
    }

    /// Reports that the body is too large.
    pub fn request_entity_too_large(message: impl fmt::Display) -> Self {
        Self::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: {message}"),
        )
    }

    /// Reports that none of the media types that the client accepts can be served, and lists those
    /// that can.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            accepted.join(", ")
        );
        Self::new(Reason::NotAcceptable, message)
    }

    /// Reports that the body's media type is not known, and lists the known ones.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(Reason::UnsupportedMediaType, message)
    }

    /// Reports that the client accepts none of these media types, compared as text.
    pub fn not_produced(produced: &[&str]) -> Self {
        let message = format!(
            "406: Not Acceptable\n\nAvailable representations: {}",
            produced.join(", ")
        );
        Self::new(Reason::NotAcceptable, message).with_details(Details::default())
    }

    /// Reports that the body's media type is not among those that the path accepts, compared as
    /// text.
    pub fn not_consumed() -> Self {
        Self::new(Reason::UnsupportedMediaType, "415: Unsupported Media Type")
            .with_details(Details::default())
    }

    /// Returns the same failure with warnings for the client.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// Returns the failure if only a status number is known, as for an unknown path.
    pub fn generic(
        code: u16,
        verb: &str,
        what: Qualified<'_>,
        name: &str,
        server_message: &str,
    ) -> Self {
        let (reason, mut message) = reason::generic_words(code, verb, server_message);
        if !what.is_empty() {
            let verb = verb.to_lowercase();
            message.push_str(&if name.is_empty() {
                format!(" ({verb} {what})")
            } else {
                format!(" ({verb} {what} {name})")
            });
        }
        let mut error = Self::new(reason, message).with_details(Details::of(what, name));
        error.code = code;
        error
    }

    /// Returns [`ApiError::generic`] with the server's text as a cause.
    pub fn unexpected_response(
        code: u16,
        verb: &str,
        what: Qualified<'_>,
        name: &str,
        server_message: &str,
    ) -> Self {
        Self::generic(code, verb, what, name, server_message).with_cause(Cause {
            reason: "UnexpectedServerResponse".into(),
            message: server_message.into(),
            field: String::new(),
        })
    }

    /// Appends the `Status` object as JSON, without a final newline.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_head(self.continue_token.as_deref(), "Failure", out);
        member("message", &self.message, out);
        member("reason", self.reason.as_str(), out);
        if let Some(details) = &self.details {
            out.extend_from_slice(b",\"details\":");
            details.write(out);
        }
        write_tail(self.code, out);
    }

    /// Returns the `Status` object as JSON, without a final newline.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        self.write(&mut out);
        out
    }
}

/// A `Status` that reports success, such as that of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Success {
    /// The object of the operation.
    pub details: Option<Details>,
    /// The status number to write; `None` writes none, as for deletions.
    pub code: Option<u16>,
}

impl Success {
    /// Returns the answer to a deletion that left nothing to show.
    pub fn deleted(what: Qualified<'_>, name: &str, uid: &str) -> Self {
        let details = Details {
            uid: uid.into(),
            ..Details::of(what, name)
        };
        Self {
            details: Some(details),
            code: None,
        }
    }

    /// Appends the `Status` object as JSON, without a final newline.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_head(None, "Success", out);
        if let Some(details) = &self.details {
            out.extend_from_slice(b",\"details\":");
            details.write(out);
        }
        write_tail(self.code.unwrap_or(0), out);
    }
}

impl Details {
    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(b'{');
        member("name", &self.name, out);
        member("group", &self.group, out);
        member("kind", &self.kind, out);
        member("uid", &self.uid, out);
        if !self.causes.is_empty() {
            out.extend_from_slice(b",\"causes\":[");
            for (index, cause) in self.causes.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                cause.write(out);
            }
            out.push(b']');
        }
        if self.retry_after_seconds > 0 {
            out.extend_from_slice(
                format!(",\"retryAfterSeconds\":{}", self.retry_after_seconds).as_bytes(),
            );
        }
        close(start, out);
    }
}

impl Cause {
    fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(b'{');
        member("reason", &self.reason, out);
        member("message", &self.message, out);
        member("field", &self.field, out);
        close(start, out);
    }
}

fn write_head(continue_token: Option<&str>, status: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"kind":"Status","apiVersion":"v1","metadata":{"#);
    if let Some(token) = continue_token {
        out.extend_from_slice(br#""continue":"#);
        write_string(token, out);
    }
    out.push(b'}');
    member("status", status, out);
}

fn write_tail(code: u16, out: &mut Vec<u8>) {
    if code != 0 {
        out.extend_from_slice(format!(",\"code\":{code}").as_bytes());
    }
    out.push(b'}');
}

/// Appends a text member with a comma before it; an empty text is left out.
fn member(key: &str, text: &str, out: &mut Vec<u8>) {
    if !text.is_empty() {
        out.push(b',');
        write_string(key, out);
        out.push(b':');
        write_string(text, out);
    }
}

/// Closes the object that begins at `start`, dropping the comma before its first member.
fn close(start: usize, out: &mut Vec<u8>) {
    if out.get(start + 1) == Some(&b',') {
        out.remove(start + 1);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests;
