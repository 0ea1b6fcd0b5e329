//! The chain of plug-ins, with a table that says which of them act on a resource.
//!
//! The table is made once, so that a write whose resource no plug-in acts on pays one look-up.

use super::Admission;
use super::measure::AdmissionMetrics;
use polyplane_apimachinery::Str;
use std::collections::HashMap;
use std::sync::Arc;

/// The writes that a plug-in acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Writes of all resources.
    Everything,
    /// Writes of these resources and their subresources. Each is named as in `kubectl`:
    /// `pods`, `ingresses.networking.k8s.io`.
    Resources(&'static [&'static str]),
}

/// All plug-ins, in the order in which they act.
#[derive(Clone, Debug, Default)]
pub struct AdmissionChain {
    pub(super) plugins: Vec<Arc<dyn Admission>>,
    /// The positions of the plug-ins that act on resources that [`Self::by_resource`] has not.
    of_everything: Vec<usize>,
    by_resource: HashMap<Str, Vec<usize>>,
    /// How long the plug-ins take.
    pub(super) metrics: Arc<AdmissionMetrics>,
}

impl AdmissionChain {
    /// Creates a chain of plug-ins that act in this order.
    pub fn new(plugins: Vec<Arc<dyn Admission>>) -> Self {
        let mut by_resource: HashMap<Str, Vec<usize>> = HashMap::new();
        for plugin in &plugins {
            if let Interest::Resources(resources) = plugin.interest() {
                let new = resources.iter().map(|name| (Str::from(*name), Vec::new()));
                by_resource.extend(new);
            }
        }
        let mut of_everything = Vec::new();
        for (at, plugin) in plugins.iter().enumerate() {
            match plugin.interest() {
                Interest::Everything => {
                    of_everything.push(at);
                    by_resource.values_mut().for_each(|acting| acting.push(at));
                }
                Interest::Resources(resources) => {
                    for resource in resources {
                        by_resource.entry((*resource).into()).or_default().push(at);
                    }
                }
            }
        }
        Self {
            metrics: Arc::new(AdmissionMetrics::of(&plugins)),
            plugins,
            of_everything,
            by_resource,
        }
    }

    /// Returns the positions of the plug-ins that act on a resource, in order.
    pub(in crate::plan) fn acting_on(&self, qualified: &str) -> &[usize] {
        self.by_resource
            .get(qualified)
            .unwrap_or(&self.of_everything)
    }

    /// Returns the plug-in at a position of the chain.
    pub(in crate::plan) fn plugin(&self, at: usize) -> &dyn Admission {
        &*self.plugins[at]
    }
}
