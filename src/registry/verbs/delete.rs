//! DELETE of one object and of a collection.

use crate::answer::Outcome;
use crate::answer::negotiate;
use crate::answer::negotiate::Representation;
use crate::authority::GrantedAccess;
use crate::kinds::table::Resource;
use crate::metadata;
use crate::plan::{Interrupted, ObjectDeletion, ObjectFate, Present, Run};
use crate::request::ResourceRequest;
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::{DeleteOptions, ListOptions, ListPurpose, Persistence, Propagation};
use crate::request::parameters::DURATION_SECONDS_MAX;
use crate::select::{self, Selection};
use crate::services::Removal;
use crate::strategy::Grace;
use crate::verbs::list;
use crate::verbs::list::streamed::Listed;
use crate::verbs::update;
use crate::write::{self, Written};
use futures_util::future::{self, BoxFuture};
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Key, ObjectRef};

/// Number of objects of one collection that are deleted at the same time, and share a transaction. All are
/// prepared in one poll, so with more they would hold up other tasks of the worker thread.
const DELETES_MAX: usize = 32;
/// Bytes of these objects, unless it is one alone. With more, deletions of large objects, such as definitions of kinds,
/// would be prepared for many milliseconds in one poll.
const DELETES_BYTES_MAX: usize = 256 * 1024;
/// The priority classes that components of the system name in their pods.
const SYSTEM_PRIORITY_CLASSES: [&str; 2] = ["system-node-critical", "system-cluster-critical"];
/// The last second of the year 9999. Clients cannot read an object with a later time.
const LAST_SECOND: i64 = 253_402_300_799;

/// The result of a deletion.
pub struct Deleted {
    /// The write, or the one that a dry run would have made.
    pub written: Written,
    /// The choice whether the object was removed, or waits for its finalizers or grace period.
    pub gone: Removal,
    /// The status of the answer.
    pub outcome: Outcome,
}

/// Why an object that can be read is not deleted by whoever wants to ignore that it cannot be read.
const READABLE: &str =
    "unsafe deletion is not allowed because the object is decodable from storage";

/// The group whose storages upstream wraps so that they do not delete what cannot be read.
const RBAC: &str = "rbac.authorization.k8s.io";
const NO_UNSAFE_DELETER: &str =
    "no unsafe deleter provided, can not honor ignoreStoreReadErrorWithClusterBreakingPotential";

/// Reads the options of a deletion from the body or the query.
///
/// # Errors
/// Returns 400 or 422, as upstream does.
pub fn options(call: &Call<'_>) -> Result<DeleteOptions, ApiError> {
    if call.request.body.is_empty() {
        return DeleteOptions::parse(call.request, None);
    }
    let syntax = negotiate::input(call.request)?;
    let schemas = call.tenant.base.schemas();
    let definition = schemas
        .find("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
        .ok_or_else(|| ApiError::internal("the schema of DeleteOptions is missing"))?;
    let tree = body::options::decode(call, syntax, definition)?;
    DeleteOptions::parse(call.request, Some(&tree))
}

/// Warns that the pods of jobs stay, unless the client said what becomes of them.
fn warn_of_orphans(call: &Call<'_>, options: &DeleteOptions) {
    if call.row.name == "jobs"
        && call.row.rules.default_gc_policy == "OrphanDependents"
        && options.propagation.is_none()
        && options.orphan_dependents.is_none()
    {
        call.warn(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        );
    }
}

/// Deletes the object of the path.
///
/// # Errors
/// Returns upstream's errors.
pub async fn delete(call: &Call<'_>) -> Result<Deleted, ApiError> {
    let name = call.name()?.clone();
    let options = options(call)?;
    if options.ignores_read_error && call.row.group == RBAC {
        return Err(ApiError::internal(NO_UNSAFE_DELETER));
    }
    refuse_system_class(call, &name)?;
    warn_of_orphans(call, &options);
    let orphans = options.orphan_dependents;
    let mut delete = Delete::new(call, name, Ok(options));
    let written = write::delete(call, &mut delete).await?;
    let written = delete.finish().await?.unwrap_or(written);
    let pending = delete.removal == Removal::Pending;
    let outcome = if pending && orphans == Some(false) {
        Outcome::Accepted
    } else {
        Outcome::Ok
    };
    Ok(Deleted {
        written,
        gone: delete.removal,
        outcome,
    })
}

/// Refuses to delete a priority class of the system. Upstream does so before it looks for the class, and only for the
/// class of a path: the deletion of a collection removes these classes too.
fn refuse_system_class(call: &Call<'_>, name: &str) -> Result<(), ApiError> {
    let is_class = call.row.qualified == "priorityclasses.scheduling.k8s.io";
    if !is_class || !SYSTEM_PRIORITY_CLASSES.contains(&name) {
        return Ok(());
    }
    let what = Qualified::new(&call.row.group, &call.row.name);
    let why = "this is a system priority class and cannot be deleted";
    Err(ApiError::forbidden(what, name, why))
}

/// The deletion of one object.
pub(crate) struct Delete<'a> {
    call: &'a Call<'a>,
    name: Str,
    options: Result<DeleteOptions, ApiError>,
    removal: Removal,
    /// Which of the two writes of a removal without a grace period is next.
    graceless: Graceless,
}

