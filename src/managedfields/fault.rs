//! The reasons why an object does not fit its schema, with upstream's texts.

use std::fmt;

use crate::element::Borrowed;

/// The faults of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The place, such as `.spec.ports[name="a"]`; empty for the whole object.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

impl std::error::Error for Faults {}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => out.write_str(&self.message),
            path => write!(out, "{path}: {}", self.message),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(out);
        }
        out.write_str("errors:")?;
        self.0
            .iter()
            .try_for_each(|fault| write!(out, "\n  {fault}"))
    }
}

impl Faults {
    /// Adds a fault at the place that a walk is at.
    pub(crate) fn push(&mut self, message: impl Into<String>) {
        self.0.push(Fault {
            path: String::new(),
            message: message.into(),
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts an element before the paths of the faults since `mark`, when a walk leaves it.
    pub(crate) fn prefix(&mut self, mark: usize, element: &Borrowed<'_>) {
        for fault in &mut self.0[mark..] {
            let mut path = String::new();
            element.show(&mut path);
            path.push_str(&fault.path);
            fault.path = path;
        }
    }

    /// Returns an error if there are faults.
    pub(crate) fn check(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}
