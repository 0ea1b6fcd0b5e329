//! Checks of single fields that the kinds of several groups make: formats of names, selectors,
//! conditions. Each adds what it finds to a list of errors.

use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::int_or_string::IntOrString;
use polyplane_apimachinery::{Value, labels, names};
use polyplane_registry::strategy::age;
use std::collections::BTreeSet;

/// What is found wrong.
pub type Errors = Vec<FieldError>;

/// Most bytes of a condition's reason.
const REASON_BYTES_MAX: usize = 1024;
/// Most bytes of a condition's message.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// The text about fields that an update may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// Whether label values in selectors are checked; what is stored already stays allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorValues {
    /// They have to be label values.
    Checked,
    /// Anything goes, for the object had a bad one before.
    Free,
}

/// True for a pointer, list or structure that is set.
pub fn present(value: &Value) -> bool {
    !value.is_null()
}

/// The texts of a list.
pub fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap_or(&[])
        .iter()
        .map(|item| item.as_str().unwrap_or(""))
        .collect()
}

/// Marks what `check` finds as said by declarations of the schema too.
pub fn covered(errors: &mut Errors, check: impl FnOnce(&mut Errors)) {
    let before = errors.len();
    check(errors);
    errors[before..]
        .iter_mut()
        .for_each(|error| error.covered = true);
}

/// Adds one error per complaint about a plain text.
pub fn complain(errors: &mut Errors, path: &Path<'_>, bad: &str, complaints: Vec<String>) {
    errors.extend(
        complaints
            .into_iter()
            .map(|detail| FieldError::invalid(path, bad, detail)),
    );
}

/// A text of a named type, as errors show it.
pub fn named(text: &str) -> Bad {
    Bad::Json(text.into())
}

/// Requires one of a list of words, which is in the order in which texts name them.
pub fn one_of(errors: &mut Errors, path: &Path<'_>, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        errors.push(FieldError::not_supported(path, named(word), known));
    }
}

/// Like [`one_of`], for a field that may be left out.
pub fn one_of_if_set(errors: &mut Errors, path: &Path<'_>, word: &Value, known: &[&str]) {
    if let Some(word) = word.as_str() {
        one_of(errors, path, word, known);
    }
}

/// Checks a label selector.
pub fn selector(errors: &mut Errors, path: &Path<'_>, value: &Value, values: SelectorValues) {
    let found = labels::validate_label_selector(Some(value), path).into_iter();
    let kept =
        |error: &FieldError| values == SelectorValues::Checked || !error.field.contains(".values[");
    errors.extend(found.filter(kept));
}

/// How the selector of a changed object is checked, given the one before.
pub fn selector_values(old: &Value) -> SelectorValues {
    match labels::validate_label_selector(Some(old), &Path::NIL).is_empty() {
        true => SelectorValues::Checked,
        false => SelectorValues::Free,
    }
}

/// Checks that `name` is a DNS subdomain of at least three parts.
pub fn qualified_domain(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let complaints = names::dns1123_subdomain(name);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, name, complaints.join(",")));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(path, name, detail));
    }
}

/// A domain name of at least two labels, which may end in a dot.
pub fn domain_name(errors: &mut Errors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let complaints = names::dns1123_subdomain(name);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, name, complaints.join(",")));
        return;
    }
    if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, name, detail));
        return;
    }
    for label in name.split('.') {
        let complaints = names::dns1123_label(label);
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(path, label, complaints.join(",")));
            return;
        }
    }
}

/// A domain, a slash and a path.
pub fn domain_prefixed_path(errors: &mut Errors, path: &Path<'_>, name: &str) {
    const LETTERS: &str = "/-._~%!$&'()*+,;=:";
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let (host, rest) = name.split_once('/').unwrap_or((name, ""));
    if host.is_empty() || rest.is_empty() {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(FieldError::invalid(path, name, detail));
        return;
    }
    complain(errors, path, host, names::dns1123_subdomain(host));
    if !rest
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || LETTERS.contains(letter))
    {
        let pattern = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
        errors.push(FieldError::invalid(
            path,
            rest,
            names::regex_complaint("Invalid path", pattern, &[]),
        ));
    }
}

