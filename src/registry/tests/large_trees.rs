//! The memory of objects that have very many values.

use super::asking::{ANSWER, Counted, Slow};
use super::*;
use polyplane_plane::{Memory, Share};

/// Makes the request one of a client.
fn of_client(mut ask: Ask) -> Ask {
    ask.seats = Some(Counted::new(1) as _);
    ask
}

/// Creates a config map with so many entries.
fn with_entries(name: &str, count: usize, value: &str) -> Ask {
    let entries = (0..count).map(|at| format!(r#""k{at}":"{value}""#));
    let entries = entries.collect::<Vec<_>>().join(",");
    let body = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{{entries}}}}}"#);
    Ask::create("configmaps", &body)
}

/// Takes all memory for trees.
fn fill(memory: &Arc<Memory>) -> polyplane_plane::Reservation {
    let full = memory.take(Share::Trees, memory.limit(Share::Trees));
    full.expect("nobody has any of it")
}

#[track_caller]
fn is_refused(answer: Result<Value, ApiError>) {
    let error = answer.expect_err("there is no memory");
    assert_eq!((error.code, error.retry_after_seconds()), (429, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn an_object_of_many_values_is_refused_while_there_is_no_memory_for_it() {
    let site = Site::open(Vec::new()).await;
    let memory = Arc::clone(site.tenant.plane.memory());
    let full = fill(&memory);
    let large = || with_entries("large", 40_000, "");
    is_refused(site.send(of_client(large())).await);
    let small = site.send(of_client(with_entries("small", 10, ""))).await;
    small.expect("it needs none");
    let long = with_entries("long", 1, &"x".repeat(1 << 20));
    let long = site.send(of_client(long)).await;
    long.expect("one long value is not many");
    drop(full);
    let made = site.send(of_client(large())).await;
    made.expect("there is memory again");
    assert_eq!(memory.used(Share::Trees), 0);
    assert_eq!(memory.times_full(Share::Trees), 1);
}

#[tokio::test(start_paused = true)]
async fn a_small_patch_of_a_large_object_is_refused_while_there_is_no_memory_for_it() {
    let site = Site::open(Vec::new()).await;
    let made = site.send(with_entries("large", 40_000, "")).await;
    made.expect("the name is new");
    let memory = Arc::clone(site.tenant.plane.memory());
    let patch = || Ask::patch("large", r#"{"data":{"k0":"1"}}"#);
    let full = fill(&memory);
    is_refused(site.send(of_client(patch())).await);
    site.send(patch())
        .await
        .expect("the server's own writes are not refused");
    drop(full);
    let patched = site.send(of_client(patch())).await;
    patched.expect("there is memory again");
    assert_eq!(memory.used(Share::Trees), 0);
}

#[tokio::test(start_paused = true)]
async fn a_short_patch_that_copies_much_counts_with_what_it_makes() {
    let site = Site::open(Vec::new()).await;
    let made = site.send(with_entries("short", 100, "")).await;
    made.expect("the name is new");
    let memory = Arc::clone(site.tenant.plane.memory());
    // Each copies all before it.
    let copies = (0..10).map(|at| {
        let path = format!("/data/copy{at}");
        format!(r#"{{"op":"copy","from":"/data","path":"{path}"}}"#)
    });
    let copies = copies.collect::<Vec<_>>().join(",");
    let mut patch = of_client(Ask::patch("short", &format!("[{copies}]")));
    patch.content_type = Some("application/json-patch+json");
    let full = fill(&memory);
    is_refused(site.send(patch.clone()).await);
    drop(full);
    let refused = site.send(patch).await;
    let refused = refused.expect_err("entries are texts");
    assert_ne!(refused.code, 429);
    assert_eq!(memory.used(Share::Trees), 0);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_many_values_that_no_store_takes_is_refused_before_it_is_prepared() {
    let site = Site::open(Vec::new()).await;
    let value = "x".repeat(40);
    let many = with_entries("many", 80_000, &value).dry();
    let refused = site.send(many.clone()).await;
    let refused = refused.expect_err("it is too long");
    assert_eq!(refused.message, "etcdserver: request is too large");
    let full = fill(site.tenant.plane.memory());
    let refused = site.send(many).await;
    let refused = refused.expect_err("it is too long without room too");
    assert_eq!(refused.message, "etcdserver: request is too large");
    drop(full);
    // A dry run, as upstream's, stores nothing and so is not limited by the store.
    let few = with_entries("few", 1, &"x".repeat(4 << 20)).dry();
    site.send(few).await.expect("the rules of its kind decide");
}

#[tokio::test(start_paused = true)]
async fn large_objects_are_deleted_though_there_is_no_memory_for_them() {
    let site = Site::open(Vec::new()).await;
    for name in ["one", "other"] {
        let made = site.send(with_entries(name, 40_000, "")).await;
        made.expect("the name is new");
    }
    let full = fill(site.tenant.plane.memory());
    let one = Ask::new(Verb::Delete, "configmaps", Some("one"));
    let deleted = site.send(of_client(one)).await;
    deleted.expect("a deletion makes room");
    assert!(site.stored("configmaps", "one").is_none());
    let all = Ask::new(Verb::DeleteCollection, "configmaps", None);
    let all = of_client(all).request();
    let deleted = site.registry.handle(&site.tenant, &all).await;
    deleted.expect("deletions make room");
    assert!(site.stored("configmaps", "other").is_none());
    drop(full);
}

#[tokio::test(start_paused = true)]
async fn the_servers_own_writes_leave_other_planes_room() {
    let slow = Arc::<Slow>::default();
    let site = Site::open(vec![Arc::clone(&slow) as _]).await;
    let memory = Arc::clone(site.tenant.plane.memory());
    let create = |at: usize| with_entries(&format!("large-{at}"), 40_000, &at.to_string()).slowly();
    let writes: Vec<_> = (0..8).map(|at| site.spawn(create(at))).collect();
    // All wait for an answer, with their trees.
    sleep(ANSWER / 2).await;
    assert_eq!(slow.asked().len(), writes.len());
    let (used, most) = (memory.used(Share::Trees), memory.most_for_one(Share::Trees));
    assert!(0 < used && used <= most, "{used} of {most}");
    for write in writes {
        let made = write.await.expect("no panic");
        made.expect("it goes on without room");
    }
    assert_eq!(memory.used(Share::Trees), 0);
}
