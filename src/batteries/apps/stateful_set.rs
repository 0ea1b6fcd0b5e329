//! StatefulSets.

use super::rolling_update;
use crate::core::persistent_volume_claim;
use crate::shared::object_metadata;
use crate::shared::pod::validation::{PodOptions, claim_template, validate_template_metadata};
use crate::shared::pod::{defaults, table_cells};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::equality::alike_in;
use crate::shared::validation::numbers::{non_negative, non_negative_members};
use crate::shared::workload;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::{Value, json, names};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy, age};

const SPEC: &str = "io.k8s.api.apps.v1.StatefulSetSpec";
const COUNTERS: [&str; 7] = [
    "replicas",
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "availableReplicas",
    "observedGeneration",
    "collisionCount",
];
const ENDLESS_HISTORY: &str = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
const PARTS: [&str; 4] = [
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "availableReplicas",
];

/// Behaviour of StatefulSets.
#[derive(Debug)]
pub struct StatefulSet;

impl Strategy for StatefulSet {
    fn default_first(&self, object: &mut Value) {
        let strategy = &mut object["spec"]["updateStrategy"];
        if strategy.str_at(&["type"]).is_empty() {
            strategy.set(&["type"], "RollingUpdate");
            if strategy["rollingUpdate"].is_null() {
                strategy.set(&["rollingUpdate"], Value::object());
            }
        }
    }

    fn default(&self, object: &mut Value) {
        let strategy = &mut object["spec"]["updateStrategy"];
        if !strategy["rollingUpdate"].is_null() {
            rolling_update::default(
                strategy,
                &[("partition", 0i64.into()), ("maxUnavailable", 1i64.into())],
            );
        }
        if let Some(claims) = object
            .at_mut(&["spec", "volumeClaimTemplates"])
            .and_then(Value::as_array_mut)
        {
            for claim in claims {
                if let Some(spec) = claim.get_mut("spec") {
                    defaults::round_resources(spec);
                }
                for list in ["capacity", "allocatedResources"] {
                    if let Some(list) = claim.at_mut(&["status", list]) {
                        defaults::round_up(list);
                    }
                }
            }
        }
        defaults::default_template_at(object, &workload::TEMPLATE);
    }

    fn normalize(&self, object: &mut Value, _: i64) {
        name_claims(object);
    }

    fn fill_empty(&self, object: &mut Value) {
        workload::fill_empty(object);
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        workload::drop_old(object);
        name_claims(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        workload::drop_old(object);
        if !keep_claims(object, old) {
            name_claims(object);
        }
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        workload::keep_spec(object, old);
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        spec_errors(object, Checks::New, context.settings.privileged)
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let privileged = context.settings.privileged;
        let was_good = spec_errors(old, Checks::Changed { old }, privileged).is_empty();
        let checks = if was_good {
            Checks::Changed { old }
        } else {
            Checks::Tolerant { old }
        };
        let mut errors = spec_errors(object, checks, privileged);
        workload::same_selector(object, old, &mut errors);
        unchanged(context.schemas, object, old, &mut errors);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = workload::status(object, &COUNTERS, &PARTS, "status.readyReplicas");
        workload::collisions(object, old, &mut errors);
        errors
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        if context.subresource == "status" {
            return Vec::new();
        }
        let mut warnings = workload::template_warnings(object, old);
        warnings.extend(own_warnings(object, old));
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let number = |path: &[&str]| workload::number(object, path);
        let (names, images) = table_cells::containers(&object["spec"]["template"]["spec"]);
        vec![
            object.str_at(&["metadata", "name"]).into(),
            format!(
                "{}/{}",
                number(&["status", "readyReplicas"]),
                number(&["spec", "replicas"])
            )
            .into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            names.into(),
            images.into(),
        ]
    }
}

/// Returns the warnings about parts that other workloads do not have.
fn own_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let spec = Path::new("spec");
    let list = spec.child("volumeClaimTemplates");
    let claims = object.items_at(&["spec", "volumeClaimTemplates"]);
    let mut warnings = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        let item = list.index(at);
        // Upstream's paths of the two cases differ, and neither has the name that JSON has.
        let path = match old {
            None => item.to_string(),
            Some(_) => item.child("Spec").to_string(),
        };
        warnings.extend(persistent_volume_claim::fractions(&claim["spec"], &path));
    }
    let limit = object.int_at(&["spec", "revisionHistoryLimit"]);
    if limit.is_some_and(|limit| limit < 0) {
        warnings.push(ENDLESS_HISTORY.to_owned());
    }
    warnings
}

