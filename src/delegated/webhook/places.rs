//! The places of questions to one webhook, shared among the sources of clients.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Questions to one webhook at a time, those that wait to be sent included. A target admits more, so it
/// refuses none of them.
const PLACES: usize = 128;

/// The number of questions of each source that has any.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<usize, usize>>);

/// The right to one question. Dropping it gives the place to others.
pub(super) struct Place<'a> {
    places: &'a Places,
    source: usize,
}

impl Places {
    /// Returns a place; `None` if the source has as many as are free. So a flood from one source leaves half
    /// of them to others, and floods from several leave as many as each of them has.
    pub(super) fn enter(&self, source: usize) -> Option<Place<'_>> {
        let mut taken = self.0.lock();
        let free = PLACES.saturating_sub(taken.values().sum());
        let own = taken.get(&source).copied().unwrap_or(0);
        if own >= free {
            return None;
        }
        taken.insert(source, own + 1);
        Some(Place {
            places: self,
            source,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock();
        match taken.get_mut(&self.source) {
            Some(own) if *own > 1 => *own -= 1,
            Some(_) | None => {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_by(places: &Places, source: usize) -> Vec<Place<'_>> {
        std::iter::from_fn(|| places.enter(source)).collect()
    }

    #[test]
    fn a_source_takes_no_more_places_than_it_leaves_free() {
        let places = Places::default();
        let first = taken_by(&places, 1);
        assert_eq!(first.len(), PLACES / 2);
        let others = [taken_by(&places, 2), taken_by(&places, 3)];
        assert_eq!(others.each_ref().map(Vec::len), [PLACES / 4, PLACES / 8]);
        assert!(places.enter(1).is_none() && places.enter(4).is_some());
        drop((first, others));
        assert!(places.0.lock().is_empty());
        assert_eq!(taken_by(&places, 2).len(), PLACES / 2);
    }
}
