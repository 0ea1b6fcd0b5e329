//! Removes from an answer the values that differ from run to run, and text that must not be stored.
//!
//! Versions, uids and generated names become symbols; times, addresses, node ports, tokens, their issuers and
//! certificates become marks. A value that a request of the scenario itself contained stays as it
//! is. `description` fields of tables and schemas are removed: upstream's prose must not be stored
//! here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use http::{HeaderMap, StatusCode};
use regex::{Captures, Regex};
use serde_json::{Map, Value};

use crate::connection::Answer;
use crate::cut::{with_sorted_managers, with_sorted_quoted_managers};
use crate::golden::Recorded;
use crate::protobuf;
use crate::scenario::{Record, Step};
use crate::symbols::Symbols;

/// Headers whose values are compared.
const HEADERS_BY_VALUE: [&str; 13] = [
    "accept-patch",
    "allow",
    "cache-control",
    "content-encoding",
    "content-type",
    "deprecation",
    "location",
    "retry-after",
    "upgrade",
    "vary",
    "warning",
    "www-authenticate",
    "x-content-type-options",
];
/// Headers of which only the presence is compared, unless their value is the uid of an object that an
/// answer has shown.
const HEADERS_BY_PRESENCE: [&str; 6] = [
    "audit-id",
    "etag",
    "expires",
    "last-modified",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
];
/// Table columns that show an age.
const AGE_COLUMNS: [&str; 5] = ["Age", "Created At", "Duration", "First Seen", "Last Seen"];

