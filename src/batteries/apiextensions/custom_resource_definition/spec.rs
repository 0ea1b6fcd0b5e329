//! The validation of the spec of CustomResourceDefinitions. Errors in a part that all versions
//! share are reported once for the whole, as upstream does.

use super::internal_form;
use super::ratchet::{Ratchet, Rule};
use super::schema::{self, Charge, Checks};
use super::version::{
    validate_columns, validate_deprecation, validate_names, validate_root, validate_scale,
    validate_selectable,
};
use crate::admissionregistration::webhook_configuration::validate_versions;
use crate::core::config_map::bytes_of;
use crate::shared::network::ca_bundle;
use crate::shared::network::webhook_client::validate_client;
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::{Value, names};
use polyplane_cel::WorkBudget;
use std::collections::BTreeSet;

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Checks a spec. `schemas` are those of built-in types.
pub fn validate(schemas: &Schemas, errors: &mut Complaints, spec: &Value, ratchet: &Ratchet) {
    let path = Path::new("spec");
    validate_group(errors, spec, &path);
    let versions = spec.items_at(&["versions"]);
    let list = path.child("versions");
    let preserves = spec.bool_at(&["preserveUnknownFields"]);
    require_schemas(errors, versions, (preserves, ratchet), &list);
    let own = || {
        let versions = versions.iter();
        versions.map(|version| &version["schema"]["openAPIV3Schema"])
    };
    let defaults = own().any(has_defaults);
    if preserves && defaults {
        let detail = "must be false in order to use defaults in the schema";
        errors.push(FieldError::invalid(
            &path.child("preserveUnknownFields"),
            true,
            detail,
        ));
    }
    let extended = || own().any(|schema| has_schema_with(schema, &has_extensions));
    let structure = ratchet.demands(Rule::Structure) || !preserves || defaults || extended();
    let rules = SchemaRules {
        schemas,
        ratchet,
        structure,
        budget: WorkBudget::for_definition(),
    };
    let common = Common::of(versions);
    for (at, version) in versions.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        validate_version(errors, version, (&common, &rules), &list.index(at));
    }
    validate_set_of_versions(errors, &spec["versions"], &common, &list);
    if let Some(first) = versions.first() {
        let name = first.str_at(&["name"]);
        let complaints = names::dns1035_label(name);
        if !name.is_empty() && !complaints.is_empty() {
            errors.push(FieldError::invalid(
                &path.child("version"),
                name,
                complaints.join(","),
            ));
        }
    }
    let names = path.child("names");
    for field in ["plural", "singular", "kind", "listKind"] {
        if spec.str_at(&["names", field]).is_empty() {
            errors.push(FieldError::required(&names.child(field), ""));
        }
    }
    validate_names(errors, &spec["names"], &names);
    validate_common(errors, versions, (&common, &rules), &path);
    validate_conversion(errors, spec, ratchet, &path.child("conversion"));
}

/// The rules for the schemas of a definition.
struct SchemaRules<'r> {
    schemas: &'r Schemas,
    ratchet: &'r Ratchet,
    /// Whether they must be structural.
    structure: bool,
    /// What the check of all of them may take.
    budget: WorkBudget,
}

impl SchemaRules<'_> {
    /// Returns the checks of the schema of one version.
    fn of(&self, version: &str) -> Checks<'_> {
        Checks {
            schemas: self.schemas,
            ratchet: self.ratchet,
            structure: self.structure,
            charge: match self.ratchet.has_kept_schema(version) {
                true => Charge::Schema,
                false => Charge::EachRule,
            },
            budget: &self.budget,
        }
    }
}

/// Checks that each version has a schema, or at least each that is served.
fn require_schemas(
    errors: &mut Complaints,
    versions: &[Value],
    (preserves, ratchet): (bool, &Ratchet),
    list: &Path<'_>,
) {
    let all = ratchet.demands(Rule::Schemas);
    if !all && preserves {
        return;
    }
    let detail = match all {
        true => "",
        false => "because otherwise all fields are pruned",
    };
    for (at, version) in versions.iter().enumerate() {
        let is_meant = all || version.bool_at(&["served"]);
        if is_meant && !present(&version["schema"]["openAPIV3Schema"]) {
            let place = list.index(at);
            let schema = place.child("schema");
            let place = schema.child("openAPIV3Schema");
            errors.push(FieldError::required(&place, detail));
        }
    }
}

