//! HorizontalPodAutoscaler: stored as autoscaling/v2, served in both versions.

pub mod conversion;
pub mod table_row;
pub mod validation;

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::Strategy;
use polyplane_registry::strategy::Context;

/// The behaviour of the autoscalers of one served version.
#[derive(Debug, Clone, Copy)]
pub enum Autoscaler {
    /// Version v1, whose objects are converted.
    Converted,
    /// Version v2, in which objects are stored.
    Stored,
}

impl Strategy for Autoscaler {
    fn default(&self, object: &mut Value) {
        match self {
            Self::Converted => {}
            Self::Stored => default_behavior(object),
        }
    }

    /// What v1 has no fields for is in annotations, which v2 does not have.
    fn converted_at_once(&self, object: &Value) -> Option<Value> {
        match self {
            Self::Converted => Some(conversion::to_v1(conversion::from_v1(object.clone()))),
            Self::Stored if conversion::has_annotations(object) => {
                let mut shown = object.clone();
                conversion::drop_annotations(&mut shown);
                Some(shown)
            }
            Self::Stored => None,
        }
    }

    /// Upstream makes metadata alone of the object in memory, which has fields for all of this.
    fn hidden_annotations(&self) -> &'static [&'static str] {
        match self {
            Self::Converted => &conversion::ANNOTATIONS,
            Self::Stored => &[],
        }
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        conversion::drop_annotations(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        conversion::drop_annotations(object);
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        conversion::drop_annotations(object);
        match old.get("spec") {
            Some(spec) => object.set(&["spec"], spec.clone()),
            None => drop(object.remove(&["spec"])),
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        validation::autoscaler(object, None)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        validation::autoscaler(object, Some(old))
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        validation::status(object)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        table_row::cells(object, now)
    }

    fn to_stored(&self, _: &str, object: Value) -> Value {
        let mut object = conversion::from_v1(object);
        keep_absent_policies(&mut object);
        default_behavior(&mut object);
        object
    }

    fn to_served(&self, _: &str, object: Value) -> Value {
        conversion::to_v1(object)
    }
}

/// Lets rules of an annotation that name no policies stay without any, so that they are refused: upstream validates them
/// as they are, and fills them only when it reads the stored object.
fn keep_absent_policies(object: &mut Value) {
    for direction in ["scaleUp", "scaleDown"] {
        let rules = object.at_mut(&["spec", "behavior", direction]);
        let given = rules.filter(|rules| rules.as_object().is_some());
        if let Some(rules) = given
            && rules["policies"].is_null()
        {
            rules.set(&["policies"], Value::Array(Vec::new()));
        }
    }
}

/// Sets the defaults of the scaling rules of a behavior, if there is one.
fn default_behavior(object: &mut Value) {
    let Some(behavior) = object
        .at_mut(&["spec", "behavior"])
        .filter(|behavior| !behavior.is_null())
    else {
        return;
    };
    default_rules(
        behavior,
        "scaleUp",
        Some(0),
        |percent| json!([{"type": "Pods", "value": 4i64, "periodSeconds": 15i64}, percent]),
    );
    default_rules(behavior, "scaleDown", None, |percent| json!([percent]));
}

fn default_rules(
    behavior: &mut Value,
    direction: &str,
    window: Option<i64>,
    policies: impl Fn(Value) -> Value,
) {
    let rules = &mut behavior[direction];
    if rules["selectPolicy"].is_null() {
        rules.set(&["selectPolicy"], "Max");
    }
    if let (Some(window), true) = (window, rules["stabilizationWindowSeconds"].is_null()) {
        rules.set(&["stabilizationWindowSeconds"], window);
    }
    if rules["policies"].is_null() {
        let percent = json!({"type": "Percent", "value": 100i64, "periodSeconds": 15i64});
        rules.set(&["policies"], policies(percent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_an_annotation_need_policies_and_directions_that_it_lacks_get_defaults() {
        let stored = |behavior: &str| {
            let annotations = json!({"autoscaling.alpha.kubernetes.io/behavior": behavior});
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
            let object = json!({
                "metadata": {"name": "a", "annotations": annotations},
                "spec": {"scaleTargetRef": target, "minReplicas": 1i64, "maxReplicas": 2i64}
            });
            Autoscaler::Converted.to_stored("v1", object)
        };
        let refused = stored(r#"{"ScaleUp":{"StabilizationWindowSeconds":5}}"#);
        let errors = validation::autoscaler(&refused, None);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let text =
            "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy";
        assert_eq!(texts, [text]);

        let policies = r#"[{"Type":"Pods","Value":1,"PeriodSeconds":60}]"#;
        let accepted = stored(&format!(r#"{{"ScaleUp":{{"Policies":{policies}}}}}"#));
        assert!(validation::autoscaler(&accepted, None).is_empty());
        let behavior = &accepted["spec"]["behavior"];
        assert_eq!(behavior.str_at(&["scaleUp", "selectPolicy"]), "Max");
        assert_eq!(behavior.items_at(&["scaleDown", "policies"]).len(), 1);
    }

    #[test]
    fn metadata_alone_hides_what_v1_has_in_annotations() {
        let target = json!({"type": "Utilization", "averageUtilization": 50i64});
        let metric = json!({"type": "Resource", "resource": {"name": "memory", "target": target}});
        let object = json!({
            "metadata": {"name": "a"},
            "spec": {"maxReplicas": 1i64, "metrics": [metric]}
        });
        let shown = conversion::to_v1(object);
        let annotations = shown["metadata"]["annotations"].as_object();
        let annotations = annotations.expect("v1 has no field for the metric");
        assert!(!annotations.is_empty());
        let hidden = Autoscaler::Converted.hidden_annotations();
        assert!(annotations.keys().all(|name| hidden.contains(&name)));
        assert!(Autoscaler::Stored.hidden_annotations().is_empty());
    }
}
