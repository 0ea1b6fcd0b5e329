//! The form of a plane's steps in the store and in a hand-off: layers by their hashes, commits by their
//! versions.
//!
//! There are two forms, without a fold and with one. Before the store's level floor has reached the
//! level of folds, only the form without one is written. The container of a record says which form
//! it has.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use polyplane_apimachinery::Str;

use super::fold::{CommitOffset, Fold, FoldRow, FoldedCommit};
use super::{Chain, LayerStep, StepCommit};
use crate::key::Key;
use crate::layers::Layers;
use crate::layers::layer::{Layer, LayerHash};
use crate::layers::layer_store::LayerStoreError;
use crate::record::RecordError;
use crate::version::Version;

/// The steps of a plane, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepsRecord {
    /// The folded steps before them.
    pub(crate) fold: Option<FoldRecord>,
    pub(crate) steps: Vec<StepRecord>,
    /// The changes of the newest commit that made no event, by their positions in the commit. The
    /// plane has an object or a tombstone of its own at their keys.
    pub(crate) silent: Vec<u8>,
}

/// Steps that are folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoldRecord {
    /// The layer after the folded steps.
    pub(crate) layer: LayerHash,
    /// Number of folded steps.
    pub(crate) steps: u32,
    /// The end of the newest folded commit.
    pub(crate) newest: Version,
    /// The commits that a row names, in the order of their versions.
    pub(crate) commits: Vec<FoldedCommit>,
    /// The rows with the numbers that their objects have in the layer, in the order of these
    /// numbers.
    pub(crate) rows: Vec<(u32, FoldRow)>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepRecord {
    pub(crate) to: LayerHash,
    pub(crate) time: Str,
    pub(crate) recreated: Vec<Key>,
    pub(crate) commits: Vec<CommitRecord>,
}

/// One commit of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    pub(crate) first: u32,
    pub(crate) count: u8,
    /// The version of the commit's first change; zero in the record that the commit itself puts.
    pub(crate) version: Version,
}

impl StepsRecord {
    /// Returns the record of a chain. A commit without a version is the one that writes the record.
    pub(crate) fn of(chain: &Chain, silent: Vec<u8>) -> Self {
        let steps = chain.steps().iter().map(|step| StepRecord {
            to: step.difference().to().hash().clone(),
            time: step.time().clone(),
            recreated: step.difference().recreated().to_vec(),
            commits: step.commits().iter().map(|commit| record(commit)).collect(),
        });
        Self {
            fold: chain.fold().map(|fold| FoldRecord::of(fold)),
            steps: steps.collect(),
            silent,
        }
    }

    /// Returns the record with the version of its newest commit filled in.
    pub(crate) fn landed(mut self, version: Version) -> Self {
        let newest = self
            .steps
            .last_mut()
            .and_then(|step| step.commits.last_mut());
        if let Some(newest) = newest {
            newest.version = version;
        }
        self
    }

    /// Returns the chain that the record describes, for a plane born with the layer `birth`.
    pub(crate) async fn resolve(
        &self,
        birth: &LayerHash,
        layers: &Layers,
    ) -> Result<Arc<Chain>, LayerStoreError> {
        let chain = match &self.fold {
            Some(fold) => {
                let layer = layers.get(&fold.layer).await?;
                let fold = fold.resolve(layer, layers).ok_or(RecordError::Damaged)?;
                Chain::behind(birth.clone(), Arc::new(fold), Vec::new())
            }
            None => Chain::new(layers.get(birth).await?, Vec::new()),
        };
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut from = Arc::clone(chain.start());
        for record in &self.steps {
            let to = layers.get(&record.to).await?;
            let difference = layers.difference(&from, &to, record.recreated.clone());
            let mut step = LayerStep::new(difference, record.time.clone());
            for commit in &record.commits {
                let first = commit.first as usize;
                let count = usize::from(commit.count);
                step.push(StepCommit::new(first, count, Some(commit.version)));
            }
            steps.push(step);
            from = to;
        }
        Ok(chain.with(steps))
    }

