//! The bindings of one subject in one scope, by name: a persistent sorted list.
//!
//! A decision reads it as slices, without an iterator that allocates. A change copies one chunk and
//! the list of chunks, so that a subject with tens of thousands of bindings does not make each
//! change of one of them slow.

use std::sync::Arc;

use super::binding::Binding;

/// Most bindings of a chunk.
const CHUNK_MAX: usize = 64;
/// Most bindings of two neighbours that are joined when one of them shrinks. Higher would make
/// alternating puts and removals split and join the same chunk.
const JOIN_MAX: usize = CHUNK_MAX / 2;

type Chunk = Arc<[Arc<Binding>]>;

/// The bindings of one subject. No chunk is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubjectBindings {
    chunks: Arc<[Chunk]>,
}

/// Equal lists can be cut into chunks differently.
impl PartialEq for SubjectBindings {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl SubjectBindings {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Binding>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds a binding, in place of one with its name.
    pub(crate) fn put(&mut self, binding: &Arc<Binding>) {
        let Some((at, chunk)) = self.chunk_of(binding.name()) else {
            self.chunks = Arc::from([Arc::from([Arc::clone(binding)])]);
            return;
        };
        let mut bindings = chunk.to_vec();
        match position(chunk, binding.name()) {
            Ok(place) => bindings[place] = Arc::clone(binding),
            Err(place) => bindings.insert(place, Arc::clone(binding)),
        }
        let upper = bindings.split_off(if bindings.len() > CHUNK_MAX {
            CHUNK_MAX / 2
        } else {
            bindings.len()
        });
        self.replace(at, at + 1, [bindings, upper]);
    }

    /// Removes the binding with a name, if it is there.
    pub(crate) fn remove(&mut self, name: &str) {
        let Some((at, chunk)) = self.chunk_of(name) else {
            return;
        };
        let Ok(place) = position(chunk, name) else {
            return;
        };
        let mut bindings = chunk.to_vec();
        bindings.remove(place);
        let mut end = at + 1;
        if let Some(next) = self.chunks.get(end)
            && bindings.len() + next.len() <= JOIN_MAX
        {
            bindings.extend(next.iter().cloned());
            end += 1;
        }
        self.replace(at, end, [bindings]);
    }

    /// Returns the chunk that has, or would have, the binding with a name.
    fn chunk_of(&self, name: &str) -> Option<(usize, &Chunk)> {
        let below = |chunk: &Chunk| chunk.last().is_some_and(|last| last.name() < name);
        let last = self.chunks.len().checked_sub(1)?;
        let at = self.chunks.partition_point(below).min(last);
        Some((at, &self.chunks[at]))
    }

    /// Puts chunks, those of them that are not empty, in place of the chunks from `start` to `end`.
    fn replace<const N: usize>(
        &mut self,
        start: usize,
        end: usize,
        chunks: [Vec<Arc<Binding>>; N],
    ) {
        let new = chunks.into_iter().filter(|chunk| !chunk.is_empty());
        let before = self.chunks[..start].iter().cloned();
        let after = self.chunks[end..].iter().cloned();
        self.chunks = before.chain(new.map(Chunk::from)).chain(after).collect();
    }
}

fn position(chunk: &[Arc<Binding>], name: &str) -> Result<usize, usize> {
    chunk.binary_search_by(|binding| binding.name().cmp(name))
}
