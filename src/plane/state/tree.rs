//! A persistent B+ tree. A clone shares all nodes. A change copies the nodes on its path, but
//! changes nodes that no other tree shares in place. Each subtree knows how many items and bytes it
//! has.
//!
//! Knows nothing of objects; an item has a key and a weight.

mod slots;

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::sync::Arc;

use slots::{Keyed, Slot, Slots};

/// Most items of a leaf, and most children of an inner node. Wider nodes make each copy of a path
/// larger.
const WIDTH_MAX: usize = 32;
/// Fewest children of an inner node. An only child has no neighbour to be merged with, so a leaf would
/// stay when its last item is removed.
const CHILDREN_MIN: usize = 2;
/// Width below which a node is merged with a neighbour. Without merging, deletes would leave a deep
/// tree of thin nodes.
const WIDTH_MIN: usize = 8;

/// An item of a [`Tree`].
pub(crate) trait Item: Clone {
    /// Returns the key by which items are ordered.
    fn sort_key(&self) -> &Arc<[u8]>;
    /// Returns the weight that the item adds to the nodes above it.
    fn weight(&self) -> Weight;
}

/// The number of items and of bytes under a node, and of items that have bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) count: u64,
    /// The items that are the plane's own: only these have bytes.
    pub(crate) own: u64,
    pub(crate) bytes: u64,
}

impl Weight {
    /// Returns the weight of an item that is not the plane's own.
    pub(crate) fn of_layer() -> Self {
        Self {
            count: 1,
            ..Self::default()
        }
    }

    /// Returns the weight of an item of the plane's own.
    pub(crate) fn own(bytes: u64) -> Self {
        Self {
            count: 1,
            own: 1,
            bytes,
        }
    }
}

/// A persistent sorted map of items.
#[derive(Debug)]
pub(crate) struct Tree<T> {
    root: Arc<Node<T>>,
    weight: Weight,
}

#[derive(Debug, Clone)]
struct Node<T> {
    /// Above every key of the subtrees before it, and not above any key in the subtree, unless that
    /// is at the left edge of the tree: later keys there may be lower. No search reads the bound of a
    /// node's first child, and a root needs none. It is not in [`Child`]: a copy of a node would then
    /// have to count a second reference for each child.
    low: Option<Arc<[u8]>>,
    content: Content<T>,
}

#[derive(Debug, Clone)]
enum Content<T> {
    Leaf(Slots<T>),
    Inner(Slots<Child<T>>),
}

/// A subtree.
#[derive(Debug)]
struct Child<T> {
    node: Arc<Node<T>>,
    weight: Weight,
}

struct Modified<R> {
    result: R,
    old: Weight,
    new: Weight,
}

struct Inserted<T> {
    old: Option<T>,
    split: Option<Child<T>>,
}

impl<T: Item> Keyed for T {
    fn key(&self) -> &[u8] {
        self.sort_key()
    }
}

impl<T> Keyed for Child<T> {
    fn key(&self) -> &[u8] {
        self.node.low.as_deref().expect("only a root has no bound")
    }
}

impl<T: Item> Child<T> {
    fn of_items(items: Slots<T>) -> Self {
        Self {
            weight: sum(items.iter().map(Item::weight)),
            node: Arc::new(Node {
                low: Some(Arc::clone(items.at(0).sort_key())),
                content: Content::Leaf(items),
            }),
        }
    }

    fn of_children(children: Slots<Self>) -> Self {
        Self {
            weight: sum(children.iter().map(|child| child.weight)),
            node: Arc::new(Node {
                low: children.at(0).node.low.clone(),
                content: Content::Inner(children),
            }),
        }
    }
}

impl<T> Clone for Tree<T> {
    fn clone(&self) -> Self {
        Self {
            root: Arc::clone(&self.root),
            weight: self.weight,
        }
    }
}

impl<T> Clone for Child<T> {
    fn clone(&self) -> Self {
        Self {
            node: Arc::clone(&self.node),
            weight: self.weight,
        }
    }
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self {
            root: Arc::new(Node::root(Content::Leaf(Slots::default()))),
            weight: Weight::default(),
        }
    }
}

