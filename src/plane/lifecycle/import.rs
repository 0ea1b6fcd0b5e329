//! Opening a plane from an export of its former owner, instead of reading the store.
//!
//! An export with any mismatch is refused as a whole: the store has everything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use polyplane_storage::Revision;

use crate::history::event::Event;
use crate::history::log::{Log, LogContents};
use crate::key::Key;
use crate::layers::chain::record::StepsRecord;
use crate::layers::template_values::{TemplateValues, ValuesOverTime};
use crate::lifecycle::export::{
    FOLDED, FORMAT, INLINE, KNOWN, MAGIC, NOTHING, OF_LAYER, OF_SEALED, OF_SEALED_FOLDED, digest_of,
};
use crate::lifecycle::load::{Loaded, Opening};
use crate::plane::Opened;
use crate::record::{KeySpace, Record, decode};
use crate::sealing::plane_keys::LoadedKeys;
use crate::state::entry::{Entry, ObjectRef, Versions};
use crate::state::{Context, Root};
use crate::version::{Base, Stamp, Version};
use crate::yielding::YieldBudget;

const DIGEST_LEN: usize = 32;

/// An [`crate::Export`] at its successor.
#[derive(Debug, Clone)]
pub struct Import {
    /// The head that Released named. The plane does not use an export with another head.
    pub head: Revision,
    /// The bytes of the export as the former owner streamed them.
    pub bytes: Bytes,
}

/// The reason why an import is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// A form that this program does not know.
    #[error("the export has a form that this program does not read")]
    Form,
    /// The bytes are not what the former owner wrote.
    #[error("the export is damaged")]
    Damaged,
    /// A layer that the export names cannot be read from the store.
    #[error("a layer of the export cannot be read from the store")]
    Layers,
    /// The store did not tell the data keys of the plane, or they do not open here.
    #[error("the data keys of the control plane cannot be read")]
    Keys,
    /// Some records of the plane are to be sealed again; only the store tells which.
    #[error("some records of the control plane are to be sealed again")]
    Unsettled,
    /// The export is of another plane, or of another time of this one.
    #[error("the export is of another state: its {0} differs")]
    Other(&'static str),
}

/// Reads the plane's state from an export.
pub(crate) async fn read(import: &Import, opening: &Opening<'_>) -> Result<Loaded, ImportError> {
    let Opening { params, context } = opening;
    let mut yield_budget = YieldBudget::default();
    let (form, mut reader) = open(&import.bytes, &mut yield_budget).await?;
    let (form, mut data_keys) = data_keys(form, opening).await?;
    let same = |same: bool, what| {
        if same {
            Ok(())
        } else {
            Err(ImportError::Other(what))
        }
    };
    let base = Base(params.record.base);
    same(reader.text()? == params.record.id.as_bytes(), "id")?;
    let layer = &params.record.layer;
    same(reader.text()? == layer.0.as_bytes(), "layer")?;
    same(reader.u64()? == base.0, "base")?;
    same(reader.version()? == opening.birth(), "birth")?;
    let head = reader.version()?;
    same(head.revision(base) == import.head, "head")?;
    let through = Revision(reader.u64()?);

    let steps = reader.steps(form == FOLDED)?;
    let template_values = opening.stepped(&steps).await;
    let template_values = template_values.map_err(|_| ImportError::Layers)?;
    let values_over_time = reader
        .values_over_time(form, &template_values, opening)
        .await?;
    let mut root = Root::of_layers(template_values, context);
    root.head = head;
    let mut expiries = BTreeSet::new();
    for _ in 0..reader.count()? {
        let key = reader.key()?;
        let before = reader.0.len();
        let entry = reader.object(&key, context)?;
        yield_budget.spend(before - reader.0.len()).await;
        // A plane without data keys has all its records in clear.
        if let Some(data_keys) = data_keys.as_mut().filter(|keys| keys.keys.is_none()) {
            data_keys.note(&key, None);
        }
        expiries.extend(entry.expires().map(|at| (at, key)));
        root.put(entry, context);
    }
    for _ in 0..reader.count()? {
        root.remove(&reader.key()?, context);
    }
    let contents = reader
        .history(&root, &values_over_time, context, &mut yield_budget)
        .await?;
    if reader.0.has_remaining() {
        return Err(ImportError::Damaged);
    }
    let bounds = (params.log, root.own_bytes());
    Ok(Loaded {
        root,
        expiries,
        // Events before the floor are read from the store's history.
        opened: Opened {
            revision: params.numbering().revision_through(contents.floor),
            head: contents.floor,
        },
        revision: head.revision(base),
        followed_from: through,
        log: Log::restore(contents, head, bounds, params.committer.memory()),
        imported: true,
        data_keys: data_keys.map(|keys| keys.finish(&params.record.id)),
    })
}

