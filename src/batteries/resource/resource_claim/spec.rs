//! The specs of claims, which claim templates have too: requests for devices, constraints between
//! them and configuration for their drivers.

use crate::resource::expressions::{COST_MAX, Purpose};
use crate::resource::flat::default_count;
use crate::resource::validation;
use crate::resource::validation::{Declared, Origin, declared};
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// Number of requests in a claim at most, and of requests that one of its parts names.
const REQUESTS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
const CONFIGS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;

/// Sets the default counts of requests for a number of devices.
pub fn default(spec: &mut Value) {
    each_request(spec, default_count);
}

fn each_request(spec: &mut Value, mut change: impl FnMut(&mut Value)) {
    let requests = spec
        .at_mut(&["devices", "requests"])
        .and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        if let Some(exactly) = request
            .get_mut("exactly")
            .filter(|exactly| !exactly.is_null())
        {
            change(exactly);
        }
        let alternatives = request
            .get_mut("firstAvailable")
            .and_then(Value::as_array_mut);
        alternatives.into_iter().flatten().for_each(&mut change);
    }
}

/// The names of requests and, for each, those of its alternatives.
#[derive(Debug)]
pub struct RequestNames<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> RequestNames<'a> {
    /// Returns the names in a claim's spec.
    pub fn of(spec: &'a Value) -> Self {
        let requests = spec.items_at(&["devices", "requests"]).iter();
        Self(
            requests
                .map(|request| {
                    let alternatives = request.items_at(&["firstAvailable"]).iter();
                    (
                        request.str_at(&["name"]),
                        alternatives.map(|one| one.str_at(&["name"])).collect(),
                    )
                })
                .collect(),
        )
    }

    /// Returns true for the name of a request, and for that of one of its alternatives after a
    /// slash.
    fn has(&self, name: &str) -> bool {
        match name.split('/').collect::<Vec<_>>().as_slice() {
            [request] => self.0.contains_key(request),
            [request, alternative] => self
                .0
                .get(request)
                .is_some_and(|names| names.contains(alternative)),
            _ => false,
        }
    }

    /// Validates a field that names a request.
    pub fn reference(&self, errors: &mut Complaints, path: &Path<'_>, name: &str) {
        const DETAIL: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        if name.split('/').count() <= 2 {
            name.split('/')
                .for_each(|part| validation::label(errors, path, part));
        }
        if !self.has(name) {
            errors.push(FieldError::invalid(path, name, DETAIL));
        }
    }

    /// Validates a list of names of requests. The schema declares that each name is listed once.
    pub fn references(&self, errors: &mut Complaints, path: &Path<'_>, list: &Value) {
        let list = texts(list);
        if list.len() > REQUESTS_MAX {
            errors.push(FieldError::too_many(path, list.len(), REQUESTS_MAX).covered());
            return;
        }
        for (at, name) in list.iter().enumerate() {
            self.reference(errors, &path.index(at), name);
        }
        declared(errors, Declared::Yes, |errors| {
            validation::duplicates(errors, path, &list)
        });
    }
}

