//! The errors of a store: one enum per kind of call, with variants by what the caller can do.
//!
//! The texts in them are reasons for people, as etcd, sled or the system words them. Callers show
//! and log these texts, but decide by the variant alone.

use std::path::PathBuf;

use crate::store::{KeyValue, Revision};

/// The reason why a transaction was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Final: these compares, by index into [`crate::Txn::compares`], did not hold. Nothing was
    /// applied and nothing will be.
    #[error("compares {failed:?} did not hold")]
    Refused {
        /// Indexes of all compares that did not hold, ascending, at least one.
        failed: Vec<usize>,
        /// The newest revision at which the compares were tested.
        at: Revision,
        /// The value of each compared key at that revision, by index into [`crate::Txn::compares`];
        /// `None` for an absent key. This saves the caller a read.
        found: Vec<Option<KeyValue>>,
    },
    /// Final: nothing was applied and nothing will be.
    #[error("the transaction was rejected")]
    Rejected(#[source] Rejection),
    /// Final, but the reply does not say whether the transaction was applied before this rejection.
    /// It will not be applied any more, so a linearizable read settles which. The revision is one that
    /// the store had before, from which its history is enough for that.
    #[error("the reply does not say whether the transaction was applied")]
    Undisclosed(#[source] Rejection, Revision),
    /// The transaction may have been applied, may still be, or may never be. Only a later write
    /// that compares can settle which.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// The reason why a store refused a transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The disk or the quota is full.
    #[error("no space: {0}")]
    NoSpace(String),
    /// A key, a value or the whole transaction is larger than [`crate::Limits`] allow.
    #[error("too large: {0}")]
    TooLarge(String),
    /// There are more operations or compares than [`crate::Limits`] allow.
    #[error("too many operations: {0}")]
    TooManyOps(String),
    /// Two operations have the same key, or one has an empty key. The caller must not send this.
    #[error("malformed transaction: {0}")]
    Malformed(String),
    /// An operation names a lease that the store does not have.
    #[error("no such lease: {0}")]
    NoLease(String),
    /// Data that the transaction would have to read is damaged.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// The store accepts no writes for now; [`crate::Store::health`] has the reason.
    #[error("read only: {0}")]
    ReadOnly(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// The reason why a read has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The requested revision is older than those that the store keeps, or than what one history may have.
    #[error("revisions below {floor} are compacted")]
    Compacted {
        /// The oldest revision that can still be read.
        floor: Revision,
    },
    /// The requested revision has not been committed yet.
    #[error("the revision is in the future: the newest is {head}")]
    Future {
        /// The newest revision.
        head: Revision,
    },
    /// The store cannot answer now; trying again later is safe.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The requested data are damaged on disk.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// The reason why a lease could not be granted, kept or revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease expired, was revoked or never existed. The keys attached to it are deleted or
    /// about to be.
    #[error("no such lease")]
    NotFound,
    /// The store cannot answer now.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// The reason why a store could not be opened. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the folder open.
    #[error(
        "the store folder {} is in use by {}; stop it or give another folder",
        path.display(), holder(*pid)
    )]
    Locked {
        /// The path of the folder.
        path: PathBuf,
        /// The process that has it open, if it could be read.
        pid: Option<u32>,
    },
    /// A newer program wrote the folder.
    #[error(
        "the store has format {found}, this program reads up to {supported}; use the newer program that wrote it"
    )]
    Newer {
        /// The format on disk.
        found: u32,
        /// The newest format that this program reads.
        supported: u32,
    },
    /// Another engine created the folder.
    #[error(
        "the store at {} was created by the engine {found} and cannot be opened as {used}; use {found}, or give another folder",
        path.display()
    )]
    OtherEngine {
        /// The path of the folder.
        path: PathBuf,
        /// The engine that created it, as its format names it.
        found: String,
        /// The engine that was to open it.
        used: &'static str,
    },
    /// A copy has created the folder, and has not put its record.
    #[error(
        "the store at {} is the target of a copy that is not complete; run `polyplane store copy` again to \
         complete it, or give another folder",
        path.display()
    )]
    UnfinishedCopy {
        /// The path of the folder.
        path: PathBuf,
    },
    /// The files on disk are not what was written. Nothing was changed.
    #[error("the store is damaged and was left as it is: {reason}; restore it from a backup")]
    Damaged {
        /// The damage that was found.
        reason: String,
    },
    /// The folder cannot be read, written or created.
    #[error("cannot open the store at {}: {error}; check the folder and its permissions", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. It is in the text, and so not named `source`: a chain of causes would show
        /// it again.
        error: std::io::Error,
    },
    /// An option cannot be used, such as an endpoint or a certificate.
    #[error("{reason}")]
    Options {
        /// The error in the option, as a text for people.
        reason: String,
    },
    /// A member of the cluster must not be used.
    #[error("the etcd member {endpoint} must not be used: {reason}")]
    Refused {
        /// The endpoint of the member as the options have it.
        endpoint: String,
        /// The reason, and what to do about it.
        reason: String,
    },
    /// The user or the password is wrong.
    #[error("etcd refused the login; check the user, its password and its roles: {reason}")]
    Login {
        /// The text of etcd's error.
        reason: String,
    },
    /// TLS failed: one side does not trust the other, or etcd does not speak TLS.
    #[error(
        "no TLS connection to etcd; check the CA and the client certificate, and that etcd speaks TLS: {reason}"
    )]
    Untrusted {
        /// The error of each endpoint.
        reason: String,
    },
    /// No member answered in time.
    #[error("etcd cannot be reached; check the endpoints and that the members run: {reason}")]
    Unreachable {
        /// The error of each endpoint.
        reason: String,
    },
    /// The disk has no room even for opening the store.
    #[error(
        "no space left on the disk of the store at {}{}; free some and start again",
        path.display(), room(*shortfall)
    )]
    NoSpace {
        /// The path of the folder, or of the file that has no room.
        path: PathBuf,
        /// The room that there is; `None` if it is not known.
        shortfall: Option<Shortfall>,
    },
}

/// The room of a disk on which a store cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortfall {
    /// The bytes that are free.
    pub free_bytes: u64,
    /// The bytes that have to be free, at least.
    pub needed_bytes: u64,
}

fn room(shortfall: Option<Shortfall>) -> String {
    shortfall.map_or_else(String::new, |found| {
        let Shortfall {
            free_bytes,
            needed_bytes,
        } = found;
        format!(": {free_bytes} bytes are free, at least {needed_bytes} are needed")
    })
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_system_error_is_said_once() {
        let error = OpenError::Io {
            path: PathBuf::from("store/format"),
            error: std::io::ErrorKind::NotADirectory.into(),
        };
        assert!(error.source().is_none());
        let said = error.to_string();
        let system = std::io::Error::from(std::io::ErrorKind::NotADirectory).to_string();
        assert_eq!(said.matches(&system).count(), 1, "{said}");
    }
}
