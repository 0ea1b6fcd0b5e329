//! The records that this crate keeps in the store beside planes and member keys: fences, lease
//! terms, the level floor, complaints, candidates. Owns their keys and their JSON; must not know when they are
//! written.

use crate::peer_trust::PeerTrust;
use crate::peers::Life;
use bytes::Bytes;
use polyplane_fencing::{
    Duration, Epoch, Fence, FenceState, Incarnation, LeaseTerms, Revision, Terms,
};
use polyplane_plane::LayerHash;
use polyplane_ring::ReplicaId;
use serde::{Deserialize, Deserializer, Serialize};

/// The key of the lease terms (PROTOCOL 8). The members' adoptions have keys that begin with it, so
/// that one watch covers both.
pub(crate) const TERMS_KEY: &[u8] = b"terms";
/// Prefix of the adoptions: each member writes there which record of the lease terms it follows.
const ADOPTIONS: &[u8] = b"terms/";
/// The key of the level floor.
pub(crate) const FLOOR_KEY: &[u8] = b"floor";
/// Prefix of the complaints about unreachable peers (PROTOCOL 18).
pub(crate) const COMPLAINTS: &[u8] = b"complaint/";
/// Prefix of the records of replicas that wait outside the ring (PROTOCOL 23).
pub(crate) const CANDIDATES: &[u8] = b"candidate/";
/// Prefix of the keys of fences.
pub(crate) const FENCES: &str = "fence/";

/// A record of the store that this program did not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store's record {0:?} is damaged")]
pub struct Damaged(pub String);

/// Returns the key of a plane's fence.
pub(crate) fn fence_key(plane: &str) -> Bytes {
    format!("{FENCES}{plane}").into()
}

/// Returns the id of the plane whose fence has this key.
pub(crate) fn plane_of(fence: &[u8]) -> String {
    let id = fence.strip_prefix(FENCES.as_bytes()).unwrap_or(fence);
    String::from_utf8_lossy(id).into_owned()
}

/// Returns the key of one replica's complaint about another.
pub(crate) fn complaint_key(from: &ReplicaId, about: &ReplicaId) -> Bytes {
    let mut key = COMPLAINTS.to_vec();
    key.extend_from_slice(format!("{from}/{about}").as_bytes());
    key.into()
}

/// Returns the key of the record of a replica that waits outside the ring.
pub(crate) fn candidate_key(replica: &ReplicaId) -> Bytes {
    [CANDIDATES, replica.as_str().as_bytes()].concat().into()
}

