//! What evaluations and searches for one purpose may take, beside upstream's cost.
//!
//! Upstream's cost follows from sizes, and some of what is dear costs one: comparing lists that hold one list many
//! times, the length of a long text, a pattern of a hundred thousand steps. An author of rules knows that, and chooses
//! the values too. So the work itself has a limit as well, and so have the bytes of what an evaluation makes.
//! Ordinary rules reach upstream's limit long before.

use std::cell::Cell;

use crate::value::Fault;

/// Most units of work: about half a second.
const WORK_MAX: u64 = 100_000_000;
/// Most units of work for the check of a definition with its rules and defaults: about three seconds. That is two million
/// nodes of expressions, where the largest definitions in use have some ten thousand.
const DEFINITION_WORK_MAX: u64 = 600_000_000;
/// Most units of work for the check of a short expression: about fifteen milliseconds, or ten thousand nodes.
const SHORT_EXPRESSION_WORK_MAX: u64 = 3_000_000;
/// Bytes that are read in a unit of work.
const BYTES_PER_UNIT: usize = 16;
/// Units of work of a part of a value: an element of a list, an entry of a map.
const PART_UNITS: u64 = 6;
/// Most work of the library of patterns, as letters times steps, also about half a second at worst. It has no limit
/// of its own.
const LIBRARY_WORK_MAX: u64 = 50_000_000;
/// Most bytes that one evaluation makes. They count until it ends, even if they are forgotten before.
const MADE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of an element of a list, with what it takes elsewhere.
const ELEMENT_BYTES: usize = 64;

/// The work that is left for one purpose, such as the check of one object.
#[derive(Debug)]
pub struct WorkBudget {
    /// Units of work, of about five nanoseconds.
    work: Cell<u64>,
    /// What is left for the library of patterns: more than it does in nearly all searches.
    library: Cell<u64>,
    /// Bytes that the present evaluation may still make.
    made: Cell<u64>,
    is_spent: Cell<bool>,
}

/// The budget is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it takes too much work")]
pub struct TooMuchWork;

impl From<TooMuchWork> for Fault {
    fn from(_: TooMuchWork) -> Self {
        Self::Budget
    }
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self::of(WORK_MAX)
    }
}

impl WorkBudget {
    /// Creates the budget for the check of a definition.
    #[must_use]
    pub fn for_definition() -> Self {
        Self::of(DEFINITION_WORK_MAX)
    }

    /// Creates the budget for the check of one expression of ten kilobytes at most, of which an object may have a
    /// thousand.
    #[must_use]
    pub fn for_short_expression() -> Self {
        Self::of(SHORT_EXPRESSION_WORK_MAX)
    }

    fn of(work: u64) -> Self {
        Self {
            work: Cell::new(work),
            library: Cell::new(LIBRARY_WORK_MAX),
            made: Cell::new(MADE_BYTES_MAX),
            is_spent: Cell::new(false),
        }
    }

    /// Returns whether something was refused.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    /// Begins an evaluation: what the last one made is forgotten.
    pub(crate) fn begin(&self) {
        self.made.set(MADE_BYTES_MAX);
    }

    fn take(&self, from: &Cell<u64>, amount: u64) -> Result<(), TooMuchWork> {
        let Some(left) = from.get().checked_sub(amount) else {
            self.is_spent.set(true);
            from.set(0);
            return Err(TooMuchWork);
        };
        from.set(left);
        Ok(())
    }

    /// Takes units of work, of about five nanoseconds.
    ///
    /// # Errors
    /// Returns an error if fewer are left.
    pub fn work(&self, units: u64) -> Result<(), TooMuchWork> {
        self.take(&self.work, units)
    }

    /// Takes the work of reading a text.
    ///
    /// # Errors
    /// Returns an error if less is left.
    pub fn read(&self, bytes: usize) -> Result<(), TooMuchWork> {
        self.work((bytes / BYTES_PER_UNIT) as u64 + 1)
    }

    /// Takes the work of going through parts of a value.
    ///
    /// # Errors
    /// Returns an error if less is left.
    pub fn parts(&self, count: usize) -> Result<(), TooMuchWork> {
        self.work(PART_UNITS.saturating_mul(count as u64))
    }

    /// Takes the memory of something that is made.
    ///
    /// # Errors
    /// Returns an error if less is left.
    pub fn make(&self, bytes: usize) -> Result<(), TooMuchWork> {
        self.take(&self.made, bytes as u64)
    }

    /// Takes the work and the memory of so many elements of a new list.
    ///
    /// # Errors
    /// Returns an error if less is left.
    pub(crate) fn elements(&self, count: usize) -> Result<(), TooMuchWork> {
        self.parts(count)?;
        self.make(count.saturating_mul(ELEMENT_BYTES))
    }

    /// Takes the work of the library of patterns, or returns false: it is then done in a way that counts it.
    pub(crate) fn library(&self, work: u64) -> bool {
        let left = self.library.get().checked_sub(work);
        left.inspect(|left| self.library.set(*left)).is_some()
    }
}
