//! Opening a plane: reading its state from the store, or from an export of its former owner. The
//! history is read only when a client needs an older version.

use std::collections::BTreeSet;
use std::sync::Arc;

use polyplane_storage::{KeyValue, RangeRequest, ReadError, Revision};

use crate::history::from_store::external_versions;
use crate::history::log::Log;
use crate::key::Key;
use crate::layers::chain::record::StepsRecord;
use crate::layers::layer::Layer;
use crate::layers::layer_store::LayerStoreError;
use crate::layers::step::MissingParameter;
use crate::layers::template_values::{TemplateInputs, TemplateValues};
use crate::lifecycle::import;
use crate::lifecycle::params::PlaneParams;
use crate::plane::{Opened, Parts, Plane};
use crate::record::{KeySpace, Record, RecordError, Stored, StoredKey, decode_stored};
use crate::sealing::SealedError;
use crate::sealing::data_keys::DataKeys;
use crate::sealing::keys_record::KeysRecord;
use crate::sealing::plane_keys::{LoadedKeys, PlaneKeys};
use crate::state::entry::Entry;
use crate::state::overlay::Derive;
use crate::state::summary::Summarizer;
use crate::state::{Context, Root};
use crate::version::{Stamp, Version};
use crate::write::follow::Follow;
use crate::yielding::YieldBudget;

/// Attempts to read a plane while the store drops the revisions that it is read at. With fewer, a plane that takes
/// several pages could not wake beside deletions in a store that is nearly full.
const LOADS_MAX: u32 = 10;

