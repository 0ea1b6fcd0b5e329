//! The bytes of every record that a plane has in the store or hands to its successor.

use bytes::BytesMut;
use polyplane_sealing::{DataKey, KeyEncryptionKey, Nonce, WrappedKey};
use polyplane_tests::frozen::{Written, records};

use super::*;
use crate::layers::chain::fold::{CommitOffset, FoldRow, FoldedCommit};
use crate::layers::chain::record::{CommitRecord, FoldRecord, StepRecord, StepsRecord};
use crate::layers::layer_store::frozen_layer;
use crate::packed::pack;
use crate::record::{
    EventHeader, KeySpace, copied_point, decode, encode_copied, encode_data_keys, encode_external,
    encode_head, encode_marker, encode_object, encode_packed, encode_steps, encode_tombstone,
};
use crate::sealing::data_keys::DataKeys;

fn steps() -> StepsRecord {
    StepsRecord {
        fold: None,
        steps: vec![StepRecord {
            to: LayerHash("ab12".to_owned()),
            time: "2026-01-01T00:00:00Z".into(),
            recreated: vec![Key::new("apps", "deployments", Some("ns"), "x")],
            commits: vec![
                CommitRecord {
                    first: 0,
                    count: 255,
                    version: Version::from_raw(7 << 8),
                },
                CommitRecord {
                    first: 255,
                    count: 3,
                    version: Version::ZERO,
                },
            ],
        }],
        silent: vec![0, 2],
    }
}

/// Returns a steps record whose first steps are folded.
fn folded_steps() -> StepsRecord {
    let mark = |commit, offset| CommitOffset { commit, offset };
    let row = |changed, came| FoldRow { changed, came };
    let fold = FoldRecord {
        layer: LayerHash("cd34".to_owned()),
        steps: 30,
        newest: Version::from_raw(6 << 8 | 255),
        commits: vec![
            FoldedCommit {
                version: Version::from_raw(2 << 8 | 7),
                brought: Some((2, "2025-01-01T00:00:00Z".into())),
            },
            FoldedCommit {
                version: Version::from_raw(6 << 8),
                brought: None,
            },
        ],
        rows: vec![
            (0, row(mark(1, 9), None)),
            (1, row(mark(0, 3), Some(mark(0, 3)))),
            (200, row(mark(1, 254), Some(mark(0, 0)))),
        ],
    };
    StepsRecord {
        fold: Some(fold),
        ..steps()
    }
}

/// Returns a value as a copy of the store has it.
fn copied(name: &str, value: &Bytes) -> Written {
    let copied = encode_copied(Base(1000), Revision(9), value).expect("it decodes");
    Written::new(name, copied.expect("it is copied"))
}

/// The record of the data keys of a plane. Its bytes are fixed, so nothing unwraps it.
fn keys() -> KeysRecord {
    let wrapped = WrappedKey {
        by: KeyEncryptionKey::new(&[7; 32]).id(),
        nonce: [3; 32],
        sealed: [0; 48],
    };
    KeysRecord {
        settled: 9,
        generation: 2,
        versions: vec![KeyVersionRecord { number: 5, wrapped }],
    }
}

/// Returns the data keys of which all bytes are fixed.
fn data_keys() -> DataKeys {
    let key = DataKey::from_bytes(zeroize::Zeroizing::new([8; 32]));
    DataKeys::fixed("p1a2b", 5, key, &keys().versions[0].wrapped)
}

/// Returns the value of an object, sealed.
fn sealed(value: &Bytes) -> Bytes {
    data_keys().seal(b"p/p1a2b/o/k", value, &Nonce([4; 32]))
}

/// Returns the values that the store holds under a plane's keys.
fn values() -> Vec<Written> {
    let plain = object("plain", "label", "value");
    let mut rich = object("rich", "label", "value");
    rich.expires = Some(1_767_225_600);
    rich.flags = Flags::TERMINATING;
    rich.storage_version = "v1beta1".into();
    let mut unlabelled = object("unlabelled", "l", "v");
    unlabelled.labels = None;
    unlabelled.flags = Flags::DELETING;
    let large = object("large", "label", &"value ".repeat(700));
    let first = EventHeader {
        index: 0,
        previous: Version::ZERO,
        created: Version::ZERO,
    };
    let later = EventHeader {
        index: 7,
        previous: Version::from_raw(5 << 8),
        created: Version::from_raw(3 << 8 | 1),
    };
    let deleted = [Version::from_raw(8 << 8), Version::from_raw(9 << 8 | 254)];
    vec![
        Written::new("object, first write", encode_object(first, &plain)),
        Written::new("object, changed, expires", encode_object(later, &rich)),
        Written::new("object, no labels", encode_object(later, &unlabelled)),
        Written::new(
            "object, packed",
            encode_packed(later, &large, &pack(&large.body).expect("it shrinks")),
        ),
        Written::new("tombstone", encode_tombstone(3, Version::from_raw(5 << 8))),
        Written::new("head", encode_head(4, &deleted)),
        Written::new("head, no delete", encode_head(0, &[])),
        Written::new("foreign object", encode_external(&plain)),
        Written::new("marker", encode_marker()),
        Written::new("steps", encode_steps(2, &steps())),
        Written::new("steps, none", encode_steps(0, &StepsRecord::default())),
        Written::new("steps, the first folded", encode_steps(2, &folded_steps())),
        Written::new("object, sealed", sealed(&encode_object(later, &rich))),
        Written::new(
            "object, packed, sealed",
            sealed(&encode_packed(
                later,
                &large,
                &pack(&large.body).expect("it shrinks"),
            )),
        ),
        Written::new("data keys", encode_data_keys(&keys())),
        copied(
            "object, sealed, copied",
            &sealed(&encode_object(later, &rich)),
        ),
        copied("object, copied", &encode_object(later, &plain)),
        copied(
            "tombstone, copied",
            &encode_tombstone(3, Version::from_raw(5 << 8)),
        ),
        copied("head, copied", &encode_head(4, &deleted)),
        copied("steps, copied", &encode_steps(2, &steps())),
        copied(
            "steps, the first folded, copied",
            &encode_steps(2, &folded_steps()),
        ),
    ]
}

