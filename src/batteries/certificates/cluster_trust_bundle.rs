//! ClusterTrustBundles: the root certificates by which a signer's certificates are verified.

use super::keys::Certificate;
use crate::certificates::pem::{Block, blocks};
use crate::shared::object_metadata;
use crate::shared::pod::validation::projected::validate_signer;
use crate::shared::table_cells::name_cell;
use crate::shared::validation::complaints::IMMUTABLE;
use crate::shared::validation::object_names::{NamePart, own_name_rule};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeMap;

const BUNDLE_BYTES_MAX: usize = 1024 * 1024;

/// Behaviour of ClusterTrustBundles.
#[derive(Debug)]
pub struct TrustBundle;

impl Strategy for TrustBundle {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::Own)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = own_name(object);
        errors.extend(object_metadata::validate_finalizers(object));
        validate(&mut errors, object, None);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::PathSegment);
        errors.extend(own_name(object));
        validate(&mut errors, object, Some(old));
        errors.extend(object_metadata::validate_update(object, old));
        let signer = object.str_at(&["spec", "signerName"]);
        if signer != old.str_at(&["spec", "signerName"]) {
            let spec = Path::new("spec");
            errors.push(FieldError::invalid(
                &spec.child("signerName"),
                signer,
                IMMUTABLE,
            ));
        }
        errors
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let signer = match object.str_at(&["spec", "signerName"]) {
            "" => "<none>",
            signer => signer,
        };
        vec![name_cell(object), signer.into()]
    }
}

/// Checks that the name begins with the signer, if there is one.
fn own_name(object: &Value) -> Complaints {
    let signer = object.str_at(&["spec", "signerName"]);
    let dns = |name: &str, part: NamePart| match part {
        NamePart::Whole => NameRule::DnsSubdomain.name(name),
        NamePart::Prefix => NameRule::DnsSubdomain.prefix(name),
    };
    own_name_rule(object, |name, part| {
        if signer.is_empty() {
            if name.contains(':') {
                return vec![
                    "ClusterTrustBundle without signer name must not have \":\" in its name"
                        .to_owned(),
                ];
            }
            return dns(name, part);
        }
        let prefix = format!("{}:", signer.replace('/', ":"));
        match name.strip_prefix(&prefix) {
            Some(rest) => dns(rest, part),
            None => {
                vec![format!(
                    "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
                )]
            }
        }
    })
}

fn validate(errors: &mut Complaints, object: &Value, old: Option<&Value>) {
    let (path, spec) = (Path::new("spec"), &object["spec"]);
    let signer = spec.str_at(&["signerName"]);
    if !signer.is_empty() {
        validate_signer(signer, &path.child("signerName"), errors);
    }
    let bundle = spec.str_at(&["trustBundle"]);
    if old.is_some_and(|old| old.str_at(&["spec", "trustBundle"]) == bundle) {
        return;
    }
    let place = path.child("trustBundle");
    if bundle.len() > BUNDLE_BYTES_MAX {
        errors.push(FieldError::too_long(&place, BUNDLE_BYTES_MAX));
        return;
    }
    let found = blocks(bundle);
    let mut complaints: Vec<String> = found
        .iter()
        .enumerate()
        .filter_map(anchor_complaint)
        .collect();
    if complaints.is_empty() {
        complaints = duplicates(&found);
    }
    let invalid = |detail| FieldError::invalid(&place, "<value omitted>", detail);
    errors.extend(complaints.into_iter().map(invalid));
}

fn anchor_complaint((at, block): (usize, &Block)) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("entry {at} has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some(format!("entry {at} has PEM block headers"));
    }
    match Certificate::read(&block.bytes) {
        None => Some(format!("entry {at} does not parse as X.509")),
        Some(certificate) if certificate.authority != Some(true) => {
            Some(format!("entry {at} does not have the CA bit set"))
        }
        Some(_) => None,
    }
}

fn duplicates(found: &[Block]) -> Vec<String> {
    if found.is_empty() {
        return vec!["at least one trust anchor must be provided".to_owned()];
    }
    let mut places: BTreeMap<&[u8], Vec<String>> = BTreeMap::new();
    for (at, block) in found.iter().enumerate() {
        places.entry(&block.bytes).or_default().push(at.to_string());
    }
    let repeated = places.values().filter(|places| places.len() > 1);
    repeated
        .map(|places| format!("duplicate trust anchor (indices [{}])", places.join(" ")))
        .collect()
}
