//! Recursive descent over upstream's grammar.
//!
//! Ids are taken in the order in which upstream takes them, because the ids stand in its error
//! texts and its cost model goes by them.

mod collections;
mod complaints;

use crate::ast::{Expr, ExprId};
use crate::source::Issue;

use complaints::{FIELD, INDEX, OPERANDS, Place};

use super::lex::{Kind, Token};
use super::{Builder, RESERVED, Syntax, literal};

/// The error that parsing stopped, because the rest cannot be understood after a complaint.
struct ParseAborted;

/// A parsed part and how deep it nests, as upstream counts.
#[derive(Clone, Copy)]
struct Part {
    id: ExprId,
    height: usize,
}

impl Part {
    fn leaf(id: ExprId) -> Self {
        Self { id, height: 0 }
    }
}

/// The rules of the grammar that nest; upstream limits each on its own.
#[derive(Clone, Copy)]
enum Rule {
    Expr,
    Relation,
    Calc,
    Member,
}

/// Parses the tokens and returns the root. Complaints are in the builder.
pub(super) fn parse(
    letters: &[char],
    tokens: &[Token],
    syntax: &Syntax,
    builder: &mut Builder,
) -> ExprId {
    let mut parser = Parser {
        letters,
        tokens,
        places: Vec::new(),
        next: 0,
        depths: [0; 4],
        syntax,
        builder,
    };
    match parser.expression() {
        Ok(part) => {
            parser.end();
            part.id
        }
        Err(ParseAborted) => parser.builder.id(0),
    }
}

