//! Layer steps: the plane in memory, after a crash and after a hand-off is the same, and watchers
//! get each change once.

mod folded;
mod racing;

use super::*;
use crate::testing::object_of;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn secret(name: &str) -> Key {
    Key::new("", "secrets", Some("ns"), name)
}

/// Returns the key of one of the objects that layers have in these tests. There are two resources,
/// so that a plane has several logs.
fn key_of(at: usize) -> Key {
    let name = format!("t-{at:04}");
    if at.is_multiple_of(3) {
        secret(&name)
    } else {
        configmap(&name)
    }
}

/// Returns a template with every kind of placeholder.
fn template(at: usize, value: &str) -> LayerObject {
    let key = key_of(at);
    let name = key.name();
    let identity = format!(r#""name":"{name}","uid":"${{UID}}""#);
    let object = object_of(&identity, "${BIRTH_TIME}", "layer", value);
    LayerObject { key, object }
}

/// Returns a layer with these values. A value of 9 names the uid of the first object.
fn layer_of(values: &[Option<u8>]) -> Arc<Layer> {
    let objects = values.iter().enumerate().filter_map(|(at, value)| {
        let text = match value.as_ref()? {
            9 if values[0].is_some() => format!("${{UID:{}}}", key_of(0)),
            value => value.to_string(),
        };
        Some(template(at, &text))
    });
    Layer::build(objects.collect()).expect("a fine layer")
}

/// Returns whether the step recreates the object: so it is for odd values.
fn recreates(old: &ObjectRef, new: &ObjectRef) -> bool {
    let odd = |object: &ObjectRef| {
        value(object)
            .parse::<u8>()
            .is_ok_and(|value| value % 2 == 1)
    };
    value(old) != value(new) && odd(old) && odd(new)
}

/// The treatment of the earlier steps when a new step begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Stays,
    Folds,
}

impl Before {
    fn of(self, ahead: Ahead) -> Ahead {
        match self {
            Self::Stays => ahead,
            Self::Folds => ahead.folding(),
        }
    }
}

/// Does at most `commits` commits on the way to a layer. Returns whether the plane has reached it.
async fn steps(plane: &Arc<Plane>, to: &Arc<Layer>, commits: usize, changes_max: usize) -> bool {
    steps_after(Before::Stays, plane, to, commits, changes_max).await
}

async fn steps_after(
    before: Before,
    plane: &Arc<Plane>,
    to: &Arc<Layer>,
    commits: usize,
    changes_max: usize,
) -> bool {
    for _ in 0..commits {
        let ahead = plane.ahead(to, "2027-07-07T00:00:00Z", &recreates);
        let Some(ahead) = ahead.expect("nothing to fill") else {
            return true;
        };
        let ahead = before.of(ahead);
        let stepped = plane.step_by(&ahead, changes_max, soon()).await;
        assert_eq!(stepped, Ok(Stepped::Done), "nobody else is there");
    }
    let ahead = plane.ahead(to, "2027-07-07T00:00:00Z", &recreates);
    ahead.expect("nothing to fill").is_none()
}

fn resources() -> [Prefix; 2] {
    [configmaps(), Prefix::resource("", "secrets")]
}

/// Returns the events that watchers of both resources get after a version, in the order of the
/// versions.
async fn events_after(plane: &Arc<Plane>, from: Version) -> Option<Vec<Arc<Event>>> {
    let head = plane.snapshot().version();
    let mut all = Vec::new();
    for resource in resources() {
        let scope = WatchScope::Prefix(resource);
        let mut watcher = plane.watch(scope, WatchFrom::After(from)).await.ok()?;
        all.extend(events_until(&mut watcher, head).await);
    }
    all.sort_by_key(|event| event.version());
    Some(all)
}

/// Returns the first event in which two histories differ.
fn first_difference(
    a: &[Arc<Event>],
    b: &[Arc<Event>],
) -> Option<(Option<String>, Option<String>)> {
    let text = |events: &[Arc<Event>], at: usize| events.get(at).map(|event| tell(event));
    let sides = (0..a.len().max(b.len())).map(|at| (text(a, at), text(b, at)));
    sides.into_iter().find(|(a, b)| a != b)
}

fn body(object: &ObjectRef) -> String {
    String::from_utf8(object.body().to_vec()).expect("bodies are text")
}

type State = BTreeMap<Key, (String, Option<Version>)>;

