//! The tables of kinds that planes serve, built from the generated data and the batteries.
//!
//! Invariant: only code that builds or opens planes uses these tables. A strategy gets schemas and
//! features from its [`Context`](polyplane_registry::strategy::Context), because planes can differ
//! in them.

use crate::feature_gates::Gate;
use crate::strategy;
use polyplane_apiextensions::CustomKinds;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::schema::Schemas;
use polyplane_registry::kinds::api_version::ApiVersion;
use polyplane_registry::kinds::feature_gates::{FeatureError, GateNeeds, GateRow};
use polyplane_registry::kinds::generated_rows::gates_of;
use polyplane_registry::{Features, KindTable};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

const SCHEMAS: &[u8] = include_bytes!("data/schemas.json");
/// The types of aggregated discovery, which is no kind that anybody stores.
const DISCOVERY: &[u8] = include_bytes!("data/discovery.json");
const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const ROWS: &[u8] = include_bytes!("data/rows.json");
const API_VERSIONS: &[u8] = include_bytes!("data/api_versions.json");
const GATES: &[u8] = include_bytes!("data/gates.json");
const GATED_FIELDS: &[u8] = include_bytes!("data/gated_fields.json");
/// What `ROWS`, `SCHEMAS` and `GATED_FIELDS` have of group-versions that are off unless a server switches
/// them on.
const PREVIEW_ROWS: &[u8] = include_bytes!("data/previews/rows.json");
const PREVIEW_SCHEMAS: &[u8] = include_bytes!("data/previews/schemas.json");
const GATE_NEEDS: &[u8] = include_bytes!("data/previews/gate_needs.json");
const PREVIEW_GATED_FIELDS: &[u8] = include_bytes!("data/previews/gated_fields.json");
/// The kinds that only the root plane serves, in the shape of the generated rows.
const ROOT_ROWS: &[u8] = include_bytes!("polyplane/rows.json");
/// The schemas of the kinds in [`ROOT_ROWS`], in the shape of the generated schemas.
const ROOT_SCHEMAS: &[u8] = include_bytes!("polyplane/schemas.json");

/// Returns the schemas of all built-in types, but those of [`preview_kinds`].
pub fn schemas() -> Arc<Schemas> {
    static SHARED: OnceLock<Arc<Schemas>> = OnceLock::new();
    Arc::clone(SHARED.get_or_init(|| Arc::new(base_schemas())))
}

fn base_schemas() -> Schemas {
    let mut schemas = Schemas::parse(SCHEMAS).expect("the generated schemas are sound");
    schemas
        .extend(DISCOVERY)
        .expect("the generated schemas of discovery are sound");
    schemas
        .extend(ROOT_SCHEMAS)
        .expect("the schemas of the root plane are sound");
    let metadata = schemas.find(METADATA).expect("all kinds have metadata");
    schemas.add_open(OPEN_OBJECT, metadata);
    schemas
}

/// The name of the definition of objects whose metadata is typed and whose other members are kept.
const OPEN_OBJECT: &str = "dev.polyplane.CustomObject";

/// Returns the derivation of the kinds that clients define. All planes of the process share it.
pub fn custom_kinds() -> Arc<CustomKinds> {
    static SHARED: OnceLock<Arc<CustomKinds>> = OnceLock::new();
    let create = || {
        let object = schemas().find(OPEN_OBJECT).expect("it was added");
        Arc::new(CustomKinds::new(schemas(), object, features()))
    };
    Arc::clone(SHARED.get_or_init(create))
}

/// Returns all group-versions that upstream knows. A plane has the kinds of those that are served by
/// default.
pub fn api_versions() -> Vec<ApiVersion> {
    ApiVersion::parse(API_VERSIONS).expect("the generated group-versions are sound")
}

/// Returns the feature gates, and the fields behind them.
pub fn features() -> Arc<Features> {
    static SHARED: OnceLock<Arc<Features>> = OnceLock::new();
    let parse = || {
        let features = Features::parse(GATES, GATED_FIELDS).expect("the generated gates are sound");
        Gate::check(&features).expect("upstream has the gates that code asks for");
        Arc::new(features)
    };
    Arc::clone(SHARED.get_or_init(parse))
}

/// Returns the kinds of a plane.
pub fn tenant_kinds() -> Arc<KindTable> {
    static SHARED: OnceLock<Arc<KindTable>> = OnceLock::new();
    let build = || {
        let table = KindTable::build(&[ROWS], schemas(), features(), &strategy, 1);
        Arc::new(table.expect("the generated rows are sound"))
    };
    Arc::clone(SHARED.get_or_init(build))
}

