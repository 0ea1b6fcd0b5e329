//! The form of `resource.k8s.io/v1beta1`, where a request has the members of `exactly` itself, and a
//! device has its members in `basic`.

use polyplane_apimachinery::{Map, Value};

/// The members of a request that stand in `exactly` in later versions.
const EXACTLY: [&str; 8] = [
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
];

/// Sets the default counts of a claim's requests for a number of devices. A request without a class has
/// none, because it has alternatives.
pub fn default_requests(spec: &mut Value) {
    for request in items_mut(spec, &["devices", "requests"]) {
        if !request.str_at(&["deviceClassName"]).is_empty() {
            default_count(request);
        }
        items_mut(request, &["firstAvailable"]).for_each(default_count);
    }
}

/// Sets the default count of a request, or of one of its alternatives.
pub fn default_count(request: &mut Value) {
    if request.str_at(&["allocationMode"]).is_empty() {
        request.set(&["allocationMode"], "ExactCount");
    }
    let counts = request.str_at(&["allocationMode"]) == "ExactCount";
    if counts && request.int_at(&["count"]).unwrap_or(0) == 0 {
        request.set(&["count"], 1i64);
    }
}

/// Moves members of the requests of a claim's spec into `exactly`.
pub fn requests_to_stored(spec: &mut Value) {
    for request in items_mut(spec, &["devices", "requests"]) {
        let mut exactly = Map::new();
        for name in EXACTLY {
            if let Some(value) = request.remove(&[name]).filter(is_given) {
                exactly.insert(name, value);
            }
        }
        if !exactly.is_empty() {
            request.set(&["exactly"], Value::Object(exactly));
        }
    }
}

/// Moves the members of `exactly` into the requests of a claim's spec.
pub fn requests_to_served(spec: &mut Value) {
    for request in items_mut(spec, &["devices", "requests"]) {
        // Written even if it is empty.
        request.set(&["deviceClassName"], "");
        if let Some(Value::Object(mut exactly)) = request.remove(&["exactly"]) {
            for name in EXACTLY {
                if let Some(value) = exactly.remove(name) {
                    request.set(&[name], value);
                }
            }
        }
    }
}

/// Moves the members of `basic` into the devices of a slice's spec.
pub fn devices_to_stored(spec: &mut Value) {
    // Empty where later versions have nothing.
    if spec.str_at(&["nodeName"]).is_empty() {
        drop(spec.remove(&["nodeName"]));
    }
    if !spec.bool_at(&["allNodes"]) {
        drop(spec.remove(&["allNodes"]));
    }
    for device in items_mut(spec, &["devices"]) {
        if let Some(Value::Object(basic)) = device.remove(&["basic"]) {
            for (name, value) in basic.iter() {
                device.set(&[name], value.clone());
            }
        }
    }
}

/// Moves the members of the devices of a slice's spec into `basic`, which every device has.
pub fn devices_to_served(spec: &mut Value) {
    for device in items_mut(spec, &["devices"]) {
        let name = device.remove(&["name"]).unwrap_or_default();
        let basic = device.take();
        *device = Value::object();
        device.set(&["name"], name);
        device.set(&["basic"], basic);
    }
}

/// Returns the path of a field of a request, by its path in the stored form.
pub fn request_field(stored: &str) -> Option<String> {
    let (start, rest) = stored.split_once(".requests[")?;
    let (at, field) = rest.split_once("].exactly.")?;
    Some(format!("{start}.requests[{at}].{field}"))
}

/// Returns the path of a field of a device, by its path in the stored form.
pub fn device_field(stored: &str) -> Option<String> {
    let (at, field) = stored.strip_prefix("spec.devices[")?.split_once("].")?;
    (field != "name").then(|| format!("spec.devices[{at}].basic.{field}"))
}

/// Returns whether a value of a request makes it one for an exact device.
fn is_given(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Int(number) => *number != 0,
        _ => true,
    }
}

/// Returns the items of a list, to change them.
pub fn items_mut<'a>(of: &'a mut Value, path: &[&str]) -> impl Iterator<Item = &'a mut Value> {
    let list = of.at_mut(path).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn requests_and_devices_come_back_as_they_were() {
        let flat = json!({"devices": {"requests": [
            {"name": "a", "deviceClassName": "c", "count": 1i64, "allocationMode": "ExactCount"},
            {"name": "b", "deviceClassName": "", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
        ]}});
        let mut spec = flat.clone();
        requests_to_stored(&mut spec);
        let stored = json!({"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "c", "count": 1i64, "allocationMode": "ExactCount"}},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]},
        ]}});
        assert_eq!(spec, stored);
        requests_to_served(&mut spec);
        assert_eq!(spec, flat);

        let flat = json!({"driver": "d", "devices": [{"name": "a", "basic": {"allNodes": true}}, {"name": "b", "basic": {}}]});
        let mut spec = flat.clone();
        devices_to_stored(&mut spec);
        let stored =
            json!({"driver": "d", "devices": [{"name": "a", "allNodes": true}, {"name": "b"}]});
        assert_eq!(spec, stored);
        devices_to_served(&mut spec);
        assert_eq!(spec, flat);
    }

    #[test]
    fn declared_fields_are_named_as_they_are_served() {
        let request = request_field("spec.spec.devices.requests[3].exactly.count");
        assert_eq!(
            request.as_deref(),
            Some("spec.spec.devices.requests[3].count")
        );
        assert_eq!(request_field("spec.devices.requests[3].name"), None);
        let device = device_field("spec.devices[0].taints[1].effect");
        assert_eq!(
            device.as_deref(),
            Some("spec.devices[0].basic.taints[1].effect")
        );
        assert_eq!(device_field("spec.devices[0].name"), None);
    }
}
