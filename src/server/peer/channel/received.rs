//! The memory that a connection may fill before the readers of its streams take what has arrived.
//!
//! Every stream has a window, but thousands of windows are more memory than a process has. So the
//! streams of a connection share a budget. A connection above it ends the streams that hold the most
//! ([`super::Channel`]), which are those whose readers are slowest.
//!
//! Invariant: bytes that are added are removed when they are read, or when their stream is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};

use crate::peer::channel::stream::WINDOW_BYTES;

/// Bytes of heads and bodies that a connection holds for readers. With less, readers that are all
/// slow would lose streams of a connection that has no more of them than the pool gives it
/// ([`crate::peer::pool`]); with more, a peer could fill that much memory on every connection.
pub(in crate::peer) const RECEIVED_BYTES_MAX: usize = 256 * WINDOW_BYTES;
/// Parts of bodies and heads that keep a read buffer in memory. Further ones are copied. Without the
/// limit, one byte for each of thousands of streams would keep as many buffers.
const SLICES_MAX: usize = 256;

/// A part of a body that has arrived and is not read yet.
pub(super) enum Chunk {
    /// A slice of the read buffer, which it keeps in memory.
    Slice(Bytes),
    /// One or more small parts, copied so that they keep no read buffer in memory.
    Copy(BytesMut),
}

impl Chunk {
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Slice(bytes) => bytes,
            Self::Copy(bytes) => bytes.freeze(),
        }
    }
}

/// The bytes that the streams of one connection hold for their readers.
#[derive(Debug)]
pub(in crate::peer) struct Received {
    bytes_max: usize,
    bytes: AtomicUsize,
    /// The number of parts of bodies that keep a read buffer in memory.
    slices: AtomicUsize,
}

impl Received {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: AtomicUsize::new(0),
            slices: AtomicUsize::new(0),
        }
    }

    /// Returns whether the streams hold more than they may.
    pub(super) fn is_overfull(&self) -> bool {
        self.bytes() > self.bytes_max
    }

    /// Returns the bytes that wait for readers.
    pub(in crate::peer) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns whether a small part of a body may keep a read buffer in memory.
    pub(super) fn may_slice(&self) -> bool {
        self.slices.load(Ordering::Relaxed) < SLICES_MAX
    }

    pub(super) fn add_slice(&self) {
        self.slices.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_slice(&self) {
        self.slices.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether a connection with so many open streams copies the heads that arrive, so that they
/// keep no read buffers in memory.
pub(super) fn copies_heads(open_streams: usize) -> bool {
    open_streams >= SLICES_MAX
}