/// Characters that the server appends to a generateName.
const SUFFIX_CHARS: usize = 5;
const SUFFIX_LETTERS: &str = "bcdfghjklmnpqrstvwxz2456789";

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("the pattern is a constant"));
    };
}
pattern!(TIME, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)");
pattern!(
    UUID,
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
);
pattern!(SERVICE_IP, r"\b10\.\d{1,3}\.\d{1,3}\.\d{1,3}\b");
pattern!(
    OWN_ADDRESS,
    r"\b127\.0\.0\.1(:\d+)?\b|\b169\.254\.\d+\.\d+\b"
);
pattern!(HASH, r"hash=[0-9A-F]{128}");
pattern!(
    TOKEN,
    r"\beyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"
);
pattern!(
    ISSUER,
    r"https://(?:kubernetes\.default\.svc|[^\s/]+/clusters/[a-z0-9]+/control-plane)"
);
pattern!(
    PEM,
    r"(?s)-----BEGIN [A-Z ]+-----.*-----END [A-Z ]+-----\n?"
);
pattern!(NODE_PORT, r":3\d{4}/|\b(TCP|UDP|SCTP) 3\d{4}\b");
pattern!(API_ACCESS, r"\bkube-api-access-[a-z0-9]{5}\b");
pattern!(PREFIX_SENT, r#""generateName":\s*"([^"]+)""#);
pattern!(QUOTED_VERSION, r#"(\\?"resourceVersion\\?":\\?")(\d+)"#);
pattern!(SCHEME, r#"(in scheme \\*")pkg/[\w/.-]+\.go:\d+"#);
pattern!(AGE, r"^(\d+(ms|[smhdy]))+$");
pattern!(RAW_VERSION, r#"("?resourceVersion"?:\s*")(\d+)(")"#);
pattern!(RAW_ADDRESS, r#"("serverAddress":\s*")[^"]*""#);
pattern!(
    TEXT_VERSION,
    r"(ResourceVersion in (?:precondition|object meta): |ResourceVersion in record \(|current: |resource version: \d+ \()(\d+)"
);

/// Normalises the answers of one step.
pub struct Normalizer<'a> {
    /// The symbols of this run.
    pub symbols: &'a mut Symbols,
    /// The name of the step.
    pub step: &'a str,
    /// The text of all requests that the scenario has sent so far.
    pub sent: &'a str,
    /// The path that the endpoint puts before every path.
    pub base_path: &'a str,
}

/// The owner of a `metadata.resourceVersion`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VersionOf {
    Object,
    List,
}

impl Normalizer<'_> {
    /// Returns the recording of a whole answer.
    pub fn answer(&mut self, step: &Step, answer: &Answer) -> Recorded {
        let mut recorded = self.head(step, answer.status, &answer.headers);
        recorded.body = self.body(&step.record, &answer.headers, &answer.body);
        recorded
    }

    /// Returns the recording of an answer's head.
    pub fn head(&mut self, step: &Step, status: StatusCode, headers: &HeaderMap) -> Recorded {
        Recorded {
            step: step.name.clone(),
            request: step.title(),
            status: Some(status.as_u16()),
            headers: self.headers(headers, &step.without_headers),
            body: Value::Null,
        }
    }

    /// Returns the recording of a watch's events.
    pub fn events(&mut self, step: &Step, events: Vec<Value>, end: &str) -> Recorded {
        let events = events.into_iter().map(|mut event| {
            mark_rows_of_bookmark(&mut event);
            self.value(event)
        });
        let events = events.collect();
        let mut body = Map::new();
        body.insert("end".to_owned(), Value::String(end.to_owned()));
        body.insert("events".to_owned(), Value::Array(events));
        Recorded {
            step: step.name.clone(),
            request: step.title(),
            status: None,
            headers: BTreeMap::new(),
            body: Value::Object(body),
        }
    }

    fn headers(&mut self, headers: &HeaderMap, without: &[String]) -> BTreeMap<String, String> {
        let mut kept = BTreeMap::new();
        let is_kept = |name: &&str| !without.iter().any(|other| other == name);
        for name in HEADERS_BY_VALUE.into_iter().filter(is_kept) {
            let values: Vec<String> = headers
                .get_all(name)
                .iter()
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                .collect();
            if !values.is_empty() {
                let mut text = self.text(&values.join("\n"));
                if !self.base_path.is_empty() {
                    text = text.replace(self.base_path, "");
                }
                kept.insert(name.to_owned(), text);
            }
        }
        for name in HEADERS_BY_PRESENCE.into_iter().filter(is_kept) {
            if let Some(value) = headers.get(name) {
                let value = String::from_utf8_lossy(value.as_bytes());
                let echoed = self.sent.contains(value.as_ref());
                let shown = if self.symbols.knows_uid(&value) {
                    self.uid(&value)
                } else if echoed {
                    value.into_owned()
                } else {
                    "<present>".to_owned()
                };
                kept.insert(name.to_owned(), shown);
            }
        }
        kept
    }

    fn body(&mut self, record: &Record, headers: &HeaderMap, body: &[u8]) -> Value {
        if body.is_empty() || *record == Record::Head {
            return Value::Null;
        }
        let text = String::from_utf8_lossy(body);
        if *record == Record::Raw {
            return Value::String(self.raw(&text));
        }
        let kind = headers
            .get("content-type")
            .and_then(|value| value.to_str().ok());
        let parts = matches!(record, Record::Keep(_) | Record::Keys(_));
        let parsed = match kind.unwrap_or_default() {
            // Upstream labels the index of the schemas as plain text, so it is parsed too.
            json if json.contains("json") || parts => serde_json::from_str(&text).ok(),
            binary if binary.starts_with(protobuf::MEDIA_TYPE) => protobuf::tree(body),
            yaml if yaml.contains("yaml") => serde_saphyr::from_str::<Value>(&text).ok(),
            _ => None,
        };
        let Some(value) = parsed else {
            return Value::String(self.text(&text));
        };
        match record {
            Record::Keep(pointers) => {
                let mut value = self.value(value);
                drop_descriptions(&mut value);
                picked(pointers, |pointer| at(&value, pointer))
            }
            Record::Keys(pointers) => picked(pointers, |pointer| {
                let names = value.pointer(pointer)?.as_object()?.keys();
                Some(names.map(|name| Value::String(name.clone())).collect())
            }),
            _ => self.value(value),
        }
    }

    /// Normalises a parsed body.
    pub fn value(&mut self, mut value: Value) -> Value {
        let mut versions = Vec::new();
        self.learn(&value, VersionOf::Object, &mut versions);
        self.symbols.learn_versions(self.step, versions);
        self.rewrite(&mut value, "", VersionOf::Object);
        value
    }

    fn learn(&mut self, value: &Value, of: VersionOf, versions: &mut Vec<u64>) {
        match value {
            Value::Array(items) => {
                for item in items {
                    self.learn(item, VersionOf::Object, versions);
                }
            }
            Value::Object(map) => {
                let of = version_of(map, of);
                if let Some(Value::Object(metadata)) = map.get("metadata") {
                    let text = |name: &str| metadata.get(name).and_then(Value::as_str);
                    let version = text("resourceVersion").and_then(|text| text.parse().ok());
                    if let (VersionOf::Object, Some(version)) = (of, version) {
                        versions.push(version);
                    }
                    // Protobuf has an empty prefix in objects whose name was not generated.
                    let prefix = text("generateName").filter(|prefix| !prefix.is_empty());
                    if let (Some(prefix), Some(name)) = (prefix, text("name")) {
                        self.symbols.learn_generated(prefix, name);
                    }
                }
                let inner = bookmark(map);
                for (name, value) in map {
                    let of = if name == "object" {
                        inner
                    } else {
                        VersionOf::Object
                    };
                    self.learn(value, of, versions);
                }
            }
            _ => {}
        }
    }

    fn rewrite(&mut self, value: &mut Value, key: &str, of: VersionOf) {
        match value {
            Value::Array(items) => {
                for item in items {
                    self.rewrite(item, key, VersionOf::Object);
                }
            }
            Value::Object(map) => self.rewrite_map(map, of),
            Value::String(text) if key == "resourceVersion" => {
                *text = self.version(text, of);
            }
            Value::String(text) if key == "continue" && !text.is_empty() => {
                *text = "<continue>".to_owned();
            }
            Value::String(text) if key == "serverAddress" => *text = "<address>".to_owned(),
            Value::String(text) => *text = self.text(text),
            Value::Number(number)
                if (key == "nodePort" || key == "healthCheckNodePort")
                    && !self.sent.contains(&number.to_string()) =>
            {
                *value = Value::String("<port>".to_owned());
            }
            _ => {}
        }
    }

    fn rewrite_map(&mut self, map: &mut Map<String, Value>, of: VersionOf) {
        if let Some(Value::Array(entries)) = map.get_mut("managedFields") {
            sort_entries(entries);
        }
        let of = version_of(map, of);
        let inner = bookmark(map);
        if map.contains_key("rows") || map.contains_key("columnDefinitions") {
            rewrite_table(map);
        }
        let old = std::mem::take(map);
        for (name, mut value) in old {
            let of = match name.as_str() {
                "metadata" | "resourceVersion" => of,
                "object" => inner,
                _ => VersionOf::Object,
            };
            // The version is inside metadata. The object around it decides what it means.
            match (&mut value, name.as_str()) {
                (Value::Object(metadata), "metadata") => {
                    if let Some(Value::String(text)) = metadata.get_mut("resourceVersion") {
                        *text = self.version(text, of);
                    }
                    let version = metadata.remove("resourceVersion");
                    self.rewrite(&mut value, "metadata", VersionOf::Object);
                    if let (Value::Object(metadata), Some(version)) = (&mut value, version) {
                        metadata.insert("resourceVersion".to_owned(), version);
                    }
                }
                (value, name) => self.rewrite(value, name, of),
            }
            map.insert(self.text(&name), value);
        }
    }

    fn version(&self, text: &str, of: VersionOf) -> String {
        let Ok(version) = text.parse::<u64>() else {
            return text.to_owned();
        };
        match (of, self.symbols.version(version)) {
            (VersionOf::Object, Some(symbol)) => symbol.to_owned(),
            (VersionOf::List, _) if version > 0 => self.symbols.version_of_list(version),
            _ => text.to_owned(),
        }
    }

    /// Normalises a text of any kind.
    pub fn text(&mut self, text: &str) -> String {
        let text = self
            .symbols
            .replace_generated(&with_sorted_quoted_managers(text));
        let text = self.without_suffixes(text);
        let text = QUOTED_VERSION.replace_all(&text, |found: &Captures<'_>| {
            format!(
                "{}{}",
                &found[1],
                self.version(&found[2], VersionOf::Object)
            )
        });
        let text = API_ACCESS.replace_all(&text, "kube-api-access-<suffix>");
        let text = UUID.replace_all(&text, |found: &Captures<'_>| self.uid(&found[0]));
        let text = TEXT_VERSION.replace_all(&text, |found: &Captures<'_>| {
            // The version that the store has reached is not that of an object, even if the numbers
            // are equal.
            let of_object = found[1].starts_with("ResourceVersion");
            let version = found[2].parse().ok().filter(|_| of_object);
            let symbol = version.and_then(|version| self.symbols.version(version));
            let sent = of_object && self.sent.contains(&found[2]);
            let symbol = symbol.unwrap_or(if sent { &found[2] } else { "<rv>" });
            format!("{}{symbol}", &found[1])
        });
        let text = SCHEME.replace_all(&text, "$1<place>");
        let text = PEM.replace_all(&text, "<pem>");
        let text = HASH.replace_all(&text, "hash=<hash>");
        let text = TOKEN.replace_all(&text, "<token>");
        let text = ISSUER.replace_all(&text, "<issuer>");
        let text = TIME.replace_all(&text, |found: &Captures<'_>| {
            let mark = if found.get(1).is_some() {
                "<microtime>"
            } else {
                "<time>"
            };
            self.unless_sent(&found[0], mark)
        });
        let text = SERVICE_IP.replace_all(&text, |found: &Captures<'_>| {
            self.unless_sent(&found[0], "<ip>")
        });
        let text = OWN_ADDRESS.replace_all(&text, |found: &Captures<'_>| {
            self.unless_sent(&found[0], "<address>")
        });
        NODE_PORT
            .replace_all(&text, |found: &Captures<'_>| {
                let mark = match found.get(1) {
                    Some(protocol) => format!("{} <port>", protocol.as_str()),
                    None => ":<port>/".to_owned(),
                };
                self.unless_sent(&found[0], &mark)
            })
            .into_owned()
    }

    /// Replaces names that the server generated for refused objects, which occur only in texts.
    fn without_suffixes(&self, mut text: String) -> String {
        for sent in PREFIX_SENT.captures_iter(self.sent) {
            let prefix = &sent[1];
            let mut from = 0;
            while let Some(at) = text[from..].find(prefix) {
                let end = from + at + prefix.len();
                let suffix = text.get(end..end + SUFFIX_CHARS).unwrap_or_default();
                let made = suffix.len() == SUFFIX_CHARS
                    && suffix.chars().all(|letter| SUFFIX_LETTERS.contains(letter));
                if made {
                    text.replace_range(end..end + SUFFIX_CHARS, "<suffix>");
                }
                from = end;
            }
        }
        text
    }

    fn uid(&mut self, uid: &str) -> String {
        match self.sent.contains(uid) && !self.symbols.knows_uid(uid) {
            true => uid.to_owned(),
            false => self.symbols.uid(self.step, uid),
        }
    }

    fn unless_sent(&self, found: &str, mark: &str) -> String {
        let kept = self.sent.contains(found);
        if kept { found } else { mark }.to_owned()
    }

    /// Normalises a body that is compared as text.
    fn raw(&mut self, text: &str) -> String {
        let text = with_sorted_managers(text);
        let text = RAW_ADDRESS.replace_all(&text, "$1<address>\"");
        let versions = RAW_VERSION.captures_iter(&text);
        let versions = versions.filter_map(|found| found[2].parse().ok()).collect();
        self.symbols.learn_versions(self.step, versions);
        let text = RAW_VERSION.replace_all(&text, |found: &Captures<'_>| {
            let symbol = self.version(&found[2], VersionOf::Object);
            format!("{}{symbol}{}", &found[1], &found[3])
        });
        self.text(&text)
    }
}

