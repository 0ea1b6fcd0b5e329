//! Conversion between autoscaling/v1 and v2. Data for which v1 has no fields is kept in
//! annotations, as JSON of types that exist only for this.

use polyplane_apimachinery::{Map, Str, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const TOLERANCE_DOWN: &str = "autoscaling.alpha.kubernetes.io/scale-down-tolerance";
const TOLERANCE_UP: &str = "autoscaling.alpha.kubernetes.io/scale-up-tolerance";
/// The annotations with the data for which v1 has no fields.
pub const ANNOTATIONS: [&str; 6] = [
    METRICS,
    CURRENT_METRICS,
    CONDITIONS,
    BEHAVIOR,
    TOLERANCE_DOWN,
    TOLERANCE_UP,
];

/// Percentage of CPU utilization that is the target if an object names no metric.
const UTILIZATION: i64 = 80;

/// Returns whether an object has annotations with data for which v1 has no fields.
pub fn has_annotations(object: &Value) -> bool {
    let annotations = &object["metadata"]["annotations"];
    ANNOTATIONS
        .iter()
        .any(|name| annotations.get(name).is_some())
}

/// Removes the annotations with the data for which v1 has no fields.
pub fn drop_annotations(object: &mut Value) {
    let Some(annotations) = object
        .at_mut(&["metadata", "annotations"])
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    for name in ANNOTATIONS {
        annotations.remove(name);
    }
    if annotations.is_empty() {
        drop(object.remove(&["metadata", "annotations"]));
    }
}

/// Converts an object from v1 to v2.
pub fn from_v1(mut object: Value) -> Value {
    let mut metrics = carried(&object, METRICS).map_or(Vec::new(), |metrics| {
        metrics
            .as_array()
            .unwrap_or(&[])
            .iter()
            .map(spec_from_v1)
            .collect()
    });
    if let Some(share) = take(&mut object, &["spec", "targetCPUUtilizationPercentage"]) {
        metrics.push(cpu_metric(share));
    }
    if metrics.is_empty() {
        metrics.push(cpu_metric(UTILIZATION.into()));
    }
    let behavior = carried(&object, BEHAVIOR).map(|behavior| lower_keys(&behavior));
    let current = match carried(&object, CURRENT_METRICS) {
        Some(metrics) => {
            drop(object.remove(&["status", "currentCPUUtilizationPercentage"]));
            metrics
                .as_array()
                .map(|metrics| metrics.iter().map(status_from_v1).collect::<Vec<Value>>())
        }
        None => take(&mut object, &["status", "currentCPUUtilizationPercentage"]).map(|share| {
            let current = json!({"averageUtilization": share});
            vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": current}})]
        }),
    };
    let conditions =
        carried(&object, CONDITIONS).filter(|conditions| conditions.as_array().is_some());
    object.set(&["spec", "metrics"], metrics);
    if let Some(behavior) =
        behavior.filter(|behavior| behavior.as_object().is_some_and(|map| !map.is_empty()))
    {
        object.set(&["spec", "behavior"], behavior);
    }
    if let Some(current) = current {
        object.set(&["status", "currentMetrics"], current);
    }
    if let Some(conditions) = conditions {
        object.set(&["status", "conditions"], conditions);
    }
    drop_annotations(&mut object);
    object
}

/// Converts an object from v2 to v1.
pub fn to_v1(mut object: Value) -> Value {
    let metrics = take(&mut object, &["spec", "metrics"]).unwrap_or_default();
    let metrics = metrics.as_array().unwrap_or(&[]);
    let current = take(&mut object, &["status", "currentMetrics"]).unwrap_or_default();
    let current = current.as_array().unwrap_or(&[]);
    let behavior = take(&mut object, &["spec", "behavior"]);
    let conditions = take(&mut object, &["status", "conditions"]).unwrap_or_default();
    let conditions = conditions.as_array().unwrap_or(&[]);
    drop_annotations(&mut object);
    for field in ["currentReplicas", "desiredReplicas"] {
        if object["status"][field].is_null() {
            object.set(&["status", field], 0i64);
        }
    }
    if let Some(metric) = metrics.iter().find(|metric| is_cpu_share(metric)) {
        let share = metric["resource"]["target"]["averageUtilization"].clone();
        object.set(&["spec", "targetCPUUtilizationPercentage"], share);
    }
    let shares = current
        .iter()
        .filter(|metric| is_cpu(metric))
        .map(|metric| &metric["resource"]["current"]);
    if let Some(share) = shares
        .rev()
        .find_map(|current| current.int_at(&["averageUtilization"]))
    {
        object.set(&["status", "currentCPUUtilizationPercentage"], share);
    }
    let mut carry = |name: &str, text: String| {
        object["metadata"]["annotations"]
            .make_object()
            .insert(name, text);
    };
    let others: Vec<String> = metrics
        .iter()
        .filter(|metric| !is_cpu_share(metric))
        .map(spec_to_v1)
        .collect();
    if !others.is_empty() {
        carry(METRICS, list(&others));
    }
    if !current.is_empty() {
        let texts: Vec<String> = current.iter().map(status_to_v1).collect();
        carry(CURRENT_METRICS, list(&texts));
    }
    if let Some(behavior) = behavior {
        carry(BEHAVIOR, behavior_text(&behavior));
    }
    if !conditions.is_empty() {
        let texts: Vec<String> = conditions.iter().map(condition_text).collect();
        carry(CONDITIONS, list(&texts));
    }
    object
}

fn take(object: &mut Value, path: &[&str]) -> Option<Value> {
    object.remove(path).filter(|value| !value.is_null())
}

/// Returns the data in an annotation, if it can be parsed.
fn carried(object: &Value, name: &str) -> Option<Value> {
    let text = object["metadata"]["annotations"].get(name)?.as_str()?;
    Some(
        json::parse(text.as_bytes(), &json::Limits::default())
            .ok()?
            .value,
    )
}

fn cpu_metric(share: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": share}}})
}

fn is_cpu(metric: &Value) -> bool {
    metric.str_at(&["type"]) == "Resource" && metric.str_at(&["resource", "name"]) == "cpu"
}

fn is_cpu_share(metric: &Value) -> bool {
    is_cpu(metric) && !metric["resource"]["target"]["averageUtilization"].is_null()
}

/// Returns a value with its keys in lower case: the annotation has the behavior as JSON of a type
/// without published names.
fn lower_keys(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let lower = |key: &str| -> Str {
                let mut letters = key.chars();
                let first = letters.next().map(|first| first.to_ascii_lowercase());
                first.into_iter().chain(letters).collect()
            };
            let members = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                members
                    .map(|(key, value)| (lower(key), lower_keys(value)))
                    .collect::<Map>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(lower_keys).collect()),
        other => other.clone(),
    }
}

