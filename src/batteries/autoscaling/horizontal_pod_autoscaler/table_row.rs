//! The table row of an autoscaler.

use polyplane_apimachinery::Value;
use polyplane_registry::strategy::age;

/// Number of metrics that the column shows.
const SHOWN_MAX: usize = 2;

/// Returns the cells of an autoscaler.
pub fn cells(object: &Value, now: i64) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let target = &spec["scaleTargetRef"];
    let least = spec
        .int_at(&["minReplicas"])
        .map_or("<unset>".to_owned(), |number| number.to_string());
    vec![
        object.str_at(&["metadata", "name"]).into(),
        format!("{}/{}", target.str_at(&["kind"]), target.str_at(&["name"])).into(),
        metrics(
            spec.items_at(&["metrics"]),
            status.items_at(&["currentMetrics"]),
        )
        .into(),
        least.into(),
        spec.int_at(&["maxReplicas"]).unwrap_or(0).into(),
        status.int_at(&["currentReplicas"]).unwrap_or(0).into(),
        age(object.str_at(&["metadata", "creationTimestamp"]), now),
    ]
}

fn metrics(specs: &[Value], statuses: &[Value]) -> String {
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let shown = specs.iter().enumerate().take(SHOWN_MAX);
    let texts: Vec<String> = shown
        .map(|(at, spec)| metric(spec, statuses.get(at).unwrap_or(&Value::Null)))
        .collect();
    let text = texts.join(", ");
    match specs.len() {
        all if all > SHOWN_MAX => format!("{text} + {} more...", all - SHOWN_MAX),
        _ => text,
    }
}

fn metric(spec: &Value, status: &Value) -> String {
    match spec.str_at(&["type"]) {
        "External" => amount(&spec["external"], &status["external"]),
        "Object" => amount(&spec["object"], &status["object"]),
        "Pods" => {
            let current = measured(&status["pods"], "averageValue");
            format!(
                "{current}/{}",
                quantity(&spec["pods"]["target"]["averageValue"])
            )
        }
        "Resource" => utilization(&spec["resource"], &status["resource"]),
        "ContainerResource" => {
            utilization(&spec["containerResource"], &status["containerResource"])
        }
        _ => "<unknown type>".to_owned(),
    }
}

/// Returns the measured value; `<nil>` if there is a status without it.
fn measured<'a>(status: &'a Value, field: &str) -> &'a str {
    if status.is_null() {
        "<unknown>"
    } else {
        quantity(&status["current"][field])
    }
}

fn quantity(value: &Value) -> &str {
    value.as_str().unwrap_or("<nil>")
}

fn amount(spec: &Value, status: &Value) -> String {
    let target = &spec["target"];
    match target["averageValue"].as_str() {
        Some(wanted) => {
            let current = status["current"]["averageValue"]
                .as_str()
                .unwrap_or("<unknown>");
            format!("{current}/{wanted} (avg)")
        }
        None => format!(
            "{}/{}",
            measured(status, "value"),
            quantity(&target["value"])
        ),
    }
}

fn utilization(spec: &Value, status: &Value) -> String {
    let (name, target) = (spec.str_at(&["name"]), &spec["target"]);
    if let Some(wanted) = target["averageValue"].as_str() {
        return format!("{name}: {}/{wanted}", measured(status, "averageValue"));
    }
    let percent = |value: &Value, absent: &str| match value.as_int() {
        Some(number) => format!("{number}%"),
        None => absent.to_owned(),
    };
    let current = percent(&status["current"]["averageUtilization"], "<unknown>");
    format!(
        "{name}: {current}/{}",
        percent(&target["averageUtilization"], "<auto>")
    )
}
