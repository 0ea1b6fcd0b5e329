//! Measures classifications by the flow schemas that every plane has, and by 100 more:
//! `cargo run --release -p polyplane-registry --example flow_classes`.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use polyplane_apimachinery::{Value, json};
use polyplane_auth::{Attributes, SYSTEM_MASTERS, Subject, UserInfo};
use polyplane_registry::flows::{FlowIndex, FlowResource};

const OWN: usize = 100;
const ROUNDS: u32 = 200_000;
/// Each figure is the smallest of so many.
const SAMPLES: usize = 7;

fn tree(text: &str) -> Value {
    let parsed = json::parse(text.as_bytes(), &json::Limits::default());
    parsed.expect("it is JSON").value
}

fn bootstrap() -> FlowIndex {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/data/bootstrap.json");
    let data = std::fs::read_to_string(path).expect("the generated data is there");
    let mut index = FlowIndex::default();
    for item in tree(&data).as_array().unwrap_or_default() {
        let resource = FlowResource::of(item.str_at(&["group"]), item.str_at(&["resource"]));
        if let Some(resource) = resource {
            index = index.with(resource, item.str_at(&["name"]), item.get("object"));
        }
    }
    index
}

fn show(index: &FlowIndex, what: &str, user: &UserInfo) {
    let request = Attributes {
        user,
        verb: "get",
        subject: Subject::Resource {
            group: "apps",
            version: "v1",
            resource: "deployments",
            subresource: "",
            namespace: "demo",
            name: "web",
            field_selector: "",
        },
    };
    let class = index.classify(&request).schema().to_owned();
    let mut nanos = f64::MAX;
    for _ in 0..SAMPLES {
        let began = Instant::now();
        for _ in 0..ROUNDS {
            black_box(index.classify(black_box(&request)));
        }
        nanos = nanos.min(began.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    println!("{what} ({class}): {nanos:.0} ns");
}

fn main() {
    let mut index = bootstrap();
    for at in 0..2 {
        let authenticated = "system:authenticated";
        let admin = UserInfo::new("admin", &[SYSTEM_MASTERS, authenticated]);
        let jane = UserInfo::new("jane", &["dev", "ops", authenticated]);
        let account = UserInfo::new(
            "system:serviceaccount:demo:robot",
            &[
                "system:serviceaccounts",
                "system:serviceaccounts:demo",
                authenticated,
            ],
        );
        let more = at * OWN;
        show(
            &index,
            &format!("administrator, {more} more schemas"),
            &admin,
        );
        show(
            &index,
            &format!("user of 3 groups, {more} more schemas"),
            &jane,
        );
        show(
            &index,
            &format!("service account, {more} more schemas"),
            &account,
        );
        for own in 0..OWN {
            let text = format!(
                r#"{{"spec": {{"priorityLevelConfiguration": {{"name": "workload-low"}}, "matchingPrecedence": 500, "rules": [{{
                "subjects": [{{"kind": "User", "user": {{"name": "user-{own}"}}}}], "resourceRules": [{{"verbs": ["*"],
                "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}}]}}]}}}}"#
            );
            let name = format!("own-{own}");
            index = index.with(FlowResource::Schema, &name, Some(&tree(&text)));
        }
    }
}
