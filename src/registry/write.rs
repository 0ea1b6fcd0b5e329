//! The driver of a write: prepares it, has it sequenced, and retries until its outcome is certain.
//!
//! A plan (see [`crate::plan`]) runs against one consistent state, and `run` submits the resulting
//! write. If the state that the plan read has changed, the plan runs again. From the second run on
//! the write waits in the queue of its key, so that many writers of one object each prepare once.
//! An answer without a commit (an error, an unchanged object, a dry run) is returned only when the
//! state that it rests on is durable. If that state is never committed, the plan runs again.
//!
//! A plan that needs the reply of a webhook, a converter or an authorizer ends early and runs again
//! with the reply. Other writers do not wait for that call: see `Attempt` and `Line`.

mod room;

use crate::plan::{self, Interrupted, ObjectChange, ObjectDeletion, PlanState, Run, prepare};
use crate::request::call::Call;
use crate::request::wait::{answerable_by, out_of_time};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, error_chain};
use polyplane_plane::{
    Committed, Key, KeyQueueGuard, ObjectRef, Settled, Snapshot, SubmitError, Write,
};
use std::future::Future;
use tokio::time::Instant;

/// `Retry-After` of a write that the store refused, in seconds. Less would add load to a store that
/// is already too slow.
const RETRY_SECONDS: u32 = 1;

/// The result of a plan: how to proceed with the state that the plan has read.
pub enum PlannedWrite {
    /// Commit this write; the client gets the stored object.
    Commit(Write),
    /// Commit this write; the client gets this tree of the stored version.
    CommitAs(Write, Value),
    /// Store nothing; this is the answer.
    Answer(Unstored),
}

/// An answer without a commit.
pub enum Unstored {
    /// The object as it is stored.
    Unchanged(ObjectRef),
    /// A tree that is not stored: the object that a dry run would have stored, or the last state of
    /// a removed object. In the stored version.
    Tree(Value),
    /// The new object that a dry run would have created, in the stored version.
    Created(Value),
    /// The object that a dry run would have removed.
    Removed(ObjectRef),
}

/// The result of a write.
pub enum Written {
    /// The write is durable.
    Committed(Committed),
    /// Nothing was stored.
    Unstored(Unstored),
}

/// Creates or changes an object.
///
/// # Errors
/// Returns the plan's error, or the reason why the plane did not apply the write.
///
/// # Cancel safety
/// Dropping the future does not undo a write that has been sequenced.
pub async fn change<C: ObjectChange>(call: &Call<'_>, change: &mut C) -> Result<Written, ApiError> {
    let key = change.key();
    run(call, &key, |run| plan::change(run, change)).await
}

/// Deletes an object.
///
/// # Errors
/// Returns the plan's error, or the reason why the plane did not apply the write.
///
/// # Cancel safety
/// Dropping the future does not undo a write that has been sequenced.
pub async fn delete<D: ObjectDeletion>(
    call: &Call<'_>,
    deletion: &mut D,
) -> Result<Written, ApiError> {
    let key = deletion.key();
    run(call, &key, |run| plan::deletion(run, deletion)).await
}

/// Runs `plan` until its outcome is certain. After another write has changed something that the
/// plan read, the next run waits in the queue of `key`.
///
/// # Errors
/// Returns the plan's error, or the reason why the plane did not apply the write.
///
/// # Cancel safety
/// Dropping the future does not undo a write that has been sequenced.
async fn run(
    call: &Call<'_>,
    key: &Key,
    mut plan: impl FnMut(&mut Run<'_>) -> Result<PlannedWrite, Interrupted>,
) -> Result<Written, ApiError> {
    let plane = &call.tenant.plane;
    let mut attempt = Attempt::new(call, key);
    loop {
        if Instant::now() >= call.request.deadline {
            return Err(too_late(call));
        }
        let cut = plane.accepted();
        call.stands_in(&cut)?;
        let planned = plan(&mut attempt.state.run(call, &cut));
        let answer = match planned.and_then(|planned| room::claim(call, key, &cut, planned)) {
            Ok(PlannedWrite::Commit(write)) => {
                // Dropped first: the sequencer changes a state in place if nothing else refers to
                // it.
                drop(cut);
                match attempt.submit(write).await? {
                    Some(committed) => return Ok(Written::Committed(committed)),
                    None => continue,
                }
            }
            Ok(PlannedWrite::CommitAs(write, tree)) => {
                drop(cut);
                match attempt.submit(write).await? {
                    Some(_) => return Ok(Written::Unstored(Unstored::Tree(tree))),
                    None => continue,
                }
            }
            Err(Interrupted::VersionUnsettled) => {
                within(call, plane.settled(&cut)).await?;
                continue;
            }
            Err(Interrupted::NeedsReplies) => {
                if attempt.may_ask(cut).await? == Asks::Now {
                    // Runs the plan on the published state: a webhook may get durable objects only,
                    // because only these have a resourceVersion.
                    let published = plane.snapshot();
                    if let Err(Interrupted::NeedsReplies) =
                        plan(&mut attempt.state.run(call, &published))
                    {
                        drop(published);
                        attempt.ask().await?;
                    }
                }
                continue;
            }
            Ok(PlannedWrite::Answer(answer)) => Ok(answer),
            Err(Interrupted::Failed(error)) => Err(error),
        };
        if within(call, plane.settled(&cut)).await? == Settled::Recompute {
            continue;
        }
        answerable(call).await?;
        match answer {
            Err(error) => return Err(error),
            Ok(Unstored::Unchanged(object)) => match versioned(call, object) {
                Some(object) => return Ok(Written::Unstored(Unstored::Unchanged(object))),
                None => continue,
            },
            Ok(other) => return Ok(Written::Unstored(other)),
        }
    }
}

/// A write in progress: it is tried until its outcome is certain.
struct Attempt<'a> {
    call: &'a Call<'a>,
    key: &'a Key,
    state: PlanState,
    line: Line,
}

