//! Packed bodies: how the body of a large object is compressed for the store.
//!
//! A writer packs a body in its own task, before the write is queued. So the size that the store
//! takes is known early, no lock is held meanwhile, and the committer only copies bytes. The engines
//! leave packed values as they are.
//!
//! Invariant: knows bytes and their limits, no records.

use std::cell::RefCell;

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// The level from which on programs read packed bodies. They are written once the store's floor has
/// reached it, because a program below it could not open the plane.
pub const PACKED_LEVEL: u32 = 3;
/// Bytes of the largest body. It is upstream's limit of a request: a client could not replace a
/// larger object. Without it, a few KiB in the store could fill the memory of whoever reads them.
pub const BODY_BYTES_MAX: usize = 3 << 20;
/// Bytes from which on a body is packed. Below, compressing takes more CPU than the store takes for
/// the bytes that it saves.
const PACK_FROM_BYTES: usize = 4 << 10;
/// A body is packed if that saves at least one part of so many. Less is not worth reading it back.
const SAVED_PART: usize = 8;
/// zstd's level. Of the stored Deployment of the benches 1 leaves 36 % and takes twice the CPU of -3,
/// which leaves 49 %.
const ZSTD_LEVEL: i32 = -3;

thread_local! {
    /// Making one takes as much CPU as compressing 4 KiB. Absent if zstd had no memory for it.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(compressor().ok());
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> =
        RefCell::new(Decompressor::new().ok());
}

/// Returns a compressor that adds a checksum: no store that a replica shares checks its values.
fn compressor() -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(ZSTD_LEVEL)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    Ok(compressor)
}

/// Returns the packed form of a body; `None` if that is not worth it.
pub(crate) fn pack(body: &[u8]) -> Option<Bytes> {
    if body.len() < PACK_FROM_BYTES {
        return None;
    }
    let packed = COMPRESSOR.with_borrow_mut(|compressor| compressor.as_mut()?.compress(body).ok());
    let packed = packed.filter(|packed| packed.len() <= body.len() - body.len() / SAVED_PART)?;
    // A copy without the room that compressing had to reserve.
    Some(Bytes::copy_from_slice(&packed))
}

/// Returns the body that was packed; `None` if it is damaged or has not exactly `body_bytes`, which
/// also bounds the memory that this takes.
pub(crate) fn unpack(packed: &[u8], body_bytes: usize) -> Option<Bytes> {
    if body_bytes > BODY_BYTES_MAX {
        return None;
    }
    let unpacked = DECOMPRESSOR
        .with_borrow_mut(|decompressor| decompressor.as_mut()?.decompress(packed, body_bytes).ok());
    unpacked
        .filter(|body| body.len() == body_bytes)
        .map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_body_comes_back(word in "[a-z]{1,40}", times in 0_usize..2000) {
            let body = word.repeat(times);
            let packed = pack(body.as_bytes());
            prop_assert_eq!(packed.is_some(), body.len() >= PACK_FROM_BYTES);
            if let Some(packed) = packed {
                prop_assert!(packed.len() < body.len() / 2);
                let unpacked = unpack(&packed, body.len());
                prop_assert_eq!(unpacked.as_deref(), Some(body.as_bytes()));
            }
        }

        #[test]
        fn damage_is_found_or_changes_nothing(
            at in 0_usize..10_000, bit in 0_u8..8, cut in 0_usize..10_000,
        ) {
            let body = b"a sentence that is not the only one. ".repeat(300);
            let packed = pack(&body).expect("it shrinks");
            let mut damaged = packed.to_vec();
            let at = at % damaged.len();
            damaged[at] ^= 1 << bit;
            let read = unpack(&damaged, body.len());
            prop_assert!(read.is_none_or(|read| *read == body));
            let cut = cut % packed.len();
            prop_assert_eq!(unpack(&packed[..cut], body.len()), None);
        }
    }

    #[test]
    fn a_body_that_hardly_shrinks_is_not_packed() {
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56).to_le_bytes()[0]
        });
        let noise: Vec<u8> = noise.take(64 << 10).collect();
        assert_eq!(pack(&noise), None);
    }

    #[test]
    fn a_bomb_takes_no_more_memory_than_the_largest_body() {
        let bomb = zstd::bulk::compress(&vec![b' '; 64 << 20], ZSTD_LEVEL).expect("it shrinks");
        assert!(bomb.len() < 16 << 10);
        for claimed in [1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 64 << 20, usize::MAX] {
            assert_eq!(unpack(&bomb, claimed), None, "{claimed}");
        }
        let largest = vec![b' '; BODY_BYTES_MAX];
        let packed = pack(&largest).expect("it shrinks");
        assert_eq!(
            unpack(&packed, BODY_BYTES_MAX).as_deref(),
            Some(&largest[..])
        );
        assert_eq!(unpack(&packed, BODY_BYTES_MAX - 1), None);
    }
}
