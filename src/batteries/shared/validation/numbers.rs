//! Checks of numbers, quantities and percentages.

use super::complaints::named;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::int_or_string::IntOrString;
use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::{Value, names};

/// The text about numbers below zero.
pub const NEGATIVE: &str = "must be greater than or equal to 0";

/// Checks that a number is not negative; an absent one is accepted.
pub fn non_negative(number: Option<i64>, path: &Path<'_>, errors: &mut Complaints) {
    if let Some(number) = number.filter(|number| *number < 0) {
        errors.push(FieldError::invalid(path, number, NEGATIVE));
    }
}

/// Checks that the `members` of `object` are not negative.
pub fn non_negative_members(
    object: &Value,
    members: &[&str],
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    for name in members {
        non_negative(object.int_at(&[name]), &path.child(name), errors);
    }
}

/// Returns the sign of a quantity: -1, 0 or 1; `None` if it is absent or malformed.
pub fn sign(quantity: &Value) -> Option<i32> {
    match quantity {
        Value::Int(number) => Some(number.signum() as i32),
        other => Some(Quantity::parse(other.as_str()?).ok()?.sign()),
    }
}

/// Checks that a quantity is not negative.
pub fn non_negative_quantity(quantity: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if sign(quantity) == Some(-1) {
        errors.push(FieldError::invalid(path, quantity.clone(), NEGATIVE));
    }
}

/// Checks that a value is a count that is not negative, or a percentage of at most 100.
pub fn count_or_percent(errors: &mut Complaints, path: &Path<'_>, value: &Value) {
    match IntOrString::from_value(value) {
        Some(IntOrString::Int(number)) if i64::from(number) < 0 => {
            errors.push(FieldError::invalid(path, i64::from(number), NEGATIVE));
        }
        Some(IntOrString::Text(text)) => {
            let complaints = names::percent(&text);
            if complaints.is_empty() {
                let digits = text.trim_end_matches('%').trim_start_matches('0');
                if digits.len() > 3 || digits.parse::<u32>().is_ok_and(|percent| percent > 100) {
                    let detail = "must not be greater than 100%";
                    errors.push(FieldError::invalid(path, named(&text), detail));
                }
            }
            for detail in complaints {
                errors.push(FieldError::invalid(path, named(&text), detail));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_end_at_a_hundred() {
        let check = |value: Value| {
            let mut errors = Complaints::default();
            count_or_percent(&mut errors, &Path::new("x"), &value);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            texts
        };
        assert!(check("100%".into()).is_empty());
        assert!(check(7i64.into()).is_empty());
        assert_eq!(
            check("101%".into()),
            [r#"x: Invalid value: "101%": must not be greater than 100%"#]
        );
        assert_eq!(check("99999999999999999999%".into()).len(), 1);
        assert_eq!(check(Value::Int(-1)).len(), 1);
        assert_eq!(check("half".into()).len(), 1);
    }
}
