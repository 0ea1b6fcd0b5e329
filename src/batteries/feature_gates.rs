//! The feature gates of upstream that strategies and reconcilers test.

use polyplane_registry::Features;
use polyplane_registry::kinds::feature_gates::FeatureError;

/// Declares gates by upstream's names, so that [`Gate::ALL`] has each of them.
macro_rules! gates {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A gate that a strategy or a reconciler tests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Gate {
            $($(#[$doc])* $name,)*
        }

        impl Gate {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns upstream's name of the gate.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

gates! {
    /// With this gate, templates of pod groups may say where claims to devices are.
    DRAWorkloadResourceClaims,
    /// With this gate, pod groups may say whether they preempt others.
    PodGroupPreemptionPolicy,
    /// With this gate, pod groups may say where their pods may be.
    TopologyAwareWorkloadScheduling,
    /// With this gate, requests for parts of a device may be fractions.
    DRAFractionalCapacityRange,
    /// With this gate, a resize may change volumes that are in memory.
    InPlacePodVerticalScalingMemoryBackedVolumes,
    /// With this gate, volume claims show whether a pod names them.
    PersistentVolumeClaimUnusedSinceTime,
}

impl Gate {
    /// Returns whether the feature is on.
    pub fn is_on(self, features: &Features) -> bool {
        features.enabled(self.name())
    }

    /// Checks that upstream has all of these gates.
    ///
    /// # Errors
    /// Returns [`FeatureError::Unknown`] for a misspelt one.
    pub(crate) fn check(features: &Features) -> Result<(), FeatureError> {
        Self::ALL
            .iter()
            .try_for_each(|gate| features.known(gate.name(), "the code").map(|_| ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_tables;

    #[test]
    fn a_gate_that_upstream_does_not_have_is_found() {
        let none = Features::default();
        assert!(Gate::check(&none).is_err());
        assert!(Gate::check(&kind_tables::features()).is_ok());
    }
}