/// Checks the parts that all versions share, once.
fn validate_common(
    errors: &mut Complaints,
    versions: &[Value],
    (common, rules): (&Common, &SchemaRules<'_>),
    path: &Path<'_>,
) {
    let Some(first) = versions.first() else {
        return;
    };
    let any_status = versions
        .iter()
        .any(|version| present(&version["subresources"]["status"]));
    if common.schema {
        let checks = rules.of(first.str_at(&["name"]));
        let place = path.child("validation");
        validate_schema(errors, &first["schema"], (any_status, checks), &place);
    }
    if common.subresources {
        validate_scale(
            errors,
            &first["subresources"]["scale"],
            &path.child("subresources"),
        );
    }
    if common.columns {
        validate_columns(errors, first, &path.child("additionalPrinterColumns"));
    }
    if common.fields {
        let place = path.child("selectableFields");
        let unseen = !common.schema || !present(&first["schema"]["openAPIV3Schema"]);
        if unseen && !first.items_at(&["selectableFields"]).is_empty() {
            let detail = "may only be set when validations.schema is included";
            errors.push(FieldError::invalid(&place, "", detail));
        } else {
            let is_crowded = rules.ratchet.is_crowded("");
            validate_selectable(errors, first, is_crowded, &place);
        }
    }
}

fn validate_group(errors: &mut Complaints, spec: &Value, path: &Path<'_>) {
    let (group, place) = (spec.str_at(&["group"]), path.child("group"));
    let complaints = names::dns1123_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required(&place, ""));
    } else if !complaints.is_empty() {
        errors.push(FieldError::invalid(&place, group, complaints.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(
            &place,
            group,
            "should be a domain with at least one dot",
        ));
    }
    word(
        errors,
        spec.str_at(&["scope"]),
        &["Cluster", "Namespaced"],
        &path.child("scope"),
    );
}

/// Checks a word that must be present and be one of the known ones.
fn word(errors: &mut Complaints, text: &str, known: &[&str], path: &Path<'_>) {
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !known.contains(&text) {
        errors.push(FieldError::not_supported(path, text, known));
    }
}

/// The parts that are the same in every version.
struct Common {
    schema: bool,
    subresources: bool,
    columns: bool,
    fields: bool,
}

impl Common {
    fn of(versions: &[Value]) -> Self {
        let same = |name: &str| have_same(versions, name);
        Self {
            schema: same("schema"),
            subresources: same("subresources"),
            columns: same("additionalPrinterColumns"),
            fields: same("selectableFields"),
        }
    }
}

/// Returns whether a part is the same in every version.
pub fn have_same(versions: &[Value], name: &str) -> bool {
    versions
        .windows(2)
        .all(|pair| pair[0][name] == pair[1][name])
}

fn validate_version(
    errors: &mut Complaints,
    version: &Value,
    (common, rules): (&Common, &SchemaRules<'_>),
    path: &Path<'_>,
) {
    let name = version.str_at(&["name"]);
    let complaints = names::dns1035_label(name);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(
            &path.child("name"),
            name,
            complaints.join(","),
        ));
    }
    validate_deprecation(errors, version, &path.child("deprecationWarning"));
    if !common.schema {
        let has_status = present(&version["subresources"]["status"]);
        let place = path.child("schema");
        let checks = rules.of(name);
        validate_schema(errors, &version["schema"], (has_status, checks), &place);
    }
    if !common.subresources {
        validate_scale(
            errors,
            &version["subresources"]["scale"],
            &path.child("subresources"),
        );
    }
    if !common.columns {
        validate_columns(errors, version, &path.child("additionalPrinterColumns"));
    }
    if !common.fields {
        let place = path.child("selectableFields");
        let unseen = common.schema || !present(&version["schema"]["openAPIV3Schema"]);
        if unseen && !version.items_at(&["selectableFields"]).is_empty() {
            let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.push(FieldError::invalid(&place, "", detail));
        } else {
            let is_crowded = rules.ratchet.is_crowded(name);
            validate_selectable(errors, version, is_crowded, &place);
        }
    }
}

fn validate_set_of_versions(
    errors: &mut Complaints,
    given: &Value,
    common: &Common,
    list: &Path<'_>,
) {
    let versions = given.as_array().unwrap_or(&[]);
    let mut seen = BTreeSet::new();
    let unique = versions
        .iter()
        .all(|version| seen.insert(version.str_at(&["name"])));
    let mut invalid = |detail: &str| {
        let bad = match given {
            Value::Null => Bad::Plain(Value::Null),
            _ => {
                let shown = versions
                    .iter()
                    .map(|version| shown_version(version, common));
                Bad::Shown(internal_form::versions(shown).into())
            }
        };
        errors.push(FieldError::invalid(list, bad, detail));
    };
    if !unique {
        invalid("must contain unique version names");
    }
    if versions
        .iter()
        .filter(|version| version.bool_at(&["storage"]))
        .count()
        != 1
    {
        invalid("must have exactly one version marked as storage version");
    }
}

/// Returns a version as texts show it, with null for the parts that all versions share.
fn shown_version(version: &Value, common: &Common) -> Value {
    let mut shown = version.clone();
    for (hoisted, name) in [
        (common.schema, "schema"),
        (common.subresources, "subresources"),
        (common.columns, "additionalPrinterColumns"),
        (common.fields, "selectableFields"),
    ] {
        if hoisted {
            drop(shown.remove(&[name]));
        }
    }
    shown
}