/// Returns an object of those members that are present.
fn members(members: &[(&str, &Value)]) -> Value {
    let present = members.iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        present
            .map(|(key, value)| (*key, (*value).clone()))
            .collect::<Map>(),
    )
}

fn or_zero(quantity: &Value) -> Value {
    if quantity.is_null() {
        "0".into()
    } else {
        quantity.clone()
    }
}

/// Returns true for absent amounts and those that are zero.
fn is_zero(quantity: &Value) -> bool {
    crate::shared::validation::numbers::sign(quantity).is_none_or(|sign| sign == 0)
}

fn spec_from_v1(metric: &Value) -> Value {
    let mut out = json!({"type": (metric["type"].clone())});
    let (object, pods, external) = (&metric["object"], &metric["pods"], &metric["external"]);
    if !object.is_null() {
        let (average, value) = (&object["averageValue"], &or_zero(&object["targetValue"]));
        let target = match average.is_null() {
            true => members(&[("type", &"Value".into()), ("value", value)]),
            false if is_zero(value) => {
                members(&[("type", &"AverageValue".into()), ("averageValue", average)])
            }
            false => members(&[
                ("type", &"AverageValue".into()),
                ("value", value),
                ("averageValue", average),
            ]),
        };
        let identifier = identifier(object, "selector");
        out.set(&["object"], json!({"describedObject": (object["target"].clone()), "metric": identifier, "target": target}));
    }
    if !pods.is_null() {
        let average = or_zero(&pods["targetAverageValue"]);
        let target = json!({"type": "AverageValue", "averageValue": average});
        let identifier = identifier(pods, "selector");
        out.set(&["pods"], json!({"metric": identifier, "target": target}));
    }
    for name in ["resource", "containerResource"] {
        let source = &metric[name];
        if !source.is_null() {
            let (share, average) = (
                &source["targetAverageUtilization"],
                &source["targetAverageValue"],
            );
            let kind = if share.is_null() {
                "AverageValue"
            } else {
                "Utilization"
            };
            let target = members(&[
                ("type", &kind.into()),
                ("averageValue", average),
                ("averageUtilization", share),
            ]);
            let source = members(&[
                ("name", &source["name"]),
                ("container", &source["container"]),
                ("target", &target),
            ]);
            out.set(&[name], source);
        }
    }
    if !external.is_null() {
        let (value, average) = (&external["targetValue"], &external["targetAverageValue"]);
        let kind = if value.is_null() {
            "AverageValue"
        } else {
            "Value"
        };
        let target = members(&[
            ("type", &kind.into()),
            ("value", value),
            ("averageValue", average),
        ]);
        let identifier = identifier(external, "metricSelector");
        out.set(
            &["external"],
            json!({"metric": identifier, "target": target}),
        );
    }
    out
}