struct Parser<'a> {
    letters: &'a [char],
    tokens: &'a [Token],
    next: usize,
    depths: [usize; 4],
    /// Where the current expression stands, the innermost place last.
    places: Vec<Place>,
    syntax: &'a Syntax,
    builder: &'a mut Builder,
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

    /// Counts one more level of a rule.
    fn enter(&mut self, rule: Rule) -> Result<(), ParseAborted> {
        let max = self.syntax.depth_max;
        let depth = &mut self.depths[rule as usize];
        *depth += 1;
        if *depth > max {
            let issue = Issue::whole(format!("expression recursion limit exceeded: {max}"));
            self.builder.issues.push(issue);
            return Err(ParseAborted);
        }
        Ok(())
    }

    fn leave(&mut self, rule: Rule) {
        self.depths[rule as usize] -= 1;
    }

    /// Checks how deep a part nests. Chains such as `a.b.c` do, though they are read in a loop.
    fn checked(&mut self, part: Part) -> Result<Part, ParseAborted> {
        if part.height > self.syntax.depth_max {
            let issue = Issue::whole("max recursion depth exceeded");
            self.builder.issues.push(issue);
            return Err(ParseAborted);
        }
        Ok(part)
    }

    fn expression(&mut self) -> Result<Part, ParseAborted> {
        self.enter(Rule::Expr)?;
        let condition = self.logical("||")?;
        let at = self.peek(0).at;
        let part = if self.take("?") {
            let id = self.builder.id(at);
            let chosen = self.within(Place::Middle, |parser| parser.logical("||"))?;
            self.expect(":")?;
            let other = self.expression()?;
            let height = condition.height.max(chosen.height).max(other.height) + 1;
            let part = self.checked(Part { id, height })?;
            let args = vec![condition.id, chosen.id, other.id];
            let id = self.builder.call(id, "_?_:_", args);
            Part { id, ..part }
        } else {
            condition
        };
        self.leave(Rule::Expr);
        Ok(part)
    }

    /// Parses `||`, and `&&` inside it; the terms become a balanced tree.
    fn logical(&mut self, mark: &str) -> Result<Part, ParseAborted> {
        let next = |parser: &mut Self| {
            if mark == "||" {
                parser.logical("&&")
            } else {
                parser.relation(1)
            }
        };
        let first = next(self)?;
        let (mut terms, mut ids, mut height) = (vec![first.id], Vec::new(), first.height);
        loop {
            let at = self.peek(0).at;
            if !self.take(mark) {
                break;
            }
            let term = next(self)?;
            height = height.max(term.height);
            terms.push(term.id);
            ids.push(self.builder.id(at));
        }
        let function = if mark == "||" { "_||_" } else { "_&&_" };
        let id = if ids.is_empty() {
            first.id
        } else {
            self.balanced(function, &terms, &ids)
        };
        Ok(Part { id, height })
    }

    fn balanced(&mut self, function: &str, terms: &[ExprId], ids: &[ExprId]) -> ExprId {
        let middle = ids.len() / 2;
        let half = |parser: &mut Self, terms: &[ExprId], ids: &[ExprId]| {
            if ids.is_empty() {
                terms[0]
            } else {
                parser.balanced(function, terms, ids)
            }
        };
        let left = half(self, &terms[..=middle], &ids[..middle]);
        let right = half(self, &terms[middle + 1..], &ids[middle + 1..]);
        let call = Expr::Call {
            target: None,
            function: function.into(),
            args: [left, right].into(),
        };
        self.builder.set(ids[middle], call)
    }

    fn relation(&mut self, tightness: usize) -> Result<Part, ParseAborted> {
        const MARKS: [(&str, &str); 7] = [
            ("<", "_<_"),
            ("<=", "_<=_"),
            (">=", "_>=_"),
            (">", "_>_"),
            ("==", "_==_"),
            ("!=", "_!=_"),
            ("in", "@in"),
        ];
        self.enter(Rule::Relation)?;
        let mut left = self.calc(1)?;
        loop {
            let loose = (tightness == 1).then(|| self.operator(&MARKS)).flatten();
            let Some(function) = loose else {
                break;
            };
            let id = self.builder.id(self.tokens[self.next - 1].at);
            let right = self.relation(2)?;
            left = self.binary(id, function, left, right)?;
        }
        self.leave(Rule::Relation);
        Ok(left)
    }

    fn calc(&mut self, tightness: usize) -> Result<Part, ParseAborted> {
        const PRODUCTS: [(&str, &str); 3] = [("*", "_*_"), ("/", "_/_"), ("%", "_%_")];
        const SUMS: [(&str, &str); 2] = [("+", "_+_"), ("-", "_-_")];
        self.enter(Rule::Calc)?;
        let mut left = self.unary()?;
        loop {
            let product = (tightness <= 2).then(|| self.operator(&PRODUCTS)).flatten();
            let sum = || self.operator(&SUMS);
            let (function, inner) = match product {
                Some(function) => (function, 3),
                None => match (tightness <= 1).then(sum).flatten() {
                    Some(function) => (function, 2),
                    None => break,
                },
            };
            let id = self.builder.id(self.tokens[self.next - 1].at);
            let right = self.calc(inner)?;
            left = self.binary(id, function, left, right)?;
        }
        self.leave(Rule::Calc);
        Ok(left)
    }

    fn operator(&mut self, marks: &[(&str, &'static str)]) -> Option<&'static str> {
        let found = marks.iter().find(|(mark, _)| self.peek(0).is(mark));
        found.map(|(_, function)| {
            self.next += 1;
            *function
        })
    }

    fn binary(
        &mut self,
        id: ExprId,
        function: &str,
        left: Part,
        right: Part,
    ) -> Result<Part, ParseAborted> {
        let height = left.height.max(right.height) + 1;
        let part = self.checked(Part { id, height })?;
        let id = self.builder.call(id, function, vec![left.id, right.id]);
        Ok(Part { id, ..part })
    }

    fn unary(&mut self) -> Result<Part, ParseAborted> {
        let token = self.peek(0);
        if !begins(token) && token.kind != Kind::End && begins(self.peek(1)) {
            self.extraneous(OPERANDS);
        }
        for (mark, function) in [("!", "!_"), ("-", "-_")] {
            let at = self.peek(0).at;
            if !self.peek(0).is(mark) {
                continue;
            }
            let is_number = |token: &Token| matches!(token.kind, Kind::Int | Kind::Float);
            if mark == "-" && is_number(self.peek(1)) {
                break;
            }
            let mut count = 0;
            while self.take(mark) {
                count += 1;
            }
            if mark == "-" && !begins_member(self.peek(0)) {
                let minus = self.tokens[self.next - 1].at;
                return Err(self.no_viable(minus));
            }
            if count % 2 == 0 {
                return self.member();
            }
            let id = self.builder.id(at);
            let operand = self.member()?;
            return Ok(Part {
                id: self.builder.call(id, function, vec![operand.id]),
                height: operand.height,
            });
        }
        self.member()
    }

    fn member(&mut self) -> Result<Part, ParseAborted> {
        self.enter(Rule::Member)?;
        let mut part = self.primary()?;
        loop {
            let at = self.peek(0).at;
            if self.take(".") {
                part = self.selection(part, at)?;
            } else if self.take("[") {
                let function = self.optional_mark("_[_]", "_[?_]", at, "[?");
                let id = self.builder.id(at);
                if function == "_[_]" {
                    self.operand(INDEX)?;
                }
                let index = self.within(Place::Index, Self::expression)?;
                self.close("]")?;
                part = self.binary(id, function, part, index)?;
            } else {
                break;
            }
        }
        self.leave(Rule::Member);
        Ok(part)
    }

    /// Takes a question mark if there is one and chooses between two functions by it.
    fn optional_mark(
        &mut self,
        plain: &'static str,
        optional: &'static str,
        at: usize,
        shown: &str,
    ) -> &'static str {
        if !self.take("?") {
            return plain;
        }
        if !self.syntax.optionals {
            self.complain(at, format!("unsupported syntax '{shown}'"));
        }
        optional
    }

    /// Parses what follows a dot: a field or a call.
    fn selection(&mut self, operand: Part, dot: usize) -> Result<Part, ParseAborted> {
        let function = self.optional_mark("", "_?._", dot, ".?");
        let (name, name_at, quoted) = self.field_name(dot)?;
        let open = self.peek(0).at;
        if function.is_empty() && !quoted && self.take("(") {
            let id = self.builder.id(open);
            let (args, height) = self.arguments()?;
            let height = height.max(operand.height) + 1;
            let part = self.checked(Part { id, height })?;
            let target = Some(operand.id);
            let id = self.builder.call_or_macro(id, &name, target, args);
            return Ok(Part { id, ..part });
        }
        let id = self.builder.id(dot);
        if function.is_empty() {
            let select = Expr::Select {
                operand: operand.id,
                field: name.into(),
                test_only: false,
            };
            self.builder.set(id, select);
        } else {
            let name = Expr::Literal(crate::ast::Literal::String(name.into()));
            let name = self.builder.add(name_at, name);
            let call = Expr::Call {
                target: None,
                function: function.into(),
                args: [operand.id, name].into(),
            };
            self.builder.set(id, call);
        }
        let height = operand.height + 1;
        self.checked(Part { id, height })
    }

    /// Parses the name after a dot; true if it stands between backticks.
    fn field_name(&mut self, dot: usize) -> Result<(String, usize, bool), ParseAborted> {
        let token = self.peek(0);
        match token.kind {
            Kind::Name => {
                self.next += 1;
                Ok((token.text.clone(), token.at, false))
            }
            Kind::Quoted => {
                self.next += 1;
                let inner = &token.text[1..token.text.len() - 1];
                Ok((inner.to_owned(), token.at, true))
            }
            // Upstream rewrites its text if a word directly follows the dot.
            Kind::Word if token.at == dot + 1 => Err(self.mismatch("IDENTIFIER")),
            _ if self.tokens[self.next - 1].is("?") => Err(self.mismatch(FIELD)),
            _ => Err(self.no_viable(dot)),
        }
    }

    fn primary(&mut self) -> Result<Part, ParseAborted> {
        let token = self.peek(0);
        match token.kind {
            Kind::Mark if token.is("-") => {
                self.next += 1;
                let number = self.peek(0);
                self.next += 1;
                Ok(self.literal(token.at, number, true))
            }
            Kind::Int | Kind::Uint | Kind::Float | Kind::Text | Kind::Bytes | Kind::Word => {
                self.next += 1;
                Ok(self.literal(token.at, token, false))
            }
            Kind::Name => self.name(),
            Kind::Mark if token.is(".") => self.name(),
            Kind::Mark if self.take("(") => {
                let inner = self.within(Place::Brackets, Self::expression)?;
                self.close(")")?;
                Ok(inner)
            }
            Kind::Mark if self.take("[") => self.list(token.at),
            Kind::Mark if self.take("{") => self.map(token.at),
            _ => Err(self.mismatch(OPERANDS)),
        }
    }

    fn literal(&mut self, at: usize, token: &Token, negative: bool) -> Part {
        Part::leaf(match literal::value(token, negative) {
            Ok(value) => self.builder.add(at, Expr::Literal(value)),
            Err(text) => self.builder.complain(at, text),
        })
    }

    /// Parses what begins with a name: a variable, a call or a message.
    fn name(&mut self) -> Result<Part, ParseAborted> {
        let begin = self.peek(0).at;
        let dot = self.take(".");
        let token = self.peek(0);
        if token.kind != Kind::Name {
            return Err(if token.kind == Kind::Word && token.at == begin + 1 {
                self.mismatch("IDENTIFIER")
            } else {
                self.no_viable(begin)
            });
        }
        if let Some(names) = self.message_name() {
            return self.message(dot, names);
        }
        self.next += 1;
        let name = format!("{}{}", if dot { "." } else { "" }, token.text);
        let open = self.peek(0).at;
        let is_call = self.take("(");
        let reserved = RESERVED.contains(&token.text.as_str());
        let id = match (is_call, reserved) {
            (_, true) => {
                let text = format!("reserved identifier: {}", token.text);
                self.builder.complain(begin, text)
            }
            (true, false) => self.builder.id(open),
            (false, false) => {
                let name = Expr::Ident(name.as_str().into());
                self.builder.add(token.at, name)
            }
        };
        if !is_call {
            return Ok(Part::leaf(id));
        }
        let (args, height) = self.arguments()?;
        let id = if reserved {
            id
        } else {
            self.builder.call_or_macro(id, &name, None, args)
        };
        Ok(Part { id, height })
    }
}

/// Returns true for a token that may begin an operand.
fn begins(token: &Token) -> bool {
    match token.kind {
        Kind::Name | Kind::Int | Kind::Uint | Kind::Float => true,
        Kind::Text | Kind::Bytes | Kind::Word => true,
        Kind::Quoted | Kind::End => false,
        Kind::Mark => ["[", "{", "(", ".", "-", "!"].contains(&token.text.as_str()),
    }
}

/// Returns true for a token that may begin what a minus belongs to.
fn begins_member(token: &Token) -> bool {
    begins(token) && !token.is("-") && !token.is("!")
}
