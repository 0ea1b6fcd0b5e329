//! Writes a tree back as text.

use crate::ast::{Ast, Expr, ExprId, Literal};

/// How tightly the operators bind; a part that binds less tightly than its place needs brackets.
const BINARY: [(&str, &str, u8); 14] = [
    ("_||_", "||", 2),
    ("_&&_", "&&", 3),
    ("_<_", "<", 4),
    ("_<=_", "<=", 4),
    ("_>=_", ">=", 4),
    ("_>_", ">", 4),
    ("_==_", "==", 4),
    ("_!=_", "!=", 4),
    ("@in", "in", 4),
    ("_+_", "+", 5),
    ("_-_", "-", 5),
    ("_*_", "*", 6),
    ("_/_", "/", 6),
    ("_%_", "%", 6),
];
const TERNARY: u8 = 1;
const UNARY: u8 = 7;
const MEMBER: u8 = 8;

/// Returns the expression as text. Parsed again, it gives the same tree.
#[must_use]
pub fn print(ast: &Ast) -> String {
    let mut printer = Printer {
        ast,
        out: String::new(),
    };
    printer.expr(ast.root(), 0);
    printer.out
}

struct Printer<'a> {
    ast: &'a Ast,
    out: String,
}

impl<'a> Printer<'a> {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn expr(&mut self, id: ExprId, least: u8) {
        let expr = self.ast.macro_call(id).unwrap_or(self.ast.expr(id));
        let tightness = tightness(expr);
        if tightness < least {
            self.push("(");
        }
        self.bare(expr);
        if tightness < least {
            self.push(")");
        }
    }

