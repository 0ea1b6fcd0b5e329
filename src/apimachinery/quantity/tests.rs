//! Properties and recorded vectors of this module.

use proptest::prelude::*;

use super::*;
use crate::vectors::{assert_none, compare, vectors};

#[test]
fn quantities_are_read_and_printed_as_upstream_does() {
    let all = vectors("quantity");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        match Quantity::parse(input) {
            Ok(quantity) => {
                compare(
                    &mut differences,
                    input,
                    vector.str_at(&["out"]),
                    &quantity.to_string(),
                );
                // Beyond these sizes upstream's answers are the low bits of an overflow.
                let size = quantity.as_f64();
                if !(-9e9..9e15).contains(&size) {
                    continue;
                }
                let go = format!(
                    "{:?} {:?} {:?}",
                    vector.int_at(&["value"]),
                    vector.int_at(&["milli"]),
                    vector.int_at(&["sign"])
                );
                let ours = format!(
                    "{:?} {:?} {:?}",
                    Some(quantity.value()),
                    Some(quantity.milli_value()),
                    Some(i64::from(quantity.sign()))
                );
                compare(&mut differences, input, &go, &ours);
            }
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("quantity", all.len(), &differences);
}

#[test]
fn quantities_compare_and_add_as_upstream_does() {
    let all = vectors("quantity_pairs");
    let mut differences = Vec::new();
    for vector in &all {
        let (a, b) = (vector.str_at(&["a"]), vector.str_at(&["b"]));
        let (first, second) = (Quantity::parse(a).expect(a), Quantity::parse(b).expect(b));
        let mut sum = first.clone();
        sum.add(&second);
        let mut difference = first.clone();
        difference.sub(&second);
        let go = format!(
            "{:?} {} {}",
            vector.int_at(&["cmp"]),
            vector.str_at(&["sum"]),
            vector.str_at(&["diff"])
        );
        let ours = format!("{:?} {sum} {difference}", Some(first.cmp(&second) as i64));
        compare(&mut differences, &format!("{a} {b}"), &go, &ours);
    }
    assert_none("quantity pairs", all.len(), &differences);
}

/// The numbers are those of upstream's own tests.
#[test]
fn numbers_beyond_64_bits_are_written_exactly_up_to_their_limits() {
    for (text, canonical) in [
        ("9999999999999999999", "9999999999999999999"),
        ("-9999999999999999999.0", "-9999999999999999999"),
        ("9999999999999999999000m", "9999999999999999999"),
        ("-999999999999999999.1", "-999999999999999999100m"),
        ("9223372036854775807.1", "9223372036854775807100m"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("9223372036854775807Ki", "9223372036854775807"),
        ("9Ei", "9223372036854775807"),
        ("0.0000000001", "1n"),
        ("1.0000000001", "1000000001n"),
        ("1e30", "1e30"),
    ] {
        let quantity = Quantity::parse(text).expect(text);
        assert_eq!(quantity.to_string(), canonical, "{text}");
    }
}

#[test]
fn hostile_exponents_are_bounded() {
    for text in [
        "12345678901234567890e2000000000",
        "1e2147483647",
        "1e-2147483648",
        "99999999999999999999e-2147483648",
    ] {
        if let Ok(mut quantity) = Quantity::parse(text) {
            let one = Quantity::new(1, Format::DecimalSi);
            let _ = (quantity.to_string(), quantity.value(), quantity.cmp(&one));
            quantity.add(&one);
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[-+0-9.eEinumkKMGTP]{0,24}") {
        if let Ok(quantity) = Quantity::parse(&text) {
            let printed = quantity.to_string();
            prop_assert!(Quantity::parse(&printed).is_ok(), "{} printed as {}", text, printed);
        }
    }
}

#[test]
fn a_plain_text_is_canonical_and_whole_thousandths() {
    let numbers = [1, 5, 9, 10, 64, 100, 128, 500, 999, 1000, 1001, 1023, 1024];
    let large = [
        1500,
        2048,
        2049,
        1_000_000,
        1_048_576,
        123_456_789,
        999_999_999,
    ];
    let units = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "K",
        "mi", "e3",
    ];
    let mut plain = 0;
    for number in numbers.into_iter().chain(large) {
        for unit in units {
            for text in [format!("{number}{unit}"), format!("0{number}{unit}")] {
                if Quantity::is_plain(&text) {
                    plain += 1;
                    let parsed = Quantity::parse(&text).expect("it is a quantity");
                    assert_eq!(parsed.to_string(), text);
                    let rounded = Quantity::from_milli(parsed.milli_value(), parsed.format());
                    assert!(parsed.as_f64() > 9e15 || rounded == parsed, "{text}");
                }
            }
        }
    }
    assert!(plain > 100, "{plain}");
    for text in ["", "m", "-1", "1.5", "+1", "1e3", " 1"] {
        assert!(!Quantity::is_plain(text), "{text}");
    }
}
