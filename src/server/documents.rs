//! Documents derived from kind tables, made when first asked for and shared by all planes that
//! serve the same kinds.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use polyplane_registry::KindTable;

use crate::discovery::Discovery;
use crate::openapi::OpenApi;

/// Kind tables whose documents are kept; the one asked for least recently goes first.
const TABLES_MAX: usize = 64;

/// The documents of all kind tables in use.
pub(crate) struct Documents {
    address: String,
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    /// Holds no table alive, but its address, so that it cannot be taken for another's.
    table: Weak<KindTable>,
    documents: Arc<TableDocuments>,
}

/// The documents of one kind table.
#[derive(Default)]
pub(crate) struct TableDocuments {
    discovery: OnceLock<Discovery>,
    open_api: OnceLock<OpenApi>,
}

impl Documents {
    pub(crate) fn new(address: String) -> Self {
        Self {
            address,
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Host and port that discovery names.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The documents of `table`.
    pub(crate) fn of(&self, table: &Arc<KindTable>) -> Arc<TableDocuments> {
        let mut kept = self.kept.lock();
        let found = kept
            .iter()
            .position(|entry| std::ptr::eq(entry.table.as_ptr(), Arc::as_ptr(table)));
        let entry = match found {
            Some(at) => kept.remove(at),
            None => {
                kept.retain(|entry| entry.table.strong_count() > 0);
                if kept.len() >= TABLES_MAX {
                    kept.remove(0);
                }
                Kept {
                    table: Arc::downgrade(table),
                    documents: Arc::default(),
                }
            }
        };
        let documents = Arc::clone(&entry.documents);
        kept.push(entry);
        documents
    }
}

impl TableDocuments {
    pub(crate) fn discovery(&self, table: &KindTable, address: &str) -> &Discovery {
        self.discovery
            .get_or_init(|| Discovery::new(table, address))
    }

    pub(crate) fn open_api(&self, table: &KindTable) -> &OpenApi {
        self.open_api.get_or_init(|| OpenApi::new(table))
    }
}
