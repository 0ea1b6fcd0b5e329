//! LimitRanges: for each type, bounds and defaults that must be consistent.

use super::config_map::members;
use crate::shared::object_metadata;
use crate::shared::pod::defaults::round_up;
use crate::shared::resource_names::{
    amount, may_overcommit, validate_container_name, validate_name,
};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::quantity::Quantity;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

/// The text that a table shows for a time that is not set.
const NO_TIME: &str = "0001-01-01T00:00:00Z";
/// The largest amount that can be counted in thousandths without overflow.
const MILLI_MAX: i64 = i64::MAX / 1000;

/// Behaviour of LimitRanges.
#[derive(Debug)]
pub struct LimitRange;

impl Strategy for LimitRange {
    fn default(&self, object: &mut Value) {
        let limits = object
            .at_mut(&["spec", "limits"])
            .and_then(Value::as_array_mut);
        for limit in limits.into_iter().flatten() {
            if limit.str_at(&["type"]) == "Container" {
                fill(limit, "max", "default");
                fill(limit, "default", "defaultRequest");
                fill(limit, "min", "defaultRequest");
                // Upstream gives every container limit these two, so an empty one says nothing.
                for name in ["default", "defaultRequest"] {
                    if limit[name].as_object().is_some_and(|list| list.is_empty()) {
                        drop(limit.remove(&[name]));
                    }
                }
            }
            for list in [
                "max",
                "min",
                "default",
                "defaultRequest",
                "maxLimitRequestRatio",
            ] {
                limit.get_mut(list).into_iter().for_each(round_up);
            }
        }
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        // An object without a name is named by its uid.
        if object.str_at(&["metadata", "name"]).is_empty() {
            let uid = object.str_at(&["metadata", "uid"]).to_owned();
            object.set(&["metadata", "name"], uid);
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_limits(object));
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors =
            object_metadata::validate(object, Scope::Namespaced, NameRule::DnsSubdomain);
        errors.extend(validate_limits(object));
        errors
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let created = object.str_at(&["metadata", "creationTimestamp"]);
        let created = if created.is_empty() { NO_TIME } else { created };
        vec![object.str_at(&["metadata", "name"]).into(), created.into()]
    }
}

/// Copies the amounts that `to` lacks from `from`.
fn fill(limit: &mut Value, from: &str, to: &str) {
    let Some(source) = limit.get(from).and_then(Value::as_object).cloned() else {
        return;
    };
    for (name, value) in source {
        let target = limit[to].make_object();
        if !target.contains_key(&name) {
            target.insert(name, value);
        }
    }
}

fn validate_limits(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let spec = Path::new("spec");
    let list = spec.child("limits");
    let mut types = BTreeSet::new();
    for (at, limit) in object.items_at(&["spec", "limits"]).iter().enumerate() {
        let path = list.index(at);
        let name = limit.str_at(&["type"]);
        validate_type(name, &path.child("type"), &mut errors);
        if !types.insert(name) {
            errors.push(FieldError::duplicate(
                &path.child("type"),
                Bad::Json(name.into()),
            ));
        }
        validate_limit(name, limit, &path, &mut errors);
    }
    errors
}

fn validate_type(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    let complaints = names::qualified_name(name);
    let unknown =
        !name.contains('/') && !["Pod", "Container", "PersistentVolumeClaim"].contains(&name);
    if complaints.is_empty() && unknown {
        let detail = "must be a standard limit type or fully qualified";
        errors.push(FieldError::invalid(path, Bad::Json(name.into()), detail));
    }
    for detail in complaints {
        errors.push(FieldError::invalid(path, Bad::Json(name.into()), detail));
    }
}

fn validate_limit(kind: &str, limit: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let mut resources = BTreeSet::new();
    let mut check = |field: &str, errors: &mut Complaints| {
        for (name, _) in members(&limit[field]) {
            let map = path.child(field);
            let place = map.key(name);
            errors.extend(match kind {
                "Pod" | "Container" => validate_container_name(name, &place),
                _ => validate_name(name, &place),
            });
            resources.insert(name.to_owned());
        }
    };
    check("max", errors);
    check("min", errors);
    for field in ["default", "defaultRequest"] {
        if kind != "Pod" {
            check(field, errors);
        } else if members(&limit[field]).next().is_some() {
            let detail = "may not be specified when `type` is 'Pod'";
            errors.push(FieldError::forbidden(&path.child(field), detail));
        }
    }
    let storage = |field: &str| limit.at(&[field, "storage"]).is_some();
    if kind == "PersistentVolumeClaim" && !storage("min") && !storage("max") {
        let detail =
            "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(&path.child("limits"), detail));
    }
    check("maxLimitRequestRatio", errors);
    for name in resources {
        Bounds::of(kind, limit, &name).validate(&name, path, errors);
    }
}

