//! The reasons why an object does not fit its schema, with upstream's texts.

use std::fmt;

use polyplane_apimachinery::complaints::{BYTES_MAX, BoundedText, COUNT_MAX, PATH_BYTES_MAX};

use crate::element::Borrowed;

/// The faults of an object. Those for which one answer has no room are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    list: Vec<Fault>,
    /// Bytes of all paths and messages.
    bytes: usize,
    /// Whether faults were dropped, because the paths of others became longer.
    is_cut: bool,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The place, such as `.spec.ports[name="a"]`; empty for the whole object.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

impl Fault {
    fn bytes(&self) -> usize {
        self.path.len() + self.message.len()
    }
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
        if let [only] = self.list.as_slice() {
            return only.fmt(out);
        }
        out.write_str("errors:")?;
        self.list
            .iter()
            .try_for_each(|fault| write!(out, "\n  {fault}"))
    }
}

impl Faults {
    /// Adds a fault at the place that a walk is at.
    pub(crate) fn push(&mut self, message: impl Into<String>) {
        self.add(Fault {
            path: String::new(),
            message: message.into(),
        });
    }

    fn add(&mut self, fault: Fault) {
        if !self.is_full() {
            self.bytes += fault.bytes();
            self.list.push(fault);
        }
    }

    /// Adds the faults of a part.
    pub(crate) fn append(&mut self, part: Self) {
        part.list.into_iter().for_each(|fault| self.add(fault));
    }

    /// Returns whether further faults are dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.is_cut || self.list.len() >= COUNT_MAX || self.bytes >= BYTES_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Puts an element before the paths of the faults since `mark`, when a walk leaves it. Drops the last faults if
    /// the paths become too long together.
    pub(crate) fn prefix(&mut self, mark: usize, element: &Borrowed<'_>) {
        if self.list.len() <= mark {
            return;
        }
        let mut step = String::new();
        element.show(&mut step);
        for fault in &mut self.list[mark..] {
            let mut path = BoundedText::new(PATH_BYTES_MAX);
            path.push(&step);
            path.push(&fault.path);
            let before = std::mem::replace(&mut fault.path, path.into_string());
            self.bytes = (self.bytes + fault.path.len()).saturating_sub(before.len());
        }
        while self.bytes > BYTES_MAX && self.list.len() > 1 {
            let dropped = self.list.pop().map_or(0, |fault| fault.bytes());
            self.bytes = self.bytes.saturating_sub(dropped);
            self.is_cut = true;
        }
    }

    /// Returns an error if there are faults.
    pub(crate) fn check(self) -> Result<(), Self> {
        if self.list.is_empty() {
            Ok(())
        } else {
            Err(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use polyplane_apimachinery::complaints::STEP_BYTES_MAX;

    use super::*;

    /// A member name of 1 MB stood before each fault below it.
    #[test]
    fn faults_are_bounded_in_number_and_bytes() {
        let name = "n".repeat(1 << 20);
        let mut faults = Faults::default();
        (0..2 * COUNT_MAX).for_each(|at| faults.push(at.to_string()));
        assert_eq!(faults.len(), COUNT_MAX);
        for _ in 0..20 {
            faults.prefix(0, &Borrowed::Field(&name));
        }
        let count = BYTES_MAX / PATH_BYTES_MAX;
        assert!(
            faults.is_full() && (count / 2..=count).contains(&faults.len()),
            "{} faults",
            faults.len()
        );
        assert!(faults.to_string().len() < 2 * BYTES_MAX);
        faults.push("another");
        assert!(!faults.to_string().contains("another"));
    }

    #[test]
    fn a_fault_that_fits_says_its_whole_path() {
        let name = "n".repeat(STEP_BYTES_MAX - 1);
        let mut faults = Faults::default();
        faults.push("wrong");
        faults.prefix(1, &Borrowed::Field("none"));
        faults.prefix(0, &Borrowed::Field("a"));
        faults.prefix(0, &Borrowed::Field(&name));
        assert_eq!(faults.to_string(), format!(".{name}.a: wrong"));
    }
}
