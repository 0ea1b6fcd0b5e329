//! The kinds that objects of a plane define, and how stored objects of them are shown.
//!
//! The bytes of a custom object stay as they were written. What a schema that has changed since
//! then, or the schema of another version, makes of them is a view: unknown members are pruned and
//! absent ones get the defaults of the version that is stored; then they are pruned by the version
//! that is shown, whose defaults are not set. An object that was written after the newest write of
//! its definition needs no view, because every write claims the definition that it was prepared
//! under; unless the write left out what a default fills in.

use crate::kinds::table::Resource;
use bytes::Bytes;
use polyplane_apimachinery::schema::decode::{DecodeError, Problem};
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::shape::defaults::TooLarge;
use polyplane_apimachinery::shape::prune::Report;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::structural::{Custom, Reading, Structural};
use polyplane_apimachinery::{Str, Value};
use polyplane_fairness::{CpuTimer, PlaneMeter, Precision};
use polyplane_plane::{ContentId, Flags, Key, ObjectRef, Version};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Mutex, Semaphore};

/// The schema of one version of a kind. It is compiled when it is first needed.
pub trait CustomSchema: Debug + Send + Sync {
    /// Returns the identity of the schema's content.
    fn id(&self) -> ContentId;

    /// Returns whether the schema is compiled. If not, [`Self::structural`] may take long.
    fn is_compiled(&self) -> bool;

    /// Returns the JSON of the schema, for documents.
    fn source(&self) -> &Bytes;

    /// Returns the compiled schema.
    fn structural(&self) -> Arc<Structural>;

    /// Returns the turn of whoever compiles the schema.
    fn compile_turn(&self) -> &CompileTurn;
}

/// The turn of whoever compiles a schema. Other requests for the schema wait for it without a thread.
#[derive(Debug, Default)]
pub struct CompileTurn(Arc<Mutex<()>>);

/// The way in which objects get from one version of their kind into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConversionStrategy {
    /// Only `apiVersion` changes.
    None,
    /// A webhook converts them.
    Webhook,
}

/// The places of a scale in objects of a kind, each as a path without a leading period.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScalePaths {
    /// The wanted number of replicas.
    pub spec_replicas: Str,
    /// The observed number of replicas.
    pub status_replicas: Str,
    /// The label selector as text.
    pub selector: Option<Str>,
}

/// The places in which schemas are compiled. With more, requests for schemas that are not compiled could take
/// all CPUs and all threads for blocking work; with one, a large schema would hold up all small ones.
static COMPILING: Semaphore = Semaphore::const_new(2);
/// The schemas that wait for a place.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A schema that waits for a place. Dropping it ends the wait, also if the request ends before.
struct WaitingSchema;