fn state(cut: &Snapshot) -> State {
    let objects = cut.resources().flat_map(|prefix| {
        let objects = cut.range(prefix, Start::First);
        objects.collect::<Vec<_>>()
    });
    let of = |object: ObjectRef| (object.key().clone(), (body(&object), object.version()));
    objects.map(of).collect()
}

/// Returns the state of a watcher that knew `state` and then gets these events.
fn follow(mut state: State, events: &[Arc<Event>]) -> Result<State, TestCaseError> {
    let mut last = Version::ZERO;
    for event in events {
        prop_assert!(event.version() > last, "versions rise");
        last = event.version();
        let known = state.get(event.key()).map(|(body, _)| body.clone());
        let previous = event.previous().map(body);
        prop_assert_eq!(&known, &previous, "what was before {}", tell(event));
        match event.current() {
            Some(object) => {
                prop_assert_eq!(object.version(), Some(event.version()));
                let now = (body(object), object.version());
                state.insert(event.key().clone(), now);
            }
            None => drop(state.remove(event.key())),
        }
    }
    Ok(state)
}

/// Hands a plane over to a replica that knows no layer yet.
async fn hand_over(site: &Site, plane: &Arc<Plane>, birth: &Arc<Layer>) -> (Site, Arc<Plane>) {
    let head = plane.pause(soon()).await.expect("nothing hangs");
    let bytes = plane.export().await.expect("it is small").bytes;
    plane.end(Ended::Moved);
    let next = Site::over(Arc::clone(&site.inner));
    let test = Test {
        layer: Arc::clone(birth),
        import: Some(Import { head, bytes }),
        ..Test::default()
    };
    let successor = next.open_with("a", test).await;
    assert!(successor.imported());
    (next, successor)
}

/// Opens a crashed plane as the next process does.
async fn reopen(site: &Site, birth: &Arc<Layer>) -> (Site, Arc<Plane>) {
    let next = Site::over(Arc::clone(&site.inner));
    let test = Test {
        layer: Arc::clone(birth),
        ..Test::default()
    };
    let plane = next.open_with("a", test).await;
    (next, plane)
}

#[derive(Debug, Clone)]
enum Act {
    Put(usize, u8),
    Delete(usize),
    Step { commits: usize, changes_max: usize },
    Crash,
    HandOver,
}

const KEYS: usize = 10;

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..KEYS, 0..5u8).prop_map(|(key, value)| Act::Put(key, value)),
        3 => (0..KEYS).prop_map(Act::Delete),
        4 => (1..4usize, 1..5usize).prop_map(|(commits, changes_max)| Act::Step { commits, changes_max }),
        1 => Just(Act::Crash),
        1 => Just(Act::HandOver),
    ];
    prop::collection::vec(act, 1..40)
}

fn layers() -> impl Strategy<Value = Vec<Vec<Option<u8>>>> {
    let value = prop_oneof![1 => Just(None), 4 => (0..4u8).prop_map(Some), 1 => Just(Some(9))];
    let layer = prop::collection::vec(value, KEYS);
    prop::collection::vec(layer, 4)
}

