//! Parses expressions by their grammar.

use super::Complaint;
use super::lex::{Kind, Token};
use polyplane_apiextensions::rules::RESERVED;

/// The tokens that may begin an operand, as the compiler lists them.
const OPERANDS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
/// Most levels of nesting. Parsing is recursive, so this bounds the stack.
const DEPTH_MAX: usize = 250;

/// A part of an expression. Of an operator only its operands are kept.
#[derive(Debug)]
pub enum Node {
    /// A literal, with its type.
    Literal(&'static str),
    /// A name on its own.
    Name { text: String, at: usize },
    /// A function that is called by its name alone.
    Call { arguments: Vec<Node> },
    /// A message that is built, with its values.
    Message { values: Vec<Node> },
    /// A value and the accesses to its members, in order.
    Chain { root: Box<Node>, steps: Vec<Member> },
    /// Parts whose relation does not matter here.
    Group(Vec<Node>),
}

/// One access to a member of a value.
#[derive(Debug)]
pub enum Member {
    /// A field; `at` is the position of the dot.
    Field { name: String, at: usize },
    /// A function of the value.
    Call { name: String, arguments: Vec<Node> },
    /// An element by its index.
    Index(Node),
}

impl Node {
    /// Returns the type, if this is a literal.
    pub fn literal(&self) -> Option<&'static str> {
        match self {
            Self::Literal(kind) => Some(kind),
            _ => None,
        }
    }
}

/// Parses the expression. Returns it with the complaints about it.
pub fn parse(tokens: &[Token]) -> (Node, Vec<Complaint>) {
    let mut parser = Parser {
        tokens,
        next: 0,
        depth: 0,
        complaints: Vec::new(),
    };
    let node = match parser.expression() {
        Ok(node) => {
            parser.end();
            node
        }
        Err(ParseAborted) => Node::Group(Vec::new()),
    };
    (node, parser.complaints)
}

/// The error that parsing stopped, because the rest cannot be understood after a complaint.
struct ParseAborted;

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    depth: usize,
    complaints: Vec<Complaint>,
}

