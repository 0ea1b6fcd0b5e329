//! Managed fields as objects store them: order, times, limits and what is refused.

use polyplane_apimachinery::json;
use polyplane_apimachinery::shape::BuiltIn;
use polyplane_apimachinery::value::{Str, Value};
use polyplane_managedfields::{
    Answers, Apply, ApplyError, Conversion, Entries, Filter, Force, Path, PathElement, Position,
    ReplicasPaths, Step, Versions, Writer, differ_in_times_only, resets,
};

/// Objects without a schema, in any version.
struct Untyped;

impl Versions<'static> for Untyped {
    type Shape = BuiltIn<'static>;

    fn position(&self, version: &str) -> Option<Position<Self::Shape>> {
        version.starts_with('v').then_some(Position::UNTYPED)
    }

    fn filter(&self, _version: &str) -> Option<&Filter> {
        None
    }

    fn convert(&self, _object: &Value, _from: &str, to: &str) -> Conversion {
        match self.position(to) {
            Some(_) => Conversion::Same,
            None => Conversion::Missing,
        }
    }
}

fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("test JSON parses").value
}

#[derive(Default)]
struct Stored {
    live: Value,
    managed: Value,
}

impl Stored {
    fn update(&mut self, name: &str, now: &str, object: &str) {
        let mut entries = Entries::decode(&self.managed).expect("the entries are sound");
        let writer = Writer {
            name,
            subresource: "",
            now,
        };
        let new = tree(object);
        let objects = (&self.live, &new);
        let step = entries.update(&Untyped, "v1", writer, objects, &Answers::default());
        assert!(matches!(step, Ok(Step::Done(()))));
        self.managed = entries.encode().unwrap_or_default();
        self.live = new;
    }

    fn apply(&mut self, name: &str, now: &str, object: &str) -> Result<(), ApplyError> {
        let mut entries = Entries::decode(&self.managed).expect("the entries are sound");
        let wanted = tree(object);
        let request = Apply {
            versions: &Untyped,
            version: "v1",
            writer: Writer {
                name,
                subresource: "",
                now,
            },
            empty: &Value::object(),
            live: &self.live,
            wanted: &wanted,
            force: Force::No,
        };
        match entries.apply(request, &Answers::default())? {
            Step::Done(merged) => {
                if let Some(merged) = merged {
                    self.live = merged;
                }
                self.managed = entries.encode().unwrap_or_default();
                Ok(())
            }
            Step::Need(needs) => panic!("nothing is converted: {needs:?}"),
        }
    }

    /// Returns name, operation and time of each entry.
    fn heads(&self) -> Vec<String> {
        let entries = self.managed.as_array().unwrap_or_default().iter();
        let head = |entry: &Value| {
            ["manager", "operation", "time"]
                .map(|member| entry.str_at(&[member]).to_owned())
                .join(" ")
        };
        entries.map(head).collect()
    }
}

fn at(second: u32) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

