//! Writes whose managed fields are made at once, against the whole step.

use std::path::Path;
use std::sync::LazyLock;

use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::shape::BuiltIn;
use polyplane_apimachinery::value::{SharedObjects, Value};
use polyplane_managedfields::{
    Answers, Conversion, Entries, Filter, PathElement, Position, Step, Versions, Writer,
    first_entry, update_values,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const VERSION: &str = "apps/v1";

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/data/schemas.json");
    let data = std::fs::read(file).expect("the generated schemas are there");
    Schemas::parse(&data).expect("the generated schemas load")
});

/// Deployments, whose status no write of these tests may own.
struct Deployments {
    position: Position<BuiltIn<'static>>,
    filter: Filter,
}

impl Deployments {
    fn new() -> Self {
        let id = SCHEMAS.kind("apps", "v1", "Deployment");
        let status = [PathElement::field("status")];
        Self {
            position: Position::root(BuiltIn::root(&SCHEMAS, id.expect("a kind"))),
            filter: Filter::Exclude(std::iter::once(&status[..]).collect()),
        }
    }
}

impl Versions<'static> for Deployments {
    type Shape = BuiltIn<'static>;

    fn position(&self, version: &str) -> Option<Position<Self::Shape>> {
        (version == VERSION).then_some(self.position)
    }

    fn number(&self, _version: &str) -> Option<u64> {
        let id = SCHEMAS.kind("apps", "v1", "Deployment");
        id.map(|id| BuiltIn::number(&SCHEMAS, id))
    }

    fn filter(&self, _version: &str) -> Option<&Filter> {
        Some(&self.filter)
    }

    fn convert(&self, _object: &Value, _from: &str, _to: &str) -> Conversion {
        Conversion::Same
    }
}

/// An object with a few values in fields, maps, a set, keyed lists and lists that are owned as a whole.
fn object() -> impl Strategy<Value = Value> {
    let maybe = |text: &'static str| prop_oneof![3 => Just(text), 1 => Just("")];
    let label = maybe(r#""tier":"front","#);
    let port = maybe(r#",{"containerPort":9090,"name":"m","protocol":"TCP"}"#);
    let second = maybe(r#",{"name":"side","image":"s:1","args":["--x"]}"#);
    let finalizer = maybe(r#""finalizers":["a/b","c/d"],"#);
    let status = maybe(r#","status":{"replicas":1}"#);
    let numbers = (0..3u8, 0..3u8, 0..3u8);
    (label, port, second, finalizer, status, numbers).prop_map(
        |(label, port, second, finalizer, status, (mark, replicas, image))| {
            let text = format!(
                r#"{{"metadata":{{"name":"d","uid":"u{image}",{finalizer}"annotations":{{"mark":"{mark}"}},"labels":{{{label}"app":"d"}}}},"spec":{{"replicas":{replicas},"template":{{"spec":{{"containers":[{{"name":"web","image":"i:{image}","args":["{mark}"],"ports":[{{"containerPort":80,"protocol":"TCP"}}{port}]}}{second}]}}}}}}{status}}}"#
            );
            let parsed = json::parse(text.as_bytes(), &json::Limits::default());
            parsed.expect("test JSON parses").value
        },
    )
}

fn whole(managed: &Value, writer: Writer<'_>, objects: (&Value, &Value)) -> Value {
    let mut entries = Entries::decode(managed).expect("the entries are sound");
    let versions = Deployments::new();
    let step = entries.update(&versions, VERSION, writer, objects, &Answers::default());
    assert!(matches!(step, Ok(Step::Done(()))));
    entries.encode().unwrap_or_default()
}

/// Returns entries as a document has them whose sets other documents have too.
fn read_again(managed: &Value, known: &SharedObjects) -> Value {
    let text = json::to_vec(managed);
    let sharing = Some(known.within("a plane"));
    let parsed = json::parse_sharing(&text, &json::Limits::default(), sharing);
    let list = parsed.expect("it was written").value;
    assert_eq!(list, *managed);
    assert_eq!(json::to_vec(&list), text);
    list
}

#[test]
fn a_write_at_once_is_what_the_whole_step_makes_of_it() {
    let versions = Deployments::new();
    let known = SharedObjects::default();
    let mut runner = TestRunner::deterministic();
    let writes = prop::collection::vec((0..4usize, 0..2usize, object()), 1..16);
    let (mut at_once, mut in_steps) = (0, 0);
    for _ in 0..400 {
        let writes = writes.new_tree(&mut runner).expect("they are drawn");
        let (mut live, mut managed) = (Value::object(), Value::Null);
        let mut last = ("", "");
        for (second, (name, subresource, mut new)) in writes.current().into_iter().enumerate() {
            match name {
                0 | 1 => last = (["", "b"][name], ["", "scale"][subresource]),
                // Most writes change what the last writer has written before.
                _ if !managed.is_null() => {
                    new = live.clone();
                    new.set(&["metadata", "annotations", "mark"], format!("v{second}"));
                    new.set(&["spec", "replicas"], 10 + second as i64);
                }
                _ => {}
            }
            // Two writes share a second, so that names decide their order.
            let now = format!("2026-01-01T00:00:{:02}Z", second / 2);
            let writer = Writer {
                name: last.0,
                subresource: last.1,
                now: &now,
            };
            let objects = (&live, &new);
            let wanted = whole(&managed, writer, objects);
            if managed.is_null() {
                let first = first_entry(&versions, VERSION, writer, objects);
                assert_eq!(first.expect("it fits").unwrap_or_default(), wanted);
            } else {
                // Of these, every other is read once, so that its sets are its own.
                let mut list = read_again(&managed, &known);
                if second % 2 == 0 {
                    list = read_again(&managed, &known);
                }
                if update_values(&versions, VERSION, writer, objects, &mut list) {
                    at_once += 1;
                    assert_eq!(list, wanted, "{live:?}\n{new:?}");
                } else {
                    in_steps += 1;
                    assert_eq!(list, managed);
                }
            }
            (live, managed) = (new, wanted);
        }
    }
    assert!(at_once > 500 && in_steps > 500, "{at_once}, {in_steps}");
}
