//! How a write is tried until it is certain what became of it.
//!
//! An [`Attempt`] looks at one consistent state and says what should happen; [`run`] has it
//! sequenced. If what it looked at has changed it is asked again, from the second time on in the
//! turn of its key, so that many writers of one object each prepare once. Whatever is answered
//! without a commit (errors, unchanged objects, dry runs) waits until the state it speaks of is
//! durable, and is worked out again if that state did not come to be.

use crate::call::{Call, tree_of};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_plane::{
    Committed, Key, NotAnswerable, ObjectRef, Settled, Snapshot, SubmitError, TurnGuard, Write,
};
use std::future::Future;
use tokio::time::Instant;

/// Seconds after which a client may try a write again that the store did not take.
const RETRY_SECONDS: u32 = 1;

/// What should happen to the state that was looked at.
pub enum Plan {
    /// This is to be committed; the client gets what was stored.
    Commit(Write),
    /// This is to be committed; the client gets this tree of the stored version.
    CommitAs(Write, Value),
    /// Nothing is stored; this is the answer.
    Answer(Unstored),
    /// The object's version is not known yet and matters: look again when it is.
    Settle,
}

/// An answer without a commit.
pub enum Unstored {
    /// The object as it is.
    Unchanged(ObjectRef),
    /// A tree that is not stored: what would have been, or the last state of what was removed. In
    /// the stored version.
    Tree(Value),
    /// The object that would have been removed.
    Removed(ObjectRef),
}

/// What became of a write.
pub enum Written {
    /// It is durable.
    Committed(Committed),
    /// Nothing was stored.
    Unstored(Unstored),
}

/// One write, which may be planned several times.
pub trait Attempt: Send {
    /// The key whose turn it takes when it has been beaten.
    fn key(&self) -> Key;

    /// Says what should happen, given this state.
    ///
    /// # Errors
    /// What the client is told if that state turns out to be durable.
    fn plan(&mut self, cut: &Snapshot) -> impl Future<Output = Result<Plan, ApiError>> + Send;
}

/// Tries until the outcome is known.
///
/// # Errors
/// What the attempt says, or why the plane cannot take the write.
///
/// # Cancel safety
/// Dropping the future does not take a write back that has been sequenced.
pub async fn run<A: Attempt>(call: &Call<'_>, attempt: &mut A) -> Result<Written, ApiError> {
    let plane = &call.tenant.plane;
    let mut turn = None;
    loop {
        if Instant::now() >= call.request.deadline {
            return Err(too_late(call));
        }
        let cut = plane.accepted();
        let answer = match attempt.plan(&cut).await {
            Ok(Plan::Commit(write)) => {
                // Nobody else needs the state: let go of, it is changed in place.
                drop(cut);
                match submit(call, write, attempt, &mut turn).await? {
                    Some(committed) => return Ok(Written::Committed(committed)),
                    None => continue,
                }
            }
            Ok(Plan::CommitAs(write, tree)) => {
                drop(cut);
                match submit(call, write, attempt, &mut turn).await? {
                    Some(_) => return Ok(Written::Unstored(Unstored::Tree(tree))),
                    None => continue,
                }
            }
            Ok(Plan::Settle) => {
                within(call, plane.settled(&cut)).await?;
                continue;
            }
            Ok(Plan::Answer(answer)) => Ok(answer),
            Err(error) => Err(error),
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

/// Has a write sequenced; `None` if what it rests on has changed.
async fn submit<A: Attempt>(
    call: &Call<'_>,
    write: Write,
    attempt: &A,
    turn: &mut Option<TurnGuard>,
) -> Result<Option<Committed>, ApiError> {
    let plane = &call.tenant.plane;
    match within(call, plane.submit(write)).await? {
        Ok(committed) => Ok(Some(committed)),
        Err(SubmitError::ClaimFailed(_) | SubmitError::Withdrawn) => {
            if turn.is_none() {
                *turn = Some(within(call, plane.turn(&attempt.key())).await?);
            }
            Ok(None)
        }
        Err(error) => Err(refusal(&error)),
    }
}

/// The object with its version, unless it has been replaced meanwhile.
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
/// 503 if it may not, 504 if that does not become clear in time.
pub async fn answerable(call: &Call<'_>) -> Result<(), ApiError> {
    let deadline = call.request.deadline;
    call.tenant
        .plane
        .answerable(deadline)
        .await
        .map_err(|error| match error {
            NotAnswerable::Lost => ApiError::moved(),
            other => ApiError::service_unavailable(format!(
                "the control plane cannot be read here: {other}"
            )),
        })
}

/// Waits for a future, but not beyond the request's deadline.
///
/// # Errors
/// 504 when the time is up.
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

/// What a client is told of a write that the plane did not take.
fn refusal(error: &SubmitError) -> ApiError {
    match error {
        SubmitError::TooLarge { .. } => {
            ApiError::new(Reason::Unknown, "etcdserver: request is too large")
        }
        SubmitError::Deadline => {
            ApiError::timeout("request did not complete within the allotted timeout", 0)
        }
        SubmitError::Lost => ApiError::moved(),
        other => ApiError::service_unavailable(chain(other)).with_retry_after(RETRY_SECONDS),
    }
}

/// An error with its sources, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

/// The tree of an object without the version, for comparison.
///
/// # Errors
/// 500 if the bytes are damaged.
pub fn unversioned_tree(object: &ObjectRef) -> Result<Value, ApiError> {
    let mut tree = tree_of(&object.body())?;
    tree.remove(&["metadata", "resourceVersion"]);
    Ok(tree)
}
