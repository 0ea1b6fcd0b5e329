//! The value of the member key: a `coordination.k8s.io/v1` Lease of the root plane in namespace
//! `polyplane-system`, so that `kubectl get leases -n polyplane-system` shows the ring. Owns its
//! form; must not know when it is written.
//!
//! | field | says |
//! | --- | --- |
//! | `metadata.name`, `spec.holderIdentity` | the replica's id |
//! | `metadata.uid` | this life: a new one for each newcomer |
//! | `metadata.labels["polyplane.dev/state"]` | `Serving` or `Draining` |
//! | `metadata.annotations["polyplane.dev/address"]` | the address for peers |
//! | `metadata.annotations["polyplane.dev/layer"]` | the layer of that binary's level |
//! | `metadata.annotations["polyplane.dev/level"]` | the level of its binary |
//! | `metadata.annotations["polyplane.dev/peer-issuer"]` | the CA that has issued its peer certificate |
//! | `metadata.annotations["polyplane.dev/peer-trusts"]` | the CAs of peers that it accepts, with commas |
//! | `metadata.annotations["polyplane.dev/weight"]` | its share of the planes |
//! | `metadata.annotations["polyplane.dev/zone"]` | its failure domain, if it has one |
//! | `spec.leaseDurationSeconds` | how long the key outlives its last renewal |
//! | `spec.acquireTime` | when this life began |
//!
//! A CA is named by a hash of its key. Older releases name none, and so does a replica without peers.
//!
//! Renewals touch the store's lease, not this object. The incarnation is not written down: it is
//! the revision that created the key, which only the store knows (PROTOCOL 5).

use crate::peer_trust::PeerTrust;
use bytes::Bytes;
use polyplane_apimachinery::time::Timestamp;
use polyplane_fencing::Standing;
use polyplane_plane::{Flags, Key, LayerHash, NewObject, Prefix, external};
use polyplane_ring::{Incarnation, Member, PeerAddress, ReplicaId, Weight, Zone};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// The plane that shows the member keys as objects.
const PLANE: &str = "root";
const GROUP: &str = "coordination.k8s.io";
const RESOURCE: &str = "leases";
/// The namespace of the member keys.
pub(crate) const MEMBERS_NAMESPACE: &str = "polyplane-system";
const STATE: &str = "polyplane.dev/state";
const ADDRESS: &str = "polyplane.dev/address";
const LAYER: &str = "polyplane.dev/layer";
const LEVEL: &str = "polyplane.dev/level";
const PEER_ISSUER: &str = "polyplane.dev/peer-issuer";
const PEER_TRUSTS: &str = "polyplane.dev/peer-trusts";
const WEIGHT: &str = "polyplane.dev/weight";
const ZONE: &str = "polyplane.dev/zone";

/// The content of a member key, apart from the standing (Serving or Draining), which changes within
/// one life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberRecord {
    pub(crate) id: ReplicaId,
    pub(crate) address: PeerAddress,
    pub(crate) zone: Option<Zone>,
    pub(crate) weight: Weight,
    pub(crate) level: u32,
    pub(crate) layer: LayerHash,
    pub(crate) ttl: Duration,
    /// The CAs of its peer certificates; `None` if it has no peers.
    pub(crate) trust: Option<PeerTrust>,
    /// An id that distinguishes this life from every other, before its incarnation is known.
    pub(crate) uid: String,
    /// The time at which this life began, RFC 3339.
    pub(crate) began: String,
}

/// A member key that was read from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberSeen {
    pub(crate) member: Member,
    pub(crate) uid: String,
    pub(crate) level: u32,
    /// The layer of the member's level; `None` if an older program wrote the key.
    pub(crate) layer: Option<LayerHash>,
    /// The CAs of its peer certificates; `None` if the key does not name them.
    pub(crate) trust: Option<PeerTrust>,
}

/// Returns the prefix of the member keys among the root plane's objects.
#[must_use]
pub fn members_prefix() -> Prefix {
    Prefix::namespaced(GROUP, RESOURCE, MEMBERS_NAMESPACE)
}

/// Returns the common beginning of all member keys in the store.
pub(crate) fn members_store_prefix() -> Bytes {
    external::object_prefix(PLANE, &members_prefix())
}

/// Returns the store key of a replica's member key.
pub(crate) fn member_key(replica: &ReplicaId) -> Bytes {
    let key = Key::new(GROUP, RESOURCE, Some(MEMBERS_NAMESPACE), replica.as_str());
    external::object_key(PLANE, &key)
}

/// Returns a new uid for a life that begins now, and the time at which it begins.
pub(crate) fn new_life() -> (String, String) {
    let began = Timestamp::from(SystemTime::now());
    (Uuid::new_v4().to_string(), began.to_rfc3339())
}

