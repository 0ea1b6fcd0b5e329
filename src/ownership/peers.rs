//! The messages between replicas, and the two traits that carry and answer them.
//!
//! Must not know sockets, certificates or encodings beyond serde. A message is small and sent as
//! JSON; only [`PeerRequest::payload`] is large and sent as it is. No message proves anything: what
//! a peer says takes effect only through the fence in the store.

use crate::directory::birth::Birth;
use async_trait::async_trait;
use bytes::Bytes;
use polyplane_fencing::{Holder, Incarnation};
use polyplane_ring::{InvalidName, Member, ReplicaId, Standing, Weight};
use serde::{Deserialize, Serialize};

/// Sends requests to other replicas.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Sends a request to a member and waits for its reply. Every call has a deadline of its own
    /// beside the transport's, so a call may be dropped at any time.
    ///
    /// # Errors
    /// See [`PeerError`]. The request may have been handled nevertheless, unless it was refused.
    async fn call(&self, to: &Member, request: PeerRequest) -> Result<PeerReply, PeerError>;
}

/// Answers the requests of other replicas.
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
    /// Bytes of a payload at most; a plane that is larger is loaded from the store.
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
    /// Are you there?
    Ping {
        /// The number of the asker's view.
        view: u64,
    },
    /// Hand over a plane that you hold and I am to own.
    HandOver {
        /// The plane.
        birth: Birth,
        /// The replica that takes it.
        taker: Life,
        /// The number of the view that designates the taker. The replica with the older view
        /// catches up first.
        view: u64,
    },
    /// The state of a plane that is about to be released to you; the payload is its export. Used
    /// only if the fence is then taken from Released with exactly this head.
    State {
        /// The plane's id.
        plane: String,
        /// The revision of its last commit.
        head: u64,
    },
    /// A plane's fence is released for you, and the plane was in use: take it.
    Take {
        /// The plane.
        birth: Birth,
        /// The number of the view that designates you.
        view: u64,
    },
    /// Delete a plane that you hold.
    Delete {
        /// The plane.
        birth: Birth,
    },
    /// How much do you hold?
    Load,
    /// How large are the planes you have in memory?
    Figures,
    /// What is the newest view you have? Sent by a replica that does not reach the store.
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
    /// To a ping.
    Pong {
        /// The number of the answerer's view.
        view: u64,
    },
    /// Done: the fence says Released or Deleted, the state is kept, or the plane is being taken.
    Done,
    /// The plane stays: this replica is designated in its view.
    Kept {
        /// That view's number.
        view: u64,
    },
    /// The fence is not this replica's: read it again.
    NotHeld,
    /// Not now: too much of this kind is under way. Ask again a little later.
    Busy,
    /// The peer tried and failed; the caller may ask again safely.
    Failed {
        /// What went wrong, for people.
        reason: String,
    },
    /// To [`PeerMessage::Load`].
    Load {
        /// Planes held.
        owned: usize,
        /// Planes in memory.
        awake: usize,
        /// Hand-offs done in this process's life.
        hand_offs: u64,
    },
    /// To [`PeerMessage::Figures`].
    Figures {
        /// Planes in memory, not more than [`PeerReply::FIGURES_MAX`].
        planes: Vec<Figures>,
    },
    /// To [`PeerMessage::View`].
    View {
        /// The view's number.
        number: u64,
        /// All its members.
        members: Vec<ViewMember>,
    },
}

impl PeerReply {
    /// Planes in one reply, at most. More would make the reply too long for a message.
    pub const FIGURES_MAX: usize = 10_000;
}

/// How large one plane is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// The plane's id.
    pub plane: String,
    /// Its objects, the layer's included.
    pub objects: usize,
    /// Bytes of its own objects.
    pub bytes: u64,
}

/// One member of a view, as a message carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ViewMember {
    /// The life.
    pub life: Life,
    /// Where peers reach it.
    pub address: String,
    /// Its failure domain, where known.
    pub zone: Option<String>,
    /// Its share of the planes.
    pub weight: u16,
    /// It hands its planes over.
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
    /// The member; none if a field is invalid.
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

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The system at the peer's address refused a new connection: no process listens there.
    /// Nothing was handled. This alone proves that the peer is gone, so a transport returns it for
    /// nothing else.
    #[error("the peer refuses connections")]
    Refused,
    /// No reply in time, or no connection in time, however often one was tried.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// A connection ended, or was reset, before the reply. Whether the request was handled is
    /// unknown; a new connection shows how the peer is.
    #[error("the connection to the peer ended before its reply: {0}")]
    Ended(String),
    /// Anything else: a certificate, a broken message, an answer that means nothing.
    #[error("the peer could not be asked: {0}")]
    Failed(String),
}

/// One life of one replica, as messages and records name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Life {
    /// The replica's name.
    pub replica: String,
    /// The revision that created its member key.
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

/// The life of a view's member: the replica's name and its incarnation.
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
