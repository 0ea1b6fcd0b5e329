//! Validation of the requests and limits of containers and pods.

use super::{Leniency, PodOptions, containers_of, is_sidecar};
use crate::shared::resource_names::{self, amount, is_huge_pages, may_overcommit};
use crate::shared::validation::complaints::{complain, named};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, FieldErrorKind, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::{Str, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The names that resources may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// The names for a container.
    Container,
    /// The names for a whole pod.
    Pod,
}

/// The names of the resource claims of a pod.
#[derive(Debug)]
pub struct ClaimNames<'a> {
    names: BTreeSet<&'a str>,
}

impl<'a> ClaimNames<'a> {
    /// Collects the names.
    pub fn new(names: impl Iterator<Item = &'a str>) -> Self {
        Self {
            names: names.collect(),
        }
    }

    /// Returns the complaint about the name of a claim that the pod has not got. It lists all names.
    fn complaint(&self, path: &Path<'_>, name: &str) -> Option<FieldError> {
        if self.names.contains(name) {
            return None;
        }
        let names: Vec<&str> = self.names.iter().copied().collect();
        let rest = if names.is_empty() {
            " which is empty".to_owned()
        } else {
            format!(": {}", names.join(", "))
        };
        let detail = format!("must be one of the names in pod.spec.resourceClaims{rest}");
        let kind = FieldErrorKind::NotFound;
        Some(FieldError::new(kind, path, name, detail))
    }
}

/// Returns true for a resource that can be set for a pod as a whole.
pub fn is_of_pods(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_pages(name)
}

/// Returns the members of a resource list.
pub fn list_of<'a>(resources: &'a Value, list: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    resources
        .get(list)
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|list| list.iter())
}

/// Validates requests, limits and claims.
pub fn validate(
    resources: &Value,
    rule: Names,
    claims: Option<&ClaimNames<'_>>,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let (limits, requests) = (path.child("limits"), path.child("requests"));
    let (mut compute, mut huge_pages) = (false, false);
    let mut look = |name: &str| {
        compute |= name == "cpu" || name == "memory";
        huge_pages |= is_huge_pages(name);
    };
    for (name, value) in list_of(resources, "limits") {
        look(name);
        let path = limits.key(name);
        validate_entry(name, value, rule, &path, errors);
        validate_pages(name, value, &path, options, errors);
    }
    for (name, value) in list_of(resources, "requests") {
        look(name);
        let path = requests.key(name);
        validate_entry(name, value, rule, &path, errors);
        let wanted = amount(Some(value));
        match resources["limits"].get(name) {
            Some(limit) => {
                let limit = amount(Some(limit));
                let relation = if wanted != limit && !may_overcommit(name) {
                    "must be equal to"
                } else if wanted > limit {
                    "must be less than or equal to"
                } else {
                    ""
                };
                if !relation.is_empty() {
                    let detail = format!("{relation} {name} limit of {limit}");
                    errors.push(FieldError::invalid(&requests, wanted.to_string(), detail));
                }
            }
            None if !may_overcommit(name) => {
                errors.push(FieldError::required(
                    &limits,
                    "Limit must be set for non overcommitable resources",
                ));
            }
            None => {}
        }
        validate_pages(name, value, &path, options, errors);
    }
    if huge_pages && !compute {
        errors.push(FieldError::forbidden(
            path,
            "HugePages require cpu or memory",
        ));
    }
    let none = ClaimNames::new(std::iter::empty());
    let known = claims.unwrap_or(&none);
    validate_claims(
        resources.items_at(&["claims"]),
        known,
        &path.child("claims"),
        errors,
    );
}

fn validate_entry(
    name: &str,
    value: &Value,
    rule: Names,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    match rule {
        Names::Container => errors.extend(resource_names::validate_container_name(name, path)),
        Names::Pod => {
            let complaints = resource_names::validate_name(name, path);
            if complaints.is_empty() && !is_of_pods(name) {
                let known = ["cpu", "hugepages-", "memory"];
                errors.push(FieldError::not_supported(path, named(name), &known));
            }
            errors.extend(complaints);
        }
    }
    errors.extend(resource_names::validate_amount(name, value, path));
}