/// Returns the replica that waits outside the ring, as the key names it.
pub(crate) fn candidate_of(key: &[u8]) -> Option<ReplicaId> {
    let name = key.strip_prefix(CANDIDATES)?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Returns the key of a replica's adoption of the lease terms.
pub(crate) fn adoption_key(replica: &ReplicaId) -> Bytes {
    [ADOPTIONS, replica.as_str().as_bytes()].concat().into()
}

/// Returns whether a key is that of an adoption.
pub(crate) fn is_adoption(key: &[u8]) -> bool {
    key.starts_with(ADOPTIONS)
}

/// Returns the replica whose adoption of the lease terms this key is.
pub(crate) fn adoption_of(key: &[u8]) -> Option<ReplicaId> {
    let name = key.strip_prefix(ADOPTIONS)?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Returns the complaining replica and the accused one, as the key names them.
pub(crate) fn complaint_of(key: &[u8]) -> Option<(ReplicaId, ReplicaId)> {
    let text = std::str::from_utf8(key.strip_prefix(COMPLAINTS)?).ok()?;
    let (from, about) = text.split_once('/')?;
    Some((from.parse().ok()?, about.parse().ok()?))
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FenceRecord {
    holder: String,
    #[serde(deserialize_with = "incarnation")]
    incarnation: u64,
    epoch: u64,
    state: WrittenState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    successor: Option<String>,
}

#[derive(Serialize, Deserialize)]
enum WrittenState {
    Held,
    Released,
    Deleted,
}

/// Decodes an incarnation. Stores from before replicas had member keys have a text here, which is
/// read as a life that is over: the oldest possible incarnation.
fn incarnation<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        #[expect(dead_code, reason = "only its form matters")]
        Text(String),
    }
    Ok(match Either::deserialize(from)? {
        Either::Number(number) => number,
        Either::Text(_) => 0,
    })
}

/// Encodes a fence for the store.
pub(crate) fn encode_fence(fence: &Fence) -> Bytes {
    let (state, head, successor) = match &fence.state {
        FenceState::Held => (WrittenState::Held, None, None),
        FenceState::Released { head, successor } => (
            WrittenState::Released,
            Some(head.get()),
            successor.as_ref().map(ToString::to_string),
        ),
        FenceState::Deleted => (WrittenState::Deleted, None, None),
    };
    json(&FenceRecord {
        holder: fence.holder.replica.to_string(),
        incarnation: fence.holder.incarnation.get(),
        epoch: fence.epoch.get(),
        state,
        head,
        successor,
    })
}

/// Decodes a fence from the store.
pub(crate) fn decode_fence(key: &[u8], value: &[u8]) -> Result<Fence, Damaged> {
    let damaged = || Damaged(String::from_utf8_lossy(key).into_owned());
    let record: FenceRecord = serde_json::from_slice(value).map_err(|_| damaged())?;
    let holder = Life {
        replica: record.holder,
        incarnation: record.incarnation,
    };
    let successor = record.successor.map(|name| name.parse()).transpose();
    let state = match record.state {
        WrittenState::Held => FenceState::Held,
        WrittenState::Released => FenceState::Released {
            head: Revision::new(record.head.ok_or_else(damaged)?),
            successor: successor.map_err(|_| damaged())?,
        },
        WrittenState::Deleted => FenceState::Deleted,
    };
    Ok(Fence {
        holder: (&holder).try_into().map_err(|_| damaged())?,
        epoch: Epoch::new(record.epoch),
        state,
    })
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lengths {
    read_lease_nanos: u64,
    margin_nanos: u64,
}

impl From<LeaseTerms> for Lengths {
    fn from(terms: LeaseTerms) -> Self {
        Self {
            read_lease_nanos: terms.read_lease().as_nanos(),
            margin_nanos: terms.margin().as_nanos(),
        }
    }
}

impl Lengths {
    fn terms(&self) -> Result<LeaseTerms, Damaged> {
        let nanos = Duration::from_nanos;
        let terms = LeaseTerms::new(nanos(self.read_lease_nanos), nanos(self.margin_nanos));
        terms.map_err(|_| Damaged("terms".to_owned()))
    }
}

/// The lease terms as they are stored. Without `next` this is the form that programs of level 1
/// write and read. They would ignore `next`, so it is written only once none of them may join.
#[derive(Serialize, Deserialize)]
struct TermsRecord {
    #[serde(flatten)]
    current: Lengths,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Lengths>,
}

/// Encodes the lease terms for the store.
pub(crate) fn encode_terms(terms: &Terms) -> Bytes {
    json(&TermsRecord {
        current: terms.current.into(),
        next: terms.next.map(Lengths::from),
    })
}

/// Decodes lease terms from the store.
pub(crate) fn decode_terms(value: &[u8]) -> Result<Terms, Damaged> {
    let damaged = |_| Damaged("terms".to_owned());
    let record: TermsRecord = serde_json::from_slice(value).map_err(damaged)?;
    Ok(Terms {
        current: record.current.terms()?,
        next: record.next.map(|next| next.terms()).transpose()?,
    })
}

/// An adoption: which life of a member follows which record of the lease terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adoption {
    incarnation: u64,
    /// The revision of the record of the lease terms.
    terms: u64,
}

impl Adoption {
    pub(crate) fn new(incarnation: Incarnation, terms: Revision) -> Self {
        Self {
            incarnation: incarnation.get(),
            terms: terms.get(),
        }
    }

    /// Returns the revision of the record of the lease terms, if this life has adopted it.
    pub(crate) fn by(self, incarnation: Incarnation) -> Option<Revision> {
        (self.incarnation == incarnation.get()).then(|| Revision::new(self.terms))
    }
}

/// Encodes an adoption for the store.
pub(crate) fn encode_adoption(adoption: Adoption) -> Bytes {
    json(&adoption)
}

/// Decodes an adoption from the store.
pub(crate) fn decode_adoption(value: &[u8]) -> Option<Adoption> {
    serde_json::from_slice(value).ok()
}

/// The store's level floor. A store without such a record has the lowest floor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// No binary below this level joins.
    pub level: u32,
    /// The layer of that level: planes step to it, and are born with it. `None` if the floor was
    /// never raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerHash>,
    /// The level of an announced rise, if there is one: a member below it waits until the rise is
    /// decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raising: Option<u32>,
}

impl Floor {
    /// Returns the level below which no member may join now.
    pub(crate) fn to_join(&self) -> u32 {
        self.raising
            .map_or(self.level, |raising| raising.max(self.level))
    }
}

/// Encodes the level floor for the store.
pub(crate) fn encode_floor(floor: &Floor) -> Bytes {
    json(floor)
}

/// Decodes the level floor from the store.
pub(crate) fn decode_floor(value: &[u8]) -> Result<Floor, Damaged> {
    let record = serde_json::from_slice(value);
    record.map_err(|_| Damaged("floor".to_owned()))
}

/// Encodes the life that a complaint is about.
pub(crate) fn encode_life(life: &Life) -> Bytes {
    json(life)
}

/// Decodes the life that a complaint is about.
pub(crate) fn decode_life(value: &[u8]) -> Option<Life> {
    serde_json::from_slice(value).ok()
}

/// What a replica that waits outside the ring says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CandidateRecord {
    /// The CA that has issued its peer certificate, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The CAs of peers that it accepts; `None` if it does not know its own certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trusted: Option<Vec<String>>,
    /// The time at which its wait began, RFC 3339.
    pub(crate) since: String,
    /// Why it waits, if members cannot find that out by the CAs. An older member ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl CandidateRecord {
    pub(crate) fn new(trust: Option<PeerTrust>, since: String, why: Option<String>) -> Self {
        let (issuer, trusted) = match trust {
            Some(trust) => (trust.issuer, Some(trust.trusted)),
            None => (None, None),
        };
        Self {
            issuer,
            trusted,
            since,
            why,
        }
    }

    /// Returns the CAs of its peer certificates, if the record names them.
    pub(crate) fn trust(&self) -> Option<PeerTrust> {
        let trusted = self.trusted.clone()?;
        let issuer = self.issuer.clone();
        Some(PeerTrust { issuer, trusted })
    }
}