/// An object of a kind with grace periods that is deleted without one takes two writes, as upstream: the first
/// marks it as deleted with a grace period of 0, the second removes it. So watchers get the mark as a change:
/// a controller of pods may look at changes alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Graceless {
    /// The first write is due if the object is to be removed at once.
    Due,
    /// The first write is planned or done.
    Said,
    /// The second write is due.
    Removing,
}

impl<'a> Delete<'a> {
    /// Creates the deletion. An error in the options is reported only once there is an object to
    /// delete.
    pub(crate) fn new(
        call: &'a Call<'a>,
        name: Str,
        options: Result<DeleteOptions, ApiError>,
    ) -> Self {
        Self {
            call,
            name,
            options,
            removal: Removal::Gone,
            graceless: Graceless::Due,
        }
    }

    /// Makes the second write of a removal that takes two. Returns `None` if there is none, or nothing left
    /// to remove.
    async fn finish(&mut self) -> Result<Option<Written>, ApiError> {
        if !self.has_to_remove() {
            return Ok(None);
        }
        let call = self.call;
        let removed = unless_gone(write::delete(call, self).await)?;
        if removed.is_none() {
            self.removal = Removal::Gone;
        }
        Ok(removed)
    }

    /// Returns whether the write that was made is the first of two. The next run plans the second one.
    pub(crate) fn has_to_remove(&mut self) -> bool {
        let is_said = self.graceless == Graceless::Said;
        if is_said {
            self.graceless = Graceless::Removing;
        }
        if let (true, Ok(options)) = (is_said, &mut self.options) {
            // The first write has changed it.
            options.resource_version = None;
        }
        is_said
    }

    /// Returns whether an object that would be removed has to be marked first.
    fn says_first(&self, options: &DeleteOptions, old: &Value) -> bool {
        let meta = &old["metadata"];
        let is_said = !meta.str_at(&["deletionTimestamp"]).is_empty()
            && meta.int_at(&["deletionGracePeriodSeconds"]) == Some(0);
        self.graceless != Graceless::Removing
            && self.call.row.rules.graceful_delete
            && options.persistence == Persistence::Store
            && !is_said
    }
}

