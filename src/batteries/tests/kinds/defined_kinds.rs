//! Kinds that objects of a plane define, by a derivation that only this test has: config maps with
//! the label `defines: VIEW` define `widgets.example.com`, whose kind is named after the view.

use crate::shared::plane::Opening;
use crate::site::{Site, request};
use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_plane::{ByContent, ContentId, Derivation, Key, Overlay, Prefix, Row, Source};
use polyplane_registry::environment::System;
use polyplane_registry::kinds::table::{StorageRow, api_version, next_number};
use polyplane_registry::strategy::{Context, Strategy};
use polyplane_registry::{AnswerBody, Defined, Resource, ResourceRequest, Verb};
use polyplane_storage::{CommitFault, FaultyStore, MemoryOptions, MemoryStore, Rejection};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::timeout;

const GROUP: &str = "example.com";
/// A view that defines a kind with a name which the base serves.
const OVERLAPS: &str = "Overlaps";

/// A function that is called once while a widget is being prepared.
type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct Widgets {
    overlays: ByContent<Overlay>,
    kinds: ByContent<Defined>,
    hook: Hook,
}

/// A strategy that marks the objects it prepares with its view.
struct Marks {
    view: Str,
    hook: Hook,
}

impl std::fmt::Debug for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Marks").field(&self.view).finish()
    }
}

impl Strategy for Marks {
    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        object.set(&["data", "view"], self.view.as_str());
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl Derivation for Widgets {
    fn covers(&self, key: &Key) -> bool {
        key.resource() == "configmaps" && key.group().is_empty()
    }

    fn row(&self, source: &Source<'_>) -> Option<Row> {
        let labels = polyplane_apimachinery::json::parse(source.labels, &Default::default());
        let labels = labels.ok()?.value;
        let view = labels.get("defines")?.as_str()?;
        let id = ContentId::of([view.as_bytes()]);
        let names = match view {
            OVERLAPS => ("apps", "v9", "deployments"),
            _ => (GROUP, "v1", "widgets"),
        };
        Some(Row {
            resource: Prefix::resource(names.0, names.2),
            view: id,
            id,
            content: self.kinds.share(id, || kind(names, view, id, &self.hook)),
        })
    }

    fn overlays(&self) -> &ByContent<Overlay> {
        &self.overlays
    }
}

/// Returns the kind of config maps under another name.
fn kind(
    (group, version, plural): (&str, &str, &str),
    view: &str,
    id: ContentId,
    hook: &Hook,
) -> Defined {
    let base = tenant_kinds();
    let like = base.stored("", "configmaps").expect("it is built in");
    let api_version = api_version(group, version);
    let name = format!("Widget{view}");
    let prefix = format!("{{\"kind\":\"{name}\",\"apiVersion\":\"{api_version}\",");
    let row = Resource {
        number: next_number(),
        view: Some(id),
        group: group.into(),
        version: version.into(),
        name: plural.into(),
        singular: "widget".into(),
        list_kind: format!("{name}List").into(),
        kind: name.into(),
        storage: StorageRow {
            group: group.into(),
            resource: plural.into(),
            version: version.into(),
            upstream_prefix: plural.into(),
        },
        prefix: prefix.into(),
        api_version,
        qualified: format!("{plural}.{group}").into(),
        key_prefix: format!("{group}/{plural}/").into(),
        strategy: Arc::new(Marks {
            view: view.into(),
            hook: Arc::clone(hook),
        }),
        ..Resource::clone(like)
    };
    Defined {
        versions: vec![Arc::new(row)],
        unserved: None,
    }
}

/// A site whose plane has the derivation.
struct Shop {
    site: Site,
    store: Arc<FaultyStore>,
    hook: Hook,
}

impl std::ops::Deref for Shop {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Shop {
    async fn open() -> Self {
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let store = Arc::new(FaultyStore::new(store));
        let hook = Hook::default();
        let opening = Opening {
            store: store.clone(),
            derivation: Some(Arc::new(Widgets {
                overlays: ByContent::default(),
                kinds: ByContent::default(),
                hook: Arc::clone(&hook),
            })),
            ..Opening::default()
        };
        let site = Site::with(Arc::new(System), opening).await;
        let site = Self { site, store, hook };
        let namespace = json!({"metadata": {"name": "default"}});
        let done = site.ask(Verb::Create, ("", "namespaces", None), &[], &namespace);
        done.await.expect("a namespace");
        site
    }

    fn request(
        verb: Verb,
        (group, resource, name): (&str, &str, Option<&str>),
        query: &[(&str, &str)],
        body: &Value,
    ) -> ResourceRequest {
        let query = query
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()));
        let placed = resource != "namespaces";
        ResourceRequest {
            group: group.into(),
            namespace: placed.then(|| "default".into()),
            name: name.map(Str::from),
            query: query.collect(),
            content_type: Some("application/json".into()),
            body: match body {
                Value::Null => Bytes::new(),
                body => polyplane_apimachinery::json::to_string(body).into(),
            },
            ..request(verb, resource)
        }
    }

