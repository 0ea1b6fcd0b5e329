//! The answers of `/polyplane/ring`, `/polyplane/ring/terms`, `/polyplane/top`, `/polyplane/drain`,
//! `/polyplane/encryption/<name>` and `/polyplane/locate/<name>`: the ring as this replica sees it, with the numbers that the other
//! replicas report. The plugin prints these answers.

use crate::replica::drain_report::DrainReport;
use crate::replica::encryption::report;
use crate::replica::plane_directory::{LookupError, NameOrId, PlaneDirectory};
use crate::replica::usage_report;
use polyplane_apimachinery::error_chain;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_batteries::polyplane::control_plane::{GROUP, RESOURCE};
use polyplane_ownership::{
    Candidate, ChangeError, LeaseTerms, Length, Member, PeerMessage, PeerReply, Pin, PlaneLocation,
    ROOT, Standing, Terms,
};
use polyplane_server::BoxFuture;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// How long a replica may take to report how many planes it holds. A slower one is shown without
/// numbers, so that the report does not wait for it.
const PATIENCE: Duration = Duration::from_secs(1);
const RING: &str = "/polyplane/ring";
const RAISE_FLOOR: &str = "/polyplane/ring/raise-floor";
const TOP: &str = "/polyplane/top";
const TERMS: &str = "/polyplane/ring/terms";
const DRAIN: &str = "/polyplane/drain";
const LOCATE: &str = "/polyplane/locate/";
const ENCRYPTION: &str = "/polyplane/encryption/";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ring {
    view: u64,
    /// The level floor: no replica with a lower level may join.
    floor: u32,
    planes: usize,
    replicas: Vec<Replica>,
    /// The replicas that wait outside because of certificates or of their address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    candidates: Vec<Outside>,
    /// Why the files of the replica that answers are probably the wrong ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    outvoted: Option<String>,
}

#[derive(Serialize)]
struct Outside {
    id: String,
    /// When its wait began, RFC 3339.
    since: String,
    /// The CA that has issued its peer certificate, named by a hash of its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The CAs of peers that it accepts, with commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    trusts: Option<String>,
    /// Why it waits, if it says so itself, or why it and the replica that answers do not accept each other's
    /// certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl From<Candidate> for Outside {
    fn from(candidate: Candidate) -> Self {
        let (issuer, trusts) = match candidate.trust {
            Some(trust) => (trust.issuer, Some(trust.trusted.join(","))),
            None => (None, None),
        };
        Self {
            id: candidate.id.to_string(),
            since: candidate.since,
            issuer,
            trusts,
            why: candidate.why,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    id: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// The level of the replica's binary.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
    weight: u16,
    address: String,
    incarnation: u64,
    /// The number of planes that the replica owns; absent if it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    owned: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    awake: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hand_offs: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownTerms {
    #[serde(flatten)]
    current: Lengths,
    /// The terms to which the replicas are changing.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Lengths>,
    /// The replicas that do not follow both terms yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    awaited: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Lengths {
    read_lease_millis: u64,
    margin_millis: u64,
}

#[derive(Serialize)]
struct Raised {
    floor: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    name: String,
    id: String,
    designated: Option<String>,
    owner: Option<String>,
    epoch: Option<u64>,
    fence: &'static str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pin: Option<String>,
}

/// Returns the answer to a GET of `path`, or `None` if this module has no such path.
pub fn of<'a>(
    directory: &'a Arc<PlaneDirectory>,
    path: &'a str,
) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
    if path == RING {
        return Some(Box::pin(async { json(&ring(directory).await) }));
    }
    if path == TOP {
        return Some(Box::pin(usage_report::of_ring(directory)));
    }
    if path == DRAIN {
        return Some(Box::pin(async { json(&DrainReport::of(directory)) }));
    }
    if path == TERMS {
        return Some(Box::pin(async {
            json(&show_terms(directory, directory.planes.ring().terms()))
        }));
    }
    if let Some(name) = path.strip_prefix(ENCRYPTION) {
        return Some(Box::pin(report::of(directory, name)));
    }
    let name = path.strip_prefix(LOCATE).filter(|name| !name.is_empty())?;
    Some(Box::pin(
        async move { json(&locate(directory, name).await?) },
    ))
}

/// Carries out a POST to `path`; returns `None` if this module has no such path.
pub fn command<'a>(
    directory: &'a Arc<PlaneDirectory>,
    path: &'a str,
) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
    if path == RAISE_FLOOR {
        return Some(Box::pin(async move { json(&raise(directory).await?) }));
    }
    let lengths = path.strip_prefix(TERMS)?.strip_prefix('/')?;
    Some(Box::pin(async move {
        json(&change_terms(directory, lengths).await?)
    }))
}