/// Sets kind and apiVersion of every claim template, as upstream does when it stores a StatefulSet.
fn name_claims(object: &mut Value) {
    let claims = object
        .at_mut(&["spec", "volumeClaimTemplates"])
        .and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        claim.set(&["apiVersion"], "v1");
        claim.set(&["kind"], "PersistentVolumeClaim");
    }
}

/// Keeps the old claim templates if the new ones differ only in kind and apiVersion.
fn keep_claims(object: &mut Value, old: &Value) -> bool {
    let mut named = [
        object["spec"]["volumeClaimTemplates"].clone(),
        old["spec"]["volumeClaimTemplates"].clone(),
    ];
    for claims in &mut named {
        for claim in claims.as_array_mut().into_iter().flatten() {
            drop(claim.remove(&["apiVersion"]));
            drop(claim.remove(&["kind"]));
        }
    }
    if named[0] != named[1] || named[0].is_null() {
        return false;
    }
    object.set(
        &["spec", "volumeClaimTemplates"],
        old["spec"]["volumeClaimTemplates"].clone(),
    );
    true
}

/// Refuses changes of the fields that never change, in upstream's order.
fn unchanged(schemas: &Schemas, object: &Value, old: &Value, errors: &mut Complaints) {
    const CLAIMS: &str = "volumeClaimTemplates";
    if !alike_in(schemas, SPEC, CLAIMS, &object["spec"], &old["spec"]) {
        let spec = Path::new("spec");
        let bad = match object["spec"][CLAIMS].as_array() {
            Some(claims) => bad_value::list("io.k8s.api.core.v1.PersistentVolumeClaim", claims),
            None => Bad::Json(Value::Null),
        };
        errors.push(FieldError::invalid(
            &spec.child(CLAIMS),
            bad,
            "field is immutable",
        ));
    }
    for field in ["serviceName", "podManagementPolicy"] {
        let (new, spec) = (object["spec"].str_at(&[field]), Path::new("spec"));
        if new != old["spec"].str_at(&[field]) {
            errors.push(FieldError::invalid(
                &spec.child(field),
                named(new),
                "field is immutable",
            ));
        }
    }
}

/// The extent of the validation.
#[derive(Clone, Copy)]
enum Checks<'a> {
    /// Everything is validated, for a new object.
    New,
    /// Fields that cannot change are not validated.
    Changed {
        /// The StatefulSet before the change.
        old: &'a Value,
    },
    /// Fields that cannot change are not validated, nor is the spec of the pod template, because the
    /// StatefulSet was invalid before.
    Tolerant {
        /// The StatefulSet before the change.
        old: &'a Value,
    },
}

