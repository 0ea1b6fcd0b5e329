//! Fence: which replica may write to a plane, as the store has it. These objects cannot be written
//! through the API; a replica writes them when it acquires, releases or deletes a plane.

use polyplane_apimachinery::{Str, Value, json};
use polyplane_registry::Strategy;
use polyplane_registry::strategy::age;

/// The facts about a plane's fence.
#[derive(Debug, Clone, Default)]
pub struct FenceFacts {
    /// The plane's id.
    pub id: String,
    /// The plane's name, if there is a ControlPlane with this id.
    pub plane: Option<Str>,
    /// The time at which the plane was born, RFC 3339, because the store does not record when a
    /// fence was created.
    pub born_at: Option<Str>,
    /// `Held`, `Released`, `Deleted`; `Unreadable` if this program cannot read the record.
    pub state: &'static str,
    /// The replica that holds the plane, or held it last.
    pub holder: Option<String>,
    /// The incarnation of that replica.
    pub incarnation: Option<u64>,
    /// The number of times that the plane was acquired.
    pub epoch: Option<u64>,
    /// The revision of the plane's head at its release.
    pub head: Option<u64>,
    /// The replica that should acquire the plane next.
    pub successor: Option<String>,
}

impl FenceFacts {
    /// Returns the fence as an object.
    #[must_use]
    pub fn object(self) -> Value {
        let mut fence = json!({});
        let labels = ["metadata", "labels", "kubernetes.io/metadata.name"];
        fence.set(&["metadata", "name"], self.id.as_str());
        fence.set(&labels, self.id.as_str());
        if let Some(born_at) = self.born_at {
            fence.set(&["metadata", "creationTimestamp"], born_at);
        }
        let texts = [
            ("controlPlane", self.plane),
            ("holder", self.holder.map(Str::from)),
            ("state", Some(Str::from(self.state))),
            ("successor", self.successor.map(Str::from)),
        ];
        for (field, text) in texts {
            if let Some(text) = text {
                fence.set(&["status", field], text);
            }
        }
        let numbers = [
            ("incarnation", self.incarnation),
            ("epoch", self.epoch),
            ("head", self.head),
        ];
        for (field, number) in numbers {
            if let Some(number) = number.and_then(|number| i64::try_from(number).ok()) {
                fence.set(&["status", field], number);
            }
        }
        fence
    }
}

/// The resource of the kind.
pub const RESOURCE: &str = "fences";
/// The name of the resource for [`ExternalObjects`](polyplane_registry::ExternalObjects).
pub const QUALIFIED: &str = "fences.polyplane.dev";

/// The behaviour of Fence, which is only its table.
#[derive(Debug)]
pub struct Fence;

impl Strategy for Fence {
    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let text = |field: &str| match object.str_at(&["status", field]) {
            "" => Value::string("<none>"),
            text => Value::string(text),
        };
        let number = |field: &str| match object.int_at(&["status", field]) {
            Some(number) => Value::string(number.to_string()),
            None => Value::string("<none>"),
        };
        vec![
            Value::string(object.str_at(&["metadata", "name"])),
            text("controlPlane"),
            text("holder"),
            number("epoch"),
            text("state"),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            number("incarnation"),
            number("head"),
            text("successor"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polyplane::control_plane::GROUP;

    #[test]
    fn a_fence_shows_what_is_known_and_nothing_else() {
        assert_eq!(QUALIFIED, format!("{RESOURCE}.{GROUP}"));
        let facts = FenceFacts {
            id: "p1".to_owned(),
            state: "Unreadable",
            ..FenceFacts::default()
        };
        let object = facts.object();
        let wanted = json!({
            "metadata": {"name": "p1", "labels": {"kubernetes.io/metadata.name": "p1"}},
            "status": {"state": "Unreadable"},
        });
        assert_eq!(object, wanted);
        let columns = crate::kind_tables::root_kinds();
        let row = columns.resolve(GROUP, "v1alpha1", RESOURCE).expect("a row");
        assert_eq!(row.columns.len(), Fence.cells(&object, 0).len());
    }
}
