//! Which fields a write may own: writes of a subresource, for example, own only what they change.

use crate::element::PathElement;
use crate::set::{FieldSet, Node};

/// A filter of sets.
#[derive(Clone, Debug)]
pub enum Filter {
    /// Removes these fields and everything below them.
    Exclude(FieldSet),
    /// Removes everything that does not match.
    Include(Pattern),
}

impl Filter {
    /// Returns the part of a set that the filter keeps.
    pub fn apply(&self, set: &FieldSet) -> FieldSet {
        match self {
            Self::Exclude(excluded) => set.recursive_difference(excluded),
            Self::Include(pattern) => pattern.matches(set),
        }
    }
}

/// One step of a [`Pattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternStep {
    /// Any element.
    Any,
    /// This element.
    Element(PathElement),
}

/// A pattern of paths: all, or those that begin with certain steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Everything matches.
    All,
    /// Paths match whose first element one of the steps takes, and whose rest its pattern takes.
    /// Steps that take any element stand first; of several that take one the first counts.
    Steps(Vec<(PatternStep, Pattern)>),
}

impl Pattern {
    /// Returns the pattern of all paths that begin with these steps.
    pub fn prefix(
        steps: impl IntoIterator<Item = PatternStep, IntoIter: DoubleEndedIterator>,
    ) -> Self {
        let steps = steps.into_iter().rev();
        steps.fold(Self::All, |rest, step| Self::Steps(vec![(step, rest)]))
    }

    /// Returns the pattern of what one of the patterns takes. Two steps that take any element are
    /// not joined, so the first one hides the second, as upstream does.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let (Self::Steps(mut steps), Self::Steps(others)) = (self, other) else {
            return Self::All;
        };
        for (step, rest) in others {
            let same = steps
                .iter()
                .position(|(known, _)| step != PatternStep::Any && *known == step);
            match same {
                Some(at) => {
                    let known = std::mem::replace(&mut steps[at].1, Self::All);
                    steps[at].1 = known.or(rest);
                }
                None => steps.push((step, rest)),
            }
        }
        steps.sort_by_key(|(step, _)| *step != PatternStep::Any);
        Self::Steps(steps)
    }

    fn matches(&self, set: &FieldSet) -> FieldSet {
        let Self::Steps(steps) = self else {
            return set.clone();
        };
        let nodes = set.nodes().iter().filter_map(|node| {
            let takes = |step: &PatternStep| match step {
                PatternStep::Any => true,
                PatternStep::Element(element) => *element == node.element,
            };
            let (_, rest) = steps.iter().find(|(step, _)| takes(step))?;
            let children = rest.matches(&node.children);
            (node.member || !children.is_empty()).then(|| Node {
                element: node.element.clone(),
                member: node.member,
                children,
            })
        });
        FieldSet::of(nodes.collect())
    }
}
