//! What a call costs when it is evaluated: the figures of upstream's cost tracker.

mod call;

pub(crate) use call::CallCost;

/// The cost of a select, of a variable or of an index.
pub(crate) const ACCESS: u64 = 1;
/// The cost of a new list.
pub(crate) const LIST: u64 = 10;
/// The cost of a new map.
pub(crate) const MAP: u64 = 30;
/// The cost of a new message.
pub(crate) const STRUCT: u64 = 40;
/// The cost of reading one character of a text.
pub(crate) const TEXT_FACTOR: f64 = 0.1;
/// The cost of one character of a pattern, for each unit of the text's cost.
pub(crate) const PATTERN_FACTOR: f64 = 0.25;

/// Multiplies with a factor and rounds up, with the rounding of upstream's floating-point numbers.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts of floats saturate, as upstream's function does"
)]
pub(crate) fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// Returns whether an overload compares two values to the end of the shorter one.
pub(crate) fn compares_sizes(overload: &str) -> bool {
    matches!(
        overload,
        "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals"
    )
}

/// Returns the cost of a comparison of two sizes.
pub(crate) fn smaller(one: u64, two: u64) -> u64 {
    scaled(one.min(two), TEXT_FACTOR)
}
