//! Messages, lists, maps and arguments.

use crate::ast::{Entry, Expr, ExprId, Field};

use super::super::lex::Kind;
use super::complaints::{ARGUMENTS, FIELD, FIELDS, LIST, MAP, Place};
use super::{ParseAborted, Parser, Part};

impl Parser<'_> {
    /// Returns the number of tokens of the name if a message begins here.
    pub(super) fn message_name(&self) -> Option<usize> {
        let mut tokens = 1;
        while self.peek(tokens).is(".") && self.peek(tokens + 1).kind == Kind::Name {
            tokens += 2;
        }
        self.peek(tokens).is("{").then_some(tokens)
    }

    pub(super) fn message(&mut self, dot: bool, tokens: usize) -> Result<Part, ParseAborted> {
        let mut name = String::from(if dot { "." } else { "" });
        for _ in 0..tokens {
            name.push_str(&self.peek(0).text);
            self.next += 1;
        }
        let at = self.expect("{")?;
        let id = self.builder.id(at);
        let (mut fields, mut height) = (Vec::new(), 0);
        if !matches!(self.peek(0).kind, Kind::Name | Kind::Quoted) {
            self.operand(FIELDS)?;
        }
        while !self.take("}") {
            let field = self.builder.id(0);
            let optional = self.question();
            let (name, _, _) = self.entry_name()?;
            let colon = self.expect(":")?;
            self.place(field, colon);
            let value = self.within(Place::Value, Self::expression)?;
            height = height.max(value.height);
            fields.push(Field {
                id: field,
                name: name.into(),
                value: value.id,
                optional,
            });
            if !self.next_or_end("}")? {
                break;
            }
        }
        let message = Expr::Struct {
            name: name.into(),
            fields: fields.into(),
        };
        self.builder.set(id, message);
        Ok(Part { id, height })
    }

    fn entry_name(&mut self) -> Result<(String, usize, bool), ParseAborted> {
        let token = self.peek(0);
        if matches!(token.kind, Kind::Name | Kind::Quoted) {
            self.field_name(token.at)
        } else {
            Err(self.mismatch(FIELD))
        }
    }

    fn place(&mut self, id: ExprId, at: usize) {
        if let Some(position) = self.builder.positions.get_mut(id.index()) {
            *position = u32::try_from(at).unwrap_or(u32::MAX);
        }
    }

    fn question(&mut self) -> bool {
        let at = self.peek(0).at;
        let found = self.take("?");
        if found && !self.syntax.optionals {
            self.complain(at, "unsupported syntax '?'".to_owned());
        }
        found
    }

    pub(super) fn list(&mut self, at: usize) -> Result<Part, ParseAborted> {
        let id = self.builder.id(at);
        let (mut elements, mut optional, mut height) = (Vec::new(), Vec::new(), 0);
        if self.take(",") {
            self.expect("]")?;
            return Ok(self.set_list(id, elements, optional, height));
        }
        if !self.peek(0).is("]") && !self.peek(0).is("?") {
            self.operand(LIST)?;
        }
        while !self.take("]") {
            if self.question() {
                optional.push(u32::try_from(elements.len()).unwrap_or(u32::MAX));
            }
            let element = self.within(Place::List, Self::expression)?;
            height = height.max(element.height);
            elements.push(element.id);
            if !self.next_or_end("]")? || self.ends("]")? {
                break;
            }
        }
        Ok(self.set_list(id, elements, optional, height))
    }

    fn set_list(
        &mut self,
        id: ExprId,
        elements: Vec<ExprId>,
        optional: Vec<u32>,
        height: usize,
    ) -> Part {
        let list = Expr::List {
            elements: elements.into(),
            optional: optional.into(),
        };
        self.builder.set(id, list);
        Part { id, height }
    }

    pub(super) fn map(&mut self, at: usize) -> Result<Part, ParseAborted> {
        let id = self.builder.id(at);
        let (mut entries, mut height) = (Vec::new(), 0);
        if self.take(",") {
            self.expect("}")?;
            self.builder.set(id, Expr::Map(entries.into()));
            return Ok(Part { id, height });
        }
        if !self.peek(0).is("}") && !self.peek(0).is("?") {
            self.operand(MAP)?;
        }
        while !self.take("}") {
            let entry = self.builder.id(0);
            let optional = self.question();
            let key = self.within(Place::Key, Self::expression)?;
            let colon = self.expect(":")?;
            self.place(entry, colon);
            let value = self.within(Place::Value, Self::expression)?;
            height = height.max(key.height).max(value.height);
            entries.push(Entry {
                id: entry,
                key: key.id,
                value: value.id,
                optional,
            });
            if !self.next_or_end("}")? || self.ends("}")? {
                break;
            }
        }
        self.builder.set(id, Expr::Map(entries.into()));
        Ok(Part { id, height })
    }

    pub(super) fn arguments(&mut self) -> Result<(Vec<ExprId>, usize), ParseAborted> {
        let (mut args, mut height) = (Vec::new(), 0);
        if self.take(")") {
            return Ok((args, height));
        }
        self.operand(ARGUMENTS)?;
        if self.take(")") {
            return Ok((args, height));
        }
        loop {
            let part = self.within(Place::Arguments, Self::expression)?;
            args.push(part.id);
            height = height.max(part.height);
            if !self.take(",") {
                break;
            }
        }
        self.close(")")?;
        Ok((args, height))
    }
}
