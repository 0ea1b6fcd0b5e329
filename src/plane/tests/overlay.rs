//! Definitions that follow from objects: each root carries them, equal to those derived again from
//! its objects.

use polyplane_storage::Rejection;

use super::watches::watch_from;
use super::*;
use crate::state::overlay::Derive;

/// A config map labelled `def.RESOURCE.VIEW.REST` defines that view of a resource. REST is in the
/// row and in no view.
#[derive(Default)]
struct ByLabelText {
    overlays: ByContent<Overlay>,
    texts: ByContent<String>,
    /// How many rows were derived.
    derived: AtomicUsize,
}

impl Derivation for ByLabelText {
    fn covers(&self, key: &Key) -> bool {
        key.resource() == "configmaps"
    }

    fn row(&self, source: &Source<'_>) -> Option<Row> {
        self.derived.fetch_add(1, Ordering::Relaxed);
        let labels: serde_json::Value = serde_json::from_slice(source.labels).ok()?;
        let text = labels["l"].as_str()?;
        let mut parts = text.strip_prefix("def.")?.splitn(3, '.');
        let (resource, view) = (parts.next()?, parts.next()?);
        let id = ContentId::of([text.as_bytes()]);
        let text = self.texts.share(id, || text.to_owned());
        Some(Row {
            resource: Prefix::resource("example.com", resource),
            view: ContentId::of([resource.as_bytes(), view.as_bytes()]),
            id,
            content: text,
        })
    }

    fn overlays(&self) -> &ByContent<Overlay> {
        &self.overlays
    }
}

fn derivation() -> Arc<dyn Derivation> {
    Arc::new(ByLabelText::default())
}

fn with(derivation: &Arc<dyn Derivation>) -> Test {
    Test {
        derivation: Some(Arc::clone(derivation)),
        ..Test::default()
    }
}

fn widgets() -> Prefix {
    Prefix::resource("example.com", "widgets")
}

fn widget(name: &str, value: &str) -> Operation {
    Operation::Put {
        key: Key::new("example.com", "widgets", Some("ns"), name),
        object: object(name, "x", value),
    }
}

fn define(view: &str) -> Operation {
    put_labelled("widgets", &format!("def.widgets.{view}"), "1")
}

fn view(plane: &Plane) -> Option<ContentId> {
    plane.overlay()?.row(&widgets()).map(|row| row.view)
}

/// Returns the rows of an overlay as text.
fn rows(overlay: Option<&Arc<Overlay>>) -> Vec<String> {
    let text = |row: &Row| {
        let text = row.content.downcast_ref::<String>().expect("a text");
        format!("{:?} {:?} {text}", row.resource, row.view)
    };
    overlay.map_or(Vec::new(), |overlay| overlay.rows().map(text).collect())
}

/// Returns the overlay that a cut carries, after a check that deriving it again from the objects
/// gives the same.
fn checked(cut: &Snapshot, derivation: &Arc<dyn Derivation>) -> Result<Vec<String>, TestCaseError> {
    let derive = Derive(Some(Arc::clone(derivation)));
    let anew = derive.anew(&cut.root().resources);
    let id = |overlay: Option<&Arc<Overlay>>| overlay.map(|overlay| overlay.id());
    prop_assert_eq!(id(cut.overlay()), id(anew.as_ref()));
    prop_assert_eq!(rows(cut.overlay()), rows(anew.as_ref()));
    check_summary(cut)?;
    Ok(rows(cut.overlay()))
}

async fn hand_over(site: &Site, plane: &Arc<Plane>, test: Test) -> Arc<Plane> {
    let soon = Instant::now() + Duration::from_secs(5);
    let head = plane.pause(soon).await.expect("nothing hangs");
    let bytes = plane.export().await.expect("it is small").bytes;
    plane.end(Ended::Moved);
    let import = Some(Import { head, bytes });
    let test = Test { import, ..test };
    let successor = site.open_with(plane.id(), test).await;
    assert!(successor.imported());
    successor
}

#[derive(Debug, Clone)]
enum Event {
    Put(u8, u8, u8, u8),
    Plain(u8),
    Delete(u8),
    Reopen,
    HandOver,
}

