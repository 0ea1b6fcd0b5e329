//! Fields that StorageClasses and VolumeAttributesClasses have in common: the name of a driver and
//! parameters for it.

use crate::shared::validation::complaints::complain;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Map, Value, names};

/// Number of parameters of a class at most, as upstream limits it.
const PARAMETERS_MAX: usize = 512;
/// Most bytes that the keys and values of all parameters may have together, as upstream limits
/// them.
const PARAMETER_BYTES_MAX: usize = 256 * 1024;

/// The choice whether a class must have parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// It may have none.
    Optional,
    /// It must have at least one.
    Needed,
}

/// Validates the name of the driver.
pub fn validate_driver(errors: &mut Complaints, name: &str, path: &Path<'_>) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        let name = name.to_lowercase();
        complain(errors, path, name.as_str(), names::qualified_name(&name));
    }
}

/// Validates the parameters of a class: not too many, not too long, none without a name.
pub fn validate_parameters(
    errors: &mut Complaints,
    parameters: &Value,
    rule: Parameters,
    path: &Path<'_>,
) {
    let members = || parameters.as_object().into_iter().flat_map(Map::iter);
    let count = members().count();
    if count > PARAMETERS_MAX {
        errors.push(FieldError::too_long(path, PARAMETERS_MAX));
        return;
    }
    if members().any(|(key, _)| key.is_empty()) {
        errors.push(FieldError::invalid(path, "", "field can not be empty."));
    }
    let bytes: usize = members()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > PARAMETER_BYTES_MAX {
        errors.push(FieldError::too_long(path, PARAMETER_BYTES_MAX));
    }
    if rule == Parameters::Needed && count == 0 {
        errors.push(FieldError::required(
            path,
            "must contain at least one key/value pair",
        ));
    }
}
