//! The file `ResourceQuotaConfiguration`: what nobody may take without a quota that covers it.

use super::quota::{ClassRule, Quota, Scope};
use super::usage::{Kind, Signature};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::config::{ConfigError, Section, finished};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Reason};
use std::collections::BTreeSet;

/// The group-versions of the kind, which have the same fields.
const KINDS: [(&str, &str); 3] = [
    ("ResourceQuotaConfiguration", "apiserver.config.k8s.io/v1"),
    ("Configuration", "resourcequota.admission.k8s.io/v1beta1"),
    ("Configuration", "resourcequota.admission.k8s.io/v1alpha1"),
];
const WANTED: &str = "ResourceQuotaConfiguration of apiserver.config.k8s.io/v1";
const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// What a `ResourceQuotaConfiguration` says.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitedResources(Vec<LimitedResource>);

#[derive(Clone, Debug)]
struct LimitedResource {
    /// The plural name and the group, as in `kubectl`.
    qualified: String,
    /// What the names of limited amounts contain, such as `requests.storage`.
    contains: Vec<String>,
    scopes: Vec<LimitedScope>,
}

#[derive(Clone, Debug)]
struct LimitedScope {
    scope: Scope,
    /// The scope in messages.
    shown: String,
}

/// The reason why a write is refused.
pub(super) enum Uncovered {
    /// No quota limits an amount that the write takes.
    Amount(String),
    /// No quota has a scope that selects the object.
    Scope(ApiError),
}

impl LimitedResources {
    /// Reads a document.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub(crate) fn of(document: &Value) -> Result<Self, ConfigError> {
        let root = Section::of_kind(document, &KINDS, WANTED)?;
        let mut errors = Complaints::default();
        root.only(&["apiVersion", "kind", "limitedResources"], &mut errors);
        let list = Path::new("limitedResources");
        let items = root.items("limitedResources", &mut errors).iter();
        let limited = items.enumerate().map(|(at, value)| {
            let path = list.index(at);
            read_resource(&Section { value, path: &path }, &mut errors)
        });
        let limited = Self(limited.collect());
        finished(limited, errors)
    }

    /// Returns whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses an object if a limited amount that it takes, or a limited scope that selects it, is covered
    /// by no quota. Returns the quotas that cover one.
    ///
    /// An amount is covered by a quota among `pertinent`, a scope by one among `all`: upstream asks only
    /// whether a quota has a scope of that name which selects the object.
    pub(super) fn check<'a>(
        &self,
        object: &LimitedObject<'_>,
        all: &'a [Quota],
        pertinent: &[&'a Quota],
    ) -> Result<Vec<&'a Quota>, Uncovered> {
        let amounts = self.amounts(object);
        let limits = |quota: &Quota, amount: &str| {
            let mut limits = quota.limits_on(object.qualified);
            limits.any(|(resource, ..)| resource.as_str() == amount)
        };
        let mut covering = Vec::new();
        let mut open = Vec::new();
        for amount in amounts {
            match pertinent.iter().find(|quota| limits(quota, amount)) {
                Some(quota) => covering.push(*quota),
                None => open.push(amount),
            }
        }
        if !open.is_empty() {
            return Err(Uncovered::Amount(open.join(",")));
        }
        let mut open = Vec::new();
        for limited in self.0.iter().flat_map(|limited| &limited.scopes) {
            if !object.is_selected_by(&limited.scope) {
                continue;
            }
            let covers = |scope: &Scope| {
                scope.name() == limited.scope.name() && object.is_selected_by(scope)
            };
            match all.iter().find(|quota| quota.scopes().iter().any(covers)) {
                Some(quota) => covering.push(quota),
                None => open.push(limited.shown.as_str()),
            }
        }
        if !open.is_empty() {
            let open = open.join(" ");
            let text = format!("insufficient quota to match these scopes: [{open}]");
            // Upstream gives this refusal no reason, so that it is a 500.
            return Err(Uncovered::Scope(ApiError::new(Reason::Unknown, text)));
        }
        Ok(covering)
    }

    /// Returns the names of the limited amounts that an object takes.
    fn amounts<'a>(&self, object: &'a LimitedObject<'_>) -> BTreeSet<&'a str> {
        let of_resource = self
            .0
            .iter()
            .filter(|limited| limited.qualified == object.qualified);
        let texts = of_resource.flat_map(|limited| &limited.contains);
        let texts: Vec<&String> = texts.collect();
        let names = object.amounts.iter().map(String::as_str);
        names
            .filter(|name| texts.iter().any(|text| name.contains(text.as_str())))
            .collect()
    }
}

/// An object that is about to be written.
pub(super) struct LimitedObject<'a> {
    /// Its plural name and group, as in `kubectl`.
    pub(super) qualified: &'a str,
    /// The names of the amounts of which it takes more than nothing.
    pub(super) amounts: Vec<String>,
    /// What scopes select by; `None` if none can select it.
    pub(super) signature: Option<(Kind, &'a Signature)>,
}

impl LimitedObject<'_> {
    fn is_selected_by(&self, scope: &Scope) -> bool {
        self.signature
            .is_some_and(|(kind, signature)| scope.selects(kind, signature))
    }
}

fn read_resource(section: &Section<'_>, errors: &mut Complaints) -> LimitedResource {
    let known = ["apiGroup", "resource", "matchContains", "matchScopes"];
    section.only(&known, errors);
    let group = section.text("apiGroup", errors);
    let resource = section.text("resource", errors);
    if resource.is_empty() {
        errors.push(FieldError::required(&section.path.child("resource"), ""));
    }
    let list = section.path.child("matchScopes");
    let mut scopes = Vec::new();
    for (at, value) in section.items("matchScopes", errors).iter().enumerate() {
        let path = list.index(at);
        scopes.push(read_scope(&Section { value, path: &path }, errors));
    }
    LimitedResource {
        qualified: match group.as_str() {
            "" => resource,
            group => format!("{resource}.{group}"),
        },
        contains: section.texts("matchContains", errors),
        scopes,
    }
}

/// Reads a scope. Upstream takes operators and values that mean nothing, and then enforces no quota at all
/// on the objects of that kind; here they are errors.
fn read_scope(section: &Section<'_>, errors: &mut Complaints) -> LimitedScope {
    section.only(&["scopeName", "operator", "values"], errors);
    let name = section.text("scopeName", errors);
    let operator = section.text("operator", errors);
    let values = section.texts("values", errors);
    if !SCOPES.contains(&name.as_str()) {
        let path = section.path.child("scopeName");
        errors.push(FieldError::not_supported(&path, name.as_str(), &SCOPES));
    }
    if matches!(name.as_str(), "PriorityClass" | "VolumeAttributesClass") {
        let path = section.path.child("values");
        match (operator.as_str(), values.is_empty()) {
            ("In" | "NotIn", true) => {
                let why = "must be at least one scope value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(&path, why));
            }
            ("DoesNotExist", false) => {
                let why = "must be no value when `operator` is 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(&path, values.join(","), why));
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => {
                let path = section.path.child("operator");
                let known = ["DoesNotExist", "Exists", "In", "NotIn"];
                errors.push(FieldError::not_supported(&path, other, &known));
            }
        }
    }
    LimitedScope {
        scope: Scope::of(&name, ClassRule::of(section.value)),
        shown: format!("{{{name} {operator} [{}]}}", values.join(" ")),
    }
}
