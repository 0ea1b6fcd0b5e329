//! The policy for sharing a capacity: the amounts that one request can get.

use crate::feature_gates::Gate;
use crate::shared::resource_names::amount;
use crate::shared::validation::members::present;
use crate::shared::validation::numbers::NEGATIVE;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::quantity::{Format, Quantity};
use polyplane_registry::Features;

const OPTIONS_MAX: usize = 10;

/// Validates the policy of `capacity`, which has one.
pub fn validate(errors: &mut Complaints, features: &Features, path: &Path<'_>, capacity: &Value) {
    let policy = &capacity["requestPolicy"];
    let most = amount(capacity.get("value"));
    let options = policy.items_at(&["validValues"]);
    let range = &policy["validRange"];
    let usual = policy
        .get("default")
        .filter(|usual| !usual.is_null())
        .map(|usual| amount(Some(usual)));
    let (field, check): (&str, Check<'_>) = match (options.is_empty(), present(range)) {
        (false, true) => {
            let detail = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
            errors.push(FieldError::forbidden(path, detail));
            return;
        }
        (true, false) => return,
        (false, false) => (
            "validValues",
            Box::new(|errors, path, usual| {
                validate_options(errors, features, path, options, &most, usual)
            }),
        ),
        (true, true) => (
            "validRange",
            Box::new(|errors, path, usual| validate_range(errors, path, range, &most, usual)),
        ),
    };
    match usual {
        Some(usual) => check(errors, &path.child(field), &usual),
        None => {
            let detail = format!("required when {field} is defined");
            errors.push(FieldError::required(&path.child("default"), detail));
        }
    }
}

/// A check of one kind of policy against the default amount.
type Check<'a> = Box<dyn Fn(&mut Complaints, &Path<'_>, &Quantity) + 'a>;

fn validate_options(
    errors: &mut Complaints,
    features: &Features,
    path: &Path<'_>,
    options: &[Value],
    most: &Quantity,
    usual: &Quantity,
) {
    let options: Vec<Quantity> = options.iter().map(|option| amount(Some(option))).collect();
    for (at, pair) in options.windows(2).enumerate() {
        if pair[0] > pair[1] {
            let detail = "values must be sorted in ascending order";
            errors.push(FieldError::invalid(
                &path.index(at + 1),
                pair[1].to_string(),
                detail,
            ));
        }
    }
    // If there are too many options they are not checked one by one, so the default amount is not
    // searched for among them.
    let found = if options.len() > OPTIONS_MAX {
        errors.push(FieldError::too_many(path, options.len(), OPTIONS_MAX));
        false
    } else {
        for (at, option) in options
            .iter()
            .enumerate()
            .filter(|(_, option)| *option > most)
        {
            let detail = format!("option is larger than capacity value: {most}");
            errors.push(FieldError::invalid(
                &path.index(at),
                option.to_string(),
                detail,
            ));
        }
        let fractions = Gate::DRAFractionalCapacityRange.is_on(features);
        let shown = |option: &Quantity| match fractions {
            true => option.to_string(),
            false => option.value().to_string(),
        };
        let shown: Vec<String> = options.iter().map(shown).collect();
        for (at, option) in shown.iter().enumerate() {
            if shown[..at].contains(option) {
                errors.push(FieldError::duplicate(&path.index(at), option.as_str()));
            }
        }
        options.contains(usual)
    };
    if !found {
        let detail = "default value is not valid according to the requestPolicy";
        errors.push(FieldError::invalid(path, usual.to_string(), detail));
    }
}

/// The bounds of a range that are set, and the default amount.
struct Range<'a> {
    usual: &'a Quantity,
    min: Quantity,
    max: Option<Quantity>,
    step: Option<Quantity>,
}

impl Range<'_> {
    /// Returns the amounts that are set, by field.
    fn given(&self) -> Vec<(&'static str, &Quantity)> {
        let all = [
            ("default", Some(self.usual)),
            ("min", Some(&self.min)),
            ("max", self.max.as_ref()),
            ("step", self.step.as_ref()),
        ];
        all.into_iter()
            .filter_map(|(field, value)| Some((field, value?)))
            .collect()
    }
}

fn validate_range(
    errors: &mut Complaints,
    path: &Path<'_>,
    range: &Value,
    most: &Quantity,
    usual: &Quantity,
) {
    let bound = |field: &str| {
        range
            .get(field)
            .filter(|value| !value.is_null())
            .map(|value| amount(Some(value)))
    };
    let Some(min) = bound("min") else {
        errors.push(FieldError::required(
            &path.child("min"),
            "required when validRange is defined",
        ));
        return;
    };
    let range = Range {
        usual,
        min,
        max: bound("max"),
        step: bound("step"),
    };
    validate_bounds(errors, path, &range, most);
    if let Some(step) = &range.step {
        validate_step(errors, path, &range, step, most);
    }
}