impl<'a> Parser<'a> {
    fn peek(&self, ahead: usize) -> &'a Token {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)]
    }

    fn take(&mut self, mark: &str) -> bool {
        let found = self.peek(0).is(mark);
        self.next += usize::from(found);
        found
    }

    fn complain(&mut self, at: usize, text: impl Into<String>) {
        self.complaints.push(Complaint {
            at,
            text: text.into(),
        });
    }

    fn mismatch(&mut self, expected: &str) -> ParseAborted {
        let token = self.peek(0);
        self.complain(
            token.at,
            format!(
                "Syntax error: mismatched input '{}' expecting {expected}",
                token.text
            ),
        );
        ParseAborted
    }

    fn expect(&mut self, mark: &str) -> Result<(), ParseAborted> {
        if self.take(mark) {
            Ok(())
        } else {
            Err(self.mismatch(&format!("'{mark}'")))
        }
    }

    /// Checks that nothing follows; a single extra token is skipped.
    fn end(&mut self) {
        let token = self.peek(0);
        if token.kind == Kind::End {
            return;
        }
        if self.peek(1).kind == Kind::End {
            self.complain(
                token.at,
                format!(
                    "Syntax error: extraneous input '{}' expecting <EOF>",
                    token.text
                ),
            );
        } else {
            self.mismatch("<EOF>");
        }
    }

    fn expression(&mut self) -> Result<Node, ParseAborted> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let text = format!("expression recursion limit exceeded: {DEPTH_MAX}");
            self.complain(self.peek(0).at, text);
            return Err(ParseAborted);
        }
        let condition = self.operators(0)?;
        let node = if self.take("?") {
            let chosen = self.operators(0)?;
            self.expect(":")?;
            Node::Group(vec![condition, chosen, self.expression()?])
        } else {
            condition
        };
        self.depth -= 1;
        Ok(node)
    }

    /// Parses operators that bind at least as loosely as those of `level`.
    fn operators(&mut self, level: usize) -> Result<Node, ParseAborted> {
        const LEVELS: [&[&str]; 5] = [
            &["||"],
            &["&&"],
            &["<", "<=", ">", ">=", "==", "!=", "in"],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let Some(marks) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut operands = vec![self.operators(level + 1)?];
        while marks.iter().any(|mark| self.take(mark)) {
            operands.push(self.operators(level + 1)?);
        }
        Ok(if operands.len() == 1 {
            operands.remove(0)
        } else {
            Node::Group(operands)
        })
    }

    fn unary(&mut self) -> Result<Node, ParseAborted> {
        let token = self.peek(0);
        if !begins(token) && token.kind != Kind::End && begins(self.peek(1)) {
            self.complain(
                token.at,
                format!(
                    "Syntax error: extraneous input '{}' expecting {OPERANDS}",
                    token.text
                ),
            );
            self.next += 1;
        }
        for mark in ["!", "-"] {
            if self.peek(0).is(mark) {
                while self.take(mark) {}
                let operand = self.member()?;
                let is_number = mark == "-" && matches!(operand.literal(), Some("int" | "double"));
                return Ok(if is_number {
                    operand
                } else {
                    Node::Group(vec![operand])
                });
            }
        }
        self.member()
    }

    fn member(&mut self) -> Result<Node, ParseAborted> {
        let mut root = self.primary()?;
        let mut steps = Vec::new();
        loop {
            let dot = self.peek(0).at;
            if self.take(".") {
                self.take("?");
                let name = self.field(dot)?;
                if self.take("(") {
                    steps.push(Member::Call {
                        name,
                        arguments: self.arguments()?,
                    });
                } else {
                    steps.push(Member::Field { name, at: dot });
                }
            } else if self.take("[") {
                self.take("?");
                steps.push(Member::Index(self.expression()?));
                self.expect("]")?;
            } else if self.peek(0).is("{") && is_name(&root, &steps) {
                self.next += 1;
                root = Node::Message {
                    values: self.entries(Entries::Message)?,
                };
                steps.clear();
            } else {
                break;
            }
        }
        Ok(if steps.is_empty() {
            root
        } else {
            Node::Chain {
                root: Box::new(root),
                steps,
            }
        })
    }

    /// Parses the name after a dot.
    fn field(&mut self, dot: usize) -> Result<String, ParseAborted> {
        let token = self.peek(0);
        if !matches!(token.kind, Kind::Name | Kind::Quoted) {
            let begin = self
                .tokens
                .iter()
                .position(|token| token.at == dot)
                .unwrap_or(self.next);
            let input: String = self.tokens[begin..=self.next.min(self.tokens.len() - 1)]
                .iter()
                .map(|token| token.text.as_str())
                .collect();
            self.complain(
                token.at,
                format!("Syntax error: no viable alternative at input '{input}'"),
            );
            return Err(ParseAborted);
        }
        self.next += 1;
        Ok(token.text.clone())
    }

    fn primary(&mut self) -> Result<Node, ParseAborted> {
        let token = self.peek(0);
        match &token.kind {
            Kind::Literal(kind) => {
                self.next += 1;
                Ok(Node::Literal(kind))
            }
            Kind::Name => {
                self.next += 1;
                self.name(token)
            }
            Kind::Mark if token.is(".") => {
                self.next += 1;
                self.field(token.at)?;
                self.next -= 1;
                let name = self.peek(0);
                self.next += 1;
                self.name(name)
            }
            Kind::Mark if self.take("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Kind::Mark if self.take("[") => Ok(Node::Group(self.entries(Entries::List)?)),
            Kind::Mark if self.take("{") => Ok(Node::Group(self.entries(Entries::Map)?)),
            _ => Err(self.mismatch(OPERANDS)),
        }
    }

    fn name(&mut self, token: &Token) -> Result<Node, ParseAborted> {
        if self.take("(") {
            return Ok(Node::Call {
                arguments: self.arguments()?,
            });
        }
        if RESERVED.contains(&token.text.as_str()) {
            self.complain(token.at, format!("reserved identifier: {}", token.text));
        }
        Ok(Node::Name {
            text: token.text.clone(),
            at: token.at,
        })
    }

    fn arguments(&mut self) -> Result<Vec<Node>, ParseAborted> {
        let mut arguments = Vec::new();
        if self.take(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(")")?;
        Ok(arguments)
    }

    /// Parses the content of brackets or braces; there may be a comma at the end.
    fn entries(&mut self, sort: Entries) -> Result<Vec<Node>, ParseAborted> {
        let close = if sort == Entries::List { "]" } else { "}" };
        let mut entries = Vec::new();
        while !self.take(close) {
            self.take("?");
            match sort {
                Entries::Message => {
                    self.field(self.peek(0).at)?;
                }
                Entries::List | Entries::Map => entries.push(self.expression()?),
            }
            if sort != Entries::List {
                self.expect(":")?;
                entries.push(self.expression()?);
            }
            if !self.take(",") {
                self.expect(close)?;
                break;
            }
        }
        Ok(entries)
    }
}

/// The kind of entries in brackets or braces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entries {
    List,
    Map,
    Message,
}

/// Returns true for a token that may begin an operand.
fn begins(token: &Token) -> bool {
    match token.kind {
        Kind::Name | Kind::Literal(_) => true,
        Kind::Quoted | Kind::End => false,
        Kind::Mark => ["[", "{", "(", ".", "-", "!"].contains(&token.text.as_str()),
    }
}

/// Returns true for names between dots, which may be the name of a message.
fn is_name(root: &Node, steps: &[Member]) -> bool {
    matches!(root, Node::Name { .. })
        && steps
            .iter()
            .all(|step| matches!(step, Member::Field { .. }))
}
