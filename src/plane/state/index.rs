//! Derived indexes: the facts that a claim can test besides keys, such as whether a port is free or a
//! quota has room.
//!
//! A kind registers an index when the plane is opened. Its rows are computed from the objects'
//! bytes, at load and at each write. They are kept in persistent maps in the root, and are dropped
//! with it.

use std::sync::Arc;

use bytes::Bytes;

use crate::key::Key;
use crate::state::tree::{Item, Tree, Weight};

/// The number of an index: its position in the list that the plane was opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexId(pub usize);

/// The row that one object adds under one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexRow {
    /// The value: a port, an address, a name, a quota's bucket.
    pub value: Bytes,
    /// The amount of the value that the object takes; 1 where only the owner matters.
    pub amount: i64,
}

/// Computes the rows of objects. Must be a pure function of key and body that never panics: it runs
/// inside the sequencer. Planes that show the same layer share the rows of its templates as far as
/// these do not depend on uids, times and the plane's record.
pub trait Index: Send + Sync + 'static {
    /// Returns whether objects of the key's resource can have rows at all. If not, the plane never
    /// computes their rows.
    fn covers(&self, key: &Key) -> bool;

    /// Returns the rows of one object. The body may lack `resourceVersion`.
    fn rows(&self, key: &Key, body: &[u8]) -> Vec<IndexRow>;
}

/// Several values of an index: those with a common beginning whose rest a function selects.
#[derive(Clone)]
pub struct IndexValues {
    beginning: Bytes,
    selects: Selects,
}

/// Returns whether a value counts, from what follows its beginning.
type Selects = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

impl IndexValues {
    /// Selects all values with this beginning.
    pub fn beginning_with(beginning: impl Into<Bytes>) -> Self {
        Self::selected(beginning, |_| true)
    }

    /// Selects the values with this beginning for whose rest `selects` returns true. It is called
    /// inside the sequencer: it must be fast and must not panic.
    pub fn selected(
        beginning: impl Into<Bytes>,
        selects: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            beginning: beginning.into(),
            selects: Arc::new(selects),
        }
    }
}

impl std::fmt::Debug for IndexValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_tuple("IndexValues");
        shown.field(&self.beginning).finish_non_exhaustive()
    }
}

/// All facts about one value.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    value: Arc<[u8]>,
    /// The only holder of the value; `None` once it has had several at one time, even if only one
    /// is left.
    pub(crate) owner: Option<Key>,
    pub(crate) holders: u32,
    /// The sum over all holders, which no number of rows can overflow.
    pub(crate) amount: i128,
}

impl Item for Arc<Cell> {
    fn sort_key(&self) -> &Arc<[u8]> {
        &self.value
    }

    fn weight(&self) -> Weight {
        Weight::of_layer()
    }
}

/// One index of one root.
#[derive(Debug, Clone, Default)]
pub(crate) struct IndexMap(Tree<Arc<Cell>>);

impl IndexMap {
    pub(crate) fn get(&self, value: &[u8]) -> Option<&Cell> {
        self.0.get(value).map(|cell| &**cell)
    }

    pub(crate) fn from(&self, value: &[u8]) -> impl Iterator<Item = (&[u8], &Cell)> {
        self.0.iter_from(value).map(|cell| (&*cell.value, &**cell))
    }

    /// Returns the amount that objects take of these values together.
    pub(crate) fn amount(&self, values: &IndexValues) -> i128 {
        self.from(&values.beginning)
            .map_while(|(value, cell)| Some((value.strip_prefix(&*values.beginning)?, cell)))
            .filter(|(rest, _)| (values.selects)(rest))
            .map(|(_, cell)| cell.amount)
            .sum()
    }

    pub(crate) fn add(&mut self, owner: &Key, rows: Vec<IndexRow>) {
        for row in rows {
            let known = self.0.modify(&row.value, |cell| {
                let cell = Arc::make_mut(cell);
                cell.holders += 1;
                cell.amount += i128::from(row.amount);
                cell.owner = None;
            });
            if known.is_none() {
                self.0.insert(Arc::new(Cell {
                    value: row.value.as_ref().into(),
                    owner: Some(owner.clone()),
                    holders: 1,
                    amount: i128::from(row.amount),
                }));
            }
        }
    }

    pub(crate) fn subtract(&mut self, rows: Vec<IndexRow>) {
        for row in rows {
            let left = self.0.modify(&row.value, |cell| {
                let cell = Arc::make_mut(cell);
                cell.holders -= 1;
                cell.amount -= i128::from(row.amount);
                cell.holders
            });
            if left == Some(0) {
                self.0.remove(&row.value);
            }
        }
    }
}
