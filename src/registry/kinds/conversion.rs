//! The conversion of objects between the versions of their kind.
//!
//! A record says which version its bytes are in. That need not be the version that its kind is
//! stored in today. Every reader of stored bytes uses this module, which returns them unchanged
//! where both versions are the same.
//!
//! Built-in kinds convert in place, by the strategies of their versions and with the storage version
//! in the middle. A custom kind may have a [`Converter`], which may have to call a webhook.

use crate::kinds::Kinds;
use crate::kinds::table::Resource;
use crate::request::call::{Call, tree_of};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::Verdict;
use polyplane_plane::ObjectRef;
use std::fmt::Debug;

/// Number of objects in one call of a converter at most. Without a limit a long list would become
/// one huge request to a webhook.
const BATCH_MAX: usize = 500;

/// Converts objects of a kind from one version into another.
pub trait Converter: Debug + Send + Sync {
    /// Returns the objects in the version `to`, in order.
    ///
    /// # Errors
    /// Returns an error if one of the objects cannot be converted; then none is.
    fn convert<'a>(
        &'a self,
        objects: Vec<Value>,
        from: &'a str,
        to: &'a str,
    ) -> Verdict<'a, Result<Vec<Value>, ApiError>>;
}

/// The version in which objects of a kind are prepared and validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreparedIn {
    /// The version that objects are stored in, for built-in kinds.
    Storage,
    /// The version of the request, for custom kinds.
    Request,
}

/// A version of a kind, with its group, because one kind may be served in two groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindVersion<'a> {
    version: &'a str,
    group: &'a str,
}

impl<'a> KindVersion<'a> {
    /// Returns the version that a row serves.
    pub fn served(row: &'a Resource) -> Self {
        Self {
            version: &row.version,
            group: &row.group,
        }
    }

    /// Returns the version that objects of a row are stored in today.
    pub fn storage(row: &'a Resource) -> Self {
        Self {
            version: &row.storage.version,
            group: &row.storage.group,
        }
    }

    /// Returns the version that objects of a row are prepared in.
    pub fn prepared(row: &'a Resource) -> Self {
        match row.strategy.prepared_in() {
            PreparedIn::Storage => Self::storage(row),
            PreparedIn::Request => Self::served(row),
        }
    }

    /// Returns the version that the bytes of an object are in.
    pub fn of(row: &'a Resource, object: &'a ObjectRef) -> Self {
        Self {
            version: object.storage_version(),
            group: &row.storage.group,
        }
    }

    /// Returns the version's name.
    pub fn version(self) -> &'a str {
        self.version
    }
}

/// Returns true if the stored bytes differ from those that would be stored today. Even a write that
/// changes nothing else then stores the object again.
pub fn is_stale(row: &Resource, object: &ObjectRef) -> bool {
    KindVersion::of(row, object) != KindVersion::storage(row)
}

/// Returns true if an object has the same bytes in both versions.
pub fn is_same(row: &Resource, from: KindVersion<'_>, to: KindVersion<'_>) -> bool {
    let known = |form| form == KindVersion::served(row) || form == KindVersion::storage(row);
    from == to || (!row.converts() && known(from) && known(to))
}

/// Converts an object without a call to a webhook.
///
/// # Errors
/// Returns 500 if one of the versions is not known here, or if only a webhook can convert.
pub fn in_place(
    kinds: &Kinds,
    row: &Resource,
    object: Value,
    (from, to): (KindVersion<'_>, KindVersion<'_>),
) -> Result<Value, ApiError> {
    if is_same(row, from, to) {
        return Ok(object);
    }
    if let Some(converter) = row.strategy.converter() {
        let converted = converter.convert(vec![object], from.version, to.version);
        return match converted {
            Verdict::Now(Some(converted)) => only(converted?),
            Verdict::Now(None) | Verdict::Later(_) => Err(ApiError::internal(format!(
                "{} of version {} cannot be converted to {} without asking",
                row.name, from.version, to.version
            ))),
        };
    }
    let storage = KindVersion::storage(row);
    let stored = if from == storage {
        object
    } else {
        let source = row_of(kinds, row, from)?;
        source.strategy.to_stored(&source.version, object)
    };
    if to == storage {
        return Ok(stored);
    }
    let target = row_of(kinds, row, to)?;
    Ok(target.strategy.to_served(&target.version, stored))
}

/// Returns the tree of a stored object, whatever its kind, in the version that the kind is stored
/// in today.
///
/// # Errors
/// Returns 500 if its bytes are damaged, or are in a version that is not known or that only a
/// webhook can convert.
pub fn stored_tree(kinds: &Kinds, object: &ObjectRef) -> Result<Value, ApiError> {
    let tree = tree_of(&object.body())?;
    let key = object.key();
    match kinds.stored(key.group(), key.resource()) {
        Some(row) if is_stale(row, object) => {
            let forms = (KindVersion::of(row, object), KindVersion::storage(row));
            in_place(kinds, row, tree, forms)
        }
        _ => Ok(tree),
    }
}

/// Returns the row of the same kind in another version.
fn row_of<'a>(
    kinds: &'a Kinds,
    row: &'a Resource,
    form: KindVersion<'_>,
) -> Result<&'a Resource, ApiError> {
    if form == KindVersion::served(row) {
        return Ok(row);
    }
    let found = kinds.resolve(form.group, form.version, &row.storage.resource);
    found.map(|found| &**found).ok_or_else(|| {
        ApiError::internal(format!(
            "an object of {} is stored in version {}, which is not known here",
            row.qualified, form.version
        ))
    })
}

