//! YAML as Go's `sigs.k8s.io/yaml` reads and writes it.
//!
//! Owns the YAML 1.1 meaning of plain scalars, merge keys, aliases within a budget, and the printed
//! form. The result of parsing is the tree of the equivalent JSON.

mod complaint;
mod read;
mod resolve;
mod scalar;
mod write;

pub use read::{YamlError, YamlParsed, parse};
pub use scalar::Layout;
pub use write::{write, write_as};

/// Number of digits beyond which Go's shortest float format uses an exponent.
const PLAIN_DIGITS: i32 = 6;

/// Returns a float as Go's `strconv` prints it with verb `g`.
fn float_text(number: f64) -> String {
    let exponent = if number == 0.0 {
        0
    } else {
        exponent_of(number)
    };
    if (-4..PLAIN_DIGITS).contains(&exponent) {
        return number.to_string();
    }
    let mut out = Vec::new();
    crate::json::write_exponent(number, 2, &mut out);
    String::from_utf8(out).expect("only digits were written")
}

fn exponent_of(number: f64) -> i32 {
    let text = format!("{number:e}");
    text.rsplit('e')
        .next()
        .and_then(|exponent| exponent.parse().ok())
        .expect("the e format has an exponent")
}

#[cfg(test)]
mod tests;