/// Starts the change to the terms READ_LEASE/MARGIN, both in milliseconds.
async fn change_terms(directory: &PlaneDirectory, lengths: &str) -> Result<ShownTerms, ApiError> {
    let lengths = lengths.split_once('/').and_then(|(read_lease, margin)| {
        let length = |text: &str| Some(Length::from_millis(text.parse().ok()?));
        LeaseTerms::new(length(read_lease)?, length(margin)?).ok()
    });
    let wanted = lengths.ok_or_else(|| {
        ApiError::bad_request(
            "the path must end with a read lease and a margin in milliseconds, both at least 1",
        )
    })?;
    match directory.planes.ring().change_terms(wanted).await {
        Ok(terms) => Ok(show_terms(directory, terms)),
        Err(error @ ChangeError::Floor { .. }) => Err(ApiError::bad_request(format!(
            "{}, with `kubectl plane ring --raise-floor`",
            error_chain(&error)
        ))),
        Err(error @ (ChangeError::ReadLease { .. } | ChangeError::Margin { .. })) => {
            Err(ApiError::bad_request(error_chain(&error)))
        }
        Err(error) => Err(ApiError::service_unavailable(error_chain(&error))),
    }
}

fn show_terms(directory: &PlaneDirectory, terms: Terms) -> ShownTerms {
    let lengths = |terms: LeaseTerms| Lengths {
        read_lease_millis: terms.read_lease().as_nanos() / 1_000_000,
        margin_millis: terms.margin().as_nanos() / 1_000_000,
    };
    let awaited = directory.planes.ring().terms_awaited();
    ShownTerms {
        current: lengths(terms.current),
        next: terms.next.map(lengths),
        awaited: awaited.iter().map(ToString::to_string).collect(),
    }
}

async fn raise(directory: &PlaneDirectory) -> Result<Raised, ApiError> {
    match directory.planes.raise_floor().await {
        Ok(floor) => Ok(Raised { floor: floor.level }),
        Err(error) => Err(ApiError::service_unavailable(error_chain(&error))),
    }
}

fn json(shown: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(shown).map_err(|error| ApiError::internal(error.to_string()))
}

async fn ring(directory: &PlaneDirectory) -> Ring {
    let ring = directory.planes.ring();
    let view = ring.view();
    let members: Vec<Member> = view.members().cloned().collect();
    let asked = members.iter().map(|member| replica(directory, member));
    Ring {
        view: view.number().get(),
        floor: directory.planes.floor().level,
        planes: directory.rows.len(),
        replicas: futures_util::future::join_all(asked).await,
        candidates: ring.candidates().into_iter().map(Outside::from).collect(),
        outvoted: ring.outvoted(),
    }
}

async fn replica(directory: &PlaneDirectory, member: &Member) -> Replica {
    let ring = directory.planes.ring();
    let load = if ring.is_own(member) {
        let stats = directory.planes.stats();
        Some((stats.owned, stats.awake, stats.hand_offs_done))
    } else {
        match ring.call(member, PeerMessage::Load.into(), PATIENCE).await {
            Ok(PeerReply::Load {
                owned,
                awake,
                hand_offs,
            }) => Some((owned, awake, hand_offs)),
            Ok(_) | Err(_) => None,
        }
    };
    Replica {
        id: member.id.to_string(),
        state: match member.standing {
            Standing::Serving => "Serving",
            Standing::Draining => "Draining",
        },
        zone: member.zone.as_ref().map(ToString::to_string),
        level: ring.levels().get(&member.id).copied(),
        weight: member.weight.get(),
        address: member.address.to_string(),
        incarnation: member.incarnation.get(),
        owned: load.map(|(owned, _, _)| owned),
        awake: load.map(|(_, awake, _)| awake),
        hand_offs: load.map(|(_, _, hand_offs)| hand_offs),
    }
}

async fn locate(directory: &PlaneDirectory, name: &str) -> Result<Found, ApiError> {
    let missing = |_: LookupError| ApiError::not_found(Qualified::new(GROUP, RESOURCE), name);
    let located = match name {
        ROOT => directory.root().cloned().ok_or(LookupError::NotFound),
        name => directory.seek(&NameOrId::Name(name.into())).await,
    };
    let located = located.map_err(missing)?;
    let birth = &located.birth;
    let fence = directory.planes.fence(birth).await;
    let fence = fence.map_err(|error| ApiError::service_unavailable(error_chain(&error)))?;
    let designated = directory.planes.designated(birth);
    let held = fence.as_ref().filter(|fence| fence.state == "Held");
    let here = directory.planes.location(birth) == PlaneLocation::Here
        && located.awake(directory).is_some();
    Ok(Found {
        name: located.name.as_str().to_owned(),
        id: birth.id.clone(),
        designated: designated.map(|member| member.id.to_string()),
        owner: held.map(|fence| fence.replica.clone()),
        epoch: fence.as_ref().map(|fence| fence.epoch),
        fence: fence.as_ref().map_or("Absent", |fence| fence.state),
        // A plane that sleeps has a released fence.
        state: if here || held.is_some() {
            "awake"
        } else {
            "asleep"
        },
        pin: match &birth.pin {
            Pin::Anywhere => None,
            Pin::Replica(id) => Some(format!("replica {id}")),
            Pin::Zone(zone) => Some(format!("zone {zone}")),
        },
    })
}