/// Encodes the record of a replica that waits outside the ring.
pub(crate) fn encode_candidate(record: &CandidateRecord) -> Bytes {
    json(record)
}

/// Decodes the record of a replica that waits outside the ring.
pub(crate) fn decode_candidate(value: &[u8]) -> Option<CandidateRecord> {
    serde_json::from_slice(value).ok()
}

pub(crate) fn json(record: &impl Serialize) -> Bytes {
    let written = serde_json::to_vec(record);
    written.expect("a record is plain data").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_fencing::Holder;

    #[test]
    fn a_fence_survives_its_encoding() {
        let holder = Holder {
            replica: "polyplane-0".parse().expect("a replica id"),
            incarnation: Incarnation::new(41),
        };
        let released = FenceState::Released {
            head: Revision::new(7),
            successor: Some("polyplane-1".parse().expect("a replica id")),
        };
        for state in [FenceState::Held, released, FenceState::Deleted] {
            let fence = Fence {
                holder: holder.clone(),
                epoch: Epoch::new(3),
                state,
            };
            let text = encode_fence(&fence);
            assert_eq!(decode_fence(b"fence/a", &text), Ok(fence));
        }
    }

    #[test]
    fn a_fence_from_before_member_keys_is_of_a_life_that_is_over() {
        let text = br#"{"holder":"polyplane-0","incarnation":"6f1c","epoch":4,"state":"Held"}"#;
        let fence = decode_fence(b"fence/a", text).expect("it can be read");
        assert_eq!(fence.holder.incarnation, Incarnation::new(0));
        assert_eq!(fence.epoch, Epoch::new(4));
        assert!(decode_fence(b"fence/a", b"{}").is_err());
    }

    #[test]
    fn terms_floor_and_complaints_survive_their_encoding() {
        let settled = Terms::settled(LeaseTerms::default());
        let length = Duration::from_millis(7);
        let changing = Terms {
            next: LeaseTerms::new(length, length).ok(),
            ..settled
        };
        for terms in [settled, changing] {
            assert_eq!(decode_terms(&encode_terms(&terms)), Ok(terms));
        }
        let level_1 = br#"{"readLeaseNanos":300000000,"marginNanos":100000000}"#;
        assert_eq!(encode_terms(&settled), level_1[..]);
        let incarnation = Incarnation::new(9);
        let adoption = Adoption::new(incarnation, Revision::new(57));
        assert_eq!(decode_adoption(&encode_adoption(adoption)), Some(adoption));
        assert_eq!(adoption.by(incarnation), Some(Revision::new(57)));
        assert_eq!(adoption.by(Incarnation::new(10)), None);
        let floor = Floor {
            level: 3,
            layer: Some(LayerHash("ab".to_owned())),
            raising: Some(4),
        };
        assert_eq!(decode_floor(&encode_floor(&floor)), Ok(floor));
        let old = decode_floor(br#"{"level":3}"#).expect("the rest has defaults");
        assert_eq!((old.level, old.to_join(), old.layer), (3, 3, None));
        let (from, about): (ReplicaId, ReplicaId) = (
            "a.b".parse().expect("a replica id"),
            "c".parse().expect("a replica id"),
        );
        assert_eq!(adoption_of(&adoption_key(&from)), Some(from.clone()));
        assert_eq!(adoption_of(TERMS_KEY), None);
        let key = complaint_key(&from, &about);
        assert_eq!(complaint_of(&key), Some((from, about)));
    }
    #[test]
    fn the_record_of_a_candidate_survives_its_encoding() {
        let replica: ReplicaId = "a.b".parse().expect("a replica id");
        let key = candidate_key(&replica);
        assert_eq!(candidate_of(&key), Some(replica));
        assert_eq!(candidate_of(TERMS_KEY), None);
        let trust = PeerTrust {
            issuer: Some("0a1b".to_owned()),
            trusted: ["0a1b", "2c3d"].map(str::to_owned).to_vec(),
        };
        let nothing = PeerTrust::default();
        let why = Some("its clock is wrong".to_owned());
        for (trust, why) in [(Some(trust), None), (Some(nothing), why), (None, None)] {
            let since = "2026-01-01T00:00:00Z".to_owned();
            let record = CandidateRecord::new(trust.clone(), since, why);
            let read = decode_candidate(&encode_candidate(&record)).expect("its own");
            assert_eq!((read.trust(), read), (trust, record));
        }
        let newer = br#"{"since":"2026-01-01T00:00:00Z","later":1}"#;
        assert!(decode_candidate(newer).is_some(), "the rest is ignored");
        assert_eq!(decode_candidate(b"{}"), None);
    }
}
