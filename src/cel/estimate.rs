//! Estimates what an expression can cost before anybody evaluates it: the least and the most.
//!
//! The estimate knows types, constants and what [`Sizes`] says of variables. A path names a part of
//! a variable: fields by their names, elements of lists as `@items`, keys and values of maps as
//! `@keys` and `@values`.

mod calls;
mod library;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Comprehension, Entry, Expr, ExprId, Literal};
use crate::check::Checked;
use crate::cost;
use crate::types::Type;

/// The least and the most of a size or a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The most; [`u64::MAX`] if nothing bounds it.
    pub max: u64,
}

impl Range {
    /// A size that nothing is known of.
    pub const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };

    /// Returns a range with one number.
    #[must_use]
    pub const fn fixed(number: u64) -> Self {
        Self {
            min: number,
            max: number,
        }
    }

    /// Adds a range to a range.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    /// Multiplies a range with a range.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    /// Multiplies a range with a factor, rounded up.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            min: cost::scaled(self.min, factor),
            max: cost::scaled(self.max, factor),
        }
    }

    /// Returns the range that contains both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// The range that changes nothing in a union.
    const NONE: Self = Self {
        min: u64::MAX,
        max: 0,
    };
}

/// What is known of the sizes of variables and their parts.
pub trait Sizes {
    /// Returns the size of the part at `path`, which has type `of`.
    fn size(&self, path: &[Arc<str>], of: &Type) -> Option<Range>;
}

/// Estimates the cost of an expression. `presence` is the cost of a `has()`: 0 in Kubernetes.
#[must_use]
pub fn estimate(checked: &Checked, sizes: &dyn Sizes, presence: u64) -> Range {
    let mut estimator = Estimator {
        checked,
        sizes,
        presence,
        paths: BTreeMap::new(),
        locals: Vec::new(),
        computed: BTreeMap::new(),
        entries: BTreeMap::new(),
    };
    estimator.cost(checked.ast().root())
}

/// The kind of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    List,
    Map,
}

/// The sizes of the keys and values of a container.
#[derive(Debug, Clone, Copy)]
struct EntrySize {
    container: Container,
    key: Range,
    value: Range,
}

impl EntrySize {
    fn union(self, other: Self) -> Self {
        Self {
            container: self.container,
            key: self.key.union(other.key),
            value: self.value.union(other.value),
        }
    }
}

/// A variable of a loop.
struct Local {
    name: Arc<str>,
    path: Vec<Arc<str>>,
    size: Option<Range>,
    entry: Option<EntrySize>,
}

/// Which part of a range a variable of a loop is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Key,
    Value,
    /// The element of a list or the key of a map.
    Single,
}

struct Estimator<'a> {
    checked: &'a Checked,
    sizes: &'a dyn Sizes,
    presence: u64,
    paths: BTreeMap<ExprId, Vec<Arc<str>>>,
    locals: Vec<Local>,
    computed: BTreeMap<ExprId, Range>,
    entries: BTreeMap<ExprId, EntrySize>,
}

