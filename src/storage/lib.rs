//! The store under every control plane: ordered keys, transactions with compares, one commit
//! order, a change feed, and leases.
//!
//! * [`Store`] is the trait; all other crates use an `Arc<dyn Store>`.
//! * [`MemoryStore`] keeps everything in the process, for tests and `--store memory`.
//! * [`FjallStore`] is the embedded default: one folder, one process, power-safe.
//! * [`SledStore`] is the embedded engine of earlier releases; folders that it created stay on it.
//! * [`EtcdStore`] is shared by replicas: an etcd cluster.
//! * [`EtcdServer`] is the other side: it serves any store to clients of etcd.
//! * [`FaultyStore`] wraps any of them and misbehaves on request.
//! * [`Backoff`] is the pause between two attempts at a store that does not answer.
//! * `conformance` is the one suite that every engine passes (feature `testing`).
//!
//! Invariant: this crate knows bytes, keys and revisions. It knows no kinds, no planes, no HTTP.
//! Only `sled.rs` and its submodules name sled, and so on for fjall and for etcd's client.

mod backoff;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod embedded;
mod error;
mod etcd;
mod faults;
mod fjall;
mod lease;
mod memory;
mod nearly_full;
mod sled;
mod store;
mod txn;
mod watch;

pub use self::etcd::server::{ETCD_VERSION, EtcdServer};
pub use self::etcd::{EtcdOptions, EtcdStore, EtcdTls, Secret};
pub use self::fjall::{FjallOptions, FjallStore, is_expected_record};
pub use self::sled::{SledOptions, SledStore};
pub use backoff::Backoff;
pub use embedded::folder::{check_unlocked, copy_has_begun, engine_of};
pub use embedded::{Disk, SystemDisk};
pub use error::{CommitError, LeaseError, OpenError, ReadError, Rejection, Shortfall};
pub use faults::{CommitFault, FaultPlan, FaultyStore, ReadFault};
pub use lease::{Clock, ManualClock, SystemClock};
pub use memory::{MemoryOptions, MemoryStore};
pub use store::{
    Committed, Compare, Fields, HISTORY_BYTES_MAX, Health, History, KeyValue, LeaseId, Limits, Op,
    RangeReply, RangeRequest, Revision, Store, StoreEvent, StoreStatus, TXN_OPS_MAX, Txn,
    prefix_end,
};
pub use watch::{StoreWatch, WatchBatch, WatchEnd, WatchSender, store_watch};

#[cfg(test)]
mod tests;