    /// Writes the record, in the form without a fold if it has none, else in the form with one.
    pub(crate) fn write(&self, out: &mut BytesMut) {
        if let Some(fold) = &self.fold {
            fold.write(out);
        }
        let count = |out: &mut BytesMut, count: usize| {
            out.put_u16(u16::try_from(count).expect("steps, and what they make anew, are few"));
        };
        let text = |out: &mut BytesMut, text: &[u8]| {
            count(out, text.len());
            out.put_slice(text);
        };
        count(out, self.steps.len());
        for step in &self.steps {
            text(out, step.to.0.as_bytes());
            text(out, step.time.as_bytes());
            count(out, step.recreated.len());
            for key in &step.recreated {
                text(out, key.as_bytes());
            }
            count(out, step.commits.len());
            for commit in &step.commits {
                out.put_u32(commit.first);
                out.put_u8(commit.count);
                out.put_u64(commit.version.raw());
            }
        }
        count(out, self.silent.len());
        out.put_slice(&self.silent);
    }

    /// Reads the form with a fold; `None` if the bytes are not of that form.
    pub(crate) fn read_folded(bytes: &mut Bytes) -> Option<Self> {
        let fold = FoldRecord::read(bytes)?;
        let steps = Self::read(bytes)?;
        Some(Self {
            fold: Some(fold),
            ..steps
        })
    }

    /// Reads the form without a fold; `None` if the bytes are not of that form.
    pub(crate) fn read(bytes: &mut Bytes) -> Option<Self> {
        let mut record = Self::default();
        for _ in 0..bytes.try_get_u16().ok()? {
            let mut step = StepRecord {
                to: LayerHash(text(bytes)?),
                time: text(bytes)?.into(),
                recreated: Vec::new(),
                commits: Vec::new(),
            };
            for _ in 0..bytes.try_get_u16().ok()? {
                step.recreated
                    .push(Key::from_bytes(text(bytes)?.as_bytes())?);
            }
            let mut next = 0;
            for _ in 0..bytes.try_get_u16().ok()? {
                let commit = CommitRecord {
                    first: bytes.try_get_u32().ok()?,
                    count: bytes.try_get_u8().ok()?,
                    version: Version::from_raw(bytes.try_get_u64().ok()?),
                };
                if commit.first != next {
                    return None;
                }
                next += u32::from(commit.count);
                step.commits.push(commit);
            }
            record.steps.push(step);
        }
        let silent = usize::from(bytes.try_get_u16().ok()?);
        if bytes.len() < silent {
            return None;
        }
        record.silent = bytes.split_to(silent).to_vec();
        Some(record)
    }
}

impl FoldRecord {
    fn of(fold: &Fold) -> Self {
        Self {
            layer: fold.layer.hash().clone(),
            steps: fold.steps,
            newest: fold.newest,
            commits: fold.commits.clone(),
            rows: fold.rows.numbered(&fold.layer),
        }
    }

    fn resolve(&self, layer: Arc<Layer>, layers: &Layers) -> Option<Fold> {
        Some(Fold {
            steps: self.steps,
            newest: self.newest,
            commits: self.commits.clone(),
            rows: layers.rows(&layer, &self.rows)?,
            layer,
        })
    }

    /// Writes the fold. Numbers have a variable length and most are small: a row takes three or
    /// four bytes, a commit about ten, a commit that added an object that still exists about
    /// thirty.
    fn write(&self, out: &mut BytesMut) {
        let text = |out: &mut BytesMut, text: &str| {
            number(out, text.len() as u64);
            out.put_slice(text.as_bytes());
        };
        text(out, &self.layer.0);
        number(out, self.steps.into());
        out.put_u64(self.newest.raw());
        number(out, self.commits.len() as u64);
        let mut before = 0;
        for commit in &self.commits {
            number(out, commit.version.raw() - before);
            before = commit.version.raw();
            // Steps are counted from one.
            let (step, time) = match &commit.brought {
                Some((step, time)) => (*step, Some(time)),
                None => (0, None),
            };
            number(out, step.into());
            if let Some(time) = time {
                text(out, time);
            }
        }
        number(out, self.rows.len() as u64);
        let mut next = 0;
        for (object, row) in &self.rows {
            number(out, u64::from(object - next));
            next = object + 1;
            let FoldRow { changed, came } = *row;
            let origin = match came {
                None => BORN,
                Some(came) if came == changed => CHANGED,
                Some(_) => EARLIER,
            };
            number(out, u64::from(changed.commit) << ORIGIN_BITS | origin);
            out.put_u8(changed.offset);
            if let Some(came) = came.filter(|_| origin == EARLIER) {
                number(out, came.commit.into());
                out.put_u8(came.offset);
            }
        }
    }

