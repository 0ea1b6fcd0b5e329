//! Defaults without the members that their schema does not have. Upstream's first releases accepted such defaults and
//! serves their definitions as if the members were not there.

use super::{NodeId, Structural};
use crate::shape::Values;
use crate::shape::prune::{META_FIELDS, Report, Root, prune};
use crate::value::Value;

impl Structural {
    /// Removes the members of defaults that the schema does not have, and returns whether there were any.
    pub fn prune_defaults(&mut self) -> bool {
        let Ok(root) = u32::try_from(self.nodes.len().saturating_sub(1)) else {
            return false;
        };
        let mut pruned = Vec::new();
        self.collect_pruned(NodeId(root), true, &mut pruned);
        let is_changed = !pruned.is_empty();
        for (id, default) in pruned {
            if let Some(notes) = &mut self.nodes[id.0 as usize].notes {
                notes.default = Some(default);
            }
        }
        is_changed
    }

    /// Adds the defaults at a node and below it that change to `pruned`. Those inside the metadata of an object do not.
    fn collect_pruned(&self, id: NodeId, is_root: bool, pruned: &mut Vec<(NodeId, Value)>) {
        let node = &self.nodes[id.0 as usize];
        let notes = node.notes.as_deref();
        if let Some(default) = notes.and_then(|notes| notes.default.as_ref()) {
            let root = match is_root {
                true => Root::Resource,
                false => Root::Value,
            };
            let mut known = default.clone();
            prune(self.root().at(id), &mut known, root, Report::Nothing);
            if known != *default {
                pruned.push((id, known));
            }
        }
        if !node.flags.has_defaults {
            return;
        }
        let values = node.values.and_then(Values::shape);
        for inner in node.item.into_iter().chain(values) {
            self.collect_pruned(inner, false, pruned);
        }
        let has_metadata = is_root || node.flags.is_embedded;
        for (name, inner) in &node.fields {
            if !(has_metadata && META_FIELDS.contains(&name.as_str())) {
                self.collect_pruned(*inner, false, pruned);
            }
        }
    }
}