impl WaitingSchema {
    fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for WaitingSchema {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns how many schemas of this process wait until others are compiled.
pub fn schemas_waiting() -> usize {
    WAITING.load(Ordering::Relaxed)
}

/// What a row knows about the kind that an object of the plane has defined.
#[derive(Clone, Debug)]
pub struct CustomKind {
    /// The object that defines the kind.
    pub definition: Key,
    /// The verbs that discovery lists.
    pub discovered_verbs: Arc<[Str]>,
    /// The schema of metadata.
    pub metadata: DefId,
    /// The schema of the row's version.
    pub schema: Arc<dyn CustomSchema>,
    /// The schemas of all versions, also of those that are not served.
    pub versions: Arc<[(Str, Arc<dyn CustomSchema>)]>,
    /// The way in which objects are converted.
    pub conversion: ConversionStrategy,
    /// The places of the scale, if the version has one.
    pub scale: Option<ScalePaths>,
    /// The places of the numbers of replicas in all versions, by API version; `None` for a version
    /// without a scale.
    pub replicas: Arc<[(Str, Option<Str>)]>,
}

impl CustomKind {
    /// Compiles the schema, away from the threads that serve requests, and at most two of them at a
    /// time, and charges the plane that needs it. Nothing happens if it is compiled.
    ///
    /// # Errors
    /// Returns 500 if the process ends meanwhile.
    pub async fn prepared(&self, meter: Option<&Arc<PlaneMeter>>) -> Result<(), ApiError> {
        if self.schema.is_compiled() {
            return Ok(());
        }
        let turn = Arc::clone(&self.schema.compile_turn().0).lock_owned().await;
        if self.schema.is_compiled() {
            return Ok(());
        }
        let waiting = WaitingSchema::begin();
        let place = COMPILING.acquire().await;
        drop(waiting);
        let (schema, meter) = (Arc::clone(&self.schema), meter.cloned());
        let compiled = tokio::task::spawn_blocking(move || {
            // Released when the work ends, also if the request has ended before.
            let _held = (turn, place);
            let timer = CpuTimer::start(Precision::Exact);
            drop(schema.structural());
            let nanos = timer.stop().cpu_nanos;
            if let Some(meter) = meter {
                meter.charge(nanos);
                meter.flow().charge(nanos);
            }
        });
        compiled
            .await
            .map_err(|error| ApiError::internal(format!("a schema was not compiled: {error}")))
    }

    /// Brings a tree that a client has sent into canonical form: decodes metadata and prunes
    /// unknown members. Returns the complaints of strict decoding.
    ///
    /// # Errors
    /// Returns an error if metadata is malformed.
    pub fn decode(
        &self,
        schemas: &Schemas,
        tree: &mut Value,
        report: Report,
    ) -> Result<Vec<Problem>, DecodeError> {
        let structural = self.schema.structural();
        Custom::new(&structural, schemas, self.metadata).decode(tree, Reading::Request, report)
    }

    /// Brings the metadata of a tree into canonical form. Upstream does no more with what an apply
    /// has made: nulls stay, and are refused where the schema allows none.
    ///
    /// # Errors
    /// Returns an error if metadata is malformed.
    pub fn decode_metadata(&self, schemas: &Schemas, tree: &mut Value) -> Result<(), DecodeError> {
        let structural = self.schema.structural();
        Custom::new(&structural, schemas, self.metadata).decode_metadata(tree)
    }

    /// Brings a valid object that an apply has made into the form that is stored. Upstream decodes every other
    /// object in this way before it validates it, but an applied one only when it encodes it: nulls go that the
    /// schema does not allow, and metadata of embedded objects is decoded.
    ///
    /// # Errors
    /// Returns 500 if the metadata of an embedded object is malformed.
    pub(crate) fn complete_apply(
        &self,
        schemas: &Schemas,
        tree: &mut Value,
    ) -> Result<(), ApiError> {
        let structural = self.schema.structural();
        let custom = Custom::new(&structural, schemas, self.metadata);
        // The metadata of the object itself has been decoded.
        let own = tree.remove(&["metadata"]);
        let decoded = custom.decode(tree, Reading::Request, Report::Nothing);
        if let Some(own) = own {
            tree.set(&["metadata"], own);
        }
        decoded.map_err(|error| ApiError::new(Reason::Unknown, error.to_string()))?;
        Ok(())
    }

    /// Sets absent members to their defaults.
    ///
    /// # Errors
    /// Returns an error if the defaults are too large.
    pub fn default(&self, schemas: &Schemas, tree: &mut Value) -> Result<(), TooLarge> {
        let structural = self.schema.structural();
        Custom::new(&structural, schemas, self.metadata).default(tree)
    }

    /// Returns whether an object is shown as it is stored. `defined` is the version of the newest
    /// durable write of the kind's definition; `None` if one is under way.
    pub(crate) fn is_fresh(
        &self,
        row: &Resource,
        object: &ObjectRef,
        defined: Option<Version>,
    ) -> bool {
        let stored = object.storage_version();
        let alike = stored == row.version
            || self.schema_of(stored).is_some_and(|schema| {
                schema.id() == self.schema.id() && self.conversion == ConversionStrategy::None
            });
        // An object without a version is under way, and so newer than what is durable.
        let is_newer = |defined| object.version().is_none_or(|version| version > defined);
        let lacks_defaults = object.flags().has(Flags::LACKS_DEFAULTS);
        alike && !lacks_defaults && defined.is_some_and(is_newer)
    }

    /// Returns a stored object as the row's version shows it.
    ///
    /// # Errors
    /// Returns 500 if the definition does not have the stored version any more, or only a webhook
    /// can convert it.
    pub(crate) fn shown(
        &self,
        row: &Resource,
        stored: &str,
        mut tree: Value,
    ) -> Result<Value, ApiError> {
        let source = self.schema_of(stored).ok_or_else(|| {
            ApiError::internal(format!(
                "an object of {} is stored in version {stored}, which its definition does not have",
                row.qualified
            ))
        })?;
        render(row, self.metadata, &source.structural(), &mut tree)?;
        if stored == row.version {
            return Ok(tree);
        }
        if self.conversion == ConversionStrategy::Webhook {
            return Err(no_webhook(row, stored));
        }
        // Upstream sets no defaults of the version that an object is converted to.
        if source.id() != self.schema.id() {
            prune(row, self.metadata, &self.schema.structural(), &mut tree)?;
        }
        Ok(tree)
    }

    /// Returns what is stored of a tree of the row's version, if that is less than the tree: members
    /// that the stored version does not have are dropped.
    ///
    /// # Errors
    /// Returns 500 if only a webhook can convert the tree to the stored version. Then nothing may be
    /// stored: readers of the stored version would get a body of another one.
    pub(crate) fn kept(&self, row: &Resource, tree: &Value) -> Result<Option<Value>, ApiError> {
        let stored = &row.storage.version;
        if *stored == row.version {
            return Ok(None);
        }
        if self.conversion == ConversionStrategy::Webhook {
            return Err(no_webhook(row, &row.version));
        }
        let target = self.schema_of(stored);
        let target = target.filter(|target| target.id() != self.schema.id());
        let Some(target) = target else {
            return Ok(None);
        };
        let mut kept = tree.clone();
        prune(row, self.metadata, &target.structural(), &mut kept)?;
        Ok(Some(kept))
    }

    /// Returns whether readers see defaults that a stored tree lacks.
    pub(crate) fn lacks_defaults(&self, row: &Resource, stored: &Value) -> bool {
        self.schema_of(&row.storage.version).is_some_and(|schema| {
            let structural = schema.structural();
            Custom::new(&structural, &row.schemas, self.metadata).lacks_defaults(stored)
        })
    }

    /// Returns a tree of the row's version as readers would see it if it were stored.
    ///
    /// # Errors
    /// Returns 500 if the tree is damaged, or only a webhook can convert it to the stored version.
    pub(crate) fn as_read(&self, row: &Resource, tree: Value) -> Result<Value, ApiError> {
        let kept = self.kept(row, &tree)?;
        let stored = kept.unwrap_or(tree);
        if row.storage.version == row.version && !self.lacks_defaults(row, &stored) {
            return Ok(stored);
        }
        self.shown(row, &row.storage.version, stored)
    }

    /// Returns the schema of a version, served or not.
    pub(crate) fn schema_of(&self, version: &str) -> Option<&Arc<dyn CustomSchema>> {
        let mut versions = self.versions.iter();
        let found = versions.find(|(name, _)| name == version);
        found.map(|(_, schema)| schema)
    }
}

/// Returns the refusal of a conversion that only a webhook can make.
fn no_webhook(row: &Resource, from: &str) -> ApiError {
    ApiError::internal(format!(
        "conversion webhook for {}/{from}, Kind={} failed: conversion webhooks are not called yet",
        row.group, row.kind
    ))
}

/// Prunes a stored tree.
fn prune(
    row: &Resource,
    metadata: DefId,
    structural: &Structural,
    tree: &mut Value,
) -> Result<(), ApiError> {
    let custom = Custom::new(structural, &row.schemas, metadata);
    let decoded = custom.decode(tree, Reading::Stored, Report::Nothing);
    decoded.map_err(|error| {
        ApiError::internal(format!(
            "an object of {} is damaged: {error}",
            row.qualified
        ))
    })?;
    Ok(())
}

/// Prunes a stored tree and sets its defaults.
fn render(
    row: &Resource,
    metadata: DefId,
    structural: &Structural,
    tree: &mut Value,
) -> Result<(), ApiError> {
    prune(row, metadata, structural, tree)?;
    let set = Custom::new(structural, &row.schemas, metadata).default(tree);
    set.map_err(|error| ApiError::internal(format!("an object of {}: {error}", row.qualified)))
}
