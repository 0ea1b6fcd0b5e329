//! Upstream's golden objects, which exist in both forms, and messages as no encoder writes them.

use super::*;
use crate::json::{self, Limits};
use crate::schema::decode::Empties;
use crate::schema::fixture::{SCHEMAS, tree};
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

const SCHEMA_PROPS: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
const CONFIG_MAP: &str = "io.k8s.api.core.v1.ConfigMap";
/// A field that no definition has, with an empty text.
const STRANGE: [u8; 3] = [0x9A, 0x06, 0];

/// Returns a field with a number below 16 and a short text or message.
fn field(number: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let length = u8::try_from(content.len()).expect("it is short");
    assert!(number < 16 && length < 128, "both are of one byte");
    [&[number << 3 | 2, length][..], content].concat()
}

/// Returns what is decoded from the message of a definition.
fn read(name: &str, message: &[u8]) -> Result<Value, ProtoError> {
    let id = SCHEMAS.find(name).expect("the definition exists");
    SCHEMAS.decode_proto(id, message)
}

fn wire_type(wire: u64, name: &str) -> Result<Value, ProtoError> {
    let field = name.to_owned();
    Err(ProtoError::WireType { wire, field })
}

#[test]
fn each_rule_of_a_schema_is_a_field_of_its_own() {
    let text = r#"{"type":"object","x-kubernetes-validations":[
        {"rule":"self.size < 10","message":"m"},{"rule":"self.size > 0"}]}"#;
    let id = SCHEMAS.find(SCHEMA_PROPS).expect("the definition exists");
    let mut object = tree(text);
    SCHEMAS
        .decode(id, &mut object, Empties::Null)
        .expect("it fits the schema");
    // Field 44 is the last one; of a rule, the texts 1, 2, 3 and 5 are always written.
    let first = b"\xE2\x02\x17\x0A\x0Eself.size < 10\x12\x01m\x1A\x00\x2A\x00";
    let second = b"\xE2\x02\x15\x0A\x0Dself.size > 0\x12\x00\x1A\x00\x2A\x00";
    let rules = [&first[..], &second[..]].concat();
    let message = SCHEMAS.to_proto(id, &object);
    assert!(message.ends_with(&rules), "{message:x?}");
    let before = &message[..message.len() - rules.len()];
    assert!(!before.windows(2).any(|tag| tag == [0xE2u8, 0x02]));
    let mut back = SCHEMAS.decode_proto(id, &message).expect("a schema");
    SCHEMAS
        .decode(id, &mut back, Empties::Null)
        .expect("it fits the schema");
    assert_eq!(back, object);
}

