//! The three ways to change a document by a patch.
//!
//! These modules know trees and, for strategic merge patches, schemas. When a patch is applied
//! again, and which answer a client gets, is decided by the verb (`registry/verbs/patch.rs`).

pub mod json_patch;
pub mod merge_patch;
pub mod strategic_merge_patch;