/// Returns the data keys that the store has, for a plane of which all records follow the policy, and the
/// form of the rest of its export. An export does not have the keys, so that no message has them.
async fn data_keys(
    form: u16,
    opening: &Opening<'_>,
) -> Result<(u16, Option<LoadedKeys>), ImportError> {
    let (is_sealed, form) = match form {
        OF_SEALED => (true, FORMAT),
        OF_SEALED_FOLDED => (true, FOLDED),
        form => (false, form),
    };
    let Some(sealing) = opening.params.committer.sealing() else {
        return match is_sealed {
            true => Err(ImportError::Keys),
            false => Ok((form, None)),
        };
    };
    let key = KeySpace::new(&opening.params.record.id).data_keys();
    let found = opening.params.committer.store().get(&key).await;
    let (_, found) = found.map_err(|_| ImportError::Keys)?;
    let Some(found) = found else {
        return match is_sealed {
            true => Err(ImportError::Keys),
            false => Ok((form, Some(LoadedKeys::new(sealing, None)))),
        };
    };
    let Ok(Record::DataKeys(record)) = decode(&found.value) else {
        return Err(ImportError::Keys);
    };
    if record.settled != sealing.fingerprint() {
        return Err(ImportError::Unsettled);
    }
    let keys = opening
        .unwrap_keys(&record)
        .map_err(|_| ImportError::Keys)?;
    Ok((form, Some(LoadedKeys::new(sealing, Some(keys)))))
}

