//! Layers: the immutable sets of objects under the planes' own, and how a plane moves between them.
//!
//! [`layer`] is one layer with its templates, [`layer_store`] its form in the store. [`template_values`]
//! turns a template into an object of one plane. [`step`] moves a plane to a newer layer, [`chain`]
//! remembers the steps it has taken. This file caches the layers that a process has met: the binary
//! adds its own, any other is read from the store once.

pub(crate) mod chain;
pub(crate) mod layer;
pub(crate) mod layer_store;
pub(crate) mod step;
pub(crate) mod template_values;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use polyplane_storage::Store;

use crate::key::Key;
use crate::layers::chain::Difference;
use crate::layers::chain::fold::{FoldRow, FoldRows};
use crate::layers::layer::{Layer, LayerHash};
use crate::layers::layer_store::{LayerStoreError, load_layer, save_layer};

/// The old layer, the new one, and the keys whose objects are recreated between them.
type Pair = (LayerHash, LayerHash, Vec<Key>);

/// The content of a set of fold rows: the layer, and the row of each object by its number in the
/// layer.
type RowsOf = (LayerHash, Box<[(u32, FoldRow)]>);

/// Number of cached folds below which the cache does not search for unused ones.
const ROWS_MIN: usize = 64;

/// Layers in memory, by their hash, and the store that has the others.
pub struct Layers {
    store: Arc<dyn Store>,
    known: Mutex<HashMap<LayerHash, Arc<Layer>>>,
    /// Hashes of the layers that the store is known to have.
    stored: Mutex<HashSet<LayerHash>>,
    differences: Mutex<HashMap<Pair, Arc<Difference>>>,
    folded: Mutex<Folded>,
}

/// The fold rows that planes in memory share.
#[derive(Default)]
struct Folded {
    rows: HashMap<RowsOf, Weak<FoldRows>>,
    /// Number of rows left after unused ones were last removed.
    looked_at: usize,
}

impl Layers {
    /// Creates a cache that has only the layer without objects, which needs no store.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let empty = Layer::empty();
        Arc::new(Self {
            store,
            known: Mutex::new(HashMap::from([(empty.hash().clone(), empty)])),
            stored: Mutex::default(),
            differences: Mutex::default(),
            folded: Mutex::default(),
        })
    }

    /// Caches a layer of the binary, and stores it if the store does not have it.
    ///
    /// # Errors
    /// Returns the store's error; trying again is safe.
    pub async fn bring(&self, layer: &Arc<Layer>) -> Result<(), LayerStoreError> {
        self.know(layer);
        if self.stored.lock().contains(layer.hash()) {
            return Ok(());
        }
        save_layer(&self.store, layer).await?;
        self.stored.lock().insert(layer.hash().clone());
        Ok(())
    }

    /// Returns the layer of this hash.
    ///
    /// # Errors
    /// Returns an error if the store does not have the layer or cannot be read.
    pub async fn get(&self, hash: &LayerHash) -> Result<Arc<Layer>, LayerStoreError> {
        if let Some(layer) = self.known.lock().get(hash) {
            return Ok(Arc::clone(layer));
        }
        let layer = load_layer(&self.store, hash).await?;
        Ok(self.know(&layer))
    }

    /// Caches a layer. Of two loads of one hash the first is kept, so that planes share it.
    fn know(&self, layer: &Arc<Layer>) -> Arc<Layer> {
        let mut known = self.known.lock();
        let entry = known.entry(layer.hash().clone());
        Arc::clone(entry.or_insert_with(|| Arc::clone(layer)))
    }

    /// Returns the changes between two layers.
    pub(crate) fn difference(
        &self,
        from: &Arc<Layer>,
        to: &Arc<Layer>,
        recreated: Vec<Key>,
    ) -> Arc<Difference> {
        let pair = (from.hash().clone(), to.hash().clone(), recreated.clone());
        let mut differences = self.differences.lock();
        let difference = differences.entry(pair);
        let make = || Difference::new(Arc::clone(from), Arc::clone(to), recreated);
        Arc::clone(difference.or_insert_with(make))
    }

    /// Returns the rows of a fold, shared among planes that have equal ones. Returns `None` if the
    /// layer has no such objects.
    pub(crate) fn rows(&self, layer: &Layer, rows: &[(u32, FoldRow)]) -> Option<Arc<FoldRows>> {
        let of = (layer.hash().clone(), Box::from(rows));
        let mut folded = self.folded.lock();
        if let Some(known) = folded.rows.get(&of).and_then(Weak::upgrade) {
            return Some(known);
        }
        let made = Arc::new(FoldRows::of_layer(layer, rows)?);
        // The limit doubles with what is left, so the search stays cheap however many planes wake.
        if folded.rows.len() >= ROWS_MIN.max(2 * folded.looked_at) {
            folded.rows.retain(|_, rows| rows.strong_count() > 0);
            folded.looked_at = folded.rows.len();
        }
        folded.rows.insert(of, Arc::downgrade(&made));
        Some(made)
    }
}
