//! The facts that were fixed when a plane was created and that opening it needs beside the store.
//! Owns their type and its form in messages; must not know where the directory keeps them.

use bytes::Bytes;
use polyplane_plane::{LayerHash, Version};
use polyplane_ring::Pin;
use polyplane_storage::Revision;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The facts that were fixed when a plane was created and that opening it needs beside the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct Birth {
    /// The plane's id, never used again.
    pub id: String,
    /// The number that is added to the store's revisions to make versions.
    pub base: u64,
    /// The layer that the plane was born with.
    pub layer: LayerHash,
    /// The version of the first put of the plane's directory record.
    pub born: Version,
    /// The time of that put, RFC 3339.
    pub born_at: String,
    /// The values of the layer's placeholders.
    pub params: BTreeMap<String, String>,
    /// The plane's directory record, which every acquire compares (PROTOCOL 10). `None` for the
    /// root only.
    pub directory: Option<DirectoryKey>,
    /// The replica or zone where the plane's user wants it.
    pub pin: Pin,
}

/// The store key of a plane's directory record, and the revision of its first put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryKey {
    /// The store key.
    pub key: Bytes,
    /// The revision of its first put: a record of the same name that was put later is another
    /// plane's.
    pub created: Revision,
}

/// A birth as messages carry it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    id: String,
    base: u64,
    layer: LayerHash,
    born: Version,
    born_at: String,
    params: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<(String, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pinned_to_replica: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pinned_to_zone: Option<String>,
}

impl From<Birth> for Written {
    fn from(birth: Birth) -> Self {
        let directory = birth.directory.map(|directory| {
            let key = String::from_utf8_lossy(&directory.key).into_owned();
            (key, directory.created.0)
        });
        let (replica, zone) = match &birth.pin {
            Pin::Anywhere => (None, None),
            Pin::Replica(id) => (Some(id.to_string()), None),
            Pin::Zone(zone) => (None, Some(zone.to_string())),
        };
        Self {
            id: birth.id,
            base: birth.base,
            layer: birth.layer,
            born: birth.born,
            born_at: birth.born_at,
            params: birth.params,
            directory,
            pinned_to_replica: replica,
            pinned_to_zone: zone,
        }
    }
}

impl TryFrom<Written> for Birth {
    type Error = polyplane_ring::InvalidName;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let pin = match (&written.pinned_to_replica, &written.pinned_to_zone) {
            (Some(replica), _) => Pin::Replica(replica.parse()?),
            (None, Some(zone)) => Pin::Zone(zone.parse()?),
            (None, None) => Pin::Anywhere,
        };
        let directory = written.directory.map(|(key, created)| DirectoryKey {
            key: key.into(),
            created: Revision(created),
        });
        Ok(Self {
            id: written.id,
            base: written.base,
            layer: written.layer,
            born: written.born,
            born_at: written.born_at,
            params: written.params,
            directory,
            pin,
        })
    }
}
