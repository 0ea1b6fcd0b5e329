//! Builds sets from the inside out, as a walk leaves the parts of an object.

use super::{FieldSet, Node};
use crate::element::Borrowed;

/// The nodes of a set that are finished but have no parent yet.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    finished: Vec<Node>,
}

impl Builder {
    /// Returns the mark of an element that begins now.
    pub(crate) fn begin(&self) -> usize {
        self.finished.len()
    }

    /// Ends the element that began at `mark`. It is part of the set if it is a member or if
    /// elements below it are. Elements with one parent end in their order.
    pub(crate) fn end(&mut self, mark: usize, element: &Borrowed<'_>, member: bool) {
        if !member && mark == self.finished.len() {
            return;
        }
        let children = self.finish(mark);
        self.finished.push(Node {
            element: element.to_owned(),
            member,
            children,
        });
    }

    fn finish(&mut self, mark: usize) -> FieldSet {
        if mark == self.finished.len() {
            return FieldSet::EMPTY;
        }
        FieldSet::of_shared(self.finished.drain(mark..).collect())
    }

    /// Returns the set.
    pub(crate) fn set(mut self) -> FieldSet {
        self.finish(0)
    }
}