impl<'a> Estimator<'a> {
    fn expr(&self, id: ExprId) -> &'a Expr {
        self.checked.ast().expr(id)
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rfind(|local| *local.name == *name)
    }

    fn cost(&mut self, id: ExprId) -> Range {
        match self.expr(id) {
            Expr::Unspecified | Expr::Literal(_) => Range::fixed(0),
            Expr::Ident(name) => self.ident(id, name),
            Expr::Select {
                operand,
                field,
                test_only,
            } => self.select(id, *operand, field, *test_only),
            Expr::Call {
                target,
                function,
                args,
            } => self.call(id, *target, function, args),
            Expr::List { elements, .. } => self.list(id, elements),
            Expr::Map(entries) => self.map(id, entries),
            Expr::Struct { fields, .. } => {
                let costs = fields.iter().map(|field| self.cost(field.value));
                costs.fold(Range::fixed(cost::STRUCT), Range::plus)
            }
            Expr::Comprehension(fold) if self.is_binding(fold) => self.binding(id, fold),
            Expr::Comprehension(fold) => self.comprehension(id, fold),
        }
    }

    fn ident(&mut self, id: ExprId, name: &Arc<str>) -> Range {
        let path = match self.local(name) {
            Some(local) => local.path.clone(),
            None => vec![name.clone()],
        };
        self.paths.insert(id, path);
        Range::fixed(cost::ACCESS)
    }

    fn select(&mut self, id: ExprId, operand: ExprId, field: &Arc<str>, test_only: bool) -> Range {
        if test_only {
            return Range::fixed(self.presence).plus(self.cost(operand));
        }
        // What the checker found to be one variable's name with dots.
        if let Some(name) = self.checked.variable(id) {
            self.paths.insert(id, vec![name.clone()]);
            return Range::fixed(cost::ACCESS);
        }
        let mut sum = self.cost(operand);
        if matches!(
            self.checked.type_of(operand),
            Type::Map(_) | Type::Struct(_) | Type::Param(_)
        ) {
            sum = sum.plus(Range::fixed(cost::ACCESS));
        }
        let mut path = self.path(operand);
        path.push(field.clone());
        self.paths.insert(id, path);
        sum
    }

    fn list(&mut self, id: ExprId, elements: &[ExprId]) -> Range {
        let mut sum = Range::fixed(cost::LIST);
        let mut value = Range::NONE;
        for element in elements {
            sum = sum.plus(self.cost(*element));
            value = value.union(self.size_or_unknown(*element));
        }
        if elements.is_empty() {
            value.min = 0;
        }
        let entry = EntrySize {
            container: Container::List,
            key: Range::fixed(1),
            value,
        };
        self.entries.insert(id, entry);
        sum
    }

    fn map(&mut self, id: ExprId, entries: &[Entry]) -> Range {
        let mut sum = Range::fixed(cost::MAP);
        let (mut key, mut value) = (Range::NONE, Range::NONE);
        for entry in entries {
            sum = sum.plus(self.cost(entry.key));
            sum = sum.plus(self.cost(entry.value));
            key = key.union(self.size_or_unknown(entry.key));
            value = value.union(self.size_or_unknown(entry.value));
        }
        if entries.is_empty() {
            (key.min, value.min) = (0, 0);
        }
        let entry = EntrySize {
            container: Container::Map,
            key,
            value,
        };
        self.entries.insert(id, entry);
        sum
    }

    /// Returns whether a loop over nothing only gives a name to a value.
    fn is_binding(&self, fold: &Comprehension) -> bool {
        let nothing =
            matches!(self.expr(fold.range), Expr::List { elements, .. } if elements.is_empty());
        let never = matches!(
            self.expr(fold.condition),
            Expr::Literal(Literal::Bool(false))
        );
        nothing && never
    }

    fn push(&mut self, name: &Arc<str>, of: ExprId) {
        let local = Local {
            name: name.clone(),
            path: self.path(of),
            size: self.size(of),
            entry: self.entry(of),
        };
        self.locals.push(local);
    }

    fn push_part(&mut self, name: &Arc<str>, range: ExprId, part: Part) {
        let entry = self.entry(range);
        let container = match (entry, self.checked.type_of(range)) {
            (Some(entry), _) => entry.container,
            (None, Type::List(_)) => Container::List,
            (None, _) => Container::Map,
        };
        let is_value = part == Part::Value || part == Part::Single && container == Container::List;
        let last = match (is_value, container) {
            (true, Container::List) => "@items",
            (true, Container::Map) => "@values",
            (false, Container::List) => "@indices",
            (false, Container::Map) => "@keys",
        };
        let mut path = self.path(range);
        path.push(last.into());
        let size = entry.map(|entry| if is_value { entry.value } else { entry.key });
        self.locals.push(Local {
            name: name.clone(),
            path,
            size,
            entry: None,
        });
    }

    fn binding(&mut self, id: ExprId, fold: &Comprehension) -> Range {
        let sum = self.cost(fold.range).plus(self.cost(fold.init));
        self.push(&fold.accumulator, fold.init);
        let sum = sum.plus(self.cost(fold.result));
        self.locals.pop();
        self.copy_sizes(id, fold.result);
        sum
    }

    fn comprehension(&mut self, id: ExprId, fold: &Comprehension) -> Range {
        let sum = self.cost(fold.range).plus(self.cost(fold.init));
        let depth = self.locals.len();
        self.push(&fold.accumulator, fold.init);
        match &fold.second {
            Some(second) => {
                self.push_part(&fold.variable, fold.range, Part::Key);
                self.push_part(second, fold.range, Part::Value);
            }
            None => self.push_part(&fold.variable, fold.range, Part::Single),
        }
        let turn = self.cost(fold.condition);
        let turn = self.cost(fold.step).plus(turn);
        self.locals.truncate(depth + 1);
        let sum = sum.plus(self.cost(fold.result));
        self.locals.truncate(depth);
        let count = self.size_or_unknown(fold.range);
        match self.expr(fold.init) {
            Expr::Literal(_) => {
                if let Some(size) = self.size(fold.init) {
                    self.computed.insert(id, size);
                }
            }
            Expr::List { .. } | Expr::Map(_) => {
                self.computed.insert(id, count);
                if let Some(entry) = self.entry(fold.step) {
                    self.entries.insert(id, entry);
                }
            }
            _ => {}
        }
        sum.plus(count.times(turn))
    }

    fn path(&self, id: ExprId) -> Vec<Arc<str>> {
        if let Expr::Ident(name) = self.expr(id)
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&id).cloned().unwrap_or_default()
    }

    fn copy_sizes(&mut self, to: ExprId, from: ExprId) {
        if let Some(size) = self.size(from) {
            self.computed.insert(to, size);
        }
        if let Some(entry) = self.entry(from) {
            self.entries.insert(to, entry);
        }
    }

    fn entry(&self, id: ExprId) -> Option<EntrySize> {
        let found = self.entries.get(&id).copied();
        found.or_else(|| match self.expr(id) {
            Expr::Ident(name) => self.local(name)?.entry,
            _ => None,
        })
    }

    fn size_or_unknown(&mut self, id: ExprId) -> Range {
        self.size(id).unwrap_or(Range::UNKNOWN)
    }

    /// Returns what is known of the size of a node's value.
    fn size(&mut self, id: ExprId) -> Option<Range> {
        if let Some(found) = self.computed.get(&id) {
            return Some(*found);
        }
        let expr = self.expr(id);
        if let Some(found) = written_size(expr) {
            return Some(Range::fixed(found));
        }
        let of = self.checked.type_of(id);
        if let Some(found) = self.sizes.size(&self.path(id), of) {
            self.computed.insert(id, found);
            return Some(found);
        }
        if is_scalar(of) {
            return Some(Range::fixed(1));
        }
        match expr {
            Expr::Ident(name) => self.local(name)?.size,
            _ => None,
        }
    }
}

/// Returns the size of what stands in the expression itself.
fn written_size(expr: &Expr) -> Option<u64> {
    let size = match expr {
        Expr::Literal(Literal::String(text)) => text.chars().count(),
        Expr::Literal(Literal::Bytes(bytes)) => bytes.len(),
        Expr::Literal(_) => 1,
        Expr::List { elements, .. } => elements.len(),
        Expr::Map(entries) => entries.len(),
        _ => return None,
    };
    Some(size as u64)
}

fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => {
            true
        }
        other => other.unwrapped().is_some_and(is_scalar),
    }
}
