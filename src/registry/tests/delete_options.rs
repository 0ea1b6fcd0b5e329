//! What is wrong with the options of a deletion.

use super::*;
use crate::request::options::DeleteOptions;
use polyplane_apimachinery::json;

#[test]
fn complaints_about_deletions_are_in_upstreams_order() {
    let request = Ask::new(Verb::Delete, "configmaps", None).request();
    let body = json!({"propagationPolicy": "x", "dryRun": ["y"]});
    let refused = DeleteOptions::parse(&request, Some(&body)).err();
    let text = refused.map(|error| error.to_string()).unwrap_or_default();
    let places = [r#"propagationPolicy: Unsupported value: "x""#, "dryRun: "];
    let places = places.map(|place| text.find(place));
    assert!(places[0].is_some() && places[0] < places[1], "{text}");
}
