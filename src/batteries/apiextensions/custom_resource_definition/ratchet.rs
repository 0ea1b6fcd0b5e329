//! What an update of a definition may leave as it is: rules that the stored definition breaks already
//! are not held against the new one.

use super::is_established;
use super::schema::{different_keys, has_bad_keys, has_inner_lists};
use super::spec::{
    bundle_complaint, has_defaults, has_schema_with, have_same, knows_review_version,
};
use super::structural_schema::{self, kind};
use crate::shared::validation::members::present;
use polyplane_apiextensions::defaults;
use polyplane_apiextensions::rules::definition::StoredExpressions;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::{Str, Value};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};

/// The types that schemas may name.
pub const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// The greatest number of fields by which lists can be filtered.
pub const SELECTABLE_FIELDS_MAX: usize = 8;

/// A rule that earlier releases of upstream did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A conversion webhook accepts reviews of a version that this server sends.
    ReviewVersion,
    /// Each version has a schema.
    Schemas,
    /// Schemas name only known types.
    Types,
    /// Schemas are structural.
    Structure,
    /// The items of a set are atomic.
    AtomicSets,
    /// The items of sets and maps, and the keys of maps, cannot be absent.
    Keys,
    /// Defaults have no members that their schemas do not have.
    PrunedDefaults,
}

/// The rules that do not apply to a definition because it is written over another one. The default
/// is that of a new definition, to which all rules apply.
#[derive(Clone, Debug, Default)]
pub struct Ratchet {
    broken: BTreeSet<Rule>,
    /// Versions whose schemas are as they were.
    unchanged: BTreeSet<Str>,
    /// Versions that may have too many selectable fields, see [`crowded`].
    crowded: BTreeSet<Str>,
    /// The expressions that are there already.
    expressions: StoredExpressions,
    /// The most different keys that a list has in it.
    list_keys: usize,
    /// Whether the certificates of the conversion webhook must be sound. They need not be before the
    /// kind is served, nor if they were not.
    checks_bundle: bool,
}

impl Ratchet {
    /// Returns what the definition `old` allows the one that replaces it.
    pub fn of_update(object: &Value, old: &Value) -> Self {
        let (spec, before) = (&object["spec"], &old["spec"]);
        let versions = before.items_at(&["versions"]);
        let schemas = || {
            let schemas = versions.iter();
            schemas.map(|version| &version["schema"]["openAPIV3Schema"])
        };
        let any = |broken: &dyn Fn(&Value) -> bool| {
            let mut schemas = schemas().filter(|schema| present(schema));
            schemas.any(|schema| has_schema_with(schema, &|part| broken(part)))
        };
        let webhook = &before["conversion"]["webhook"];
        let unknown_type = |part: &Value| !kind(part).is_empty() && !TYPES.contains(&kind(part));
        let is_loose = |schema: &Value| {
            present(schema)
                && (structural_schema::unsupported(schema).is_some()
                    || !structural_schema::validate(schema, &Path::NIL).is_empty())
        };
        let is_unpruned = |schema: &Value| {
            has_defaults(schema) && defaults::have_unknown_members(schema) && !is_loose(schema)
        };
        let reviews = webhook.items_at(&["conversionReviewVersions"]);
        let broken = [
            (
                Rule::ReviewVersion,
                !reviews.is_empty() && !knows_review_version(webhook),
            ),
            (Rule::Schemas, !schemas().all(present)),
            (Rule::Types, any(&unknown_type)),
            (Rule::Structure, schemas().any(is_loose)),
            (Rule::AtomicSets, any(&has_inner_lists)),
            (Rule::Keys, any(&has_bad_keys)),
            (Rule::PrunedDefaults, schemas().any(is_unpruned)),
        ];
        let new_versions = spec.items_at(&["versions"]);
        Self {
            broken: broken
                .into_iter()
                .filter(|(_, broken)| *broken)
                .map(|(rule, _)| rule)
                .collect(),
            unchanged: unchanged(new_versions, versions),
            crowded: crowded(new_versions, versions),
            expressions: stored_expressions(schemas()),
            list_keys: schemas().map(most_keys).max().unwrap_or(0),
            checks_bundle: is_established(old) && bundle_complaint(before).is_none(),
        }
    }