async fn act(plane: &Arc<Plane>, act: &Act) {
    let operation = match act {
        Act::Put(key, value) => Operation::Put {
            key: key_of(*key),
            object: object(key_of(*key).name(), "own", &value.to_string()),
        },
        Act::Delete(key) if plane.snapshot().get(&key_of(*key)).is_some() => {
            Operation::Delete { key: key_of(*key) }
        }
        Act::Delete(_) | Act::Step { .. } | Act::Crash | Act::HandOver => return,
    };
    plane.submit(write(vec![operation])).await.expect("fine");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Through steps of any size, own writes, crashes and hand-offs: the events that watchers get
    /// lead from each state to the next, every opening of the plane finds the same objects with the
    /// same versions, and the whole history can be read again.
    #[test]
    fn a_stepped_plane_is_the_same_to_everybody(layers in layers(), acts in acts()) {
        run(async {
            let layers: Vec<_> = layers.iter().map(|values| layer_of(values)).collect();
            let birth = &layers[0];
            let mut site = Site::new();
            let test = Test { layer: Arc::clone(birth), ..Test::default() };
            let mut plane = site.open_with("a", test).await;
            let born = plane.snapshot();
            let mut kept = vec![(born.version(), dump(&born))];
            let mut target = 1;
            for one in &acts {
                let before = (dump(&plane.snapshot()), plane.snapshot().version());
                match one {
                    Act::Step { commits, changes_max } if target < layers.len() => {
                        let there = steps(&plane, &layers[target], *commits, *changes_max).await;
                        target += usize::from(there);
                    }
                    Act::Step { .. } => {}
                    Act::Crash => (site, plane) = reopen(&site, birth).await,
                    Act::HandOver => (site, plane) = hand_over(&site, &plane, birth).await,
                    own => act(&plane, own).await,
                }
                let cut = plane.snapshot();
                if matches!(one, Act::Crash | Act::HandOver) {
                    prop_assert_eq!(dump(&cut), before.0);
                    prop_assert!(cut.version() >= before.1);
                    prop_assert_eq!(cut.version(), plane.seen());
                }
                kept.push((cut.version(), dump(&cut)));
            }
            let last = plane.snapshot();
            let label = |plane: &Plane| plane.snapshot().index_amount(LABELS, b"layer");
            let events = events_after(&plane, born.version()).await.expect("nothing is forgotten");
            prop_assert_eq!(follow(state(&born), &events)?, state(&last));

            let (site, loaded) = reopen(&site, birth).await;
            let mut others = vec![loaded];
            for round in 0..2 {
                let other = Arc::clone(&others[round]);
                prop_assert_eq!(dump(&other.snapshot()), dump(&last));
                prop_assert!(other.snapshot().version() >= last.version());
                prop_assert_eq!(other.snapshot().version(), other.seen());
                prop_assert_eq!(label(&other), label(&plane));
                let again = events_after(&other, born.version()).await.expect("from the store");
                prop_assert_eq!(first_difference(&again, &events), None);
                for (version, wanted) in &kept {
                    let mut was = Vec::new();
                    for resource in resources() {
                        let cut = other.at(*version, &resource).await.expect("inside");
                        let of = cut.range(&resource, Start::First);
                        was.extend(of.map(|object| {
                            format!("{} {:?} {}", object.key(), object.created(), body(&object))
                        }));
                    }
                    prop_assert_eq!(&was, wanted);
                }
                others.push(hand_over(&site, &other, birth).await.1);
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn what_is_unshadowed_follows_and_what_is_the_planes_own_stays() {
    let site = Site::new();
    let old = layer_of(&[Some(0), Some(0), Some(0), Some(0), Some(1), None, None]);
    let new = layer_of(&[Some(2), Some(2), None, None, Some(3), Some(4), Some(4)]);
    let test = Test {
        layer: Arc::clone(&old),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    for at in [1, 3, 6] {
        act(&plane, &Act::Put(at, 8)).await;
    }
    let before = plane.snapshot();
    let uid = |cut: &Snapshot, at| {
        let object = cut.get(&key_of(at)).expect("there");
        let body: serde_json::Value = serde_json::from_slice(&object.body()).expect("JSON");
        body["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let ahead = plane.ahead(&new, "2027-07-07T00:00:00Z", &recreates);
    let ahead = ahead.expect("nothing to fill").expect("there is a way");
    let seen: Vec<_> = ahead.shadowed().collect();
    let shape = |one: &Shadowed| (one.old.is_some(), one.new.is_some(), one.own.is_some());
    let mut wanted = vec![
        (key_of(1), (true, true, true)),
        (key_of(3), (true, false, true)),
        (key_of(6), (false, true, true)),
    ];
    wanted.sort();
    let seen: Vec<_> = seen
        .iter()
        .map(|one| (one.key.clone(), shape(one)))
        .collect();
    assert_eq!(seen, wanted);

    assert!(steps(&plane, &new, 1, 255).await, "one commit is enough");
    let after = plane.snapshot();
    let read = |at| after.get(&key_of(at)).map(|object| value(&object));
    let text = |text: &str| Some(text.to_owned());
    assert_eq!((read(0), read(1), read(2)), (text("2"), text("8"), None));
    assert_eq!(
        (read(3), read(4), read(5)),
        (text("8"), text("3"), text("4"))
    );
    assert_eq!(read(6), text("8"));
    assert_eq!(
        uid(&before, 0),
        uid(&after, 0),
        "the object has only changed"
    );
    assert_ne!(uid(&before, 4), uid(&after, 4), "it is another one");
    let events = events_after(&plane, before.version())
        .await
        .expect("inside");
    // One changed, one removed, one removed and added, and one added: five events.
    assert_eq!(events.len(), 5);
    let come = after.get(&key_of(5)).expect("there");
    assert_eq!(come.created(), come.version());
    assert!(body(&come).contains("2027-07-07"), "born with its step");
    assert_eq!(plane.layer_hash(), *new.hash());
}

#[tokio::test]
async fn a_tombstone_goes_with_the_key_that_it_hid() {
    let site = Site::new();
    let old = layer_of(&[Some(0), Some(0), Some(0)]);
    let new = layer_of(&[None, Some(2), Some(0)]);
    let back = layer_of(&[Some(0), Some(2), Some(0)]);
    let test = Test {
        layer: Arc::clone(&old),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    for at in 0..3 {
        act(&plane, &Act::Delete(at)).await;
    }
    let before = plane.snapshot().version();
    assert!(steps(&plane, &new, 1, 255).await);
    assert_eq!(plane.snapshot().objects(), 0, "what was deleted stays away");
    assert_eq!(
        events_after(&plane, before)
            .await
            .map(|received| received.len()),
        Some(0)
    );
    assert!(steps(&plane, &back, 1, 255).await);
    let there: Vec<_> = (0..3)
        .map(|at| plane.snapshot().get(&key_of(at)).is_some())
        .collect();
    assert_eq!(there, [true, false, false], "its tombstone has gone");
    let (_, again) = reopen(&site, &old).await;
    assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
}

#[tokio::test]
async fn many_differences_take_several_commits_and_a_crash_between_them_goes_on() {
    const MANY: usize = 700;
    let mut site = Site::new();
    let old = layer_of(&[Some(0); MANY]);
    let new = layer_of(&[Some(2); MANY]);
    let test = Test {
        layer: Arc::clone(&old),
        ..Test::default()
    };
    let mut plane = site.open_with("a", test).await;
    // There are more deletes than one transaction may remove tombstones.
    for at in 0..150 {
        act(&plane, &Act::Delete(at)).await;
    }
    let gone = layer_of(
        &[None; 150]
            .into_iter()
            .chain([Some(2); MANY - 150])
            .collect::<Vec<_>>(),
    );
    let before = plane.snapshot();
    let mut commits = 0;
    while !steps(&plane, &gone, 1, 255).await {
        commits += 1;
        let cut = plane.snapshot();
        (site, plane) = reopen(&site, &old).await;
        assert_eq!(dump(&plane.snapshot()), dump(&cut));
    }
    assert_eq!(commits + 1, 4, "255 places at most, 100 tombstones at most");
    let events = events_after(&plane, before.version())
        .await
        .expect("inside");
    assert_eq!(events.len(), MANY - 150);
    let followed = follow(state(&before), &events).expect("a right history");
    assert_eq!(followed, state(&plane.snapshot()));
    let target = plane.snapshot();
    assert!(
        target
            .range(&configmaps(), Start::First)
            .all(|object| value(&object) == "2")
    );
    assert!(
        !steps(&plane, &new, 0, 255).await,
        "the deleted ones are in that one again"
    );
}

/// A template has the same text whether or not the object that it names has been added yet.
#[tokio::test]
async fn a_template_may_name_one_that_a_later_commit_brings() {
    let site = Site::new();
    let old = layer_of(&[None; 8]);
    // The last object names the first, which is a secret and sorts behind all config maps.
    let new = layer_of(&[Some(0), None, None, None, None, None, None, Some(9)]);
    let test = Test {
        layer: Arc::clone(&old),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    let born = plane.snapshot().version();
    assert!(!steps(&plane, &new, 1, 1).await, "one has come");
    let named = value(&plane.snapshot().get(&key_of(7)).expect("it has come first"));
    assert!(steps(&plane, &new, 1, 1).await);
    let first = body(&plane.snapshot().get(&key_of(0)).expect("there"));
    assert!(first.contains(&format!(r#""uid":"{named}""#)), "{first}");
    let received = events_after(&plane, born).await.expect("inside");
    let (_, again) = reopen(&site, &old).await;
    let history = events_after(&again, born).await.expect("from the store");
    assert_eq!(first_difference(&history, &received), None);
}

#[tokio::test]
async fn a_step_whose_layer_cannot_be_filled_is_refused_by_name() {
    let site = Site::new();
    let plane = site.open("a").await;
    let asks = Layer::build(vec![template(0, "${NOBODY}")]).expect("fine");
    let ahead = plane.ahead(&asks, "2027-07-07T00:00:00Z", &recreates);
    assert_eq!(ahead.err(), Some(MissingParameter("NOBODY".into())));
}