impl ObjectDeletion for Delete<'_> {
    fn key(&self) -> Key {
        self.call.key(&self.name)
    }

    fn options(&self) -> Result<&DeleteOptions, ApiError> {
        self.options.as_ref().map_err(ApiError::clone)
    }

    fn find(&mut self, run: &mut Run<'_>) -> Result<Present, Interrupted> {
        let call = self.call;
        let Some(existing) = run.cut.get(&self.key()) else {
            return Err(call.not_found(&self.name).into());
        };
        let options = self.options()?;
        if options.resource_version.is_some() && existing.version().is_none() {
            return Err(Interrupted::VersionUnsettled);
        }
        let present = Present::read(run, call.row, existing)?;
        if options.ignores_read_error {
            let object = (call.row.as_ref(), call.namespace(), &*self.name);
            // Upstream reads the object from the store, also in a dry run.
            let why = update::invalid_object(object, Persistence::Store, READABLE);
            return Err(call.conflict(&self.name, &why).into());
        }
        let context = run.context(call.row, call.subresource());
        let strategy = &call.row.strategy;
        strategy.admit_delete(&context, present.tree())?;
        self.check_preconditions(options, &present)?;
        Ok(present)
    }

    fn kind(&self) -> Expected<'_> {
        Expected::of(self.call.row)
    }

    fn mark(&mut self, run: &Run<'_>, present: &Present) -> Result<ObjectFate, ApiError> {
        let options = self.options()?;
        let marking = Marking {
            row: self.call.row,
            options,
            now: run.now,
        };
        let mut next = marking.next(present.tree());
        let says = matches!(next, ObjectFate::Removed) && self.says_first(options, present.tree());
        if says {
            next = marking.kept(last_state(present.tree().clone(), run.now));
        }
        if self.graceless != Graceless::Removing {
            // Each run takes the place of the one before.
            self.graceless = match says {
                true => Graceless::Said,
                false => Graceless::Due,
            };
        }
        self.removal = match next {
            ObjectFate::Removed => Removal::Gone,
            ObjectFate::Stored(_) | ObjectFate::Unchanged => Removal::Pending,
        };
        Ok(next)
    }
}

impl Delete<'_> {
    fn check_preconditions(
        &self,
        options: &DeleteOptions,
        present: &Present,
    ) -> Result<(), ApiError> {
        let kind = Qualified::new(&self.call.row.group, &self.call.row.kind);
        let uid = present.tree().str_at(&["metadata", "uid"]);
        if let Some(wished) = &options.uid
            && wished != uid
        {
            let why = format!(
                "the UID in the precondition ({wished}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
            );
            return Err(ApiError::conflict(kind, &self.name, why));
        }
        let version = present
            .object()
            .version()
            .map(|version| version.to_string())
            .unwrap_or_default();
        if let Some(wished) = &options.resource_version
            && *wished != version
        {
            let why = format!(
                "the ResourceVersion in the precondition ({wished}) does not match the ResourceVersion in record ({version}). The object might have been modified"
            );
            return Err(ApiError::conflict(kind, &self.name, why));
        }
        Ok(())
    }
}

/// The computation of what a deletion does to an object.
struct Marking<'a> {
    row: &'a Resource,
    options: &'a DeleteOptions,
    now: i64,
}

