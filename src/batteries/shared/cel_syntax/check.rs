//! Checks the names that an expression uses.

use super::parse::{Member, Node};
use super::{Complaint, Scope};

/// The names of types, and the first parts of the names of built-in functions and messages.
const BUILT_IN: [&str; 32] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "timestamp",
    "type",
    "uint",
    "base64",
    "cel",
    "cidr",
    "format",
    "google",
    "ip",
    "jsonpatch",
    "JSONPatch",
    "lists",
    "math",
    "net",
    "Object",
    "optional",
    "quantity",
    "regex",
    "semver",
    "sets",
    "strings",
];

/// Functions whose first arguments name variables that the other arguments can use.
const MACROS: [&str; 14] = [
    "all",
    "bind",
    "exists",
    "exists_one",
    "existsOne",
    "filter",
    "map",
    "optFlatMap",
    "optMap",
    "sortBy",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "block",
];

/// Returns complaints about names and fields in the expression that the scope does not have.
pub fn references(node: &Node, scope: &Scope<'_>) -> Vec<Complaint> {
    let mut checker = Checker {
        scope,
        inner: Vec::new(),
        complaints: Vec::new(),
    };
    checker.node(node);
    checker.complaints
}

struct Checker<'a> {
    scope: &'a Scope<'a>,
    /// The variables of the enclosing macros.
    inner: Vec<&'a str>,
    complaints: Vec<Complaint>,
}

impl<'a> Checker<'a> {
    fn node(&mut self, node: &'a Node) {
        match node {
            Node::Literal(_) => {}
            Node::Name { text, at } => self.name(text, *at),
            Node::Call { arguments: nodes }
            | Node::Message { values: nodes }
            | Node::Group(nodes) => {
                nodes.iter().for_each(|node| self.node(node));
            }
            Node::Chain { root, steps } => self.chain(root, steps),
        }
    }

    fn name(&mut self, text: &str, at: usize) {
        let known = self.inner.contains(&text)
            || BUILT_IN.contains(&text)
            || self.scope.variables.iter().any(|(name, _)| *name == text);
        if !known {
            let text = format!("undeclared reference to '{text}' (in container '')");
            self.complaints.push(Complaint { at, text });
        }
    }

    fn chain(&mut self, root: &'a Node, steps: &'a [Member]) {
        self.node(root);
        if let (Node::Name { text, .. }, Some(Member::Field { name, at })) = (root, steps.first()) {
            let variable = self
                .scope
                .variables
                .iter()
                .find(|(variable, _)| variable == text);
            let fields = variable
                .filter(|_| !self.inner.contains(&text.as_str()))
                .and_then(|(_, fields)| *fields);
            if fields.is_some_and(|fields| !fields.contains(&name.as_str())) {
                self.complaints.push(Complaint {
                    at: *at,
                    text: format!("undefined field '{name}'"),
                });
            }
        }
        for step in steps {
            match step {
                Member::Field { .. } => {}
                Member::Index(index) => self.node(index),
                Member::Call { name, arguments } => self.call(name, arguments),
            }
        }
    }

    fn call(&mut self, name: &str, arguments: &'a [Node]) {
        let outer = self.inner.len();
        let mut rest = arguments;
        if MACROS.contains(&name) {
            while let [Node::Name { text, .. }, others @ ..] = rest
                && !others.is_empty()
                && arguments.len() - rest.len() < 2
            {
                self.inner.push(text);
                rest = others;
                // Only comprehensions with at least three arguments have a second variable.
                if arguments.len() < 3 || name == "bind" {
                    break;
                }
            }
        }
        rest.iter().for_each(|argument| self.node(argument));
        self.inner.truncate(outer);
    }
}