fn events() -> impl Strategy<Value = Vec<(Event, Option<CommitFault>)>> {
    let event = prop_oneof![
        8 => (0..6u8, 0..3u8, 0..2u8, 0..2u8).prop_map(|(n, r, v, x)| Event::Put(n, r, v, x)),
        2 => (0..6u8).prop_map(Event::Plain),
        3 => (0..6u8).prop_map(Event::Delete),
        1 => Just(Event::Reopen),
        1 => Just(Event::HandOver),
    ];
    let fault = prop_oneof![
        4 => fault(),
        1 => Just(Some(CommitFault::Reject(Rejection::TooLarge("by plan".into())))),
    ];
    prop::collection::vec((event, fault), 1..40)
}

fn name_of(key: u8) -> String {
    match key {
        0 => "template-a".to_owned(),
        _ => format!("o-{key}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever faults the store has, and after a load, a replay of an unknown outcome and a
    /// hand-off, the accepted and the published root carry exactly the overlay of their objects.
    #[test]
    fn the_carried_overlay_is_the_one_derived_anew(events in events()) {
        run_paused(async {
            let site = Site::new();
            let derivation = derivation();
            let mut plane = site.open_with("a", with(&derivation)).await;
            for (event, fault) in events {
                let operation = match event {
                    Event::Reopen => {
                        plane = site.open_with("a", with(&derivation)).await;
                        checked(&plane.snapshot(), &derivation)?;
                        continue;
                    }
                    Event::HandOver => {
                        let before = checked(&plane.snapshot(), &derivation)?;
                        plane = hand_over(&site, &plane, with(&derivation)).await;
                        prop_assert_eq!(checked(&plane.snapshot(), &derivation)?, before);
                        continue;
                    }
                    Event::Put(name, resource, view, rest) => {
                        let label = format!("def.r-{resource}.{view}.{rest}");
                        put_labelled(&name_of(name), &label, "1")
                    }
                    Event::Plain(name) => put(&name_of(name), "1"),
                    Event::Delete(name) => delete(&name_of(name)),
                };
                if let Some(fault) = fault {
                    let of_plane = |txn: &polyplane_storage::Txn| {
                        txn.ops.iter().any(|op| op.key().starts_with(b"p/a/"))
                    };
                    site.store.plan().commits_matching(of_plane, fault, 1);
                }
                let done = tokio::spawn({
                    let plane = Arc::clone(&plane);
                    async move { plane.submit(write(vec![operation])).await }
                });
                tokio::task::yield_now().await;
                let accepted = plane.accepted();
                checked(&accepted, &derivation)?;
                let quick = rows(plane.accepted_overlay().as_ref());
                prop_assert_eq!(quick, rows(accepted.overlay()));
                drop(done.await.expect("no panic"));
                checked(&plane.snapshot(), &derivation)?;
                let quick = rows(plane.accepted_overlay().as_ref());
                prop_assert_eq!(quick, rows(plane.overlay().as_ref()));
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_refused_definition_leaves_nothing_behind() {
    let site = Site::new();
    let plane = site.open_with("a", with(&derivation())).await;
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(Duration::from_millis(10)));
    let full = CommitFault::Reject(Rejection::TooLarge("by plan".into()));
    plan.next_commit(full);
    // One widget is in the transaction of the definition, the other behind it: a transaction has
    // each key once. All are queued while the transaction before them is under way.
    let behind = write(vec![define("1.b"), widget("v", "1")]);
    let define = plane.submit(write(vec![define("1.a")]));
    let (before, definition, under, behind) = tokio::join!(
        plane.submit(write(vec![put("before", "1")])),
        define,
        async {
            let accepted = plane.accepted_overlay().expect("it is accepted");
            assert!(plane.overlay().is_none(), "it is not published");
            let view = accepted.row(&widgets()).map(|row| row.view);
            assert!(view.is_some());
            let resource = widgets();
            let claim = Claim::View { resource, view };
            plane.submit(claimed(widget("w", "1"), claim)).await
        },
        plane.submit(behind)
    );
    before.expect("fine");
    assert!(matches!(definition, Err(SubmitError::Refused(_))));
    assert!(matches!(under, Err(SubmitError::Refused(_))));
    assert_eq!(behind.expect_err("withdrawn"), SubmitError::Withdrawn);
    assert!(plane.accepted_overlay().is_none() && plane.overlay().is_none());
    assert_eq!(plane.accepted().count(&widgets()), 0);
}

#[tokio::test]
async fn a_write_under_a_replaced_definition_is_refused_as_a_claim() {
    let site = Site::new();
    let plane = site.open_with("a", with(&derivation())).await;
    plane
        .submit(write(vec![define("1.a")]))
        .await
        .expect("fine");
    let (old, resource) = (view(&plane), widgets());
    assert!(old.is_some());
    let claim = |view| Claim::View {
        resource: resource.clone(),
        view,
    };
    // The accepted definition counts, whether or not it is published.
    let (replaced, under) = tokio::join!(
        plane.submit(write(vec![define("2.a")])),
        plane.submit(claimed(widget("w", "1"), claim(old)))
    );
    replaced.expect("fine");
    let failed = SubmitError::ClaimFailed(Broken::Claim(0));
    assert_eq!(under.expect_err("another view"), failed);
    let again = claimed(widget("w", "1"), claim(view(&plane)));
    plane.submit(again).await.expect("prepared anew");
    let gone = claimed(delete("widgets"), claim(None));
    let failed = SubmitError::ClaimFailed(Broken::Claim(0));
    assert_eq!(plane.submit(gone).await.expect_err("it is there"), failed);
}

/// Returns the versions of: the definition, a widget, a change of no view, another widget.
async fn history(plane: &Arc<Plane>) -> [Version; 4] {
    let mut versions = [Version::ZERO; 4];
    let operations = [
        define("2.a"),
        widget("w", "1"),
        define("2.b"),
        widget("w", "2"),
    ];
    for (version, operation) in versions.iter_mut().zip(operations) {
        let done = plane.submit(write(vec![operation])).await;
        *version = done.expect("fine").version;
    }
    versions
}

/// Checks that a watch of widgets resumes from the definition and not from before it.
async fn goes_on_from(plane: &Arc<Plane>, before: Version, versions: [Version; 4]) {
    let [defined, first, label, second] = versions;
    let scope = || WatchScope::Prefix(widgets());
    let old = plane.watch(scope(), WatchFrom::After(before)).await;
    assert!(
        matches!(
            old,
            Err(WatchError::Expired(
                ExpiredCause::KindChanged | ExpiredCause::HandedOver
            ))
        ),
        "{old:?}"
    );
    let cases = [
        (defined, vec![first, second]),
        (first, vec![second]),
        (label, vec![second]),
    ];
    for (from, wanted) in cases {
        let watcher = plane.watch(scope(), WatchFrom::After(from)).await;
        let mut watcher = watcher.expect("above the change");
        let seen = events_until(&mut watcher, second).await;
        let seen: Vec<Version> = seen.iter().map(|event| event.version()).collect();
        assert_eq!(seen, wanted);
    }
}

#[tokio::test]
async fn a_watch_ends_with_its_view_and_goes_on_only_from_above_the_change() {
    let site = Site::new();
    let derivation = derivation();
    let plane = site.open_with("a", with(&derivation)).await;
    let done = plane.submit(write(vec![define("1.a")])).await;
    let before = done.expect("fine").version;
    let scope = || WatchScope::Prefix(widgets());
    let mut open = plane.watch(scope(), WatchFrom::Now).await.expect("fine");
    let mut maps = watch_from(&plane, WatchFrom::Now).await;
    // The view stays the same, so no watch ends.
    plane
        .submit(write(vec![define("1.b")]))
        .await
        .expect("fine");
    let seen = plane.submit(write(vec![widget("v", "1")])).await;
    let seen = seen.expect("fine").version;
    assert_eq!(events_until(&mut open, seen).await.len(), 1);

    let versions = history(&plane).await;
    let next = open.next().await;
    assert!(matches!(next, Next::Closed(Ended::KindChanged)), "{next:?}");
    let all = events_until(&mut maps, versions[3]).await;
    assert_eq!(all.len(), 3, "other resources go on");
    goes_on_from(&plane, before, versions).await;
    // Lists of the older version are still answered.
    let then = plane.at(seen, &widgets()).await.expect("inside the log");
    assert_eq!(then.count(&widgets()), 1);
    assert_eq!(rows(then.overlay()), rows(plane.overlay().as_ref()));

    // A successor after a crash reads the definition from the history; one after a hand-off gets it
    // in the export.
    let crashed = site.open_with("a", with(&derivation)).await;
    goes_on_from(&crashed, before, versions).await;
    let successor = hand_over(&site, &crashed, with(&derivation)).await;
    goes_on_from(&successor, before, versions).await;
    let fresh = site.open_with("a", with(&derivation)).await;
    let successor = hand_over(&site, &fresh, with(&derivation)).await;
    goes_on_from(&successor, before, versions).await;

    // A resource whose definition was deleted can be defined again by another object.
    let done = successor.submit(write(vec![delete("widgets")])).await;
    let gone = done.expect("fine").version;
    let done = successor.submit(write(vec![define("2.a")])).await;
    let defined = done.expect("fine").version;
    let old = successor.watch(scope(), WatchFrom::After(gone)).await;
    let cause = WatchError::Expired(ExpiredCause::KindChanged);
    assert_eq!(old.expect_err("another one"), cause);
    let new = successor.watch(scope(), WatchFrom::After(defined)).await;
    new.expect("from its definition on");
}

/// A definition may have megabytes, and its row is derived while the plane's other writes wait.
#[tokio::test]
async fn a_write_is_derived_once_when_it_is_accepted_and_once_when_it_is_published() {
    let site = Site::new();
    let shared = Arc::new(ByLabelText::default());
    let derivation: Arc<dyn Derivation> = shared.clone();
    let plane = site.open_with("a", with(&derivation)).await;
    for text in ["1.a", "1.a", "1.b", "2.b"] {
        let before = shared.derived.load(Ordering::Relaxed);
        let done = plane.submit(write(vec![define(text)])).await;
        done.expect("fine");
        let derived = shared.derived.load(Ordering::Relaxed) - before;
        assert!(derived <= 2, "{text}: {derived}");
    }
}

/// Each overlay that planes may share is hashed as a whole, and known by then. So the known ones count that.
#[tokio::test]
async fn many_definitions_are_hashed_once_and_not_one_by_one() {
    const COUNT: usize = 50;
    let site = Site::new();
    let shared = Arc::new(ByLabelText::default());
    let derivation: Arc<dyn Derivation> = shared.clone();
    let plane = site.open_with("a", with(&derivation)).await;
    let defined =
        (0..COUNT).map(|n| put_labelled(&format!("o-{n}"), &format!("def.r-{n}.1.a"), "1"));
    let done = plane.submit(write(defined.collect())).await;
    done.expect("fine");
    assert_eq!(plane.overlay().expect("defined").rows().count(), COUNT);
    assert_eq!(shared.overlays.len(), 1, "the published one");

    let last = COUNT - 1;
    let deleted = (0..last).map(|n| delete(&format!("o-{n}")));
    let done = plane.submit(write(deleted.collect())).await;
    done.expect("fine");
    let left = plane.overlay().expect("one is left");
    assert_eq!(left.rows().count(), 1);
    let resource = Prefix::resource("example.com", &format!("r-{last}"));
    assert!(left.row(&resource).is_some());
    assert_eq!(
        shared.overlays.len(),
        2,
        "and the one before, which may be dead"
    );
}

#[tokio::test]
async fn planes_that_define_the_same_share_it_and_it_dies_with_them() {
    let site = Site::new();
    let shared = Arc::new(ByLabelText::default());
    let derivation: Arc<dyn Derivation> = shared.clone();
    let one = site.open_with("a", with(&derivation)).await;
    let two = site.open_with("b", with(&derivation)).await;
    assert!(one.overlay().is_none(), "nothing is defined by the layer");
    for plane in [&one, &two] {
        let both = [define("1.a"), put_labelled("other", "def.gadgets.1.a", "1")];
        for operation in both {
            plane.submit(write(vec![operation])).await.expect("fine");
        }
    }
    let overlay = one.overlay().expect("defined");
    assert!(Arc::ptr_eq(&overlay, &two.overlay().expect("defined")));
    let loaded = site.open_with("a", with(&derivation)).await;
    assert!(Arc::ptr_eq(&overlay, &loaded.overlay().expect("defined")));
    let weak = Arc::downgrade(&overlay);
    drop(overlay);
    for plane in [one, two, loaded] {
        let all = vec![delete("widgets"), delete("other")];
        drop(plane.submit(write(all)).await);
        plane.end(Ended::Closed);
    }
    assert!(weak.upgrade().is_none(), "nobody holds it");
    for n in 0..1000u32 {
        let id = ContentId::of([&n.to_be_bytes()[..]]);
        drop(shared.texts.share(id, || n.to_string()));
    }
    assert!(shared.texts.len() <= 128, "the dead go");
}