fn spec_errors(object: &Value, checks: Checks<'_>, privileged: Privileged) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    let is_new = matches!(checks, Checks::New);
    let (policy, place) = (
        spec.str_at(&["podManagementPolicy"]),
        path.child("podManagementPolicy"),
    );
    match policy {
        "" => errors.push(FieldError::required(&place, "")),
        "OrderedReady" | "Parallel" => {}
        _ => errors.push(FieldError::invalid(
            &place,
            named(policy),
            "must be 'OrderedReady' or 'Parallel'",
        )),
    }
    strategy(
        &spec["updateStrategy"],
        &path.child("updateStrategy"),
        &mut errors,
    );
    retention(spec, &path, &mut errors);
    if is_new {
        let place = path.child("volumeClaimTemplates");
        for (at, claim) in spec.items_at(&["volumeClaimTemplates"]).iter().enumerate() {
            claim_template::validate_spec(
                &claim["spec"],
                &place.index(at).child("spec"),
                &mut errors,
            );
        }
    }
    non_negative_members(spec, &["replicas", "minReadySeconds"], &path, &mut errors);
    non_negative(
        spec.int_at(&["ordinals", "start"]),
        &path.child("ordinals.start"),
        &mut errors,
    );
    let service = spec.str_at(&["serviceName"]);
    if is_new && !service.is_empty() {
        complain(
            &mut errors,
            &path.child("serviceName"),
            service,
            names::dns1123_label(service),
        );
    }
    workload::selector(
        spec,
        "empty selector is invalid for statefulset",
        &path,
        &mut errors,
    );
    template(spec, (checks, privileged), &path, &mut errors);
    errors
}

fn retention(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let policy = &spec["persistentVolumeClaimRetentionPolicy"];
    if policy.is_null() {
        return;
    }
    let place = path.child("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        let known = ["Retain", "Delete"];
        let choice = policy.str_at(&[field]);
        if !known.contains(&choice) {
            errors.push(FieldError::not_supported(
                &place.child(field),
                named(choice),
                &known,
            ));
        }
    }
}

fn template(
    spec: &Value,
    (checks, privileged): (Checks<'_>, Privileged),
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let (given, place) = (&spec["template"], path.child("template"));
    if workload::selects_template(spec, path, errors) {
        let old = match checks {
            Checks::New => None,
            Checks::Changed { old } | Checks::Tolerant { old } => Some(old),
        };
        if !matches!(checks, Checks::Tolerant { .. }) {
            let before = (old, privileged);
            workload::template(&with_claims(spec), "StatefulSet", before, path, errors);
            return;
        }
        let options = PodOptions::for_template(old.and_then(|old| old.at(&workload::TEMPLATE)));
        errors.extend(validate_template_metadata(given, &place, &options));
    } else {
        errors.push(FieldError::invalid(
            &path.child("selector"),
            bad_value::selector(&spec["selector"]),
            "",
        ));
    }
    workload::runs_forever(given, "StatefulSet", &place, errors);
}

/// Returns the template of the pods as they will be: with the volumes of the claims.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec["template"].clone();
    for field in ["subdomain", "hostname"] {
        drop(template.remove(&["spec", field]));
    }
    let claims = spec.items_at(&["volumeClaimTemplates"]);
    if claims.is_empty() {
        return template;
    }
    let mut volumes: Vec<Value> = Vec::new();
    for claim in claims {
        let name = claim.str_at(&["metadata", "name"]);
        if volumes
            .iter()
            .all(|volume| volume.str_at(&["name"]) != name)
        {
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        }
    }
    let made = volumes.len();
    for volume in spec.items_at(&["template", "spec", "volumes"]) {
        let name = volume.str_at(&["name"]);
        if volumes[..made]
            .iter()
            .all(|made| made.str_at(&["name"]) != name)
        {
            volumes.push(volume.clone());
        }
    }
    template.set(&["spec", "volumes"], volumes);
    template
}