/// The positions of a write in the queues of its key. It never waits for the head of the second
/// queue while it is at the head of the first: a write at the head of the second may wait for the
/// first, and both would wait for ever.
#[derive(Default)]
struct Line {
    /// True if an earlier run failed because another write had changed what it read.
    beaten: bool,
    /// The head of the queue of writes of which an earlier run failed. Held from the plan to its
    /// outcome, but never during a call to a webhook, converter or authorizer.
    turn: Option<KeyQueueGuard>,
    /// The head of the queue of such writes that make calls. Held during the call: writes without
    /// calls pass, and writes with calls make them one after the other. Concurrently, each would
    /// change the object that the others have just sent.
    asking: Option<KeyQueueGuard>,
}

/// The answer to whether the calls that a plan needs may be made now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Now,
    /// Not yet: the plan must run again first.
    NotYet,
}

impl<'a> Attempt<'a> {
    fn new(call: &'a Call<'a>, key: &'a Key) -> Self {
        Self {
            call,
            key,
            state: PlanState::default(),
            line: Line::default(),
        }
    }

    /// Submits a write to the plane. Returns `None` if it must be prepared again: because a claim
    /// failed, or the state that the write was prepared against was withdrawn (the write is then at
    /// the head of a queue of its key), or because it is small enough without the owners of fields.
    async fn submit(&mut self, mut write: Write) -> Result<Option<Committed>, ApiError> {
        write.claims.extend(self.call.kind_claim());
        let plane = &self.call.tenant.plane;
        // The write has the deadline of the request, so it needs no further timer here.
        match plane.submit(write).await {
            Ok(committed) => Ok(Some(committed)),
            Err(SubmitError::ClaimFailed(_) | SubmitError::Withdrawn) => {
                self.line.beaten = true;
                if self.state.has_asked() && self.line.asking.is_none() {
                    self.queue_to_ask().await?;
                } else if self.line.turn.is_none() {
                    self.line.turn =
                        Some(within(self.call, plane.enter_key_queue(self.key)).await?);
                }
                Ok(None)
            }
            Err(SubmitError::TooLarge { .. }) if self.state.drop_owners() => Ok(None),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Waits for the head of the queue of writes that make calls.
    async fn queue_to_ask(&mut self) -> Result<(), ApiError> {
        // Released first: the write at the head of the other queue may wait for `turn`, and both
        // would wait for ever.
        self.line.turn = None;
        let plane = &self.call.tenant.plane;
        self.line.asking = Some(within(self.call, plane.enter_outside_call_queue(self.key)).await?);
        Ok(())
    }

    /// Waits until a cut is durable, so that it may be sent to a webhook, converter or authorizer.
    /// Returns `NotYet` if the write must be prepared again first.
    async fn may_ask(&mut self, cut: Snapshot) -> Result<Asks, ApiError> {
        let (call, plane) = (self.call, &self.call.tenant.plane);
        let beaten = self.line.beaten || self.state.is_overtaken();
        if beaten && self.line.asking.is_none() {
            drop(cut);
            self.queue_to_ask().await?;
            return Ok(Asks::NotYet);
        }
        self.line.turn = None;
        if within(call, plane.settled(&cut)).await? == Settled::Recompute {
            return Ok(Asks::NotYet);
        }
        answerable(call).await?;
        Ok(Asks::Now)
    }

    /// Makes the calls that the last run needs. This is the only place where a write waits for
    /// anything but its plane. During the calls it holds no state, no seat, and not the queue of
    /// writes without calls, so a slow webhook delays only writes that call it. Ends at the
    /// request's deadline.
    async fn ask(&mut self) -> Result<(), ApiError> {
        let call = self.call;
        let away = call.leave_seat()?;
        let questions = self.state.take_open();
        let answers = within(call, plan::call_out(call, questions)).await?;
        drop(away);
        self.state.keep(answers);
        Ok(())
    }
}

/// Returns the object with its version, unless it has been replaced in the meantime.
fn versioned(call: &Call<'_>, object: ObjectRef) -> Option<ObjectRef> {
    if object.version().is_some() {
        return Some(object);
    }
    let published = call.tenant.plane.snapshot().get(object.key())?;
    (published.stamp() == object.stamp()).then_some(published)
}

/// Waits until this replica may answer from memory.
///
/// # Errors
/// Returns 503 if the plane has another owner, or the read lease is not proven before the deadline.
pub async fn answerable(call: &Call<'_>) -> Result<(), ApiError> {
    answerable_by(&call.tenant.plane, call.request.deadline).await
}

/// Waits for a future, but not beyond the request's deadline.
///
/// # Errors
/// Returns 504 when the deadline has passed.
pub async fn within<F: Future>(call: &Call<'_>, future: F) -> Result<F::Output, ApiError> {
    tokio::time::timeout_at(call.request.deadline, future)
        .await
        .map_err(|_| too_late(call))
}

fn too_late(call: &Call<'_>) -> ApiError {
    let verb = call.request.verb.name();
    ApiError::timeout(
        format!("request did not complete within the allotted timeout: {verb}"),
        0,
    )
}

/// Returns the answer to a write that the plane refused.
fn refusal(error: &SubmitError) -> ApiError {
    match error {
        SubmitError::TooLarge { .. } => prepare::too_large(),
        SubmitError::Deadline => out_of_time(),
        SubmitError::Lost => ApiError::moved(),
        other => ApiError::service_unavailable(error_chain(other)).with_retry_after(RETRY_SECONDS),
    }
}