fn identifier(source: &Value, selector: &str) -> Value {
    let name = source["metricName"].as_str().unwrap_or("").into();
    members(&[("name", &name), ("selector", &source[selector])])
}

fn status_from_v1(metric: &Value) -> Value {
    let mut out = json!({"type": (metric["type"].clone())});
    let (object, pods, external) = (&metric["object"], &metric["pods"], &metric["external"]);
    if !object.is_null() {
        let value = or_zero(&object["currentValue"]);
        let current = members(&[("value", &value), ("averageValue", &object["averageValue"])]);
        let identifier = identifier(object, "selector");
        out.set(&["object"], json!({"describedObject": (object["target"].clone()), "metric": identifier, "current": current}));
    }
    if !pods.is_null() {
        let average = or_zero(&pods["currentAverageValue"]);
        let identifier = identifier(pods, "selector");
        out.set(
            &["pods"],
            json!({"metric": identifier, "current": {"averageValue": average}}),
        );
    }
    for name in ["resource", "containerResource"] {
        let source = &metric[name];
        if !source.is_null() {
            let average = or_zero(&source["currentAverageValue"]);
            let share = &source["currentAverageUtilization"];
            let current = members(&[("averageValue", &average), ("averageUtilization", share)]);
            let source = members(&[
                ("name", &source["name"]),
                ("container", &source["container"]),
                ("current", &current),
            ]);
            out.set(&[name], source);
        }
    }
    if !external.is_null() {
        let value = or_zero(&external["currentValue"]);
        let current = members(&[
            ("value", &value),
            ("averageValue", &external["currentAverageValue"]),
        ]);
        let identifier = identifier(external, "metricSelector");
        out.set(
            &["external"],
            json!({"metric": identifier, "current": current}),
        );
    }
    out
}

/// Returns JSON with its members in the given order; absent ones are left out.
fn object(members: &[(&str, Option<String>)]) -> String {
    let present = members
        .iter()
        .filter_map(|(name, text)| Some(format!("{name:?}:{}", text.as_ref()?)));
    format!("{{{}}}", present.collect::<Vec<_>>().join(","))
}

fn list(items: &[String]) -> String {
    format!("[{}]", items.join(","))
}

/// Returns the JSON of a text; an absent text is empty.
fn text(value: &Value) -> Option<String> {
    Some(json::to_string(&value.as_str().unwrap_or("").into()))
}

/// Returns the JSON of a value unless it is absent.
fn given(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| json::to_string(value))
}

/// Returns the JSON of a text unless it is absent or empty.
fn full(value: &Value) -> Option<String> {
    given(value).filter(|text| text != "\"\"")
}

fn amount(value: &Value) -> Option<String> {
    given(&or_zero(value))
}

fn selector(value: &Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let expressions: Vec<String> = value
        .items_at(&["matchExpressions"])
        .iter()
        .map(|one| {
            let values = given(&one["values"]).filter(|text| text != "[]");
            object(&[
                ("key", text(&one["key"])),
                ("operator", text(&one["operator"])),
                ("values", values),
            ])
        })
        .collect();
    let labels = given(&value["matchLabels"]).filter(|text| text != "{}");
    Some(object(&[
        ("matchLabels", labels),
        (
            "matchExpressions",
            (!expressions.is_empty()).then(|| list(&expressions)),
        ),
    ]))
}

fn reference(value: &Value) -> Option<String> {
    let version = full(&value["apiVersion"]);
    Some(object(&[
        ("kind", text(&value["kind"])),
        ("name", text(&value["name"])),
        ("apiVersion", version),
    ]))
}

fn part(value: &Value, write: impl Fn(&Value) -> String) -> Option<String> {
    (!value.is_null()).then(|| write(value))
}

fn spec_to_v1(metric: &Value) -> String {
    let resource = |source: &Value| {
        object(&[
            ("name", text(&source["name"])),
            (
                "targetAverageUtilization",
                given(&source["target"]["averageUtilization"]),
            ),
            (
                "targetAverageValue",
                given(&source["target"]["averageValue"]),
            ),
            ("container", source.get("container").and_then(text)),
        ])
    };
    object(&[
        ("type", text(&metric["type"])),
        (
            "object",
            part(&metric["object"], |source| {
                object(&[
                    ("target", reference(&source["describedObject"])),
                    ("metricName", text(&source["metric"]["name"])),
                    ("targetValue", amount(&source["target"]["value"])),
                    ("selector", selector(&source["metric"]["selector"])),
                    ("averageValue", given(&source["target"]["averageValue"])),
                ])
            }),
        ),
        (
            "pods",
            part(&metric["pods"], |source| {
                object(&[
                    ("metricName", text(&source["metric"]["name"])),
                    (
                        "targetAverageValue",
                        amount(&source["target"]["averageValue"]),
                    ),
                    ("selector", selector(&source["metric"]["selector"])),
                ])
            }),
        ),
        ("resource", part(&metric["resource"], resource)),
        (
            "containerResource",
            part(&metric["containerResource"], resource),
        ),
        (
            "external",
            part(&metric["external"], |source| {
                object(&[
                    ("metricName", text(&source["metric"]["name"])),
                    ("metricSelector", selector(&source["metric"]["selector"])),
                    ("targetValue", given(&source["target"]["value"])),
                    (
                        "targetAverageValue",
                        given(&source["target"]["averageValue"]),
                    ),
                ])
            }),
        ),
    ])
}

