//! The bytes of every record that replicas keep in the store beside planes, and of every message
//! that they send each other.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use polyplane_fencing as fencing;
use polyplane_fencing::{Epoch, Fence, FenceState, Incarnation, Standing};
use polyplane_plane::{LayerHash, Version};
use polyplane_ring::{Pin, ReplicaId, Weight};
use polyplane_tests::frozen::{Written, records};

use super::*;
use crate::copy::record::{COPY_KEY, CopyFigures, CopyProgress, CopyRecord, SourceId};
use crate::directory::birth::{Birth, DirectoryKey};
use crate::membership::member_record::{MemberRecord, decode_member, member_key};
use crate::peers::{Figures, Life, PeerMessage, PeerReply, Used, ViewMember};
use crate::records::{
    Adoption, CandidateRecord, FLOOR_KEY, Floor, TERMS_KEY, adoption_key, adoption_of,
    candidate_key, candidate_of, complaint_key, complaint_of, decode_adoption, decode_candidate,
    decode_fence, decode_floor, decode_life, decode_terms, encode_adoption, encode_candidate,
    encode_fence, encode_floor, encode_life, encode_terms, fence_key,
};

fn replica(name: &str) -> ReplicaId {
    name.parse().expect("a replica id")
}

fn life() -> Life {
    Life {
        replica: "polyplane-0".to_owned(),
        incarnation: 41,
    }
}

fn fence(state: FenceState) -> Bytes {
    encode_fence(&Fence {
        holder: (&life()).try_into().expect("a holder"),
        epoch: Epoch::new(3),
        state,
    })
}

fn member(zone: Option<&str>, standing: Standing) -> Bytes {
    member_with(zone, standing, None)
}

fn member_with(zone: Option<&str>, standing: Standing, trust: Option<PeerTrust>) -> Bytes {
    let record = MemberRecord {
        id: replica("polyplane-0"),
        address: "10.0.0.1:7443".parse().expect("an address"),
        zone: zone.map(|zone| zone.parse().expect("a zone")),
        weight: Weight::new(30).expect("a weight"),
        level: 1,
        layer: LayerHash("ab12".to_owned()),
        ttl: Duration::from_secs(3),
        trust,
        uid: "7d2ff1a3-3a30-4a0e-8a2c-1b0e3a0a0001".to_owned(),
        began: "2026-01-01T00:00:00Z".to_owned(),
    };
    record.encode(standing)
}

fn cas() -> PeerTrust {
    let names = ["0a1b2c3d4e5f6071", "8293a4b5c6d7e8f9"].map(str::to_owned);
    PeerTrust {
        issuer: names.first().cloned(),
        trusted: names.to_vec(),
    }
}

fn member_with_cas() -> Bytes {
    member_with(None, Standing::Serving, Some(cas()))
}

fn candidate(trust: Option<PeerTrust>, why: Option<&str>) -> Bytes {
    let since = "2026-01-01T00:00:00Z".to_owned();
    let record = CandidateRecord::new(trust, since, why.map(str::to_owned));
    encode_candidate(&record)
}

fn changing() -> Terms {
    let length = fencing::Duration::from_millis;
    Terms {
        current: LeaseTerms::default(),
        next: LeaseTerms::new(length(500), length(150)).ok(),
    }
}

fn adoption() -> Adoption {
    Adoption::new(Incarnation::new(41), fencing::Revision::new(57))
}

fn copy(progress: CopyProgress) -> CopyRecord {
    let figures = |planes, bytes| CopyFigures {
        planes,
        objects: 30,
        bytes,
        revisions: 5,
    };
    CopyRecord {
        source: SourceId {
            root_created: 3,
            copied_at: 0,
            begins: 40,
            ends: 45,
        },
        from: ".polyplane".to_owned(),
        root_born: Version::from_raw(770),
        begins: 40,
        ends: 45,
        content: figures(3, 0),
        total: figures(2, 0),
        done: figures(1, 999),
        progress,
    }
}

