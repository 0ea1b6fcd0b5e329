//! The least and the most that containers, pods and volume claims may request.

use crate::pod_resources::{Amount, Resources, is_cpu_or_memory, of_pod_stating, resources};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quantity::Quantity;

/// The greatest whole number that is compared by thousandths.
const MILLI_COMPARABLE_MAX: i64 = i64::MAX / 1000;

/// What is compared with a limit.
struct Subject {
    /// The type of the limit, for messages.
    kind: &'static str,
    requests: Resources,
    limits: Resources,
}

/// Returns what a LimitRange forbids about a pod.
pub(super) fn of_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    for limit in range.items_at(&["spec", "limits"]) {
        match limit.str_at(&["type"]) {
            "Container" => {
                for list in ["containers", "initContainers"] {
                    for container in pod.items_at(&["spec", list]) {
                        let of =
                            |amount: Amount| resources(&container["resources"][amount.field()]);
                        let subject = Subject {
                            kind: "Container",
                            requests: of(Amount::Requests),
                            limits: of(Amount::Limits),
                        };
                        check(&subject, limit, &mut errors);
                    }
                }
            }
            "Pod" => {
                // Unlike its quotas, upstream's limits do not heed the huge pages that a pod states.
                let of = |amount: Amount| of_pod_stating(pod, amount, is_cpu_or_memory);
                let subject = Subject {
                    kind: "Pod",
                    requests: of(Amount::Requests),
                    limits: of(Amount::Limits),
                };
                check(&subject, limit, &mut errors);
            }
            _ => {}
        }
    }
    errors
}

/// Returns what a LimitRange forbids about a volume claim.
pub(super) fn of_volume_claim(claim: &Value, range: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    for limit in range.items_at(&["spec", "limits"]) {
        if limit.str_at(&["type"]) != "PersistentVolumeClaim" {
            continue;
        }
        let subject = Subject {
            kind: "PersistentVolumeClaim",
            requests: resources(&claim["spec"]["resources"]["requests"]),
            limits: Resources::new(),
        };
        for (name, bound) in resources(&limit["min"]) {
            errors.extend(below(&subject, &name, &bound));
        }
        for (name, bound) in resources(&limit["max"]) {
            let what = format!("maximum {name} usage per {} is {bound}", subject.kind);
            errors.extend(match subject.requests.get(&name) {
                None => Some(format!("{what}.  No request is specified")),
                Some(request) => (comparable(request, &bound).0 > comparable(request, &bound).1)
                    .then(|| format!("{what}, but request is {request}")),
            });
        }
    }
    errors
}

fn check(subject: &Subject, limit: &Value, errors: &mut Vec<String>) {
    for (name, bound) in resources(&limit["min"]) {
        errors.extend(below(subject, &name, &bound));
    }
    for (name, bound) in resources(&limit["max"]) {
        errors.extend(above(subject, &name, &bound));
    }
    for (name, bound) in resources(&limit["maxLimitRequestRatio"]) {
        errors.extend(beyond_ratio(subject, &name, &bound));
    }
}

/// Returns two quantities as numbers: thousandths, or whole units if they are too great for that.
fn comparable(one: &Quantity, other: &Quantity) -> (i64, i64) {
    let (a, b) = (one.value(), other.value());
    if a <= MILLI_COMPARABLE_MAX && b <= MILLI_COMPARABLE_MAX {
        (one.milli_value(), other.milli_value())
    } else {
        (a, b)
    }
}

fn below(subject: &Subject, name: &str, bound: &Quantity) -> Option<String> {
    let what = format!("minimum {name} usage per {} is {bound}", subject.kind);
    let is_less = |given: &&Quantity| {
        let (given, bound) = comparable(given, bound);
        given < bound
    };
    let Some(request) = subject.requests.get(name) else {
        return Some(format!("{what}.  No request is specified"));
    };
    if is_less(&request) {
        return Some(format!("{what}, but request is {request}"));
    }
    let limit = subject.limits.get(name).filter(is_less)?;
    Some(format!("{what}, but limit is {limit}"))
}

fn above(subject: &Subject, name: &str, bound: &Quantity) -> Option<String> {
    let what = format!("maximum {name} usage per {} is {bound}", subject.kind);
    let is_more = |given: &&Quantity| {
        let (given, bound) = comparable(given, bound);
        given > bound
    };
    let Some(limit) = subject.limits.get(name) else {
        return Some(format!("{what}.  No limit is specified"));
    };
    if is_more(&limit) {
        return Some(format!("{what}, but limit is {limit}"));
    }
    let request = subject.requests.get(name).filter(is_more)?;
    Some(format!("{what}, but request is {request}"))
}

fn beyond_ratio(subject: &Subject, name: &str, bound: &Quantity) -> Option<String> {
    let what = format!(
        "{name} max limit to request ratio per {} is {bound}",
        subject.kind
    );
    let given = |list: &Resources| list.get(name).filter(|given| !given.is_zero()).cloned();
    let Some(request) = given(&subject.requests) else {
        return Some(format!(
            "{what}, but no request is specified or request is 0"
        ));
    };
    let Some(limit) = given(&subject.limits) else {
        return Some(format!("{what}, but no limit is specified or limit is 0"));
    };
    let (limit, request) = comparable(&limit, &request);
    let ratio = limit as f64 / request as f64;
    (ratio > bound.as_f64()).then(|| format!("{what}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn huge_pages_of_a_pod_are_those_of_its_containers_whatever_it_states() {
        let limits =
            |cpu: &str, pages: &str| json!({"limits": {"cpu": (cpu), "hugepages-2Mi": (pages)}});
        let container = json!({"name": "c", "resources": (limits("1", "2Mi"))});
        let pod = json!({"spec": {"containers": [(container)], "resources": (limits("3", "8Mi"))}});
        let most = json!({"type": "Pod", "max": {"cpu": "2", "hugepages-2Mi": "4Mi"}});
        let range = json!({"spec": {"limits": [(most)]}});
        assert_eq!(
            of_pod(&pod, &range),
            ["maximum cpu usage per Pod is 2, but limit is 3"]
        );
    }
}
