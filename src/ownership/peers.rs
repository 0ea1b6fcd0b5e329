//! The messages between replicas, and the traits of those that send and answer them.
//!
//! Must not know sockets, certificates or encodings beyond serde. A message is small and sent as
//! JSON; only [`PeerRequest::payload`] is large, and sent without encoding. No message proves
//! anything: what a peer says takes effect only through the fence in the store.

use crate::directory::birth::Birth;
use crate::peer_trust::PeerTrust;
use async_trait::async_trait;
use bytes::Bytes;
use polyplane_fencing::{Holder, Incarnation};
use polyplane_ring::{InvalidName, Member, ReplicaId, Standing, Weight};
use serde::{Deserialize, Serialize};

/// The sender of requests to other replicas.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Sends a request to a member and waits for its reply. The caller may drop the call at any
    /// time, because it has a deadline of its own beside the transport's.
    ///
    /// # Errors
    /// See [`PeerError`]. The peer may have handled the request nevertheless, unless it refused the
    /// connection.
    async fn call(&self, to: &Member, request: PeerRequest) -> Result<PeerReply, PeerError>;

    /// Returns the CAs that this replica and its certificate go by now; `None` if they are not known.
    fn trust(&self) -> Option<PeerTrust> {
        None
    }

    /// Returns why this replica's own certificate is not valid now, by its own clock; `None` if it is, or if
    /// that is not known.
    fn own_invalidity(&self) -> Option<String> {
        None
    }
}

/// The handler of requests from other replicas.
#[async_trait]
pub trait PeerHandler: Send + Sync + 'static {
    /// Handles one request. `from` is the name in the peer's certificate.
    async fn handle(&self, from: &ReplicaId, request: PeerRequest) -> PeerReply;
}

/// One request to a peer.
#[derive(Debug, Clone)]
pub struct PeerRequest {
    /// The message.
    pub message: PeerMessage,
    /// The exported plane of [`PeerMessage::State`]; empty for all others.
    pub payload: Bytes,
}

impl PeerRequest {
    /// Most bytes of a payload. A plane that is larger is loaded from the store.
    pub const PAYLOAD_BYTES_MAX: usize = 256 << 20;
}

impl From<PeerMessage> for PeerRequest {
    fn from(message: PeerMessage) -> Self {
        Self {
            message,
            payload: Bytes::new(),
        }
    }
}

/// A request to another replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum PeerMessage {
    /// Tests whether the peer answers.
    Ping {
        /// The number of the sender's view.
        view: u64,
    },
    /// Requests a plane that the peer holds and that the sender should own.
    HandOver {
        /// The requested plane.
        birth: Birth,
        /// The life of the replica that acquires the plane.
        taker: Life,
        /// The number of the view that designates the taker. The replica with the older view
        /// catches up first.
        view: u64,
    },
    /// Streams the state of a plane that the sender is about to release to the peer; the payload is
    /// the export. The peer uses it only if it then takes the fence from Released with exactly this
    /// head.
    State {
        /// The plane's id.
        plane: String,
        /// The revision of the plane's last commit.
        head: u64,
    },
    /// Notifies the peer that a plane's fence is released for it, and that the plane was in use:
    /// the peer should acquire it.
    Take {
        /// The released plane.
        birth: Birth,
        /// The number of the view that designates the peer.
        view: u64,
    },
    /// Requests that the peer deletes a plane that it holds.
    Delete {
        /// The plane to delete.
        birth: Birth,
    },
    /// Requests the number of planes that the peer holds.
    Load,
    /// Requests the sizes of the planes that the peer has in memory.
    Figures,
    /// Requests the peer's newest view. Sent by a replica that does not reach the store.
    View,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum PeerReply {
    /// The answer to a ping.
    Pong {
        /// The number of the answering replica's view.
        view: u64,
    },
    /// The request was carried out: the fence is Released or Deleted, the state is kept, or the
    /// plane is being acquired.
    Done,
    /// The plane stays where it is: the answering replica is designated in its own view.
    Kept {
        /// The number of that view.
        view: u64,
    },
    /// The answering replica does not hold the fence: read it again.
    NotHeld,
    /// Not now: too many requests of this kind are under way. Send it again a little later.
    Busy,
    /// The peer tried and failed. The request may safely be sent again.
    Failed {
        /// The reason of the failure, as a text for people.
        reason: String,
    },
    /// The answer to [`PeerMessage::Load`].
    Load {
        /// Number of planes held.
        owned: usize,
        /// Number of planes in memory.
        awake: usize,
        /// Number of hand-offs since the process began.
        hand_offs: u64,
    },
    /// The answer to [`PeerMessage::Figures`].
    Figures {
        /// The planes in memory, at most [`PeerReply::FIGURES_MAX`].
        planes: Vec<Figures>,
    },
    /// The answer to [`PeerMessage::View`].
    View {
        /// The view's number.
        number: u64,
        /// All members of the view.
        members: Vec<ViewMember>,
    },
}