    async fn ask(
        &self,
        verb: Verb,
        what: (&str, &str, Option<&str>),
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, ApiError> {
        let request = Self::request(verb, what, query, body);
        let answer = self.registry.handle(&self.tenant, &request).await?;
        let AnswerBody::Slices(slices) = answer.body else {
            panic!("not a watch");
        };
        let bytes = slices.concat();
        let parsed = polyplane_apimachinery::json::parse(&bytes, &Default::default());
        Ok(parsed.expect("answers are JSON").value)
    }

    /// Creates or replaces the definition.
    async fn define(&self, view: &str, other: &str) -> Result<Value, ApiError> {
        let labels = json!({"defines": view, "other": other});
        let map = json!({"metadata": {"name": "definition", "labels": labels}});
        let name = Some("definition");
        match self
            .ask(Verb::Create, ("", "configmaps", None), &[], &map)
            .await
        {
            Err(error) if error.reason == Reason::AlreadyExists => {
                self.ask(Verb::Update, ("", "configmaps", name), &[], &map)
                    .await
            }
            done => done,
        }
    }

    async fn create(&self, name: &str, view: &str) -> Result<Value, ApiError> {
        let widget = json!({
            "kind": (format!("Widget{view}")),
            "apiVersion": "example.com/v1",
            "metadata": {"name": name}
        });
        self.ask(Verb::Create, (GROUP, "widgets", None), &[], &widget)
            .await
    }

    async fn list(&self, query: &[(&str, &str)]) -> Result<Value, ApiError> {
        self.ask(Verb::List, (GROUP, "widgets", None), query, &Value::Null)
            .await
    }

    async fn watch(&self, version: &str) -> Result<Frames, ApiError> {
        let query = [("resourceVersion", version)];
        let request = Self::request(Verb::Watch, (GROUP, "widgets", None), &query, &Value::Null);
        let answer = self.registry.handle(&self.tenant, &request).await?;
        match answer.body {
            AnswerBody::Watch(stream) => Ok(stream),
            AnswerBody::Slices(_) | AnswerBody::Stream(_) | AnswerBody::Connect(_) => {
                panic!("a watch")
            }
        }
    }
}

type Frames = polyplane_registry::WatchStream;

/// Returns the next frame; nothing at the end of the watch.
async fn next(frames: &mut Frames) -> Option<String> {
    let frame = timeout(Duration::from_secs(10), frames.next()).await;
    let frame = frame.expect("something comes")?;
    let frame = frame.expect("nothing moves").bytes.to_vec();
    Some(String::from_utf8(frame).expect("text"))
}

fn version(object: &Value) -> String {
    object.str_at(&["metadata", "resourceVersion"]).to_owned()
}

#[tokio::test]
async fn a_kind_is_served_once_its_definition_is_durable() {
    let site = Shop::open().await;
    let unknown = site.list(&[]).await.expect_err("nobody has defined it");
    assert_eq!(unknown.code, 404);
    assert!(
        site.tenant
            .kinds()
            .resolve(GROUP, "v1", "widgets")
            .is_none()
    );

    // The store refuses this definition: requests in the meantime are answered once that is known.
    let full = CommitFault::Reject(Rejection::TooLarge("by plan".into()));
    site.store.plan().next_commit(full);
    let (refused, unknown) = tokio::join!(site.define("A", "1"), site.create("w", "A"));
    refused.expect_err("the store takes nothing");
    assert_eq!(unknown.expect_err("there is no such kind").code, 404);
    let none = site
        .tenant
        .plane
        .snapshot()
        .count(&Prefix::resource(GROUP, "widgets"));
    assert_eq!(none, 0);

    // The store applies this definition: requests in the meantime are served.
    let (defined, widget) = tokio::join!(site.define("A", "1"), site.create("w", "A"));
    defined.expect("the store takes it");
    let widget = widget.expect("the kind is there");
    assert_eq!(widget["kind"].as_str(), Some("WidgetA"));
    assert_eq!(widget.str_at(&["data", "view"]), "A");
    let kinds = site.tenant.kinds();
    assert!(kinds.has_group(GROUP) && kinds.stored(GROUP, "widgets").is_some());
    assert_eq!(
        kinds.resources().filter(|row| row.group == GROUP).count(),
        1
    );
    let ids = |kinds: &polyplane_registry::Kinds| {
        (
            kinds.version_id(GROUP, "v1"),
            kinds.version_id("apps", "v1"),
            kinds.content_id(),
        )
    };
    let before = ids(&kinds);
    site.define("B", "1").await.expect("fine");
    let after = ids(&site.tenant.kinds());
    assert_ne!(before.0, after.0);
    assert_eq!(before.1, after.1, "other groups stay what they are");
    assert_ne!(before.2, after.2);
    let gone = site.ask(
        Verb::Delete,
        ("", "configmaps", Some("definition")),
        &[],
        &Value::Null,
    );
    gone.await.expect("it is there");
    assert_eq!(site.list(&[]).await.expect_err("gone").code, 404);
}

/// The definition is replaced between the preparation of a write and its place in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_prepared_under_a_replaced_definition_is_prepared_again() {
    let site = Arc::new(Shop::open().await);
    site.define("A", "1").await.expect("fine");
    let other = Arc::clone(&site);
    *site.hook.lock() = Some(Box::new(move || {
        let define = async { other.define("B", "1").await.expect("fine") };
        #[expect(clippy::disallowed_methods, reason = "the hook is no future")]
        drop(block_in_place(|| Handle::current().block_on(define)));
    }));
    let widget = json!({"metadata": {"name": "w"}});
    let created = site.ask(Verb::Create, (GROUP, "widgets", None), &[], &widget);
    let created = created.await.expect("the new kind takes it");
    assert_eq!(created.str_at(&["data", "view"]), "B");
    assert_eq!(created["kind"].as_str(), Some("WidgetB"));
    assert!(site.hook.lock().is_none(), "the hook ran");
}

