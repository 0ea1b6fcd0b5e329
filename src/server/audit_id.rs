//! Ids by which a request is found again in logs.

use std::cell::RefCell;

use http::HeaderValue;

/// Ids drawn from the system's generator at a time.
const BATCH: usize = 64;

struct Pool {
    random: [u8; 16 * BATCH],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { random: [0; 16 * BATCH], used: BATCH }) };
}

/// A new id. Random bytes are drawn for many ids at once, since a system call per request is seen
/// in the time of a GET.
pub(crate) fn new() -> HeaderValue {
    let bytes = POOL.with_borrow_mut(|pool| {
        if pool.used == BATCH {
            aws_lc_rs::rand::fill(&mut pool.random)
                .expect("the generator was seeded before the first handshake");
            pool.used = 0;
        }
        let at = pool.used * 16;
        pool.used += 1;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&pool.random[at..at + 16]);
        bytes
    });
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    HeaderValue::from_str(id.hyphenated().encode_lower(&mut text)).expect("an id is ASCII")
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_are_distinct_and_well_formed() {
        let ids: std::collections::BTreeSet<String> = (0..200)
            .map(|_| super::new().to_str().expect("ASCII").to_owned())
            .collect();
        assert_eq!(ids.len(), 200);
        for id in ids {
            let parsed = uuid::Uuid::parse_str(&id).expect("an id");
            assert_eq!(parsed.get_version_num(), 4);
        }
    }
}