/// The reason why a plane cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store did not answer.
    #[error("cannot read the control plane's range")]
    Read(#[from] ReadError),
    /// A record in the plane's range cannot be decoded.
    #[error("cannot decode the record at {key}")]
    Record {
        /// The record's key in the store.
        key: String,
        /// The error in the record's value.
        #[source]
        source: RecordError,
    },
    /// A layer of the plane cannot be read.
    #[error("cannot read a layer of the control plane")]
    Layer(#[from] LayerStoreError),
    /// The plane's record lacks a parameter of a layer.
    #[error(transparent)]
    Parameter(#[from] MissingParameter),
    /// The plane is sealed, and this replica cannot unwrap its data key.
    #[error("the control plane is encrypted at rest and cannot be read here")]
    Sealed(#[from] SealedError),
}

/// A plane's state after loading, before the plane exists.
pub(crate) struct Loaded {
    pub(crate) root: Root,
    pub(crate) expiries: BTreeSet<(u64, Key)>,
    pub(crate) opened: Opened,
    /// The newest revision that the root includes. It may be the later revision at which the root
    /// was read.
    pub(crate) revision: Revision,
    /// The revision up to which the root has all external writes.
    pub(crate) followed_from: Revision,
    pub(crate) log: Log,
    pub(crate) imported: bool,
    pub(crate) data_keys: Option<PlaneKeys>,
}

impl Plane {
    /// Opens a plane from the export in `params`, if there is one and it matches in every way, else
    /// from the store. The caller must hold the fence.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing was changed.
    pub async fn open(mut params: PlaneParams) -> Result<Arc<Self>, OpenError> {
        let derive = Derive(params.derivation.clone());
        // Some objects define something beside themselves. That is derived once all objects are
        // loaded.
        let mut context = Context {
            derive: Derive::default(),
            indexes: params.indexes.clone().into(),
            summarizer: Summarizer(params.summarize.clone()),
            interner: Arc::clone(params.committer.interner()),
        };
        let keys = KeySpace::new(&params.record.id);
        let import = params.import.take();
        let opening = Opening {
            params: &params,
            context: &context,
        };
        let imported = match import {
            Some(import) => Some(import::read(&import, &opening).await),
            None => None,
        };
        let mut loaded = match imported {
            Some(Ok(loaded)) => loaded,
            Some(Err(error)) => {
                let plane = params.record.id.as_str();
                tracing::warn!(plane, %error, "loading from the store instead");
                load(&opening, &keys).await?
            }
            None => load(&opening, &keys).await?,
        };
        context.derive = derive;
        loaded.root.derive(&context);
        let follow = params.external.clone();
        let follow = follow.map(|prefix| Follow::new(&keys, prefix, loaded.followed_from));
        let plane = Self::assemble(Parts {
            params,
            context,
            keys,
            loaded,
            follow,
        });
        plane.start_following();
        Ok(plane)
    }
}

/// A plane that is being opened.
pub(crate) struct Opening<'a> {
    pub(crate) params: &'a PlaneParams,
    pub(crate) context: &'a Context,
}

impl Opening<'_> {
    /// Returns the version of the plane's birth.
    pub(crate) fn birth(&self) -> Version {
        self.params.record.birth.unwrap_or(self.params.born)
    }

    /// Returns the plane after its layer steps, without its own objects. If the steps begin with a
    /// fold, the layers before the fold are not needed, not even that of the birth.
    pub(crate) async fn stepped(
        &self,
        steps: &StepsRecord,
    ) -> Result<Arc<TemplateValues>, OpenError> {
        let params = self.params;
        let chain = steps.resolve(&params.record.layer, &params.layers).await?;
        check_params(chain.start(), params)?;
        check_params(chain.newest(), params)?;
        Ok(TemplateValues::new(TemplateInputs {
            birth: self.birth(),
            birth_time: params.born_at.as_str().into(),
            uid_seed: &params.uid_seed,
            params: &params.record.params,
            chain,
            cache: params.committer.rendered(),
        }))
    }

    /// Unwraps the plane's data keys.
    ///
    /// # Errors
    /// Returns an error if encryption at rest is off here, or a key cannot be unwrapped.
    pub(crate) fn unwrap_keys(&self, record: &KeysRecord) -> Result<DataKeys, SealedError> {
        let sealing = self.params.committer.sealing();
        let sealing = sealing.ok_or(SealedError::NotConfigured)?;
        DataKeys::unwrap(record, &self.params.record.id, sealing)
    }

    /// Returns the root that [`Self::stepped`] yields.
    async fn root(&self, steps: &StepsRecord) -> Result<Root, OpenError> {
        Ok(Root::of_layers(self.stepped(steps).await?, self.context))
    }
}

/// A plane's state as far as it was read from the store.
struct Loading<'a> {
    opening: &'a Opening<'a>,
    keys: &'a KeySpace,
    /// The root: made of the steps, or of the layer of the birth if there are none.
    root: Option<Root>,
    expiries: BTreeSet<(u64, Key)>,
    /// The end of the newest transaction that has written one of the records.
    newest: Version,
    /// The data keys; `None` if encryption at rest is off here.
    data_keys: Option<LoadedKeys>,
}

impl Loading<'_> {
    async fn take(&mut self, item: KeyValue) -> Result<(), OpenError> {
        let Opening { params, context } = self.opening;
        let base = params.numbering().base;
        let record = |source| unreadable(&item.key, source);
        let data_keys = self.data_keys.as_ref().and_then(|keys| keys.keys.as_ref());
        let (value, number) = match data_keys {
            Some(keys) => keys.open(&item.key, &item.value).map_err(record)?,
            None => (item.value.clone(), None),
        };
        let stored = decode_stored(&value).map_err(record)?;
        let point = stored.point(base, item.modified);
        self.newest = self.newest.max(point.end());
        let Stored {
            record: decoded, ..
        } = stored;
        if matches!(decoded, Record::Marker) {
            return Ok(());
        }
        let key = match (self.keys.classify(&item.key).map_err(record)?, &decoded) {
            (StoredKey::Object(key), _) => key,
            (StoredKey::Head, _) => return Ok(()),
            (StoredKey::Steps, Record::Steps { index, steps }) => {
                let version = point.version(*index);
                let steps = steps.clone().landed(version);
                self.root = Some(self.opening.root(&steps).await?);
                return Ok(());
            }
            (StoredKey::DataKeys, Record::DataKeys(keys)) => {
                let keys = self.opening.unwrap_keys(keys)?;
                if let Some(data_keys) = &mut self.data_keys {
                    data_keys.keys = Some(keys);
                }
                return Ok(());
            }
            (StoredKey::Steps | StoredKey::DataKeys, _) => {
                return Err(record(RecordError::Damaged));
            }
        };
        // The key of the step record sorts before all objects, so once an object is read without
        // it, the plane has no such record.
        let root = match &mut self.root {
            Some(root) => root,
            none => none.insert(self.opening.root(&StepsRecord::default()).await?),
        };
        let (versions, object) = match decoded {
            Record::Object { header, object } => {
                let version = point.version(header.index);
                if let Some(data_keys) = &mut self.data_keys {
                    data_keys.note(&key, number);
                }
                (header.versions(version), object)
            }
            Record::External(object) => (external_versions(base, &item), object),
            Record::Tombstone { .. } => {
                root.remove(&key, context);
                return Ok(());
            }
            Record::Head { .. } | Record::Marker | Record::Steps { .. } | Record::DataKeys(_) => {
                return Err(record(RecordError::Damaged));
            }
        };
        self.expiries
            .extend(object.expires.map(|at| (at, key.clone())));
        let stamp = Stamp::loaded(versions.version);
        let entry = Entry::own(key, stamp, &object, versions, &context.interner);
        root.put(entry, context);
        Ok(())
    }
}