fn is_divisible(name: &str, value: &Value) -> bool {
    let page = name
        .strip_prefix("hugepages-")
        .and_then(|size| Quantity::parse(size).ok());
    page.is_some_and(|page| {
        page.sign() > 0
            && page.milli_value() % 1000 == 0
            && amount(Some(value)).value() % page.value() == 0
    })
}

fn validate_pages(
    name: &str,
    value: &Value,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    if is_huge_pages(name)
        && !options.allows(Leniency::IndivisibleHugePages)
        && !is_divisible(name, value)
    {
        let text = amount(Some(value)).to_string();
        let detail = format!("{text} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid(path, text, detail));
    }
}

/// Returns true if an amount of huge pages is not a multiple of the page size.
pub fn has_indivisible_huge_pages(spec: &Value) -> bool {
    let of_containers = containers_of(spec).flat_map(|container| {
        let resources = &container["resources"];
        list_of(resources, "limits").chain(list_of(resources, "requests"))
    });
    of_containers
        .chain(list_of(spec, "overhead"))
        .any(|(name, value)| is_huge_pages(name) && !is_divisible(name, value))
}

fn validate_claims(
    claims: &[Value],
    known: &ClaimNames<'_>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    // How many of them have a slash, by the text before it.
    let mut with_request: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = path.index(at);
        let (name, request) = (claim.str_at(&["name"]), claim.str_at(&["request"]));
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        if seen.contains(name) {
            errors.push(FieldError::duplicate(&path, name));
        } else {
            let mut key = name.to_owned();
            if !request.is_empty() {
                complain(
                    errors,
                    &path.child("request"),
                    request,
                    names::dns1123_label(request),
                );
                key = format!("{name}/{request}");
            }
            if seen.contains(&key) {
                errors.push(FieldError::duplicate(&path, key.as_str()));
            } else if request.is_empty() {
                let requests = with_request.get(name).copied().unwrap_or(0);
                for _ in 0..requests {
                    errors.push(FieldError::duplicate(&path, name));
                }
            }
            let has_slash = key.contains('/');
            if seen.insert(key) && has_slash {
                let first = name.split_once('/').map_or(name, |(first, _)| first);
                *with_request.entry(first).or_default() += 1;
            }
        }
        errors.extend(known.complaint(&path, name));
    }
}

/// Validates the resources of a whole pod.
pub fn validate_of_pod(
    spec: &Value,
    claims: &ClaimNames<'_>,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let resources = &spec["resources"];
    if resources.is_null() {
        return;
    }
    if spec.str_at(&["os", "name"]) == "windows" {
        errors.push(FieldError::forbidden(
            path,
            "may not be set for a windows pod",
        ));
        return;
    }
    if !resources["claims"].is_null() {
        let detail = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(&path.child("claims"), detail));
    }
    validate(resources, Names::Pod, Some(claims), path, options, errors);
    validate_against_containers(spec, path, errors);
}

fn validate_against_containers(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let resources = &spec["resources"];
    for (list, all) in [("requests", true), ("limits", false)] {
        let list_path = path.child(list);
        for (name, total) in aggregate(spec, list) {
            if !all && !is_huge_pages(&name) {
                continue;
            }
            let Some(own) = resources[list].get(&name) else {
                continue;
            };
            let own = amount(Some(own));
            if total > own {
                let detail = format!(
                    "must be greater than or equal to aggregate container {list} of {total}"
                );
                errors.push(FieldError::invalid(
                    &list_path.key(&name),
                    own.to_string(),
                    detail,
                ));
            }
        }
    }
    let containers = path.child("containers");
    for (at, container) in spec.items_at(&["containers"]).iter().enumerate() {
        for (name, limit) in list_of(&container["resources"], "limits") {
            let Some(own) = resources["limits"].get(name) else {
                continue;
            };
            let (limit, own) = (amount(Some(limit)), amount(Some(own)));
            if limit > own {
                let detail = format!("must be less than or equal to pod limits of {own}");
                let place = containers.index(at);
                let place = place.key(name);
                errors.push(FieldError::invalid(
                    &place.child("limits"),
                    limit.to_string(),
                    detail,
                ));
            }
        }
    }
}

