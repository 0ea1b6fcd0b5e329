//! The built-in kinds behind a registry and a plane in memory.

mod core_kinds;
mod custom_object_tables;
mod custom_requests;
mod defined_kinds;
mod definition_tables;
mod device_kinds;
mod extremes;
mod long_lists;
mod odd_requests;
mod selected_fields;
mod service_families;
#[path = "../shared/mod.rs"]
mod shared;
mod site;
mod subresources;
mod system_classes;
mod tables;
mod updates;
mod upstream_answers;
mod warnings;
mod write_facts;
mod wrong_bodies;