impl<T: Item> Tree<T> {
    /// Returns the number of items and bytes of the whole tree.
    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.weight.count == 0
    }

    /// Returns whether both trees have the same root node.
    #[cfg(test)]
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&T> {
        let mut node = &*self.root;
        loop {
            match &node.content {
                Content::Inner(children) => node = &children.at(child_of(children, key)).node,
                Content::Leaf(items) => return Some(items.at(items.find(key)?)),
            }
        }
    }

    /// Inserts an item. Returns the item that had its key before.
    pub(crate) fn insert(&mut self, item: T) -> Option<T> {
        let added = item.weight();
        let Inserted { old, split } = insert(&mut self.root, item);
        self.weight += added;
        if let Some(old) = &old {
            self.weight -= old.weight();
        }
        if let Some(right) = split {
            let low = Arc::clone(first_key(&self.root));
            // Copies nothing: the insertion has made the root this tree's own.
            Arc::make_mut(&mut self.root).low = Some(low);
            let left = Child {
                weight: self.weight - right.weight,
                node: Arc::clone(&self.root),
            };
            let both = Slots::new(vec![left, right]);
            self.root = Arc::new(Node::root(Content::Inner(both)));
        }
        old
    }

    /// Changes the item with a key in place, without changing its key. Returns `None` if there is
    /// no such item.
    pub(crate) fn modify<R>(&mut self, key: &[u8], change: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Looking first keeps an absent key from copying a path.
        self.get(key)?;
        let Modified { result, old, new } = modify(&mut self.root, key, change);
        self.weight += new;
        self.weight -= old;
        Some(result)
    }

    /// Removes the item with a key and returns it.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<T> {
        // Looking first keeps an absent key from copying a path.
        self.get(key)?;
        let old = remove(&mut self.root, key);
        self.weight -= old.weight();
        while let Content::Inner(children) = &self.root.content {
            if children.len() > 1 {
                break;
            }
            let only = Arc::clone(&children.at(0).node);
            self.root = only;
        }
        Some(old)
    }

    /// Returns the weight of all items before a key.
    pub(crate) fn weight_before(&self, key: &[u8]) -> Weight {
        let mut node = &*self.root;
        let mut total = Weight::default();
        loop {
            match &node.content {
                Content::Inner(children) => {
                    let at = child_of(children, key);
                    for child in children.iter().take(at) {
                        total += child.weight;
                    }
                    node = &children.at(at).node;
                }
                Content::Leaf(items) => {
                    for item in items.iter().take(items.below(0, key)) {
                        total += item.weight();
                    }
                    return total;
                }
            }
        }
    }

    /// Returns the weight of all items under a prefix.
    pub(crate) fn weight_of(&self, prefix: &[u8]) -> Weight {
        let end = polyplane_storage::prefix_end(prefix);
        let below = if end.is_empty() {
            self.weight
        } else {
            self.weight_before(&end)
        };
        below - self.weight_before(prefix)
    }

    /// Returns the items in order, from the first whose key is not below `start`.
    pub(crate) fn iter_from(&self, start: &[u8]) -> Iter<'_, T> {
        let mut path = Vec::new();
        let mut node = &*self.root;
        loop {
            match &node.content {
                Content::Inner(children) => {
                    let at = child_of(children, start);
                    path.push(&children.as_slice()[at + 1..]);
                    node = &children.at(at).node;
                }
                Content::Leaf(items) => {
                    return Iter {
                        path,
                        leaf: &items.as_slice()[items.below(0, start)..],
                    };
                }
            }
        }
    }

    /// Returns all items in order.
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        self.iter_from(&[])
    }
}

/// Items of a tree in key order.
#[derive(Debug)]
pub(crate) struct Iter<'a, T> {
    path: Vec<&'a [Slot<Child<T>>]>,
    leaf: &'a [Slot<T>],
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some((first, rest)) = self.leaf.split_first() {
                self.leaf = rest;
                return Some(&first.element);
            }
            let siblings = self.path.pop()?;
            if let Some((first, rest)) = siblings.split_first() {
                self.path.push(rest);
                self.descend(&first.element.node);
            }
        }
    }
}

impl<'a, T> Iter<'a, T> {
    fn descend(&mut self, mut node: &'a Node<T>) {
        loop {
            match &node.content {
                Content::Inner(children) => {
                    let (first, rest) = children
                        .as_slice()
                        .split_first()
                        .expect("inner nodes have children, insert and remove keep it so");
                    self.path.push(rest);
                    node = &first.element.node;
                }
                Content::Leaf(items) => {
                    self.leaf = items.as_slice();
                    return;
                }
            }
        }
    }
}

fn child_of<T>(children: &Slots<Child<T>>, key: &[u8]) -> usize {
    children.not_above(1, key)
}

fn first_key<T: Item>(mut node: &Node<T>) -> &Arc<[u8]> {
    loop {
        match &node.content {
            Content::Inner(children) => node = &children.at(0).node,
            Content::Leaf(items) => return items.at(0).sort_key(),
        }
    }
}

fn insert<T: Item>(node: &mut Arc<Node<T>>, item: T) -> Inserted<T> {
    match &mut Arc::make_mut(node).content {
        Content::Leaf(items) => insert_in_leaf(items, item),
        Content::Inner(children) => {
            let at = child_of(children, item.sort_key());
            let added = item.weight();
            let child = children.at_mut(at);
            let Inserted { old, split } = insert(&mut child.node, item);
            child.weight += added;
            if let Some(old) = &old {
                child.weight -= old.weight();
            }
            let Some(right) = split else {
                return Inserted { old, split: None };
            };
            child.weight -= right.weight;
            children.insert(at + 1, right);
            if children.len() <= WIDTH_MAX {
                return Inserted { old, split: None };
            }
            let cut = split_point(children.len(), at + 1, CHILDREN_MIN);
            let split = Some(Child::of_children(children.split_off(cut)));
            Inserted { old, split }
        }
    }
}

