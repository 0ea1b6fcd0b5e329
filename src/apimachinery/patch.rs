//! The three ways to change a document by a patch.
//!
//! They know trees and, for strategic merge patches, schemas. When a patch is applied again and what
//! a client is answered belongs to the verb (`registry/verbs/patch.rs`).

pub mod json_patch;
pub mod merge_patch;
pub mod strategic_merge_patch;