pub(crate) fn only(converted: Vec<Value>) -> Result<Value, ApiError> {
    let mut converted = converted.into_iter();
    match (converted.next(), converted.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(ApiError::internal("a conversion lost or added objects")),
    }
}

/// The version that an object is converted to before it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// The version of the request, in which the object is shown.
    Served,
    /// The version that objects are prepared in, from which columns and selectors are computed.
    Prepared,
}

impl Wanted {
    fn form(self, row: &Resource) -> KindVersion<'_> {
        match self {
            Self::Served => KindVersion::served(row),
            Self::Prepared => KindVersion::prepared(row),
        }
    }
}

/// Converts objects by a webhook ahead of time, so that they can be shown without waiting. Does
/// nothing for kinds without a [`Converter`].
///
/// # Errors
/// Returns 500 if one of the objects cannot be converted.
pub async fn ahead<'o>(
    call: &Call<'_>,
    objects: impl Iterator<Item = &'o ObjectRef>,
) -> Result<(), ApiError> {
    let Some(converter) = call.row.strategy.converter() else {
        return Ok(());
    };
    call.converted.lock().clear();
    let objects: Vec<&ObjectRef> = objects.collect();
    for wanted in [Wanted::Served, Wanted::Prepared] {
        if wanted == Wanted::Prepared
            && KindVersion::prepared(call.row) == KindVersion::served(call.row)
        {
            continue;
        }
        convert_all(call, &*converter, &objects, wanted).await?;
    }
    Ok(())
}

/// The next objects of a long answer, which have to be converted before they can be written.
pub struct Upcoming {
    objects: Vec<ObjectRef>,
    /// The key of the last one, if there may be more.
    until: Option<Vec<u8>>,
}

/// Returns the next objects, up to a number of bytes; `None` if the kind has no [`Converter`].
pub fn upcoming(
    row: &Resource,
    objects: impl Iterator<Item = ObjectRef>,
    bytes_max: usize,
) -> Option<Upcoming> {
    row.strategy.converter()?;
    let mut upcoming = Upcoming {
        objects: Vec::new(),
        until: None,
    };
    let mut bytes = 0;
    for object in objects {
        bytes += object.body_len();
        let is_enough = bytes >= bytes_max;
        if is_enough {
            upcoming.until = Some(object.key().as_bytes().to_vec());
        }
        upcoming.objects.push(object);
        if is_enough {
            break;
        }
    }
    Some(upcoming)
}

impl Upcoming {
    /// Converts the objects. Returns the key of the last one, if there may be more: objects behind
    /// it are not converted yet.
    ///
    /// # Errors
    /// See [`ahead`].
    pub async fn convert(self, call: &Call<'_>) -> Result<Option<Vec<u8>>, ApiError> {
        ahead(call, self.objects.iter()).await?;
        Ok(self.until)
    }
}

/// Converts objects in one batch for each version that they are stored in, or more if a batch would
/// be too large.
async fn convert_all(
    call: &Call<'_>,
    converter: &dyn Converter,
    objects: &[&ObjectRef],
    wanted: Wanted,
) -> Result<(), ApiError> {
    let to = wanted.form(call.row);
    let others = objects.iter().copied();
    let others = others.filter(|object| !is_same(call.row, KindVersion::of(call.row, object), to));
    let mut left: Vec<&ObjectRef> = others.collect();
    while let Some(first) = left.first() {
        let from = KindVersion::of(call.row, first);
        let mut batch = Vec::new();
        left.retain(|object| {
            let fits = batch.len() < BATCH_MAX && KindVersion::of(call.row, object) == from;
            if fits {
                batch.push(*object);
            }
            !fits
        });
        let trees = batch.iter().map(|object| tree_of(&object.body()));
        let trees = trees.collect::<Result<Vec<_>, _>>()?;
        let away = call.leave_seat()?;
        let converted = converter.convert(trees, from.version, to.version);
        let converted = crate::write::within(call, converted).await?;
        drop(away);
        let converted = converted.map_err(|error| failed(call.row, from, to, &error))?;
        if converted.len() != batch.len() {
            return Err(ApiError::internal("a conversion lost or added objects"));
        }
        let mut known = call.converted.lock();
        for (object, tree) in batch.into_iter().zip(converted) {
            known.insert((object.key().clone(), object.stamp(), wanted), tree);
        }
    }
    Ok(())
}

/// Returns the error for a client whose object could not be converted.
pub(crate) fn failed(
    row: &Resource,
    from: KindVersion<'_>,
    to: KindVersion<'_>,
    error: &ApiError,
) -> ApiError {
    ApiError::internal(format!(
        "conversion of {} from {} to {} failed: {}",
        row.qualified, from.version, to.version, error.message
    ))
}

/// Returns the tree of a stored object in the wanted version.
///
/// # Errors
/// Returns 500 if its bytes are damaged, or if it needs a webhook and [`ahead`] has not converted
/// it.
pub fn tree(call: &Call<'_>, object: &ObjectRef, wanted: Wanted) -> Result<Value, ApiError> {
    let forms = (KindVersion::of(call.row, object), wanted.form(call.row));
    if call.row.strategy.converter().is_some() {
        let key = (object.key().clone(), object.stamp(), wanted);
        if let Some(tree) = call.converted.lock().get(&key) {
            return Ok(tree.clone());
        }
    }
    let tree = tree_of(&object.body())?;
    if let Some(custom) = &call.row.custom {
        return match call.shows_as_stored(object) {
            true => Ok(tree),
            false => custom.shown(call.row, object.storage_version(), tree),
        };
    }
    if is_same(call.row, forms.0, forms.1) {
        return Ok(tree);
    }
    in_place(&call.tenant.kinds(), call.row, tree, forms)
}
