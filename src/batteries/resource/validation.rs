//! Checks that the device-related kinds share: names of drivers, pools and attributes, taints and
//! tolerations, configuration for drivers.
//!
//! Errors that the schema declares too are marked as covered: the declaration's words are used
//! then.

use crate::resource::expressions::{COST_MAX, Purpose, cost_of};
use crate::shared::validation::complaints::{complain, covered, named};
use crate::shared::validation::domain_names::csi_driver_name;
use crate::shared::validation::members::texts;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Map, Value, json, labels, names};
use std::collections::BTreeSet;

/// Most bytes of the name of a pool, as upstream limits it.
const POOL_NAME_BYTES_MAX: usize = 253;
/// Most bytes of an attribute's or capacity's name without its domain, as upstream limits it.
const IDENTIFIER_BYTES_MAX: usize = 32;
/// Most bytes of a domain, a slash and an identifier.
const QUALIFIED_BYTES_MAX: usize = 63 + 1 + IDENTIFIER_BYTES_MAX;
/// Most bytes of an expression, as upstream limits it.
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;
/// Most bytes of a driver's parameters as JSON, as upstream limits it.
const PARAMETER_BYTES_MAX: usize = 10 * 1024;
/// Number of conditions of one kind that may bind a device, as upstream limits it.
const BINDING_CONDITIONS_MAX: usize = 4;
/// The effects of a taint.
pub const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

/// The origin of an expression or parameters: only new ones are checked fully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client has sent them.
    Given,
    /// They are stored already.
    Stored,
}

/// The choice whether a declaration of the schema makes the same check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// Adds the errors that `check` finds, marked as covered if the schema declares the check.
pub fn declared(errors: &mut Complaints, declared: Declared, check: impl FnOnce(&mut Complaints)) {
    match declared {
        Declared::Yes => covered(errors, check),
        Declared::No => check(errors),
    }
}

/// Checks the name of a driver.
pub fn driver_name(errors: &mut Complaints, path: &Path<'_>, name: &str) {
    csi_driver_name(name, path, errors);
}

/// Validates a name that is one label: of a device, a request, a counter.
pub fn label(errors: &mut Complaints, path: &Path<'_>, name: &str) {
    complain(errors, path, name, names::dns1123_label(name));
}

/// Validates the value of a label.
pub fn label_value(errors: &mut Complaints, path: &Path<'_>, value: &str) {
    complain(errors, path, value, names::label_value(value));
}

/// Validates the name of a pool: subdomains between slashes.
pub fn pool_name(errors: &mut Complaints, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > POOL_NAME_BYTES_MAX {
        errors.push(FieldError::too_long(path, POOL_NAME_BYTES_MAX));
    }
    for part in name.split('/') {
        complain(errors, path, part, names::dns1123_subdomain(part));
    }
}

/// Validates the name of an attribute or a capacity, with or without the domain of a driver.
pub fn qualified_name(errors: &mut Complaints, path: &Path<'_>, name: &str) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => identifier(errors, path, id),
        [domain, id] => {
            if domain.is_empty() {
                errors.push(FieldError::invalid(
                    path,
                    "",
                    "the domain must not be empty",
                ));
            } else {
                driver_name(errors, path, domain);
            }
            if id.is_empty() {
                errors.push(FieldError::invalid(path, "", "the name must not be empty"));
            } else {
                identifier(errors, path, id);
            }
        }
        // Upstream accepts names with more slashes.
        _ => {}
    }
}

/// Validates the name of an attribute with a domain. The schema declares this check too.
pub fn fully_qualified_name(errors: &mut Complaints, path: &Path<'_>, name: &str) {
    declared(errors, Declared::Yes, |errors| {
        qualified_name(errors, path, name);
        if !name.contains('/') {
            let detail = "a fully qualified name must be a domain and a name separated by a slash";
            errors.push(FieldError::invalid(path, named(name), detail));
        }
    });
}

fn identifier(errors: &mut Complaints, path: &Path<'_>, id: &str) {
    if id.len() > IDENTIFIER_BYTES_MAX {
        errors.push(FieldError::too_long(path, IDENTIFIER_BYTES_MAX));
    }
    complain(errors, path, id, names::c_identifier(id));
}

/// Returns the members of a map.
pub fn members(map: &Value) -> impl Iterator<Item = (&str, &Value)> {
    map.as_object().into_iter().flat_map(Map::iter)
}

/// Returns the key in a map of attributes or capacities, as errors name it.
pub fn shown_key(key: &str) -> String {
    shortened(key, QUALIFIED_BYTES_MAX)
}

/// Returns `text`, with dots instead of its middle if it is longer than `bytes_max`.
pub fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let rest = bytes_max - "...".len();
    let (head, tail) = (rest.div_ceil(2), rest / 2);
    let bytes = text.as_bytes();
    let head = String::from_utf8_lossy(&bytes[..head]);
    let tail = String::from_utf8_lossy(&bytes[text.len() - tail..]);
    format!("{head}...{tail}")
}

