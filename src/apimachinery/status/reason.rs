//! Reasons and their status numbers: the only table of such numbers.

use crate::quote::quote;

/// The reason why a request failed, for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no reason.
    Unknown,
    /// The client is not authenticated.
    Unauthorized,
    /// The client may not do this.
    Forbidden,
    /// The object or resource does not exist.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The object has changed in the meantime, or a precondition failed.
    Conflict,
    /// The item is gone and no forwarding address is known.
    Gone,
    /// The object is invalid.
    Invalid,
    /// The server could not finish in time. The request had no effect and may succeed later.
    ServerTimeout,
    /// Stored data cannot be read.
    StoreReadError,
    /// The request ran out of time; it may have had an effect.
    Timeout,
    /// The client sends too many requests.
    TooManyRequests,
    /// The request is malformed.
    BadRequest,
    /// The resource does not know this verb.
    MethodNotAllowed,
    /// None of the media types that the client accepts can be served.
    NotAcceptable,
    /// The body is too large.
    RequestEntityTooLarge,
    /// The body's media type is not known.
    UnsupportedMediaType,
    /// An internal error.
    InternalError,
    /// The requested version is no longer kept.
    Expired,
    /// The server cannot serve at this time.
    ServiceUnavailable,
    /// Another replica owns the data by now, and nothing was changed here. The layers above send
    /// the request there; a client that gets this error nevertheless sees
    /// [`Reason::ServiceUnavailable`].
    Moved,
    /// The kind's definition has changed in the meantime, and nothing was changed here. The layers
    /// above process the request again; a client that gets this error nevertheless sees
    /// [`Reason::ServiceUnavailable`].
    KindChanged,
}

impl Reason {
    /// Returns the reason that clients see; empty for [`Reason::Unknown`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Invalid => "Invalid",
            Self::ServerTimeout => "ServerTimeout",
            Self::StoreReadError => "StorageReadError",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::BadRequest => "BadRequest",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::InternalError => "InternalError",
            Self::Expired => "Expired",
            Self::ServiceUnavailable | Self::Moved | Self::KindChanged => "ServiceUnavailable",
        }
    }

    /// Returns the status number of the reason.
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Gone | Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::Unknown | Self::ServerTimeout | Self::StoreReadError | Self::InternalError => 500,
            Self::ServiceUnavailable | Self::Moved | Self::KindChanged => 503,
            Self::Timeout => 504,
        }
    }
}

/// Returns the reason and the text for a bare status number.
pub(super) fn generic_words(code: u16, verb: &str, server_message: &str) -> (Reason, String) {
    let (reason, words) = match code {
        409 if verb == "POST" => (Reason::AlreadyExists, "the server reported a conflict"),
        409 => (Reason::Conflict, "the server reported a conflict"),
        404 => (
            Reason::NotFound,
            "the server could not find the requested resource",
        ),
        400 => (
            Reason::BadRequest,
            "the server rejected our request for an unknown reason",
        ),
        401 => (
            Reason::Unauthorized,
            "the server has asked for the client to provide credentials",
        ),
        403 => (Reason::Forbidden, server_message),
        406 if server_message.is_empty() || server_message == "unknown" => (
            Reason::NotAcceptable,
            "the server was unable to respond with a content type that the client supports",
        ),
        406 => (Reason::NotAcceptable, server_message),
        415 => (Reason::UnsupportedMediaType, server_message),
        405 => (
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        ),
        422 => (
            Reason::Invalid,
            "the server rejected our request due to an error in our request",
        ),
        503 => (
            Reason::ServiceUnavailable,
            "the server is currently unable to handle the request",
        ),
        504 => (
            Reason::Timeout,
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        429 => (
            Reason::TooManyRequests,
            "the server has received too many requests and has asked us to try again later",
        ),
        500.. => {
            let message = quote(server_message);
            let message = format!(
                "an error on the server ({message}) has prevented the request from succeeding"
            );
            return (Reason::InternalError, message);
        }
        _ => {
            let message = format!(
                "the server responded with the status code {code} but did not return more information"
            );
            return (Reason::Unknown, message);
        }
    };
    (reason, words.to_owned())
}
