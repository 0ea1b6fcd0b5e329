//! The steps of a plane as they stand in the store and travel in a hand-off: layers by their
//! hashes, commits by their versions.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use polyplane_apimachinery::Str;

use super::{Chain, Step, StepCommit};
use crate::key::Key;
use crate::layer::{Layer, LayerHash};
use crate::layers::Layers;
use crate::shelf::ShelfError;
use crate::version::Version;

/// The steps of a plane, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepsRecord {
    pub(crate) steps: Vec<StepRecord>,
    /// Places of the newest commit, counted from its first, at which nothing was to be seen: the
    /// plane has, or has removed, an object of its own there.
    pub(crate) silent: Vec<u8>,
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
    /// Zero in the record that the commit itself puts.
    pub(crate) version: Version,
}

impl StepsRecord {
    /// What is to be written of a chain; a commit without a version is the one that writes it.
    pub(crate) fn of(chain: &Chain, silent: Vec<u8>) -> Self {
        let steps = chain.steps().iter().map(|step| StepRecord {
            to: step.difference().to().hash().clone(),
            time: step.time().clone(),
            recreated: step.difference().recreated().to_vec(),
            commits: step.commits().iter().map(|commit| record(commit)).collect(),
        });
        Self {
            steps: steps.collect(),
            silent,
        }
    }

    /// Gives the newest commit its version.
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

    /// The chain it speaks of.
    pub(crate) async fn resolve(
        &self,
        birth: Arc<Layer>,
        layers: &Layers,
    ) -> Result<Arc<Chain>, ShelfError> {
        let mut steps = Vec::with_capacity(self.steps.len());
        let mut from = Arc::clone(&birth);
        for record in &self.steps {
            let to = layers.get(&record.to).await?;
            let difference = layers.difference(&from, &to, record.recreated.clone());
            let mut step = Step::new(difference, record.time.clone());
            for commit in &record.commits {
                let first = commit.first as usize;
                let count = usize::from(commit.count);
                step.push(StepCommit::new(first, count, Some(commit.version)));
            }
            steps.push(step);
            from = to;
        }
        Ok(Chain::new(birth, steps))
    }

    pub(crate) fn write(&self, out: &mut BytesMut) {
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

    /// Reads what [`Self::write`] wrote; none if it is something else.
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

    #[test]
    fn steps_read_back_as_written_and_damage_is_seen() {
        let wanted = StepsRecord {
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
