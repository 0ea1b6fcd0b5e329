//! Objects and template values for the tests of this crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::layers::chain::Chain;
use crate::layers::layer::Layer;
use crate::layers::template_values::{RenderCache, TemplateInputs, TemplateValues};
use crate::state::entry::{Flags, NewObject};
use crate::version::Version;

/// Returns a config map with one label and one value.
pub(crate) fn object(name: &str, label: &str, value: &str) -> NewObject {
    let identity = format!(r#""name":"{name}""#);
    object_of(&identity, "2026-01-01T00:00:00Z", label, value)
}

/// Returns an object with these members of its metadata, creation time and label.
pub(crate) fn object_of(identity: &str, created: &str, label: &str, value: &str) -> NewObject {
    let head = format!(r#"{{"metadata":{{{identity},"#);
    let middle = format!(r#""creationTimestamp":"{created}","labels":"#);
    let labels = format!(r#"{{"l":"{label}"}}"#);
    let start = head.len() + middle.len();
    NewObject {
        version_slot: head.len(),
        labels: Some(start..start + labels.len()),
        body: format!(r#"{head}{middle}{labels}}},"data":{{"k":"{value}"}}}}"#).into(),
        storage_version: "v1".into(),
        expires: None,
        flags: Flags::NONE,
    }
}

pub(crate) fn template_values() -> Arc<TemplateValues> {
    TemplateValues::new(TemplateInputs {
        birth: Version::from_raw(1 << 8),
        birth_time: "2026-01-01T00:00:00Z".into(),
        uid_seed: &[0; 32],
        params: &BTreeMap::new(),
        chain: Chain::new(Layer::empty(), Vec::new()),
        cache: &RenderCache::new(&Arc::default()),
    })
}