impl PeerReply {
    /// Number of planes in one reply at most. More would make the reply too long for a message.
    pub const FIGURES_MAX: usize = 10_000;
    /// Longest reply as JSON, in bytes. A peer refuses a longer one, which could use up its memory.
    pub const BYTES_MAX: usize = 1024 * 1024;
    /// Longest JSON of one plane's figures beside the plane's id, in bytes.
    const FIGURES_BYTES_MAX: usize = 288;

    /// Returns a reply with the figures of as many planes as it has room for.
    pub(crate) fn figures(mut planes: Vec<Figures>) -> Self {
        let mut room = Self::BYTES_MAX - Self::FIGURES_BYTES_MAX;
        let fits = |figures: &Figures| {
            let bytes = figures.plane.len() + Self::FIGURES_BYTES_MAX;
            room = room.checked_sub(bytes)?;
            Some(())
        };
        let count = planes.iter().map_while(fits).count();
        planes.truncate(count.min(Self::FIGURES_MAX));
        Self::Figures { planes }
    }
}

/// The size of one plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// The plane's id.
    pub plane: String,
    /// Number of the plane's objects, those of layers included. An owner of the root of an earlier
    /// release records it as the plane's size.
    pub objects: usize,
    /// Bytes of the plane's own objects.
    pub bytes: u64,
    /// What the plane has used of its owner since it woke. A release before this field sends none.
    #[serde(default, skip_serializing_if = "Used::is_none")]
    pub used: Used,
}

impl Figures {
    /// Returns the number of the plane's own objects, which its limit counts. `None` if its owner does
    /// not say: it runs a release before that field, or nobody has used the plane since it woke.
    #[must_use]
    pub fn own_objects(&self) -> Option<u64> {
        (!self.used.is_none()).then_some(self.used.own_objects)
    }
}

/// What a plane has used of its owner since it woke.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Used {
    /// Number of the plane's own objects.
    pub own_objects: u64,
    /// Requests that were carried out.
    pub requests: u64,
    /// Those of them that change something.
    pub writes: u64,
    /// Requests that were refused because of a limit of the plane.
    pub refused: u64,
    /// CPU time, in milliseconds.
    pub cpu_millis: u64,
    /// Open watches.
    pub watches: u64,
}

impl Used {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// One member of a view, as a message carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewMember {
    /// The member's life.
    pub life: Life,
    /// The address at which peers reach the member.
    pub address: String,
    /// The member's failure domain, if known.
    pub zone: Option<String>,
    /// The member's share of the planes.
    pub weight: u16,
    /// True if the member hands its planes over.
    pub draining: bool,
}

impl From<&Member> for ViewMember {
    fn from(member: &Member) -> Self {
        Self {
            life: Life::from(&holder(member)),
            address: member.address.to_string(),
            zone: member.zone.as_ref().map(ToString::to_string),
            weight: member.weight.get(),
            draining: member.standing == Standing::Draining,
        }
    }
}

impl ViewMember {
    /// Returns the member; `None` if a field is invalid.
    pub(crate) fn member(&self) -> Option<Member> {
        let Holder {
            replica,
            incarnation,
        } = Holder::try_from(&self.life).ok()?;
        let zone = self.zone.as_deref().map(str::parse).transpose().ok()?;
        Some(Member {
            id: replica,
            incarnation,
            address: self.address.parse().ok()?,
            zone,
            weight: Weight::new(self.weight)?,
            standing: match self.draining {
                true => Standing::Draining,
                false => Standing::Serving,
            },
        })
    }
}

/// The reason why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The system at the peer's address refused a new connection: no process listens there. The
    /// peer has not handled the request. Only this error proves that the peer is dead, so a
    /// transport returns it in no other case.
    #[error("the peer refuses connections")]
    Refused,
    /// There was no reply in time, or no connection in time despite repeated attempts.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// A connection ended, or was reset, before the reply. It is unknown whether the peer handled
    /// the request; a new connection will show whether the peer answers.
    #[error("the connection to the peer ended before its reply: {0}")]
    Ended(String),
    /// One of the two replicas refuses the other's certificate. Every attempt fails until somebody
    /// changes a certificate, and no request reaches the peer.
    #[error("this replica and the peer do not trust each other's certificates: {0}")]
    Untrusted(String),
    /// Another replica answers at the peer's address. No request reaches the peer there until somebody
    /// changes an address or a certificate.
    #[error("another replica answers at the address of the peer: {0}")]
    OtherReplica(String),
    /// Any other failure, such as a reply that cannot be decoded or makes no sense.
    #[error("the request to the peer failed: {0}")]
    Failed(String),
}

