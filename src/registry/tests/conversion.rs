//! A kind with two versions: the field `data` of v1 is called `stringData` in v2. An object can be
//! read in any version, whichever it is stored in.

use super::*;
use crate::kinds::conversion::{Converter, PreparedIn};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use polyplane_auth::Verdict;

/// Converts a widget from one version to the other.
fn turned(mut widget: Value, from: &str, to: &str) -> Value {
    let member = |version: &str| {
        if version == "v1" {
            "data"
        } else {
            "stringData"
        }
    };
    if let Some(values) = widget.remove(&[member(from)]) {
        widget.set(&[member(to)], values);
    }
    widget
}

/// Widgets that are converted without calls, like built-in kinds.
#[derive(Debug)]
struct Pure {
    storage: &'static str,
}

impl Strategy for Pure {
    fn to_stored(&self, served: &str, object: Value) -> Value {
        turned(object, served, self.storage)
    }

    fn to_served(&self, served: &str, object: Value) -> Value {
        turned(object, self.storage, served)
    }
}

/// The time that a reply takes.
const ANSWER: Duration = Duration::from_secs(1);

/// A remote converter that fails on request.
#[derive(Debug, Default)]
struct Far {
    /// The number of objects in each call.
    batches: Mutex<Vec<usize>>,
    broken: Mutex<bool>,
}

impl Far {
    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.batches.lock())
    }
}

impl Converter for Far {
    fn convert<'a>(
        &'a self,
        objects: Vec<Value>,
        from: &'a str,
        to: &'a str,
    ) -> Verdict<'a, Result<Vec<Value>, ApiError>> {
        Verdict::later(async move {
            self.batches.lock().push(objects.len());
            sleep(ANSWER).await;
            if *self.broken.lock() {
                return Err(ApiError::service_unavailable("nobody is there"));
            }
            let turned = objects.into_iter().map(|object| turned(object, from, to));
            Ok(turned.collect())
        })
    }
}

/// Widgets that are converted by calls, like custom kinds.
#[derive(Debug)]
struct Custom(Arc<Far>);

impl Strategy for Custom {
    fn prepared_in(&self) -> PreparedIn {
        PreparedIn::Request
    }

    fn converter(&self) -> Option<Arc<dyn Converter>> {
        Some(Arc::clone(&self.0) as _)
    }
}

/// Returns kinds with widgets that have this behaviour and are stored in this version.
fn with_widgets(storage: &str, widget: Arc<dyn Strategy>) -> Arc<KindTable> {
    let strategy = move |_: &str, _: &str, resource: &str| {
        Some(match resource {
            "widgets" => Arc::clone(&widget),
            _ => Arc::new(Plain) as Arc<dyn Strategy>,
        })
    };
    let member = if storage == "v1" {
        "data"
    } else {
        "stringData"
    };
    let widgets = include_str!("widgets.json")
        .replace("STORAGE", storage)
        .replace("SELECTABLE", &format!("{member}.k"));
    let rows: [&[u8]; 2] = [include_bytes!("rows.json"), widgets.as_bytes()];
    let features = Arc::clone(&FEATURES);
    let table = KindTable::build(&rows, Arc::clone(&SCHEMAS), features, &strategy, 1);
    Arc::new(table.expect("the rows are sound"))
}

impl Site {
    async fn of_widgets(storage: &str, widget: Arc<dyn Strategy>) -> Self {
        let site = Self::open(Vec::new()).await;
        site.storing(storage, widget)
    }

    /// Returns the same plane, which stores widgets in another version from now on.
    fn storing(&self, storage: &str, widget: Arc<dyn Strategy>) -> Self {
        let mut site = self.clone();
        site.tenant.base = with_widgets(storage, widget);
        site
    }

    fn widget(&self, name: &str) -> ObjectRef {
        let key = Key::new("test.dev", "widgets", Some("ns"), name);
        let stored = self.tenant.plane.snapshot().get(&key);
        stored.expect("it is stored")
    }
}

fn pure(storage: &'static str) -> Arc<dyn Strategy> {
    Arc::new(Pure { storage })
}

