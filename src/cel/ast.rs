//! The syntax tree: an arena of nodes that name each other by id.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::source::Source;
use crate::types::Type;

/// The id of a node. It is the node's place in the arena and also the number that upstream gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExprId(pub(crate) u32);

impl ExprId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the number that upstream gives the node.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A constant in an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A signed number of 64 bits.
    Int(i64),
    /// An unsigned number of 64 bits.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    String(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
}

impl Literal {
    /// Returns its type.
    pub(crate) fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
        }
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A node that could not be parsed, or an entry's id. Never part of a tree that is evaluated.
    Unspecified,
    /// A constant.
    Literal(Literal),
    /// A name. A leading dot says that it is looked up from the root.
    Ident(Arc<str>),
    /// A field.
    Select {
        /// What has the field.
        operand: ExprId,
        /// The field's name.
        field: Arc<str>,
        /// True for `has(…)`: only whether the field is there.
        test_only: bool,
    },
    /// A function or an operator.
    Call {
        /// The receiver, if the call has one.
        target: Option<ExprId>,
        /// The name of the function; operators have names such as `_+_`.
        function: Arc<str>,
        /// The arguments without the receiver.
        args: Box<[ExprId]>,
    },
    /// A list.
    List {
        /// The elements.
        elements: Box<[ExprId]>,
        /// The indexes of elements behind a question mark, ascending.
        optional: Box<[u32]>,
    },
    /// A map.
    Map(Box<[Entry]>),
    /// A message that is built.
    Struct {
        /// The name of its type.
        name: Arc<str>,
        /// Its fields.
        fields: Box<[Field]>,
    },
    /// A loop, which only macros make.
    Comprehension(Box<Comprehension>),
}

/// An entry of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The entry's own id.
    pub id: ExprId,
    /// The key.
    pub key: ExprId,
    /// The value.
    pub value: ExprId,
    /// True behind a question mark.
    pub optional: bool,
}

/// A field of a message that is built.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The field's own id.
    pub id: ExprId,
    /// The field's name.
    pub name: Arc<str>,
    /// The value.
    pub value: ExprId,
    /// True behind a question mark.
    pub optional: bool,
}

/// A loop over a list or the keys of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Comprehension {
    /// What is iterated.
    pub range: ExprId,
    /// The variable of the element or key; of the index or key if there is a second one.
    pub variable: Arc<str>,
    /// The variable of the element or value.
    pub second: Option<Arc<str>>,
    /// The variable of the intermediate result.
    pub accumulator: Arc<str>,
    /// The first intermediate result.
    pub init: ExprId,
    /// Whether to go on.
    pub condition: ExprId,
    /// The next intermediate result.
    pub step: ExprId,
    /// The result at the end.
    pub result: ExprId,
}

/// The tree of an expression.
#[derive(Debug, Clone)]
pub struct Ast {
    pub(crate) source: Source,
    pub(crate) nodes: Vec<Expr>,
    pub(crate) positions: Vec<u32>,
    pub(crate) root: ExprId,
    /// The calls that macros replaced, by the id of what replaced them.
    pub(crate) macro_calls: BTreeMap<ExprId, Expr>,
}

/// Returns whether the element at a place is one of the optional ones of a list, which are in order.
pub(crate) fn is_optional(optional: &[u32], at: usize) -> bool {
    u32::try_from(at).is_ok_and(|at| optional.binary_search(&at).is_ok())
}

impl Ast {
    /// Returns the root.
    #[must_use]
    pub fn root(&self) -> ExprId {
        self.root
    }

    /// Returns a node.
    #[must_use]
    pub fn expr(&self, id: ExprId) -> &Expr {
        self.nodes.get(id.index()).unwrap_or(&Expr::Unspecified)
    }

    /// Returns the position of a node, in characters from the beginning.
    #[must_use]
    pub fn position(&self, id: ExprId) -> usize {
        self.positions.get(id.index()).map_or(0, |at| *at as usize)
    }

    /// Returns the nodes right below a node.
    #[must_use]
    pub fn children(&self, id: ExprId) -> Vec<ExprId> {
        match self.expr(id) {
            Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => Vec::new(),
            Expr::Select { operand, .. } => vec![*operand],
            Expr::Call { target, args, .. } => target.iter().chain(args.iter()).copied().collect(),
            Expr::List { elements, .. } => elements.to_vec(),
            Expr::Map(entries) => entries.iter().flat_map(|it| [it.key, it.value]).collect(),
            Expr::Struct { fields, .. } => fields.iter().map(|it| it.value).collect(),
            Expr::Comprehension(fold) => {
                vec![
                    fold.range,
                    fold.init,
                    fold.condition,
                    fold.step,
                    fold.result,
                ]
            }
        }
    }

    /// Returns whether a name stands anywhere in the tree by itself.
    #[must_use]
    pub fn mentions(&self, name: &str) -> bool {
        let is_it = |node: &Expr| matches!(node, Expr::Ident(known) if &**known == name);
        self.nodes.iter().any(is_it)
    }

    /// Returns the text that the tree was made from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the call that a macro replaced by `id`.
    #[must_use]
    pub fn macro_call(&self, id: ExprId) -> Option<&Expr> {
        self.macro_calls.get(&id)
    }
}
