//! Answers in protobuf as the trees that they mean, so that they are recorded and compared like JSON.
//!
//! The decoder is the server's, for bodies of requests; its own tests compare it with upstream's golden
//! objects. The encoder, which wrote a plane's answers, is not used here.

use std::sync::LazyLock;

use polyplane_apimachinery::schema::{Schemas, proto};
use serde_json::{Value, json};

/// The media type of objects, and the beginning of that of watches.
pub const MEDIA_TYPE: &str = proto::MEDIA_TYPE;

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    let data = include_bytes!("../src/batteries/data/schemas.json");
    Schemas::parse(data).expect("the generated schemas are sound")
});

/// Returns the object that bytes in protobuf mean, with every field that was sent.
pub fn tree(bytes: &[u8]) -> Option<Value> {
    let mut tree = SCHEMAS.tree_of_proto(bytes)?;
    let is_list = tree.str_at(&["kind"]).ends_with("List") && tree.get("metadata").is_some();
    if is_list && tree.get("items").is_none() {
        // A list of nothing is a list too, by which its version is told from an object's.
        tree.set(&["items"], polyplane_apimachinery::Value::Array(Vec::new()));
    }
    serde_json::from_slice(&polyplane_apimachinery::json::to_vec(&tree)).ok()
}

/// Removes the frames that have arrived completely, and returns their events.
pub fn take_events(arrived: &mut Vec<u8>) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some((length, rest)) = arrived.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some(frame) = rest.get(..length) else {
            break;
        };
        events.push(event(frame));
        arrived.drain(..4 + length);
    }
    events
}

fn event(frame: &[u8]) -> Value {
    let opened = proto::open_watch_frame(frame).ok();
    let event = opened.and_then(|(kind, object)| {
        let object = tree(object)?;
        Some(json!({"type": kind.as_str(), "object": object}))
    });
    event.unwrap_or_else(|| json!({"not protobuf": String::from_utf8_lossy(frame)}))
}