fn kept() -> Vec<Written> {
    let released = |successor: Option<&str>| FenceState::Released {
        head: fencing::Revision::new(7),
        successor: successor.map(replica),
    };
    let floor = |raising, layer: Option<&str>| Floor {
        level: 1,
        layer: layer.map(|hash| LayerHash(hash.to_owned())),
        raising,
    };
    vec![
        Written::new("key of a fence", fence_key("p1a2b")),
        Written::new("fence, held", fence(FenceState::Held)),
        Written::new("fence, released", fence(released(None))),
        Written::new(
            "fence, released to one",
            fence(released(Some("polyplane-1"))),
        ),
        Written::new("fence, deleted", fence(FenceState::Deleted)),
        Written::new("key of a member", member_key(&replica("polyplane-0"))),
        Written::new("member", member(None, Standing::Serving)),
        Written::new(
            "member, in a zone, draining",
            member(Some("z1"), Standing::Draining),
        ),
        Written::new("member, with the CAs of its peers", member_with_cas()),
        Written::new("key of the terms", TERMS_KEY),
        Written::new(
            "terms",
            encode_terms(&Terms::settled(LeaseTerms::default())),
        ),
        Written::new("terms, changing", encode_terms(&changing())),
        Written::new("key of an adoption", adoption_key(&replica("polyplane-0"))),
        Written::new("adoption", encode_adoption(adoption())),
        Written::new("key of the floor", FLOOR_KEY),
        Written::new("floor, raised", encode_floor(&floor(None, Some("ab12")))),
        Written::new("floor, being raised", encode_floor(&floor(Some(2), None))),
        Written::new("key of a copy's record", COPY_KEY),
        Written::new(
            "copy, state",
            copy(CopyProgress::State {
                after: "p/a/o/x".to_owned(),
            })
            .encode(),
        ),
        Written::new(
            "copy, history begins",
            copy(CopyProgress::History {
                begins_at: None,
                through: 40,
            })
            .encode(),
        ),
        Written::new(
            "copy, complete",
            copy(CopyProgress::Complete {
                begins_at: 7,
                ends_at: 12,
            })
            .encode(),
        ),
        Written::new(
            "key of a complaint",
            complaint_key(&replica("polyplane-0"), &replica("polyplane-1")),
        ),
        Written::new("complaint", encode_life(&life())),
        Written::new("key of a candidate", candidate_key(&replica("polyplane-0"))),
        Written::new("candidate", candidate(Some(cas()), None)),
        Written::new("candidate, without CAs", candidate(None, None)),
        Written::new(
            "candidate, with its reason",
            candidate(None, Some("it expired")),
        ),
    ]
}

fn read_kept(name: &str, bytes: &[u8]) -> Result<String> {
    let kind = name.split(',').next().unwrap_or(name);
    Ok(match kind {
        "fence" => format!("{:?}", decode_fence(b"fence/p", bytes)?),
        "member" => {
            let incarnation = polyplane_ring::Incarnation::new(9);
            let seen = decode_member(&Bytes::copy_from_slice(bytes), incarnation);
            format!("{:?}", seen.context("no member")?)
        }
        "terms" => format!("{:?}", decode_terms(bytes)?),
        "adoption" => format!("{:?}", decode_adoption(bytes).context("no adoption")?),
        "key of an adoption" => format!("{:?}", adoption_of(bytes).context("no adoption")?),
        "floor" => format!("{:?}", decode_floor(bytes)?),
        "copy" => format!("{:?}", CopyRecord::decode(bytes)?),
        "complaint" => format!("{:?}", decode_life(bytes).context("no life")?),
        "candidate" => format!("{:?}", decode_candidate(bytes).context("no candidate")?),
        "key of a candidate" => format!("{:?}", candidate_of(bytes).context("no candidate")?),
        "key of a complaint" => format!("{:?}", complaint_of(bytes).context("no complaint")?),
        _ => String::from_utf8(bytes.to_vec())?,
    })
}

#[test]
fn frozen_records_of_the_ring() {
    records("ring-records", &kept(), read_kept).expect("as they were");
}