/// One life of one replica, as messages and records name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Life {
    /// The replica's name.
    pub replica: String,
    /// The revision that created the replica's member key.
    pub incarnation: u64,
}

impl From<&Holder> for Life {
    fn from(holder: &Holder) -> Self {
        Self {
            replica: holder.replica.as_str().to_owned(),
            incarnation: holder.incarnation.get(),
        }
    }
}

/// Returns the life of a view's member: the replica's name and its incarnation.
pub(crate) fn holder(member: &Member) -> Holder {
    Holder {
        replica: member.id.clone(),
        incarnation: member.incarnation,
    }
}

impl TryFrom<&Life> for Holder {
    type Error = InvalidName;

    fn try_from(life: &Life) -> Result<Self, InvalidName> {
        Ok(Self {
            replica: life.replica.parse()?,
            incarnation: Incarnation::new(life.incarnation),
        })
    }
}

/// The peers of a replica that is alone in its ring: every call fails.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    async fn call(&self, _to: &Member, _request: PeerRequest) -> Result<PeerReply, PeerError> {
        Err(PeerError::Failed("this replica has no peers".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::birth::DirectoryKey;
    use polyplane_plane::{LayerHash, Version};
    use polyplane_ring::Pin;
    use polyplane_storage::Revision;

    #[test]
    fn a_member_survives_being_told() {
        for standing in [Standing::Serving, Standing::Draining] {
            let member = Member {
                id: "polyplane-0".parse().expect("a replica id"),
                incarnation: Incarnation::new(7),
                address: "10.0.0.1:7443".parse().expect("an address"),
                zone: Some("z1".parse().expect("a zone")),
                weight: Weight::new(30).expect("a weight"),
                standing,
            };
            let text = serde_json::to_string(&ViewMember::from(&member)).expect("plain data");
            let back: ViewMember = serde_json::from_str(&text).expect("its own encoding");
            assert_eq!(back.member(), Some(member));
        }
    }

    #[test]
    fn figures_fit_a_reply_however_long_the_names_are() {
        for (id_bytes, count) in [(6, 3565), (63, 2986), (253, 1937)] {
            let figures = Figures {
                plane: "p".repeat(id_bytes),
                objects: usize::MAX,
                bytes: u64::MAX,
                used: Used {
                    own_objects: u64::MAX,
                    requests: u64::MAX,
                    writes: u64::MAX,
                    refused: u64::MAX,
                    cpu_millis: u64::MAX,
                    watches: u64::MAX,
                },
            };
            let reply = PeerReply::figures(vec![figures; 20_000]);
            let bytes = serde_json::to_vec(&reply).expect("plain data").len();
            assert!(bytes <= PeerReply::BYTES_MAX, "{bytes}");
            let PeerReply::Figures { planes } = reply else {
                unreachable!("figures")
            };
            assert_eq!(planes.len(), count);
        }
    }

    #[test]
    fn own_objects_are_known_only_from_an_owner_that_says_them() {
        let earlier = r#"{"plane":"a","objects":251,"bytes":7}"#;
        let mut figures: Figures = serde_json::from_str(earlier).expect("an earlier release's");
        assert_eq!(figures.own_objects(), None);
        figures.used.requests = 1;
        assert_eq!(figures.own_objects(), Some(0));
        figures.used.own_objects = 49;
        assert_eq!(figures.own_objects(), Some(49));
    }

    #[test]
    fn a_message_survives_its_encoding() {
        let birth = Birth {
            id: "team-a".to_owned(),
            base: 3,
            layer: LayerHash("h".to_owned()),
            born: Version::from_raw(770),
            born_at: "2026-01-01T00:00:00Z".to_owned(),
            params: [("CA".to_owned(), "x".to_owned())].into(),
            directory: Some(DirectoryKey {
                key: Bytes::from_static(b"p/root/o/x/y"),
                created: Revision(3),
            }),
            pin: Pin::Replica("polyplane-1".parse().expect("a replica id")),
        };
        let taker = Life {
            replica: "polyplane-0".to_owned(),
            incarnation: 7,
        };
        let view = 9;
        let message = PeerMessage::HandOver { birth, taker, view };
        let text = serde_json::to_string(&message).expect("plain data");
        let back: PeerMessage = serde_json::from_str(&text).expect("its own encoding");
        assert_eq!(back, message);
    }
}
