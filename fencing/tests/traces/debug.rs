//! Parses the output of `derive(Debug)`, as far as the traces need it.

use std::iter::Peekable;
use std::str::Chars;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The name of a struct or variant, a plain word or a number; empty for a list.
    pub name: String,
    /// Its fields in order; those of tuples and lists have no name.
    pub fields: Vec<(String, Value)>,
}

impl Value {
    /// Parses the value that a text begins with.
    pub fn read(text: &str) -> Self {
        value(&mut text.chars().peekable())
    }

    pub fn field(&self, name: &str) -> &Value {
        let found = self.fields.iter().find(|(known, _)| known == name);
        &found
            .unwrap_or_else(|| panic!("{} has no field {name}", self.name))
            .1
    }

    pub fn only(&self) -> &Value {
        &self
            .fields
            .first()
            .unwrap_or_else(|| panic!("{} has no field", self.name))
            .1
    }

    /// Returns the content of an `Option`.
    pub fn some(&self) -> Option<&Value> {
        (self.name == "Some").then(|| self.only())
    }

    /// Returns a number, or the number inside a newtype.
    pub fn number(&self) -> u64 {
        match self.fields.as_slice() {
            [] => self
                .name
                .parse()
                .unwrap_or_else(|_| panic!("{:?} is no number", self.name)),
            [(_, only)] => only.number(),
            _ => panic!("{} is no newtype", self.name),
        }
    }
}

fn value(text: &mut Peekable<Chars<'_>>) -> Value {
    let mut name = String::new();
    while let Some(letter) =
        text.next_if(|letter| letter.is_alphanumeric() || "_-".contains(*letter))
    {
        name.push(letter);
    }
    let mut fields = Vec::new();
    let mut after_name = text.clone();
    let opens = match after_name.next() {
        Some(' ') => after_name.next() == Some('{'),
        Some('(' | '[') => true,
        Some(_) | None => false,
    };
    if opens {
        skip(text, " ");
        text.next();
        skip(text, " ");
        while text.next_if(|letter| "})]".contains(*letter)).is_none() {
            fields.push(field(text));
            skip(text, ", ");
        }
    }
    Value { name, fields }
}

/// Returns a field, with its name if a colon follows the word.
fn field(text: &mut Peekable<Chars<'_>>) -> (String, Value) {
    let mut ahead = text.clone();
    let mut word = String::new();
    while let Some(letter) = ahead.next_if(|letter| letter.is_alphanumeric() || *letter == '_') {
        word.push(letter);
    }
    if ahead.next() != Some(':') {
        return (String::new(), value(text));
    }
    *text = ahead;
    skip(text, " ");
    (word, value(text))
}

fn skip(text: &mut Peekable<Chars<'_>>, any_of: &str) {
    while text.next_if(|letter| any_of.contains(*letter)).is_some() {}
}
