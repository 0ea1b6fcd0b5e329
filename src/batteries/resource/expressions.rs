//! The expressions about a device: what they may use, and whether they compile and cost too much. This module
//! evaluates none.

use polyplane_cel::{Environment, Range, Sizes, Type, WorkBudget, compile_within, estimate};
use std::sync::{Arc, LazyLock};

/// Most that one expression, or those of one claim that compute attributes, may cost.
pub const COST_MAX: u64 = 1_000_000;

/// What an expression is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It selects devices.
    Selector,
    /// It computes an attribute.
    Attribute,
}

/// Compiles an expression, and returns the most that an evaluation of it can cost.
///
/// # Errors
/// Returns upstream's complaint.
pub fn cost_of(text: &str, purpose: Purpose) -> Result<u64, String> {
    let budget = WorkBudget::for_short_expression();
    let checked = compile_within(text, &DEVICE, &budget)?;
    let made = checked.result();
    let is_right = match purpose {
        Purpose::Selector => matches!(made, Type::Bool | Type::Any),
        Purpose::Attribute => {
            let is_version = made.declared_name() == "kubernetes.Semver";
            is_version || matches!(made, Type::Bool | Type::Int | Type::String) || made.is_dynamic()
        }
    };
    if !is_right {
        let wanted = match purpose {
            Purpose::Selector => "bool or the unknown type",
            Purpose::Attribute => "a primitive scalar (string, integer, boolean, semver)",
        };
        return Err(format!(
            "must evaluate to {wanted}, not {}",
            made.declared_name()
        ));
    }
    checked.check_constants(&DEVICE)?;
    Ok(estimate(&checked, &DeviceSizes, 0).max)
}

static DEVICE: LazyLock<Environment> = LazyLock::new(|| {
    let mut environment = Environment::for_new_expressions();
    environment.name_schema_types();
    environment.syntax.macros.bind = true;
    let by_domain = |of| Type::map(Type::String, Type::map(Type::String, of));
    let quantity = Type::Opaque("kubernetes.Quantity".into(), [].into());
    let fields = [
        ("driver", Type::String),
        ("allowMultipleAllocations", Type::Bool),
        ("attributes", by_domain(Type::Any)),
        ("capacity", by_domain(quantity)),
    ];
    environment.declare_struct("kubernetes.DRADevice", fields);
    environment.declare("device", Type::Struct("kubernetes.DRADevice".into()));
    environment
});

/// The limits that the API sets on devices, as sizes.
struct DeviceSizes;

/// A part of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Device,
    Driver,
    AllowMultipleAllocations,
    Attributes,
    AttributesOfDomain,
    Attribute,
    Capacity,
    CapacityOfDomain,
    Quantity,
    Domain,
    Identifier,
}

impl Part {
    fn below(self, name: &str) -> Option<Self> {
        Some(match (self, name) {
            (Self::Device, "driver") => Self::Driver,
            (Self::Device, "allowMultipleAllocations") => Self::AllowMultipleAllocations,
            (Self::Device, "attributes") => Self::Attributes,
            (Self::Device, "capacity") => Self::Capacity,
            (Self::Attributes | Self::Capacity, "@keys") => Self::Domain,
            (Self::AttributesOfDomain | Self::CapacityOfDomain, "@keys") => Self::Identifier,
            (Self::Attributes, "@items" | "@values") => Self::AttributesOfDomain,
            (Self::Capacity, "@items" | "@values") => Self::CapacityOfDomain,
            // All attributes have one limit, whatever their names.
            (Self::AttributesOfDomain, _) => Self::Attribute,
            (Self::CapacityOfDomain, "@items" | "@values") => Self::Quantity,
            _ => return None,
        })
    }

    const fn size_max(self) -> u64 {
        match self {
            Self::Device | Self::Quantity => 0,
            Self::AllowMultipleAllocations => 1,
            Self::Driver | Self::Domain => 63,
            Self::Identifier => 32,
            Self::Attribute => 64,
            Self::Attributes
            | Self::AttributesOfDomain
            | Self::Capacity
            | Self::CapacityOfDomain => 32,
        }
    }
}

impl Sizes for DeviceSizes {
    fn size(&self, path: &[Arc<str>], _: &Type) -> Option<Range> {
        let (root, below) = path.split_first()?;
        if **root != *"device" {
            return None;
        }
        let mut part = Part::Device;
        for name in below {
            part = part.below(name)?;
        }
        Some(Range {
            min: 0,
            max: part.size_max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::vectors;

    #[test]
    fn devices_are_judged_as_by_upstream() {
        vectors::compare("devices", |scope, text| {
            let purpose = match scope {
                "selector" => Purpose::Selector,
                _ => Purpose::Attribute,
            };
            cost_of(text, purpose).map(|cost| cost.to_string())
        });
    }
}