impl Marking<'_> {
    fn next(&self, old: &Value) -> ObjectFate {
        let now = self.now;
        let meta = &old["metadata"];
        let marked = !meta.str_at(&["deletionTimestamp"]).is_empty();
        let had_grace = meta
            .int_at(&["deletionGracePeriodSeconds"])
            .unwrap_or(0)
            .max(0);
        let wished = self
            .options
            .grace_seconds
            .map(|seconds| if seconds < 0 { 1 } else { seconds });
        let grace = match self.row.strategy.grace(old, wished) {
            Grace::Now => 0,
            Grace::Seconds(seconds) => seconds,
        };
        let graceful = self.row.rules.graceful_delete && grace > 0;
        if marked && had_grace > 0 && self.row.rules.graceful_delete {
            match wished {
                Some(seconds) if seconds < had_grace => {
                    return self.shorten(old, had_grace, seconds, now);
                }
                _ => return ObjectFate::Unchanged,
            }
        }
        let mut tree = old.clone();
        let strategy = &self.row.strategy;
        let mut pending = strategy.awaits(old);
        if marked || !strategy.is_deleted_without_propagation() {
            let finalizers = self.finalizers(old);
            pending |= !finalizers.is_empty();
            set_finalizers(&mut tree, finalizers);
        }
        if graceful && !marked {
            set_deletion(&mut tree, after(now, span(grace)), grace, Count::Generation);
            return self.kept(tree);
        }
        if !pending {
            return ObjectFate::Removed;
        }
        let count = if marked {
            Count::Nothing
        } else {
            Count::Generation
        };
        if marked {
            tree.set(&["metadata", "deletionGracePeriodSeconds"], 0i64);
        } else {
            set_deletion(&mut tree, now, 0, count);
        }
        self.kept(tree)
    }

    /// Returns the object with the shorter grace period of a second deletion, if it is shorter.
    fn shorten(&self, old: &Value, had: i64, wished: i64, now: i64) -> ObjectFate {
        let at = Timestamp::parse(old.str_at(&["metadata", "deletionTimestamp"]))
            .map_or(now, |at| at.seconds);
        let (mut at, mut seconds) = (after(at, span(wished) - span(had)), wished);
        if at < now {
            at = now;
            seconds = seconds.min(1);
        }
        let finalizers = self.finalizers(old);
        if seconds == 0 && finalizers.is_empty() {
            return ObjectFate::Removed;
        }
        let mut tree = old.clone();
        set_finalizers(&mut tree, finalizers);
        set_deletion(&mut tree, at, seconds, Count::Nothing);
        self.kept(tree)
    }

    /// Returns the finalizers that the requested treatment of dependents leaves on the object.
    fn finalizers(&self, old: &Value) -> Vec<Str> {
        let present = metadata::strings(&old["metadata"]["finalizers"]);
        let policy = &self.row.rules.default_gc_policy;
        let supported = policy != "Unsupported";
        let wish = match (self.options.orphan_dependents, self.options.propagation) {
            (Some(true), _) => Some(Propagation::Orphan),
            (Some(false), _) => Some(Propagation::Background),
            (None, wish) => wish,
        };
        let wish = wish.or_else(|| {
            present.iter().find_map(|name| match *name {
                "orphan" => Some(Propagation::Orphan),
                "foregroundDeletion" => Some(Propagation::Foreground),
                _ => None,
            })
        });
        let wish = wish.unwrap_or(if policy == "OrphanDependents" {
            Propagation::Orphan
        } else {
            Propagation::Background
        });
        let mut kept: Vec<Str> = present
            .iter()
            .filter(|name| !matches!(**name, "orphan" | "foregroundDeletion"))
            .map(|name| Str::from(*name))
            .collect();
        match wish {
            Propagation::Orphan if supported => kept.push("orphan".into()),
            Propagation::Foreground if supported => kept.push("foregroundDeletion".into()),
            _ => {}
        }
        let mut before: Vec<&str> = present.clone();
        let mut after: Vec<&str> = kept.iter().map(Str::as_str).collect();
        before.sort_unstable();
        after.sort_unstable();
        if before == after {
            present.into_iter().map(Str::from).collect()
        } else {
            kept
        }
    }

    /// Returns the object, marked as being deleted.
    fn kept(&self, mut tree: Value) -> ObjectFate {
        self.row.strategy.prepare_deletion(&mut tree);
        ObjectFate::Stored(tree)
    }
}

/// Limits a grace period to the range that counts, because a client may send any number of 64 bits.
fn span(seconds: i64) -> i64 {
    seconds.clamp(0, DURATION_SECONDS_MAX)
}

/// Adds `seconds` to the time `at`, and keeps the sum within the years that RFC 3339 can write.
fn after(at: i64, seconds: i64) -> i64 {
    at.saturating_add(seconds).clamp(0, LAST_SECOND)
}

/// The choice whether `metadata.generation` counts a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    Generation,
    Nothing,
}

fn set_deletion(tree: &mut Value, at: i64, grace: i64, count: Count) {
    tree.set(
        &["metadata", "deletionTimestamp"],
        Timestamp::from_seconds(at).to_rfc3339(),
    );
    tree.set(&["metadata", "deletionGracePeriodSeconds"], grace);
    let generation = tree.int_at(&["metadata", "generation"]).unwrap_or(0);
    if count == Count::Generation && generation > 0 {
        tree.set(&["metadata", "generation"], generation.saturating_add(1));
    }
}

/// Returns the last state of an object that was removed without a grace period although its kind
/// has one: marked as if it had been deleted with a grace period of zero.
pub fn last_state(mut tree: Value, now: i64) -> Value {
    let marked = !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty();
    let count = if marked {
        Count::Nothing
    } else {
        Count::Generation
    };
    set_deletion(&mut tree, now, 0, count);
    tree
}

fn set_finalizers(tree: &mut Value, finalizers: Vec<Str>) {
    if finalizers.is_empty() {
        drop(tree.remove(&["metadata", "finalizers"]));
    } else {
        let items: Vec<Value> = finalizers.into_iter().map(Value::from).collect();
        tree.set(&["metadata", "finalizers"], items);
    }
}