/// Checks that the bounds are within the capacity, and the default amount within the bounds.
fn validate_bounds(errors: &mut Complaints, path: &Path<'_>, range: &Range<'_>, most: &Quantity) {
    let Range {
        usual, min, max, ..
    } = range;
    let mut wrong = |holds: bool, field: &str, bad: &Quantity, detail: String| {
        if holds {
            errors.push(FieldError::invalid(
                &path.child(field),
                bad.to_string(),
                detail,
            ));
        }
    };
    wrong(
        min > most,
        "min",
        min,
        format!("min is larger than capacity value: {most}"),
    );
    wrong(
        *usual < min,
        "default",
        usual,
        format!("default is less than min: {min}"),
    );
    if let Some(max) = max {
        wrong(
            min > max,
            "max",
            min,
            format!("min is larger than max: {max}"),
        );
        wrong(
            max > most,
            "max",
            max,
            format!("max is larger than capacity value: {most}"),
        );
        wrong(
            *usual > max,
            "default",
            usual,
            format!("default is more than max: {max}"),
        );
    }
}

/// Checks that the default amount and the largest amount are a whole number of steps above the
/// least.
fn validate_step(
    errors: &mut Complaints,
    path: &Path<'_>,
    range: &Range<'_>,
    step: &Quantity,
    most: &Quantity,
) {
    let min = &range.min;
    let place = path.child("step");
    if step.sign() <= 0 {
        errors.push(FieldError::invalid(
            &place,
            step.to_string(),
            "must be greater than zero",
        ));
        return;
    }
    let mut added = min.clone();
    added.add(step);
    if added > *most {
        let detail = format!("one step {added} is larger than capacity value: {most}");
        errors.push(FieldError::invalid(&place, step.to_string(), detail));
    }
    let largest = Quantity::new(i64::MAX, Format::DecimalSi);
    let mut safe = true;
    for (field, value) in range.given() {
        let detail = match value {
            value if value.sign() < 0 => NEGATIVE.to_owned(),
            value if *value > largest => format!("must not be larger than {}", i64::MAX),
            _ => continue,
        };
        errors.push(FieldError::invalid(
            &path.child(field),
            value.to_string(),
            detail,
        ));
        safe = false;
    }
    if !safe {
        return;
    }
    for value in [Some(range.usual), range.max.as_ref()]
        .into_iter()
        .flatten()
    {
        // Steps are counted in whole units, with fractions of amounts rounded up.
        let distance = value.value().wrapping_sub(min.value());
        if distance.wrapping_rem(step.value()) != 0 {
            let detail = format!("value is not a multiple of a given step ({step}) from ({min})");
            errors.push(FieldError::invalid(&place, value.to_string(), detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_tables;
    use polyplane_apimachinery::json;

    fn found(value: &str, policy: Value) -> Vec<String> {
        let mut errors = Complaints::default();
        validate(
            &mut errors,
            &kind_tables::features(),
            &Path::new("p"),
            &json!({"value": value, "requestPolicy": policy}),
        );
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn options_are_sorted_and_have_the_default() {
        assert!(found("10", json!({"default": "2", "validValues": ["1", "2"]})).is_empty());
        assert_eq!(
            found("10", json!({"default": "3", "validValues": ["2", "1"]})),
            [
                r#"p.validValues[1]: Invalid value: "1": values must be sorted in ascending order"#,
                r#"p.validValues: Invalid value: "3": default value is not valid according to the requestPolicy"#
            ]
        );
        assert_eq!(
            found("10", json!({"validValues": ["1"]})),
            ["p.default: Required value: required when validValues is defined"]
        );
    }

    #[test]
    fn options_that_round_to_the_same_number_are_duplicates() {
        assert_eq!(
            found(
                "100",
                json!({"default": "10", "validValues": ["9900m", "10", "100"]})
            ),
            [r#"p.validValues[1]: Duplicate value: "10""#]
        );
    }

    #[test]
    fn amounts_lie_on_steps() {
        let range =
            |min: &str, max: &str, step: &str| json!({"min": min, "max": max, "step": step});
        assert!(
            found(
                "10",
                json!({"default": "2", "validRange": (range("1", "5", "1"))})
            )
            .is_empty()
        );
        assert_eq!(
            found(
                "10",
                json!({"default": "2", "validRange": (range("1", "5", "2"))})
            ),
            [
                r#"p.validRange.step: Invalid value: "2": value is not a multiple of a given step (2) from (1)"#
            ]
        );
        assert!(
            found(
                "10",
                json!({"default": "1500m", "validRange": (range("1", "2", "500m"))})
            )
            .is_empty()
        );
        assert_eq!(
            found(
                "10",
                json!({"default": "1", "validRange": (range("1", "2", "0"))})
            )
            .len(),
            1
        );
    }
}
