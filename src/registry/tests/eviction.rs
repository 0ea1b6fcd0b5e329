//! Evictions by the disruption budgets, as far as these are durable.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_budget_that_does_not_come_to_be_forbids_nothing() {
    let site = Site::open(Vec::new()).await;
    let pod = r#"{"metadata":{"name":"p","labels":{"a":"b"}},"status":{"phase":"Running"}}"#;
    let pod = site.send(Ask::create("pods", pod)).await;
    pod.expect("it is new");
    let mut budget = Ask::create(
        "poddisruptionbudgets",
        r#"{"metadata":{"name":"b"},"spec":{"selector":{"matchLabels":{"a":"b"}}},
            "status":{"disruptionsAllowed":1,"currentHealthy":1,"desiredHealthy":0,"expectedPods":1}}"#,
    );
    budget.group = "policy";
    site.send(budget).await.expect("it is new");
    let mut nothing = Ask::patch_of(
        "poddisruptionbudgets",
        "b",
        r#"{"status":{"disruptionsAllowed":0}}"#,
    );
    nothing.group = "policy";
    let mut evict = Ask::new(Verb::Create, "pods", Some("p"));
    evict.subresource = Some("eviction".into());
    evict.body = r#"{"metadata":{"name":"p"}}"#.to_owned();
    let refused = site.unsettle(nothing.clone()).await;
    let evicted = site.send(evict.clone().dry()).await;
    evicted.expect("what is refused was never there");
    let refused = refused.await.expect("no panic");
    refused.expect_err("the store is full");
    // Once the budget is durable, it forbids the eviction.
    site.send(nothing).await.expect("the store has room again");
    let evicted = site.send(evict).await.expect_err("it is forbidden");
    assert_eq!(evicted.code, 429);
    assert!(site.stored("pods", "p").is_some());
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_refused_for_its_type_and_namespace_before_its_pod_is_looked_for() {
    let site = Site::open(Vec::new()).await;
    let mut evict = Ask::new(Verb::Create, "pods", Some("p"));
    evict.subresource = Some("eviction".into());
    evict.body = r#"{"metadata":{"name":"p"}}"#.to_owned();
    let absent = site.send(evict.clone()).await.expect_err("no such pod");
    assert_eq!(absent.code, 404);
    evict.body = r#"{"metadata":{"name":"p","namespace":"other"}}"#.to_owned();
    let foreign = site.send(evict.clone()).await.expect_err("not of ns");
    assert_eq!(foreign.code, 400);
    evict.content_type = Some("text/plain");
    let unread = site.send(evict).await.expect_err("not a known type");
    assert_eq!(unread.code, 415);
}

/// A strategy under which the versions v0 and v1 of budgets exchange the names `disruptionsAllowed`
/// and `expectedPods`.
#[derive(Debug)]
struct Budgets;

impl Strategy for Budgets {
    fn to_stored(&self, _: &str, mut budget: Value) -> Value {
        let (allowed, expected) = (["status", "disruptionsAllowed"], ["status", "expectedPods"]);
        let numbers = [budget.int_at(&expected), budget.int_at(&allowed)];
        for (field, number) in [allowed, expected].iter().zip(numbers) {
            budget.set(field, number.expect("the test sets both"));
        }
        budget
    }
}

/// Returns kinds with budgets that are also served in v0 and stored in this version.
fn with_budgets(storage: &str) -> Arc<KindTable> {
    let strategy = |_: &str, version: &str, _: &str| {
        Some(match version {
            "v0" => Arc::new(Budgets) as Arc<dyn Strategy>,
            _ => Arc::new(Plain),
        })
    };
    let budgets = include_str!("budgets.json").replace("STORAGE", storage);
    let rows: [&[u8]; 2] = [include_bytes!("rows.json"), budgets.as_bytes()];
    let features = Arc::clone(&FEATURES);
    let table = KindTable::build(&rows, Arc::clone(&SCHEMAS), features, &strategy, 1);
    Arc::new(table.expect("the rows are sound"))
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_was_stored_in_another_version_is_read_and_counted_in_todays() {
    let mut site = Site::open(Vec::new()).await;
    site.tenant.base = with_budgets("v0");
    for name in ["p", "q"] {
        let pod = format!(
            r#"{{"metadata":{{"name":"{name}","labels":{{"a":"b"}}}},"status":{{"phase":"Running"}}}}"#
        );
        let pod = site.send(Ask::create("pods", &pod)).await;
        pod.expect("it is new");
    }
    let mut budget = Ask::create(
        "poddisruptionbudgets",
        r#"{"metadata":{"name":"b"},"spec":{"selector":{"matchLabels":{"a":"b"}}},
            "status":{"disruptionsAllowed":0,"currentHealthy":1,"desiredHealthy":0,"expectedPods":1}}"#,
    );
    (budget.group, budget.version) = ("policy", "v0");
    site.send(budget).await.expect("it is new");
    let stored = |site: &Site| {
        let key = Key::new("policy", "poddisruptionbudgets", Some("ns"), "b");
        let budget = site.tenant.plane.snapshot().get(&key);
        budget.expect("it is stored")
    };
    assert_eq!(stored(&site).storage_version(), "v0");
    site.tenant.base = with_budgets("v1");
    let evict = |name: &str| {
        let mut evict = Ask::new(Verb::Create, "pods", Some(name));
        evict.subresource = Some("eviction".into());
        evict.body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        evict
    };
    let evicted = site.send(evict("p")).await;
    evicted.expect("the budget allows one disruption");
    let budget = stored(&site);
    assert_eq!(budget.storage_version(), "v1");
    let body = String::from_utf8_lossy(&budget.body()).into_owned();
    assert!(body.contains(r#""disruptionsAllowed":0"#), "{body}");
    assert!(body.contains(r#""expectedPods":0"#), "{body}");
    let refused = site.send(evict("q")).await.expect_err("it allows no more");
    assert_eq!(refused.code, 429);
}
