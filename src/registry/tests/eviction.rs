//! Evictions: what disruption budgets allow, as far as they are durable.

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
    // Once it is there, it forbids.
    site.send(nothing).await.expect("the store has room again");
    let evicted = site.send(evict).await.expect_err("it is forbidden");
    assert_eq!(evicted.code, 429);
    assert!(site.stored("pods", "p").is_some());
}