fn ask(verb: Verb, version: &'static str, name: Option<&str>) -> Ask {
    let mut ask = Ask::new(verb, "widgets", name);
    ask.group = "test.dev";
    ask.version = version;
    ask
}

fn create(version: &'static str, name: &str) -> Ask {
    let member = if version == "v1" {
        "data"
    } else {
        "stringData"
    };
    let mut ask = ask(Verb::Create, version, None);
    ask.body = format!(r#"{{"metadata":{{"name":"{name}"}},"{member}":{{"k":"{name}"}}}}"#);
    ask
}

fn patch(version: &'static str, name: &str, body: &str) -> Ask {
    let mut ask = ask(Verb::Patch, version, Some(name));
    ask.content_type = Some("application/merge-patch+json");
    ask.body = body.to_owned();
    ask
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_stored_in_another_version_is_read_right() {
    let before = Site::of_widgets("v1", pure("v1")).await;
    before.send(create("v1", "a")).await.expect("it is new");
    assert_eq!(before.widget("a").storage_version(), "v1");
    let site = before.storing("v2", pure("v2"));
    for (version, member) in [("v1", "data"), ("v2", "stringData")] {
        let get = site.send(ask(Verb::Get, version, Some("a"))).await;
        let get = get.expect("it is there");
        assert_eq!(get.str_at(&[member, "k"]), "a", "{version}: {get:?}");
        let list = site.send(ask(Verb::List, version, None)).await;
        let list = list.expect("it is there");
        assert_eq!(list.items_at(&["items"])[0].str_at(&[member, "k"]), "a");
        let mut selected = ask(Verb::List, version, None);
        let selector = ("fieldSelector".to_owned(), "stringData.k=a".to_owned());
        selected.query.push(selector);
        let list = site.send(selected).await.expect("it is selected");
        assert_eq!(list.items_at(&["items"]).len(), 1, "{version}");
    }
    let changed = patch("v2", "a", r#"{"stringData":{"more":"1"}}"#);
    let changed = site.send(changed).await.expect("it is there");
    assert_eq!(changed.str_at(&["stringData", "k"]), "a");
    assert_eq!(site.widget("a").storage_version(), "v2");
}

#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_stores_a_stale_object_anew_once() {
    let before = Site::of_widgets("v1", pure("v1")).await;
    let made = before.send(create("v1", "a")).await.expect("it is new");
    let unchanged = before.send(patch("v1", "a", "{}")).await;
    assert_eq!(unchanged.expect("it is there"), made);
    let site = before.storing("v2", pure("v2"));
    let dry = site.send(patch("v1", "a", "{}").dry()).await;
    dry.expect("it is there");
    assert_eq!(site.widget("a").storage_version(), "v1");
    let anew = site.send(patch("v1", "a", "{}")).await;
    let anew = anew.expect("it is there");
    let version = ["metadata", "resourceVersion"];
    assert_ne!(anew.str_at(&version), made.str_at(&version));
    assert_eq!(anew["data"], made["data"]);
    assert_eq!(site.widget("a").storage_version(), "v2");
    let again = site.send(patch("v1", "a", "{}")).await;
    assert_eq!(again.expect("it is there"), anew);
}

#[tokio::test(start_paused = true)]
async fn watches_show_stale_objects_in_their_version_the_deleted_too() {
    let before = Site::of_widgets("v1", pure("v1")).await;
    before.send(create("v1", "a")).await.expect("it is new");
    let site = before.storing("v2", pure("v2"));
    let watch = ask(Verb::Watch, "v2", None).request();
    let answer = site.registry.handle(&site.tenant, &watch).await;
    let AnswerBody::Watch(mut frames) = answer.expect("it begins").body else {
        panic!("a watch is a stream");
    };
    let delete = ask(Verb::Delete, "v2", Some("a"));
    let deleted = site.send(delete).await.expect("it is there");
    assert_eq!(deleted.str_at(&["stringData", "k"]), "a");
    for kind in ["ADDED", "DELETED"] {
        let frame = frames.next().await.expect("it goes on").expect("a frame");
        let frame = tree(std::str::from_utf8(&frame.bytes).expect("JSON"));
        assert_eq!(frame.str_at(&["type"]), kind);
        assert_eq!(frame.str_at(&["object", "stringData", "k"]), "a");
        if kind == "DELETED" {
            let version = ["metadata", "resourceVersion"];
            assert_eq!(frame["object"].str_at(&version), deleted.str_at(&version));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversion_may_take_its_time_and_is_asked_for_in_batches() {
    let far = Arc::<Far>::default();
    let site = Site::of_widgets("v2", Arc::new(Custom(Arc::clone(&far)))).await;
    for name in ["a", "b", "c"] {
        let made = site.send(create("v1", name)).await.expect("it is new");
        assert_eq!(made.str_at(&["data", "k"]), name);
        assert_eq!(site.widget(name).storage_version(), "v2");
        // One call to store the object, and one to show it.
        assert_eq!(far.take(), [1, 1]);
    }
    let get = site.send(ask(Verb::Get, "v2", Some("a"))).await;
    assert_eq!(get.expect("it is there").str_at(&["stringData", "k"]), "a");
    assert_eq!(far.take(), [0usize; 0]);
    let get = site.send(ask(Verb::Get, "v1", Some("a"))).await;
    assert_eq!(get.expect("it is there").str_at(&["data", "k"]), "a");
    assert_eq!(far.take(), [1]);
    let list = site.send(ask(Verb::List, "v1", None)).await;
    let list = list.expect("they are there");
    let shown: Vec<_> = list.items_at(&["items"]).iter().collect();
    assert!(
        shown
            .iter()
            .all(|item| !item.str_at(&["data", "k"]).is_empty())
    );
    assert_eq!((shown.len(), far.take()), (3, vec![3]));
    let changed = patch("v1", "a", r#"{"data":{"more":"1"}}"#);
    let changed = site.send(changed).await.expect("it is there");
    assert_eq!(changed.str_at(&["data", "k"]), "a");
    assert_eq!(changed.str_at(&["data", "more"]), "1");
    // One call each to patch, to store and to show the object. It is prepared several times, but
    // each call is made once.
    assert_eq!(far.take(), [1, 1, 1]);
    let deleted = site.send(ask(Verb::Delete, "v1", Some("a"))).await;
    assert_eq!(deleted.expect("it is there").str_at(&["data", "k"]), "a");
}

#[tokio::test(start_paused = true)]
async fn a_conversion_holds_up_no_other_writer() {
    let far = Arc::<Far>::default();
    let site = Site::of_widgets("v2", Arc::new(Custom(Arc::clone(&far)))).await;
    site.send(create("v2", "a")).await.expect("it is new");
    let slow = site.spawn(patch("v1", "a", r#"{"data":{"slow":"1"}}"#));
    settle_down().await;
    let begin = Instant::now();
    let fast = patch("v2", "a", r#"{"stringData":{"fast":"1"}}"#);
    site.send(fast).await.expect("nobody is in its way");
    assert!(begin.elapsed() < ANSWER / 10);
    let slow = slow.await.expect("no panic").expect("it is there");
    for member in ["k", "slow", "fast"] {
        assert!(slow["data"].get(member).is_some(), "{member} is lost");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversion_that_fails_fails_the_request_and_stores_nothing() {
    let far = Arc::<Far>::default();
    let site = Site::of_widgets("v2", Arc::new(Custom(Arc::clone(&far)))).await;
    site.send(create("v2", "a")).await.expect("it is new");
    *far.broken.lock() = true;
    for failing in [
        create("v1", "b"),
        patch("v1", "a", r#"{"data":{"k":"2"}}"#),
        ask(Verb::Get, "v1", Some("a")),
        ask(Verb::List, "v1", None),
    ] {
        let verb = failing.verb;
        let failed = site.send(failing).await.expect_err("nobody is there");
        assert_eq!(failed.code, 500, "{verb:?}");
        assert!(
            failed
                .message
                .contains("conversion of widgets.test.dev from"),
            "{verb:?}: {}",
            failed.message
        );
    }
    *far.broken.lock() = false;
    let list = site.send(ask(Verb::List, "v1", None)).await;
    let list = list.expect("somebody is there again");
    let shown = list.items_at(&["items"]);
    assert_eq!((shown.len(), shown[0].str_at(&["data", "k"])), (1, "a"));
}

/// Returns the next frame of a watch, as a tree.
async fn frame(
    frames: &mut (impl futures_util::Stream<Item = Result<crate::WatchChunk, crate::StreamEnd>> + Unpin),
) -> Value {
    let frame = frames.next().await.expect("it goes on").expect("a frame");
    tree(std::str::from_utf8(&frame.bytes).expect("JSON"))
}

#[tokio::test(start_paused = true)]
async fn a_watch_waits_for_conversions_and_ends_before_an_event_that_cannot_be_converted() {
    let far = Arc::<Far>::default();
    let site = Site::of_widgets("v2", Arc::new(Custom(Arc::clone(&far)))).await;
    site.send(create("v2", "a")).await.expect("it is new");
    let seats = asking::Counted::new(1);
    let mut watch = ask(Verb::Watch, "v1", None);
    watch.seats = Some(Arc::clone(&seats) as _);
    let watch = watch.request();
    let answer = site.registry.handle(&site.tenant, &watch).await;
    let AnswerBody::Watch(mut frames) = answer.expect("it begins").body else {
        panic!("a watch is a stream");
    };
    site.send(create("v2", "b")).await.expect("it is new");
    for name in ["a", "b"] {
        let frame = frame(&mut frames).await;
        assert_eq!(frame.str_at(&["type"]), "ADDED");
        assert_eq!(frame.str_at(&["object", "data", "k"]), name);
    }
    // The first event was converted before the stream began. The watch has had no seat since then.
    assert_eq!(*seats.left.lock(), 1);
    *far.broken.lock() = true;
    site.send(create("v2", "c")).await.expect("it is new");
    let last = frame(&mut frames).await;
    assert_eq!(last.str_at(&["type"]), "ERROR");
    assert_eq!(last.int_at(&["object", "code"]), Some(500));
    assert!(frames.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_long_list_and_the_beginning_of_a_watch_are_converted_piece_by_piece() {
    const OBJECTS: usize = 300;
    let far = Arc::<Far>::default();
    let site = Site::of_widgets("v2", Arc::new(Custom(Arc::clone(&far)))).await;
    for at in 0..OBJECTS {
        let mut made = create("v2", &format!("w{at}"));
        let text = "x".repeat(2000);
        made.body = format!(
            r#"{{"metadata":{{"name":"w{at}"}},"stringData":{{"k":"w{at}","long":"{text}"}}}}"#
        );
        site.send(made).await.expect("it is new");
    }
    far.take();
    let list = ask(Verb::List, "v1", None).request();
    let answer = site.registry.handle(&site.tenant, &list).await;
    let AnswerBody::Stream(pieces) = answer.expect("it begins").body else {
        panic!("the list is not long");
    };
    let pieces: Vec<_> = pieces.map(|piece| piece.expect("a piece")).collect().await;
    let list = tree(std::str::from_utf8(&pieces.concat()).expect("JSON"));
    let items = list.items_at(&["items"]);
    assert_eq!(items.len(), OBJECTS);
    assert!(
        items
            .iter()
            .all(|item| !item.str_at(&["data", "k"]).is_empty())
    );
    let batches = far.take();
    assert_eq!(batches.iter().sum::<usize>(), OBJECTS);
    assert!(batches.len() > 5, "{batches:?}");
    let watch = ask(Verb::Watch, "v1", None).request();
    let answer = site.registry.handle(&site.tenant, &watch).await;
    let AnswerBody::Watch(mut frames) = answer.expect("it begins").body else {
        panic!("a watch is a stream");
    };
    let mut shown = 0;
    while shown < OBJECTS {
        let frames = frames.next().await.expect("it goes on").expect("frames");
        let frames = String::from_utf8(frames.bytes.to_vec()).expect("JSON");
        for frame in frames.lines().map(tree) {
            assert_eq!(frame.str_at(&["type"]), "ADDED");
            assert!(!frame.str_at(&["object", "data", "k"]).is_empty());
            shown += 1;
        }
    }
    // A chunk of frames may be full before all objects that were converted for it are in it.
    let converted: usize = far.take().iter().sum();
    assert!(
        (OBJECTS..OBJECTS + OBJECTS / 10).contains(&converted),
        "{converted}"
    );
}
