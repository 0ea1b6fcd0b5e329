//! What an error of etcd's client means.
//!
//! etcd tells its errors apart by their text alone, next to a gRPC code that several share. This
//! file is the one place that looks at those texts; `tests/etcd.rs` meets each of them on a real
//! server.

use etcd_client::Error;

/// An error, by what can be done about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// Given before anything was proposed to the cluster: more operations than it takes.
    #[error("{0}")]
    TooManyOps(String),
    /// Given before anything was proposed: a request larger than the server takes.
    #[error("{0}")]
    TooLarge(String),
    /// Given before anything was proposed: the request makes no sense.
    #[error("{0}")]
    Malformed(String),
    /// The quota is used up. Of a transaction this does *not* say that it was not done: the one
    /// that crosses the quota is done and answered so, those after it are not done.
    #[error("{0}")]
    NoSpace(String),
    /// Decided by the cluster, nothing was done: a put names a lease that is not there.
    #[error("{0}")]
    NoLease(String),
    /// The revision asked for is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// The revision asked for is to come.
    #[error("the revision is to come")]
    Future,
    /// The reply is larger than the client takes.
    #[error("the reply is too large")]
    ReplyTooLarge,
    /// Given before anything was proposed: the token is not, or no longer, known.
    #[error("the token is not valid")]
    TokenInvalid,
    /// Decided by the cluster, nothing was done: the user may not do this.
    #[error("{0}")]
    Denied(String),
    /// The user or the password is wrong.
    #[error("{0}")]
    LoginWrong(String),
    /// A user was given, and the cluster has none.
    #[error("authentication is not enabled")]
    AuthOff,
    /// The member's data is damaged.
    #[error("{0}")]
    Corrupt(String),
    /// Everything else: the member, the connection or the cluster cannot answer. What was asked
    /// for may have been done or may still be done.
    #[error("{0}")]
    Unavailable(String),
}

/// Makes a fault out of a text.
type MakeFault = fn(String) -> Fault;

/// etcd's texts, without the prefix that some versions leave out.
const TEXTS: [(&str, MakeFault); 18] = [
    ("too many operations in txn request", Fault::TooManyOps),
    ("request is too large", Fault::TooLarge),
    ("duplicate key given in txn request", Fault::Malformed),
    ("key is not provided", Fault::Malformed),
    ("mvcc: database space exceeded", Fault::NoSpace),
    ("requested lease not found", Fault::NoLease),
    ("mvcc: required revision has been compacted", |_| {
        Fault::Compacted
    }),
    ("mvcc: required revision is a future revision", |_| {
        Fault::Future
    }),
    ("invalid auth token", |_| Fault::TokenInvalid),
    ("revision of auth store is old", |_| Fault::TokenInvalid),
    ("user name is empty", Fault::Denied),
    ("permission denied", Fault::Denied),
    (
        "authentication failed, invalid user ID or password",
        Fault::LoginWrong,
    ),
    ("authentication is not enabled", |_| Fault::AuthOff),
    ("corrupt cluster", Fault::Corrupt),
    // gRPC's own, by either side.
    ("decoded message length too large", |_| Fault::ReplyTooLarge),
    ("received message larger than max", Fault::TooLarge),
    ("trying to send message larger than max", Fault::Unavailable),
];

/// Classifies an error of the client.
pub(super) fn fault(error: &Error) -> Fault {
    match error {
        Error::GRpcStatus(status) => {
            let text = status.message();
            let known = TEXTS.iter().find(|(known, _)| text.contains(known));
            match known {
                Some((_, make)) => make(text.to_owned()),
                None => Fault::Unavailable(describe(error)),
            }
        }
        other => Fault::Unavailable(describe(other)),
    }
}

/// An error with its causes, on one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = match error {
        // Its own text is long and repeats headers.
        Error::GRpcStatus(status) => format!("{:?}: {}", status.code(), status.message()),
        other => other.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
