//! A root shares with the roots before it what a write does not change.

use bytes::Bytes;

use super::*;
use crate::state::index::IndexRow;
use crate::testing::{object, template_values};
use crate::version::Stamp;

/// An index of the values of config maps. Objects with an empty value have no row.
struct ByValue;

impl Index for ByValue {
    fn covers(&self, key: &Key) -> bool {
        key.is_of("", "configmaps")
    }

    fn rows(&self, _key: &Key, body: &[u8]) -> Vec<IndexRow> {
        let object: serde_json::Value = serde_json::from_slice(body).expect("bodies are JSON");
        let value = object["data"]["k"].as_str().unwrap_or_default();
        if value.is_empty() {
            return Vec::new();
        }
        vec![IndexRow {
            value: Bytes::copy_from_slice(value.as_bytes()),
            amount: 1,
        }]
    }
}

fn entry(name: &str, value: &str) -> Arc<Entry> {
    let key = Key::new("", "configmaps", Some("ns"), name);
    Entry::in_flight(key, Stamp::sequenced(1), object(name, "x", value))
}

#[test]
fn only_a_write_with_index_rows_copies_the_indexes() {
    let context = Context {
        indexes: Arc::from([Arc::new(ByValue) as Arc<dyn Index>]),
        derive: Derive::default(),
        summarizer: Summarizer::default(),
        interner: Arc::new(Interner::default()),
    };
    let mut root = Root::of_layers(template_values(), &context);
    let before = root.clone();
    let without_rows = entry("a", "");
    root.put(Arc::clone(&without_rows), &context);
    root.put(Arc::clone(&without_rows), &context);
    root.remove(without_rows.key(), &context);
    assert!(Arc::ptr_eq(&root.indexes, &before.indexes));
    root.put(entry("b", "1"), &context);
    assert_eq!(before.index_cells(0).count(), 0);
    assert_eq!(root.index_cells(0).count(), 1);
    root.put(entry("b", ""), &context);
    assert_eq!(root.index_cells(0).count(), 0, "the old row is gone");
}