/// The frozen file has values as Rust prints them. Each pair is a name that has changed in the code
/// since, and its name in the file.
const RENAMED: [(&str, &str); 4] = [
    ("header: EventHeader", "place: Place"),
    ("External(", "Foreign("),
    ("FoldRow ", "Row "),
    ("CommitOffset ", "Mark "),
];

#[test]
fn frozen_values_of_a_plane() {
    let read = |_: &str, bytes: &[u8]| {
        let bytes = &Bytes::copy_from_slice(bytes);
        let (opened, _) = data_keys().open(b"p/p1a2b/o/k", bytes)?;
        let decoded = decode(&opened)?;
        let printed = match copied_point(bytes) {
            Some(point) => format!("{point:?} {decoded:?}"),
            None => format!("{decoded:?}"),
        };
        let of_the_file = |text: String, (new, old): &(&str, &str)| text.replace(new, old);
        Ok(RENAMED.iter().fold(printed, of_the_file))
    };
    records("plane-values", &values(), read).expect("as they were");
}

#[test]
fn frozen_keys_of_a_plane() {
    let keys = KeySpace::new("p1a2b");
    let written = [
        Written::new("head", keys.head()),
        Written::new("steps", keys.steps()),
        Written::new("data keys", keys.data_keys()),
        Written::new(
            "object of a namespace",
            keys.object(&Key::new("apps", "deployments", Some("ns"), "web")),
        ),
        Written::new(
            "object of the cluster",
            keys.object(&Key::new("", "nodes", None, "n1")),
        ),
    ];
    let read = |_: &str, bytes: &[u8]| Ok(format!("{:?}", keys.classify(bytes)?));
    records("plane-keys", &written, read).expect("as they were");
}

#[test]
fn frozen_layers() {
    let written = frozen_layer::written();
    records("layers", &written, frozen_layer::read).expect("as they were");
}

#[test]
fn frozen_steps_read_back_whole() {
    let mut out = BytesMut::new();
    steps().write(&mut out);
    assert_eq!(StepsRecord::read(&mut out.freeze()), Some(steps()));
}

#[test]
fn frozen_folded_steps_read_back_whole() {
    let mut out = BytesMut::new();
    folded_steps().write(&mut out);
    let read = StepsRecord::read_folded(&mut out.freeze());
    assert_eq!(read, Some(folded_steps()));
}

/// The form of what a plane's owner sends to its successor. If it changed, a rolling upgrade would
/// load every plane from the store.
#[tokio::test(start_paused = true)]
async fn frozen_hand_off() {
    let site = Site::new();
    let plane = site.open("a").await;
    for operations in [
        vec![put("m", "1"), put("n", "1")],
        vec![put("m", "2"), delete("template-a")],
    ] {
        plane.submit(write(operations)).await.expect("fine");
    }
    let soon = Instant::now() + Duration::from_secs(5);
    plane.pause(soon).await.expect("nothing hangs");
    let bytes = plane.export().await.expect("it is small").bytes;
    let read = |_: &str, bytes: &[u8]| {
        let magic = String::from_utf8_lossy(&bytes[..4]).into_owned();
        Ok(format!("{magic}, format {:?}", &bytes[4..6]))
    };
    let written = [
        Written::new("export", bytes),
        Written::new("export, steps folded", folded_export().await),
    ];
    records("plane-export", &written, read).expect("as it was");
}

/// Returns the export of a plane that has folded a step and whose log was read back from before
/// that fold.
async fn folded_export() -> Bytes {
    let site = Site::new();
    let of = |value: &str| {
        let key = configmap("template-a");
        let object = object("template-a", "layer", value);
        Layer::build(vec![LayerObject { key, object }]).expect("a fine layer")
    };
    let soon = || Instant::now() + Duration::from_secs(5);
    let mut plane = site.open("a").await;
    let born = plane.snapshot().version();
    for value in ["2", "3"] {
        let ahead = plane.ahead(&of(value), "2027-07-07T00:00:00Z", &|_, _| false);
        let ahead = ahead.expect("nothing to fill").expect("there is a way");
        let stepped = plane.step(&ahead.folding(), soon()).await;
        assert_eq!(stepped, Ok(Stepped::Done));
        plane = site.open("a").await;
    }
    let scope = WatchScope::Prefix(configmaps());
    let watch = plane.watch(scope, WatchFrom::After(born)).await;
    drop(watch.expect("the store has its history"));
    plane.pause(soon()).await.expect("nothing hangs");
    plane.export().await.expect("it is small").bytes
}
