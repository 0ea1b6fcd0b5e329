//! Kinds as projects publish them: their definitions, objects drawn from their schemas, and what two
//! servers say about them.

pub mod definitions;
pub mod documents;
pub mod draw;
pub mod dry_runs;
