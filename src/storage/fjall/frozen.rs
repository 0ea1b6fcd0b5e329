//! The bytes in fjall's keyspaces, as a test that fails when they change.

use anyhow::{Result, ensure};
use polyplane_tests::frozen::{Written, records};

use super::record::{
    HEAD_KEY, Head, Row, event_bytes, event_key, event_revision, leased_key, parse_event, row_key,
};
use crate::store::{LeaseId, Revision};
use crate::txn::Stamp;

fn row(lease: Option<i64>, value: &[u8]) -> Row {
    let mut zstd = zstd::bulk::Compressor::new(1).expect("zstd starts");
    let stamp = Stamp {
        created: Revision(0x0102),
        modified: Revision(0x0102_0304),
    };
    Row::new(stamp, lease.map(LeaseId), value, &mut zstd)
}

fn shown(row: &Row) -> Result<String> {
    let value = row.value()?;
    let start = value.slice(..value.len().min(20));
    let (stamp, lease, length) = (row.stamp, row.lease, value.len());
    Ok(format!("{stamp:?}, {lease:?}, {length} bytes: {start:?}"))
}

fn read(name: &str, bytes: &[u8]) -> Result<String> {
    if name.starts_with("key") {
        let known = [HEAD_KEY.to_vec(), row_key(b"p/a"), leased_key(b"p/a")];
        ensure!(
            known.iter().any(|key| key == bytes) || event_revision(bytes)? == 0x0102_0304,
            "it would be looked for elsewhere"
        );
        return Ok("its place".to_owned());
    }
    if name == "head" {
        return Ok(format!("{:?}", Head::parse(bytes)?));
    }
    if name.starts_with("row") {
        return shown(&Row::parse(bytes.into())?);
    }
    let event = parse_event(bytes)?;
    let replaced = event.replaced.as_ref().map(shown).transpose()?;
    Ok(format!(
        "{:?}, put {}, {replaced:?}",
        event.key, event.is_put
    ))
}

#[test]
fn frozen_records_of_the_engine_on_fjall() {
    let long = "the same text again and again ".repeat(200);
    let (plain, leased) = (row(None, b"value"), row(Some(-9), b"v"));
    let packed = row(Some(7), long.as_bytes());
    let head = Head {
        revision: 7,
        floor: 3,
        log_bytes: 0xfedc_ba98_7654_3210,
    };
    let written = [
        Written::new("row", &*plain.bytes),
        Written::new("row, empty", &*row(None, b"").bytes),
        Written::new("row, on a lease", &*leased.bytes),
        Written::new("row, compressed, on a lease", &*packed.bytes),
        Written::new("event, created", event_bytes(b"p/a", true, None)),
        Written::new("event, replaced", event_bytes(b"p/a", true, Some(&plain))),
        Written::new("event, deleted", event_bytes(b"p/a", false, Some(&leased))),
        Written::new("head", head.to_bytes()),
        Written::new("key of the head", HEAD_KEY),
        Written::new("key of a row", row_key(b"p/a")),
        Written::new("key of a leased key", leased_key(b"p/a")),
        Written::new("key of an event", event_key(0x0102_0304, 0x0506)),
    ];
    records("fjall-records", &written, read).expect("as they were");
}