fn validate_schema(
    errors: &mut Complaints,
    holder: &Value,
    (has_status, checks): (bool, Checks<'_>),
    path: &Path<'_>,
) {
    let schema = &holder["openAPIV3Schema"];
    if !present(schema) {
        return;
    }
    let place = path.child("openAPIV3Schema");
    if has_status {
        validate_root(errors, schema, &place);
    }
    if schema.bool_at(&["nullable"]) {
        errors.push(FieldError::forbidden(
            &place.child("nullable"),
            "nullable cannot be true at the root",
        ));
    }
    errors.extend(schema::validate(schema, checks, &place));
}

/// Returns true if the schema or one inside it has a default.
pub fn has_defaults(schema: &Value) -> bool {
    has_schema_with(schema, &|part| present(&part["default"]))
}

/// Returns true for a schema with keywords of Kubernetes that need a structural schema.
fn has_extensions(schema: &Value) -> bool {
    let flags = [
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ];
    let lists = ["x-kubernetes-list-map-keys", "x-kubernetes-validations"];
    let given = [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-list-type",
    ];
    flags.iter().any(|name| schema.bool_at(&[name]))
        || lists
            .iter()
            .any(|name| !schema.items_at(&[name]).is_empty())
        || given.iter().any(|name| present(&schema[*name]))
}

/// Returns true if a test holds for the schema or one inside it.
pub fn has_schema_with(schema: &Value, test: &dyn Fn(&Value) -> bool) -> bool {
    if schema.as_object().is_none() {
        return false;
    }
    let inner = |value: &Value| match value {
        Value::Object(members) => members.values().any(|part| has_schema_with(part, test)),
        Value::Array(items) => items.iter().any(|part| has_schema_with(part, test)),
        _ => false,
    };
    let nested = ["items", "not", "additionalProperties"]
        .iter()
        .any(|name| has_schema_with(&schema[*name], test));
    let lists = [
        "properties",
        "allOf",
        "anyOf",
        "oneOf",
        "patternProperties",
        "definitions",
        "dependencies",
    ];
    let tuple = schema["items"].as_array().is_some() && inner(&schema["items"]);
    test(schema) || nested || tuple || lists.iter().any(|name| inner(&schema[*name]))
}

fn validate_conversion(errors: &mut Complaints, spec: &Value, ratchet: &Ratchet, path: &Path<'_>) {
    let conversion = &spec["conversion"];
    if !present(conversion) {
        return;
    }
    let (strategy, place) = (conversion.str_at(&["strategy"]), path.child("strategy"));
    if strategy != "None" && spec.bool_at(&["preserveUnknownFields"]) {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(strategy.into()),
            detail,
        ));
    }
    word(errors, strategy, &["None", "Webhook"], &place);
    let webhook = &conversion["webhook"];
    let (client, list) = (
        path.child("webhookClientConfig"),
        path.child("conversionReviewVersions"),
    );
    let versions = texts(&webhook["conversionReviewVersions"]);
    if strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if present(&webhook["clientConfig"]) {
            errors.push(FieldError::forbidden(&client, detail));
        }
        if !versions.is_empty() {
            errors.push(FieldError::forbidden(&list, detail));
        }
        return;
    }
    if present(&webhook["clientConfig"]) {
        validate_client(errors, &webhook["clientConfig"], &client);
        if ratchet.checks_bundle()
            && let Some(complaint) = bundle_complaint(spec)
        {
            let bundle = webhook["clientConfig"].str_at(&["caBundle"]);
            let place = client.child("caBundle");
            errors.push(FieldError::invalid(&place, bundle, complaint));
        }
    } else {
        errors.push(FieldError::required(
            &client,
            "required when strategy is set to Webhook",
        ));
    }
    if versions.is_empty() {
        errors.push(FieldError::required(&list, ""));
        return;
    }
    validate_versions(errors, &versions, &list);
    if ratchet.demands(Rule::ReviewVersion) && !knows_review_version(webhook) {
        let detail = format!(
            "must include at least one of {}",
            REVIEW_VERSIONS.join(", ")
        );
        let bad = Bad::Json(webhook["conversionReviewVersions"].clone());
        errors.push(FieldError::invalid(&list, bad, detail));
    }
}

/// Returns what is wrong with the certificates by which the server of a spec's conversion webhook is
/// known.
pub fn bundle_complaint(spec: &Value) -> Option<String> {
    let client = &spec["conversion"]["webhook"]["clientConfig"];
    let bundle = bytes_of(&client["caBundle"]);
    ca_bundle::complaint(&String::from_utf8_lossy(&bundle))
}

/// Returns true if a webhook accepts reviews of a version that this server sends.
pub fn knows_review_version(webhook: &Value) -> bool {
    texts(&webhook["conversionReviewVersions"])
        .iter()
        .any(|version| REVIEW_VERSIONS.contains(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn defaults_are_found_inside() {
        let schema = json!({"properties": {"default": {"items": {"default": 3i64}}}});
        assert!(has_defaults(&schema));
        assert!(!has_defaults(
            &json!({"properties": {"default": {"type": "string"}}})
        ));
    }
}
