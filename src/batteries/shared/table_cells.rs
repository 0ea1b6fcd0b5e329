//! Cells of tables that many kinds share.

use polyplane_apimachinery::Value;
use polyplane_registry::strategy::age;

/// Returns the name, for a table cell.
pub fn name_cell(object: &Value) -> Value {
    object.str_at(&["metadata", "name"]).into()
}

/// Returns how long ago the object was created, for a table cell.
pub fn age_cell(object: &Value, now: i64) -> Value {
    age(object.str_at(&["metadata", "creationTimestamp"]), now)
}

/// Returns when the object was created, for a table cell.
pub fn created_cell(object: &Value) -> Value {
    match object.str_at(&["metadata", "creationTimestamp"]) {
        "" => "0001-01-01T00:00:00Z".into(),
        time => time.into(),
    }
}

/// Returns the length of a list, for a table cell.
pub fn count_cell(list: &Value) -> Value {
    Value::Int(list.as_array().map_or(0, |items| items.len() as i64))
}

/// Returns the names of the first three items of a list; `none` if there are none.
pub fn some_of(items: &[String], none: &str) -> String {
    const SHOWN_MAX: usize = 3;
    if items.len() > SHOWN_MAX {
        return format!(
            "{} + {} more...",
            items[..SHOWN_MAX].join(","),
            items.len() - SHOWN_MAX
        );
    }
    let text = items.join(",");
    if text.is_empty() {
        none.to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let items: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        assert_eq!(some_of(&items, "-"), "a,b,c + 2 more...");
        assert_eq!(some_of(&items[..2], "-"), "a,b");
        assert_eq!(some_of(&[], "-"), "-");
    }
}
