//! The meaning of the errors of etcd's client.
//!
//! etcd's errors differ only in their text, next to a gRPC code that several share. Only this file
//! reads these texts; `tests/etcd.rs` provokes each of them on a real server.

use etcd_client::Error;

/// An error, classified by what the caller can do about it. The texts are those of etcd or of the
/// connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// Returned before anything was proposed to the cluster: more operations than it accepts.
    #[error("{0}")]
    TooManyOps(String),
    /// Returned before anything was proposed: a request larger than the server accepts.
    #[error("{0}")]
    TooLarge(String),
    /// Returned before anything was proposed: the request is malformed.
    #[error("{0}")]
    Malformed(String),
    /// Returned before anything was proposed, and soon over: the member knows no leader, is
    /// overloaded, or could not be connected to.
    #[error("{0}")]
    NotProposed(String),
    /// The quota is used up. For a transaction this does *not* mean that it was not applied: the
    /// one that exceeds the quota is applied and gets this reply, those after it are not applied.
    #[error("{0}")]
    NoSpace(String),
    /// Decided by the cluster, nothing was applied: a put names a lease that does not exist.
    #[error("{0}")]
    NoLease(String),
    /// The requested revision is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// The requested revision is in the future.
    #[error("the revision is in the future")]
    Future,
    /// The reply is larger than the client accepts.
    #[error("the reply is too large")]
    ReplyTooLarge,
    /// Returned before anything was proposed: the token is not known, or no longer.
    #[error("the token is not valid")]
    TokenInvalid,
    /// Decided by the cluster, nothing was applied: the user may not do this.
    #[error("{0}")]
    Denied(String),
    /// The user or the password is wrong.
    #[error("{0}")]
    LoginWrong(String),
    /// The options have a user, but the cluster has no users.
    #[error("authentication is not enabled")]
    AuthOff,
    /// The member's data is damaged.
    #[error("{0}")]
    Corrupt(String),
    /// Any other error: the member, the connection or the cluster cannot answer. The request may
    /// have been carried out, or may still be.
    #[error("{0}")]
    Unavailable(String),
}

/// Creates a fault from a text.
type MakeFault = fn(String) -> Fault;

/// The texts of etcd's errors, without the prefix that some versions leave out.
const TEXTS: [(&str, MakeFault); 21] = [
    ("too many operations in txn request", Fault::TooManyOps),
    ("request is too large", Fault::TooLarge),
    ("duplicate key given in txn request", Fault::Malformed),
    ("key is not provided", Fault::Malformed),
    // Returned by the interceptor that requires a leader, before the call is handled; all calls
    // request that. "leader changed" and time-outs are different: they prove nothing.
    ("etcdserver: no leader", Fault::NotProposed),
    // Returned by the proposer itself, before it proposes.
    ("etcdserver: too many requests", Fault::NotProposed),
    // Returned by raft at the member that got the call: without a leader it neither keeps a
    // proposal nor forwards it. If a leader drops a forwarded proposal, this error does not occur.
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
    // gRPC's own error, on either side.
    ("decoded message length too large", |_| Fault::ReplyTooLarge),
    ("received message larger than max", Fault::TooLarge),
    ("trying to send message larger than max", Fault::Unavailable),
];

/// Returns the fault with etcd's text; `None` if the text is not one of etcd's.
fn known(text: &str) -> Option<Fault> {
    let (_, make) = TEXTS.iter().find(|(known, _)| text.contains(known))?;
    Some(make(text.to_owned()))
}

/// Classifies an error of the client.
pub(super) fn fault(error: &Error) -> Fault {
    match error {
        Error::GRpcStatus(status) => match known(status.message()) {
            Some(fault) => fault,
            None if never_connected(status) => Fault::NotProposed(describe(error)),
            None => Fault::Unavailable(describe(error)),
        },
        other => Fault::Unavailable(describe(other)),
    }
}

/// Classifies the reason with which etcd canceled a watch.
pub(super) fn canceled(why: &str) -> Fault {
    match known(why) {
        Some(fault @ (Fault::TokenInvalid | Fault::Denied(_))) => fault,
        _ => Fault::Unavailable(format!("the watch was canceled: {why}")),
    }
}

/// Returns whether a call failed because there was no connection to send it on.
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

/// Returns whether a call failed because of TLS: one side refuses the other's certificate, or the
/// endpoint does not speak TLS. Waiting does not help then.
pub(super) fn is_untrusted(error: &Error) -> bool {
    let mut source = cause_of(error);
    while let Some(cause) = source {
        // An I/O error hides the error inside it from the chain of sources.
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

/// Returns the cause of an error. The client's own type does not return it for a status.
fn cause_of(error: &Error) -> Option<&(dyn std::error::Error + 'static)> {
    match error {
        Error::GRpcStatus(status) => std::error::Error::source(status),
        other => std::error::Error::source(other),
    }
}

/// Returns an error with its causes, on one line.
pub(super) fn describe(error: &Error) -> String {
    let text = match error {
        // The error's own text is long and repeats headers.
        Error::GRpcStatus(status) => format!("{:?}: {}", status.code(), status.message()),
        other => other.to_string(),
    };
    with_causes(text, cause_of(error))
}

/// Returns the text of an error, and behind it those of its causes that it does not show.
pub(super) fn with_causes(
    mut text: String,
    mut source: Option<&(dyn std::error::Error + 'static)>,
) -> String {
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

    fn fault_of(status: Status) -> Fault {
        fault(&Error::GRpcStatus(status))
    }

    #[test]
    fn only_what_proves_that_nothing_was_proposed_is_taken_for_it() {
        for text in [
            "etcdserver: no leader",
            "etcdserver: too many requests",
            "raft proposal dropped",
        ] {
            let fault = fault_of(Status::unavailable(text));
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
            let fault = fault_of(Status::unavailable(text));
            assert!(matches!(fault, Fault::Unavailable(_)), "{text}: {fault:?}");
        }
    }

    #[test]
    fn a_watch_canceled_for_its_token_is_told_from_others() {
        for why in [
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old",
        ] {
            assert_eq!(canceled(why), Fault::TokenInvalid, "{why}");
        }
        for why in [
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
            "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
        ] {
            assert_eq!(canceled(why), Fault::Denied(why.to_owned()));
        }
        for why in ["", "etcdserver: no leader"] {
            assert!(matches!(canceled(why), Fault::Unavailable(_)), "{why}");
        }
    }

    #[test]
    fn a_call_without_a_connection_was_not_sent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert!(matches!(fault_of(status), Fault::NotProposed(_)));
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(reset));
        assert!(matches!(fault_of(status), Fault::Unavailable(_)));
    }
}
