//! What dry runs show.

use super::*;
use crate::Outcome;

/// Upstream gives the new object of a PUT a uid and leaves the version that the client has sent; only its store drops
/// that version, which a dry run does not reach (pkg/registry/generic/registry/{store,dryrun}.go of apiserver).
#[tokio::test(start_paused = true)]
async fn the_dry_run_of_an_update_that_creates_shows_the_version_that_was_sent() {
    let site = Site::open(Vec::new()).await;
    let mut put = Ask::new(Verb::Update, "configmaps", Some("a"));
    put.body = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#.to_owned();
    let request = put.clone().dry().request();
    let answer = site.registry.handle(&site.tenant, &request).await;
    let answer = answer.expect("a new object may name a version");
    assert_eq!(answer.outcome, Outcome::Created);
    let shown = site
        .send(put.clone().dry())
        .await
        .expect("nothing is stored");
    assert_eq!(shown.str_at(&["metadata", "resourceVersion"]), "7");
    assert!(!shown.str_at(&["metadata", "uid"]).is_empty());
    assert!(site.stored("configmaps", "a").is_none());
    let stored = site
        .send(put)
        .await
        .expect("a new object may name a version");
    let given = site
        .stored("configmaps", "a")
        .expect("it is stored")
        .version();
    let given = given.expect("it is durable").to_string();
    assert_eq!(stored.str_at(&["metadata", "resourceVersion"]), given);
}

/// A POST names no version; that is checked by upstream's store alone.
#[tokio::test(start_paused = true)]
async fn the_dry_run_of_a_create_shows_the_version_for_which_the_create_is_refused() {
    let site = Site::open(Vec::new()).await;
    let body = r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#;
    let post = Ask::create("configmaps", body);
    let shown = site
        .send(post.clone().dry())
        .await
        .expect("nothing is stored");
    assert_eq!(shown.str_at(&["metadata", "resourceVersion"]), "7");
    assert_eq!(site.send(post).await.map_err(|error| error.code), Err(500));
}
