//! Files of upstream's answers, one case on each line.

use flate2::read::GzDecoder;
use polyplane_apimachinery::{Value, json};
use std::io::Read;
use std::path::Path;

/// Returns the cases of a file.
pub fn cases(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("the golden file is there");
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("a golden file is gzip of UTF-8");
    text.lines().map(parse).collect()
}

/// Returns the JSON of a recording.
pub fn parse(text: impl AsRef<[u8]>) -> Value {
    json::parse(text.as_ref(), &json::Limits::default())
        .expect("a recording is JSON")
        .value
}
