//! Code that the kinds of several API groups share, by subject.

pub mod network;
pub mod node_selector;
pub mod object_metadata;
pub mod pod;
pub mod resource_names;
pub mod table_cells;
pub mod validation;
#[cfg(test)]
pub mod vectors;
pub mod workload;
