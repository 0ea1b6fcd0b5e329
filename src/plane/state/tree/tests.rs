//! The tree behaves as a `BTreeMap`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, PartialEq)]
struct Word {
    key: Arc<[u8]>,
    value: u32,
}

impl Item for Word {
    fn sort_key(&self) -> &Arc<[u8]> {
        &self.key
    }

    fn weight(&self) -> Weight {
        Weight {
            count: 1,
            own: 1,
            bytes: u64::from(self.value),
        }
    }
}

fn word(key: u16, value: u32) -> Word {
    Word {
        key: format!("{key:04x}").into_bytes().into(),
        value,
    }
}

/// Returns an item whose key shares a long, a short or no beginning with others, ends where others
/// go on, or has zeros where others end.
fn spelled(key: u16) -> Word {
    const LONG: &str = "/core/configmaps/a-namespace/";
    let text = match key % 5 {
        0 => format!("{key:04x}"),
        1 => format!("{LONG}{key:04x}"),
        2 => format!("{LONG}name-of-an-object-{key:04x}-suffix"),
        3 => LONG[..usize::from(key) % LONG.len()].to_owned(),
        _ => format!("{LONG}name{}", "\0".repeat(usize::from(key) % 20)),
    };
    Word {
        key: text.into_bytes().into(),
        value: 0,
    }
}

type Model = BTreeMap<Vec<u8>, u32>;

fn check(tree: &Tree<Word>, model: &Model) {
    let items: Vec<_> = tree.iter().map(|w| (w.key.to_vec(), w.value)).collect();
    let wanted: Vec<_> = model.iter().map(|(k, v)| (k.clone(), *v)).collect();
    assert_eq!(items, wanted);
    assert_eq!(tree.weight().count, model.len() as u64);
    assert_eq!(
        tree.weight().bytes,
        model.values().map(|v| u64::from(*v)).sum::<u64>()
    );
    shape(&tree.root, tree.weight, true);
}

/// Asserts the widths, weights and bounds of every node. Returns the depth.
fn shape(node: &Node<Word>, weight: Weight, is_root: bool) -> usize {
    assert!(node.len() <= WIDTH_MAX);
    assert!(is_root || node.low.is_some());
    match &node.content {
        Content::Leaf(items) => {
            assert!(is_root || items.len() > 0);
            for (at, item) in items.iter().enumerate() {
                assert_eq!(items.find(&item.key), Some(at));
                assert_eq!(items.below(0, &item.key), at);
                assert_eq!(items.not_above(0, &item.key), at + 1);
            }
            assert_eq!(sum(items.iter().map(Item::weight)), weight);
            1
        }
        Content::Inner(children) => {
            assert!(children.len() > 1);
            assert_eq!(sum(children.iter().map(|c| c.weight)), weight);
            for (at, child) in children.iter().enumerate().skip(1) {
                assert!(*child.key() <= **first_key(&child.node));
                assert_eq!(children.not_above(1, child.key()), at);
            }
            let depths: Vec<_> = children
                .iter()
                .map(|c| shape(&c.node, c.weight, false))
                .collect();
            assert!(depths.windows(2).all(|pair| pair[0] == pair[1]));
            depths[0] + 1
        }
    }
}

fn depth(node: &Node<Word>) -> usize {
    match &node.content {
        Content::Leaf(_) => 1,
        Content::Inner(children) => depth(&children.at(0).node) + 1,
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u16, u32),
    Remove(u16),
    Keep,
}

fn steps(keys: u16) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..keys, 0..100u32).prop_map(|(k, v)| Step::Insert(k, v)),
        4 => (0..keys).prop_map(Step::Remove),
        1 => Just(Step::Keep),
    ];
    prop::collection::vec(step, 0..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn equals_a_sorted_map_and_kept_copies_never_change(
        steps in steps(700),
        probes in prop::collection::vec(0..700u16, 20),
        is_spelled in any::<bool>(),
    ) {
        let word = |key: u16, value: u32| match is_spelled {
            true => Word { value, ..spelled(key) },
            false => word(key, value),
        };
        let mut tree = Tree::default();
        let mut model = Model::new();
        let mut kept = Vec::new();
        for step in steps {
            match step {
                Step::Insert(key, value) => {
                    let old = tree.insert(word(key, value)).map(|w| w.value);
                    prop_assert_eq!(old, model.insert(word(key, 0).key.to_vec(), value));
                }
                Step::Remove(key) => {
                    let key = word(key, 0).key;
                    let old = tree.remove(&key).map(|w| w.value);
                    prop_assert_eq!(old, model.remove(&key.to_vec()));
                }
                Step::Keep => kept.push((tree.clone(), model.clone())),
            }
        }
        check(&tree, &model);
        for (tree, model) in &kept {
            check(tree, model);
        }
        for probe in probes {
            let key = word(probe, 0).key;
            let found = tree.get(&key).map(|w| w.value);
            prop_assert_eq!(found, model.get(&key.to_vec()).copied());
            let before = model.range(..key.to_vec()).count() as u64;
            prop_assert_eq!(tree.weight_before(&key).count, before);
            let from: Vec<_> = tree.iter_from(&key).map(|w| w.key.to_vec()).collect();
            let wanted: Vec<_> = model.range(key.to_vec()..).map(|(k, _)| k.clone()).collect();
            prop_assert_eq!(from, wanted);
            let prefix = &key[..key.len() / 2];
            let under = model.keys().filter(|k| k.starts_with(prefix)).count() as u64;
            prop_assert_eq!(tree.weight_of(prefix).count, under);
        }
    }
}