/// Validates the spec of a claim.
pub fn validate(errors: &mut Complaints, path: &Path<'_>, spec: &Value) {
    let path = path.child("devices");
    let names = RequestNames::of(spec);
    let claim = &spec["devices"];
    let targets = Targets::of(claim);
    let list = claim.items_at(&["requests"]);
    if within(errors, &path.child("requests"), list, REQUESTS_MAX) {
        let place = path.child("requests");
        for (at, request) in list.iter().enumerate() {
            validate_request(errors, &place.index(at), request, &targets);
        }
    }
    let list = claim.items_at(&["constraints"]);
    if within(errors, &path.child("constraints"), list, CONSTRAINTS_MAX) {
        let place = path.child("constraints");
        for (at, constraint) in list.iter().enumerate() {
            validate_constraint(errors, &place.index(at), constraint, &names);
        }
    }
    let list = claim.items_at(&["config"]);
    if within(errors, &path.child("config"), list, CONFIGS_MAX) {
        let place = path.child("config");
        for (at, config) in list.iter().enumerate() {
            let path = place.index(at);
            names.references(errors, &path.child("requests"), &config["requests"]);
            validation::configuration(errors, &path, config, Origin::Given);
        }
    }
    if targets.derived_cost.get() > COST_MAX {
        let detail = "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// Returns whether a list is short enough. If it is not, complains, as the schema does too.
pub fn within(errors: &mut Complaints, path: &Path<'_>, list: &[Value], max: usize) -> bool {
    if list.len() > max {
        errors.push(FieldError::too_many(path, list.len(), max).covered());
    }
    list.len() <= max
}

fn validate_request(
    errors: &mut Complaints,
    path: &Path<'_>,
    request: &Value,
    targets: &Targets<'_>,
) {
    const ONE: &str = "exactly one of `exactly` or `firstAvailable` is required";
    let name = request.str_at(&["name"]);
    validation::label(errors, &path.child("name"), name);
    let alternatives = request.items_at(&["firstAvailable"]);
    match (present(&request["exactly"]), alternatives.is_empty()) {
        (false, true) => errors.push(FieldError::required(path, ONE)),
        (true, false) => {
            let detail = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(path, Value::Null, detail));
        }
        (true, true) => {
            let exactly = &request["exactly"];
            let place = path.child("exactly");
            class_name(errors, &place, exactly, Declared::No);
            validate_wish(errors, &place, exactly, name, targets);
        }
        (false, false) => {
            let path = path.child("firstAvailable");
            if !within(errors, &path, alternatives, ALTERNATIVES_MAX) {
                return;
            }
            for (at, alternative) in alternatives.iter().enumerate() {
                let path = path.index(at);
                let inner = alternative.str_at(&["name"]);
                validation::label(errors, &path.child("name"), inner);
                class_name(errors, &path, alternative, Declared::Yes);
                validate_wish(
                    errors,
                    &path,
                    alternative,
                    &format!("{name}/{inner}"),
                    targets,
                );
            }
        }
    }
}

fn class_name(errors: &mut Complaints, path: &Path<'_>, request: &Value, by_schema: Declared) {
    let path = path.child("deviceClassName");
    let name = request.str_at(&["deviceClassName"]);
    declared(errors, by_schema, |errors| {
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        let complaints = if name.is_empty() {
            Vec::new()
        } else {
            names::dns1123_subdomain(name)
        };
        crate::shared::validation::complaints::complain(errors, &path, name, complaints);
    });
}

/// Validates the fields that exact requests and alternatives have in common, apart from their
/// names.
fn validate_wish(
    errors: &mut Complaints,
    path: &Path<'_>,
    request: &Value,
    name: &str,
    targets: &Targets<'_>,
) {
    validation::selectors(
        errors,
        &path.child("selectors"),
        request.items_at(&["selectors"]),
        Origin::Given,
    );
    validate_derived(
        errors,
        &path.child("derivedAttributes"),
        request,
        name,
        targets,
    );
    let count = request.int_at(&["count"]).unwrap_or(0);
    let place = path.child("count");
    match request.str_at(&["allocationMode"]) {
        "All" if count != 0 => {
            let detail = "must not be specified when allocationMode is 'All'";
            errors.push(FieldError::invalid(&place, count, detail));
        }
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(
                &place,
                count,
                "must be greater than zero",
            ));
        }
        "All" | "ExactCount" => {}
        mode => validation::one_of_covered(
            errors,
            &path.child("allocationMode"),
            mode,
            &["All", "ExactCount"],
        ),
    }
    validation::tolerations(
        errors,
        &path.child("tolerations"),
        request.items_at(&["tolerations"]),
    );
}