/// Returns the form and the content of an export that is whole and of a form that this program
/// reads.
async fn open(bytes: &Bytes, yield_budget: &mut YieldBudget) -> Result<(u16, Reader), ImportError> {
    if !bytes.starts_with(MAGIC) {
        return Err(ImportError::Form);
    }
    let digest_at = bytes
        .len()
        .checked_sub(DIGEST_LEN)
        .ok_or(ImportError::Damaged)?;
    let mut reader = Reader(bytes.slice(MAGIC.len()..digest_at.max(MAGIC.len())));
    let form = reader.u16()?;
    if ![FORMAT, FOLDED, OF_SEALED, OF_SEALED_FOLDED].contains(&form) {
        return Err(ImportError::Form);
    }
    let digest = digest_of(&bytes[..digest_at], yield_budget).await;
    if digest.as_ref() != &bytes[digest_at..] {
        return Err(ImportError::Damaged);
    }
    Ok((form, reader))
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, len: usize) -> Result<Bytes, ImportError> {
        if self.0.len() < len {
            return Err(ImportError::Damaged);
        }
        Ok(self.0.split_to(len))
    }

    fn u8(&mut self) -> Result<u8, ImportError> {
        Ok(self.take(1)?.get_u8())
    }

    fn u16(&mut self) -> Result<u16, ImportError> {
        Ok(self.take(2)?.get_u16())
    }

    fn u32(&mut self) -> Result<u32, ImportError> {
        Ok(self.take(4)?.get_u32())
    }

    fn u64(&mut self) -> Result<u64, ImportError> {
        Ok(self.take(8)?.get_u64())
    }

    fn version(&mut self) -> Result<Version, ImportError> {
        self.u64().map(Version::from_raw)
    }

    fn count(&mut self) -> Result<u32, ImportError> {
        self.u32()
    }

    fn text(&mut self) -> Result<Bytes, ImportError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    fn key(&mut self) -> Result<Key, ImportError> {
        Key::from_bytes(&self.text()?).ok_or(ImportError::Damaged)
    }

    fn steps(&mut self, folded: bool) -> Result<StepsRecord, ImportError> {
        let steps = match folded {
            true => StepsRecord::read_folded(&mut self.0),
            false => StepsRecord::read(&mut self.0),
        };
        steps.ok_or(ImportError::Damaged)
    }

    /// Returns the template values for the events that follow.
    async fn values_over_time(
        &mut self,
        form: u16,
        newest: &Arc<TemplateValues>,
        opening: &Opening<'_>,
    ) -> Result<ValuesOverTime, ImportError> {
        let mut values_over_time = ValuesOverTime::new(Arc::clone(newest));
        if form != FOLDED {
            return Ok(values_over_time);
        }
        let birth = newest.chain().birth();
        for _ in 0..self.count()? {
            let until = self.version()?;
            let folded = self.u8()? == 1;
            let steps = self.steps(folded)?;
            let chain = steps.resolve(birth, &opening.params.layers).await;
            values_over_time.push(until, chain.map_err(|_| ImportError::Layers)?);
        }
        Ok(values_over_time)
    }

    fn object(&mut self, key: &Key, context: &Context) -> Result<Arc<Entry>, ImportError> {
        let versions = Versions {
            version: self.version()?,
            created: self.version()?,
        };
        let len = self.u32()? as usize;
        let Ok(Record::Object { object, .. }) = decode(&self.take(len)?) else {
            return Err(ImportError::Damaged);
        };
        let stamp = Stamp::loaded(versions.version);
        Ok(Entry::own(
            key.clone(),
            stamp,
            &object,
            versions,
            &context.interner,
        ))
    }

    async fn history(
        &mut self,
        root: &Root,
        values_over_time: &ValuesOverTime,
        context: &Context,
        yield_budget: &mut YieldBudget,
    ) -> Result<LogContents, ImportError> {
        let mut contents = LogContents {
            floor: self.version()?,
            floors: BTreeMap::new(),
            events: Vec::new(),
        };
        for _ in 0..self.count()? {
            let resource = self.text()?;
            contents.floors.insert(resource[..].into(), self.version()?);
        }
        let mut newest: HashMap<Key, Option<Arc<Entry>>> = HashMap::new();
        for _ in 0..self.count()? {
            let whole = self.0.len();
            let age = Duration::from_millis(u64::from(self.u32()?));
            let version = self.version()?;
            let key = self.key()?;
            let (was, is) = values_over_time.around(version);
            let before = newest.get(&key).cloned().flatten();
            let previous = self.side(&key, before.as_ref(), &was, context)?;
            let current = self.side(&key, root.resources.get(&key), &is, context)?;
            newest.insert(key.clone(), current.clone());
            let previous = previous.map(|entry| ObjectRef::new(entry, was));
            let current = current.map(|entry| ObjectRef::new(entry, is));
            let event = Event::new(version, key, previous, current);
            contents.events.push((age, event));
            yield_budget.spend(whole - self.0.len()).await;
        }
        Ok(contents)
    }

    fn side(
        &mut self,
        key: &Key,
        known: Option<&Arc<Entry>>,
        template_values: &TemplateValues,
        context: &Context,
    ) -> Result<Option<Arc<Entry>>, ImportError> {
        let entry = match self.u8()? {
            NOTHING => return Ok(None),
            OF_LAYER => template_values.template(key).cloned(),
            KNOWN => known.cloned(),
            INLINE => Some(self.object(key, context)?),
            _ => None,
        };
        entry.map(Some).ok_or(ImportError::Damaged)
    }
}
