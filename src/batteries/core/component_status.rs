//! ComponentStatuses, which are never stored: only their table needs code.

use polyplane_apimachinery::Value;
use polyplane_registry::Strategy;

/// Behaviour of ComponentStatuses.
#[derive(Debug)]
pub struct ComponentStatus;

impl Strategy for ComponentStatus {
    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let conditions = object.items_at(&["conditions"]).iter();
        let healthy = conditions
            .into_iter()
            .find(|condition| condition.str_at(&["type"]) == "Healthy");
        let status = match healthy.map(|condition| condition.str_at(&["status"])) {
            Some("True") => "Healthy",
            Some(_) => "Unhealthy",
            None => "Unknown",
        };
        let text = |field: &str| {
            healthy
                .map_or("", |condition| condition.str_at(&[field]))
                .into()
        };
        vec![
            object.str_at(&["metadata", "name"]).into(),
            status.into(),
            text("message"),
            text("error"),
        ]
    }
}
