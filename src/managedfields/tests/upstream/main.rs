//! Replays what the tests of structured-merge-diff and apimachinery call, and compares with what upstream returned.
//! The vectors are made by `testdata/generate`.

mod built_in;
mod metadata;
mod objects;
mod operations;
mod schema;
mod sets;
mod vectors;
