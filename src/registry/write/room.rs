//! The limits of what clients may add: those of the plane, as a claim of each write, and that of a store
//! that is nearly full.
//!
//! The write is refused if the plane is full in the state that it was prepared against, and prepared
//! again if it is full only in the state in which the sequencer applies it. So writes in flight never
//! exceed a limit together.
//!
//! A full store refuses every write, deletions too. So while it is nearly full, clients may only write
//! what creates no object and adds hardly any bytes: deletions, the removal of finalizers, the renewal of leases.
//! The first change of a layer's object adds all bytes of it to the store, and is judged by these.
//! This is no claim: the writes in flight when it begins still pass.

use crate::plan::Interrupted;
use crate::request::call::Call;
use crate::write::{PlannedWrite, RETRY_SECONDS};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_plane::{Claim, Full, Growth, Key, Operation, Room, Snapshot, SubmitError, Write};

/// Bytes that a write may add while the store is nearly full. With fewer, a client could not remove the
/// finalizers of an object whose field manager it was not before, or say in its status what still uses it.
const SMALL_GROWTH_BYTES: i64 = 1024;

/// Adds the claim that the plane has room for a planned write.
///
/// # Errors
/// Returns 403 if the plane has no room for it, and 503 if it adds data and the store is nearly full.
pub(super) fn claim(
    call: &Call<'_>,
    key: &Key,
    cut: &Snapshot,
    mut planned: PlannedWrite,
) -> Result<PlannedWrite, Interrupted> {
    let (PlannedWrite::Commit(write) | PlannedWrite::CommitAs(write, _)) = &mut planned else {
        return Ok(planned);
    };
    // What the server does by itself needs no seat and is not limited: what it adds is bounded by what
    // users have added, and a plane whose reconcilers cannot write could not even be emptied. A reconciler whose
    // writes are not bounded so takes a seat.
    if call.request.seats.is_some() {
        add(call, key, cut, write).map_err(Interrupted::Failed)?;
    }
    Ok(planned)
}

/// Returns the room of the plane, if it is limited.
fn room(call: &Call<'_>) -> Option<Room> {
    Room::of(&call.tenant.plane.meter()?.limits())
}

fn add(call: &Call<'_>, key: &Key, cut: &Snapshot, write: &mut Write) -> Result<(), ApiError> {
    let room = room(call);
    let is_nearly_full = call.tenant.plane.store_is_nearly_full();
    if room.is_none() && !is_nearly_full {
        return Ok(());
    }
    let growth = cut.growth(&write.operations);
    if growth.objects <= 0 && growth.bytes <= 0 {
        return Ok(());
    }
    if is_nearly_full && (growth.bytes > SMALL_GROWTH_BYTES || creates(cut, write)) {
        return Err(nearly_full(call));
    }
    let Some(room) = room else {
        return Ok(());
    };
    match cut.has_room(growth, room) {
        Ok(()) => {
            write.claims.push(Claim::Within { growth, room });
            Ok(())
        }
        Err(full) => Err(refusal(call, key, full, growth, room)),
    }
}

/// Returns whether a write creates an object.
fn creates(cut: &Snapshot, write: &Write) -> bool {
    write.operations.iter().any(|operation| match operation {
        Operation::Put { key, .. } => cut.get(key).is_none(),
        Operation::Delete { .. } => false,
    })
}

/// Returns the refusal, with the code and the `Retry-After` of one by a full store. A store that has become full is
/// also nearly full, and then this write gets the reason that deletions get.
fn nearly_full(call: &Call<'_>) -> ApiError {
    if let Some(reason) = call.tenant.plane.store_read_only() {
        return super::refusal(&SubmitError::ReadOnly(reason));
    }
    let why = format!(
        "the store is nearly full: deletions still pass, and updates that add at most {SMALL_GROWTH_BYTES} bytes \
         to it; try again once the store has more room"
    );
    ApiError::service_unavailable(why).with_retry_after(RETRY_SECONDS)
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