#[tokio::test]
async fn watches_end_with_the_view_and_resume_above_it() {
    let site = Shop::open().await;
    site.define("A", "1").await.expect("fine");
    let first = version(&site.create("one", "A").await.expect("fine"));
    let mut open = site.watch(&first).await.expect("inside the log");
    site.define("A", "2").await.expect("fine");
    site.create("two", "A").await.expect("fine");
    let frame = next(&mut open).await.expect("another label ends nothing");
    assert!(
        frame.contains("WidgetA") && frame.contains("\"two\""),
        "{frame}"
    );

    let changed = version(&site.define("B", "2").await.expect("fine"));
    assert_eq!(next(&mut open).await, None, "it ends cleanly");
    let mut old = site.watch(&first).await.expect("the stream tells it");
    let frame = next(&mut old).await.expect("an error");
    assert!(frame.contains("\"code\":410"), "{frame}");
    // As upstream, the refusal names the oldest version from which a watch may resume.
    let (_, named) = frame
        .split_once(&format!("too old resource version: {first} ("))
        .expect("upstream's words");
    let (oldest, _) = named.split_once(')').expect("a version");
    assert_eq!(next(&mut old).await, None);
    let mut new = site.watch(&changed).await.expect("above the change");
    let mut oldest = site.watch(oldest).await.expect("above the change");
    site.create("three", "B").await.expect("fine");
    for watch in [&mut new, &mut oldest] {
        let frame = next(watch).await.expect("nothing is lost");
        assert!(
            frame.contains("WidgetB") && frame.contains("\"three\""),
            "{frame}"
        );
    }
}

#[tokio::test]
async fn pages_go_on_with_old_entries_and_kinds_of_now() {
    let site = Shop::open().await;
    site.define("A", "1").await.expect("fine");
    for name in ["a", "b"] {
        site.create(name, "A").await.expect("fine");
    }
    let page = site.list(&[("limit", "1")]).await.expect("fine");
    assert_eq!(page["kind"].as_str(), Some("WidgetAList"));
    let token = page.str_at(&["metadata", "continue"]).to_owned();
    assert!(!token.is_empty());
    site.define("B", "1").await.expect("fine");
    site.create("c", "B").await.expect("fine");
    let page = site.list(&[("limit", "5"), ("continue", &token)]).await;
    let page = page.expect("pages go on");
    assert_eq!(page["kind"].as_str(), Some("WidgetBList"));
    let names = page.items_at(&["items"]).iter();
    let names: Vec<&str> = names
        .map(|item| item.str_at(&["metadata", "name"]))
        .collect();
    assert_eq!(names, ["b"], "what came later is not in the cut");
}

#[tokio::test]
async fn the_base_wins() {
    let site = Shop::open().await;
    let count = |site: &Shop| site.tenant.kinds().resources().count();
    let built_in = count(&site);
    // The definition names a group and plural of the base, in a version that the base does not
    // have.
    site.define(OVERLAPS, "1").await.expect("it is stored");
    let kinds = site.tenant.kinds();
    assert!(site.tenant.plane.overlay().is_some(), "it has a row");
    assert!(kinds.resolve("apps", "v1", "deployments").is_some());
    assert!(kinds.resolve("apps", "v9", "deployments").is_none());
    assert_eq!(count(&site), built_in);
    let stored = kinds.stored("apps", "deployments").expect("of the base");
    assert_eq!(stored.view, None);
}