#[test]
fn a_message_that_stands_twice_is_merged() {
    let label = |key: &str, value: &str| field(11, [field(1, key), field(2, value)].concat());
    let meta = [
        field(1, [field(1, "x"), label("a", "1"), field(14, "f")].concat()),
        field(1, ""),
        field(1, [label("b", "2"), field(14, "g")].concat()),
    ];
    let wanted = r#"{"metadata":{"name":"x","labels":{"a":"1","b":"2"},"finalizers":["f","g"]}}"#;
    assert_eq!(read(CONFIG_MAP, &meta.concat()), Ok(tree(wanted)));

    // `additionalProperties`: true, then a schema, then more of that schema.
    let schema = b"\xF2\x01\x02\x08\x01\xF2\x01\x05\x12\x03\x2A\x01t\xF2\x01\x05\x12\x03\x22\x01d";
    let wanted = r#"{"additionalProperties":{"type":"t","description":"d"}}"#;
    assert_eq!(read(SCHEMA_PROPS, schema), Ok(tree(wanted)));

    let port = "io.k8s.api.core.v1.ServicePort";
    let text = field(4, [&[8u8, 1][..], &field(3, "x")].concat());
    let merged = [text, field(4, ""), field(4, [0x10u8, 5])].concat();
    assert_eq!(read(port, &merged), Ok(tree(r#"{"targetPort":"x"}"#)));
}

#[test]
fn quantities_keep_their_text_beside_strange_fields() {
    const RULES: &str = "io.k8s.api.autoscaling.v2.HPAScalingRules";
    let tolerance = |quantity: &[u8]| read(RULES, &field(4, quantity));
    let known = |text: &str| Ok(tree(&format!(r#"{{"tolerance":"{text}"}}"#)));
    let strange = [&field(1, "110")[..], &STRANGE].concat();
    assert_eq!(tolerance(&strange), known("110"));
    assert_eq!(tolerance(b""), known("0"));
    assert_eq!(tolerance(&[8, 1]), wire_type(0, "String_"));
    let twice = [field(4, field(1, "5")), field(4, "")].concat();
    assert_eq!(read(RULES, &twice), known("5"));

    let mut empty = tolerance(&field(1, "")).expect("the bytes are sound");
    let id = SCHEMAS.find(RULES).expect("the definition exists");
    let error = SCHEMAS
        .decode(id, &mut empty, Empties::Null)
        .expect_err("it is no quantity");
    assert!(error.0.starts_with("quantities must match"), "{error}");
}

#[test]
fn times_are_read_whole_and_know_their_fields() {
    const LEASE: &str = "io.k8s.api.coordination.v1.LeaseSpec";
    let known = |time: &str| Ok(tree(&format!(r#"{{"acquireTime":{time}}}"#)));
    assert_eq!(read(LEASE, &field(3, "")), known("null"));
    let micro = [8u8, 1, 0x10, 0xDC, 0x0B];
    let text = "\"1970-01-01T00:00:01.000001Z\"";
    assert_eq!(read(LEASE, &field(3, micro)), known(text));
    // The second one is not merged with the first one.
    let twice = [field(3, micro), field(3, [0x10u8, 0])].concat();
    assert_eq!(
        read(LEASE, &twice),
        known("\"1970-01-01T00:00:00.000000Z\"")
    );
    // 2 000 000 000 nanoseconds are two seconds.
    let many = [8u8, 1, 0x10, 0x80, 0xA8, 0xD6, 0xB9, 0x07];
    assert_eq!(
        read(LEASE, &field(3, many)),
        known("\"1970-01-01T00:00:03.000000Z\"")
    );
    let eight_bytes = [9u8, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(read(LEASE, &field(3, eight_bytes)), wire_type(1, "Seconds"));
}

#[test]
fn a_zero_time_that_may_be_absent_and_is_there_stays_as_null() {
    const LEASE: &str = "io.k8s.api.coordination.v1.LeaseSpec";
    let id = SCHEMAS.find(LEASE).expect("the definition exists");
    let (zero, absent) = (tree(r#"{"acquireTime":null}"#), tree("{}"));
    let mut found = read(LEASE, &field(3, "")).expect("the message is sound");
    // Each write decodes its tree more than once.
    for empties in [Empties::AsSent, Empties::NullUnlessSaid, Empties::Null] {
        let decoded = SCHEMAS.decode_again(id, &mut found, empties);
        decoded.expect("it fits the schema");
        assert_eq!(found, zero, "{empties:?}");
    }
    for (sent, wanted) in [
        ("\"0001-01-01T00:00:00.000000Z\"", &zero),
        ("null", &absent),
    ] {
        let mut object = tree(&format!(r#"{{"acquireTime":{sent}}}"#));
        let decoded = SCHEMAS.decode(id, &mut object, Empties::Null);
        decoded.expect("it fits the schema");
        assert_eq!(object, *wanted, "{sent}");
    }
    assert_eq!(SCHEMAS.to_vec(id, &zero), br#"{"acquireTime":null}"#);
    assert_eq!(SCHEMAS.to_proto(id, &zero), field(3, ""));
    assert_eq!(SCHEMAS.to_proto(id, &absent), b"");
}

#[test]
fn a_text_without_its_type_is_the_number_zero() {
    let message = field(4, field(3, "x"));
    let found = read("io.k8s.api.core.v1.ServicePort", &message);
    assert_eq!(found, Ok(tree(r#"{"targetPort":0}"#)));
}

#[test]
fn a_number_of_the_type_of_texts_is_the_empty_text() {
    let message = field(4, [8u8, 1, 0x10, 5]);
    let found = read("io.k8s.api.core.v1.ServicePort", &message);
    assert_eq!(found, Ok(tree(r#"{"targetPort":""}"#)));
}

#[test]
fn each_byte_that_is_no_text_is_replaced_on_its_own() {
    let cases: [(&[u8], &str); 4] = [
        (b"\xE2\x82a", "\u{FFFD}\u{FFFD}a"),
        (b"\xFF", "\u{FFFD}"),
        (b"\xED\xA0\x80", "\u{FFFD}\u{FFFD}\u{FFFD}"),
        (b"\xE2\x82\xAC", "\u{20AC}"),
    ];
    for (bytes, shown) in cases {
        let entry = field(2, [field(1, "k"), field(2, bytes)].concat());
        let found = read(CONFIG_MAP, &entry).expect("the message is sound");
        assert_eq!(found.str_at(&["data", "k"]), shown);
    }
}

#[test]
fn entries_without_a_value_have_the_one_that_upstream_starts_with() {
    let found = read(CONFIG_MAP, &field(3, field(1, "k")));
    assert_eq!(found, Ok(tree(r#"{"binaryData":{"k":""}}"#)));

    const USER: &str = "io.k8s.api.authentication.v1.UserInfo";
    let extra = |value: &[u8]| field(4, [field(1, "k"), field(2, value)].concat());
    assert_eq!(read(USER, &extra(b"")), Ok(tree(r#"{"extra":{"k":null}}"#)));
    let texts = [field(1, "a"), field(1, "b")].concat();
    assert_eq!(
        read(USER, &extra(&texts)),
        Ok(tree(r#"{"extra":{"k":["a","b"]}}"#))
    );
}

#[test]
fn no_key_or_value_reaches_beyond_its_entry_of_a_map() {
    let name = field(1, field(1, "x"));
    let with_name = |entry: &[u8]| [field(2, entry), name.clone()].concat();
    let entries: [&[u8]; 5] = [
        &[0x0A, 1, b'k', 0x12, 3],
        &[0x0A, 1, b'k', 0x10, 3],
        &[0x0A, 1, b'k', 0x12, 0x80],
        &[0x0A, 1, b'k', 0x1A, 3],
        &[0x0A, 3],
    ];
    for entry in entries {
        let found = read(CONFIG_MAP, &with_name(entry));
        assert_eq!(found, Err(ProtoError::Truncated), "{entry:x?}");
    }
}

#[test]
fn entries_of_maps_within_maps_that_reach_beyond_their_ends_take_no_time() {
    const PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    // The value of each entry says that it is all the entries behind it.
    let mut message: Vec<u8> = Vec::new();
    for _ in 0..40 {
        let length = u8::try_from(message.len()).unwrap_or(0x7F).min(0x7F);
        message = [&[0xEA, 1, 2, 0x12, length][..], &message].concat();
    }
    assert_eq!(read(PROPS, &message), Err(ProtoError::Truncated));
}

#[test]
fn a_packed_number_may_reach_beyond_its_list() {
    const DEVICE: &str = "io.k8s.api.resource.v1.DeviceAttribute";
    // The second number is 0x80 and the byte behind the list.
    let ints = [&field(6, [1u8, 0x80])[..], &[2, 0x30, 3]].concat();
    assert_eq!(read(DEVICE, &ints), Ok(tree(r#"{"ints":[1,256,3]}"#)));
    let open = field(6, [1u8, 0x80]);
    assert_eq!(read(DEVICE, &open), Err(ProtoError::Truncated));
}

#[test]
fn lists_are_read_packed_and_as_messages_of_their_own() {
    const DEVICE: &str = "io.k8s.api.resource.v1.DeviceAttribute";
    let ints = [&field(6, [1u8, 2])[..], &[0x30, 3]].concat();
    assert_eq!(read(DEVICE, &ints), Ok(tree(r#"{"ints":[1,2,3]}"#)));
    let bools = field(7, [1u8, 0]);
    assert_eq!(read(DEVICE, &bools), Ok(tree(r#"{"bools":[true,false]}"#)));

    const RESOURCE: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIResource";
    let verbs = field(4, [field(1, "get"), field(1, "list")].concat());
    let wanted = Ok(tree(r#"{"verbs":["get","list"]}"#));
    assert_eq!(read(RESOURCE, &verbs), wanted);
}

#[test]
fn partial_objects_have_their_metadata_where_others_have_theirs() {
    const PARTIAL: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata";
    let found = read(PARTIAL, &field(1, field(1, "x")));
    assert_eq!(found, Ok(tree(r#"{"metadata":{"name":"x"}}"#)));
}

#[test]
fn damaged_messages_are_refused_in_upstreams_words() {
    const VOLUME: &str = "io.k8s.api.core.v1.Volume";
    let negative = [&[0x0Au8][..], &[0xFF; 9], &[1]].concat();
    let greatest = [&[0x0Au8][..], &[0xFF; 8], &[0x7F]].concat();
    let endless = [&[0x0Au8][..], &[0x80; 10], &[1]].concat();
    let cases: [(&str, &[u8], &str); 14] = [
        (CONFIG_MAP, &[0x0A, 5, 1], "unexpected EOF"),
        (
            CONFIG_MAP,
            &greatest,
            "proto: negative length found during unmarshaling",
        ),
        (CONFIG_MAP, &endless, "proto: integer overflow"),
        (
            CONFIG_MAP,
            &negative,
            "proto: negative length found during unmarshaling",
        ),
        (
            CONFIG_MAP,
            &[0x02, 0],
            "proto: ConfigMap: illegal tag 0 (wire type 2)",
        ),
        (
            CONFIG_MAP,
            &[0x80, 0x80, 0x80, 0x80, 0x40],
            "proto: ConfigMap: illegal tag -2147483648 (wire type 17179869184)",
        ),
        // The wire type is looked at before the value, which is missing.
        (
            CONFIG_MAP,
            &[0x22],
            "proto: wrong wireType = 2 for field Immutable",
        ),
        (
            CONFIG_MAP,
            &[0x0F],
            "proto: wrong wireType = 7 for field ObjectMeta",
        ),
        (CONFIG_MAP, &[0x9F, 0x06], "proto: illegal wireType 7"),
        (
            CONFIG_MAP,
            &[0x12, 1, 0x1C],
            "proto: unexpected end of group",
        ),
        (
            CONFIG_MAP,
            &[0x0A, 1, 0x0C],
            "proto: ObjectMeta: wiretype end group for non-group",
        ),
        (
            VOLUME,
            &[0x10, 0],
            "proto: wrong wireType = 0 for field VolumeSource",
        ),
        (
            VOLUME,
            &[0x12, 1, 0x0C],
            "proto: VolumeSource: wiretype end group for non-group",
        ),
        (SCHEMA_PROPS, &[0xF2, 1, 2, 0x12, 0x05], "unexpected EOF"),
    ];
    for (name, message, text) in cases {
        let error = read(name, message).expect_err("it is damaged");
        assert_eq!(error.to_string(), text, "{message:x?}");
    }
}

#[test]
fn numbers_that_json_does_not_have_are_refused() {
    let maximum = |number: f64| {
        let message = [&[0x49u8][..], &number.to_le_bytes()].concat();
        read(SCHEMA_PROPS, &message).map_err(|error| error.to_string())
    };
    assert_eq!(maximum(2.5), Ok(tree(r#"{"maximum":2.5}"#)));
    for (number, text) in [
        (f64::NAN, "json: unsupported value: NaN"),
        (f64::INFINITY, "json: unsupported value: +Inf"),
        (f64::NEG_INFINITY, "json: unsupported value: -Inf"),
    ] {
        assert_eq!(maximum(number), Err(text.to_owned()));
    }
}

#[test]
fn damaged_envelopes_are_refused_in_upstreams_words() {
    let cases: [(&[u8], &str); 5] = [
        (b"", "empty data"),
        (b"k8s\0", "empty body"),
        (
            b"k8s\0\x08\x01",
            "proto: wrong wireType = 0 for field TypeMeta",
        ),
        (
            b"k8s\0\x0A\x02\x10\x01",
            "proto: wrong wireType = 0 for field Kind",
        ),
        (
            b"k8s\0\x0C",
            "proto: Unknown: wiretype end group for non-group",
        ),
    ];
    for (body, text) in cases {
        let error = Envelope::open(body).expect_err("it is damaged");
        assert_eq!(error.to_string(), text, "{body:x?}");
    }
}

#[test]
fn unknown_groups_are_passed_over() {
    let (start, end) = ([0x9Bu8, 0x06], [0x9Cu8, 0x06]);
    let name = field(1, field(1, "x"));
    let within = [&start[..], &STRANGE, &[0x08, 1], &start, &end, &end].concat();
    let wanted = Ok(tree(r#"{"metadata":{"name":"x"}}"#));
    let around = [&within[..], &name, &within].concat();
    assert_eq!(read(CONFIG_MAP, &around), wanted);

    let open = [&name[..], &start, &start, &end].concat();
    assert_eq!(read(CONFIG_MAP, &open), Err(ProtoError::Truncated));
    let closed = [&name[..], &end].concat();
    assert_eq!(
        read(CONFIG_MAP, &closed),
        Err(ProtoError::EndGroup("ConfigMap".to_owned()))
    );
    assert_eq!(read(CONFIG_MAP, &[0x0B, 0x0C]), wire_type(3, "ObjectMeta"));
}

#[test]
fn an_envelope_without_a_readable_version_names_none() {
    for (named, wanted) in [
        ("a/b/c", ""),
        ("apps/", ""),
        ("/", ""),
        ("apps/v1", "apps/v1"),
        ("v1", "v1"),
    ] {
        let body = in_envelope(named, "Kind", b"");
        let envelope = Envelope::open(&body).expect("an envelope");
        assert_eq!(envelope.api_version, wanted, "{named}");
        assert_eq!(envelope.kind, "Kind");
    }
    assert_eq!(Envelope::open(MAGIC), Err(ProtoError::Empty));
}
