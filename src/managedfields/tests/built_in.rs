//! Field management of a Deployment, by the schemas of built-in kinds.

use std::path::Path;
use std::sync::LazyLock;

use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::shape::BuiltIn;
use polyplane_apimachinery::value::Value;
use polyplane_managedfields::{
    Answers, Applied, Apply, ApplyError, Conversion, Entries, Filter, Force, Managers, Position,
    Step, Versions, Write, Writer, apply, update,
};

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/data/schemas.json");
    let data = std::fs::read(path).expect("the generated data file is there");
    Schemas::parse(&data).expect("generated data loads")
});

struct Deployments;

impl Versions<'static> for Deployments {
    type Shape = BuiltIn<'static>;

    fn position(&self, version: &str) -> Option<Position<Self::Shape>> {
        let (group, version) = version.split_once('/')?;
        let id = SCHEMAS.kind(group, version, "Deployment")?;
        Some(Position::root(BuiltIn::root(&SCHEMAS, id)))
    }

    fn filter(&self, _version: &str) -> Option<&Filter> {
        None
    }

    fn convert(&self, _object: &Value, _from: &str, _to: &str) -> Conversion {
        Conversion::Missing
    }
}

fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("test JSON parses").value
}

/// A stored object with its owners.
#[derive(Default)]
struct State {
    live: Value,
    managers: Managers,
}

impl State {
    fn write<'a>(&'a self, manager: &'a str) -> Write<'a, Deployments> {
        Write {
            versions: &Deployments,
            version: "apps/v1",
            manager,
            live: &self.live,
            managers: &self.managers,
        }
    }

    fn apply(&mut self, manager: &str, object: &str, force: Force) -> Result<(), ApplyError> {
        match apply(
            self.write(manager),
            &tree(object),
            force,
            &Answers::default(),
        )? {
            Step::Done(Applied { object, managers }) => {
                self.live = object.unwrap_or(self.live.take());
                self.managers = managers;
                Ok(())
            }
            Step::Need(needs) => panic!("one version needs no conversion: {needs:?}"),
        }
    }

    fn update(&mut self, manager: &str, object: &str) {
        let new = tree(object);
        match update(self.write(manager), &new, &Answers::default()).expect("it fits") {
            Step::Done(managers) => self.managers = managers,
            Step::Need(needs) => panic!("one version needs no conversion: {needs:?}"),
        }
        self.live = new;
    }

    fn owned(&self, manager: &str) -> String {
        let owned = self.managers.get(manager);
        let json = owned.map(|owned| owned.set.to_json()).unwrap_or_default();
        String::from_utf8(json).expect("sets are text")
    }
}

#[test]
fn a_deployment_has_the_owners_that_upstream_gives_it() {
    let mut state = State::default();
    let web = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"a":"1"}},
        "spec":{"replicas":1,"template":{"spec":{"containers":[
            {"name":"web","image":"x:1","ports":[{"containerPort":80}]}]}}}}"#;
    state
        .apply("ci", web, Force::No)
        .expect("nobody owns anything");
    assert_eq!(
        state.owned("ci"),
        concat!(
            r#"{"f:apiVersion":{},"f:kind":{},"f:metadata":{"f:labels":{"f:a":{}},"f:name":{}},"#,
            r#""f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"#,
            r#""k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{"#,
            r#""k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}"#
        )
    );

    // Another one scales it, and with that owns the replicas.
    let scaled = json::to_string(&state.live).replace(r#""replicas":1"#, r#""replicas":3"#);
    state.update("scaler", &scaled);
    assert_eq!(state.owned("scaler"), r#"{"f:spec":{"f:replicas":{}}}"#);
    assert!(!state.owned("ci").contains("replicas"));

    let error = state
        .apply("ci", web, Force::No)
        .expect_err("it was scaled");
    assert_eq!(
        error.to_string(),
        r#"conflict with "scaler": .spec.replicas"#
    );
    state.apply("ci", web, Force::Yes).expect("it is forced");
    assert_eq!(state.owned("scaler"), "");

    // What the manager gives up goes.
    let less = web
        .replace(r#","ports":[{"containerPort":80}]"#, "")
        .replace(r#","labels":{"a":"1"}"#, "");
    state
        .apply("ci", &less, Force::No)
        .expect("it is the manager's own");
    assert!(
        !json::to_string(&state.live).contains("containerPort"),
        "{:?}",
        state.live
    );
    assert!(!state.owned("ci").contains("labels"));

    let wrong = less.replace(r#""replicas":1"#, r#""replicas":"1""#);
    let error = state
        .apply("ci", &wrong, Force::No)
        .expect_err("replicas is a number");
    assert_eq!(
        error.to_string(),
        ".spec.replicas: expected numeric (int or float), got string"
    );
}

#[test]
fn what_nobody_can_own_is_found_before_the_first_apply_is_looked_at() {
    let live = tree(r#"{"spec":{"replicas":"three"}}"#);
    let wanted = tree(r#"{"spec":{"paused":"no"}}"#);
    let request = Apply {
        versions: &Deployments,
        version: "apps/v1",
        writer: Writer {
            name: "ci",
            subresource: "",
            now: "2026-01-01T00:00:00Z",
        },
        empty: &Value::object(),
        live: &live,
        wanted: &wanted,
        force: Force::No,
    };
    let mut entries = Entries::default();
    let error = entries.apply(request, &Answers::default());
    let Err(ApplyError::Existing(faults)) = error else {
        panic!("it has a text as the number of its replicas: {error:?}");
    };
    assert_eq!(
        faults.to_string(),
        ".spec.replicas: expected numeric (int or float), got string"
    );
}