/// The bounds and defaults of one item for one resource.
struct Bounds {
    min: Option<Quantity>,
    max: Option<Quantity>,
    default: Option<Quantity>,
    request: Option<Quantity>,
    ratio: Option<Quantity>,
}

impl Bounds {
    fn of(kind: &str, limit: &Value, name: &str) -> Self {
        let of = |field: &str| limit.at(&[field, name]).map(|value| amount(Some(value)));
        let defaults = |field: &str| if kind == "Pod" { None } else { of(field) };
        Self {
            min: of("min"),
            max: of("max"),
            default: defaults("default"),
            request: defaults("defaultRequest"),
            ratio: of("maxLimitRequestRatio"),
        }
    }

    fn validate(&self, name: &str, path: &Path<'_>, errors: &mut Complaints) {
        let mut above = |field: &str,
                         bad: ReportedAmount,
                         low: (&str, &Option<Quantity>),
                         high: (&str, &Option<Quantity>)| {
            let (Some(small), Some(large)) = (low.1, high.1) else {
                return;
            };
            if small > large {
                let shown = if bad == ReportedAmount::Low {
                    small
                } else {
                    large
                };
                let detail = format!(
                    "{} value {small} is greater than {} value {large}",
                    low.0, high.0
                );
                errors.push(FieldError::invalid(
                    &path.child(field).key(name),
                    shown.to_string(),
                    detail,
                ));
            }
        };
        above(
            "min",
            ReportedAmount::Low,
            ("min", &self.min),
            ("max", &self.max),
        );
        above(
            "defaultRequest",
            ReportedAmount::High,
            ("min", &self.min),
            ("default request", &self.request),
        );
        above(
            "defaultRequest",
            ReportedAmount::Low,
            ("default request", &self.request),
            ("max", &self.max),
        );
        above(
            "defaultRequest",
            ReportedAmount::Low,
            ("default request", &self.request),
            ("default limit", &self.default),
        );
        above(
            "default",
            ReportedAmount::Low,
            ("min", &self.min),
            ("default", &self.default),
        );
        above(
            "default",
            ReportedAmount::High,
            ("default", &self.default),
            ("max", &self.max),
        );
        self.validate_ratio(name, path, errors);
        self.validate_overcommit(name, path, errors);
    }

    /// Checks that a resource which cannot be overcommitted has the same default for request and
    /// limit.
    fn validate_overcommit(&self, name: &str, path: &Path<'_>, errors: &mut Complaints) {
        if let (Some(default), Some(request)) = (&self.default, &self.request)
            && !may_overcommit(name)
            && default != request
        {
            let detail = format!(
                "default value {default} must equal to defaultRequest value {request} in {name}"
            );
            let place = path.child("defaultRequest");
            errors.push(FieldError::invalid(
                &place.key(name),
                request.to_string(),
                detail,
            ));
        }
    }

    fn validate_ratio(&self, name: &str, path: &Path<'_>, errors: &mut Complaints) {
        let Some(ratio) = &self.ratio else { return };
        let map = path.child("maxLimitRequestRatio");
        let place = map.key(name);
        if ratio < &amount(Some(&"1".into())) {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(FieldError::invalid(&place, ratio.to_string(), detail));
        }
        let (Some(min), Some(max)) = (&self.min, &self.max) else {
            return;
        };
        let fine = [ratio, min, max]
            .iter()
            .all(|amount| amount.value() < MILLI_MAX);
        let (ratio_value, min_value, max_value) = if fine {
            (
                ratio.milli_value() as f64 / 1000.0,
                min.milli_value(),
                max.milli_value(),
            )
        } else {
            (ratio.value() as f64, min.value(), max.value())
        };
        let bound = max_value as f64 / min_value as f64;
        if ratio_value > bound {
            let bound = match bound {
                bound if bound.is_infinite() => {
                    if bound > 0.0 {
                        "+Inf".to_owned()
                    } else {
                        "-Inf".to_owned()
                    }
                }
                bound => format!("{bound:.6}"),
            };
            let detail = format!("ratio {ratio} is greater than max/min = {bound}");
            errors.push(FieldError::invalid(&place, ratio.to_string(), detail));
        }
    }
}

/// The choice which of two amounts a text shows as the bad one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportedAmount {
    Low,
    High,
}