fn messages() -> Vec<PeerMessage> {
    let birth = |directory: bool, pin: Pin| Birth {
        id: "p1a2b".to_owned(),
        base: 3,
        layer: LayerHash("ab12".to_owned()),
        born: Version::from_raw(770),
        born_at: "2026-01-01T00:00:00Z".to_owned(),
        params: [("CA".to_owned(), "x".to_owned())].into(),
        directory: directory.then(|| DirectoryKey {
            key: Bytes::from_static(b"p/root/o/x/y"),
            created: Revision(3),
        }),
        pin,
    };
    let (plane, view) = ("p1a2b".to_owned(), 9);
    vec![
        PeerMessage::Ping { view },
        PeerMessage::HandOver {
            birth: birth(true, Pin::Anywhere),
            taker: life(),
            view,
        },
        PeerMessage::State { plane, head: 7 },
        PeerMessage::Take {
            birth: birth(true, Pin::Replica(replica("polyplane-1"))),
            view,
        },
        PeerMessage::Take {
            birth: birth(false, Pin::Zone("z1".parse().expect("a zone"))),
            view,
        },
        PeerMessage::Delete {
            birth: birth(true, Pin::Anywhere),
        },
        PeerMessage::Load,
        PeerMessage::Figures,
        PeerMessage::View,
    ]
}

fn replies() -> Vec<PeerReply> {
    let told = |zone: Option<&str>, draining| ViewMember {
        life: life(),
        address: "10.0.0.1:7443".to_owned(),
        zone: zone.map(str::to_owned),
        weight: 30,
        draining,
    };
    vec![
        PeerReply::Pong { view: 9 },
        PeerReply::Done,
        PeerReply::Kept { view: 9 },
        PeerReply::NotHeld,
        PeerReply::Busy,
        PeerReply::Failed {
            reason: "the store does not answer".to_owned(),
        },
        PeerReply::Load {
            owned: 3,
            awake: 2,
            hand_offs: 1,
        },
        PeerReply::Figures {
            planes: vec![Figures {
                plane: "p1a2b".to_owned(),
                objects: 90,
                bytes: 1234,
                used: Used::default(),
            }],
        },
        PeerReply::Figures {
            planes: vec![Figures {
                plane: "p1a2b".to_owned(),
                objects: 90,
                bytes: 1234,
                used: Used {
                    own_objects: 3,
                    requests: 40,
                    writes: 5,
                    refused: 6,
                    cpu_millis: 70,
                    watches: 2,
                },
            }],
        },
        PeerReply::View {
            number: 9,
            members: vec![told(None, false), told(Some("z1"), true)],
        },
    ]
}

/// Returns each value with a name: that of its variant, and a number if the variant occurs more
/// than once.
fn named<M: serde::Serialize>(all: &[M]) -> Vec<Written> {
    let mut written: Vec<Written> = Vec::new();
    for one in all {
        let bytes = serde_json::to_vec(one).expect("plain data");
        let value: serde_json::Value = serde_json::from_slice(&bytes).expect("its own");
        let kind = value["kind"].as_str().expect("all have a kind").to_owned();
        let same = |known: &&Written| known.name.split(',').next() == Some(kind.as_str());
        let name = match written.iter().filter(same).count() {
            0 => kind,
            more => format!("{kind}, {}", more + 1),
        };
        written.push(Written::new(&name, bytes));
    }
    written
}

#[test]
fn frozen_messages_between_replicas() {
    let read = |_: &str, bytes: &[u8]| {
        let message: PeerMessage = serde_json::from_slice(bytes)?;
        Ok(format!("{message:?}"))
    };
    records("peer-messages", &named(&messages()), read).expect("as they were");
    let read = |_: &str, bytes: &[u8]| {
        let reply: PeerReply = serde_json::from_slice(bytes)?;
        // The file was written when the type `ViewMember` was named `Told`. Type names are not
        // sent.
        Ok(format!("{reply:?}").replace("ViewMember {", "Told {"))
    };
    records("peer-replies", &named(&replies()), read).expect("as they were");
}