    /// Returns whether a rule applies.
    pub fn demands(&self, rule: Rule) -> bool {
        !self.broken.contains(&rule)
    }

    /// Returns whether the schema of a version is as it was, so that the cost of its rules counts
    /// only as a whole.
    pub fn has_kept_schema(&self, version: &str) -> bool {
        self.unchanged.contains(version)
    }

    /// Returns the expressions of the stored definition.
    pub fn stored_expressions(&self) -> &StoredExpressions {
        &self.expressions
    }

    /// Returns the most different keys that a list of the definition had before.
    pub fn list_keys(&self) -> usize {
        self.list_keys
    }

    /// Returns whether the certificates of the conversion webhook must be sound.
    pub fn checks_bundle(&self) -> bool {
        self.checks_bundle
    }

    /// Returns whether a version may have too many selectable fields. An empty name stands for the fields that all
    /// versions share.
    pub fn is_crowded(&self, version: &str) -> bool {
        self.crowded.contains(version)
    }
}

/// Returns the most different keys that a list of a schema has.
fn most_keys(schema: &Value) -> usize {
    let most = Cell::new(0);
    has_schema_with(schema, &|part| {
        most.set(most.get().max(different_keys(part)));
        false
    });
    most.get()
}

/// Returns all expressions of schemas.
fn stored_expressions<'v>(schemas: impl Iterator<Item = &'v Value>) -> StoredExpressions {
    let stored = RefCell::new(StoredExpressions::default());
    for schema in schemas {
        has_schema_with(schema, &|part| {
            stored.borrow_mut().add(part);
            false
        });
    }
    stored.into_inner()
}

/// Returns the versions whose schemas are as they were.
fn unchanged(versions: &[Value], old_versions: &[Value]) -> BTreeSet<Str> {
    let of_old = by_name(old_versions);
    // A schema of all versions is also that of a version that is new.
    let common = old_versions.first();
    let common = common.filter(|_| have_same(old_versions, "schema"));
    let kept = versions.iter().filter(|version| {
        let like = common.or_else(|| of_old.get(version.str_at(&["name"])).copied());
        like.is_some_and(|old| version["schema"] == old["schema"])
    });
    kept.map(|version| version.str_at(&["name"]).into())
        .collect()
}

/// Returns the versions that have the same selectable fields as before, and too many of them. Fields that all versions
/// share belong to none of them: they have an empty name.
fn crowded(versions: &[Value], old_versions: &[Value]) -> BTreeSet<Str> {
    let fields = "selectableFields";
    let is_kept = |version: &Value, old: &Value| {
        old.items_at(&[fields]).len() > SELECTABLE_FIELDS_MAX && version[fields] == old[fields]
    };
    let is_common = have_same(versions, fields);
    if is_common != have_same(old_versions, fields) {
        return BTreeSet::new();
    }
    if is_common {
        let both = versions.first().zip(old_versions.first());
        let kept = both.filter(|(version, old)| is_kept(version, old));
        return kept.map(|_| "".into()).into_iter().collect();
    }
    let of_old = by_name(old_versions);
    let kept = versions.iter().filter(|version| {
        let old = of_old.get(version.str_at(&["name"]));
        old.is_some_and(|old| is_kept(version, old))
    });
    kept.map(|version| version.str_at(&["name"]).into())
        .collect()
}

/// Returns the first version with each name.
fn by_name(versions: &[Value]) -> HashMap<&str, &Value> {
    let mut named = HashMap::with_capacity(versions.len());
    for version in versions {
        named.entry(version.str_at(&["name"])).or_insert(version);
    }
    named
}