fn insert_in_leaf<T: Item>(items: &mut Slots<T>, item: T) -> Inserted<T> {
    let at = items.below(0, item.sort_key());
    if at < items.len() && items.at(at).sort_key() == item.sort_key() {
        let old = std::mem::replace(items.at_mut(at), item);
        return Inserted {
            old: Some(old),
            split: None,
        };
    }
    // Grows by one item at a time at first: a leaf of a plane that is rarely written must not
    // reserve unused room.
    items.reserve_exact(if items.len() < WIDTH_MIN { 1 } else { 4 });
    items.insert(at, item);
    if items.len() <= WIDTH_MAX {
        return Inserted {
            old: None,
            split: None,
        };
    }
    let cut = split_point(items.len(), at, 1);
    Inserted {
        old: None,
        split: Some(Child::of_items(items.split_off(cut))),
    }
}

/// Returns the position at which a node that is too wide is split: in the middle, unless it grows at
/// its end, as in a sorted load. Then the new node gets only the `least` that it must have.
fn split_point(len: usize, grown_at: usize, least: usize) -> usize {
    if grown_at + 1 == len {
        len - least
    } else {
        len / 2
    }
}

/// Changes the item with a key that the tree has.
fn modify<T: Item, R>(
    node: &mut Arc<Node<T>>,
    key: &[u8],
    change: impl FnOnce(&mut T) -> R,
) -> Modified<R> {
    match &mut Arc::make_mut(node).content {
        Content::Leaf(items) => {
            let at = items.find(key).expect("the caller has found the key");
            let item = items.at_mut(at);
            let old = item.weight();
            let result = change(item);
            let new = item.weight();
            Modified { result, old, new }
        }
        Content::Inner(children) => {
            let at = child_of(children, key);
            let child = children.at_mut(at);
            let modified = modify(&mut child.node, key, change);
            child.weight += modified.new;
            child.weight -= modified.old;
            modified
        }
    }
}

/// Removes the item with a key that the tree has.
fn remove<T: Item>(node: &mut Arc<Node<T>>, key: &[u8]) -> T {
    match &mut Arc::make_mut(node).content {
        Content::Leaf(items) => {
            let at = items.find(key).expect("the caller has found the key");
            items.remove(at)
        }
        Content::Inner(children) => {
            let at = child_of(children, key);
            let child = children.at_mut(at);
            let old = remove(&mut child.node, key);
            child.weight -= old.weight();
            if child.node.len() < WIDTH_MIN && children.len() > 1 {
                merge(children, at);
            }
            old
        }
    }
}

/// Joins a thin child with a neighbour, or distributes their items evenly if one node cannot hold
/// all.
fn merge<T: Item>(children: &mut Slots<Child<T>>, thin: usize) {
    let left = if thin == 0 { 0 } else { thin - 1 };
    let right = children.remove(left + 1);
    let kept = children.at_mut(left);
    kept.weight += right.weight;
    let right = Arc::unwrap_or_clone(right.node);
    let left_content = &mut Arc::make_mut(&mut kept.node).content;
    let split = match (left_content, right.content) {
        (Content::Leaf(items), Content::Leaf(more)) => {
            items.append(more);
            even_out(items).map(Child::of_items)
        }
        (Content::Inner(items), Content::Inner(more)) => {
            // The first child of the right node is no longer a first child, so its bound is read
            // from now on. It has the node's own: only at the left edge do the two differ.
            debug_assert_eq!(more.at(0).node.low, right.low);
            items.append(more);
            even_out(items).map(Child::of_children)
        }
        _ => unreachable!("all leaves of a tree have the same depth"),
    };
    if let Some(split) = split {
        kept.weight -= split.weight;
        children.insert(left + 1, split);
    }
}

fn even_out<E: Keyed>(items: &mut Slots<E>) -> Option<Slots<E>> {
    (items.len() > WIDTH_MAX).then(|| items.split_off(items.len() / 2))
}

fn sum(weights: impl Iterator<Item = Weight>) -> Weight {
    weights.fold(Weight::default(), Add::add)
}

impl<T> Node<T> {
    fn root(content: Content<T>) -> Self {
        Self { low: None, content }
    }

    fn len(&self) -> usize {
        match &self.content {
            Content::Leaf(items) => items.len(),
            Content::Inner(children) => children.len(),
        }
    }
}

impl Add for Weight {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            own: self.own + other.own,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sub for Weight {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            count: self.count - other.count,
            own: self.own - other.own,
            bytes: self.bytes - other.bytes,
        }
    }
}

impl AddAssign for Weight {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Weight {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

#[cfg(test)]
#[path = "tree/tests.rs"]
mod tests;
