//! The layers that planes of one store are opened with.
//!
//! A plane names the layers it came by in its record. The binary brings the layer it knows; a
//! plane that was born with another one is opened with what the store holds.

use parking_lot::Mutex;
use polyplane_plane::{Layer, LayerHash, ShelfError, load_layer, save_layer};
use polyplane_storage::Store;
use std::collections::HashMap;
use std::sync::Arc;

/// Layers in memory, by their hash, and the store that has the others.
pub struct Layers {
    store: Arc<dyn Store>,
    known: Mutex<HashMap<LayerHash, Arc<Layer>>>,
}

impl Layers {
    /// Knows no layer yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            known: Mutex::new(HashMap::new()),
        }
    }

    /// Makes a layer of the binary known, and stores it if the store does not have it.
    ///
    /// # Errors
    /// What the store said.
    pub async fn bring(&self, layer: &Arc<Layer>) -> Result<(), ShelfError> {
        self.known
            .lock()
            .insert(layer.hash().clone(), Arc::clone(layer));
        save_layer(&self.store, layer).await
    }

    /// The layer of this hash.
    ///
    /// # Errors
    /// If the store does not have it or cannot be read.
    pub async fn get(&self, hash: &LayerHash) -> Result<Arc<Layer>, ShelfError> {
        if let Some(layer) = self.known.lock().get(hash) {
            return Ok(Arc::clone(layer));
        }
        let layer = load_layer(&self.store, hash).await?;
        self.known.lock().insert(hash.clone(), Arc::clone(&layer));
        Ok(layer)
    }
}
