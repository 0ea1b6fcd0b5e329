//! Bad values that are whole objects. Strategies name their type; the registry writes their text
//! with the schemas of the kind.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::Bad;

/// Returns a label selector as a bad value.
pub fn selector(value: &Value) -> Bad {
    typed("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", value)
}

/// Returns a value of the type `definition` as a bad value.
pub fn typed(definition: &'static str, value: &Value) -> Bad {
    Bad::Typed {
        definition,
        value: value.clone(),
    }
}

/// Returns a list of values of the type `definition` as a bad value.
pub fn list(definition: &'static str, values: &[Value]) -> Bad {
    Bad::Typed {
        definition,
        value: values.to_vec().into(),
    }
}