/// Returns the value at a pointer. Behind `/*`, it is the list of what each item has there.
fn at(value: &Value, pointer: &str) -> Option<Value> {
    let Some((list, rest)) = pointer.split_once("/*") else {
        return value.pointer(pointer).cloned();
    };
    let items = value.pointer(list)?.as_array()?.iter();
    Some(
        items
            .map(|item| at(item, rest).unwrap_or_default())
            .collect(),
    )
}

fn picked(pointers: &[String], pick: impl Fn(&str) -> Option<Value>) -> Value {
    // "/" means the whole document, because its pointer is empty and cannot be written on a line.
    let fields = pointers.iter().map(|pointer| {
        let found = pick(if pointer == "/" { "" } else { pointer });
        (pointer.clone(), found.unwrap_or(Value::Null))
    });
    Value::Object(fields.collect())
}

/// Removes the prose from parts of schemas.
fn drop_descriptions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_descriptions),
        Value::Object(map) => {
            if map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            map.values_mut().for_each(drop_descriptions);
        }
        _ => {}
    }
}

fn version_of(map: &Map<String, Value>, given: VersionOf) -> VersionOf {
    let list = map.contains_key("items") || map.contains_key("rows");
    if list { VersionOf::List } else { given }
}

fn bookmark(map: &Map<String, Value>) -> VersionOf {
    match map.get("type").and_then(Value::as_str) {
        Some("BOOKMARK") => VersionOf::List,
        _ => VersionOf::Object,
    }
}

