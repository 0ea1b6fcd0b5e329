//! Upstream's golden objects, which exist in both forms.

use super::*;
use crate::schema::decode::Empties;
use flate2::read::GzDecoder;
use std::io::Read;

fn schemas() -> Schemas {
    let data = include_bytes!("../../../batteries/data/schemas.json");
    Schemas::parse(data).expect("the generated schemas are sound")
}

fn cases() -> Vec<Value> {
    let mut text = String::new();
    let file: &[u8] = include_bytes!("../../testdata/proto.jsonl.gz");
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("gzip of UTF-8");
    let parse = |line: &str| {
        json::parse(line.as_bytes(), &Limits::default())
            .expect("a line is JSON")
            .value
    };
    text.lines().map(parse).collect()
}

/// Returns the kind of an object in an envelope; `None` if it is not served.
fn kind_of(schemas: &Schemas, envelope: &Envelope<'_>) -> Option<DefId> {
    let version = &envelope.api_version;
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    schemas.kind(group, version, &envelope.kind)
}

#[test]
fn both_forms_of_upstreams_golden_objects_are_one_object() {
    let schemas = schemas();
    let mut kinds = 0;
    for case in cases() {
        let bytes = STANDARD.decode(case.str_at(&["pb"])).expect("base64");
        let envelope = Envelope::open(&bytes).expect("an envelope");
        let Some(id) = kind_of(&schemas, &envelope) else {
            continue;
        };
        kinds += 1;
        let mut ours = schemas.decode_proto(id, envelope.raw).expect("an object");
        let mut theirs = case["json"].clone();
        schemas
            .decode(id, &mut ours, Empties::Null)
            .expect("ours fits the schema");
        schemas
            .decode(id, &mut theirs, Empties::Null)
            .expect("theirs fits the schema");
        assert_eq!(ours, theirs, "{}", envelope.kind);
    }
    assert!(kinds > 60, "{kinds} kinds were compared");
}

#[test]
fn upstreams_golden_objects_are_encoded_byte_for_byte() {
    let schemas = schemas();
    let (mut kinds, mut wrong) = (0, Vec::new());
    for case in cases() {
        let bytes = STANDARD.decode(case.str_at(&["pb"])).expect("base64");
        let envelope = Envelope::open(&bytes).expect("an envelope");
        let Some(id) = kind_of(&schemas, &envelope) else {
            continue;
        };
        kinds += 1;
        let mut object = case["json"].clone();
        schemas
            .decode(id, &mut object, Empties::Null)
            .expect("it fits the schema");
        let message = schemas.to_proto(id, &object);
        if in_envelope(&envelope.api_version, &envelope.kind, &message) != bytes {
            let back = schemas.decode_proto(id, &message);
            wrong.push((envelope.kind.to_string(), back));
        }
    }
    assert!(kinds > 60, "{kinds} kinds were compared");
    assert!(wrong.is_empty(), "{} of {kinds}: {wrong:?}", wrong.len());
}

#[test]
fn damaged_bytes_are_refused_and_never_panic() {
    let schemas = schemas();
    for case in cases().iter().take(12) {
        let bytes = STANDARD.decode(case.str_at(&["pb"])).expect("base64");
        for cut in (0..bytes.len()).step_by(7) {
            if let Ok(envelope) = Envelope::open(&bytes[..cut])
                && let Some(id) = schemas.kind("", "v1", &envelope.kind)
            {
                let _ = schemas.decode_proto(id, envelope.raw);
            }
        }
    }
    assert_eq!(Envelope::open(b"{}"), Err(ProtoError::NoMagic));
}