/// Returns the kinds of a plane, and those of alpha and beta versions that upstream has off by default,
/// also if the gate of their feature is off ([`Resource::gate`](polyplane_registry::Resource)). The
/// feature gates `on` are on, all others as by default. The definitions stand behind those of
/// [`schemas`], so a definition of either is the same in both. Each call takes the time and the memory
/// of another table.
///
/// # Errors
/// Returns [`FeatureError::Unknown`] if upstream has no such gate.
pub fn preview_kinds(on: &[&str]) -> Result<KindTable, FeatureError> {
    let mut schemas = base_schemas();
    schemas
        .extend(PREVIEW_SCHEMAS)
        .expect("the generated schemas of previews are sound");
    let gated: [&[u8]; 2] = [GATED_FIELDS, PREVIEW_GATED_FIELDS];
    let features = Arc::new(Features::parse_with(GATES, &gated, on)?);
    let rows: [&[u8]; 2] = [ROWS, PREVIEW_ROWS];
    let table = KindTable::build(&rows, Arc::new(schemas), features, &strategy, 3);
    Ok(table.expect("the generated rows of previews are sound"))
}

/// Returns the feature gates without which some of [`preview_kinds`] are not served.
pub fn gates_of_kinds() -> BTreeSet<Str> {
    gates_of(PREVIEW_ROWS).expect("the generated rows of previews are sound")
}

/// Returns the feature gates that other gates need.
pub fn gate_needs() -> Vec<GateNeeds> {
    GateNeeds::parse(GATE_NEEDS).expect("the generated needs of gates are sound")
}

/// Returns upstream's feature gates.
pub fn gates() -> Vec<GateRow> {
    GateRow::parse(GATES).expect("the generated gates are sound")
}

/// Returns the kinds of the root plane: those of every plane, and the planes themselves.
pub fn root_kinds() -> Arc<KindTable> {
    static SHARED: OnceLock<Arc<KindTable>> = OnceLock::new();
    let build = || {
        let table = KindTable::build(&[ROWS, ROOT_ROWS], schemas(), features(), &strategy, 2);
        Arc::new(table.expect("the rows of the root plane are sound"))
    };
    Arc::clone(SHARED.get_or_init(build))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_registry::kinds::table::TableError;
    use polyplane_registry::{Resource, Strategy};

    #[test]
    fn a_row_without_a_strategy_is_refused() {
        let all_but_pods =
            |group: &str, version: &str, resource: &str| -> Option<Arc<dyn Strategy>> {
                strategy(group, version, resource).filter(|_| resource != "pods")
            };
        let refused = KindTable::build(&[ROWS], schemas(), features(), &all_but_pods, 1);
        let resource = match refused {
            Err(TableError::Strategy { resource, .. }) => resource,
            other => panic!("the table was built: {}", other.is_ok()),
        };
        assert_eq!(resource, "pods");
    }

    fn previews() -> KindTable {
        preview_kinds(&[]).expect("no gate is named")
    }

    /// Upstream stores some of them in a version that is off.
    #[test]
    fn every_kind_that_can_be_read_is_stored() {
        for kinds in [tenant_kinds(), Arc::new(previews())] {
            for row in kinds.resources().iter().filter(|row| !row.is_virtual()) {
                let (group, resource) = (&row.storage.group, &row.storage.resource);
                let stored = kinds.stored(group, resource);
                let stored = stored.unwrap_or_else(|| panic!("{} is not stored", row.qualified));
                assert_eq!(stored.storage.version, row.storage.version);
                let mut all = kinds.stored_resources();
                assert!(all.any(|one| one.number == stored.number));
            }
        }
    }

    #[test]
    fn previews_change_nothing_of_the_other_kinds() {
        let (kinds, previews) = (tenant_kinds(), previews());
        for row in kinds.resources() {
            let same = previews.resolve(&row.group, &row.version, &row.name);
            let same = same.unwrap_or_else(|| panic!("{} is not there", row.qualified));
            assert_eq!(row.definition, same.definition);
            let name = |row: &Resource| row.schemas.get(row.definition).name.clone();
            assert_eq!(name(row), name(same));
        }
        let all = previews.resources().len();
        assert!(all > kinds.resources().len() + 20, "{all}");
        let gates = previews.resources().iter();
        let gates = gates.filter_map(|row| row.gate.as_deref());
        for gate in gates {
            assert_eq!(features().known(gate, "a row").ok(), Some(false), "{gate}");
        }
    }

    #[test]
    fn gated_fields_are_of_kinds_that_are_stored() {
        let kinds = previews();
        let features = Arc::clone(&kinds.resources()[0].features);
        let mut count = 0;
        for name in features.gated_kinds() {
            let (group, resource) = name.split_once('/').expect("group/resource");
            let row = kinds.stored(group, resource);
            let row = row.unwrap_or_else(|| panic!("{name} is not stored"));
            assert!(row.gated_fields.is_some(), "{name}");
            count += 1;
        }
        assert!(count > 10, "only {count} kinds have gated fields");
    }

    #[test]
    fn every_stored_kind_has_behaviour_of_its_own() {
        let (kinds, previews) = (root_kinds(), previews());
        let plain: Vec<String> = kinds
            .stored_resources()
            .chain(previews.stored_resources())
            .filter(|row| format!("{:?}", row.strategy) == "Plain")
            .map(|row| row.qualified.to_string())
            .collect();
        assert!(
            plain.is_empty(),
            "stored without validation of their own: {plain:?}"
        );
    }
}
