//! Limits of what one step of an evaluation may compute, which are checked before it is done.
//! Beyond them the evaluation stops as beyond its budget.

use crate::value::Fault;

/// Most levels of an evaluation; a loop takes three. More could overflow the stack of a thread,
/// which ends the process.
pub(crate) const DEPTH_MAX: usize = 400;
/// Most bytes of a value inside a complaint.
pub(crate) const SHOWN_BYTES_MAX: usize = 16 << 10;

/// Most elements of a computed list. Concatenation costs little, so without a limit a short
/// expression that doubles a list takes all memory.
const ELEMENTS_MAX: usize = 1 << 21;
/// Most bytes of a text that a function makes larger than its arguments.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Checks the size of a list before it is made.
///
/// # Errors
/// Returns [`Fault::Budget`] beyond the limit.
pub(crate) fn check_elements(count: usize) -> Result<(), Fault> {
    if count > ELEMENTS_MAX {
        return Err(Fault::Budget);
    }
    Ok(())
}

/// Checks the size of a text before it is made.
///
/// # Errors
/// Returns [`Fault::Budget`] beyond the limit.
pub(crate) fn check_text(bytes: usize) -> Result<(), Fault> {
    if bytes > TEXT_BYTES_MAX {
        return Err(Fault::Budget);
    }
    Ok(())
}
