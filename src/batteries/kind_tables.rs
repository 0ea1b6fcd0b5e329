//! The tables of kinds that planes serve, built from the generated data and the batteries.
//!
//! Invariant: only code that builds or opens planes uses these tables. A strategy gets schemas and
//! features from its [`Context`](polyplane_registry::strategy::Context), because planes can differ
//! in them.

use crate::feature_gates::Gate;
use crate::strategy;
use polyplane_apiextensions::CustomKinds;
use polyplane_apimachinery::schema::Schemas;
use polyplane_registry::kinds::api_version::ApiVersion;
use polyplane_registry::{Features, KindTable};
use std::sync::{Arc, OnceLock};

const SCHEMAS: &[u8] = include_bytes!("data/schemas.json");
/// The types of aggregated discovery, which is no kind that anybody stores.
const DISCOVERY: &[u8] = include_bytes!("data/discovery.json");
const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const ROWS: &[u8] = include_bytes!("data/rows.json");
const API_VERSIONS: &[u8] = include_bytes!("data/api_versions.json");
const GATES: &[u8] = include_bytes!("data/gates.json");
const GATED_FIELDS: &[u8] = include_bytes!("data/gated_fields.json");
/// The kinds that only the root plane serves, in the shape of the generated rows.
const ROOT_ROWS: &[u8] = include_bytes!("polyplane/rows.json");
/// The schemas of the kinds in [`ROOT_ROWS`], in the shape of the generated schemas.
const ROOT_SCHEMAS: &[u8] = include_bytes!("polyplane/schemas.json");

/// Returns the schemas of all built-in types.
pub fn schemas() -> Arc<Schemas> {
    static SHARED: OnceLock<Arc<Schemas>> = OnceLock::new();
    let parse = || {
        let mut schemas = Schemas::parse(SCHEMAS).expect("the generated schemas are sound");
        schemas
            .extend(DISCOVERY)
            .expect("the generated schemas of discovery are sound");
        schemas
            .extend(ROOT_SCHEMAS)
            .expect("the schemas of the root plane are sound");
        let metadata = schemas.find(METADATA).expect("all kinds have metadata");
        schemas.add_open(OPEN_OBJECT, metadata);
        Arc::new(schemas)
    };
    Arc::clone(SHARED.get_or_init(parse))
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
    use polyplane_registry::Strategy;
    use polyplane_registry::kinds::table::TableError;

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

    #[test]
    fn gated_fields_are_of_kinds_that_are_stored() {
        let (kinds, features) = (tenant_kinds(), features());
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
        let kinds = root_kinds();
        let plain: Vec<String> = kinds
            .stored_resources()
            .filter(|row| format!("{:?}", row.strategy) == "Plain")
            .map(|row| row.qualified.to_string())
            .collect();
        assert!(
            plain.is_empty(),
            "stored without validation of their own: {plain:?}"
        );
    }
}
