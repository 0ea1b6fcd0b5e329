//! The two writes of a pod that is deleted without a grace period.

use super::*;

/// What is stored after that is also what a replica finds that was killed between the two writes.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_removal_is_lost_stays_marked_and_goes_with_the_next_deletion() {
    let site = Site::open(Vec::new()).await;
    let pod = r#"{"metadata":{"name":"p"}}"#;
    site.send(Ask::create("pods", pod))
        .await
        .expect("it is new");
    let delete = Ask::new(Verb::Delete, "pods", Some("p"));
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(Duration::ZERO));
    plan.next_commit(CommitFault::Reject(Rejection::NoSpace("full".into())));
    let lost = site.send(delete.clone()).await;
    lost.expect_err("the store is full");
    let object = site.stored("pods", "p").expect("it is not removed");
    let marked = tree(std::str::from_utf8(&object.body()).expect("JSON"));
    let grace = marked.int_at(&["metadata", "deletionGracePeriodSeconds"]);
    assert_eq!(grace, Some(0));
    assert!(!marked.str_at(&["metadata", "deletionTimestamp"]).is_empty());
    let commits = plan.commits_asked();
    site.send(delete).await.expect("the store has room again");
    assert!(site.stored("pods", "p").is_none());
    // The mark is not written again.
    assert_eq!(plan.commits_asked(), commits + 1);
}
