//! Kinds whose objects are kept outside the plane: GET and LIST read them there each time.
//!
//! Owns pages, selection and the wait for versions, which are those of every kind. Must not know
//! what the objects are: an [`ExternalObjects`] does.
//!
//! Invariant: all pages of one list show one revision of the store.

use crate::answer::negotiate;
use crate::answer::negotiate::Conversions;
use crate::answer::representation;
use crate::answer::representation::Shown;
use crate::answer::{Answer, Outcome};
use crate::dispatch::unknown;
use crate::plan::object::new_object;
use crate::request::Verb;
use crate::request::call::Call;
use crate::request::options::{ListOptions, ListPurpose};
use crate::request::parameters::RESOURCE_VERSION;
use crate::select::Selection;
use crate::verbs::list;
use crate::verbs::list::token::Token;
use crate::verbs::list::{Items, Page, token, whole};
use crate::write::{answerable, within};
use async_trait::async_trait;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, error_chain};
use polyplane_plane::{ExpiredCause, Key, ObjectRef, Version, YieldBudget};
use polyplane_storage::{ReadError, Revision};

/// Number of objects that one read of the store returns. A page of a client may take several reads.
const READ_OBJECTS_MAX: usize = 500;

/// The reader of the objects of one external kind.
#[async_trait]
pub trait ExternalObjects: Send + Sync {
    /// Returns the kind's resource, as [`Resource::qualified`](crate::Resource::qualified) names
    /// it.
    fn resource(&self) -> &'static str;

    /// Reads objects linearizably, or as of a revision.
    ///
    /// # Errors
    /// Returns the store's error.
    async fn read(&self, range: ExternalRange) -> Result<ExternalReply, ReadError>;
}

/// The range of objects to read.
#[derive(Debug, Clone)]
pub struct ExternalRange {
    /// The name of the first object. If it does not exist, the range begins with the next one in
    /// byte order.
    pub from: Vec<u8>,
    /// The revision as of which to read; `None` means now.
    pub at: Option<Revision>,
    /// Number of objects in one reply at most.
    pub limit: usize,
}

/// Objects in the order of their names.
#[derive(Debug)]
pub struct ExternalReply {
    /// The revision at which they were read.
    pub revision: Revision,
    /// The objects.
    pub objects: Vec<ExternalObject>,
    /// True if there are more objects behind the last one. A reply with more is never empty.
    pub more: bool,
}

/// One object of an external kind.
#[derive(Debug)]
pub struct ExternalObject {
    /// The object's name.
    pub name: Str,
    /// The whole object except `resourceVersion`, in the stored version of its kind.
    pub tree: Value,
    /// The revision of the object's first put.
    pub created: Revision,
    /// The revision of the object's last put.
    pub modified: Revision,
}

/// Answers a request for a kind whose objects are not in the plane. Its row allows no other verbs.
///
/// # Errors
/// Returns 404 for another verb, and the errors of the verb.
pub async fn answer(call: &Call<'_>) -> Result<Answer, ApiError> {
    let objects = call.services.external(call.row).ok_or_else(unknown)?;
    match call.request.verb {
        Verb::Get => get(call, objects).await,
        Verb::List => list(call, objects).await,
        Verb::Watch
        | Verb::Create
        | Verb::Update
        | Verb::Patch
        | Verb::Delete
        | Verb::DeleteCollection
        | Verb::Connect => Err(unknown()),
    }
}