/// The bound of a node's first child is not lowered with its keys, so that a part that is split from
/// that child has a lower bound than the child itself.
#[test]
fn keys_below_the_first_bound_are_found() {
    let mut tree = Tree::default();
    let mut model = Model::new();
    let beginnings = [
        "m/",
        "ma/name-",
        "f",
        "ma/",
        "b/long/common/",
        "",
        "m/z",
        "ab",
    ];
    for (round, beginning) in beginnings.iter().enumerate() {
        for number in (0..120_u32).rev() {
            let key = format!("{beginning}{number:03}");
            tree.insert(Word {
                key: key.clone().into_bytes().into(),
                value: 1,
            });
            model.insert(key.into_bytes(), 1);
            if number % 40 == 0 {
                check(&tree, &model);
                assert!(model.keys().all(|key| tree.get(key).is_some()), "{round}");
            }
        }
    }
    for key in model.keys() {
        assert!(tree.remove(key).is_some());
    }
    assert!(tree.is_empty());
}

/// Brings elements into an order without a pattern, the same in each run.
fn shuffle<K: Hash>(elements: &mut [K]) {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    elements.sort_by_cached_key(|element| hasher.hash_one(element));
}

/// A removal leaves the root of a tree of three levels fewer children only if it merges inner nodes.
#[test]
fn merged_inner_nodes_find_every_key_and_kept_copies_never_change() {
    for is_sorted in [false, true] {
        let mut numbers: Vec<u16> = (0..6000).collect();
        if !is_sorted {
            shuffle(&mut numbers);
        }
        let mut tree = Tree::default();
        let mut keys = Vec::new();
        for item in numbers.into_iter().map(spelled) {
            let key = Arc::clone(&item.key);
            if tree.insert(item).is_none() {
                keys.push(key);
            }
        }
        assert_eq!(shape(&tree.root, tree.weight, true), 3);
        shuffle(&mut keys);
        let mut merges = 0;
        let mut kept = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            // Without a copy, the merge changes nodes in place.
            let copy = (at % 4 > 0).then(|| tree.clone());
            let width = tree.root.len();
            assert!(tree.remove(key).is_some());
            if depth(&tree.root) == 3 && tree.root.len() < width {
                merges += 1;
                shape(&tree.root, tree.weight, true);
                kept.extend(copy.map(|copy| (at, copy)));
            }
        }
        assert!(tree.is_empty());
        assert!(merges > 2 && !kept.is_empty(), "{merges} merges");
        for (removed, copy) in &kept {
            assert_eq!(shape(&copy.root, copy.weight, true), 3);
            for (at, key) in keys.iter().enumerate() {
                assert_eq!(copy.get(key).is_some(), at >= *removed, "{key:?}");
            }
        }
    }
}

#[test]
fn the_last_of_sorted_items_leaves_no_empty_leaf() {
    let mut tree = Tree::default();
    for key in 0..2100 {
        tree.insert(word(key, 1));
        if usize::from(key) % WIDTH_MAX == 0 {
            // It is the only one of its leaf.
            assert!(tree.remove(&word(key, 1).key).is_some());
            shape(&tree.root, tree.weight, true);
            tree.insert(word(key, 1));
        }
    }
}

#[test]
fn a_sorted_load_fills_its_leaves() {
    let mut tree = Tree::default();
    for key in 0..3200 {
        tree.insert(word(key, 1));
    }
    let mut leaves = 0;
    let mut nodes = vec![Arc::clone(&tree.root)];
    while let Some(node) = nodes.pop() {
        match &node.content {
            Content::Leaf(_) => leaves += 1,
            Content::Inner(children) => nodes.extend(children.iter().map(|c| Arc::clone(&c.node))),
        }
    }
    assert_eq!(leaves, 100);
}

#[test]
fn an_absent_key_copies_nothing() {
    let mut tree = Tree::default();
    for key in 0..100 {
        tree.insert(word(key, 1));
    }
    let kept = tree.clone();
    assert_eq!(tree.remove(b"nowhere"), None);
    assert!(tree.same(&kept));
}
