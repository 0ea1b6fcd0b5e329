//! The objects that scenarios read and write.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::Value;

use crate::{custom, owned};

/// Bytes of data in each ConfigMap, which makes about 1.2 KB as JSON.
const DATA_BYTES: usize = 900;

/// The objects of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objects {
    /// ConfigMaps of 1.2 KB.
    ConfigMaps,
    /// Deployments of 1.3 KB.
    Deployments,
    /// Objects of a custom kind.
    Widgets,
}

impl Objects {
    /// Returns the path of those of a namespace.
    pub fn collection(self, namespace: &str) -> String {
        match self {
            Self::ConfigMaps => format!("/api/v1/namespaces/{namespace}/configmaps"),
            Self::Deployments => format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
            Self::Widgets => format!(
                "/apis/{}/namespaces/{namespace}/{}",
                custom::GROUP_VERSION,
                custom::RESOURCE
            ),
        }
    }

    /// Returns a new one.
    pub fn body(self, name: &str) -> Bytes {
        match self {
            Self::ConfigMaps => config_map(name),
            Self::Deployments => owned::deployment(name, 0),
            Self::Widgets => custom::object(name),
        }
    }
}

fn config_map(name: &str) -> Bytes {
    let data = "x".repeat(DATA_BYTES);
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"bench":"1"}}}},"data":{{"text":"{data}"}}}}"#
    );
    Bytes::from(text)
}

/// Returns a ConfigMap that differs from the one before: a server may skip a write that changes
/// nothing. It has no version, so nothing refuses it.
pub fn changed_config_map(name: &str, count: u64) -> Bytes {
    let count = format!("{count:020}-{:020}", now_nanos());
    let data = "x".repeat(DATA_BYTES - count.len());
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","labels":{{"bench":"1"}}}},"data":{{"text":"{count}{data}"}}}}"#
    );
    Bytes::from(text)
}

/// Returns a patch that contains the present time.
pub fn stamp() -> Bytes {
    Bytes::from(format!(r#"{{"data":{{"stamp":"{:020}"}}}}"#, now_nanos()))
}

/// Returns a mark as text that is always equally long.
pub fn digits(mark: u64) -> String {
    format!("{mark:020}")
}

/// Returns an object as JSON.
pub fn text(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

/// Returns the present time in nanoseconds since 1970.
pub fn now_nanos() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_json_of_the_promised_size() {
        let object = config_map("o-1");
        let value: Value = serde_json::from_slice(&object).expect("JSON");
        assert_eq!(value["metadata"]["name"], "o-1");
        assert!((1000..1200).contains(&object.len()));
        assert!(serde_json::from_slice::<Value>(&stamp()).is_ok());
    }

    #[test]
    fn each_put_changes_the_object_and_not_its_size() {
        let (one, two) = (changed_config_map("o-1", 1), changed_config_map("o-1", 2));
        assert_ne!(one, two);
        assert_eq!(one.len(), config_map("o-1").len());
        assert!(serde_json::from_slice::<Value>(&one).is_ok());
    }
}