fn strategy(strategy: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (rolling, place) = (&strategy["rollingUpdate"], path.child("rollingUpdate"));
    match strategy.str_at(&["type"]) {
        "" => errors.push(FieldError::required(path, "")),
        "OnDelete" if !rolling.is_null() => {
            let bad = bad_value::typed(
                "io.k8s.api.apps.v1.RollingUpdateStatefulSetStrategy",
                rolling,
            );
            errors.push(FieldError::invalid(
                &place,
                bad,
                "only allowed for updateStrategy 'RollingUpdate'",
            ));
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            non_negative(
                rolling.int_at(&["partition"]),
                &place.child("partition"),
                errors,
            );
            let (most, place) = (&rolling["maxUnavailable"], place.child("maxUnavailable"));
            if !most.is_null() {
                rolling_update::non_negative(most, &place, errors);
                if rolling_update::amount(most) == 0 {
                    errors.push(FieldError::invalid(
                        &place,
                        Bad::Json(most.clone()),
                        "cannot be 0",
                    ));
                }
                rolling_update::at_most_all(most, &place, errors);
            }
        }
        _ => {
            let bad = bad_value::typed("io.k8s.api.apps.v1.StatefulSetUpdateStrategy", strategy);
            errors.push(FieldError::invalid(
                path,
                bad,
                "must be 'RollingUpdate' or 'OnDelete'",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Checks, ENDLESS_HISTORY, Privileged, own_warnings, template, unchanged};
    use crate::kind_tables::schemas;
    use polyplane_apimachinery::complaints::Complaints;
    use polyplane_apimachinery::field_error::Path;
    use polyplane_apimachinery::{Value, json};

    #[test]
    fn changes_of_fixed_fields_are_refused_in_the_order_of_upstream() {
        let old = json!({"spec": {"serviceName": "db", "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}});
        let new = json!({"spec": {"podManagementPolicy": "Parallel"}});
        let mut errors = Complaints::default();
        unchanged(&schemas(), &new, &old, &mut errors);
        let fields: Vec<String> = errors.iter().map(|error| error.field.to_string()).collect();
        let wanted = ["volumeClaimTemplates", "serviceName", "podManagementPolicy"];
        assert_eq!(fields, wanted.map(|field| format!("spec.{field}")));
    }

    #[test]
    fn one_that_was_invalid_keeps_its_pods_and_gets_no_invalid_labels() {
        let with = |label: &str| {
            let selector = json!({"matchLabels": {"app": "db"}});
            let metadata = json!({"labels": {"app": "db", "tier": label}});
            let pods = json!({"restartPolicy": "Always", "containers": []});
            let template = json!({"metadata": metadata, "spec": pods});
            json!({"spec": {"selector": selector, "template": template}})
        };
        let old = with("back");
        let refused = |label: &str| {
            let new = with(label);
            let checks = (Checks::Tolerant { old: &old }, Privileged::Allowed);
            let mut errors = Complaints::default();
            template(&new["spec"], checks, &Path::new("spec"), &mut errors);
            let fields = errors.iter().map(|error| error.field.to_string());
            fields.collect::<Vec<_>>()
        };
        assert!(refused("front").is_empty());
        assert_eq!(refused("no label"), ["spec.template.labels"]);
    }

    #[test]
    fn an_endless_history_and_fractions_of_bytes_are_warned_about() {
        let limited = |limit: i64| json!({"spec": {"revisionHistoryLimit": limit}});
        let resources = json!({"requests": {"storage": "1500m"}, "limits": {"storage": "2"}});
        let claims = json!([{"spec": {"resources": resources}}]);
        let claiming = json!({"spec": {"volumeClaimTemplates": claims}});
        let fraction = |path: &str| {
            format!(
                "spec.volumeClaimTemplates[0]{path}.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer"
            )
        };
        let endless = vec![ENDLESS_HISTORY.to_owned()];
        let cases: [(Value, Vec<String>, Vec<String>); 5] = [
            (json!({"spec": {}}), Vec::new(), Vec::new()),
            (limited(0), Vec::new(), Vec::new()),
            (limited(10), Vec::new(), Vec::new()),
            (limited(-1), endless.clone(), endless),
            (claiming, vec![fraction("")], vec![fraction(".Spec")]),
        ];
        for (object, created, updated) in cases {
            assert_eq!(own_warnings(&object, None), created);
            assert_eq!(own_warnings(&object, Some(&object)), updated);
        }
    }
}
