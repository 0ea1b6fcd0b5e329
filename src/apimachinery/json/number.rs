//! Numbers as Go's encoder writes them.

use std::io::Write;

/// Appends a float the way Go's JSON encoder does: shortest digits, exponent form below 1e-6 and
/// from 1e21 on. Negative zero is written as `0`, which it becomes after one round trip.
pub fn write_float(number: f64, out: &mut Vec<u8>) {
    let size = number.abs();
    if size == 0.0 {
        out.push(b'0');
    } else if !(1e-6..1e21).contains(&size) {
        write_exponent(number, 1, out);
    } else {
        write!(out, "{number}").expect("a Vec takes all bytes");
    }
}

/// Appends a float as Go's `%v` prints it: exponent form below 1e-4 and from 1e6 on, the exponent
/// with at least two digits.
pub fn write_float_verb(number: f64, out: &mut Vec<u8>) {
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        write_exponent(number, 2, out);
    } else {
        write!(out, "{number}").expect("a Vec takes all bytes");
    }
}

/// Appends mantissa and signed exponent, the exponent with at least `digits` digits.
pub(crate) fn write_exponent(number: f64, digits: usize, out: &mut Vec<u8>) {
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e').expect("the e format has an exponent");
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    write!(out, "{mantissa}e{sign}{exponent:0>digits$}").expect("a Vec takes all bytes");
}
