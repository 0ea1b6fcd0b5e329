//! Control planes as `--output` wants them: one, or many, a page at a time.

use crate::cli::output::OutputFormat;
use polyplane_apimachinery::{Value, json, yaml};

/// Returns the text of one control plane.
pub fn one(plane: &Value, format: OutputFormat) -> Vec<u8> {
    let mut out = Vec::new();
    match format {
        OutputFormat::Json => {
            json::pretty(&json::to_vec(&shown(plane)), &mut out);
            out.push(b'\n');
        }
        OutputFormat::Yaml => yaml::write(&shown(plane), &mut out),
        OutputFormat::Name => {
            let name = plane.str_at(&["metadata", "name"]);
            out.extend_from_slice(format!("controlplane.polyplane.dev/{name}\n").as_bytes());
        }
    }
    out
}

/// Returns the object without its managed fields, as kubectl shows objects. The items of a list need not
/// say what they are, so kind and version are set.
fn shown(plane: &Value) -> Value {
    let mut plane = plane.clone();
    plane.set(&["apiVersion"], "polyplane.dev/v1alpha1");
    plane.set(&["kind"], "ControlPlane");
    plane.remove(&["metadata", "managedFields"]);
    plane
}

/// Many control planes, written a page at a time.
pub struct PlaneList {
    format: OutputFormat,
    /// Indents the list in JSON, whose items come in pages.
    indenter: json::Indenter,
    is_empty: bool,
}

impl PlaneList {
    /// Creates a list that is empty so far.
    pub fn new(format: OutputFormat) -> Self {
        Self {
            format,
            indenter: json::Indenter::default(),
            is_empty: true,
        }
    }

    /// Returns the text of the next page.
    pub fn page(&mut self, planes: &[Value]) -> Vec<u8> {
        let mut out = Vec::new();
        for plane in planes {
            match self.format {
                OutputFormat::Json => {
                    self.separate(&mut out);
                    let object = json::to_vec(&shown(plane));
                    self.indenter.write(&object, &mut out);
                }
                OutputFormat::Yaml => {
                    if !self.is_empty {
                        out.extend_from_slice(b"---\n");
                    }
                    out.extend_from_slice(&one(plane, self.format));
                }
                OutputFormat::Name => out.extend_from_slice(&one(plane, self.format)),
            }
            self.is_empty = false;
        }
        out
    }

    /// Returns the text behind the last page.
    pub fn end(mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.format == OutputFormat::Json {
            if self.is_empty {
                self.separate(&mut out);
            }
            self.indenter.write(b"]}", &mut out);
            out.push(b'\n');
        }
        out
    }

    /// Writes what stands in JSON before the next item: the beginning of the list, or a comma.
    fn separate(&mut self, out: &mut Vec<u8>) {
        let text: &[u8] = match self.is_empty {
            true => br#"{"apiVersion":"v1","kind":"List","metadata":{},"items":["#,
            false => b",",
        };
        self.indenter.write(text, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(name: &str) -> Value {
        json!({"metadata": {"name": name, "managedFields": [{"manager": "x"}]}})
    }

    fn listed(format: OutputFormat, pages: &[&[&str]]) -> String {
        let mut list = PlaneList::new(format);
        let mut out = Vec::new();
        for page in pages {
            let planes: Vec<Value> = page.iter().map(|name| plane(name)).collect();
            out.extend(list.page(&planes));
        }
        out.extend(list.end());
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn pages_become_one_list_of_whole_objects() {
        let said = listed(OutputFormat::Json, &[&["a", "b"], &["c"]]);
        let list = json::parse(said.as_bytes(), &json::Limits::default()).expect("JSON");
        let items = list.value.items_at(&["items"]);
        let names: Vec<&str> = items
            .iter()
            .map(|item| item.str_at(&["metadata", "name"]))
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
        for item in items {
            assert_eq!(item.str_at(&["kind"]), "ControlPlane");
            assert!(item.at(&["metadata", "managedFields"]).is_none());
        }
        let empty = listed(OutputFormat::Json, &[]);
        let empty = json::parse(empty.as_bytes(), &json::Limits::default()).expect("JSON");
        assert_eq!(empty.value.at(&["items"]), Some(&json!([])));
    }

    #[test]
    fn names_are_lines_and_yaml_is_documents() {
        let said = listed(OutputFormat::Name, &[&["a"], &["b"]]);
        assert_eq!(
            said,
            "controlplane.polyplane.dev/a\ncontrolplane.polyplane.dev/b\n"
        );
        let said = listed(OutputFormat::Yaml, &[&["a"], &["b"]]);
        let documents: Vec<&str> = said.split("---\n").collect();
        assert_eq!(documents.len(), 2, "{said}");
        for (document, name) in documents.into_iter().zip(["a", "b"]) {
            let parsed = yaml::parse(document.as_bytes(), &json::Limits::default());
            let parsed = parsed.expect("YAML").value;
            assert_eq!(parsed.str_at(&["metadata", "name"]), name);
        }
        assert_eq!(listed(OutputFormat::Yaml, &[]), "");
    }

    #[test]
    fn one_plane_is_an_object() {
        let said = one(&plane("a"), OutputFormat::Json);
        let parsed = json::parse(&said, &json::Limits::default()).expect("JSON");
        assert_eq!(parsed.value.str_at(&["kind"]), "ControlPlane");
        assert!(said.ends_with(b"\n"));
    }
}
