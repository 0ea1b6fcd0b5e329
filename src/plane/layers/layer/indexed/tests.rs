//! Kept index maps and summaries are equal to those that each plane would compute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::layers::chain::Chain;
use crate::layers::layer::{Layer, LayerObject};
use crate::layers::template_values::{RenderCache, TemplateInputs, uid_seed};
use crate::state::entry::Versions;
use crate::state::intern::Interner;
use crate::state::overlay::Derive;
use crate::state::summary::{Summarize, Summarizer, Summary};
use crate::state::{Context, Root};
use crate::version::{Stamp, Version};
use crate::{Flags, NewObject};

/// An index whose values are the words in an object's data, and the number of times that its rows
/// were computed.
#[derive(Default)]
struct Words(AtomicUsize);

impl Index for Words {
    fn covers(&self, key: &Key) -> bool {
        key.is_of("", "configmaps")
    }

    fn rows(&self, _key: &Key, body: &[u8]) -> Vec<IndexRow> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let object: serde_json::Value = serde_json::from_slice(body).expect("bodies are JSON");
        let words = object["data"].as_str().unwrap_or_default().split(' ');
        let row = |word: &str| IndexRow {
            value: Bytes::copy_from_slice(word.as_bytes()),
            amount: 2,
        };
        words.map(row).collect()
    }
}

/// The number of words in the data of each object.
type Counts = BTreeMap<Key, usize>;

impl Summarize for Words {
    fn covers(&self, key: &Key) -> bool {
        key.resource() == "configmaps"
    }

    fn empty(&self) -> Summary {
        Arc::new(Counts::new())
    }

    fn next(&self, summary: &Summary, key: &Key, body: Option<&[u8]>) -> Summary {
        let mut counts = counts(Some(summary));
        counts.remove(key);
        if let Some(body) = body {
            let object: serde_json::Value = serde_json::from_slice(body).expect("bodies are JSON");
            let words = object["data"].as_str().unwrap_or_default().split(' ');
            counts.insert(key.clone(), words.count());
        }
        Arc::new(counts)
    }
}

fn counts(summary: Option<&Summary>) -> Counts {
    let counts = summary.and_then(|summary| summary.downcast_ref::<Counts>());
    counts.expect("every root has counts").clone()
}

