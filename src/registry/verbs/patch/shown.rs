//! A patched object as upstream shows it in a complaint.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::json::{self, scan};
use polyplane_apimachinery::schema::{DefId, Schemas};

/// Returns a patched object as upstream shows it: members that the patch did not change as they are
/// stored, in the order of the kind's fields, all others in the order of their names.
pub(super) fn shown(
    schemas: &Schemas,
    definition: DefId,
    original: &Value,
    patched: &Value,
) -> String {
    let stored = schemas.to_vec(definition, original);
    let mut out = Vec::new();
    write_shown(original, &stored, patched, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn write_shown(original: &Value, stored: &[u8], patched: &Value, out: &mut Vec<u8>) {
    let (Value::Object(before), Value::Object(after)) = (original, patched) else {
        return json::write(patched, out);
    };
    out.push(b'{');
    for (at, (key, value)) in after.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::write_string(key, out);
        out.push(b':');
        match (before.get(key), scan::find(stored, &[key])) {
            (Some(old), Some(range)) if old == value => out.extend_from_slice(&stored[range]),
            (Some(old), Some(range)) => write_shown(old, &stored[range], value, out),
            _ => json::write(value, out),
        }
    }
    out.push(b'}');
}

/// Returns a tree as Go's `%+v` prints a map.
pub(super) fn go_map(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::String(text) => text.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_map).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{key}:{}", go_map(value)))
                .collect();
            format!("map[{}]", members.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json::Limits;

    #[test]
    fn untouched_members_are_shown_as_they_are_stored() {
        let parse = |text: &str| {
            json::parse(text.as_bytes(), &Limits::default())
                .expect("JSON")
                .value
        };
        let stored =
            br#"{"metadata":{"name":"a","uid":"u","labels":{"y":"1","x":"2"}},"data":{"k":"1"}}"#;
        let original = parse(std::str::from_utf8(stored).expect("text"));
        let shown = |patched: &str| {
            let mut out = Vec::new();
            write_shown(&original, stored, &parse(patched), &mut out);
            String::from_utf8(out).expect("text")
        };
        let untouched =
            r#"{"data":{"k":"2"},"metadata":{"name":"a","uid":"u","labels":{"y":"1","x":"2"}}}"#;
        assert_eq!(shown(untouched), untouched);
        let touched = r#"{"metadata":{"name":"b","uid":"u","labels":{"y":"1","x":"2"}}}"#;
        assert_eq!(
            shown(touched),
            r#"{"metadata":{"labels":{"y":"1","x":"2"},"name":"b","uid":"u"}}"#
        );
    }
}
