//! Sets of paths.
//!
//! A set is a tree of nodes in the order of their elements. A node may be a member, may have nodes
//! below it, or both. Invariant: it is or has one.
//!
//! Nodes are immutable and shared: a copy of a set costs a counter, and the algebra copies only the
//! levels on the way to a difference.

mod build;
mod read;
mod write;

use std::cmp::Ordering;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

pub(crate) use build::Builder;
pub use read::ReadError;

use crate::element::{Borrowed, Path, PathElement};

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Option<Arc<[Node]>>);

/// An element of paths of a set, and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) element: PathElement,
    /// Whether the path that ends here is in the set.
    pub(crate) member: bool,
    pub(crate) children: FieldSet,
}

impl Node {
    fn is_needed(&self) -> bool {
        self.member || !self.children.is_empty()
    }
}

impl FieldSet {
    /// The set without paths.
    pub const EMPTY: Self = Self(None);

    /// Creates a set of nodes in order.
    pub(crate) fn of(nodes: Vec<Node>) -> Self {
        debug_assert!(nodes.is_sorted_by(|a, b| a.element < b.element));
        Self((!nodes.is_empty()).then(|| nodes.into()))
    }

    /// Creates a set of nodes in order, of which there is at least one.
    fn of_shared(nodes: Arc<[Node]>) -> Self {
        debug_assert!(!nodes.is_empty() && nodes.is_sorted_by(|a, b| a.element < b.element));
        Self(Some(nodes))
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns true if there is no path in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of paths.
    pub fn len(&self) -> usize {
        let of = |node: &Node| usize::from(node.member) + node.children.len();
        self.nodes().iter().map(of).sum()
    }

    /// Returns true if both are the same set in memory, which is cheaper than to compare them.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(left), Some(right)) => Arc::ptr_eq(left, right),
            _ => false,
        }
    }

    pub(crate) fn find(&self, element: &Borrowed<'_>) -> Option<&Node> {
        let nodes = self.nodes();
        let at = nodes.binary_search_by(|node| node.element.borrow().order(element));
        at.ok().map(|at| &nodes[at])
    }

    /// Returns true if the path is in the set.
    pub fn has(&self, path: &[PathElement]) -> bool {
        let Some((last, parents)) = path.split_last() else {
            return false;
        };
        let mut set = self;
        for element in parents {
            match set.find(&element.borrow()) {
                Some(node) => set = &node.children,
                None => return false,
            }
        }
        set.find(&last.borrow()).is_some_and(|node| node.member)
    }

    /// Adds a path. The empty path stands for the whole object, which nobody owns: it is ignored.
    pub fn insert(&mut self, path: &[PathElement]) {
        if let Some((first, rest)) = path.split_first() {
            let mut below = Self::EMPTY;
            below.insert(rest);
            let node = Node {
                element: first.clone(),
                member: rest.is_empty(),
                children: below,
            };
            *self = self.union(&Self::of(vec![node]));
        }
    }

    /// Returns the paths that are in one of the sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if other.is_empty() || self.is_same(other) {
            return self.clone();
        }
        if self.is_empty() {
            return other.clone();
        }
        let mut nodes = Vec::with_capacity(self.nodes().len().max(other.nodes().len()));
        zip(self, other, |left, right| {
            nodes.push(match (left, right) {
                (Some(left), Some(right)) => Node {
                    element: left.element.clone(),
                    member: left.member || right.member,
                    children: left.children.union(&right.children),
                },
                (Some(node), None) | (None, Some(node)) => node.clone(),
                (None, None) => return,
            });
        });
        Self::of(nodes)
    }

    /// Returns the paths that are in one of the sets. Of equal elements that are spelled differently,
    /// that of the last set is kept.
    pub(crate) fn union_of(mut sets: Vec<Self>) -> Self {
        while sets.len() > 1 {
            let pairs = sets.chunks(2).map(|pair| match pair {
                [first, second] => second.union(first),
                [first, ..] => first.clone(),
                [] => Self::EMPTY,
            });
            sets = pairs.collect();
        }
        sets.pop().unwrap_or_default()
    }

    /// Returns the paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        if self.is_same(other) {
            return self.clone();
        }
        let mut nodes = Vec::new();
        zip(self, other, |left, right| {
            if let (Some(left), Some(right)) = (left, right) {
                let node = Node {
                    element: left.element.clone(),
                    member: left.member && right.member,
                    children: left.children.intersection(&right.children),
                };
                nodes.extend(node.is_needed().then_some(node));
            }
        });
        Self::of(nodes)
    }

    /// Returns the paths that are in this set and not in the other one.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.subtract(other, |left, right| {
            Some(Node {
                element: left.element.clone(),
                member: left.member && !right.member,
                children: left.children.difference(&right.children),
            })
        })
    }

    /// Returns the paths of this set of which no beginning is in the other one.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.subtract(other, |left, right| {
            (!right.member).then(|| Node {
                element: left.element.clone(),
                member: left.member,
                children: left.children.recursive_difference(&right.children),
            })
        })
    }

    fn subtract(&self, other: &Self, rest: impl Fn(&Node, &Node) -> Option<Node>) -> Self {
        if self.is_empty() || other.is_empty() {
            return self.clone();
        }
        let mut nodes = Vec::with_capacity(self.nodes().len());
        zip(self, other, |left, right| match (left, right) {
            (Some(left), Some(right)) => {
                nodes.extend(rest(left, right).filter(Node::is_needed));
            }
            (Some(left), None) => nodes.push(left.clone()),
            (None, _) => {}
        });
        Self::of(nodes)
    }

    /// Returns true if the sets have a path in common.
    pub fn intersects(&self, other: &Self) -> bool {
        let mut found = false;
        zip(self, other, |left, right| {
            if let (Some(left), Some(right)) = (left, right) {
                found = found
                    || (left.member && right.member)
                    || left.children.intersects(&right.children);
            }
        });
        found
    }

    /// Returns true if each path of this set is in the other one.
    pub fn is_subset(&self, other: &Self) -> bool {
        if self.is_same(other) {
            return true;
        }
        let mut all = true;
        zip(self, other, |left, right| match (left, right) {
            (Some(_), None) => all = false,
            (Some(left), Some(right)) => {
                all = all
                    && (!left.member || right.member)
                    && left.children.is_subset(&right.children);
            }
            (None, _) => {}
        });
        all
    }

    /// Returns the paths that no other path begins with.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let nodes = self.nodes().iter().map(|node| Node {
            element: node.element.clone(),
            member: node.member && node.children.is_empty(),
            children: node.children.leaves(),
        });
        Self::of(nodes.collect())
    }

    /// Returns the set with the keys of each item that a path of it leads to, as far as `existing`
    /// has that path.
    #[must_use]
    pub fn with_keys(&self, existing: &Self) -> Self {
        let mut set = self.clone();
        for Path(path) in self.paths().iter().filter(|path| existing.has(&path.0)) {
            for (at, element) in path.iter().enumerate() {
                let PathElement::Key(fields) = element else {
                    continue;
                };
                for (name, _) in fields.iter() {
                    let mut key = path[..=at].to_vec();
                    key.push(PathElement::field(name.clone()));
                    set.insert(&key);
                }
            }
        }
        set
    }

    /// Returns all paths: at each level first those that end there, then those that go on.
    pub fn paths(&self) -> Vec<Path> {
        let mut out = Vec::new();
        self.collect(&mut Vec::new(), &mut out);
        out
    }

    /// Calls `visit` with each path, in the order of [`FieldSet::paths`], until it returns `Break`. Unlike there, no
    /// path is copied: many may have a long beginning in common.
    pub(crate) fn each_path(
        &self,
        visit: &mut dyn FnMut(&[&PathElement]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.visit_below(&mut Vec::new(), visit)
    }

    fn visit_below<'s>(
        &'s self,
        prefix: &mut Vec<&'s PathElement>,
        visit: &mut dyn FnMut(&[&PathElement]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for node in self.nodes().iter().filter(|node| node.member) {
            prefix.push(&node.element);
            visit(prefix.as_slice())?;
            prefix.pop();
        }
        for node in self.nodes() {
            prefix.push(&node.element);
            node.children.visit_below(prefix, visit)?;
            prefix.pop();
        }
        ControlFlow::Continue(())
    }

    fn collect(&self, prefix: &mut Vec<PathElement>, out: &mut Vec<Path>) {
        for node in self.nodes().iter().filter(|node| node.member) {
            let end = std::iter::once(&node.element);
            out.push(Path(prefix.iter().chain(end).cloned().collect()));
        }
        for node in self.nodes() {
            prefix.push(node.element.clone());
            node.children.collect(prefix, out);
            prefix.pop();
        }
    }
}

