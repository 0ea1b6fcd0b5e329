//! What clients may write while the store is nearly full.

use super::asking::Counted;
use super::*;
use polyplane_plane::{Flags, LayerObject, NewObject};

/// Makes the request one of a client.
fn of_client(mut ask: Ask) -> Ask {
    ask.seats = Some(Counted::new(1) as _);
    ask
}

fn named(name: &str) -> Ask {
    Ask::create(
        "configmaps",
        &format!(r#"{{"metadata":{{"name":"{name}"}}}}"#),
    )
}

fn patch(name: &str, data: &str) -> Ask {
    Ask::patch(name, &format!(r#"{{"data":{{"k":"{data}"}}}}"#))
}

fn delete(name: &str) -> Ask {
    Ask::new(Verb::Delete, "configmaps", Some(name))
}

#[track_caller]
fn is_refused(answer: Result<Value, ApiError>) {
    let error = answer.expect_err("it adds data");
    assert_eq!((error.code, error.retry_after_seconds()), (503, Some(1)));
    assert!(error.message.contains("deletions still pass"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_nearly_full_store_gets_deletions_and_no_new_data_of_clients() {
    let site = Site::open(Vec::new()).await;
    site.make("small", "x").await;
    site.make("large", &"x".repeat(4000)).await;
    site.make("held", "x").await;
    let hold = r#"{"metadata":{"finalizers":["example.org/f"]}}"#;
    let held = site.send(Ask::patch("held", hold)).await;
    held.expect("the store has room");

    site.store.plan().nearly_fill();
    is_refused(site.send(of_client(named("new"))).await);
    assert!(site.stored("configmaps", "new").is_none());
    is_refused(
        site.send(of_client(patch("small", &"y".repeat(2000))))
            .await,
    );
    let dry = site.send(of_client(named("new").dry())).await;
    dry.expect("a dry run stores nothing");
    let own = site.send(named("own")).await;
    own.expect("the server's writes are bounded by those of clients");

    let renewed = site.send(of_client(patch("small", "z"))).await;
    renewed.expect("it does not grow");
    let longer = site.send(of_client(patch("small", &"z".repeat(100)))).await;
    longer.expect("it hardly grows");
    let shrunk = site.send(of_client(patch("large", "x"))).await;
    shrunk.expect("it shrinks");
    let removed = site.send(of_client(delete("small"))).await;
    removed.expect("a deletion makes room");
    assert!(site.stored("configmaps", "small").is_none());
    let marked = site.send(of_client(delete("held"))).await;
    marked.expect("it begins a deletion");
    let release = r#"{"metadata":{"finalizers":null}}"#;
    let released = site.send(of_client(Ask::patch("held", release))).await;
    released.expect("it ends a deletion");
    assert!(site.stored("configmaps", "held").is_none());

    site.store.plan().free();
    let made = site.send(of_client(named("new"))).await;
    made.expect("the store has room again");
}

#[tokio::test(start_paused = true)]
async fn creations_and_deletions_get_the_same_reason_once_the_store_is_full() {
    let site = Site::open(Vec::new()).await;
    site.make("small", "x").await;
    site.store.plan().nearly_fill();
    site.store.plan().fill();
    for ask in [
        named("new"),
        patch("small", &"y".repeat(2000)),
        delete("small"),
    ] {
        let refused = site.send(of_client(ask)).await;
        let error = refused.expect_err("nothing is written");
        assert_eq!((error.code, error.retry_after_seconds()), (503, Some(1)));
        let why = "no space: the disk is full by plan";
        assert!(error.message.contains(why), "{error:?}");
        assert!(!error.message.contains("still pass"), "{error:?}");
    }
}

/// Returns a config map of a layer.
fn layered(name: &str, value: &str) -> LayerObject {
    let head = format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"${{UID}}","#);
    let rest = format!(r#""creationTimestamp":"${{BIRTH_TIME}}"}},"data":{{"k":"{value}"}}}}"#);
    LayerObject {
        key: Key::new("", "configmaps", Some("ns"), name),
        object: NewObject {
            version_slot: head.len(),
            body: (head + &rest).into(),
            labels: None,
            storage_version: "v1".into(),
            expires: None,
            flags: Flags::NONE,
        },
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_change_of_a_layers_object_is_judged_by_its_bytes() {
    let objects = vec![layered("small", "x"), layered("large", &"x".repeat(2000))];
    let layer = Layer::build(objects).expect("nothing to refuse");
    let site = Site::on_layer(&layer, kinds(), Vec::new(), Authority::fixed(Masters)).await;

    site.store.plan().nearly_fill();
    let changed = site.send(of_client(patch("small", "y"))).await;
    changed.expect("it is no new object, and the store hardly grows");
    assert_eq!(site.config_map("small").str_at(&["data", "k"]), "y");
    // It is not longer than it was, but the store has nothing of it yet.
    is_refused(
        site.send(of_client(patch("large", &"y".repeat(2000))))
            .await,
    );
    let removed = site.send(of_client(delete("large"))).await;
    removed.expect("a deletion still passes");
    is_refused(site.send(of_client(named("large"))).await);
}