/// Replaces the version in the row of a bookmark by a mark, if it is that of the table. It belongs to
/// no object.
fn mark_rows_of_bookmark(event: &mut Value) {
    if event["type"] != "BOOKMARK" {
        return;
    }
    let version = event["object"]["metadata"]["resourceVersion"].clone();
    let rows = event["object"]["rows"].as_array_mut();
    for row in rows.into_iter().flatten() {
        if let Some(own) = row.pointer_mut("/object/metadata/resourceVersion")
            && *own == version
        {
            *own = Value::String("<the table's>".to_owned());
        }
    }
}

/// Returns whether a cell of a table shows how long ago something was. That depends on the day of the
/// run, also where the time itself is fixed.
pub fn is_age(cell: &str) -> bool {
    AGE.is_match(cell)
}

/// Drops the descriptions of a table's columns and the values of its age cells.
fn rewrite_table(table: &mut Map<String, Value>) {
    let mut ages = Vec::new();
    if let Some(Value::Array(columns)) = table.get_mut("columnDefinitions") {
        for (index, column) in columns.iter_mut().enumerate() {
            if let Value::Object(column) = column {
                column.remove("description");
                let name = column
                    .get("name")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                if AGE_COLUMNS.contains(&name) {
                    ages.push(index);
                }
            }
        }
    }
    let rows = table.get_mut("rows").and_then(Value::as_array_mut);
    for row in rows.into_iter().flatten() {
        let cells = row.get_mut("cells").and_then(Value::as_array_mut);
        for (index, cell) in cells.into_iter().flatten().enumerate() {
            // Later events of a watch have no columns, so any cell that looks like an age counts as
            // one.
            let may_be_age = ages.is_empty() || ages.contains(&index);
            if may_be_age && cell.as_str().is_some_and(is_age) {
                *cell = Value::String("<age>".to_owned());
            }
        }
    }
}