/// A count that is not negative, or a percentage of at most 100.
pub fn count_or_percent(errors: &mut Errors, path: &Path<'_>, value: &Value) {
    match IntOrString::from_value(value) {
        Some(IntOrString::Int(number)) if i64::from(number) < 0 => {
            errors.push(FieldError::invalid(
                path,
                i64::from(number),
                "must be greater than or equal to 0",
            ));
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

/// Conditions of the common form.
pub fn conditions(errors: &mut Errors, path: &Path<'_>, list: &Value) {
    let mut seen = BTreeSet::new();
    for (at, condition) in list.as_array().unwrap_or(&[]).iter().enumerate() {
        let path = path.index(at);
        let text = |field: &str| condition.str_at(&[field]);
        if !seen.insert(text("type")) {
            errors.push(FieldError::duplicate(&path, text("type")).covered());
        }
        if text("type").is_empty() {
            errors.push(FieldError::required(&path.child("type"), "is required").covered());
        } else {
            errors.extend(labels::validate_label_name(
                text("type"),
                &path.child("type"),
            ));
        }
        if text("status").is_empty() {
            errors.push(FieldError::required(&path.child("status"), "").covered());
        } else {
            one_of(
                errors,
                &path.child("status"),
                text("status"),
                &["False", "True", "Unknown"],
            );
        }
        if let Some(generation) = condition
            .int_at(&["observedGeneration"])
            .filter(|number| *number < 0)
        {
            let detail = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(
                &path.child("observedGeneration"),
                generation,
                detail,
            ));
        }
        if text("lastTransitionTime").is_empty() {
            errors.push(FieldError::required(&path.child("lastTransitionTime"), "").covered());
        }
        if text("reason").is_empty() {
            errors.push(FieldError::required(&path.child("reason"), "").covered());
        } else {
            complain(
                errors,
                &path.child("reason"),
                text("reason"),
                names::condition_reason(text("reason")),
            );
            if text("reason").len() > REASON_BYTES_MAX {
                errors.push(FieldError::too_long(
                    &path.child("reason"),
                    REASON_BYTES_MAX,
                ));
            }
        }
        if text("message").len() > MESSAGE_BYTES_MAX {
            errors.push(FieldError::too_long(
                &path.child("message"),
                MESSAGE_BYTES_MAX,
            ));
        }
    }
}

/// Whether a whole name is checked or the beginning of a generated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamePart {
    /// The whole name.
    Whole,
    /// What comes before the generated suffix.
    Prefix,
}

/// Names by a rule that only this kind has.
pub fn own_name_rule(object: &Value, rule: impl Fn(&str, NamePart) -> Vec<String>) -> Errors {
    let path = Path::new("metadata");
    let mut errors = Errors::new();
    for (field, part) in [
        ("generateName", NamePart::Prefix),
        ("name", NamePart::Whole),
    ] {
        let name = object.str_at(&["metadata", field]);
        if !name.is_empty() {
            complain(&mut errors, &path.child(field), name, rule(name, part));
        }
    }
    errors
}

/// The name, for a table cell.
pub fn name_cell(object: &Value) -> Value {
    object.str_at(&["metadata", "name"]).into()
}

/// How long ago the object was created, for a table cell.
pub fn age_cell(object: &Value, now: i64) -> Value {
    age(object.str_at(&["metadata", "creationTimestamp"]), now)
}

/// When the object was created, for a table cell.
pub fn created_cell(object: &Value) -> Value {
    match object.str_at(&["metadata", "creationTimestamp"]) {
        "" => "0001-01-01T00:00:00Z".into(),
        time => time.into(),
    }
}

/// The length of a list, for a table cell.
pub fn count_cell(list: &Value) -> Value {
    Value::Int(list.as_array().map_or(0, |items| items.len() as i64))
}

/// The items of a list, the first three of them by name; `none` if there are none.
pub fn some_of(items: &[String], none: &str) -> String {
    const SHOWN_MAX: usize = 3;
    if items.len() > SHOWN_MAX {
        return format!(
            "{} + {} more...",
            items[..SHOWN_MAX].join(","),
            items.len() - SHOWN_MAX
        );
    }
    let text = items.join(",");
    if text.is_empty() {
        none.to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(check: impl Fn(&mut Errors, &Path<'_>)) -> Vec<String> {
        let mut errors = Errors::new();
        check(&mut errors, &Path::new("x"));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn percentages_end_at_a_hundred() {
        let check = |value: Value| messages(|errors, path| count_or_percent(errors, path, &value));
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

    #[test]
    fn domains_have_enough_parts() {
        assert!(messages(|errors, path| qualified_domain(errors, path, "a.b.c")).is_empty());
        assert_eq!(
            messages(|errors, path| qualified_domain(errors, path, "a.b")).len(),
            1
        );
        assert!(messages(|errors, path| domain_name(errors, path, "a.b.")).is_empty());
        assert_eq!(
            messages(|errors, path| domain_name(errors, path, "a")).len(),
            1
        );
        assert!(messages(|errors, path| domain_prefixed_path(errors, path, "a.b/c")).is_empty());
        assert_eq!(
            messages(|errors, path| domain_prefixed_path(errors, path, "a.b")).len(),
            1
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let items: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        assert_eq!(some_of(&items, "-"), "a,b,c + 2 more...");
        assert_eq!(some_of(&items[..2], "-"), "a,b");
        assert_eq!(some_of(&[], "-"), "-");
    }
}