/// Handles GET of one object.
///
/// # Errors
/// Returns 404 if it does not exist, 503 if the store does not answer.
async fn get(call: &Call<'_>, objects: &dyn ExternalObjects) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let asked = list::number_of_version(RESOURCE_VERSION.read(&call.request.query))?;
    answerable(call).await?;
    if asked != 0 {
        list::reached(call, asked).await?;
    }
    drop(call.newest().await?);
    let name = call.name()?;
    let (_, found) = one(call, objects, name, None, None).await?;
    let object = found.ok_or_else(|| call.not_found(name))?;
    let body = representation::object(call, wish, &Shown::Stored(&object))?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// Handles a list.
///
/// # Errors
/// Returns the errors of [`list::list`].
async fn list(call: &Call<'_>, objects: &dyn ExternalObjects) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let options = ListOptions::parse(call.request, ListPurpose::List)?;
    let selection = Selection::of(call, &options)?;
    let from = first(call, &options).await?;
    drop(call.newest().await?);
    let (revision, items) = collect(call, objects, &selection, &from).await?;
    let plane = &call.tenant.plane;
    let version = match from.exact {
        Some(version) => version,
        None => Version::after(plane.base(), revision),
    };
    let page = Page {
        // For objects outside the plane only the page's version and limits are used.
        cut: plane.snapshot(),
        version,
        start: Vec::new(),
        since: from.since,
        limit: from.limit,
    };
    let body = whole::write(call, wish, &items, &page).await?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// The beginning of a page and the state that it shows.
struct First {
    name: Vec<u8>,
    /// The page token of the client, if it continues a list.
    token: Option<Token>,
    /// The version that the client requests; `None` for the newest.
    exact: Option<Version>,
    /// The time at which the first page was made.
    since: i64,
    /// Most items; 0 means no limit.
    limit: usize,
}

async fn first(call: &Call<'_>, options: &ListOptions) -> Result<First, ApiError> {
    let now = call.environment.now();
    if !options.continuation.is_empty() {
        let token = token::continuation(options)?;
        answerable(call).await?;
        let exact = match token.version() {
            None => None,
            Some(version) if token.is_fresh(now) => Some(version),
            Some(version) => {
                let cause = call
                    .tenant
                    .plane
                    .report_expired(ExpiredCause::TokenAge, version);
                return Err(token.expired(now, cause));
            }
        };
        return Ok(First {
            name: token.start().as_bytes().to_vec(),
            since: exact.map_or(now, |_| token.since()),
            exact,
            limit: options.limit,
            token: Some(token),
        });
    }
    let asked = list::parse_version(&options.resource_version)?;
    answerable(call).await?;
    if asked != 0 {
        list::reached(call, asked).await?;
    }
    Ok(First {
        name: Vec::new(),
        token: None,
        exact: options.is_exact(asked).then(|| Version::from_raw(asked)),
        since: now,
        limit: options.first_limit(),
    })
}

/// Collects the selected objects of a page. Returns them with the revision that the page shows.
async fn collect(
    call: &Call<'_>,
    objects: &dyn ExternalObjects,
    selection: &Selection,
    first: &First,
) -> Result<(Revision, Items), ApiError> {
    let mut items = Items::default();
    let mut at = first
        .exact
        .map(|version| own_revision(call, version, first.token.as_ref()))
        .transpose()?;
    if let Some(key) = selection.single(call) {
        let (revision, found) = one(call, objects, key.name(), at, first.token.as_ref()).await?;
        items.items = found
            .into_iter()
            .filter(|object| selection.matches(call.row, object))
            .collect();
        return Ok((revision, items));
    }
    let mut from = first.name.clone();
    let mut yield_budget = YieldBudget::default();
    loop {
        let range = ExternalRange {
            from,
            at,
            limit: READ_OBJECTS_MAX,
        };
        let reply = read(call, objects, range, first.token.as_ref()).await?;
        let last = reply.objects.last().map(|object| behind(&object.name));
        at = Some(reply.revision);
        for object in reply.objects {
            if first.limit > 0 && items.items.len() == first.limit {
                let last = items.items.last();
                items.next = last.map(|object| object.key().as_bytes().to_vec());
                return Ok((reply.revision, items));
            }
            let object = object_ref(call, object);
            yield_budget.spend(object.body().len()).await;
            if selection.is_everything() || selection.matches(call.row, &object) {
                items.items.push(object);
            }
        }
        match last.filter(|_| reply.more) {
            Some(last) => from = last,
            None => return Ok((reply.revision, items)),
        }
    }
}

/// Returns the store's revision of a version. A version from before the store was copied has none here.
fn own_revision(
    call: &Call<'_>,
    version: Version,
    token: Option<&Token>,
) -> Result<Revision, ApiError> {
    let plane = &call.tenant.plane;
    plane.numbering().own_revision(version).ok_or_else(|| {
        let cause = plane.report_expired(ExpiredCause::BeforeBirth, version);
        match token {
            Some(token) => token.expired(call.environment.now(), cause),
            None => list::too_old(cause),
        }
    })
}

/// Returns the first name behind another one in byte order.
fn behind(name: &str) -> Vec<u8> {
    let mut next = name.as_bytes().to_vec();
    next.push(0);
    next
}

async fn one(
    call: &Call<'_>,
    objects: &dyn ExternalObjects,
    name: &str,
    at: Option<Revision>,
    token: Option<&Token>,
) -> Result<(Revision, Option<ObjectRef>), ApiError> {
    let range = ExternalRange {
        from: name.as_bytes().to_vec(),
        at,
        limit: 1,
    };
    let reply = read(call, objects, range, token).await?;
    let found = reply.objects.into_iter().next();
    let found = found.filter(|object| object.name == name);
    Ok((reply.revision, found.map(|found| object_ref(call, found))))
}

async fn read(
    call: &Call<'_>,
    objects: &dyn ExternalObjects,
    range: ExternalRange,
    token: Option<&Token>,
) -> Result<ExternalReply, ApiError> {
    match within(call, objects.read(range)).await? {
        Ok(reply) => Ok(reply),
        Err(ReadError::Compacted { floor }) => {
            let plane = &call.tenant.plane;
            let version = Version::after(plane.base(), floor);
            let cause = plane.report_expired(ExpiredCause::Compacted, version);
            Err(match token {
                Some(token) => token.expired(call.environment.now(), cause),
                None => list::too_old(cause),
            })
        }
        Err(
            error @ (ReadError::Future { .. }
            | ReadError::Unavailable(_)
            | ReadError::Corrupt(_)
            | ReadError::Closed),
        ) => Err(ApiError::service_unavailable(error_chain(&error)).with_retry_after(1)),
    }
}

fn object_ref(call: &Call<'_>, external: ExternalObject) -> ObjectRef {
    let plane = &call.tenant.plane;
    let time = (call.environment.now(), &call.tenant.settings.lifetimes);
    let object = new_object(call.row, &external.tree, time);
    let key: Key = call.key(&external.name);
    plane.unstored_object(key, &object, external.created, external.modified)
}