/// Sorts managed fields by all but their times. Two writes may be in one second or in two, and that
/// second decides the order in which the server shows them.
fn sort_entries(entries: &mut [Value]) {
    entries.sort_by_key(|entry| {
        ["operation", "manager", "subresource", "apiVersion"]
            .map(|member| entry[member].as_str().unwrap_or_default().to_owned())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normalized(symbols: &mut Symbols, step: &str, sent: &str, value: Value) -> Value {
        Normalizer {
            symbols,
            step,
            sent,
            base_path: "",
        }
        .value(value)
    }

    #[test]
    fn objects_and_lists_name_their_versions_differently() {
        let mut symbols = Symbols::default();
        let object = json!({"metadata": {"resourceVersion": "7"}});
        let one = normalized(&mut symbols, "a", "", object.clone());
        assert_eq!(one, json!({"metadata": {"resourceVersion": "rv:a"}}));
        let list = json!({"metadata": {"resourceVersion": "9"}, "items": [object]});
        let list = normalized(&mut symbols, "b", "", list);
        assert_eq!(list["metadata"]["resourceVersion"], "at least rv:a");
        assert_eq!(list["items"][0]["metadata"]["resourceVersion"], "rv:a");
        let bookmark =
            json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}});
        let bookmark = normalized(&mut symbols, "c", "", bookmark);
        assert_eq!(
            bookmark["object"]["metadata"]["resourceVersion"],
            "at least rv:a"
        );
    }

    #[test]
    fn what_a_request_sent_stays_and_what_the_server_made_goes() {
        let mut symbols = Symbols::default();
        let sent = "2020-01-01T00:00:00Z 10.0.0.9";
        let value = json!({
            "a": "2020-01-01T00:00:00Z", "b": "2021-01-01T00:00:00Z", "c": "2021-01-01T00:00:00.000001Z",
            "d": "10.0.0.9", "e": "10.0.0.8", "nodePort": 30001,
            "uid": "11111111-2222-3333-4444-555555555555",
            "metadata": {"generateName": "x-", "name": "x-abcde"}, "f": "\"x-abcde\" is there",
        });
        let value = normalized(&mut symbols, "s", sent, value);
        assert_eq!(
            value,
            json!({
                "a": "2020-01-01T00:00:00Z", "b": "<time>", "c": "<microtime>",
                "d": "10.0.0.9", "e": "<ip>", "nodePort": "<port>", "uid": "uid:s",
                "metadata": {"generateName": "x-", "name": "x-<suffix>"},
                "f": "\"x-<suffix>\" is there",
            })
        );
    }

    #[test]
    fn names_made_for_refused_objects_lose_their_suffix() {
        let sent = r#"{"metadata": {"generateName": "x-"}}"#;
        let value = json!("\"x-abcde\" no, \"x-bcdfg\" yes, \"x-\"");
        let value = normalized(&mut Symbols::default(), "s", sent, value);
        assert_eq!(value, json!("\"x-abcde\" no, \"x-<suffix>\" yes, \"x-\""));
    }

    #[test]
    fn tables_lose_descriptions_and_ages() {
        let table = json!({
            "columnDefinitions": [{"name": "Name", "description": "prose"}, {"name": "Age"}],
            "rows": [{"cells": ["5s", "3m2s"]}],
        });
        let table = normalized(&mut Symbols::default(), "s", "", table);
        assert_eq!(
            table["columnDefinitions"],
            json!([{"name": "Name"}, {"name": "Age"}])
        );
        assert_eq!(table["rows"], json!([{"cells": ["5s", "<age>"]}]));
    }
}