/// Returns the result of a deletion; `None` if there was nothing to delete any more.
pub(crate) fn unless_gone(written: Result<Written, ApiError>) -> Result<Option<Written>, ApiError> {
    match written {
        Err(error) if error.reason == Reason::NotFound => Ok(None),
        written => written.map(Some),
    }
}

/// Deletes every selected object, one by one, and returns those that were selected.
///
/// The request is authorized in the state that it lists, and not again for each object: the roles that it rests on may
/// be among those that it deletes.
///
/// # Errors
/// Returns the first error other than that an object does not exist; 429 if the plane is at its rate of writes. What
/// was deleted until then stays deleted.
pub async fn delete_collection(call: &Call<'_>, wish: Representation) -> Result<Listed, ApiError> {
    let listing = ListOptions::parse(call.request, ListPurpose::List)?.in_pages();
    let options = options(call)?;
    if options.ignores_read_error {
        let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
        return Err(DeleteOptions::refused(&[
            DeleteOptions::read_error_refused(why),
        ]));
    }
    let selection = Selection::of(call, &listing)?;
    warn_of_orphans(call, &options);
    let prefix = select::prefix(call);
    let page = list::page(call, &listing, &prefix).await?;
    let items = list::collect(call, &selection, &prefix, &page).await;
    // The memory of the answer is reserved before anything is deleted.
    let listed = Listed::new(call, wish, selection, prefix, page).await?;
    // The request itself was counted as one write.
    let mut paid = 1;
    let mut rest = &items.items[..];
    while !rest.is_empty() {
        let count = deleted_together(rest.iter().map(ObjectRef::body_len));
        let (some, others) = rest.split_at(count);
        rest = others;
        let (allowed, limited) = pay(call, some.len(), &mut paid);
        // Made in parts: those of a large collection would take much memory at once.
        let deletions: Vec<BoxFuture<'_, Result<(), ApiError>>> = some
            .iter()
            .take(allowed)
            .map(|object| {
                Box::pin(delete_selected(call, object.key(), &options)) as BoxFuture<'_, _>
            })
            .collect();
        future::try_join_all(deletions).await?;
        limited?;
    }
    Ok(listed)
}

/// Returns how many objects of a collection are deleted at the same time, of those with these lengths. At least one.
fn deleted_together(lengths: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0_usize;
    let fitting = lengths.take(DELETES_MAX).take_while(|length| {
        bytes += *length;
        bytes <= DELETES_BYTES_MAX
    });
    fitting.count().max(1)
}

/// Counts deletions of a collection against the plane's rate of writes. Returns how many of `wanted` may be made, and
/// the refusal if that is not all. `paid` are writes that are counted already.
fn pay(call: &Call<'_>, wanted: usize, paid: &mut usize) -> (usize, Result<(), ApiError>) {
    let Some(rate) = &call.request.write_rate else {
        return (wanted, Ok(()));
    };
    for allowed in 0..wanted {
        if *paid > 0 {
            *paid -= 1;
        } else if let Err(limited) = rate.take() {
            return (allowed, Err(limited));
        }
    }
    (wanted, Ok(()))
}

/// Deletes one object of a collection. If it does not exist any more, that is not an error.
async fn delete_selected(
    call: &Call<'_>,
    key: &Key,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let request = ResourceRequest {
        namespace: key
            .namespace()
            .map(Str::from)
            .or_else(|| call.request.namespace.clone()),
        name: Some(key.name().into()),
        body: bytes::Bytes::new(),
        granted: GrantedAccess::of_every_cut(),
        ..call.request.clone()
    };
    let single = call.part(&request);
    let name = key.name().into();
    let mut delete = Delete::new(&single, name, Ok(options.clone()));
    if unless_gone(write::delete(&single, &mut delete).await)?.is_some() {
        delete.finish().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_are_deleted_together_are_bounded_in_number_and_bytes() {
        let together =
            |length: usize, count: usize| deleted_together(std::iter::repeat_n(length, count));
        assert_eq!(together(1, 1000), DELETES_MAX);
        assert_eq!(together(1, 7), 7);
        assert_eq!(together(DELETES_BYTES_MAX / 4, 1000), 4);
        assert_eq!(together(DELETES_BYTES_MAX + 1, 1000), 1, "it is alone");
    }
}