fn object(name: &str, data: &str) -> LayerObject {
    let head = format!(
        r#"{{"metadata":{{"name":"{name}","uid":"${{UID}}","creationTimestamp":"${{BIRTH_TIME}}","#
    );
    let body = format!(r#"{head}"labels":{{}}}},"data":"{data}"}}"#);
    LayerObject {
        key: Key::new("", "configmaps", Some("ns"), name),
        object: NewObject {
            version_slot: head.len(),
            labels: None,
            body: body.into(),
            storage_version: "v1".into(),
            expires: None,
            flags: Flags::NONE,
        },
    }
}

fn template_values(layer: &Arc<Layer>, plane: &str, address: &str) -> Arc<TemplateValues> {
    let birth = Version::from_raw(77 << 8);
    TemplateValues::new(TemplateInputs {
        birth,
        birth_time: "2026-01-01T00:00:00Z".into(),
        uid_seed: &uid_seed(b"secret", plane, birth),
        params: &BTreeMap::from([("ADDRESS".to_owned(), address.to_owned())]),
        chain: Chain::new(Arc::clone(layer), Vec::new()),
        cache: &RenderCache::new(&Arc::default()),
    })
}

fn context(words: &Arc<Words>) -> Context {
    Context {
        indexes: Arc::from([Arc::clone(words) as Arc<dyn Index>]),
        derive: Derive::default(),
        summarizer: Summarizer(Some(Arc::clone(words) as _)),
        interner: Arc::new(Interner::default()),
    }
}

/// Returns the content of a root's only index: values with owner, number of holders and amount.
fn cells(root: &Root) -> Vec<(Vec<u8>, Option<Key>, u32, i128)> {
    let cells = root.index_cells(0);
    let cell = |(value, cell): (&[u8], &crate::state::index::Cell)| {
        (
            value.to_vec(),
            cell.owner.clone(),
            cell.holders,
            cell.amount,
        )
    };
    cells.map(cell).collect()
}

/// Returns the same root with every row computed again.
fn anew(layer: &Arc<Layer>, template_values: &Arc<TemplateValues>, context: &Context) -> Root {
    let none = Context {
        indexes: Arc::from([]),
        summarizer: Summarizer::default(),
        ..context.clone()
    };
    let mut root = Root::of_layers(Arc::clone(template_values), &none);
    root.index_all(context);
    assert_eq!(root.resources.count(), layer.len());
    root
}

const DATA: [&str; 7] = [
    "a",
    "a b",
    "b c d",
    "",
    "${ADDRESS}",
    "a ${ADDRESS}",
    "${UID} a",
];

proptest! {
    #[test]
    fn what_planes_share_is_what_each_would_compute(
        data in prop::collection::vec(0..DATA.len(), 0..12),
        planes in prop::collection::vec((0..3usize, prop::collection::vec((0..12usize, 0..8usize), 0..6)), 1..5),
    ) {
        let named = |(at, data): (usize, &usize)| object(&format!("o{at:02}"), DATA[*data]);
        let layer = Layer::build(data.iter().enumerate().map(named).collect()).expect("a fine layer");
        let context = context(&Arc::default());
        for (number, (address, changes)) in planes.iter().enumerate() {
            let template_values = template_values(&layer, &format!("p{number}"), ["x", "y", "a"][*address]);
            let mut shared = Root::of_layers(Arc::clone(&template_values), &context);
            let mut own = anew(&layer, &template_values, &context);
            prop_assert_eq!(cells(&shared), cells(&own));
            prop_assert_eq!(counts(shared.summary.as_ref()), counts(own.summary.as_ref()));
            prop_assert_eq!(counts(shared.summary.as_ref()).len(), layer.len());
            for (at, data) in changes {
                let new = object(&format!("o{at:02}"), DATA.get(*data).copied().unwrap_or("gone"));
                for root in [&mut shared, &mut own] {
                    if *data < DATA.len() {
                        let version = Version::from_raw(99 << 8);
                        let versions = Versions { version, created: version };
                        let stamp = Stamp::loaded(versions.version);
                        let entry = Entry::own(new.key.clone(), stamp, &new.object, versions, &context.interner);
                        root.put(entry, &context);
                    } else {
                        root.remove(&new.key, &context);
                    }
                }
                prop_assert_eq!(cells(&shared), cells(&own));
                let anew = { let mut anew = shared.clone(); anew.index_all(&context); anew };
                prop_assert_eq!(counts(shared.summary.as_ref()), counts(anew.summary.as_ref()));
            }
        }
    }
}

#[test]
fn a_second_plane_computes_no_row_of_the_layer() {
    let objects = [("a", "x y"), ("b", "${ADDRESS}"), ("c", "z")];
    let objects = objects.map(|(name, data)| object(name, data));
    let layer = Layer::build(objects.into()).expect("a fine layer");
    let words: Arc<Words> = Arc::default();
    let computed = |plane: &str, address: &str| {
        let before = words.0.load(Ordering::Relaxed);
        // Every plane brings its own list, which holds the indexes that all planes share.
        Root::of_layers(template_values(&layer, plane, address), &context(&words));
        words.0.load(Ordering::Relaxed) - before
    };
    assert!(computed("first", "10.0.0.1") > 0);
    assert_eq!(computed("second", "10.0.0.1"), 0);
    assert_eq!(
        computed("elsewhere", "10.0.0.2"),
        2,
        "only what the address is in"
    );
    assert_eq!(computed("third", "10.0.0.1"), 0);
}

#[test]
fn what_depends_on_the_plane_is_left_to_it() {
    let layer = Layer::build(vec![object("a", "${UID}"), object("b", "z")]).expect("a fine layer");
    let context = context(&Arc::default());
    let root = |plane| Root::of_layers(template_values(&layer, plane, "x"), &context);
    let (first, second) = (cells(&root("first")), cells(&root("second")));
    assert_eq!((first.len(), second.len()), (2, 2));
    assert_ne!(first, second);
}

#[test]
fn what_is_kept_is_bounded() {
    let layer = Layer::build(vec![object("a", "${ADDRESS}")]).expect("a fine layer");
    for at in 0..3 * SETS_MAX {
        let context = context(&Arc::default());
        for value in 0..2 * VALUES_MAX {
            let template_values = template_values(&layer, "p", &format!("{at}-{value}"));
            Root::of_layers(template_values, &context);
        }
    }
    let sets = layer.indexed().0.lock();
    assert_eq!(sets.len(), SETS_MAX);
    assert!(sets.iter().all(|set| set.by_values.len() == VALUES_MAX));
}