#[test]
fn a_time_changes_only_when_fields_change_and_applies_stand_first() {
    let mut stored = Stored::default();
    stored.update("b", &at(1), r#"{"x":{"a":1}}"#);
    stored.update("a", &at(2), r#"{"x":{"a":1,"b":2}}"#);
    assert_eq!(
        stored.heads(),
        [format!("b Update {}", at(1)), format!("a Update {}", at(2))]
    );
    // Nothing changes, then something goes: neither is a reason for a new time.
    stored.update("b", &at(3), r#"{"x":{"a":1,"b":2}}"#);
    stored.update("b", &at(4), r#"{"x":{"b":2}}"#);
    assert_eq!(
        stored.heads(),
        [format!("b Update {}", at(1)), format!("a Update {}", at(2))]
    );
    assert!(stored.managed[0]["fieldsV1"]["f:x"].get("f:a").is_none());
    // An apply of what is there already has no time, and stands first.
    stored
        .apply("c", &at(5), r#"{"x":{"b":2}}"#)
        .expect("no conflict");
    assert_eq!(
        stored.heads(),
        [
            "c Apply ".to_owned(),
            format!("b Update {}", at(1)),
            format!("a Update {}", at(2))
        ]
    );
    stored
        .apply("c", &at(6), r#"{"x":{"b":2,"d":3}}"#)
        .expect("no conflict");
    assert_eq!(stored.heads()[0], format!("c Apply {}", at(6)));
}

#[test]
fn what_was_there_before_the_first_apply_has_a_manager() {
    let mut stored = Stored {
        live: tree(r#"{"x":{"a":1}}"#),
        ..Stored::default()
    };
    let error = stored.apply("c", &at(1), r#"{"x":{"a":2}}"#);
    let Err(ApplyError::Conflicts(conflicts)) = error else {
        panic!("the field has an owner: {error:?}");
    };
    let message =
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .x.a"#;
    assert_eq!(conflicts.message(), message);
    let texts = conflicts.texts();
    assert_eq!(
        texts[0].message,
        r#"conflict with "before-first-apply" using v1"#
    );
    assert_eq!(texts[0].field, ".x.a");
}

#[test]
fn kubectl_takes_what_its_annotation_explains() {
    let annotated = |value: &str| {
        let applied = r#"{\"apiVersion\":\"v1\",\"x\":{\"a\":1}}"#;
        format!(
            r#"{{"apiVersion":"v1","metadata":{{"annotations":{{"kubectl.kubernetes.io/last-applied-configuration":"{applied}"}}}},"x":{{"a":{value}}}}}"#
        )
    };
    let mut stored = Stored::default();
    stored.update("kubectl-client-side-apply", &at(1), &annotated("1"));
    stored
        .apply("other", &at(2), r#"{"x":{"a":2}}"#)
        .expect_err("it has an owner");
    stored
        .apply("kubectl", &at(2), r#"{"x":{"a":2}}"#)
        .expect("kubectl has set it");
    assert_eq!(stored.live.int_at(&["x", "a"]), Some(2));
    // Somebody else has changed it since.
    let mut stored = Stored::default();
    stored.update("kubectl-client-side-apply", &at(1), &annotated("1"));
    stored.update("editor", &at(2), &annotated("5"));
    stored
        .apply("kubectl", &at(3), r#"{"x":{"a":2}}"#)
        .expect_err("it is the editor's");
}

#[test]
fn the_oldest_updates_are_joined() {
    let mut stored = Stored::default();
    let mut fields = Vec::new();
    for number in 0..14 {
        fields.push(format!(r#""f{number:02}":1"#));
        let object = format!(r#"{{"x":{{{}}}}}"#, fields.join(","));
        stored.update(&format!("m{number:02}"), &at(number), &object);
    }
    let heads = stored.heads();
    assert_eq!(heads.len(), 10, "{heads:?}");
    assert_eq!(heads[0], format!("ancient-changes Update {}", at(4)));
    let ancient = &stored.managed[0]["fieldsV1"]["f:x"];
    let owned = ancient.as_object().expect("it has the fields").len();
    assert_eq!(
        owned, 6,
        "five fields and the object around them: {ancient:?}"
    );
}

#[test]
fn entries_that_nobody_could_have_stored_are_refused() {
    for (entry, why) in [
        (
            r#"{"manager":"m","operation":"Patch","apiVersion":"v1","fieldsType":"FieldsV1"}"#,
            "operation must be `Apply` or `Update`",
        ),
        (
            r#"{"manager":"m","operation":"Apply","fieldsType":"FieldsV1"}"#,
            "apiVersion must not be empty",
        ),
        (
            r#"{"manager":"m","operation":"Apply","apiVersion":"v1"}"#,
            "missing fieldsType in managed fields entry 0",
        ),
        (
            r#"{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"X"}"#,
            r#"invalid fieldsType "X" in managed fields entry 0"#,
        ),
        (
            r#"{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"x":{}}}"#,
            "error decoding set",
        ),
    ] {
        let list = tree(&format!("[{entry}]"));
        let error = Entries::decode(&list).expect_err("it is wrong");
        assert_eq!(error.to_string(), why);
        assert!(!resets(&list));
    }
    for list in ["[]", "[{}]", r#"[{"manager":""}]"#] {
        assert!(resets(&tree(list)), "{list}");
    }
    assert!(!resets(&Value::Null));
}

#[test]
fn entries_are_stored_as_they_were_read() {
    let text = r#"[{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:x":{".":{},"f:a":{}}},"manager":"z","operation":"Apply"},{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:y":{"k:{\"name\":\"a\"}":{}}},"manager":"a","operation":"Update","subresource":"status","time":"2026-01-01T00:00:01Z"}]"#;
    let list = tree(text);
    let entries = Entries::decode(&list).expect("they are sound");
    assert_eq!(entries.encode(), Some(list.clone()));
    let later = tree(&text.replace(":01Z", ":02Z"));
    assert!(differ_in_times_only(&list, &later));
    assert!(!differ_in_times_only(&list, &list));
    assert!(!differ_in_times_only(
        &list,
        &tree(&text.replace("f:a", "f:b"))
    ));
}

#[test]
fn replicas_go_to_the_one_who_scales() {
    let list = tree(
        r#"[{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:paused":{},"f:replicas":{}}},"manager":"ci","operation":"Apply","time":"2026-01-01T00:00:01Z"}]"#,
    );
    let path = ["spec", "replicas"].map(PathElement::field);
    let paths = ReplicasPaths::from([(Str::from("v1"), Some(Path(path.into())))]);
    let object = Entries::decode(&list).expect("they are sound");
    let scale = object
        .to_scale(&paths)
        .encode()
        .expect("somebody owns the replicas");
    assert_eq!(scale[0]["apiVersion"].as_str(), Some("autoscaling/v1"));
    // Nothing has changed in the scale.
    let same = object.with_scale(Entries::decode(&scale).expect("sound"), &paths, "v1");
    assert_eq!(same.encode(), Some(list.clone()));
    let taken = tree(
        r#"[{"apiVersion":"autoscaling/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}},"manager":"hpa","operation":"Update","subresource":"scale","time":"2026-01-01T00:00:02Z"}]"#,
    );
    let taken = Entries::decode(&taken).expect("sound");
    let after = object
        .with_scale(taken, &paths, "v1")
        .encode()
        .expect("both own something");
    assert!(after[0]["fieldsV1"]["f:spec"].get("f:replicas").is_none());
    assert_eq!(after[1].str_at(&["manager"]), "hpa");
    assert_eq!(after[1].str_at(&["apiVersion"]), "v1");
}