impl MemberRecord {
    /// Returns the value of the member key in its canonical form.
    pub(crate) fn encode(&self, standing: Standing) -> Bytes {
        let state = match standing {
            Standing::Serving => "Serving",
            Standing::Draining => "Draining",
        };
        let mut notes = BTreeMap::from([
            (ADDRESS, self.address.to_string()),
            (LAYER, self.layer.0.clone()),
            (LEVEL, self.level.to_string()),
            (WEIGHT, self.weight.get().to_string()),
        ]);
        if let Some(zone) = &self.zone {
            notes.insert(ZONE, zone.to_string());
        }
        if let Some(trust) = &self.trust {
            notes.insert(PEER_TRUSTS, trust.trusted.join(","));
            if let Some(issuer) = &trust.issuer {
                notes.insert(PEER_ISSUER, issuer.clone());
            }
        }
        let notes = serde_json::to_string(&notes).expect("a map of texts is plain data");
        let (id, uid, began) = (&self.id, &self.uid, &self.began);
        let head = format!(
            r#"{{"metadata":{{"name":"{id}","namespace":"{MEMBERS_NAMESPACE}","uid":"{uid}","#
        );
        let middle = format!(r#""creationTimestamp":"{began}","labels":"#);
        let labels = format!(r#"{{"{STATE}":"{state}"}}"#);
        let seconds = i32::try_from(self.ttl.as_secs()).unwrap_or(i32::MAX).max(1);
        let acquired = began.trim_end_matches('Z');
        let spec = format!(
            r#"{{"holderIdentity":"{id}","leaseDurationSeconds":{seconds},"acquireTime":"{acquired}.000000Z"}}"#
        );
        let labels_from = head.len() + middle.len();
        let body = format!(r#"{head}{middle}{labels},"annotations":{notes}}},"spec":{spec}}}"#);
        external::encode(&NewObject {
            version_slot: head.len(),
            labels: Some(labels_from..labels_from + labels.len()),
            body: body.into(),
            storage_version: "v1".into(),
            expires: None,
            flags: Flags::NONE,
        })
    }
}

#[derive(Deserialize)]
struct LeaseObject {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Decodes a member key; returns `None` if no replica of the ring wrote it.
pub(crate) fn decode_member(value: &Bytes, incarnation: Incarnation) -> Option<MemberSeen> {
    let object = external::decode(value).ok()?;
    let lease: LeaseObject = serde_json::from_slice(&object.body).ok()?;
    let Metadata {
        name,
        uid,
        labels,
        annotations,
    } = lease.metadata;
    let note = |name: &str| annotations.get(name).map(String::as_str);
    let standing = match labels.get(STATE).map(String::as_str) {
        Some("Draining") => Standing::Draining,
        _ => Standing::Serving,
    };
    let zone = note(ZONE).map(str::parse).transpose().ok()?;
    let weight = Weight::new(note(WEIGHT)?.parse().ok()?)?;
    let member = Member {
        id: name.parse().ok()?,
        incarnation,
        address: note(ADDRESS)?.parse().ok()?,
        zone,
        weight,
        standing,
    };
    let level = note(LEVEL)?.parse().ok()?;
    let layer = note(LAYER).map(|layer| LayerHash(layer.to_owned()));
    let trust = note(PEER_TRUSTS).map(|trusted| PeerTrust {
        issuer: note(PEER_ISSUER).map(str::to_owned),
        trusted: trusted.split(',').map(str::to_owned).collect(),
    });
    Some(MemberSeen {
        member,
        uid,
        level,
        layer,
        trust,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> MemberRecord {
        MemberRecord {
            id: "polyplane-0".parse().expect("a replica id"),
            address: "10.0.0.1:7443".parse().expect("an address"),
            zone: Some("z1".parse().expect("a zone")),
            weight: Weight::default(),
            level: 4,
            layer: LayerHash("ab".to_owned()),
            ttl: Duration::from_secs(3),
            trust: None,
            uid: "u-1".to_owned(),
            began: "2026-01-01T00:00:00Z".to_owned(),
        }
    }

    #[test]
    fn a_member_key_survives_its_encoding() {
        let record = record();
        for standing in [Standing::Serving, Standing::Draining] {
            let value = record.encode(standing);
            let seen = decode_member(&value, Incarnation::new(9)).expect("ours");
            assert_eq!(seen.member.id, record.id);
            assert_eq!(seen.member.incarnation, Incarnation::new(9));
            assert_eq!(seen.member.address, record.address);
            assert_eq!(seen.member.zone, record.zone);
            assert_eq!(seen.member.standing, standing);
            assert_eq!((seen.level, seen.uid.as_str()), (4, "u-1"));
            assert_eq!(seen.layer, Some(record.layer.clone()));
            assert_eq!(seen.trust, None);
        }
    }

    #[test]
    fn a_member_key_names_the_cas_of_its_peer_certificates() {
        for issuer in [Some("0a1b".to_owned()), None] {
            let trust = PeerTrust {
                issuer,
                trusted: ["0a1b", "2c3d"].map(str::to_owned).to_vec(),
            };
            let record = MemberRecord {
                trust: Some(trust.clone()),
                ..record()
            };
            let value = record.encode(Standing::Serving);
            let seen = decode_member(&value, Incarnation::new(9)).expect("ours");
            assert_eq!(seen.trust, Some(trust));
        }
    }

    #[test]
    fn a_member_key_is_a_lease_in_canonical_form() {
        let object = external::decode(&record().encode(Standing::Serving)).expect("an object");
        let text = std::str::from_utf8(&object.body).expect("text");
        let wanted = concat!(
            r#"{"metadata":{"name":"polyplane-0","namespace":"polyplane-system","uid":"u-1","#,
            r#""creationTimestamp":"2026-01-01T00:00:00Z","labels":{"polyplane.dev/state":"Serving"},"#,
            r#""annotations":{"polyplane.dev/address":"10.0.0.1:7443","polyplane.dev/layer":"ab","polyplane.dev/level":"4","#,
            r#""polyplane.dev/weight":"100","polyplane.dev/zone":"z1"}},"#,
            r#""spec":{"holderIdentity":"polyplane-0","leaseDurationSeconds":3,"#,
            r#""acquireTime":"2026-01-01T00:00:00.000000Z"}}"#,
        );
        assert_eq!(text, wanted);
        assert!(text[object.version_slot..].starts_with(r#""creationTimestamp""#));
        let labels = object.labels.expect("it has labels");
        assert_eq!(&text[labels], r#"{"polyplane.dev/state":"Serving"}"#);
    }
}
