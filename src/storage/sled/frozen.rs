//! The bytes of sled's tree, as a test that fails when they change.

use anyhow::{Result, ensure};
use polyplane_tests::frozen::{Written, records};

use super::layout::{
    CHUNK_BYTES, HEAD_KEY, Head, Header, NewVersion, checksum, decode, encode, parse_record_key,
    stem, unescape,
};

/// Returns a record's key and value in one entry, each behind its length.
fn framed(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in records.iter().flat_map(|(key, value)| [key, value]) {
        out.extend_from_slice(&u32::try_from(part.len()).expect("small").to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

fn unframed(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (part, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        parts.push(part);
        bytes = rest;
    }
    parts
}

fn version(key: &[u8], lease: Option<i64>, value: Option<&[u8]>) -> Vec<u8> {
    let mut zstd = zstd::bulk::Compressor::new(1).expect("zstd starts");
    let encoded = encode(
        &NewVersion {
            stem: &stem(key),
            revision: 0x0102_0304,
            index: 3,
            created: 0x0102,
            lease,
            value,
        },
        &mut zstd,
    );
    framed(&encoded.records)
}

fn read(name: &str, bytes: &[u8]) -> Result<String> {
    if name == "head" {
        return Ok(format!("{:?}", Head::parse(bytes)?));
    }
    if name == "key of the head" {
        ensure!(bytes == HEAD_KEY, "the head would be looked for elsewhere");
        return Ok("the head's place".to_owned());
    }
    let parts = unframed(bytes);
    let named = parse_record_key(parts[0])?;
    let (header, first) = Header::parse(parts[1])?;
    let mut pieces = vec![first];
    pieces.extend(parts.iter().skip(3).step_by(2));
    let place = (named.revision, named.index);
    let sum = checksum(named.stem, place, header, pieces.iter().copied());
    ensure!(sum == header.checksum, "the checksum is another");
    let value = decode(&header, &pieces)?;
    let (length, start) = match &value {
        Some(value) => (value.len(), value.slice(..value.len().min(20))),
        None => (0, Default::default()),
    };
    Ok(format!(
        "{named:?} of {:?}: {header:?}, {} records, {length} bytes: {start:?}",
        unescape(named.stem),
        parts.len() / 2,
    ))
}

#[test]
fn frozen_records_of_the_embedded_engine() {
    let long = "the same text again and again ".repeat(200);
    // This value cannot be compressed, so it takes several records.
    let noise: Vec<u8> = (0..CHUNK_BYTES + 40)
        .scan(1_u32, |state, _| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*state >> 24) as u8)
        })
        .collect();
    let head = Head {
        revision: 7,
        floor: 3,
        versions: 41,
        sum: 0xfedc_ba98_7654_3210,
    };
    let written = [
        Written::new("version", version(b"p/a/o/x", None, Some(b"value"))),
        Written::new("version, empty", version(b"k", None, Some(b""))),
        Written::new("version, on a lease", version(b"k", Some(-9), Some(b"v"))),
        Written::new(
            "version, zeros in its key",
            version(b"a\0b\0", None, Some(b"v")),
        ),
        Written::new("version, deleted", version(b"p/a/o/x", None, None)),
        Written::new(
            "version, compressed",
            version(b"k", None, Some(long.as_bytes())),
        ),
        Written::new("version, two records", version(b"k", None, Some(&noise))),
        Written::new("head", head.to_bytes()),
        Written::new("key of the head", HEAD_KEY),
    ];
    // Compressed bytes depend on the library: a new one may compress otherwise, but must still read
    // what an old one wrote.
    records("embedded-records", &written, read).expect("as they were");
}
