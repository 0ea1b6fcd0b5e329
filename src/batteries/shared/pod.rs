//! Pods and pod templates: defaults, validation, warnings and their cells in tables.

pub mod defaults;
pub mod init_annotations;
pub mod qos;
pub mod table_cells;
pub mod validation;
pub mod warnings;