/// Validates the selectors of a class or request.
pub fn selectors(errors: &mut Complaints, path: &Path<'_>, list: &[Value], origin: Origin) {
    const SELECTORS_MAX: usize = 32;
    if list.len() > SELECTORS_MAX {
        errors.push(FieldError::too_many(path, list.len(), SELECTORS_MAX).covered());
        return;
    }
    for (at, selector) in list.iter().enumerate() {
        let path = path.index(at);
        let place = path.child("cel");
        if selector["cel"].is_null() {
            errors.push(FieldError::required(&place, ""));
        } else if origin == Origin::Given {
            let text = selector.str_at(&["cel", "expression"]);
            expression(errors, &place.child("expression"), text, Purpose::Selector);
        }
    }
}

/// Validates an expression about a device. Returns what it can cost at most; 0 for one that does not compile.
pub fn expression(errors: &mut Complaints, path: &Path<'_>, text: &str, purpose: Purpose) -> u64 {
    if text.len() > EXPRESSION_BYTES_MAX {
        errors.push(FieldError::too_long(path, EXPRESSION_BYTES_MAX));
        return 0;
    }
    match cost_of(text, purpose) {
        Ok(cost) => {
            if cost > COST_MAX {
                let detail = "too complex, exceeds cost limit";
                errors.push(FieldError::forbidden(path, detail));
            }
            cost
        }
        Err(why) => {
            errors.push(FieldError::invalid(path, text, why));
            0
        }
    }
}

/// Validates the configuration of devices, which so far is only that of a driver.
pub fn configuration(errors: &mut Complaints, path: &Path<'_>, config: &Value, origin: Origin) {
    let opaque = &config["opaque"];
    let path = path.child("opaque");
    if opaque.is_null() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    let driver = opaque.str_at(&["driver"]);
    declared(errors, Declared::Yes, |errors| {
        driver_name(errors, &path.child("driver"), driver)
    });
    let max = if origin == Origin::Given {
        PARAMETER_BYTES_MAX
    } else {
        usize::MAX
    };
    raw_object(
        errors,
        &path.child("parameters"),
        &opaque["parameters"],
        max,
    );
}

/// Checks that `value` is a JSON object of at most `bytes_max` bytes.
pub fn raw_object(errors: &mut Complaints, path: &Path<'_>, value: &Value, bytes_max: usize) {
    match value {
        Value::Null => errors.push(FieldError::required(path, "")),
        value if bytes_max < usize::MAX && json::to_vec(value).len() > bytes_max => {
            errors.push(FieldError::too_long(path, bytes_max));
        }
        Value::Object(_) => {}
        _ => {
            let bad = Bad::Plain("<value omitted>".into());
            errors.push(FieldError::invalid(
                path,
                bad,
                "must be a valid JSON object",
            ));
        }
    }
}

/// Validates a taint. The schema declares its effect; an effect that was stored before stays
/// allowed.
pub fn taint(errors: &mut Complaints, path: &Path<'_>, taint: &Value, old: &Value) {
    errors.extend(labels::validate_label_name(
        taint.str_at(&["key"]),
        &path.child("key"),
    ));
    let value = taint.str_at(&["value"]);
    if !value.is_empty() {
        label_value(errors, &path.child("value"), value);
    }
    let place = path.child("effect");
    if !old.is_null() && old["effect"] == taint["effect"] {
        return;
    }
    match taint.str_at(&["effect"]) {
        "" => errors.push(FieldError::required(&place, "").covered()),
        effect => one_of_covered(errors, &place, effect, &EFFECTS),
    }
}

/// Checks that a word is in a list. The schema declares this check too.
pub fn one_of_covered(errors: &mut Complaints, path: &Path<'_>, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        errors.push(FieldError::not_supported(path, named(word), known).covered());
    }
}

/// Validates the tolerations of a request or an allocation.
pub fn tolerations(errors: &mut Complaints, path: &Path<'_>, list: &[Value]) {
    for (at, toleration) in list.iter().enumerate() {
        let path = path.index(at);
        let key = toleration.str_at(&["key"]);
        if !key.is_empty() {
            let found = labels::validate_label_name(key, &path.child("key"));
            errors.extend(found.into_iter().map(FieldError::covered));
        }
        let value = toleration.str_at(&["value"]);
        let place = path.child("operator");
        match toleration.str_at(&["operator"]) {
            "Exists" if !value.is_empty() => {
                let detail = "must be empty for operator `Exists`";
                errors.push(FieldError::invalid(&path.child("value"), value, detail));
            }
            "Exists" => {}
            "Equal" => label_value(errors, &path.child("value"), value),
            "" => errors.push(FieldError::required(&place, "").covered()),
            other => one_of_covered(errors, &place, other, &["Equal", "Exists"]),
        }
        let effect = toleration.str_at(&["effect"]);
        if !effect.is_empty() {
            one_of_covered(errors, &path.child("effect"), effect, &EFFECTS);
        }
    }
}

