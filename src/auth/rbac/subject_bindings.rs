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
        let (mut start, mut end) = (at, at + 1);
        if let Some(next) = self.chunks.get(end)
            && bindings.len() + next.len() <= JOIN_MAX
        {
            bindings.extend(next.iter().cloned());
            end += 1;
        }
        let before = start.checked_sub(1).map(|before| &self.chunks[before]);
        if let Some(before) = before
            && before.len() + bindings.len() <= JOIN_MAX
        {
            bindings.splice(..0, before.iter().cloned());
            start -= 1;
        }
        self.replace(start, end, [bindings]);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use polyplane_apimachinery::Value;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::rbac::binding::ObjectName;

    fn binding(at: u16) -> Arc<Binding> {
        let name = format!("binding-{at:04}");
        let name = ObjectName {
            namespace: "",
            name: &name,
        };
        Arc::new(Binding::from_value(name, &Value::object()))
    }

    fn check(list: &SubjectBindings, model: &BTreeMap<String, Arc<Binding>>) {
        let names = |binding: &Arc<Binding>| binding.name().to_owned();
        assert!(list.iter().map(names).eq(model.keys().cloned()));
        assert_eq!(list.is_empty(), model.is_empty());
        let sizes: Vec<usize> = list.chunks.iter().map(|chunk| chunk.len()).collect();
        assert!(sizes.iter().all(|size| (1..=CHUNK_MAX).contains(size)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_list_is_sorted_and_complete_while_it_grows_and_shrinks(
            puts in vec(0..600u16, 200..600),
            removals in vec(0..600u16, 0..2_000),
        ) {
            let (mut list, mut model) = (SubjectBindings::default(), BTreeMap::new());
            for at in puts {
                let new = binding(at);
                list.put(&new);
                model.insert(new.name().to_owned(), new);
            }
            check(&list, &model);
            let (kept, kept_model) = (list.clone(), model.clone());
            for at in removals {
                let name = format!("binding-{at:04}");
                list.remove(&name);
                model.remove(&name);
                check(&list, &model);
            }
            check(&kept, &kept_model);
        }
    }

    /// Without joins, a list that shrinks keeps one chunk per few bindings.
    #[test]
    fn chunks_that_shrink_are_joined() {
        let mut list = SubjectBindings::default();
        (0..2_000).for_each(|at| list.put(&binding(at)));
        let full = list.chunks.len();
        (0..2_000)
            .filter(|at| at % 40 != 0)
            .for_each(|at| list.remove(binding(at).name()));
        assert_eq!(list.iter().count(), 50);
        assert!(
            full >= 2_000 / CHUNK_MAX && list.chunks.len() <= 10,
            "{full}, {}",
            list.chunks.len()
        );
    }
}
