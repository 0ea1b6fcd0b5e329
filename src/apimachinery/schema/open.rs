//! Definitions of objects whose metadata is typed and whose other members are kept as they are:
//! custom objects, which have schemas of their own.

use super::{DefId, Definition, Field, Order, Schemas, Type, Unknown};

impl Schemas {
    /// Adds such a definition, with `metadata` as the definition of metadata.
    pub fn add_open(&mut self, name: &str, metadata: DefId) -> DefId {
        let first = self.definitions.len();
        let id = self.add(Definition {
            name: name.into(),
            fields: vec![Field::new("metadata", Type::Ref(metadata))],
            unknown: Unknown::Keep,
            order: Order::Sorted,
            ..Definition::default()
        });
        self.seal_from(first);
        id
    }
}
