//! Checks of fields that hold a domain name, or a name that begins with one.

use super::complaints::complain;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;

/// Checks that `name` is a DNS subdomain of at least three parts.
pub fn qualified_domain(errors: &mut Complaints, path: &Path<'_>, name: &str) {
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

/// Checks that `name` is a domain name of at least two labels, which may end with a dot.
pub fn domain_name(errors: &mut Complaints, path: &Path<'_>, name: &str) {
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

/// Checks that `name` is a domain, a slash and a path.
pub fn domain_prefixed_path(errors: &mut Complaints, path: &Path<'_>, name: &str) {
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

/// Checks a field with the name of a CSI driver.
pub fn csi_driver_name(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    let complaints = names::dns1123_subdomain(&name.to_lowercase());
    complain(errors, path, name, complaints);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(check: impl Fn(&mut Complaints, &Path<'_>)) -> Vec<String> {
        let mut errors = Complaints::default();
        check(&mut errors, &Path::new("x"));
        errors.iter().map(ToString::to_string).collect()
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
}
