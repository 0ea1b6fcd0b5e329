//! Fixtures for the tests of several modules: the generated definitions, and vectors made by Go.

use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;

use super::{DefId, Schemas};
use crate::json::{Limits, parse};
use crate::value::Value;

/// The definitions of all built-in kinds.
pub(crate) static SCHEMAS: LazyLock<Schemas> =
    LazyLock::new(|| Schemas::parse(&data()).expect("generated data loads"));

/// Returns the content of the generated data file.
pub(crate) fn data() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/data/schemas.json");
    std::fs::read(path).expect("the generated data file is there")
}

/// Returns the definition of a kind written as `group/version/kind`.
pub(crate) fn kind(text: &str) -> Option<DefId> {
    let mut parts = text.rsplitn(3, '/');
    let (kind, version) = (parts.next()?, parts.next()?);
    SCHEMAS.kind(parts.next()?, version, kind)
}

/// Returns the tree of a JSON text.
pub(crate) fn tree(text: &str) -> Value {
    parse(text.as_bytes(), &Limits::default())
        .expect("test JSON parses")
        .value
}

/// Returns the lines of a compressed file of vectors, parsed.
pub(crate) fn vectors(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name);
    let file = std::fs::File::open(path).expect("the vectors are there");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("vectors are gzip and UTF-8");
    text.lines().map(tree).collect()
}