/// Calls `visit` with the nodes of two sets in order, those with equal elements together.
fn zip(left: &FieldSet, right: &FieldSet, mut visit: impl FnMut(Option<&Node>, Option<&Node>)) {
    let (left, right) = (left.nodes(), right.nodes());
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        let order = match (left.get(l), right.get(r)) {
            (Some(left), Some(right)) => left.element.cmp(&right.element),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        match order {
            Ordering::Less => visit(Some(&left[l]), None),
            Ordering::Greater => visit(None, Some(&right[r])),
            Ordering::Equal => visit(Some(&left[l]), Some(&right[r])),
        }
        l += usize::from(order.is_le());
        r += usize::from(order.is_ge());
    }
}

impl fmt::Display for FieldSet {
    /// Writes one path per line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, path) in self.paths().iter().enumerate() {
            if at > 0 {
                out.write_str("\n")?;
            }
            write!(out, "{path}")?;
        }
        Ok(())
    }
}

impl<'p> FromIterator<&'p [PathElement]> for FieldSet {
    fn from_iter<I: IntoIterator<Item = &'p [PathElement]>>(paths: I) -> Self {
        let mut set = Self::EMPTY;
        paths.into_iter().for_each(|path| set.insert(path));
        set
    }
}

#[cfg(test)]
mod tests {
    use polyplane_apimachinery::value::Value;

    use super::*;

    #[test]
    fn many_sets_are_joined_as_if_one_after_the_other() {
        let set = |at: i64| -> FieldSet {
            let number = match at % 2 {
                0 => Value::Int(1),
                _ => Value::Float(1.0),
            };
            let path = [
                PathElement::field(format!("a{}", at % 5)),
                PathElement::value(number),
                PathElement::Index(at),
            ];
            [path.as_slice()].into_iter().collect()
        };
        for count in 0..24 {
            let sets: Vec<FieldSet> = (0..count).map(set).collect();
            let mut wanted = FieldSet::EMPTY;
            for set in &sets {
                wanted = set.union(&wanted);
            }
            // 1 and 1.0 are equal elements, but not the same text.
            let joined = FieldSet::union_of(sets);
            assert_eq!(format!("{joined:?}"), format!("{wanted:?}"));
        }
    }
}