    fn read(bytes: &mut Bytes) -> Option<Self> {
        let mut fold = Self {
            layer: LayerHash(short_text(bytes)?),
            steps: read_small(bytes)?,
            newest: Version::from_raw(bytes.try_get_u64().ok()?),
            commits: Vec::new(),
            rows: Vec::new(),
        };
        let mut before = 0u64;
        for at in 0..read_small::<u32>(bytes)? {
            let delta = read_number(bytes)?;
            before = before.checked_add(delta).filter(|_| at == 0 || delta > 0)?;
            let brought = match read_small(bytes)? {
                0 => None,
                step => Some((step, short_text(bytes)?.into())),
            };
            let version = Version::from_raw(before);
            fold.commits.push(FoldedCommit { version, brought });
        }
        let mut next = 0u32;
        for _ in 0..read_small::<u32>(bytes)? {
            let object = next.checked_add(read_small(bytes)?)?;
            next = object.checked_add(1)?;
            let word = read_number(bytes)?;
            let changed = fold.mark(word >> ORIGIN_BITS, bytes)?;
            let came = match word & ((1 << ORIGIN_BITS) - 1) {
                BORN => None,
                CHANGED => Some(changed),
                EARLIER => {
                    let commit = read_number(bytes)?;
                    Some(fold.mark(commit, bytes)?)
                }
                _ => return None,
            };
            let brings =
                |came: CommitOffset| fold.commits[usize::from(came.commit)].brought.is_some();
            if came.is_some_and(|came| !brings(came)) {
                return None;
            }
            fold.rows.push((object, FoldRow { changed, came }));
        }
        Some(fold)
    }

    /// Reads an offset and returns the position of a change in the commit with this number, if the
    /// fold has that commit.
    fn mark(&self, commit: u64, bytes: &mut Bytes) -> Option<CommitOffset> {
        let version = self.commits.get(usize::try_from(commit).ok()?)?.version;
        let offset = bytes.try_get_u8().ok()?;
        let last = usize::from(version.index()) + usize::from(offset);
        (last < usize::from(Version::END)).then_some(CommitOffset {
            commit: u16::try_from(commit).ok()?,
            offset,
        })
    }
}

/// Number of bits, the lowest of the commit that changed an object, that say where the object came
/// from.
const ORIGIN_BITS: u32 = 2;
/// The plane was born with it.
const BORN: u64 = 0;
/// The commit that changed it last also added it.
const CHANGED: u64 = 1;
/// Another commit, which is named next, added it.
const EARLIER: u64 = 2;

/// Writes a number seven bits a byte, the lowest first. The highest bit of each byte says whether
/// more bytes follow.
fn number(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8((number & 0x7F) as u8);
}

fn read_number(bytes: &mut Bytes) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = bytes.try_get_u8().ok()?;
        let part = u64::from(byte & 0x7F);
        // The last of ten bytes has room for one bit only.
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn read_small<T: TryFrom<u64>>(bytes: &mut Bytes) -> Option<T> {
    T::try_from(read_number(bytes)?).ok()
}

fn short_text(bytes: &mut Bytes) -> Option<String> {
    let len: usize = read_small(bytes)?;
    if bytes.len() < len {
        return None;
    }
    String::from_utf8(bytes.split_to(len).to_vec()).ok()
}

