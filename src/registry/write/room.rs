//! The limits of what a plane may store, as a claim of each write.
//!
//! The write is refused if the plane is full in the state that it was prepared against, and prepared
//! again if it is full only in the state in which the sequencer applies it. So writes in flight never
//! exceed a limit together.

use crate::plan::Interrupted;
use crate::request::call::Call;
use crate::write::PlannedWrite;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_plane::{Claim, Full, Growth, Key, Room, Snapshot, Write};

/// Adds the claim that the plane has room for a planned write.
///
/// # Errors
/// Returns 403 if the plane has no room for it.
pub(super) fn claim(
    call: &Call<'_>,
    key: &Key,
    cut: &Snapshot,
    mut planned: PlannedWrite,
) -> Result<PlannedWrite, Interrupted> {
    let (PlannedWrite::Commit(write) | PlannedWrite::CommitAs(write, _)) = &mut planned else {
        return Ok(planned);
    };
    if let Some(room) = room(call) {
        add(call, key, cut, room, write).map_err(Interrupted::Failed)?;
    }
    Ok(planned)
}

/// Returns the room of the plane, if it is limited. What the server does by itself needs no seat and
/// is not limited: what it adds is bounded by what users have added, and a plane whose reconcilers
/// cannot write could not even be emptied.
fn room(call: &Call<'_>) -> Option<Room> {
    call.request.seats.as_ref()?;
    Room::of(&call.tenant.plane.meter()?.limits())
}

fn add(
    call: &Call<'_>,
    key: &Key,
    cut: &Snapshot,
    room: Room,
    write: &mut Write,
) -> Result<(), ApiError> {
    let growth = cut.growth(&write.operations);
    if growth.objects <= 0 && growth.bytes <= 0 {
        return Ok(());
    }
    match cut.has_room(growth, room) {
        Ok(()) => {
            write.claims.push(Claim::Within { growth, room });
            Ok(())
        }
        Err(full) => Err(refusal(call, key, full, growth, room)),
    }
}

fn refusal(call: &Call<'_>, key: &Key, full: Full, growth: Growth, room: Room) -> ApiError {
    let plane = &call.tenant.name;
    let why = match full {
        Full::Objects { has } => format!(
            "control plane {plane:?} is at its limit of {} objects: it has {has}, and this adds {}; delete objects, \
             or ask for a higher spec.limits.objects",
            room.objects, growth.objects
        ),
        Full::Bytes { has } => format!(
            "control plane {plane:?} is at its limit of {} bytes: it has {has}, and this adds {}; delete objects, or \
             ask for a higher spec.limits.bytes",
            room.bytes, growth.bytes
        ),
    };
    let (group, resource) = call.qualified();
    ApiError::forbidden(Qualified::new(&group, &resource), key.name(), why)
}
