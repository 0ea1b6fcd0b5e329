//! What several kinds have in common: pod templates, selectors, conditions.

pub mod addresses;
pub mod cel_syntax;
pub mod checks;
pub mod core_meta;
pub mod field_checks;
pub mod init_annotations;
pub mod node_selector;
pub mod pem_blocks;
pub mod pod_cells;
pub mod pod_defaults;
pub mod pod_qos;
pub mod pod_validation;
pub mod pod_warnings;
pub mod resource_names;
pub mod shown;
pub mod text_diff;
pub mod webhook_client;