fn record(commit: &StepCommit) -> CommitRecord {
    CommitRecord {
        first: u32::try_from(commit.first).expect("a layer in memory has few objects"),
        count: u8::try_from(commit.count).expect("a commit has at most 255 events"),
        version: commit.version().unwrap_or(Version::ZERO),
    }
}

fn text(bytes: &mut Bytes) -> Option<String> {
    let len = usize::from(bytes.try_get_u16().ok()?);
    if bytes.len() < len {
        return None;
    }
    String::from_utf8(bytes.split_to(len).to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded() -> FoldRecord {
        let mark = |commit, offset| CommitOffset { commit, offset };
        let row = |changed, came| FoldRow { changed, came };
        FoldRecord {
            layer: LayerHash("cd".into()),
            steps: 300,
            newest: Version::from_raw(6 << 8 | 255),
            commits: vec![
                FoldedCommit {
                    version: Version::from_raw(2 << 8 | 7),
                    brought: Some((299, "2025-01-01T00:00:00Z".into())),
                },
                FoldedCommit {
                    version: Version::from_raw(6 << 8),
                    brought: None,
                },
            ],
            rows: vec![
                (0, row(mark(1, 9), None)),
                (1, row(mark(0, 3), Some(mark(0, 3)))),
                (400, row(mark(1, 254), Some(mark(0, 247)))),
            ],
        }
    }

    #[test]
    fn a_fold_reads_back_as_written_and_damage_is_seen() {
        let wanted = StepsRecord {
            fold: Some(folded()),
            ..StepsRecord::default()
        };
        let mut out = BytesMut::new();
        wanted.write(&mut out);
        let bytes = out.freeze();
        let mut rest = bytes.clone();
        assert_eq!(StepsRecord::read_folded(&mut rest).as_ref(), Some(&wanted));
        assert!(rest.is_empty());
        for len in 0..bytes.len() {
            let part = StepsRecord::read_folded(&mut bytes.slice(..len));
            assert_eq!(part, None, "{len}");
        }
        let reads = |change: fn(&mut FoldRecord)| {
            let mut fold = folded();
            change(&mut fold);
            let mut out = BytesMut::new();
            fold.write(&mut out);
            FoldRecord::read(&mut out.freeze()).is_some()
        };
        assert!(reads(|_| {}));
        assert!(
            !reads(|fold| fold.rows[0].1.changed.commit = 2),
            "no such commit"
        );
        assert!(
            !reads(|fold| fold.rows[0].1.changed.offset = 255),
            "no such index"
        );
        assert!(
            !reads(|fold| fold.commits[0].brought = None),
            "it brought something"
        );
        assert!(!reads(
            |fold| fold.commits[1].version = fold.commits[0].version
        ));
    }

    #[test]
    fn steps_read_back_as_written_and_damage_is_seen() {
        let wanted = StepsRecord {
            fold: None,
            steps: vec![StepRecord {
                to: LayerHash("ab".into()),
                time: "2026-01-01T00:00:00Z".into(),
                recreated: vec![Key::new("g", "r", None, "a")],
                commits: vec![
                    CommitRecord {
                        first: 0,
                        count: 255,
                        version: Version::from_raw(7 << 8),
                    },
                    CommitRecord {
                        first: 255,
                        count: 3,
                        version: Version::ZERO,
                    },
                ],
            }],
            silent: vec![0, 2],
        };
        let mut out = BytesMut::new();
        wanted.write(&mut out);
        let bytes = out.freeze();
        let mut rest = bytes.clone();
        assert_eq!(StepsRecord::read(&mut rest).as_ref(), Some(&wanted));
        assert!(rest.is_empty());
        for len in 0..bytes.len() {
            assert_eq!(StepsRecord::read(&mut bytes.slice(..len)), None, "{len}");
        }
        let landed = wanted.landed(Version::from_raw(9 << 8));
        let newest = landed.steps[0].commits[1].version;
        assert_eq!(newest, Version::from_raw(9 << 8));
    }
}
