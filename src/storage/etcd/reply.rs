//! What an error of etcd's client means.
//!
//! etcd's errors differ only in their text, next to a gRPC code that several share. This
//! file is the one place that looks at those texts; `tests/etcd.rs` meets each of them on a real
//! server.

use etcd_client::Error;

/// An error, by what can be done about it. The texts are those of etcd or of the connection.
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
    /// Given before anything was proposed, and soon over: the member knows no leader, has more to
    /// do than it takes, or could not be connected to.
    #[error("{0}")]
    NotProposed(String),
    /// The quota is used up. Of a transaction this does *not* say that it was not done: the one
    /// that crosses the quota is done and answered so, those after it are not done.
    #[error("{0}")]
    NoSpace(String),
    /// Decided by the cluster, nothing was done: a put names a lease that is not there.
    #[error("{0}")]
    NoLease(String),
    /// The requested revision is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// The requested revision is in the future.
    #[error("the revision is in the future")]
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
    /// Everything else: the member, the connection or the cluster cannot answer. The request may have
    /// been carried out, or may still be.
    #[error("{0}")]
    Unavailable(String),
}

/// Makes a fault out of a text.
type MakeFault = fn(String) -> Fault;

/// etcd's texts, without the prefix that some versions leave out.
const TEXTS: [(&str, MakeFault); 21] = [
    ("too many operations in txn request", Fault::TooManyOps),
    ("request is too large", Fault::TooLarge),
    ("duplicate key given in txn request", Fault::Malformed),
    ("key is not provided", Fault::Malformed),
    // From the interceptor that requires a leader, which all calls request, before the call is handled.
    // "leader changed" and time-outs are different: they prove nothing.
    ("etcdserver: no leader", Fault::NotProposed),
    // By the proposer itself, before it proposes.
    ("etcdserver: too many requests", Fault::NotProposed),
    // From raft at the member that got the call: without a leader it neither keeps a proposal nor
    // forwards it. If a leader drops a forwarded proposal, there is no such error.
    ("raft proposal dropped", Fault::NotProposed),
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
                None if never_connected(status) => Fault::NotProposed(describe(error)),
                None => Fault::Unavailable(describe(error)),
            }
        }
        other => Fault::Unavailable(describe(other)),
    }
}

/// Whether a call failed because there was no connection to send it on.
fn never_connected(status: &tonic::Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Whether a call failed because TLS found no trust: a certificate that this side or the other one
/// refuses, or an endpoint that speaks no TLS. Nothing of that heals by waiting.
pub(super) fn is_untrusted(error: &Error) -> bool {
    let mut source = cause_of(error);
    while let Some(cause) = source {
        // An I/O error hides the error that it carries from the chain.
        let carried = cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            .and_then(|carried| carried.downcast_ref());
        let tls: Option<&rustls::Error> = cause.downcast_ref().or(carried);
        if let Some(tls) = tls {
            return matches!(
                tls,
                rustls::Error::InvalidCertificate(_)
                    | rustls::Error::AlertReceived(_)
                    | rustls::Error::InvalidMessage(_)
            );
        }
        source = cause.source();
    }
    false
}

/// The cause of an error. The client's own type does not return it for a status.
fn cause_of(error: &Error) -> Option<&(dyn std::error::Error + 'static)> {
    match error {
        Error::GRpcStatus(status) => std::error::Error::source(status),
        other => std::error::Error::source(other),
    }
}

/// An error with its causes, on one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = match error {
        // Its own text is long and repeats headers.
        Error::GRpcStatus(status) => format!("{:?}: {}", status.code(), status.message()),
        other => other.to_string(),
    };
    let mut source = cause_of(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::{ConnectError, Status};

    fn told(status: Status) -> Fault {
        fault(&Error::GRpcStatus(status))
    }

    #[test]
    fn only_what_proves_that_nothing_was_proposed_is_taken_for_it() {
        for text in [
            "etcdserver: no leader",
            "etcdserver: too many requests",
            "raft proposal dropped",
        ] {
            let fault = told(Status::unavailable(text));
            assert_eq!(fault, Fault::NotProposed(text.to_owned()));
        }
        for text in [
            "etcdserver: leader changed",
            "etcdserver: not leader",
            "etcdserver: server stopped",
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: request timed out, possibly due to connection lost",
            "transport is closing",
        ] {
            let fault = told(Status::unavailable(text));
            assert!(matches!(fault, Fault::Unavailable(_)), "{text}: {fault:?}");
        }
    }

    #[test]
    fn a_call_without_a_connection_was_not_sent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert!(matches!(told(status), Fault::NotProposed(_)));
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(reset));
        assert!(matches!(told(status), Fault::Unavailable(_)));
    }
}