/// Validates the conditions that must hold before a device is bound, and those that mean that it
/// has failed.
pub fn binding_conditions(errors: &mut Complaints, path: &Path<'_>, holder: &Value) {
    let [good, bad] = ["bindingConditions", "bindingFailureConditions"];
    let (wanted, failures) = (texts(&holder[good]), texts(&holder[bad]));
    for (field, list) in [(good, &wanted), (bad, &failures)] {
        let place = path.child(field);
        if list.len() > BINDING_CONDITIONS_MAX {
            errors.push(FieldError::too_many(&place, list.len(), BINDING_CONDITIONS_MAX).covered());
            continue;
        }
        for (at, condition) in list.iter().enumerate() {
            errors.extend(labels::validate_label_name(condition, &place.index(at)));
        }
    }
    duplicates(errors, &path.child(good), &wanted);
    let place = path.child(bad);
    let mut seen = BTreeSet::new();
    for (at, condition) in failures.iter().enumerate() {
        if !seen.insert(condition) {
            errors.push(FieldError::duplicate(&place.index(at), *condition));
        }
        if wanted.contains(condition) {
            let detail = "bindingFailureConditions must not overlap with bindingConditions";
            errors.push(FieldError::invalid(&place.index(at), *condition, detail));
        }
    }
    if wanted.is_empty() && !failures.is_empty() {
        let detail = "bindingConditions are required to use bindingFailureConditions";
        errors.push(FieldError::invalid(
            &path.child(good),
            Bad::Json(holder[good].clone()),
            detail,
        ));
    }
    if failures.is_empty() && !wanted.is_empty() {
        let detail = "bindingFailureConditions are required to use bindingConditions";
        errors.push(FieldError::invalid(
            &path.child(bad),
            Bad::Json(holder[bad].clone()),
            detail,
        ));
    }
}

/// Complains about every text that occurred before in the list.
pub fn duplicates(errors: &mut Complaints, path: &Path<'_>, list: &[&str]) {
    let mut seen = BTreeSet::new();
    for (at, text) in list.iter().enumerate() {
        if !seen.insert(text) {
            errors.push(FieldError::duplicate(&path.index(at), *text));
        }
    }
}

/// Validates the operations that nodes skip: preparing may only be skipped together with
/// unpreparing.
pub fn skipped_operations(errors: &mut Complaints, path: &Path<'_>, list: &Value) {
    let skipped = texts(list);
    let undone = skipped
        .iter()
        .any(|name| ["NodeUnprepareResources", "*"].contains(name));
    if skipped.contains(&"NodePrepareResources") && !undone {
        let detail =
            "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped";
        errors.push(FieldError::invalid(path, Bad::Json(list.clone()), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: impl FnOnce(&mut Complaints, &Path<'_>)) -> Vec<String> {
        let mut errors = Complaints::default();
        check(&mut errors, &Path::new("x"));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_of_attributes_may_have_a_domain() {
        assert!(found(|errors, path| qualified_name(errors, path, "memory")).is_empty());
        assert!(
            found(|errors, path| qualified_name(errors, path, "gpu.example.com/memory")).is_empty()
        );
        assert_eq!(
            found(|errors, path| qualified_name(errors, path, "/")),
            [
                r#"x: Invalid value: "": the domain must not be empty"#,
                r#"x: Invalid value: "": the name must not be empty"#
            ]
        );
        assert_eq!(
            found(|errors, path| fully_qualified_name(errors, path, "memory")).len(),
            1
        );
    }

    #[test]
    fn long_keys_lose_their_middle() {
        assert_eq!(
            shortened("abcdefghijklmnopqrstuvwxyz", 16),
            "abcdefg...uvwxyz"
        );
        assert_eq!(shortened("abc", 16), "abc");
    }

    #[test]
    fn conditions_need_their_failures() {
        let holder = json!({"bindingConditions": ["a", "a"], "bindingFailureConditions": ["a"]});
        assert_eq!(
            found(|errors, path| binding_conditions(errors, path, &holder)).len(),
            2
        );
        let holder = json!({"bindingFailureConditions": ["a"]});
        assert_eq!(
            found(|errors, path| binding_conditions(errors, path, &holder)),
            [
                "x.bindingConditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions"
            ]
        );
    }

    #[test]
    fn preparing_is_skipped_together_with_its_undoing() {
        let alone = json!(["NodePrepareResources"]);
        assert_eq!(
            found(|errors, path| skipped_operations(errors, path, &alone)).len(),
            1
        );
        let both = json!(["NodePrepareResources", "NodeUnprepareResources"]);
        assert!(found(|errors, path| skipped_operations(errors, path, &both)).is_empty());
    }
}