/// Amounts by resource.
pub type Amounts = BTreeMap<Str, Quantity>;

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, quantity) in more {
        match total.get_mut(name) {
            Some(sum) => sum.add(quantity),
            None => drop(total.insert(name.clone(), quantity.clone())),
        }
    }
}

fn raise(total: &mut Amounts, other: &Amounts) {
    for (name, quantity) in other {
        if total.get(name).is_none_or(|known| quantity > known) {
            total.insert(name.clone(), quantity.clone());
        }
    }
}

/// Returns the amounts that the containers of a pod need together: the regular ones and the
/// sidecars at once, or the largest init container, each together with the sidecars that have
/// started by then.
pub fn aggregate(spec: &Value, list: &str) -> Amounts {
    let of = |container: &Value| -> Amounts {
        list_of(&container["resources"], list)
            .map(|(name, value)| (name.into(), amount(Some(value))))
            .collect()
    };
    let mut total = Amounts::new();
    for container in spec.items_at(&["containers"]) {
        add(&mut total, &of(container));
    }
    let (mut sidecars, mut before) = (Amounts::new(), Amounts::new());
    for container in spec.items_at(&["initContainers"]) {
        let mut own = of(container);
        if is_sidecar(container) {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            raise(&mut before, &sidecars);
        } else {
            add(&mut own, &sidecars);
            raise(&mut before, &own);
        }
    }
    raise(&mut total, &before);
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_claim_as_a_whole_is_a_duplicate_of_each_request_of_it() {
        let claims = [
            ("a", "x"),
            ("a", "y"),
            ("a", "x"),
            ("b", "x"),
            ("a", ""),
            ("a", "z"),
            ("c/d", ""),
            ("c", ""),
        ];
        let claims = claims.map(|(name, request)| json!({"name": name, "request": request}));
        let known = ClaimNames::new(["a", "b", "c", "c/d"].into_iter());
        let mut errors = Complaints::default();
        validate_claims(&claims, &known, &Path::new("claims"), &mut errors);
        let found: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        let wanted = [(2, "a/x"), (4, "a"), (4, "a"), (5, "a"), (7, "c")];
        let wanted = wanted.map(|(at, text)| format!("claims[{at}]: Duplicate value: \"{text}\""));
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_complaints_about_many_unknown_claims_are_bounded() {
        let names = |prefix: &str, count: usize| -> Vec<String> {
            (0..count).map(|at| format!("{prefix}{at}")).collect()
        };
        let unknown = |known: usize, wished: usize| -> Complaints {
            let known = names("known-", known);
            let known = ClaimNames::new(known.iter().map(String::as_str));
            let claims: Vec<Value> = names("wish-", wished)
                .into_iter()
                .map(|name| json!({"name": name}))
                .collect();
            let mut errors = Complaints::default();
            // Two containers share the room.
            for _ in 0..2 {
                validate_claims(&claims, &known, &Path::new("claims"), &mut errors);
            }
            errors
        };
        let few = unknown(2, 1);
        let text = "claims[0]: Not found: \"wish-0\": must be one of the names in pod.spec.resourceClaims: known-0, known-1";
        assert_eq!(few.len(), 2);
        assert_eq!(few[1].to_string(), text);
        let many = unknown(5_000, 5_000);
        let bytes: usize = many.iter().map(|error| error.detail.len()).sum();
        assert!(many.len() > 10 && bytes < 2 << 20, "{bytes}");
    }
}