/// Checks the computed attributes, and that a constraint uses them.
fn validate_derived(
    errors: &mut Complaints,
    path: &Path<'_>,
    request: &Value,
    name: &str,
    targets: &Targets<'_>,
) {
    let mut seen = BTreeSet::new();
    let list = request.items_at(&["derivedAttributes"]);
    for (at, derived) in list.iter().enumerate() {
        let attribute = derived.str_at(&["name"]);
        if !attribute.is_empty() && !targets.has(attribute, name) {
            let detail = "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request";
            let bad = Bad::Json(attribute.into());
            errors.push(FieldError::invalid(
                &path.index(at).child("name"),
                bad,
                detail,
            ));
        }
        let text = derived.str_at(&["expression"]);
        if !text.is_empty() {
            let place = path.index(at);
            let place = place.child("expression");
            let cost = validation::expression(errors, &place, text, Purpose::Attribute);
            let before = targets.derived_cost.get();
            targets.derived_cost.set(before.saturating_add(cost));
        }
    }
    for (at, attribute) in list.iter().enumerate() {
        let attribute = attribute.str_at(&["name"]);
        if !seen.insert(attribute) {
            errors.push(FieldError::duplicate(&path.index(at), attribute));
        }
    }
}

/// What the computed attributes of a claim have in common.
struct Targets<'a> {
    /// The attributes that the constraints use, by the request they apply to; `""` means all requests.
    by_request: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// The cost of the attributes that were checked.
    derived_cost: Cell<u64>,
}

impl<'a> Targets<'a> {
    fn of(claim: &'a Value) -> Self {
        let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for constraint in claim.items_at(&["constraints"]) {
            let attributes = ["matchAttribute", "distinctAttribute"];
            let Some(attribute) = attributes
                .iter()
                .find_map(|field| constraint[*field].as_str())
            else {
                continue;
            };
            let mut names = texts(&constraint["requests"]);
            if names.is_empty() {
                names.push("");
            }
            for name in names {
                targets.entry(name).or_default().insert(attribute);
            }
        }
        Self {
            by_request: targets,
            derived_cost: Cell::new(0),
        }
    }

    fn has(&self, attribute: &str, request: &str) -> bool {
        let parent = request.split_once('/').map(|(parent, _)| parent);
        let mut names = ["", request].into_iter().chain(parent);
        names.any(|name| {
            self.by_request
                .get(name)
                .is_some_and(|attributes| attributes.contains(attribute))
        })
    }
}

fn validate_constraint(
    errors: &mut Complaints,
    path: &Path<'_>,
    constraint: &Value,
    names: &RequestNames<'_>,
) {
    names.references(errors, &path.child("requests"), &constraint["requests"]);
    let attributes = ["matchAttribute", "distinctAttribute"];
    match attributes
        .iter()
        .find_map(|field| Some((field, constraint[*field].as_str()?)))
    {
        Some((field, attribute)) => {
            validation::fully_qualified_name(errors, &path.child(field), attribute)
        }
        None => {
            let detail = r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#;
            errors.push(FieldError::required(path, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn requests_that_count_want_one_device() {
        let mut spec = json!({"devices": {"requests": [{"exactly": {}}, {"firstAvailable": [{"allocationMode": "All"}]}]}});
        default(&mut spec);
        let requests = spec.items_at(&["devices", "requests"]);
        assert_eq!(requests[0].int_at(&["exactly", "count"]), Some(1));
        assert_eq!(
            requests[1]["firstAvailable"],
            json!([{"allocationMode": "All"}])
        );
    }

    #[test]
    fn references_name_a_request_or_one_of_its_alternatives() {
        let spec = json!({"devices": {"requests": [{"name": "a", "firstAvailable": [{"name": "b"}]}, {"name": "c"}]}});
        let names = RequestNames::of(&spec);
        for (name, known) in [
            ("a", true),
            ("a/b", true),
            ("c", true),
            ("c/b", false),
            ("b", false),
            ("a/b/c", false),
        ] {
            assert_eq!(names.has(name), known, "{name}");
        }
    }

    #[test]
    fn derived_attributes_are_of_use() {
        let claim = json!({"constraints": [{"matchAttribute": "d/x", "requests": ["a"]}, {"distinctAttribute": "d/y"}]});
        let targets = Targets::of(&claim);
        assert!(targets.has("d/x", "a/b") && targets.has("d/x", "a") && !targets.has("d/x", "c"));
        assert!(targets.has("d/y", "c"));
    }
}