/// Reads a plane's objects from the store; again if the store dropped the revision that the read was at. A store that
/// is nearly full keeps hardly any history.
async fn load(opening: &Opening<'_>, keys: &KeySpace) -> Result<Loaded, OpenError> {
    for _ in 1..LOADS_MAX {
        match load_once(opening, keys).await {
            Err(OpenError::Read(ReadError::Compacted { .. })) => {}
            done => return done,
        }
    }
    load_once(opening, keys).await
}

async fn load_once(opening: &Opening<'_>, keys: &KeySpace) -> Result<Loaded, OpenError> {
    let params = opening.params;
    let numbering = params.numbering();
    let mut loading = Loading {
        opening,
        keys,
        root: None,
        expiries: BTreeSet::new(),
        newest: Version::ZERO,
        data_keys: params
            .committer
            .sealing()
            .map(|sealing| LoadedKeys::new(sealing, None)),
    };
    let mut read_at = None;
    let mut yield_budget = YieldBudget::default();
    let (start, end) = keys.bounds();
    let mut request = Some(RangeRequest::between(start, end));
    while let Some(page) = request {
        let reply = params.committer.store().range(page.clone()).await?;
        request = page.next_page(&reply);
        read_at.get_or_insert(reply.revision);
        for item in reply.items {
            yield_budget.spend(item.value.len()).await;
            loading.take(item).await?;
        }
    }
    let Loading {
        root,
        expiries,
        mut newest,
        data_keys,
        ..
    } = loading;
    let mut root = match root {
        Some(root) => root,
        None => opening.root(&StepsRecord::default()).await?,
    };
    let read_at = read_at.unwrap_or_default();
    if params.external.is_some() {
        // An external delete leaves no record, so the state's revision is that of the read, not the
        // newest one of its records.
        newest = numbering.version_after(read_at);
    }
    root.head = root.head.max(newest);
    let log = Log::new(root.head, params.log, params.committer.memory());
    log.fit(root.own_bytes());
    Ok(Loaded {
        opened: Opened {
            revision: read_at,
            head: root.head,
        },
        revision: read_at,
        followed_from: read_at,
        log,
        imported: false,
        data_keys: data_keys.map(|keys| keys.finish(&params.record.id)),
        root,
        expiries,
    })
}

fn check_params(layer: &Layer, params: &PlaneParams) -> Result<(), OpenError> {
    let filled = &params.record.params;
    match layer
        .params()
        .find(|name| !filled.contains_key(name.as_str()))
    {
        Some(name) => Err(MissingParameter(name.clone()).into()),
        None => Ok(()),
    }
}

fn unreadable(key: &[u8], source: RecordError) -> OpenError {
    OpenError::Record {
        key: String::from_utf8_lossy(key).into_owned(),
        source,
    }
}