fn status_to_v1(metric: &Value) -> String {
    let resource = |source: &Value| {
        object(&[
            ("name", text(&source["name"])),
            (
                "currentAverageUtilization",
                given(&source["current"]["averageUtilization"]),
            ),
            (
                "currentAverageValue",
                amount(&source["current"]["averageValue"]),
            ),
            ("container", source.get("container").and_then(text)),
        ])
    };
    object(&[
        ("type", text(&metric["type"])),
        (
            "object",
            part(&metric["object"], |source| {
                object(&[
                    ("target", reference(&source["describedObject"])),
                    ("metricName", text(&source["metric"]["name"])),
                    ("currentValue", amount(&source["current"]["value"])),
                    ("selector", selector(&source["metric"]["selector"])),
                    ("averageValue", given(&source["current"]["averageValue"])),
                ])
            }),
        ),
        (
            "pods",
            part(&metric["pods"], |source| {
                object(&[
                    ("metricName", text(&source["metric"]["name"])),
                    (
                        "currentAverageValue",
                        amount(&source["current"]["averageValue"]),
                    ),
                    ("selector", selector(&source["metric"]["selector"])),
                ])
            }),
        ),
        ("resource", part(&metric["resource"], resource)),
        (
            "containerResource",
            part(&metric["containerResource"], resource),
        ),
        (
            "external",
            part(&metric["external"], |source| {
                object(&[
                    ("metricName", text(&source["metric"]["name"])),
                    ("metricSelector", selector(&source["metric"]["selector"])),
                    ("currentValue", amount(&source["current"]["value"])),
                    (
                        "currentAverageValue",
                        given(&source["current"]["averageValue"]),
                    ),
                ])
            }),
        ),
    ])
}

fn condition_text(condition: &Value) -> String {
    let null = || Some("null".to_owned());
    object(&[
        ("type", text(&condition["type"])),
        ("status", text(&condition["status"])),
        (
            "lastTransitionTime",
            full(&condition["lastTransitionTime"]).or_else(null),
        ),
        ("reason", full(&condition["reason"])),
        ("message", full(&condition["message"])),
        (
            "observedGeneration",
            given(&condition["observedGeneration"]),
        ),
    ])
}

/// Returns the behavior as the JSON of upstream's internal type: with Go's names, and with every
/// field.
fn behavior_text(behavior: &Value) -> String {
    let null = || Some("null".to_owned());
    let plain = |value: &Value| given(value).or_else(null);
    let number = |value: &Value| given(value).or_else(|| Some("0".to_owned()));
    let policy = |policy: &Value| {
        object(&[
            ("Type", text(&policy["type"])),
            ("Value", number(&policy["value"])),
            ("PeriodSeconds", number(&policy["periodSeconds"])),
        ])
    };
    let policies = |policies: &Value| {
        let texts = policies.as_array()?.iter().map(policy);
        Some(list(&texts.collect::<Vec<_>>()))
    };
    let rules = |rules: &Value| {
        object(&[
            (
                "StabilizationWindowSeconds",
                plain(&rules["stabilizationWindowSeconds"]),
            ),
            ("SelectPolicy", plain(&rules["selectPolicy"])),
            ("Policies", policies(&rules["policies"]).or_else(null)),
            ("Tolerance", plain(&rules["tolerance"])),
        ])
    };
    object(&[
        ("ScaleUp", part(&behavior["scaleUp"], rules).or_else(null)),
        (
            "ScaleDown",
            part(&behavior["scaleDown"], rules).or_else(null),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_tables;

    #[test]
    fn the_annotation_shows_each_field_of_the_internal_behavior() {
        const BEHAVIOR: &str = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior";
        let schemas = kind_tables::schemas();
        let policy = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
        let full = json!({"stabilizationWindowSeconds": 5, "selectPolicy": "Max", "policies": [policy], "tolerance": "100m"});
        for behavior in [
            json!({}),
            json!({"scaleUp": {}}),
            json!({"scaleUp": {"policies": [{}]}, "scaleDown": {"policies": []}}),
            json!({"scaleDown": full}),
        ] {
            assert_eq!(
                behavior_text(&behavior),
                schemas.internal_text(BEHAVIOR, &behavior)
            );
        }
    }
}
