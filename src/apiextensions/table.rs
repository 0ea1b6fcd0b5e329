//! The columns of custom kinds: the name, and the values at paths of the object.

use crate::definition::Column as Defined;
use crate::json_path::{JsonPath, Visits};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_registry::kinds::table::Column;
use polyplane_registry::strategy::age;

/// Bytes of the texts in a row after which its further cells are null. A definition may have any number of
/// columns that show the whole object, so without it a small request would have an answer of gigabytes.
const ROW_BYTES_MAX: usize = 256 << 10;

/// Number of columns that are shown. Upstream has no limit but the size of a definition; each row has a cell for each
/// of them, so a page of a list with tens of thousands would take gigabytes.
const COLUMNS_MAX: usize = 1_000;

/// The columns of a version.
#[derive(Debug)]
pub(crate) struct Columns {
    added: Vec<(JsonPath, Str)>,
}

impl Columns {
    /// Creates them, and returns what documents say about them.
    pub fn of(defined: &[Defined]) -> (Self, Vec<Column>) {
        let mut shown = vec![column("Name", "string", "name", 0)];
        let mut added = Vec::new();
        for column in defined.iter().take(COLUMNS_MAX) {
            // Upstream shows the columns before the first that it cannot read.
            let Ok(path) = JsonPath::parse(&column.path) else {
                break;
            };
            added.push((path, column.kind.clone()));
            shown.push(Column {
                name: column.name.clone(),
                kind: column.kind.clone(),
                format: column.format.clone(),
                description: description(column),
                priority: column.priority,
            });
        }
        if defined.is_empty()
            && let Ok(path) = JsonPath::parse(".metadata.creationTimestamp")
        {
            shown.push(column("Age", "date", "", 0));
            added.push((path, "date".into()));
        }
        (Self { added }, shown)
    }

    /// Returns the cells of an object's row.
    pub fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let mut cells = vec![Value::string(object.str_at(&["metadata", "name"]))];
        let (visits, mut bytes) = (Visits::default(), 0);
        for (path, kind) in &self.added {
            if bytes > ROW_BYTES_MAX {
                cells.push(Value::Null);
                continue;
            }
            let found = path.find_within(object, &visits);
            let found = found.first();
            let shown = found.map_or(Value::Null, |value| cell(kind, value, now));
            if let Value::String(text) = &shown {
                bytes += text.len();
            }
            cells.push(shown);
        }
        cells
    }
}

fn column(name: &str, kind: &str, format: &str, priority: i64) -> Column {
    Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        description: Str::default(),
        priority,
    }
}

/// Returns what a definition says about a column, or upstream's text about one of which it says nothing.
fn description(column: &Defined) -> Str {
    match column.description.as_str() {
        "" => format!(
            "Custom resource definition column (in JSONPath format): {}",
            column.path
        )
        .into(),
        _ => column.description.clone(),
    }
}

fn cell(kind: &str, value: &Value, now: i64) -> Value {
    match (kind, value) {
        ("string", value) => Value::String(text(value)),
        ("integer", Value::Int(number)) => Value::Int(*number),
        ("integer", Value::Float(number)) => Value::Int(*number as i64),
        ("number", Value::Int(number)) => Value::Float(*number as f64),
        ("number", Value::Float(number)) => Value::Float(*number),
        ("boolean", Value::Bool(truth)) => Value::Bool(*truth),
        ("date", Value::String(text)) => match age(text, now) {
            Value::String(shown) if shown == "<unknown>" => Value::string("<invalid>"),
            shown => shown,
        },
        _ => Value::Null,
    }
}

/// Returns a value as Go prints it.
fn text(value: &Value) -> Str {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<no value>".into(),
        value => json::to_string(value).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_row_is_no_multiple_of_a_large_object() {
        let column = Defined {
            name: "All".into(),
            kind: "string".into(),
            format: Str::default(),
            description: Str::default(),
            priority: 0,
            path: ".".into(),
        };
        let (columns, _) = Columns::of(&vec![column; 1000]);
        let bytes = |object: &Value| -> usize {
            let cells = columns.cells(object, 0);
            assert_eq!(cells.len(), 1001);
            let texts = cells.iter().filter_map(|cell| match cell {
                Value::String(text) => Some(text.len()),
                _ => None,
            });
            texts.sum()
        };
        let large = json!({"metadata": {"name": "a"}, "spec": ("x".repeat(1 << 20).as_str())});
        assert!(bytes(&large) < 2 << 20);
        let small = json!({"metadata": {"name": "a"}, "spec": ("x".repeat(1000).as_str())});
        assert!(bytes(&small) < ROW_BYTES_MAX + (1 << 11));
    }

    /// The bookmark at the end of the first events of a watch has a row for an object without a time.
    #[test]
    fn the_age_of_an_object_without_a_time_is_null() {
        let (columns, shown) = Columns::of(&[]);
        assert_eq!(shown.len(), 2);
        let cells = columns.cells(&json!({"metadata": {}}), 0);
        assert_eq!(cells, [Value::string(""), Value::Null]);
        let born = json!({"metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:00Z"}});
        let cells = columns.cells(&born, 90);
        assert_eq!(cells, [Value::string("a"), Value::string("90s")]);
    }

    #[test]
    fn columns_beyond_their_limit_are_not_shown() {
        let column = Defined {
            name: "One".into(),
            kind: "integer".into(),
            format: Str::default(),
            description: Str::default(),
            priority: 0,
            path: ".spec.one".into(),
        };
        let (columns, shown) = Columns::of(&vec![column; 2 * COLUMNS_MAX]);
        assert_eq!(shown.len(), COLUMNS_MAX + 1);
        let object = json!({"metadata": {"name": "a"}, "spec": {"one": 1i64}});
        assert_eq!(columns.cells(&object, 0).len(), COLUMNS_MAX + 1);
    }

    #[test]
    fn cells_of_what_is_null_or_does_not_suit_the_path_are_upstreams() {
        let column = |kind: &str, path: &str| Defined {
            name: "Column".into(),
            kind: kind.into(),
            format: Str::default(),
            description: Str::default(),
            priority: 0,
            path: path.into(),
        };
        let object = json!({
            "metadata": {"name": "a"},
            "spec": {"none": (Value::Null), "map": {"x": 1i64}, "list": ["first"]}
        });
        for (kind, path, cell) in [
            ("string", ".spec.none", Value::string("<no value>")),
            ("integer", ".spec.none", Value::Null),
            ("string", ".spec.absent", Value::Null),
            ("string", ".spec.map[*]", Value::Null),
            ("string", ".spec.map[0]", Value::Null),
            ("string", ".spec.list[0]", Value::string("first")),
            ("string", ".spec.list[1]", Value::Null),
        ] {
            let (columns, _) = Columns::of(&[column(kind, path)]);
            let cells = columns.cells(&object, 0);
            assert_eq!(cells, [Value::string("a"), cell], "{path}");
        }
    }
}