    fn bare(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Unspecified | Expr::Comprehension(_) => {}
            Expr::Literal(literal) => self.literal(literal),
            Expr::Ident(name) => self.push(name),
            Expr::Select {
                operand,
                field,
                test_only,
            } => {
                if *test_only {
                    self.push("has(");
                }
                self.expr(*operand, MEMBER);
                self.push(".");
                self.field(field);
                if *test_only {
                    self.push(")");
                }
            }
            Expr::Call {
                target,
                function,
                args,
            } => self.call(*target, function, args),
            Expr::List { elements, optional } => {
                self.push("[");
                for (number, element) in elements.iter().enumerate() {
                    self.comma(number);
                    let index = u32::try_from(number).unwrap_or(u32::MAX);
                    self.question(optional.contains(&index));
                    self.expr(*element, 0);
                }
                self.push("]");
            }
            Expr::Map(entries) => {
                self.push("{");
                for (number, entry) in entries.iter().enumerate() {
                    self.comma(number);
                    self.question(entry.optional);
                    self.expr(entry.key, 0);
                    self.push(": ");
                    self.expr(entry.value, 0);
                }
                self.push("}");
            }
            Expr::Struct { name, fields } => {
                self.push(name);
                self.push("{");
                for (number, field) in fields.iter().enumerate() {
                    self.comma(number);
                    self.question(field.optional);
                    self.field(&field.name);
                    self.push(": ");
                    self.expr(field.value, 0);
                }
                self.push("}");
            }
        }
    }

    fn comma(&mut self, number: usize) {
        if number > 0 {
            self.push(", ");
        }
    }

    fn question(&mut self, optional: bool) {
        if optional {
            self.push("?");
        }
    }

    fn field(&mut self, name: &str) {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_name = name.chars().all(plain)
            && !name.starts_with(|letter: char| letter.is_ascii_digit())
            && !["in", "true", "false", "null"].contains(&name);
        if is_name {
            self.push(name);
        } else {
            self.push("`");
            self.push(name);
            self.push("`");
        }
    }

    fn call(&mut self, target: Option<ExprId>, function: &str, args: &[ExprId]) {
        if let (None, [left, right]) = (target, args) {
            if let Some((_, mark, tightness)) = BINARY.iter().find(|row| row.0 == function) {
                // `&&` and `||` are balanced trees: their operands may be grouped either way.
                self.expr(*left, *tightness);
                self.push(" ");
                self.push(mark);
                self.push(" ");
                self.expr(*right, *tightness + 1);
                return;
            }
            match (function, self.ast.expr(*right)) {
                ("_[_]" | "_[?_]", _) => {
                    self.expr(*left, MEMBER);
                    self.push(if function == "_[_]" { "[" } else { "[?" });
                    self.expr(*right, 0);
                    self.push("]");
                    return;
                }
                ("_?._", Expr::Literal(Literal::String(name))) => {
                    self.expr(*left, MEMBER);
                    self.push(".?");
                    self.field(name);
                    return;
                }
                _ => {}
            }
        }
        match (target, function, args) {
            (None, "_?_:_", [test, yes, no]) => {
                self.expr(*test, TERNARY + 1);
                self.push(" ? ");
                self.expr(*yes, TERNARY + 1);
                self.push(" : ");
                self.expr(*no, TERNARY);
                return;
            }
            (None, "!_" | "-_", [operand]) => {
                self.push(&function[..1]);
                self.unary_operand(*operand);
                return;
            }
            (Some(target), _, _) => {
                self.expr(target, MEMBER);
                self.push(".");
            }
            _ => {}
        }
        self.push(function);
        self.push("(");
        for (number, argument) in args.iter().enumerate() {
            self.comma(number);
            self.expr(*argument, 0);
        }
        self.push(")");
    }

    /// Writes what `!` or `-` applies to: `--a` and `-(-1)` are not the same as `a` and `1`.
    fn unary_operand(&mut self, operand: ExprId) {
        let number = matches!(
            self.ast.expr(self.leftmost(operand)),
            Expr::Literal(Literal::Int(_) | Literal::Double(_))
        );
        self.expr(operand, if number { u8::MAX } else { MEMBER });
    }

    /// Returns what the text of an operand begins with.
    fn leftmost(&self, mut id: ExprId) -> ExprId {
        loop {
            id = match self.ast.macro_call(id).unwrap_or(self.ast.expr(id)) {
                Expr::Select {
                    operand,
                    test_only: false,
                    ..
                } => *operand,
                Expr::Call {
                    target: Some(target),
                    ..
                } => *target,
                Expr::Call { function, args, .. }
                    if ["_[_]", "_[?_]", "_?._"].contains(&&**function) && !args.is_empty() =>
                {
                    args[0]
                }
                _ => return id,
            };
        }
    }

    fn literal(&mut self, literal: &Literal) {
        match literal {
            Literal::Null => self.push("null"),
            Literal::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Literal::Int(value) => self.push(&value.to_string()),
            Literal::Uint(value) => self.push(&format!("{value}u")),
            Literal::Double(value) => self.push(&format!("{value:?}")),
            Literal::String(value) => {
                self.push("\"");
                for letter in value.chars() {
                    self.letter(letter);
                }
                self.push("\"");
            }
            Literal::Bytes(value) => {
                self.push("b\"");
                for byte in value.iter() {
                    self.push(&format!("\\x{byte:02x}"));
                }
                self.push("\"");
            }
        }
    }

    fn letter(&mut self, letter: char) {
        match letter {
            '"' => self.push("\\\""),
            '\\' => self.push("\\\\"),
            '\n' => self.push("\\n"),
            '\r' => self.push("\\r"),
            '\t' => self.push("\\t"),
            other if other.is_control() => self.push(&format!("\\U{:08x}", u32::from(other))),
            other => self.out.push(other),
        }
    }
}

fn tightness(expr: &Expr) -> u8 {
    match expr {
        Expr::Call {
            target: None,
            function,
            ..
        } => match &**function {
            "_?_:_" => TERNARY,
            "!_" | "-_" => UNARY,
            name => BINARY
                .iter()
                .find(|row| row.0 == name)
                .map_or(MEMBER, |row| row.2),
        },
        Expr::Literal(Literal::Int(value)) if *value < 0 => UNARY,
        Expr::Literal(Literal::Double(value)) if value.is_sign_negative() => UNARY,
        _ => MEMBER,
    }
}
